//! Two network namespaces, connected by a veth or by `uiw wan`, and programs at both ends.

use super::programs::{ExampleProgram, Lab, clean_command, figure, json_object, output, start};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use uiw_interop::stock::{Network, free_port};
use uiw_siw::shell::Process;
use uiw_siw::{Error, Result};

/// Maximum time that a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Network of a benchmark, and the programs that run at its ends.
pub(super) struct BenchNetwork {
    pub(super) uiw: PathBuf,
    /// Example of `uiw-llp`, which transfers bytes over the kernel's TCP or smoltcp, without RDMA.
    pub(super) bare: PathBuf,
    pub(super) network: Network,
    /// Folder of keys and configurations.
    pub(super) home: PathBuf,
}

impl BenchNetwork {
    /// Creates the network. With `is_long`, it has a third namespace between the ends, in which the
    /// emulator carries the frames.
    pub(super) fn new(lab: &Lab, is_long: bool) -> Result<Self> {
        let network = if is_long { Network::path() } else { Network::veth() };
        let network = network
            .ok_or_else(|| Error::Missing("network namespaces: run it as root".to_owned()))?;
        let bare = lab.example(ExampleProgram::Bare)?;
        Ok(Self { uiw: lab.uiw()?, bare, network, home: lab.fresh_folder("home")? })
    }

    /// Runs `ip` at the server and at the client. `words` returns the arguments: for the server it
    /// is called with 1, for the client with 2.
    pub(super) fn ip(&self, words: impl Fn(u8) -> String) -> Result<()> {
        for (place, host) in
            [(Network::server as fn(&Network, Command) -> Command, 1), (Network::client, 2)]
        {
            let mut ip = Command::new("ip");
            ip.args(words(host).split(' '));
            output(&place(&self.network, ip))?;
        }
        Ok(())
    }

    /// Returns the address of the server with an unused port.
    pub(super) fn address(&self) -> String {
        format!("{}:{}", self.network.server_address(), free_port())
    }

    /// Returns a command of `uiw` or `bare`. The arguments are separated by spaces.
    pub(super) fn command(&self, program: &Path, words: &str) -> Command {
        let mut command = clean_command(program);
        command
            .env("XDG_CONFIG_HOME", &self.home)
            .current_dir(&self.home)
            .args(words.split_whitespace());
        command
    }

    /// Starts an emulator, which carries frames until the value is dropped.
    pub(super) fn carry(&self, options: &str) -> Result<Process> {
        let command =
            self.command(&self.uiw, &format!("wan server client --json --realtime {options}"));
        start_and_wait(&self.network.middle(command), "carrying")
    }

    /// Starts a server, and waits until it prints `says`.
    pub(super) fn serve(&self, command: Command, says: &str) -> Result<Process> {
        start_and_wait(&self.network.server(command), says)
    }

    /// Runs a client to its end.
    pub(super) fn run(&self, command: Command) -> Result<String> {
        output(&self.network.client(command))
    }

    /// Measures `uiw perf`, with these arguments of the server and the client.
    pub(super) fn perf(&self, server: &str, client: &str) -> Result<f64> {
        let _server = self.serve(self.command(&self.uiw, server), "listening on")?;
        stream_figure(&json_object(&self.run(self.command(&self.uiw, client))?)?)
    }

    /// Measures the kernel's TCP. `verb` is `connect` (a stream, with writes of `size` bytes) or
    /// `ping`.
    pub(super) fn tcp(
        &self,
        at: &str,
        congestion: &str,
        verb: &str,
        seconds: f64,
        size: u32,
    ) -> Result<f64> {
        let _server = self.serve(
            self.command(&self.bare, &format!("tcp {congestion} listen {at}")),
            "listening",
        )?;
        let client = format!("tcp {congestion} {verb} {at} {seconds} {size}");
        stream_figure(&json_object(&self.run(self.command(&self.bare, &client))?)?)
    }
}

fn start_and_wait(command: &Command, says: &str) -> Result<Process> {
    let mut process = start(command)?;
    process.wait_for(says, START_TIMEOUT)?;
    Ok(process)
}

/// Returns the bytes per second of a stream, or the microseconds of a round trip.
pub(super) fn stream_figure(value: &Value) -> Result<f64> {
    figure(value, "/bytes_per_second").or_else(|_| figure(value, "/round_trip_us/p50"))
}
