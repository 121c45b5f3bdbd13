//! Development tasks of the workspace: `cargo xtask --help`.

mod arch;
mod bench;
mod bindings;
mod book;
mod checkouts;
mod conform;
mod dist;
mod history;
mod install;
mod models;
mod packages;
mod process;
mod publishable;
mod report;
mod requirements;
mod test;
mod wheels;
mod wire;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run all checks and all tests; the last line on stdout is `N passed, N failed, N skipped`.
    Test(test::Options),
    /// Show which tests prove which sentences of the RFCs.
    Requirements(requirements::Options),
    /// Build the book from the documents, and check their links.
    Book(book::Options),
    /// Run the models of the progress engine: every schedule of a few threads, random ones of more.
    Models(models::Options),
    /// Check that the crates can be published: packages, oldest Rust, lowest versions, licences,
    /// compatibility.
    Publishable(publishable::Options),
    /// Run benchmarks, and compare each row with its bar.
    Bench(bench::Options),
    /// Test interoperability with other stacks.
    #[command(subcommand)]
    Interop(InteropChore),
    /// Install the program, the two C libraries and their other files below a prefix.
    Install(install::Options),
    /// Create packages for users: tarball, Debian package, wheel, OCI image, list of crates.
    Dist(dist::Options),
}

#[derive(Subcommand)]
enum InteropChore {
    /// The Linux kernel's siw driver in a virtual machine: the whole matrix, both ways round.
    Siw(uiw_siw::matrix::Options),
    /// `uiw conform` on a scripted peer that breaks every requirement, one at a time, and fifty
    /// times on uiw.
    Conform,
    /// NIXL's wheel from PyPI, on the C libraries.
    Nixl(wheels::Nixl),
    /// Mooncake's wheel from PyPI, on the C libraries.
    Mooncake(wheels::Mooncake),
    /// The crate sideway from crates.io, on the C libraries.
    #[command(after_help = bindings::SIDEWAY.help)]
    Sideway,
    /// The crate ibverbs (rust-ibverbs) from crates.io, on the C libraries.
    #[command(after_help = bindings::RUST_IBVERBS.help)]
    RustIbverbs,
    /// libfabric's fabtests, from a checkout, on the C libraries.
    Fabtests(checkouts::Fabtests),
    /// The program and the libraries of the last release beside these, in both roles.
    Wire,
    /// Valkey with RDMA and its client library, from checkouts, on the C libraries.
    Valkey(checkouts::Valkey),
}

fn main() -> ExitCode {
    // Folders of installations and packages are for every user.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let cli = Cli::parse();
    process::handle_interrupts();
    match cli.chore {
        Chore::Test(options) => test::run(&options),
        Chore::Requirements(options) => requirements::run(&options),
        Chore::Book(options) => book::run(&options),
        Chore::Models(options) => process::exit_code(models::run(&options)),
        Chore::Publishable(options) => publishable::run(&options),
        Chore::Bench(options) => bench::run(options),
        Chore::Interop(InteropChore::Siw(options)) => uiw_siw::matrix::main(&options),
        Chore::Interop(InteropChore::Conform) => process::exit_code(conform::run()),
        Chore::Interop(InteropChore::Wire) => process::exit_code(wire::check()),
        Chore::Interop(InteropChore::Nixl(options)) => process::exit_code(options.run()),
        Chore::Interop(InteropChore::Mooncake(options)) => process::exit_code(options.run()),
        Chore::Interop(InteropChore::Sideway) => process::exit_code(bindings::SIDEWAY.run()),
        Chore::Interop(InteropChore::RustIbverbs) => {
            process::exit_code(bindings::RUST_IBVERBS.run())
        }
        Chore::Interop(InteropChore::Fabtests(options)) => process::exit_code(options.run()),
        Chore::Interop(InteropChore::Valkey(options)) => process::exit_code(options.run()),
        Chore::Install(options) => install::run(&options),
        Chore::Dist(options) => dist::run(&options),
    }
}
