//! The uiw program.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use uiw_cli::decode;

/// iWARP in user space.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the iWARP traffic in a packet capture
    Decode(decode::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Decode(args) => decode::run(&args),
    }
}
