//! `cargo xtask models`: runs the models of the progress engine (`verbs/models`) with more
//! schedules than `cargo test`, and with defects that they must notice.

use std::io;

/// Options of `cargo xtask models`.
#[derive(clap::Args)]
#[command(after_help = "\
First every schedule of three threads with at most three preemptions, and of four threads with two (loom), then random schedules of nine
threads (shuttle), and at last copies of the sources with the defects of verbs/models/defects. Takes about six minutes on an idle machine.
Exit code 1 when a schedule fails, or a defect is not noticed.")]
pub(crate) struct Options {
    /// Only models whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
}

/// Arguments of Cargo for each tool.
const TOOLS: [&str; 3] = [
    "test -p uiw-models --test loom -- --nocapture",
    "test -p uiw-models --features shuttle --test shuttle -- --nocapture",
    "test -p uiw-models --test defects -- --nocapture",
];

/// Runs all tools.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    TOOLS.iter().try_fold(true, |passed, args| {
        let mut cargo = crate::workspace::cargo();
        cargo.args(args.split(' ')).args(&options.only).env("LOOM_MAX_PREEMPTIONS", "3");
        Ok(cargo.status()?.success() && passed)
    })
}
