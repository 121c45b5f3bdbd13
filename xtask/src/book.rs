//! `cargo xtask book`: the documents of the repository as one book.
//!
//! Documents link to each other as files of the repository, so that they can be read there. For the
//! book they are copied to one folder, and the links are rewritten. A broken link in any document
//! of the repository is an error. `cargo xtask book --run` runs the commands of the pages.

mod commands;
mod crates;
mod page;
mod root;
mod run;
mod script;
#[cfg(test)]
mod tests;
mod transcript;

use crate::process::{output, succeed};
use page::{LinkError, Page};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Version of mdBook that builds the book.
const MDBOOK: &str = "0.5.4";

/// Options of `cargo xtask book`.
#[derive(clap::Args)]
#[command(after_help = "\
The book is made of docs/SUMMARY.md and the documents that it names, by mdBook, which is installed below the target folder on first use.
Every link of every document is checked. Exit code 1 when a link leads nowhere or the book cannot be made.
--run runs the commands of the pages and docs/newcomer.sh, each in a fresh Debian that has the packages of `cargo xtask dist` and nothing of the source tree, and
compares what they print with what the book says. This needs root, mmdebstrap, and Debian's archive for the first time. A page that cannot be run here is
skipped by name; commands that are never run are listed by page in xtask/src/book/commands.rs with the reason.")]
pub(crate) struct Options {
    /// Check the links without building the book
    #[arg(long)]
    check: bool,
    /// Run the commands of the pages without building the book
    #[arg(long, conflicts_with = "check")]
    run: bool,
    /// Only pages whose name contains this
    #[arg(long, value_name = "SUBSTR", requires = "run")]
    only: Option<String>,
    /// Use a debug build, which is faster to build and slower to run
    #[arg(long, requires = "run")]
    debug: bool,
}

/// Runs `cargo xtask book`.
pub(crate) fn run(options: &Options) -> ExitCode {
    match make(&crate::workspace::root(), options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(wrong) => {
            for line in wrong {
                eprintln!("xtask: {line}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Checks the links and the commands of all documents. Then it builds the book in `target/book` or,
/// if the options ask for it, runs the commands.
///
/// Returns `false` if a command failed, and the errors in the documents line by line.
fn make(root: &Path, options: &Options) -> Result<bool, Vec<String>> {
    let one = |error: String| vec![error];
    let documents = documents(root).map_err(one)?;
    let summary = documents
        .get(Path::new("docs/SUMMARY.md"))
        .ok_or_else(|| one("docs/SUMMARY.md is missing".to_owned()))?;
    let chapters = chapters(summary, &documents)?;
    check_links(root, &documents)?;
    let script = root.join(script::PATH);
    let script = fs::read_to_string(&script)
        .map_err(|error| one(format!("{}: {error}", script.display())))?;
    let book = chapters.keys().map(PathBuf::as_path).chain([Path::new("README.md")]);
    let commands = commands::of_book(&documents, book, &script)?;
    if options.run {
        return run::run(&commands, options).map_err(one);
    }
    println!(
        "{} documents, {} of them in the book: all links are valid",
        documents.len(),
        chapters.len()
    );
    if !options.check {
        let target = crate::workspace::target().map_err(one)?;
        let folder = target.join("book");
        assemble(root, &folder, &documents, &chapters).map_err(one)?;
        build(&folder, &target).map_err(one)?;
        println!("{}", folder.join("html/index.html").display());
    }
    Ok(true)
}

/// Checks the links of all documents.
fn check_links(root: &Path, documents: &BTreeMap<PathBuf, Page>) -> Result<(), Vec<String>> {
    let wrong: Vec<_> = documents
        .iter()
        .flat_map(|(path, page)| {
            let wrong =
                page.links().filter_map(|link| page::check(root, path, &link.to, documents).err());
            wrong.map(|wrong: LinkError| format!("{}: {wrong}", path.display())).collect::<Vec<_>>()
        })
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Reads all documents of the repository.
fn documents(root: &Path) -> Result<BTreeMap<PathBuf, Page>, String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"]).current_dir(root);
    let mut documents = BTreeMap::new();
    for path in output(&mut git)?.lines().map(PathBuf::from) {
        let text = fs::read_to_string(root.join(&path))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        documents.insert(path, Page::new(text));
    }
    Ok(documents)
}

/// Returns the documents in the summary, with their names in the book. A document of docs/ that is
/// not in the summary is an error, because no reader would find it.
fn chapters(
    summary: &Page,
    documents: &BTreeMap<PathBuf, Page>,
) -> Result<BTreeMap<PathBuf, String>, Vec<String>> {
    let mut wrong = Vec::new();
    let mut chapters = BTreeMap::new();
    for link in summary.links() {
        let path = page::resolve(Path::new("docs/SUMMARY.md"), &link.to);
        // mdBook would use a README.md as the front page, so it gets the name of its folder.
        let name = match path.file_name() {
            Some(name) if name == "README.md" => {
                path.parent().unwrap_or(&path).with_extension("md")
            }
            _ => path.clone(),
        };
        let name =
            name.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        if chapters.values().any(|other| *other == name) {
            wrong.push(format!("docs/SUMMARY.md: two documents are {name} in the book"));
        }
        chapters.insert(path, name);
    }
    let forgotten = documents.keys().filter(|path| {
        path.starts_with("docs") && !path.ends_with("SUMMARY.md") && !chapters.contains_key(*path)
    });
    wrong.extend(forgotten.map(|path| format!("docs/SUMMARY.md does not name {}", path.display())));
    if wrong.is_empty() { Ok(chapters) } else { Err(wrong) }
}

/// Writes the source of the book.
fn assemble(
    root: &Path,
    folder: &Path,
    documents: &BTreeMap<PathBuf, Page>,
    chapters: &BTreeMap<PathBuf, String>,
) -> Result<(), String> {
    let source = folder.join("src");
    let failed = |error: std::io::Error| format!("{}: {error}", source.display());
    let _ = fs::remove_dir_all(&source);
    fs::create_dir_all(&source).map_err(failed)?;
    for file in ["book.toml", "docs/book.css"] {
        let name = Path::new(file).file_name().unwrap_or_default();
        fs::copy(root.join(file), folder.join(name)).map_err(failed)?;
    }
    let summary = Path::new("docs/SUMMARY.md");
    let names = chapters.iter().map(|(path, name)| (path.as_path(), name.as_str()));
    for (path, name) in names.chain([(summary, "SUMMARY.md")]) {
        let page = &documents[path];
        fs::write(source.join(name), page.rewritten(path, chapters)).map_err(failed)?;
    }
    Ok(())
}

/// Runs mdBook, which is installed if it is absent.
fn build(folder: &Path, target: &Path) -> Result<(), String> {
    let tools = target.join("tools");
    let program = tools.join("bin/mdbook");
    let version = Command::new(&program).arg("--version").output();
    if !version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(MDBOOK)) {
        let mut install = crate::workspace::cargo();
        install.args([
            "install",
            "mdbook",
            "--version",
            MDBOOK,
            "--locked",
            "--no-default-features",
            "--features",
            "search",
            // A debug build takes half the time, and is fast enough for these pages.
            "--debug",
            "--quiet",
            "--root",
        ]);
        install.arg(&tools).env("CARGO_TARGET_DIR", target.join("tools/build"));
        succeed(&mut install)?;
        let _ = fs::remove_dir_all(target.join("tools/build"));
    }
    let mut build = Command::new(program);
    build.arg("build").arg(folder).arg("--dest-dir").arg(folder.join("html"));
    succeed(&mut build)
}
