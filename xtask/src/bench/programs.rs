//! Common parts of the rows: programs that are built once, pairs of a server and a client, and
//! rounds.

use super::Options;
use crate::process::TempPath;
use crate::{install, packages, workspace};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use uiw_interop::stock::{free_port, listens, run_by};
use uiw_siw::shell::Process;
use uiw_siw::{Error, Result};

/// Maximum time for which a program may run.
pub(super) const TIMEOUT: Duration = Duration::from_secs(900);
/// Maximum time that a server may take to listen.
const LISTENING: Duration = Duration::from_secs(20);

/// Example of a crate of the workspace.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExampleProgram {
    /// smoltcp and the kernel's TCP without iWARP.
    Bare,
    Clients,
    Connects,
    Datagrams,
    Rounds,
    Threads,
    Tls,
}

impl ExampleProgram {
    #[cfg(test)]
    const ALL: [Self; 7] = [
        Self::Bare,
        Self::Clients,
        Self::Connects,
        Self::Datagrams,
        Self::Rounds,
        Self::Threads,
        Self::Tls,
    ];

    /// Returns the package, the name of the example, and the features that it needs.
    fn target(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Bare => ("uiw-smol", "bare", ""),
            Self::Clients => ("uiw", "clients", "tokio"),
            Self::Connects => ("uiw-verbs", "connects", ""),
            Self::Datagrams => ("uiw-verbs", "datagrams", ""),
            Self::Rounds => ("uiw-verbs", "rounds", ""),
            Self::Threads => ("uiw-verbs", "threads", ""),
            Self::Tls => ("uiw", "tls", "tls"),
        }
    }
}

/// Options, programs and files of one run.
pub(super) struct Lab {
    pub(super) options: Options,
    pub(super) rounds: u32,
    /// Cargo's target folder.
    pub(super) target: PathBuf,
    /// Folder for the files of this run.
    pub(super) folder: TempPath,
    pub(super) guest: super::siw::Guest,
}

/// The functions run Cargo each time that a row needs a program, because Cargo does nothing if the
/// program is up to date.
impl Lab {
    pub(super) fn new(options: Options, rounds: u32) -> Result<Self> {
        let target = workspace::target().map_err(Error::Failed)?;
        let folder = TempPath::new(target.join(format!("bench-{}", std::process::id())));
        let lab = Self { options, rounds, target, folder, guest: super::siw::Guest::default() };
        lab.fresh_folder("")?;
        Ok(lab)
    }

    /// Returns the length of a slice in seconds: `usual`, unless the options set it.
    pub(super) fn seconds(&self, usual: f64) -> f64 {
        self.options.seconds.unwrap_or(usual)
    }

    /// Creates an empty folder inside of the folder of this run.
    pub(super) fn fresh_folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)
            .map_err(|error| Error::Failed(format!("{}: {error}", path.display())))?;
        Ok(path)
    }

    /// Builds the program `uiw`.
    pub(super) fn uiw(&self) -> Result<PathBuf> {
        self.build(&["-p", "uiw-cli"]).map(|()| self.target.join("release/uiw"))
    }

    /// Installs the program together with the C libraries, and returns its path.
    pub(super) fn installed(&self) -> Result<PathBuf> {
        let prefix = self.folder.join("installed");
        install::release(&prefix).map_err(Error::Failed)?;
        Ok(prefix.join("bin/uiw"))
    }

    /// Builds an example of a crate.
    pub(super) fn example(&self, example: ExampleProgram) -> Result<PathBuf> {
        let (package, name, features) = example.target();
        self.build(&["-p", package, "--example", name, "--features", features])?;
        Ok(self.target.join("release/examples").join(name))
    }

    /// Builds the two C libraries and returns their folder.
    pub(super) fn libraries(&self) -> Result<PathBuf> {
        let folder = self.folder.join("lib");
        build_libraries(&workspace::root(), &self.target, &folder).map_err(Error::Failed)?;
        Ok(folder)
    }

    /// Compiles a C program of `programs/` with Debian's headers.
    pub(super) fn c_program(&self, name: &str) -> Result<PathBuf> {
        require_programs(&[("cc", "gcc"), ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev")])?;
        let program = self.folder.join(name);
        let sources = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/programs"));
        let mut compile = Command::new("cc");
        compile
            .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program);
        compile.args([sources.join(format!("{name}.c")), sources.join("ends.c")]);
        output(compile.args(["-lrdmacm", "-libverbs", "-lpthread"]))?;
        Ok(program)
    }

    fn build(&self, what: &[&str]) -> Result<()> {
        cargo_build(&workspace::root(), &self.target, what).map_err(Error::Failed)
    }
}

