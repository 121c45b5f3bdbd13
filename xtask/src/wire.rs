//! `cargo xtask interop wire`: tests the program and the libraries of the last release with the new
//! ones, in both roles.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use uiw_siw::shell::Process;
use uiw_siw::{Error, Result as Outcome};

use crate::bench::programs::{
    build_libraries, cargo_build, command_with_libraries, output, pair, start,
};
use crate::history;

/// Commit that is tested with the new one until there is a tag.
const FIRST_VERSION: &str = "02b5a5a";

/// Program and libraries of a version.
struct Version {
    name: String,
    uiw: PathBuf,
    libraries: PathBuf,
}

/// Commands of `uiw` that are run against `uiw serve` at `@`.
const CLIENTS: [&str; 7] = [
    "ping @ --op send -c 3",
    "ping @ --op write -c 3",
    "ping @ --op read -c 3",
    "ping @ --rping -c 3",
    // FPDUs longer than a TCP segment.
    "perf @ --op write --seconds 1",
    "perf @ --op send --seconds 1",
    "perf @ --op read --seconds 1",
];

/// Stock programs, with the arguments of the server and of the client. `@` is a free port.
const STOCK: [(&str, &str, &str); 4] = [
    ("rping", "-s -a 127.0.0.1 -p @ -C 3", "-c -a 127.0.0.1 -p @ -C 3"),
    ("ib_atomic_bw", "-R -d uiw_lo -p @ -n 200", "-R -d uiw_lo -p @ -n 200 127.0.0.1"),
    ("ib_send_bw", "-R -d uiw_lo -p @ -n 200", "-R -d uiw_lo -p @ -n 200 127.0.0.1"),
    // Queue pairs connected out of band.
    ("ib_write_bw", "-d uiw_lo -p @ -n 200", "-d uiw_lo -p @ -n 200 127.0.0.1"),
];

pub(crate) fn check() -> Result<bool, String> {
    let old = Version::of_commit(&history::last_tag(FIRST_VERSION)?)?;
    let new = Version::of_workspace()?;
    let mut failed = Vec::new();
    for (server, client) in [(&old, &new), (&new, &old)] {
        println!("{} serves {}", server.name, client.name);
        let mut note = |what: &str, done: Outcome<()>| match done {
            Ok(()) => println!("  ok: {what}"),
            Err(why) => {
                failed.push(format!("{} serves {}: {what}: {why}", server.name, client.name));
            }
        };
        match server.serve() {
            Ok((_running, address)) => {
                for words in CLIENTS {
                    note(
                        words,
                        output(&client.command(&client.uiw, &words.replace('@', &address)))
                            .map(drop),
                    );
                }
            }
            Err(error) => note("uiw serve", Err(error)),
        }
        for (name, serving, words) in STOCK {
            if !crate::packages::on_path(name) {
                note(name, Err(Error::Missing("the program".to_owned())));
                continue;
            }
            let end = |version: &Version, words: &str, port: u16| {
                version.command(Path::new(name), &words.replace('@', &port.to_string()))
            };
            let printed =
                pair(0, true, |port| end(server, serving, port), |port| end(client, words, port));
            note(name, printed.map(drop));
        }
    }
    if failed.is_empty() { Ok(true) } else { Err(failed.join("\n")) }
}

impl Version {
    /// Builds the version of a commit, unless it is already built.
    fn of_commit(commit: &str) -> Result<Self, String> {
        let folder = crate::workspace::target()?.join(format!("baseline-{commit}"));
        let (tree, target) = (folder.join("tree"), folder.join("target"));
        if !tree.is_dir() {
            history::export(commit, &tree)?;
        }
        // In early versions, the package of the program had the name of the library.
        let manifest = std::fs::read_to_string(tree.join("cli/Cargo.toml"))
            .map_err(|error| error.to_string())?;
        let package = if manifest.contains("name = \"uiw-cli\"") { "uiw-cli" } else { "uiw" };
        Self::build(commit, &tree, &target, &folder.join("lib"), package)
    }

    fn of_workspace() -> Result<Self, String> {
        let target = crate::workspace::target()?;
        Self::build(
            "this",
            &crate::workspace::root(),
            &target,
            &target.join("release/lib"),
            "uiw-cli",
        )
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

    fn command(&self, program: &Path, words: &str) -> Command {
        let mut command = command_with_libraries(program, &self.libraries);
        command.args(words.split(' '));
        command
    }

    /// Starts `uiw serve`, and returns its process and address.
    fn serve(&self) -> Outcome<(Process, String)> {
        let mut server = start(&self.command(&self.uiw, "serve --listen 127.0.0.1:0"))?;
        let line = server.wait_for("listening on", Duration::from_secs(20))?;
        let address = line.split_whitespace().next_back().unwrap_or_default().to_owned();
        Ok((server, address))
    }
}
