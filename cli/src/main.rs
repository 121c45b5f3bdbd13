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
    let parsed =
        command_line().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return report_usage_error(&error),
    };
    if let Err(failure) = check_global_options(&cli.command, &cli.global) {
        note!("{failure}");
        return failure.exit.into();
    }
    // The libraries loaded by `uiw run` print this warning themselves.
    let is_silent = matches!(cli.command, Command::Run(_) | Command::CdiHook);
    if let Some(warning) = unknown_variables().filter(|_| !is_silent) {
        note!("warning: {warning}");
    }
    if let Some(scope) = variable_scope(&cli.command)
        && let Err(failure) = env::obey(scope)
    {
        note!("{failure}");
        return failure.exit.into();
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
        Err(failure) => {
            note!("{failure}");
            failure.exit.into()
        }
    }
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

/// Returns the command line definition. The help of a command omits the options that
/// [`check_global_options`] always refuses for it.
fn command_line() -> clap::Command {
    let mut command = Cli::command();
    for (name, refused) in [
        ("demo", &["llp", "tls", "keylog"][..]),
        ("devices", &["pcap", "tls", "keylog"]),
        ("cdi", &["llp", "pcap", "tls", "keylog"]),
        ("env", &["llp", "pcap", "tls", "keylog"]),
        ("key", &["llp", "pcap", "tls", "keylog"]),
        ("stat", &["llp", "pcap", "tls", "keylog"]),
        ("wan", &["llp", "pcap", "tls", "keylog"]),
        ("conform", &["llp", "pcap", "tls", "keylog"]),
        ("decode", &["llp", "pcap", "tls"]),
        ("generate", &["llp", "pcap", "tls", "keylog"]),
    ] {
        let hidden = command.get_arguments().filter(|arg| refused.contains(&arg.get_id().as_str()));
        let hidden: Vec<_> = hidden.map(|arg| arg.clone().hide(true)).collect();
        command = command.mut_subcommand(name, |command| command.args(hidden));
    }
    let keylog = command.get_arguments().find(|arg| arg.get_id() == "keylog").cloned();
    if let Some(keylog) = keylog {
        let keylog = keylog.help(
            "Secrets of TLS connections, as --keylog and UIW_KEYLOG of other commands write them",
        );
        command = command.mut_subcommand("decode", |command| command.arg(keylog));
    }
    command
}

/// Refuses global options that a command cannot obey, instead of ignoring them.
fn check_global_options(command: &Command, global: &Global) -> Result<()> {
    match command {
        Command::Doctor(args) if args.connects() => Ok(()),
        Command::Devices(_) => {
            let why = "this command makes no connections";
            global.refuse_tls(why)?;
            global.refuse_pcap(why)
        }
        Command::Cdi(_)
        | Command::CdiHook
        | Command::Env(_)
        | Command::Key(_)
        | Command::Stat(_)
        | Command::Doctor(_)
        | Command::Wan(_)
        | Command::Generate(_) => {
            let why = "this command makes no connections";
            global.refuse_llp(why)?;
            global.refuse_tls(why)?;
            global.refuse_pcap(why)
        }
        Command::Decode(_) => {
            let why = "this command makes no connections";
            global.refuse_llp(why)?;
            global.refuse_tls_file(why)?;
            global.refuse_pcap(why)
        }
        Command::Conform(_) => {
            let why = "this command makes every byte itself, over the kernel's TCP; `tcpdump` captures them";
            global.refuse_llp(why)?;
            global.refuse_tls(why)?;
            global.refuse_pcap(why)
        }
        Command::Demo(_) => {
            let why = "both ends of the demo are on this machine's own TCP";
            global.refuse_tls(why)?;
            global.refuse_llp(why)
        }
        _ => Ok(()),
    }
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
    let named = std::env::args().skip(1).find(|word| commands.contains(word));
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
    let failure = Failure::usage("invalid command line", why.join("; "), hint);
    note!("{failure}");
    failure.exit.into()
}
