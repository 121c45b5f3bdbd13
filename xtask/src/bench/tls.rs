//! `cargo xtask bench tls`: the example `tls` of `uiw-verbs`.

use std::process::ExitCode;

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "Prints the median ratio with its range. The bar is 0.9.")]
pub(crate) struct Options {
    /// Pairs of slices of 0.3 s
    #[arg(long, default_value_t = 15)]
    slices: u32,
}

/// Measures.
pub(crate) fn run(options: &Options) -> ExitCode {
    super::example::run("tls", "tls", &[options.slices])
}
