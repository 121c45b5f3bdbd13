//! The uiw program.

#[macro_use]
mod note;

mod cdi;
mod conform;
mod cp;
mod decode;
mod demo;
mod devices;
mod doctor;
mod generate;
mod key;
mod perf;
mod ping;
mod run;
mod serve;
mod shared;
mod siwtest;
mod stat;
mod wan;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use shared::fail::{EXIT_CODES, Exit, Failure, Result};
use shared::open::{Global, Opener};
use shared::{env, text};
use std::process::ExitCode;
use uiw_cabi_core::settings::unknown_variables;

/// iWARP in user space.
#[derive(Parser)]
#[command(name = "uiw", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

#[derive(Subcommand)]
enum Command {
    /// Transfer a file with every RDMA operation, verify it, and compare with raw TCP
    #[command(after_help = EXIT_CODES)]
    Demo(demo::Args),
    /// Server: echo, rping and perf, and shares for `uiw cp`
    #[command(after_help = EXIT_CODES)]
    Serve(serve::Args),
    /// Round trips, each verified
    #[command(after_help = EXIT_CODES)]
    Ping(ping::Args),
    /// Throughput and latency, alone or beside raw TCP
    #[command(after_help = EXIT_CODES)]
    Perf(perf::Args),
    /// Copy files to and from the shares of `uiw serve`, over long paths and across interruptions
    #[command(after_help = EXIT_CODES)]
    Cp(cp::Args),
    /// List a directory in a share of `uiw serve`
    #[command(after_help = EXIT_CODES)]
    Ls(cp::list::Args),
    /// Every operation in both directions against a foreign stack: siw, an iWARP NIC
    #[command(after_help = EXIT_CODES)]
    Siwtest(siwtest::Args),
    /// Judge a foreign listener by the RFCs: a verdict for each requirement that shows from outside
    #[command(after_help = conform::HELP)]
    Conform(conform::Args),
    /// Run a program of libibverbs or librdmacm on uiw's own libraries
    #[command(after_help = run::EXIT_CODES)]
    Run(run::Args),
    /// Describe uiw as a device of containers: libraries, device nodes and sysfs, for
    /// `podman run --device`
    #[command(after_help = cdi::HELP)]
    Cdi(cdi::Args),
    #[command(hide = true)]
    CdiHook,
    /// Show the devices that such programs see
    #[command(after_help = EXIT_CODES)]
    Devices(devices::Args),
    /// Show the environment variables that such programs obey
    #[command(after_help = EXIT_CODES)]
    Env(env::Args),
    /// Create, show and pin keys for TLS
    #[command(after_help = EXIT_CODES)]
    Key(key::Args),
    /// Show the counters of running programs, or serve them to Prometheus
    #[command(after_help = stat::HELP)]
    Stat(stat::Args),
    /// Say what would run on this machine, and what to do for the rest
    #[command(after_help = doctor::HELP)]
    Doctor(doctor::Args),
    /// Emulate a long, narrow or lossy path between two interfaces
    #[command(after_help = wan::HELP)]
    Wan(wan::Args),
    /// Show the iWARP traffic in a packet capture
    Decode(decode::Args),
    #[command(hide = true)]
    Generate(generate::Args),
}

fn main() -> ExitCode {
    uiw_cli_sys::signals::keep_children();
    let parsed = command_line().try_get_matches().and_then(|matches| {
        let name = matches.subcommand_name().unwrap_or_default().to_owned();
        Ok((name, Cli::from_arg_matches(&matches)?))
    });
    let (name, cli) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return report_usage_error(&error),
    };
    if let Err(failure) = check_global_options(&name, &cli) {
        return report(&failure);
    }
    // The libraries loaded by `uiw run` print this warning themselves.
    let is_silent = matches!(cli.command, Command::Run(_) | Command::CdiHook);
    if let Some(warning) = unknown_variables().filter(|_| !is_silent) {
        note!("warning: {warning}");
    }
    if let Some(scope) = variable_scope(&cli.command)
        && let Err(failure) = env::obey(scope)
    {
        return report(&failure);
    }
    let result = match cli.command {
        Command::Decode(args) => {
            return decode::run(args, cli.global.keylog);
        }
        Command::Run(args) => return run::run(&args, &cli.global),
        Command::Cdi(args) => cdi::run(&args),
        Command::CdiHook => cdi::hook(),
        Command::Generate(args) => generate::run(&args, command_line()),
        command => run_command(&command, &cli.global),
    };
    match result.and_then(|()| text::check_written()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

/// Prints an error, and returns its exit code.
fn report(failure: &Failure) -> ExitCode {
    note!("{failure}");
    failure.exit.into()
}

/// Returns which environment variables a command obeys, or `None` if it makes no connections
/// itself.
fn variable_scope(command: &Command) -> Option<env::VariableScope> {
    match command {
        Command::Serve(_)
        | Command::Ping(_)
        | Command::Perf(_)
        | Command::Cp(_)
        | Command::Ls(_)
        | Command::Siwtest(_) => Some(env::VariableScope::Connections),
        Command::Doctor(args) if args.connects() => Some(env::VariableScope::Connections),
        Command::Demo(_) => Some(env::VariableScope::BothEnds),
        Command::Conform(_) => Some(env::VariableScope::Log),
        _ => None,
    }
}

/// Returns the global options that a command always refuses, and the reason.
fn refused_options(command: &str) -> (&'static [&'static str], &'static str) {
    match command {
        "devices" => (&["tls", "keylog", "pcap"], NO_CONNECTIONS),
        "decode" => (&["llp", "tls", "pcap"], NO_CONNECTIONS),
        "cdi" | "cdi-hook" | "env" | "key" | "stat" | "wan" | "generate" => {
            (GLOBAL_OPTIONS, NO_CONNECTIONS)
        }
        "conform" => (
            GLOBAL_OPTIONS,
            "this command makes every byte itself, over the kernel's TCP; `tcpdump` captures them",
        ),
        "demo" => {
            (&["tls", "keylog", "llp"], "both ends of the demo are on this machine's own TCP")
        }
        _ => (&[], ""),
    }
}

