//! Finds the tags of tests. A tag that is not in the comment directly above a test function is an
//! error.

use std::fs;
use std::path::{Path, PathBuf};

/// Claim of a test that it proves a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) id: String,
    /// Name of the test in libtest.
    pub(crate) test: String,
    /// File and line of the tag.
    pub(crate) place: String,
}

/// Folders that contain no sources of the workspace.
const SKIPPED_FOLDERS: [&str; 5] = ["target", ".git", "corpus", "data", "libfuzzer"];

/// Returns all Rust source files below `root`, except those in [`SKIPPED_FOLDERS`].
fn sources(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut folders = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() {
                if !SKIPPED_FOLDERS.iter().any(|other| name == *other) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the names of all test functions below `root`.
#[cfg(test)]
pub(super) fn functions(root: &Path) -> Result<std::collections::BTreeSet<String>, String> {
    let mut names = std::collections::BTreeSet::new();
    for file in sources(root)? {
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let after_attribute = text.split("#[test]").skip(1);
        names.extend(after_attribute.filter_map(|rest| {
            rest.lines().find_map(|line| function(line.trim_start())).map(str::to_owned)
        }));
    }
    Ok(names)
}

/// Returns all claims in the sources below `root`, and the errors in tags.
pub(super) fn scan(root: &Path) -> Result<(Vec<Claim>, Vec<String>), String> {
    let (mut claims, mut wrong) = (Vec::new(), Vec::new());
    for file in sources(root)? {
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let short = file.strip_prefix(root).unwrap_or(&file);
        scan_file(&text, &short.display().to_string(), &modules(short), &mut claims, &mut wrong);
    }
    Ok((claims, wrong))
}

/// Returns the module path of a file in its crate or test binary: `wire::startup` for
/// `mpa/src/wire/startup.rs`.
fn modules(file: &Path) -> Vec<String> {
    let parts: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_string_lossy().into()).collect();
    let at = parts.iter().position(|part| part == "src" || part == "tests").map_or(0, |at| at + 1);
    let in_tests = at > 0 && parts[at - 1] == "tests";
    let mut modules = parts[at..].to_vec();
    // `tests/wire/main.rs` and `tests/wire/data.rs` are the binary `wire`; `tests/framing.rs` is a
    // binary.
    if in_tests && !modules.is_empty() {
        modules.remove(0);
    }
    if modules.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        modules.pop();
    }
    modules
}

/// Returns the ids in the tags of a line.
fn ids(line: &str) -> Vec<String> {
    // The text is split in two, so that this line does not contain a tag itself.
    let open = concat!("[", "test:");
    line.split(open)
        .skip(1)
        .filter_map(|rest| rest.split_once(']'))
        .map(|(id, _)| id.to_owned())
        .collect()
}

fn scan_file(
    text: &str,
    file: &str,
    modules: &[String],
    claims: &mut Vec<Claim>,
    wrong: &mut Vec<String>,
) {
    // Tags of the comment directly above the current line, and whether a test attribute follows it.
    let mut open: Vec<(String, usize)> = Vec::new();
    let mut is_test = false;
    // Modules inside of the file, each with its indentation.
    let mut inner: Vec<(usize, String)> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code.starts_with("//") {
            if is_test {
                continue;
            }
            open.extend(ids(code).into_iter().map(|id| (id, number)));
            continue;
        }
        if !ids(code).is_empty() {
            wrong.push(format!("{file}:{number}: a tag outside of a comment"));
        }
        if code.starts_with("#[") {
            is_test |= code.starts_with("#[test]");
            continue;
        }
        if let Some(name) = function(code).filter(|_| is_test) {
            let path: Vec<&str> = modules
                .iter()
                .map(String::as_str)
                .chain(inner.iter().map(|(_, name)| name.as_str()))
                .chain([name])
                .collect();
            let test = path.join("::");
            claims.extend(open.drain(..).map(|(id, line)| Claim {
                id,
                test: test.clone(),
                place: format!("{file}:{line}"),
            }));
        }
        for (id, line) in open.drain(..) {
            wrong.push(format!("{file}:{line}: {id} is not directly above a test function"));
        }
        is_test = false;
        if let Some(name) = code.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
            inner.push((indent, name.to_owned()));
        } else if code == "}" {
            inner.retain(|(at, _)| *at < indent);
        }
    }
    for (id, line) in open {
        wrong.push(format!("{file}:{line}: {id} is not directly above a test function"));
    }
}

/// Returns the name of the function that begins in a line.
fn function(code: &str) -> Option<&str> {
    let rest = code.strip_prefix("pub ").unwrap_or(code);
    let rest = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("fn ")?;
    rest.split(['(', '<', ' ']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> (Vec<(String, String)>, Vec<String>) {
        let (mut claims, mut wrong) = (Vec::new(), Vec::new());
        let text = text.replace("TAG:", concat!("[", "test:"));
        scan_file(&text, "a.rs", &["m".to_owned()], &mut claims, &mut wrong);
        (claims.into_iter().map(|claim| (claim.id, claim.test)).collect(), wrong)
    }

    #[test]
    fn tags_above_tests() {
        let text = "// TAG:A-1] TAG:A-2]\n/// Says what.\n// TAG:A-3]\n#[test]\n#[cfg(unix)]\nfn one() {}\n\n\
            mod tests {\n    // TAG:A-4]\n    #[test]\n    fn two() {\n    }\n}\n// TAG:A-5]\n#[test]\nfn three() {}\n";
        let (claims, wrong) = found(text);
        let claims: Vec<(&str, &str)> = claims.iter().map(|(id, test)| (&**id, &**test)).collect();
        let one = [("A-1", "m::one"), ("A-2", "m::one"), ("A-3", "m::one")];
        assert_eq!(claims, [&one[..], &[("A-4", "m::tests::two"), ("A-5", "m::three")]].concat());
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn tags_elsewhere() {
        for text in [
            "// TAG:A-1]\nfn no_test() {}\n",
            "// TAG:A-1]\n\n#[test]\nfn far_away() {}\n",
            "#[test]\nfn one() { // TAG:A-1]\n}\n",
            "let tag = \"TAG:A-1]\";\n",
            "// TAG:A-1]\n",
        ] {
            let (claims, wrong) = found(text);
            assert_eq!((claims.len(), wrong.len()), (0, 1), "{text}: {claims:?} {wrong:?}");
        }
    }

    #[test]
    fn files_are_modules() {
        for (file, name) in [
            ("mpa/src/wire/startup.rs", "wire::startup"),
            ("mpa/src/lib.rs", ""),
            ("mpa/src/startup/mod.rs", "startup"),
            ("mpa/tests/framing.rs", ""),
            ("verbs/tests/wire/data.rs", "data"),
            ("verbs/tests/wire/main.rs", ""),
        ] {
            assert_eq!(modules(Path::new(file)).join("::"), name, "{file}");
        }
    }
}
