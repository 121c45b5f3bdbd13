//! `cargo xtask bench connects`: the example `connects` of `uiw-verbs`.

use std::process::ExitCode;

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "Prints the median ratio with its quartiles and the noise. The bar is 0.5.")]
pub(crate) struct Options {
    /// Alternating slices of half a second
    #[arg(long, default_value_t = 31)]
    slices: u32,
}

/// Measures.
pub(crate) fn run(options: &Options) -> ExitCode {
    super::example::run("connects", "", &[options.slices])
}
