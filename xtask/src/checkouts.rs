//! `cargo xtask interop fabtests` and `cargo xtask interop valkey`: tests of the C libraries with
//! programs that are not packaged and are therefore built from checkouts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace::{run_tests, stock};

/// Options of `cargo xtask interop fabtests`.
#[derive(clap::Args)]
#[command(after_help = "\
Builds the folder `fabtests` of the checkout in target/fabtests (a minute; autoconf, automake, libtool, Debian's libfabric-dev) and runs the
tests stock fabtests::* with it, which print a table of outcomes: half an hour. The tag has to fit Debian's libfabric: v1.17.0 for Debian
12. Needs root for network namespaces.")]
pub(crate) struct Fabtests {
    /// A checkout of ofiwg/libfabric
    #[arg(value_name = "DIR")]
    checkout: PathBuf,
    /// Only tests whose names contain this
    #[arg(long, value_name = "SUBSTR", default_value = "")]
    only: String,
}

/// Options of `cargo xtask interop valkey`.
#[derive(clap::Args)]
#[command(after_help = "\
Builds both checkouts with RDMA in target/valkey (two minutes; gcc, make, librdmacm-dev) and runs the tests stock valkey::* with them.
Needs root for network namespaces.")]
pub(crate) struct Valkey {
    /// A checkout of valkey-io/valkey
    #[arg(value_name = "DIR")]
    valkey: PathBuf,
    /// A checkout of valkey-io/libvalkey
    #[arg(value_name = "LIB_DIR")]
    libvalkey: PathBuf,
}

const FABTESTS_NEEDS: [(&str, &str); 6] = [
    ("autoconf", "autoconf"),
    ("automake", "automake"),
    ("libtoolize", "libtool"),
    ("/usr/include/rdma/fabric.h", "libfabric-dev"),
    ("fi_info", "libfabric-bin"),
    ("tshark", "tshark"),
];
const VALKEY_NEEDS: [(&str, &str); 3] =
    [("cc", "gcc"), ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"), ("tshark", "tshark")];

impl Fabtests {
    /// Builds the programs and runs the tests.
    pub(crate) fn run(&self) -> io::Result<bool> {
        // Errors are ignored here: if something is still missing, the build fails with an error.
        let _ = crate::packages::provide(&FABTESTS_NEEDS);
        let folder = fresh("fabtests")?;
        let (source, installed) = (folder.join("source"), folder.join("installed"));
        crate::bindings::copy_folder(&self.checkout.join("fabtests"), &source)?;
        let mut configure = Command::new("./configure");
        configure.arg(format!("--prefix={}", installed.display()));
        let mut autogen = Command::new("sh");
        autogen.arg("autogen.sh");
        for command in [autogen, configure, make(&["install"])] {
            if !succeeds(&source, command)? {
                return Ok(false);
            }
        }
        test("fabtests::", &self.only, &[("UIW_FABTESTS", &installed)])
    }
}

impl Valkey {
    /// Builds the programs and runs the tests.
    pub(crate) fn run(&self) -> io::Result<bool> {
        let _ = crate::packages::provide(&VALKEY_NEEDS);
        let folder = fresh("valkey")?;
        let [valkey, libvalkey] = ["valkey", "libvalkey"].map(|name| folder.join(name));
        crate::bindings::copy_folder(&self.valkey, &valkey)?;
        crate::bindings::copy_folder(&self.libvalkey, &libvalkey)?;
        for (folder, words) in [
            (&valkey, &["BUILD_RDMA=module", "MALLOC=libc"][..]),
            (&valkey, &["-C", "tests/rdma"]),
            (&libvalkey, &["USE_RDMA=1"]),
        ] {
            if !succeeds(folder, make(words))? {
                return Ok(false);
            }
        }
        test("valkey::", "", &[("UIW_VALKEY", &valkey), ("UIW_LIBVALKEY", &libvalkey)])
    }
}

/// Creates an empty folder for the build, and removes the one of the previous build.
fn fresh(name: &str) -> io::Result<PathBuf> {
    let folder = crate::workspace::target().map_err(io::Error::other)?.join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn make(words: &[&str]) -> Command {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut make = Command::new("make");
    make.arg(format!("-j{jobs}")).args(words);
    make
}

/// Runs a command in a folder, and returns whether it succeeds.
fn succeeds(folder: &Path, mut command: Command) -> io::Result<bool> {
    Ok(command.current_dir(folder).status()?.success())
}

/// Runs the tests of a module whose names contain `only`, and shows their output.
fn test(module: &str, only: &str, variables: &[(&str, &Path)]) -> io::Result<bool> {
    let list = stock(&["--list", module]).stderr(Stdio::inherit()).output()?;
    if !list.status.success() {
        return Ok(false);
    }
    let all = test_names(&list.stdout);
    let chosen: Vec<_> =
        all.iter().map(String::as_str).filter(|name| name.contains(only)).collect();
    if chosen.is_empty() {
        return Err(io::Error::other(format!(
            "no test has {only:?} in its name: {}",
            all.join(", ")
        )));
    }
    let mut tests = stock(&["--nocapture", "--exact"]);
    run_tests(tests.args(chosen).envs(variables.iter().copied()))
}

/// Parses the names in a list of tests.
fn test_names(list: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(list)
        .lines()
        .filter_map(|line| Some(line.strip_suffix(": test")?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_those_of_tests() {
        let list =
            b"fabtests::a: test\nfabtests::b: benchmark\nfabtests::c::d: test\n\n2 tests, 1 benchmark\n";
        assert_eq!(super::test_names(list), ["fabtests::a", "fabtests::c::d"]);
    }
}
