//! `cargo xtask publishable`: checks, in addition to the tests, that must pass before the crates
//! are published.

use crate::process::TempPath;
use crate::report::Tally;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io};

/// Options of `cargo xtask publishable`.
#[derive(clap::Args)]
#[command(after_help = "\
Every package is built from its tarball, and the upload is rehearsed. The workspace is built with the oldest Rust that Cargo.toml and the documents name and
with the lowest versions of its dependencies, licences are checked (cargo-deny), and the API is compared with that of the last tag, or of the
commit that stands for it until there is one (cargo-semver-checks). Tools that are absent are installed from crates.io below the target folder.
Takes about twenty minutes, and as long again to build the tools once. Exit code 1 when a check fails; one whose tool cannot be had is skipped
by name.")]
pub(crate) struct Options {
    /// Only checks whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
}

/// Check: its name, and the function that runs it.
type Check = (&'static str, fn(&CommitClone) -> io::Result<CheckVerdict>);

const CHECKS: [Check; 5] = [
    ("publish", publish),
    ("oldest-rust", oldest_rust),
    ("lowest-versions", lowest_versions),
    ("deny", deny),
    ("semver", semver),
];

enum CheckVerdict {
    Passed,
    Failed,
    /// The check could not run because of this missing prerequisite.
    Skipped(String),
}

impl CheckVerdict {
    fn from_success(success: bool) -> Self {
        if success { Self::Passed } else { Self::Failed }
    }
}

/// Clone of the last commit, which is used because the checks change `Cargo.lock`. Its `target`,
/// which is inside of the workspace's target folder, is kept.
struct CommitClone {
    root: TempPath,
    target: PathBuf,
}

impl CommitClone {
    fn new() -> io::Result<Self> {
        let workspace = crate::workspace::root();
        let target = crate::workspace::target().map_err(io::Error::other)?.join("publishable");
        let now = std::time::UNIX_EPOCH.elapsed().map_err(io::Error::other)?;
        let root =
            TempPath::new(target.join(format!("clone-{}-{}", std::process::id(), now.as_secs())));
        fs::create_dir_all(&target)?;
        let cloned =
            Command::new("git").args(["clone", "--quiet"]).arg(workspace).arg(&*root).status()?;
        if cloned.success() {
            Ok(Self { root, target })
        } else {
            Err(io::Error::other("git clone failed"))
        }
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&*self.root).env("CARGO_TARGET_DIR", &self.target);
        command
    }

    fn cargo_command(&self) -> Command {
        self.command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
    }

    fn cargo(&self, args: &[&str]) -> io::Result<CheckVerdict> {
        Ok(CheckVerdict::from_success(self.cargo_command().args(args).status()?.success()))
    }

    /// Runs a subcommand of Cargo, which is installed from crates.io if it is absent.
    fn tool(&self, name: &str, args: &[&str]) -> io::Result<CheckVerdict> {
        let program = format!("cargo-{name}");
        let folder = self.target.join("tools");
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([folder.join("bin")].into_iter().chain(env::split_paths(&path)))
            .map_err(io::Error::other)?;
        let is_there = || {
            let version = Command::new(&program).arg("--version").env("PATH", &path).output();
            version.is_ok_and(|output| output.status.success())
        };
        if !is_there() {
            let mut install = self.cargo_command();
            install.args(["install", "--quiet", "--locked", &program, "--root"]).arg(&folder);
            if !install.status()?.success() || !is_there() {
                return Ok(CheckVerdict::Skipped(format!(
                    "{program} (cargo install {program} --locked)"
                )));
            }
        }
        let status = self.cargo_command().arg(name).args(args).env("PATH", &path).status()?;
        Ok(CheckVerdict::from_success(status.success()))
    }

    /// Restores the files of the clone.
    fn restore(&self) -> io::Result<()> {
        self.command("git").args(["checkout", "--quiet", "."]).status().map(drop)
    }
}