/// All options that [`Global::refuse`] can refuse.
const GLOBAL_OPTIONS: &[&str] = &["llp", "tls", "keylog", "pcap"];

/// Reason to refuse an option that concerns connections.
const NO_CONNECTIONS: &str = "this command makes no connections";

/// Returns the command line definition. The help of a command omits the options that
/// [`refused_options`] lists for it.
fn command_line() -> clap::Command {
    let command = Cli::command();
    let options: Vec<_> = command.get_arguments().cloned().collect();
    command.mut_subcommands(|command| {
        let (refused, _) = refused_options(command.get_name());
        let is_decode = command.get_name() == "decode";
        let replaced = options.iter().cloned().filter_map(|option| match option.get_id().as_str() {
            "keylog" if is_decode => Some(option.help(
                "Secrets of TLS connections, as --keylog and UIW_KEYLOG of other commands write them",
            )),
            id => refused.contains(&id).then(|| option.clone().hide(true)),
        });
        command.args(replaced)
    })
}

/// Refuses global options that a command cannot obey, instead of ignoring them.
fn check_global_options(name: &str, cli: &Cli) -> Result<()> {
    let (refused, why) = match &cli.command {
        Command::Doctor(args) if !args.connects() => (GLOBAL_OPTIONS, NO_CONNECTIONS),
        _ => refused_options(name),
    };
    refused.iter().try_for_each(|option| cli.global.refuse(option, why))
}

fn run_command(command: &Command, global: &Global) -> Result<()> {
    let log = if let Command::Serve(args) = command { args.log() } else { "off" };
    let opener = Opener::new(global, log)?;
    match command {
        Command::Demo(args) => demo::run(&opener.without_tls(), args),
        Command::Serve(args) => serve::run(&opener, args),
        Command::Ping(args) => ping::run(&opener, args),
        Command::Perf(args) => perf::run(&opener, args),
        Command::Cp(args) => cp::run(&opener, args),
        Command::Ls(args) => cp::list::run(&opener, args),
        Command::Siwtest(args) => siwtest::run(&opener, args),
        Command::Devices(args) => devices::run(args, global),
        Command::Env(args) => env::run(args),
        Command::Key(args) => key::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Doctor(args) => doctor::run(&opener, args),
        Command::Conform(args) => conform::run(args),
        Command::Wan(args) => wan::run(args),
        Command::Decode(_)
        | Command::Run(_)
        | Command::Cdi(_)
        | Command::CdiHook
        | Command::Generate(_) => Ok(()),
    }
}

/// Prints help or version, which are not errors; for anything else prints an error and a hint.
fn report_usage_error(error: &clap::Error) -> ExitCode {
    if !error.use_stderr()
        || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        let _ = error.print();
        return if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS };
    }
    let text = error.to_string();
    let mut why: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:")) {
        // Tips and the list of possible values are part of the reason. The hint below names the
        // help that fits.
        if line.starts_with("For more information") {
            continue;
        }
        why.push(line.strip_prefix("error: ").unwrap_or(line));
    }
    let commands: Vec<_> =
        Cli::command().get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let named = std::env::args_os()
        .skip(1)
        .find_map(|word| word.into_string().ok().filter(|word| commands.contains(word)));
    let hint = match named.as_deref() {
        // The unknown argument probably belongs to the program of `uiw run`.
        Some("run") if error.kind() == clap::error::ErrorKind::UnknownArgument => {
            "`--` goes in front of the program, as in `uiw run -- PROGRAM`; see `uiw run --help`"
                .to_owned()
        }
        Some("cp") if text.contains("'-r'") => {
            "directories are copied without an option".to_owned()
        }
        Some(name) => format!("see `uiw {name} --help`"),
        None => "see `uiw --help`".to_owned(),
    };
    why.retain(|line| !line.is_empty());
    report(&Failure::usage("invalid command line", why.join("; "), hint))
}
