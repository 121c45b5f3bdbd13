//! The uiw program.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use llp::capture::{CaptureStack, PcapSink};
use llp::tcp::TcpStack;
use uiw_cli::exit::Failure;
use uiw_cli::{decode, demo};
use verbs::{Device, DeviceOptions};

/// iWARP in user space.
///
/// Results go to standard output, progress to standard error on a terminal only.
///
/// Exit codes: 0 done and verified; 1 it ran and the verdict is bad (data differ, a capture cannot be followed); 2 wrong arguments or
/// files; 3 no connection (refused, rejected, no answer); 4 the connection broke or the peer broke a rule.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Captures every connection to this file (pcapng), for Wireshark.
    #[arg(long, global = true, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Says on standard error what happens; twice for more. `UIW_LOG` takes a filter instead.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    #[command(hide = true)]
    DemoPeer(demo::peer::Args),
    /// Show the iWARP traffic in a packet capture
    Decode(decode::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log(cli.verbose);
    let run = |command: &dyn Fn(&Device) -> Result<(), Failure>| match with_device(cli.pcap.as_ref(), command)
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    };
    match &cli.command {
        Command::Demo(args) => run(&|device| demo::run(args, device)),
        Command::DemoPeer(args) => run(&|device| demo::peer::run(args, device)),
        Command::Decode(args) => decode::run(args),
    }
}

fn start_log(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = match verbose {
        0 => "error",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_env("UIW_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

/// Runs a command with a device, captured if wanted; the capture is complete afterwards.
fn with_device(
    pcap: Option<&PathBuf>,
    command: &dyn Fn(&Device) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(path) = pcap else { return command(&Device::open()?) };
    let cannot = |error: std::io::Error| Failure::Usage(format!("{}: {error}", path.display()));
    let sink = PcapSink::create(path).map_err(cannot)?;
    let stack = TcpStack::new().map_err(cannot)?;
    let stack = CaptureStack::new(stack, Arc::clone(&sink), "uiw");
    let device = Device::with_stack(Box::new(stack), DeviceOptions::default())?;
    let result = command(&device);
    drop(device);
    sink.flush().map_err(cannot)?;
    result
}
