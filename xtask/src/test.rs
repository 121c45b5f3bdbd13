//! `cargo xtask test`: every check and every test, one score.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::packages;
use crate::process::{self, End};
use crate::report::{Parser, Skip, Tally};
use crate::requirements::Trace;
use crate::workspace::{cargo, root};

/// The longest that everything together may take.
const CAP: Duration = Duration::from_secs(45 * 60);
/// Names the file in which a test that cannot run says so.
const SKIP_LOG: &str = "UIW_SKIP_LOG";

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
#[command(after_help = "\
Steps: fmt, clippy, doc, prose, book, features, no_std, no_std_x86_64, no_std_thumbv7em (each counts as one test), then `cargo test --workspace`,
then requirements: every MUST of the RFCs is proved by a test that has just passed.
Programs that tests need are installed with apt-get when run as root; without them the tests that need them
are counted as skipped; the first run fetches about 240 MB for the virtual machine with the siw driver. Everything is ended after 45 minutes. Exit code 1 when something failed.")]
pub(crate) struct Options {
    /// Only steps and tests whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Install nothing; tests whose programs are missing are skipped
    #[arg(long)]
    no_install: bool,
}

/// A check that is not a test function. It counts as one test.
struct Step {
    name: &'static str,
    /// The Cargo subcommand that may not be installed.
    component: Option<&'static str>,
    args: &'static [&'static str],
    /// The target to build for, which rustup may have to fetch; this machine's if there is none.
    target: Option<&'static str>,
    env: &'static [(&'static str, &'static str)],
}

/// The crates that build without the standard library.
const NO_STD: &[&str] =
    &["build", "-p", "uiw-stream", "-p", "uiw-datagram", "-p", "uiw-striping", "--no-default-features"];

const STEPS: &[Step] = &[
    Step { name: "fmt", component: Some("fmt"), args: &["fmt", "--all", "--check"], target: None, env: &[] },
    Step {
        name: "clippy",
        component: Some("clippy"),
        args: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        target: None,
        env: &[],
    },
    Step {
        name: "doc",
        component: None,
        args: &["doc", "--no-deps", "--workspace"],
        target: None,
        env: &[("RUSTDOCFLAGS", "-Dwarnings")],
    },
    Step {
        name: "prose",
        component: None,
        args: &["run", "--quiet", "--package", "xtask", "--", "prose"],
        target: None,
        env: &[],
    },
    Step {
        name: "book",
        component: None,
        args: &["run", "--quiet", "--package", "xtask", "--", "book"],
        target: None,
        env: &[],
    },
    // The smallest set of features.
    Step {
        name: "features",
        component: Some("clippy"),
        args: &["clippy", "-p", "uiw", "-p", "uiw-llp", "-p", "uiw-verbs", "--", "-D", "warnings"],
        target: None,
        env: &[],
    },
    Step { name: "no_std", component: None, args: NO_STD, target: None, env: &[] },
    // Machines without an operating system: there is no `std` to be linked by mistake.
    Step {
        name: "no_std_x86_64",
        component: None,
        args: NO_STD,
        target: Some("x86_64-unknown-none"),
        env: &[],
    },
    // 32 bits, and no atomic numbers of 64.
    Step {
        name: "no_std_thumbv7em",
        component: None,
        args: NO_STD,
        target: Some("thumbv7em-none-eabi"),
        env: &[],
    },
];

