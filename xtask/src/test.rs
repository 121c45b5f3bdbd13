//! `cargo xtask test`: runs all checks and all tests, and prints one score.

mod binaries;
mod jobs;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use binaries::Binary;
use jobs::Job;
use uiw_interop::SKIP_LOG;
use uiw_interop::stock::BUILT;

use crate::packages;
use crate::process::{self, ChildEnd, TempPath};
use crate::report::{Parser, Skip, Tally};
use crate::requirements::RequirementTrace;
use crate::workspace::{cargo, root, target};

/// Time after which the run is ended because it hangs. Each test has its own limit, so no test
/// fails because of this one.
const CAP: Duration = Duration::from_secs(85 * 60);
/// Number of test binaries that run at the same time. Each one has as many threads as this machine
/// has processors, but most tests wait for programs, time-outs or packages.
const AT_A_TIME: usize = 3;
/// Test binaries that take the longest, in the order in which they are started. The others follow.
const LONGEST: &[&str] = &[
    "interop/tests/stock/main.rs",
    "interop/siw/tests/siw.rs",
    "interop/tests/stacks/main.rs",
    "xtask/tests/book.rs",
    "xtask/tests/dist.rs",
    "xtask/tests/install.rs",
    "xtask/tests/python.rs",
    "xtask/tests/action.rs",
];
/// Test binaries that run only with `--all`: the virtual machine with the siw driver, and the
/// commands of the documents.
const ONLY_WITH_ALL: &[&str] = &["interop/siw/tests/siw.rs", "xtask/tests/book.rs"];
/// Package of the models, whose tests run only with `--all`.
const MODELS: &str = "uiw-models";

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
#[command(after_help = "\
Steps: fmt, clippy, features, no_std, no_std_x86_64, no_std_thumbv7em (each counts as one test), then the tests of the workspace, several test binaries
at a time, each one's output in one piece when it has ended; then requirements: every MUST of the RFCs is proved by a test that has just passed.
With --all also: doc, book, the models of the progress engine, the virtual machine with the siw driver (the first run fetches about 350 MB), and the
commands of the documents.
Programs that tests need are installed with apt-get when run as root; without them the tests that need them are counted as skipped.
Exit code 1 when something failed.")]
pub(crate) struct Options {
    /// Run everything: also documentation, models, and the virtual machine with the siw driver
    #[arg(long)]
    all: bool,
    /// Run only steps and tests whose name contains SUBSTR; implies --all
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Install nothing; tests whose programs are missing are skipped
    #[arg(long)]
    no_install: bool,
}

/// Check that is not a test function. It counts as one test.
struct Step {
    name: &'static str,
    /// Cargo subcommand that may not be installed.
    component: Option<&'static str>,
    args: &'static [&'static str],
    /// Target to build for, which rustup may have to fetch. `None` for this machine.
    target: Option<&'static str>,
    env: &'static [(&'static str, &'static str)],
    /// True if it runs only with `--all`.
    only_with_all: bool,
}

const CLIPPY: &[&str] = &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
const FEATURES: &[&str] =
    &["clippy", "-p", "uiw", "-p", "uiw-llp", "-p", "uiw-verbs", "--", "-D", "warnings"];
/// Arguments to build the crates that work without the standard library.
const NO_STD: &[&str] =
    &["build", "-p", "uiw-stream", "-p", "uiw-datagram", "--no-default-features"];

