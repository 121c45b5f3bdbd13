//! The program and the libraries of the last release beside the new ones, in both roles.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::git;
use crate::bench::programs::{build_libraries, cargo_build, command};
use crate::history;

/// What is run beside the new one until there is a tag.
const FIRST: &str = "02b5a5a";

/// The longest that one command may take.
const CAP: Duration = Duration::from_secs(60);

/// A program and its libraries.
struct Version {
    name: String,
    uiw: PathBuf,
    libraries: PathBuf,
}

/// Commands of `uiw` that are run against `uiw serve`.
const CLIENTS: [&[&str]; 7] = [
    &["ping", "@", "--op", "send", "-c", "3"],
    &["ping", "@", "--op", "write", "-c", "3"],
    &["ping", "@", "--op", "read", "-c", "3"],
    &["ping", "@", "--rping", "-c", "3"],
    // FPDUs beyond a TCP segment.
    &["perf", "@", "--op", "write", "--seconds", "1"],
    &["perf", "@", "--op", "send", "--seconds", "1"],
    &["perf", "@", "--op", "read", "--seconds", "1"],
];

/// A stock program and its arguments: of both ends, of the server, of the client. `@` is a free port.
struct Stock {
    name: &'static str,
    both: &'static [&'static str],
    server: &'static [&'static str],
    client: &'static [&'static str],
}

const STOCK: [Stock; 4] = [
    Stock {
        name: "rping",
        both: &["-a", "127.0.0.1", "-p", "@", "-C", "3"],
        server: &["-s"],
        client: &["-c"],
    },
    Stock { name: "ib_atomic_bw", both: &PERFTEST_CM, server: &[], client: &["127.0.0.1"] },
    Stock { name: "ib_send_bw", both: &PERFTEST_CM, server: &[], client: &["127.0.0.1"] },
    // Queue pairs connected out of band.
    Stock { name: "ib_write_bw", both: &PERFTEST, server: &[], client: &["127.0.0.1"] },
];

const PERFTEST: [&str; 6] = ["-d", "uiw_lo", "-p", "@", "-n", "200"];
const PERFTEST_CM: [&str; 7] = ["-R", "-d", "uiw_lo", "-p", "@", "-n", "200"];

pub(super) fn check() -> Result<(), String> {
    let tag = git(&["describe", "--tags", "--abbrev=0"]).map(|tag| tag.trim().to_owned());
    let old = Version::of_commit(&tag.unwrap_or_else(|_| FIRST.to_owned()))?;
    let new = Version::of_workspace()?;
    let mut failed = Vec::new();
    for (server, client) in [(&old, &new), (&new, &old)] {
        println!("{} serves {}", server.name, client.name);
        for result in ours(server, client).into_iter().chain(stock(server, client)) {
            match result {
                Ok(done) => println!("  ok: {done}"),
                Err(why) => failed.push(format!("{} serves {}: {why}", server.name, client.name)),
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

impl Version {
    /// Builds what is not built yet.
    fn of_commit(commit: &str) -> Result<Self, String> {
        let folder = crate::workspace::target()?.join(format!("baseline-{commit}"));
        let (tree, target) = (folder.join("tree"), folder.join("target"));
        if !tree.is_dir() {
            history::export(commit, &tree)?;
        }
        // The program's package had the library's name at first.
        let manifest =
            std::fs::read_to_string(tree.join("cli/Cargo.toml")).map_err(|error| error.to_string())?;
        let package = if manifest.contains("name = \"uiw-cli\"") { "uiw-cli" } else { "uiw" };
        Self::build(commit, &tree, &target, &folder.join("lib"), package)
    }

    fn of_workspace() -> Result<Self, String> {
        let target = crate::workspace::target()?;
        Self::build("this", &crate::workspace::root(), &target, &target.join("release/lib"), "uiw-cli")
    }

    fn build(
        name: &str,
        tree: &Path,
        target: &Path,
        libraries: &Path,
        package: &str,
    ) -> Result<Self, String> {
        cargo_build(tree, target, &["-p", package, "--bin", "uiw"])?;
        build_libraries(tree, target, libraries)?;
        Ok(Self {
            name: name.to_owned(),
            uiw: target.join("release/uiw"),
            libraries: libraries.to_path_buf(),
        })
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = command(program, &self.libraries);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

/// A process that is ended when dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Self, String> {
        command.spawn().map(Self).map_err(|error| format!("{}: {error}", command.get_program().display()))
    }

    /// Waits for its end; an error unless that is a success.
    fn end(mut self) -> Result<(), String> {
        let stderr = self.0.stderr.take();
        // A process that says much would wait for a reader.
        let said = std::thread::spawn(move || stderr.map_or(Ok(String::new()), std::io::read_to_string));
        let deadline = Instant::now() + CAP;
        let status = loop {
            match self.0.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if Instant::now() >= deadline => return Err("does not end".to_owned()),
                None => sleep(Duration::from_millis(20)),
            }
        };
        if status.success() {
            return Ok(());
        }
        let said = said.join().ok().and_then(Result::ok).unwrap_or_default();
        Err(format!("{status}: {}", said.trim()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every command of `client` against `uiw serve` of `server`.
fn ours(server: &Version, client: &Version) -> Vec<Result<String, String>> {
    let mut serve = server.command(&server.uiw);
    serve.args(["serve", "--listen", "127.0.0.1:0", "--until-stdin-ends"]);
    serve.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = match Running::start(&mut serve) {
        Ok(running) => running,
        Err(why) => return vec![Err(why)],
    };
    let mut line = String::new();
    let said = running.0.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
    let Some(address) = said.and(line.split_whitespace().next_back()) else {
        return vec![Err("uiw serve names no address".to_owned())];
    };
    let run = |args: &&[&str]| {
        let args: Vec<_> = args.iter().map(|word| if *word == "@" { address } else { word }).collect();
        let name = args.join(" ");
        Running::start(client.command(&client.uiw).args(&args))
            .and_then(Running::end)
            .map(|()| name.clone())
            .map_err(|why| format!("{name}: {why}"))
    };
    CLIENTS.iter().map(run).collect()
}

/// Every stock program, each end on the libraries of one version.
fn stock(server: &Version, client: &Version) -> Vec<Result<String, String>> {
    let mut results = Vec::new();
    for program in STOCK {
        if !crate::packages::on_path(program.name) {
            println!("  SKIPPED: {}", program.name);
            continue;
        }
        let done = pair(server, client, &program);
        let name = program.name;
        results.push(done.map(|()| name.to_owned()).map_err(|why| format!("{name}: {why}")));
    }
    results
}

fn pair(server: &Version, client: &Version, program: &Stock) -> Result<(), String> {
    let port = free_port().map_err(|error| format!("no free port: {error}"))?.to_string();
    let start = |version: &Version, own: &[&'static str]| {
        let mut command = version.command(Path::new(program.name));
        let words = program.both.iter().chain(own);
        command.args(words.map(|word| if *word == "@" { port.as_str() } else { word }));
        Running::start(&mut command)
    };
    let serving = start(server, program.server)?;
    // Until the server listens.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match start(client, program.client)?.end() {
            Ok(()) => break serving.end(),
            Err(why) if Instant::now() >= deadline => break Err(why),
            Err(_) => sleep(Duration::from_millis(200)),
        }
    }
}

/// A port that was free a moment ago.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
