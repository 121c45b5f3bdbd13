//! `cargo xtask interop siw`: the whole table, or a part of it.

use crate::bench::Bench;
use crate::case::{Case, Direction, Setting, Verdict};
use crate::load::Load;
use crate::results::{Environment, Results};
use crate::test_vm::TestVm;
use crate::workspace::{folder, workspace};
use crate::{Error, Result, cases, shell};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use uiw_interop::stock::{self, PACKAGES};

/// Options of the command.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Packages (about 350 MB, once) and what is made from them go to target/siw, or where UIW_SIW_CACHE says.
The whole matrix writes interop/siw/RESULTS.md.
Exit codes: 0 every row passed or does not apply, but for at most three whose failure QUIRKS.md explains by what the guest
shows (known); 1 a row failed; 77 this machine lacks something, which is named.")]
pub struct Options {
    /// Only cases whose name contains this
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Only one way round: uiw or siw begins
    #[arg(long, value_name = "uiw|siw", value_parser = ["uiw", "siw"])]
    pub from: Option<String>,
    /// Only the usual setting: CRC, IPv4, MTU 1500, the stock driver
    #[arg(long)]
    pub usual: bool,
    /// Only the set that `cargo xtask test` runs
    #[arg(long)]
    pub short: bool,
    /// Write uiw's captures of the rows to this folder
    #[arg(long, value_name = "FOLDER")]
    pub pcap: Option<PathBuf>,
    /// A kernel that this Debian has beside its own, such as 6.12; with --short the rows go to
    /// RESULTS-VERSION.md
    #[arg(long, value_name = "VERSION")]
    pub kernel: Option<String>,
    /// Test a debug build of uiw, which is built sooner
    #[arg(long)]
    pub debug: bool,
    /// Keep each core of this machine busy with another process meanwhile; RESULTS.md states it
    #[arg(long)]
    pub busy: bool,
    /// Leave the guest running afterwards, until Enter
    #[arg(long)]
    pub keep: bool,
    /// Print the names of the cases
    #[arg(long)]
    pub list: bool,
}

