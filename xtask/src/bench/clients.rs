//! `cargo xtask bench clients`: the example `clients` of `uiw-verbs`.

use std::process::ExitCode;

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "Prints the median ratio with its range, and the noise. The bar is 0.9.")]
pub(crate) struct Options {
    /// Pairs of slices of a second
    #[arg(long, default_value_t = 15)]
    pairs: u32,
    /// Clients at the same time
    #[arg(long, default_value_t = 100)]
    clients: u32,
}

/// Measures.
pub(crate) fn run(options: &Options) -> ExitCode {
    super::example::run("clients", "tokio", &[options.pairs, options.clients])
}
