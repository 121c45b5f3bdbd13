//! Two network namespaces with an emulated path between them.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use uiw_interop::stock::Network as Namespaces;

use super::output;

/// What both ends reach each other by.
const ROUTE: &str = "10.77.0.0/24";

/// The namespaces of a server and a client, and one between them.
pub(super) struct Network {
    spaces: Namespaces,
    uiw: PathBuf,
}

impl Network {
    pub(super) fn new(uiw: &Path) -> Result<Self, String> {
        let spaces = Namespaces::path().ok_or("no network namespaces: run it as root")?;
        let network = Self { spaces, uiw: uiw.to_owned() };
        // A connection would begin with what the one before has measured.
        network.set("tcp_no_metrics_save", "1")?;
        Ok(network)
    }

    /// Sets a variable of TCP at both ends.
    fn set(&self, name: &str, value: &str) -> Result<(), String> {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        let write = || fs::write(&path, value);
        let done = self.spaces.inside_server(write).and_then(|()| self.spaces.inside_client(write));
        done.map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The congestion control of programs that choose none. By the route, as a namespace's own default is restricted (tcp(7),
    /// `tcp_allowed_congestion_control`).
    pub(super) fn set_congestion(&self, name: &str) -> Result<(), String> {
        let route = || {
            let mut command = Command::new("ip");
            command.args(["route", "replace", ROUTE, "dev", "veth0", "congctl", name]);
            command
        };
        output(self.server(route())).and_then(|_| output(self.client(route()))).map(drop)
    }

    pub(super) fn server_address(&self) -> Ipv4Addr {
        self.spaces.server_address()
    }

    pub(super) fn server(&self, command: Command) -> Command {
        self.spaces.server(command)
    }

    pub(super) fn client(&self, command: Command) -> Command {
        self.spaces.client(command)
    }

    /// A listener at the server's end.
    pub(super) fn listen(&self) -> Result<TcpListener, String> {
        let address = (self.server_address(), 0);
        self.spaces
            .inside_server(|| TcpListener::bind(address))
            .map_err(|error| format!("listening: {error}"))
    }

    /// A connection of the client's to `listener`.
    pub(super) fn connect(&self, listener: &TcpListener) -> Result<TcpStream, String> {
        let to = listener.local_addr();
        self.spaces
            .inside_client(|| to.and_then(TcpStream::connect))
            .map_err(|error| format!("connecting: {error}"))
    }

    /// Carries frames from now on, as `options` of `uiw wan` say.
    pub(super) fn carry(&self, options: &[String]) -> Result<Emulator, String> {
        let mut command = Command::new(&self.uiw);
        command.args(["wan", "server", "client", "--json", "--realtime"]).args(options);
        let mut command = self.spaces.middle(command);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("{command:?}: {error}"))?;
        let mut said = BufReader::new(child.stdout.take().ok_or("the emulator has no output")?);
        let mut line = String::new();
        let read = said.read_line(&mut line);
        let emulator = Emulator { child, said };
        match read {
            Ok(_) if line.contains("carrying") => Ok(emulator),
            _ => Err(format!("the emulator does not carry frames: {}", line.trim())),
        }
    }
}

/// An emulator that carries frames. Killed when dropped.
pub(super) struct Emulator {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

/// What became of frames, by the end of an emulator.
pub(super) struct Counts {
    /// Bytes that reached the client, headers of every frame included.
    pub(super) to_client: u64,
}

impl Emulator {
    /// Ends it.
    pub(super) fn end(mut self) -> Result<Counts, String> {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or("no process")?;
        kill_process(id, Signal::INT).map_err(|error| format!("ending the emulator: {error}"))?;
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).map_err(|error| format!("the emulator: {error}"))?;
        let last = rest.lines().last().unwrap_or_default();
        let value: Value =
            serde_json::from_str(last).map_err(|error| format!("the emulator: {error}: {last}"))?;
        let way = value["ways"].as_array().and_then(|ways| ways.iter().find(|way| way["to"] == "client"));
        let way = way.ok_or("the emulator has no counts")?;
        if way["missed"] != 0 {
            eprintln!("warning: {} frames came faster than the emulator took them", way["missed"]);
        }
        let to_client = way["delivered_bytes"].as_u64().ok_or("the emulator has no counts")?;
        Ok(Counts { to_client })
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
