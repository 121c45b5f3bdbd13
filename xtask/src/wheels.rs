//! `cargo xtask interop nixl` and `cargo xtask interop mooncake`: tests of the C libraries with
//! Python wheels from PyPI, which are too large for `cargo xtask test`.

use std::process::Command;
use std::{fs, io};

/// Options of `cargo xtask interop nixl`.
#[derive(clap::Args)]
#[command(after_help = "\
Installs the wheel in a virtual environment, target/nixl (about 350 MB; python3 with venv and pip, and access to PyPI), unless it is there,
and runs the tests stock nixl::* with it. Needs root for network namespaces, and dumpcap (wireshark-common).")]
pub(crate) struct Nixl {
    /// Version of the wheel nixl-cu12; its UCX runs without CUDA
    #[arg(long, value_name = "VERSION", default_value = "1.5.1")]
    version: String,
}

/// Options of `cargo xtask interop mooncake`.
#[derive(clap::Args)]
#[command(after_help = "\
Installs the wheel in a virtual environment, target/mooncake (about 200 MB; python3 with venv and pip, and access to PyPI), unless it is
there, and runs the tests stock mooncake::* with it. Needs root for network namespaces, and dumpcap (wireshark-common).")]
pub(crate) struct Mooncake {
    /// Version of the wheel mooncake-transfer-engine-non-cuda
    #[arg(long, value_name = "VERSION", default_value = "0.3.13.post1")]
    version: String,
}

/// Wheel, and the tests that use it.
struct Wheel<'a> {
    /// Name of the virtual environment's folder, and of the module of the tests.
    name: &'static str,
    /// Arguments of each call of pip.
    installs: &'a [&'a [&'a str]],
    version: &'a str,
    /// Environment variable that tells the tests the path of the virtual environment's Python.
    python: &'static str,
}

impl Nixl {
    /// Installs the wheel and runs the tests.
    pub(crate) fn run(&self) -> io::Result<bool> {
        let wheel = format!("nixl-cu12=={}", self.version);
        // The wheel depends on torch, but the transfers only need numpy.
        let installs: &[&[&str]] = &[&["--no-deps", &wheel], &["numpy"]];
        Wheel { name: "nixl", installs, version: &self.version, python: "UIW_NIXL_PYTHON" }.run()
    }
}

impl Mooncake {
    /// Installs the wheel and runs the tests.
    pub(crate) fn run(&self) -> io::Result<bool> {
        let wheel = format!("mooncake-transfer-engine-non-cuda=={}", self.version);
        let installs: &[&[&str]] = &[&[&wheel]];
        Wheel { name: "mooncake", installs, version: &self.version, python: "UIW_MOONCAKE_PYTHON" }
            .run()
    }
}

impl Wheel<'_> {
    fn run(&self) -> io::Result<bool> {
        let target = crate::workspace::target().map_err(io::Error::other)?;
        let folder = target.join(self.name);
        let mark = folder.join(format!("has-{}", self.version));
        if !mark.exists() {
            fs::create_dir_all(&target)?;
            if !succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))? {
                return Ok(false);
            }
            for words in self.installs {
                if !succeeds(Command::new(folder.join("bin/pip")).arg("install").args(*words))? {
                    return Ok(false);
                }
            }
            fs::write(&mark, "")?;
        }
        let mut tests = crate::workspace::stock(&[&format!("{}::", self.name)]);
        crate::workspace::run_tests(tests.env(self.python, folder.join("bin/python")))
    }
}

fn succeeds(command: &mut Command) -> io::Result<bool> {
    Ok(command.status()?.success())
}
