//! Every refused call logs its reason.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// An error number that is not followed by a call of `because` or a similar function is a refusal
/// without a reason.
#[test]
fn every_refusal_has_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for folder in ["core/src", "verbs/src", "cm/src", "rsocket/src"] {
        sources(&root.join(folder), &mut files);
    }
    let kinds = ["INVAL", "UNSUPPORTED", "NOSYS", "NOMEM", "BUSY", "INHERITED", "NODEV"];
    let reasons = [".because(", ".null_argument()", ".out_of_range()"];
    let mut bare = Vec::new();
    let mut with_reason = 0;
    for file in files.iter().filter(|file| !file.ends_with("errno.rs")) {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        // A line that begins with a method call belongs to the previous line.
        let mut lines: Vec<(usize, String)> = Vec::new();
        for (number, line) in code.lines().enumerate() {
            match lines.last_mut() {
                Some((_, last)) if line.trim_start().starts_with('.') => {
                    last.push_str(line.trim_start());
                }
                _ => lines.push((number, line.to_owned())),
            }
        }
        for (number, line) in lines {
            let refuses =
                ["Err(", "ok_or", "map_err(", "Errno::from("].iter().any(|way| line.contains(way));
            for kind in kinds {
                for behind in line.split(&format!("Errno::{kind}")).skip(1) {
                    // `settings.rs` has already reported the line on standard error.
                    let is_reported = file.ends_with("settings.rs");
                    if reasons.iter().any(|reason| behind.starts_with(reason)) {
                        with_reason += 1;
                    } else if refuses && !is_reported && !line.contains("} else {") {
                        bare.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
                    }
                }
            }
        }
    }
    assert!(bare.is_empty(), "{bare:#?}");
    assert!(with_reason > 150, "the sources are read: {with_reason}");
}
