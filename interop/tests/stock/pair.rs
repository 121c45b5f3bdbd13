//! Runs both ends of a program that exchanges its addresses over TCP or connects with rdma_cm.

use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, User, free_port};

/// Runs `program` with `args`, the device and a port as a server and as a client, and returns their
/// output. Returns `None`, and counts the test as skipped, without the program.
#[track_caller]
pub(crate) fn pair(
    network: &Network,
    user: User,
    persona: &str,
    program: &str,
    args: &[&str],
) -> Option<[ProcessEnd; 2]> {
    uiw_interop::require(program)?;
    let libraries = Libraries::get();
    let device = if matches!(network, Network::Loopback) { "uiw_lo" } else { "uiw_veth0" };
    let port = free_port();
    let command = || {
        let mut command = libraries.command(user, program);
        command
            .args(["-d", device, "-p", &port.to_string()])
            .args(args)
            .env("UIW_PERSONA", persona);
        command
    };
    let mut server = Running::start(network.server(command()));
    server.wait_listening(port);
    let mut client = command();
    client.arg(network.server_address().to_string());
    let client = Running::start(network.client(client)).end();
    Some([server.end(), client])
}