/// Builds each package from its tarball and rehearses the upload. This uses a new target folder,
/// because Cargo neither unpacks nor compiles a package again if the folder already has that
/// version.
fn publish(clone: &CommitClone) -> io::Result<CheckVerdict> {
    let mut publish = clone.cargo_command();
    publish
        .args(["publish", "--workspace", "--dry-run", "--quiet"])
        .env("CARGO_TARGET_DIR", clone.root.join("target"));
    Ok(CheckVerdict::from_success(publish.status()?.success()))
}

/// Documents that state the oldest supported version of Rust.
const DOCUMENTS: [&str; 3] = ["README.md", "docs/installing.md", "docs/compatibility.md"];

/// Builds the workspace with the oldest supported Rust. The models are excluded, because a
/// dependency of `loom`, `generator`, needs a newer one.
fn oldest_rust(clone: &CommitClone) -> io::Result<CheckVerdict> {
    let version = rust_version(&clone.root)?;
    let named = version.trim_end_matches(".0");
    for document in DOCUMENTS {
        let text = fs::read_to_string(clone.root.join(document))?;
        if !text.contains(&format!("Rust {named}")) && !text.contains(&format!("| Rust | {named} "))
        {
            return Err(io::Error::other(format!("{document} does not name Rust {named}")));
        }
    }
    let absent = || {
        Ok(CheckVerdict::Skipped(format!("Rust {version} (rustup toolchain install {version})")))
    };
    let installed = Command::new("rustup")
        .args(["toolchain", "install", &version, "--profile", "minimal", "--no-self-update"])
        .stdout(Stdio::null())
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        return absent();
    }
    let mut check = clone.command("rustup");
    check.args(["run", &version, "cargo", "check", "--workspace", "--all-features"]);
    check.args(["--exclude", "uiw-models"]).env_remove("RUSTUP_TOOLCHAIN");
    Ok(CheckVerdict::from_success(check.status()?.success()))
}

/// Returns `rust-version` of the workspace in the form in which rustup names the toolchain.
fn rust_version(root: &Path) -> io::Result<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let version =
        manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    version
        .map(|version| format!("{version}.0"))
        .ok_or_else(|| io::Error::other("Cargo.toml has no rust-version"))
}

fn lowest_versions(clone: &CommitClone) -> io::Result<CheckVerdict> {
    // The option is not stable.
    let mut update = clone.cargo_command();
    update.args(["update", "--quiet", "-Z", "direct-minimal-versions"]).env("RUSTC_BOOTSTRAP", "1");
    if !update.status()?.success() {
        return Ok(CheckVerdict::Failed);
    }
    let verdict = clone.cargo(&["check", "--workspace", "--all-features"]);
    clone.restore()?;
    verdict
}

fn deny(clone: &CommitClone) -> io::Result<CheckVerdict> {
    clone.tool("deny", &["--log-level", "error", "check", "licenses", "bans", "sources"])
}

/// Commit with which the API is compared until there is a tag. The API is not stable before the
/// first tag: a commit that breaks it intentionally replaces this one.
const API_BASELINE: &str = "27b9b86e";

fn semver(clone: &CommitClone) -> io::Result<CheckVerdict> {
    let baseline = crate::history::last_tag(API_BASELINE).map_err(io::Error::other)?;
    println!("beside {baseline}");
    clone.tool("semver-checks", &["--workspace", "--baseline-rev", &baseline])
}

/// Runs the checks. The last line on stdout is the score.
pub(crate) fn run(options: &Options) -> ExitCode {
    let clone = match CommitClone::new() {
        Ok(clone) => clone,
        Err(error) => {
            eprintln!("error: cannot clone the workspace: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut total = Tally::default();
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| name.contains(only));
    for (name, check) in CHECKS.iter().filter(|(name, _)| wanted(name)) {
        println!("== {name}");
        match check(&clone) {
            Ok(CheckVerdict::Passed) => total.passed += 1,
            Ok(CheckVerdict::Skipped(missing)) => {
                println!("SKIPPED: {name}: {missing}");
                total.skipped += 1;
            }
            Ok(CheckVerdict::Failed) => {
                println!("FAILED: {name}");
                total.failed += 1;
            }
            Err(error) => {
                println!("FAILED: {name}: {error}");
                total.failed += 1;
            }
        }
    }
    drop(clone);
    if total.conclude() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
