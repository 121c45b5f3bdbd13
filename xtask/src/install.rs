//! `cargo xtask install`: the program and the C libraries, in a folder of the user's choice.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Options of `cargo xtask install`.
#[derive(clap::Args)]
#[command(after_help = "\
Makes PREFIX/bin/uiw, PREFIX/lib/libibverbs.so.1, PREFIX/lib/librdmacm.so.1 and PREFIX/lib/rsocket/librspreload.so.1.
No root, no kernel module:
    PREFIX/bin/uiw run -- ibv_devices
Exit code 1 when the build fails or the folder cannot be written.")]
pub(crate) struct Options {
    /// Where to install; made if it is not there
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Install what a debug build makes: quicker to build, slower to run
    #[arg(long)]
    debug: bool,
}

/// A file that Cargo makes and the place where it goes.
const FILES: [(&str, &str); 5] = [
    ("uiw", "bin/uiw"),
    ("libibverbs.so", "lib/libibverbs.so.1"),
    ("librdmacm.so", "lib/librdmacm.so.1"),
    // Both names that rdma-core has.
    ("librspreload.so", "lib/rsocket/librspreload.so"),
    ("librspreload.so", "lib/rsocket/librspreload.so.1"),
];

pub(crate) fn run(options: &Options) -> ExitCode {
    match install(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("xtask: {line}");
            ExitCode::FAILURE
        }
    }
}

fn install(options: &Options) -> Result<(), String> {
    build_and_put(&options.prefix, options.debug, |to| println!("{}", to.display()))
}

/// Installs what a release build makes, and says nothing of it.
pub(crate) fn release(prefix: &Path) -> Result<(), String> {
    build_and_put(prefix, false, |_| {})
}

fn build_and_put(prefix: &Path, debug: bool, done: impl Fn(&Path)) -> Result<(), String> {
    let mut build = cargo();
    build.args(["build", "-p", "uiw-cli", "-p", "uiw-ibverbs", "-p", "uiw-rdmacm", "-p", "uiw-rspreload"]);
    if !debug {
        build.arg("--release");
    }
    let status = build.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !status.success() {
        return Err(format!("the build failed: {status}"));
    }
    let built = target()?.join(if debug { "debug" } else { "release" });
    for (from, to) in FILES {
        let to = prefix.join(to);
        put(&built.join(from), &to).map_err(|error| format!("{}: {error}", to.display()))?;
        done(&to);
    }
    Ok(())
}

/// Copies beside the old file and renames: programs that run with the old one go on with it.
fn put(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = to.with_extension("new");
    fs::copy(from, &new)?;
    fs::rename(&new, to)
}

/// Where Cargo puts what it builds.
pub(crate) fn target() -> Result<PathBuf, String> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let folder = metadata["target_directory"].as_str().ok_or("cargo metadata names no target folder")?;
    Ok(folder.into())
}

/// The Cargo that runs us, in the workspace's folder.
fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::test::workspace());
    command
}