impl Step {
    const fn new(name: &'static str, args: &'static [&'static str]) -> Self {
        Self { name, component: None, args, target: None, env: &[], only_with_all: false }
    }
}

const STEPS: &[Step] = &[
    Step { component: Some("fmt"), ..Step::new("fmt", &["fmt", "--all", "--check"]) },
    Step { component: Some("clippy"), ..Step::new("clippy", CLIPPY) },
    Step {
        env: &[("RUSTDOCFLAGS", "-Dwarnings")],
        only_with_all: true,
        ..Step::new("doc", &["doc", "--no-deps", "--workspace"])
    },
    Step {
        only_with_all: true,
        ..Step::new("book", &["run", "--quiet", "--package", "xtask", "--", "book"])
    },
    // Clippy with the smallest set of features.
    Step { component: Some("clippy"), ..Step::new("features", FEATURES) },
    Step::new("no_std", NO_STD),
    // Targets without an operating system have no `std` that could be linked by mistake.
    Step { target: Some("x86_64-unknown-none"), ..Step::new("no_std_x86_64", NO_STD) },
    // A target with 32 bits, without 64-bit atomics.
    Step { target: Some("thumbv7em-none-eabi"), ..Step::new("no_std_thumbv7em", NO_STD) },
];

/// Runs everything. The last line on stdout is the score.
pub(crate) fn run(options: &Options) -> ExitCode {
    let deadline = Instant::now() + CAP;
    if !options.no_install {
        packages::install(deadline);
    }
    let mut total = Tally::default();
    let mut failed = Vec::new();
    for step in STEPS.iter().filter(|step| options.wants_step(step)) {
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
        // A test binary that was killed or has crashed may have left files and namespaces.
        uiw_siw::test_vm::sweep();
    }
    for name in &failed {
        println!("FAILED: {name}");
    }
    if total.conclude() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Options {
    fn runs_all(&self) -> bool {
        self.all || self.only.is_some()
    }

    fn wants_step(&self, step: &Step) -> bool {
        (self.runs_all() || !step.only_with_all)
            && self.only.as_deref().is_none_or(|only| step.name.contains(only))
    }

    fn wants_binary(&self, binary: &Binary) -> bool {
        self.runs_all() || !ONLY_WITH_ALL.contains(&binary.name.as_str())
    }
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
    let begun = Instant::now();
    let end = process::run(&mut command, deadline);
    println!("== {}: {:.0} s", step.name, begun.elapsed().as_secs_f64());
    match end {
        Ok(ChildEnd::Success) => Tally { passed: 1, ..Tally::default() },
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

/// Runs all test binaries and documentation tests. A failed build, or a run that exceeds [`CAP`],
/// counts as one more failure.
fn run_tests(options: &Options, deadline: Instant) -> (Tally, Vec<String>) {
    // Each test that is skipped adds a line to this file.
    let log =
        TempPath::new(env::temp_dir().join(format!("uiw-skipped-{}.log", std::process::id())));
    // A leftover of an earlier process with this id would count tests of another run.
    let _ = fs::remove_file(&*log);
    let built =
        build(options, deadline).and_then(|binaries| Ok((binaries, target()?.join("debug"))));
    let (mut jobs, folder) = match built {
        Ok((binaries, folder)) => (jobs(binaries, options), folder),
        Err(why) => return (Tally { failed: 1, ..Tally::default() }, vec![why]),
    };
    for job in &mut jobs {
        // Programs must not write counter files to the user's directory. Tests of counters use
        // their own directory.
        job.command.env(SKIP_LOG, &*log).env("UIW_COUNTERS", "off").env(BUILT, &folder);
    }
    println!(
        "== test: {} test binaries and the documentation tests, {AT_A_TIME} at a time",
        jobs.len() - 1
    );
    let (mut parser, mut wrong, mut times) = (Parser::default(), Vec::new(), Vec::new());
    jobs::run(jobs, AT_A_TIME, deadline, |job| {
        println!("\n== {}: {:.0} s", job.name, job.took.as_secs_f64());
        let before = parser.failed();
        for line in &job.lines {
            println!("{line}");
            parser.line(line);
        }
        parser.end_binary();
        let why = match job.end {
            Ok(ChildEnd::Success) => None,
            // The failed tests are already counted.
            Ok(ChildEnd::Failure(_)) if parser.failed() > before => None,
            Ok(ChildEnd::Failure(how)) => Some(how),
            Ok(ChildEnd::TimedOut) => {
                Some(format!("not done {} minutes after the start", CAP.as_secs() / 60))
            }
            Err(error) => Some(error.to_string()),
        };
        wrong.extend(why.map(|why| format!("{}: {why}", job.name)));
        times.push((job.took, job.name));
    });
    print_longest(times);
    let skips = Skip::read_log(&fs::read_to_string(&*log).unwrap_or_default());
    for skip in &skips {
        println!("SKIPPED: {}: {}", skip.test, skip.missing);
    }
    let mut score = parser.finish(&skips);
    score.tally.failed += wrong.len() as u64;
    score.failed.extend(wrong);
    if options.only.is_none() {
        let tally = requirements(&score.passed);
        if tally.failed > 0 {
            score.failed.push("requirements".to_owned());
        }
        score.tally.add(tally);
    }
    for (name, why) in &score.reasons {
        println!("{name}: {why}");
    }
    (score.tally, score.failed)
}

/// Builds the test binaries, and the programs and libraries that tests run and package. The same
/// command builds both, so that they have the same features. The error names the failed command.
fn build(options: &Options, deadline: Instant) -> Result<Vec<Binary>, String> {
    let args =
        [&["build", "--lib", "--bins", "--tests", "--examples"], &packages(options)[..]].concat();
    let shown = format!("cargo {}", args.join(" "));
    let mut command = cargo();
    command.args(args).arg("--message-format=json-render-diagnostics");
    println!("== build: {shown}");
    let (mut binaries, begun) = (Vec::new(), Instant::now());
    let end = process::run_lines(&mut command, deadline, |line| {
        binaries.extend(
            Binary::of_message(line, &root()).filter(|binary| options.wants_binary(binary)),
        );
    });
    println!("== build: {:.0} s", begun.elapsed().as_secs_f64());
    match end {
        Ok(ChildEnd::Success) => Ok(binaries),
        Ok(ChildEnd::Failure(how)) => Err(format!("{shown}: {how}")),
        Ok(ChildEnd::TimedOut) => {
            Err(format!("{shown}: not done {} minutes after the start", CAP.as_secs() / 60))
        }
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

/// Returns the arguments of Cargo that select the packages to build and test.
fn packages(options: &Options) -> Vec<&'static str> {
    let mut packages = vec!["--workspace"];
    if !options.runs_all() {
        packages.extend(["--exclude", MODELS]);
    }
    packages
}

/// Returns the jobs that run the selected tests, in the order in which they are started.
fn jobs(mut binaries: Vec<Binary>, options: &Options) -> Vec<Job> {
    let place = |binary: &Binary| {
        LONGEST.iter().position(|name| binary.name == *name).unwrap_or(LONGEST.len())
    };
    binaries.sort_by(|a, b| (place(a), &a.name).cmp(&(place(b), &b.name)));
    let binaries =
        binaries.into_iter().map(|binary| Job { command: binary.command(), name: binary.name });
    let mut documentation = cargo();
    documentation.args(["test", "--doc", "--no-fail-fast"]).args(packages(options));
    if options.only.is_some() {
        documentation.arg("--");
    }
    let documentation = Job { name: "documentation tests".to_owned(), command: documentation };
    let mut jobs: Vec<_> = binaries.chain([documentation]).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    for job in &mut jobs {
        job.command.args(&options.only).env("RUST_TEST_THREADS", &threads);
    }
    jobs
}

/// Prints the jobs that took the longest.
fn print_longest(mut times: Vec<(Duration, String)>) {
    times.sort_by(|a, b| b.cmp(a));
    println!("\n== longest");
    for (took, name) in times.iter().take(10) {
        println!("{:6.0} s {name}", took.as_secs_f64());
    }
}

/// Checks that each requirement of the RFCs is proved by a test that has just passed. Counts as one
/// test.
fn requirements(passed: &BTreeMap<String, u64>) -> Tally {
    println!("== requirements: cargo xtask requirements");
    let wrong = RequirementTrace::read(&root())
        .map_or_else(|error| vec![error], |trace| trace.judge(passed));
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
    let status =
        cargo().args([component, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Returns whether the standard library for `target` is installed. If it is not, and `no_install`
/// is not set, it is fetched.
fn has_target(target: &str, no_install: bool) -> bool {
    let succeeds = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::null()).current_dir(root());
        command.output().ok().filter(|output| output.status.success())
    };
    let is_here = || {
        let folder = succeeds("rustc", &["--print", "target-libdir", "--target", target]);
        folder.is_some_and(|output| {
            Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
        })
    };
    is_here()
        || !no_install && succeeds("rustup", &["target", "add", target]).is_some() && is_here()
}
