//! A server and a client of one measurement, as two processes.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use uiw_interop::stock::{free_port, listens};
use uiw_siw::shell::{self, Process};

/// The longest that one program may run.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to listen.
const LISTENING: Duration = Duration::from_secs(10);

/// A program that dies with us, however we end.
pub(super) fn with_us(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

/// What a server does when its client has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    Ends,
    Stays,
}

/// Runs a server, which `command` makes of a free port, and then a client; gives what the client says. Both are gone afterwards. The server listens at the
/// port `above` that one.
pub(super) fn pair(
    name: &str,
    kind: Server,
    above: u16,
    command: impl Fn(u16, bool) -> Command,
) -> Result<String, String> {
    let port = free_port();
    let text = |error: uiw_siw::Error| error.to_string();
    let mut server = Process::start(&mut command(port, false)).map_err(text)?;
    let until = Instant::now() + LISTENING;
    while !listens(server.id(), port + above) {
        if !server.is_running() || Instant::now() > until {
            let said = server.finish(Duration::ZERO);
            return Err(format!("{name}: its server does not listen: {}", said.last_line()));
        }
        thread::sleep(Duration::from_millis(2));
    }
    let client = shell::run(&mut command(port, true), TIMEOUT).map_err(text)?;
    if kind == Server::Stays && client.is_ok() {
        return Ok(client.out);
    }
    let server = server.finish(LISTENING);
    match (client.is_ok(), server.is_ok()) {
        (true, true) => Ok(client.out),
        (false, _) => Err(format!("{name}: exit code {}: {}", client.status, client.last_line())),
        (true, false) => Err(format!("{name}'s server: exit code {}: {}", server.status, server.last_line())),
    }
}
