//! `cargo xtask release`: the checklist of a release, and its tag.

mod changelog;
mod versions;
mod wire;

use std::env;
use std::fs;
use std::process::{Command, ExitCode};

use crate::report::Tally;
use crate::workspace::{self, cargo};

/// Options of `cargo xtask release`.
#[derive(clap::Args)]
#[command(after_help = "\
Checks, in this order: tree (nothing is uncommitted, the tag is new), versions (equal everywhere), changelog (what is to be released is
described), docs (links lead somewhere, the oldest Rust is the one in Cargo.toml), wire (the program and libraries of the last tag beside the
new ones, in both roles), test (`cargo xtask test`), publishable (`cargo xtask publishable`), dist (`cargo xtask dist --check`), aarch64 (the same for
AArch64, run by QEMU). About an hour and a half.
When all pass, the section `Unreleased` of CHANGELOG.md gets the version and the date, is committed, and the commit gets the tag vVERSION;
the commands that remain, `git push` and `cargo publish`, are printed. With --dry-run nothing is changed.
Exit code 1 when a check fails.")]
pub(crate) struct Options {
    /// Check, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Only checks whose name contains this; implies --dry-run
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
}

/// A check: its name, and the function that makes it.
type Check = (&'static str, fn() -> Result<(), String>);

const CHECKS: [Check; 9] = [
    ("tree", tree),
    ("versions", versions::check),
    ("changelog", changelog::check),
    ("docs", docs),
    ("wire", wire::check),
    ("test", || xtask(&["test"])),
    ("publishable", || xtask(&["publishable"])),
    ("dist", || xtask(&["dist", "--check"])),
    ("aarch64", || {
        xtask(&[
            "dist",
            "--check",
            "--target",
            "aarch64-unknown-linux-gnu",
            "--only",
            "tarball,deb,wheel,bom",
        ])
    }),
];

pub(crate) fn run(options: &Options) -> ExitCode {
    let mut total = Tally::default();
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| name.contains(only));
    let mut failed = Vec::new();
    for (name, check) in CHECKS.iter().filter(|(name, _)| wanted(name)) {
        println!("== {name}");
        match check() {
            Ok(()) => total.passed += 1,
            Err(why) => {
                failed.push(format!("FAILED: {name}: {why}"));
                total.failed += 1;
            }
        }
    }
    for line in &failed {
        println!("{line}");
    }
    if total.failed == 0 && !options.dry_run && options.only.is_none() {
        if let Err(why) = tag() {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
        println!("git push --follow-tags\ncargo publish --workspace");
        println!("once for a repository: switch on private vulnerability reporting (SECURITY.md)");
    }
    println!("{total}");
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The version that is released.
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn name_of_tag() -> String {
    format!("v{VERSION}")
}

/// What git prints; an error when it fails.
fn git(args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(args).current_dir(workspace::root()).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

fn tree() -> Result<(), String> {
    let changed = git(&["status", "--porcelain"])?;
    if !changed.is_empty() {
        return Err(format!("not committed:\n{changed}"));
    }
    let tag = name_of_tag();
    match git(&["tag", "--list", &tag])?.trim() {
        "" => Ok(()),
        _ => Err(format!("the tag {tag} exists: raise the version in Cargo.toml")),
    }
}

/// Another command of this program, with its output.
fn xtask(args: &[&str]) -> Result<(), String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let status = Command::new(program).args(args).status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("cargo xtask {}: {status}", args.join(" "))) }
}

/// What the documents say of the source, and where they lead.
fn docs() -> Result<(), String> {
    xtask(&["book", "--check"])?;
    let mut doc = cargo();
    doc.args(["doc", "--quiet", "--no-deps", "--workspace"]).env("RUSTDOCFLAGS", "-Dwarnings");
    let status = doc.status().map_err(|error| format!("cargo doc: {error}"))?;
    if !status.success() {
        return Err(format!("cargo doc: {status}"));
    }
    Ok(())
}

/// Gives the changes their version, commits that, and tags it.
fn tag() -> Result<(), String> {
    let path = workspace::root().join("CHANGELOG.md");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let today = time::OffsetDateTime::now_utc().date();
    fs::write(&path, changelog::released(&text, VERSION, &today.to_string())?)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let tag = name_of_tag();
    git(&["commit", "--quiet", "--message", &format!("CHANGELOG: {tag}"), "CHANGELOG.md"])?;
    git(&["tag", "--annotate", "--message", &format!("uiw {VERSION}"), &tag]).map(drop)
}