/// Runs the command.
pub fn main(options: &Options) -> ExitCode {
    let cases: Vec<Case> = cases::all().into_iter().filter(|case| chosen(options, case)).collect();
    if options.list {
        for case in &cases {
            let ways: Vec<String> = case.directions.iter().map(ToString::to_string).collect();
            println!(
                "{} ({}; {} settings)",
                case.name,
                ways.join(", "),
                case.axes.settings().len()
            );
        }
        return ExitCode::SUCCESS;
    }
    match run(options, &cases) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(Error::Missing(what)) => {
            println!("SKIPPED: interop siw: this machine lacks {what}");
            ExitCode::from(77)
        }
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn chosen(options: &Options, case: &Case) -> bool {
    options.only.as_deref().is_none_or(|only| case.name.contains(only))
        && (!options.short || case.short)
}

/// Runs the cases and returns the number of failed rows.
fn run(options: &Options, cases: &[Case]) -> Result<usize> {
    if cases.is_empty() {
        return Err(Error::Failed("no case has that in its name: see --list".to_owned()));
    }
    let begun = Instant::now();
    if let Some(folder) = &options.pcap {
        fs::create_dir_all(folder).map_err(Error::io(folder.display()))?;
    }
    let uiw = if options.debug { stock::uiw().to_owned() } else { build_release()? };
    let vm = TestVm::boot(options.kernel.as_deref())?;
    eprintln!("siw: the guest is up after {:.1} s", vm.guest.boot_time.as_secs_f64());
    let mut bench = Bench::new(vm, uiw);
    let mut load = options.busy.then(Load::start).transpose()?;
    let results = go(options, cases, &mut bench)?;
    if let Some(folder) = &options.pcap {
        println!("captures are in {}", folder.display());
    }
    if options.keep {
        println!("the guest stays until Enter; its network: {}", keep_hint(&bench));
        let _ = std::io::stdin().read_line(&mut String::new());
    }
    // The last row may have powered off its guest.
    bench.apply(&Setting::USUAL)?;
    let busy = load.as_mut().map_or(0, Load::cores);
    drop(load);
    if is_whole(options) {
        let environment = Environment::of(&bench, begun.elapsed(), busy)?;
        let file = match &options.kernel {
            Some(kernel) => folder().join(format!("RESULTS-{kernel}.md")),
            None => folder().join("RESULTS.md"),
        };
        fs::write(&file, results.markdown(&environment)).map_err(Error::io(file.display()))?;
    }
    let counts = results.counts();
    println!("{counts}, in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(counts.failed)
}

/// Returns whether the selected rows are exactly those of a file of results: all rows for the
/// release's kernel, or the short set for another kernel.
fn is_whole(options: &Options) -> bool {
    let all = options.only.is_none() && options.from.is_none() && !options.usual;
    all && options.short == options.kernel.is_some()
}

fn keep_hint(bench: &Bench) -> String {
    match bench.net() {
        crate::net::Net::Tap(namespace) => format!("ip netns exec {} ...", namespace.name()),
        crate::net::Net::User { forwards } => format!("forwarded ports {forwards:?}"),
    }
}

/// Runs the cases grouped by setting, so that the driver is rarely changed.
fn go(options: &Options, cases: &[Case], bench: &mut Bench) -> Result<Results> {
    let mut results = Results::default();
    for setting in crate::case::Axes::All.settings() {
        if (options.usual || options.short) && setting != Setting::USUAL {
            continue;
        }
        for case in cases.iter().filter(|case| case.axes.settings().contains(&setting)) {
            for direction in case.directions.iter().copied().filter(|way| from(options, *way)) {
                if let Some(folder) = &options.pcap {
                    bench.capture(Some(folder.join(file_name(case, direction, &setting))));
                }
                let start = Instant::now();
                let verdict = case.run(bench, &setting, direction).limited(results.counts().known);
                report(case, direction, &setting, &verdict, start.elapsed());
                results.add(case, direction, setting, verdict, bench.take_retries());
            }
        }
    }
    bench.capture(None);
    Ok(results)
}

/// Returns the file name for the capture of a row.
fn file_name(case: &Case, direction: Direction, setting: &Setting) -> String {
    let text = format!(
        "{} {direction} {}",
        case.name,
        if *setting == Setting::USUAL { String::new() } else { setting.to_string() }
    );
    let plain: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' })
        .collect();
    plain.split_whitespace().collect::<Vec<_>>().join("-") + ".pcapng"
}

fn from(options: &Options, direction: Direction) -> bool {
    match options.from.as_deref() {
        Some("uiw") => direction == Direction::Ours,
        Some("siw") => direction == Direction::Theirs,
        _ => true,
    }
}

fn report(case: &Case, direction: Direction, setting: &Setting, verdict: &Verdict, took: Duration) {
    let (word, what) = match verdict {
        Verdict::Pass(what) => ("pass", what),
        Verdict::Fail(what) => ("FAIL", what),
        Verdict::Known { quirk, seen } => ("known", &format!("{seen} (QUIRKS.md, \"{quirk}\")")),
        Verdict::NotApplicable(what) => ("n/a ", what),
    };
    let colon = if what.is_empty() { "" } else { ": " };
    println!(
        "{word} {} | {direction} | {setting} | {:.1} s{colon}{what}",
        case.name,
        took.as_secs_f64()
    );
}

/// Builds the program `uiw` and the other packages in release mode, and returns the path of the
/// program.
///
/// # Errors
/// If it does not build.
pub fn build_release() -> Result<PathBuf> {
    build(&[&["--release"], &PACKAGES[..]].concat())
}

/// Builds the example that forwards 9P between RDMA and a file server, and returns its path.
///
/// # Errors
/// If it does not build.
pub fn build_bridge() -> Result<PathBuf> {
    if let Some(built) = std::env::var_os(stock::BUILT) {
        return Ok(PathBuf::from(built).join("examples/ninep_bridge"));
    }
    build(&["-p", "uiw-examples", "--example", "ninep_bridge"])
}

fn build(what: &[&str]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "-q", "--message-format=json"]).args(what).current_dir(workspace());
    let text = shell::must(&mut command, Duration::from_secs(1800))?;
    let executable =
        text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let path = executable
        .filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .next_back();
    path.ok_or_else(|| Error::Failed(format!("cargo does not say where {what:?} is")))
}
