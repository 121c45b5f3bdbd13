//! Runs a test on two hosts.

use super::outcome::{Cases, Outcome};
use super::sets::{Endpoint, Kind};
use crate::reported::isolated;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, WaitLimit, compile, listens};

/// Ports on which servers listen: the connection manager, the name server of datagram endpoints,
/// and `fi_ubertest`. Each host is a namespace of its own, so the ports are free.
const PORTS: [u16; 3] = [9228, 5678, 2710];
/// Time after which a server that does not listen is no longer waited for; some servers never
/// listen.
const LISTENING: Duration = Duration::from_secs(10);
/// Time that the script gives every server to start. A datagram endpoint is registered shortly
/// after its name server begins to listen.
const HEAD_START: Duration = Duration::from_secs(1);
/// Time limit of a test, as in the script, and of a configuration of `fi_ubertest`.
const TEST: Duration = Duration::from_secs(120);
const CONFIGURATION: Duration = Duration::from_secs(900);
/// Time limit for the server to end after its client has ended.
const SERVER_ENDS: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(super) struct Runner {
    folder: PathBuf,
    network: Network,
    libraries: Libraries,
    endpoint: Endpoint,
    persona: &'static str,
    preloaded: Option<PathBuf>,
}

impl Runner {
    pub(super) fn new(
        folder: &Path,
        network: Network,
        libraries: Libraries,
        endpoint: Endpoint,
        persona: &'static str,
    ) -> Self {
        let preloaded = (endpoint == Endpoint::Dgram).then(|| prefix(&libraries)).flatten();
        Self { folder: folder.to_owned(), network, libraries, endpoint, persona, preloaded }
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    pub(super) fn run(&self, kind: Kind, test: &str) -> Outcome {
        let [server, client] = [self.network.server_address(), self.network.client_address()];
        let own = test
            .replace("SERVER_ADDR", &server.to_string())
            .replace("GOOD_ADDR", &server.to_string());
        let own: Vec<_> = own.split(' ').chain(["-p", self.endpoint.provider()]).collect();
        let source = |address: &str| [&own[..], &["-s", address]].concat().join(" ");
        let one =
            || end(Running::start(self.network.server(self.command(&[], &own.join(" ")))), TEST);
        match kind {
            Kind::Unit => Outcome::of_one(&one()),
            Kind::Negative => Outcome::of_negative(&one()),
            Kind::Pair => {
                let options = if MOVE_NOTHING.contains(&test) { &[][..] } else { &["--require"] };
                let [server, client] = [
                    source(&server.to_string()),
                    format!("{} {server}", source(&client.to_string())),
                ]
                .map(|program| self.command(options, &program));
                let [server, client] = self.pair(server, client, TEST);
                Outcome::of(&[&server, &client])
            }
        }
    }

    /// Runs all cases of a configuration of `fi_ubertest`.
    pub(super) fn cases(&self, configuration: &str) -> (Outcome, Cases) {
        let file = self.folder.join(format!("share/fabtests/test_configs/{configuration}.test"));
        let client = format!("fi_ubertest -u {} {}", file.display(), self.network.server_address());
        let [server, client] =
            ["fi_ubertest -x", &client].map(|program| self.command(&["--require"], program));
        let [server, client] = self.pair(server, client, CONFIGURATION);
        Outcome::of_cases(&server, &client)
    }

    /// Returns a command that runs a program with its arguments.
    fn command(&self, options: &[&str], program: &str) -> Command {
        let mut words: Vec<_> = program.split(' ').collect();
        let file = self.folder.join("bin").join(words[0]);
        words[0] = file.to_str().expect("a path of text");
        // One program waits for SIGINT, which a shell ignores for processes in the background.
        words.splice(0..0, ["env", "--default-signal=INT"]);
        let options = [&["--persona", self.persona], options].concat();
        let mut command = isolated(&self.libraries, &options, &words);
        if let Some(preloaded) = &self.preloaded {
            command.env("LD_PRELOAD", preloaded);
        }
        command
    }

    fn pair(&self, server: Command, client: Command, limit: Duration) -> [ProcessEnd; 2] {
        let mut server = Running::start(self.network.server(server));
        let mut waited = WaitLimit::new(LISTENING);
        while !server.has_ended() && !PORTS.iter().any(|port| listens(server.id(), *port)) {
            if waited.is_over() {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        if self.endpoint == Endpoint::Dgram {
            std::thread::sleep(HEAD_START);
        }
        let client = end(Running::start(self.network.client(client)), limit);
        [end(server, SERVER_ENDS), client]
    }
}

/// Compiles the library without which the programs for datagram endpoints do not start.
#[track_caller]
fn prefix(libraries: &Libraries) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/msg_prefix.c");
    compile(libraries, &source, &["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"])
}

/// Tests that only set up connections or send messages of zero bytes.
const MOVE_NOTHING: [&str; 2] = ["fi_cm_data", "fi_shared_ctx -e msg --no-tx-shared-ctx"];

/// Waits until the program ends, and kills it after the time limit.
fn end(mut program: Running, limit: Duration) -> ProcessEnd {
    let mut limit = WaitLimit::new(limit);
    while !program.has_ended() {
        if limit.is_over() {
            return program.stop();
        }
        std::thread::sleep(LOOK_EVERY);
    }
    program.end()
}
