//! `cargo xtask interop nixl`: NIXL's wheel from PyPI on the C libraries. It is too large for `cargo xtask test`.

use std::process::{Command, ExitCode};
use std::{fs, io};

/// Options of `cargo xtask interop nixl`.
#[derive(clap::Args)]
#[command(after_help = "\
Installs the wheel in a virtual environment, target/nixl (about 350 MB; python3 with venv and pip, and access to PyPI), unless it is there,
and runs the test stock nixl::nixl_writes_and_reads with it. Needs root for network namespaces.")]
pub(crate) struct Options {
    /// Version of the wheel nixl-cu12; its UCX runs without CUDA
    #[arg(long, value_name = "VERSION", default_value = "1.5.1")]
    version: String,
}

/// Installs the wheel and runs the test.
pub(crate) fn run(options: &Options) -> ExitCode {
    match install_and_test(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn install_and_test(options: &Options) -> io::Result<bool> {
    let target = crate::workspace::target().map_err(io::Error::other)?;
    let (folder, mark) = (target.join("nixl"), target.join("nixl").join(format!("has-{}", options.version)));
    if !mark.exists() {
        fs::create_dir_all(&target)?;
        let wheel = format!("nixl-cu12=={}", options.version);
        let made = succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?
            // Without torch, which it asks for: the transfers need numpy alone.
            && succeeds(Command::new(folder.join("bin/pip")).args(["install", "--no-deps", &wheel]))?
            && succeeds(Command::new(folder.join("bin/pip")).args(["install", "numpy"]))?;
        if !made {
            return Ok(false);
        }
        fs::write(&mark, "")?;
    }
    let mut cargo = crate::workspace::cargo();
    cargo.args(["test", "-p", "uiw-interop", "--test", "stock", "--", "nixl::"]);
    succeeds(cargo.env("UIW_NIXL_PYTHON", folder.join("bin/python")))
}

fn succeeds(command: &mut Command) -> io::Result<bool> {
    Ok(command.status()?.success())
}