/// Runs everything; the score is the last line on stdout.
pub(crate) fn run(options: &Options) -> ExitCode {
    let deadline = Instant::now() + CAP;
    process::handle_interrupts();
    if !options.no_install {
        packages::install(deadline);
    }
    let mut total = Tally::default();
    let mut failed = Vec::new();
    for step in STEPS.iter().filter(|step| wanted(options, step.name)) {
        let tally = run_step(step, options.no_install, deadline);
        if tally.failed > 0 {
            failed.push(step.name.to_owned());
        }
        total.add(tally);
    }
    if !STEPS.iter().any(|step| options.only.as_deref() == Some(step.name)) {
        let (tally, names) = run_tests(options, deadline);
        total.add(tally);
        failed.extend(names);
    }
    for name in &failed {
        println!("FAILED: {name}");
    }
    println!("{total}");
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn wanted(options: &Options, name: &str) -> bool {
    options.only.as_deref().is_none_or(|only| name.contains(only))
}

fn run_step(step: &Step, no_install: bool, deadline: Instant) -> Tally {
    let target = step.target.map(|target| format!("--target={target}"));
    let args = || step.args.iter().copied().chain(target.as_deref());
    println!("== {}: cargo {}", step.name, args().collect::<Vec<_>>().join(" "));
    if let Some(component) = step.component
        && !has_component(component)
    {
        println!("SKIPPED: {}: cargo {component}", step.name);
        return Tally { skipped: 1, ..Tally::default() };
    }
    if let Some(target) = step.target
        && !has_target(target, no_install)
    {
        println!("SKIPPED: {}: target {target}", step.name);
        return Tally { skipped: 1, ..Tally::default() };
    }
    let mut command = cargo();
    command.args(args()).envs(step.env.iter().copied());
    match process::run(&mut command, deadline) {
        Ok(End::Success) => Tally { passed: 1, ..Tally::default() },
        Ok(end) => {
            println!("{}: {end:?}", step.name);
            Tally { failed: 1, ..Tally::default() }
        }
        Err(error) => {
            println!("{}: cannot run cargo: {error}", step.name);
            Tally { failed: 1, ..Tally::default() }
        }
    }
}

/// All test binaries and documentation tests. A build that fails, or the cap, is one failure more.
fn run_tests(options: &Options, deadline: Instant) -> (Tally, Vec<String>) {
    println!("== test: cargo test --workspace --no-fail-fast");
    let log = SkipLog::new();
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]).env(SKIP_LOG, &log.path);
    // No files in the user's directory: tests of counters name one of their own.
    command.env("UIW_COUNTERS", "off");
    if let Some(only) = &options.only {
        command.args(["--", only]);
    }
    let mut parser = Parser::default();
    let end = process::run_lines(&mut command, deadline, |line| {
        println!("{line}");
        parser.line(line);
    });
    let skips = log.read();
    for skip in &skips {
        println!("SKIPPED: {}: {}", skip.test, skip.missing);
    }
    let mut score = parser.finish(&skips);
    let more = match end {
        Ok(End::Success) => None,
        // Cargo's exit code says again what the tests' own lines said.
        Ok(End::Failure(_)) if score.tally.failed > 0 => None,
        Ok(End::Failure(how)) => Some(format!("cargo test: {how}")),
        Ok(End::TimedOut) => {
            Some(format!("cargo test: not done {} minutes after the start", CAP.as_secs() / 60))
        }
        Err(error) => Some(format!("cargo test: {error}")),
    };
    if let Some(more) = more {
        score.tally.failed += 1;
        score.failed.push(more);
    }
    if options.only.is_none() {
        let tally = requirements(&score.passed);
        if tally.failed > 0 {
            score.failed.push("requirements".to_owned());
        }
        score.tally.add(tally);
    }
    (score.tally, score.failed)
}

/// Whether every sentence of the RFCs is proved by a test that has just passed. Counts as one test.
fn requirements(passed: &BTreeMap<String, u64>) -> Tally {
    println!("== requirements: cargo xtask requirements");
    let wrong = Trace::read(&root()).map_or_else(|error| vec![error], |trace| trace.judge(passed));
    for line in &wrong {
        println!("{line}");
    }
    if wrong.is_empty() {
        Tally { passed: 1, ..Tally::default() }
    } else {
        Tally { failed: 1, ..Tally::default() }
    }
}

fn has_component(component: &str) -> bool {
    let status = cargo().args([component, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Whether the standard library's part for `target` is here, fetched if it may be.
fn has_target(target: &str, no_install: bool) -> bool {
    let succeeds = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::null()).current_dir(root());
        command.output().ok().filter(|output| output.status.success())
    };
    let is_here = || {
        let folder = succeeds("rustc", &["--print", "target-libdir", "--target", target]);
        folder.is_some_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
    };
    is_here() || !no_install && succeeds("rustup", &["target", "add", target]).is_some() && is_here()
}

/// The file in which tests report what they miss; removed on drop.
struct SkipLog {
    path: PathBuf,
}

impl SkipLog {
    fn new() -> Self {
        let path = env::temp_dir().join(format!("uiw-skipped-{}.log", std::process::id()));
        // A leftover of an earlier process with this id would count tests of another run.
        let _ = fs::remove_file(&path);
        Self { path }
    }

    fn read(&self) -> Vec<Skip> {
        Skip::read_log(&fs::read_to_string(&self.path).unwrap_or_default())
    }
}

impl Drop for SkipLog {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