/// Builds the two C libraries of a workspace in the folder `target`, and copies them to `to`.
pub(crate) fn build_libraries(
    workspace: &Path,
    target: &Path,
    to: &Path,
) -> std::result::Result<(), String> {
    cargo_build(workspace, target, &["-p", "uiw-ibverbs", "-p", "uiw-rdmacm"])?;
    fs::create_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
    for name in ["libibverbs.so", "librdmacm.so"] {
        let (from, to) = (target.join("release").join(name), to.join(format!("{name}.1")));
        fs::copy(from, &to).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(())
}

/// Runs `cargo build --release` in a workspace, with the arguments `what`.
pub(crate) fn cargo_build(
    workspace: &Path,
    target: &Path,
    what: &[&str],
) -> std::result::Result<(), String> {
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--release", "--target-dir"])
        .arg(target)
        .args(what)
        .current_dir(workspace);
    let status = build.status().map_err(|error| format!("starting cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("building {}: {status}", what.join(" "))) }
}

/// Returns a command that runs without the `UIW_` variables of the environment.
pub(super) fn clean_command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UIW_"))
    {
        command.env_remove(name);
    }
    command
}

/// Like [`clean_command`], but the program uses the C libraries in a folder.
pub(crate) fn command_with_libraries(program: &Path, libraries: &Path) -> Command {
    let mut command = clean_command(program);
    command.env("LD_LIBRARY_PATH", libraries);
    command
}

/// Installs the programs that are absent. Each one is given with its Debian package.
///
/// # Errors
/// Returns [`Error::Missing`] if a program could not be installed.
pub(super) fn require_programs(programs: &[(&'static str, &'static str)]) -> Result<()> {
    match packages::provide(programs).first() {
        None => Ok(()),
        Some(program) => Err(Error::Missing(format!("no `{program}` here"))),
    }
}

/// Starts a program, which is killed when the value is dropped or this process exits.
pub(crate) fn start(command: &Command) -> Result<Process> {
    let mut with_us = Command::new("setpriv");
    with_us.args(["--pdeathsig", "KILL", "--"]);
    Process::start(&mut run_by(with_us, command))
}

/// Runs a program to its end and returns what it prints.
pub(crate) fn output(command: &Command) -> Result<String> {
    let ended = start(command)?.finish(TIMEOUT);
    if ended.is_ok() {
        return Ok(ended.out);
    }
    Err(Error::Failed(format!("{command:?}: exit code {}: {}", ended.status, ended.last_line())))
}

/// Parses the last line of the output that begins with a brace as a JSON object.
pub(super) fn json_object(printed: &str) -> Result<Value> {
    let line = printed.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).map_err(|_| Error::Failed(format!("no JSON in: {}", printed.trim())))
}

/// Returns the number at a path of a JSON value.
pub(super) fn figure(of: &Value, path: &str) -> Result<f64> {
    of.pointer(path)
        .and_then(Value::as_f64)
        .ok_or_else(|| Error::Failed(format!("no {path} in {of}")))
}

/// Runs a server and then a client, and returns the output of the client. Both commands are created
/// for the same free port.
///
/// The server must listen on this port plus `above`. If `ends` is true, it must exit by itself
/// after the client; otherwise it is killed.
pub(crate) fn pair(
    above: u16,
    ends: bool,
    server: impl Fn(u16) -> Command,
    client: impl Fn(u16) -> Command,
) -> Result<String> {
    let port = free_port();
    let mut running = start(&server(port))?;
    let until = Instant::now() + LISTENING;
    while !listens(running.id(), port + above) {
        if !running.is_running() || Instant::now() > until {
            let said = running.finish(Duration::ZERO);
            return Err(Error::Failed(format!(
                "{:?} does not listen: {}",
                server(port),
                said.last_line()
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let printed = output(&client(port))?;
    let ended = running.finish(if ends { LISTENING } else { Duration::ZERO });
    if ends && !ended.is_ok() {
        return Err(Error::Failed(format!(
            "{:?}: exit code {}: {}",
            server(port),
            ended.status,
            ended.last_line()
        )));
    }
    Ok(printed)
}

/// Function that runs a program for one slice: it takes the number of the round and returns the
/// figures.
pub(super) type Slice<'a, T> = &'a dyn Fn(u32) -> Result<T>;

/// Runs all slices in each round. Their order rotates, so that each one is the first equally often.
/// Returns the figures of each slice, round by round.
pub(super) fn rotate<T>(rounds: u32, slices: &[Slice<'_, T>]) -> Result<Vec<Vec<T>>> {
    let mut figures: Vec<Vec<T>> = slices.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for step in 0..slices.len() {
            let turn = (round as usize + step) % slices.len();
            figures[turn].push(slices[turn](round)?);
        }
    }
    Ok(figures)
}

/// Measures the share (0 to 1) of the time of all processors that is currently in use.
pub(super) fn busy_share() -> Result<f64> {
    let stat = || fs::read_to_string("/proc/stat").unwrap_or_default();
    let before = stat();
    // The kernel counts in hundredths of a second.
    std::thread::sleep(Duration::from_millis(100));
    share(&before, &stat()).ok_or_else(|| Error::Failed("/proc/stat cannot be read".to_owned()))
}

/// Computes the share in use between two contents of `/proc/stat` (proc(5)). Its first line has the
/// fields user, nice, system, idle, iowait, irq, softirq, steal.
fn share(before: &str, after: &str) -> Option<f64> {
    let ticks = |stat: &str| -> Option<[u64; 2]> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let fields: Vec<u64> =
            fields.map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
        Some([fields.get(3)? + fields.get(4)?, fields.iter().sum()])
    };
    let (before, after) = (ticks(before)?, ticks(after)?);
    let [idle, all] = [0, 1].map(|at| after[at].saturating_sub(before[at]) as f64);
    Some((all - idle).max(0.0) / all.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_exist() {
        let metadata = workspace::metadata().unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        for example in ExampleProgram::ALL {
            let (package, name, features) = example.target();
            let package = packages.iter().find(|found| found["name"] == package).unwrap();
            let targets = package["targets"].as_array().unwrap();
            let is_example = |target: &&Value| target["kind"][0] == "example";
            assert!(
                targets.iter().filter(is_example).any(|target| target["name"] == name),
                "{example:?}"
            );
            assert!(features.is_empty() || package["features"][features].is_array(), "{example:?}");
        }
    }

    #[test]
    fn each_slice_first_in_turn() {
        let order = std::cell::RefCell::new(String::new());
        let slice = |name: char, round: u32| {
            order.borrow_mut().push(name);
            Ok((name, round))
        };
        let figures = rotate(2, &[&|round| slice('a', round), &|round| slice('b', round)]).unwrap();
        assert_eq!(order.into_inner(), "abba");
        assert_eq!(figures, [[('a', 0), ('a', 1)], [('b', 0), ('b', 1)]]);
    }

    #[test]
    fn share_counts_all_processors() {
        let before = "cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 5 0 5 50 0 0 0 0 0 0\n";
        assert_eq!(share(before, "cpu  14 0 10 110 4 0 0 2 7 0\n"), Some(0.3));
        assert_eq!(share("cpu0 5 0 5 50 0 0 0 0 0 0\n", before), None);
    }

    #[test]
    fn last_object_read() {
        let value =
            json_object("a line\n{\"x\": {\"y\": 1}}\n{\"x\": {\"y\": 2}}\nanother\n").unwrap();
        assert_eq!(figure(&value, "/x/y").unwrap(), 2.0);
        assert!(json_object("a line").is_err() && figure(&value, "/x/z").is_err());
    }
}
