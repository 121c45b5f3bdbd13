//! Runs the other connection manager programs of Debian's rdmacm-utils.

use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, User, free_port, ordinary};

/// A server and a client program with the options of each.
struct ProgramPair<'a> {
    server: &'a str,
    client: &'a str,
    args: &'a [&'a str],
}

impl ProgramPair<'_> {
    /// Runs both programs; a server that never exits by itself is stopped.
    fn run(&self, network: &Network, user: User, server_ends: bool) -> Option<[ProcessEnd; 2]> {
        uiw_interop::require(self.server)?;
        let libraries = Libraries::get();
        let port = free_port();
        let number = port.to_string();
        let mut command = libraries.command(user, self.server);
        command.args(["-p", &number]).args(self.args);
        let mut server = Running::start(network.server(command));
        server.wait_listening(port);
        let mut command = libraries.command(user, self.client);
        command.args(["-s", &network.server_address().to_string(), "-p", &number]).args(self.args);
        let client = Running::start(network.client(command)).end();
        Some([if server_ends { server.end() } else { server.stop() }, client])
    }

    fn both_end_well(&self) {
        let (Some(veth), Some(user)) = (Network::veth(), ordinary()) else { return };
        for network in [&Network::Loopback, &veth] {
            for user in [User::Same, user] {
                let Some(ends) = self.run(network, user, true) else { return };
                for end in &ends {
                    end.well();
                }
            }
        }
    }
}

#[test]
fn ucmatose_exchanges_messages_on_many_connections() {
    let pair = ProgramPair {
        server: "ucmatose",
        client: "ucmatose",
        args: &["-c", "20", "-C", "30", "-S", "3000"],
    };
    pair.both_end_well();
}

#[test]
fn ucmatose_migrates_ids_between_channels() {
    let args = ["-c", "5", "-C", "3", "-S", "100", "-m"];
    let pair = ProgramPair { server: "ucmatose", client: "ucmatose", args: &args };
    let Some([server, client]) = pair.run(&Network::Loopback, User::Same, true) else { return };
    server.well();
    assert_eq!(client.well().count("migrating to new event channel"), 1);
}

#[test]
fn ucmatose_sets_options() {
    let pair =
        ProgramPair { server: "ucmatose", client: "ucmatose", args: &["-t", "16", "-a", "14"] };
    let Some(ends) = pair.run(&Network::Loopback, User::Same, true) else { return };
    for end in &ends {
        end.well();
    }
}

#[test]
fn cmtime_makes_a_thousand_connections() {
    let pair = ProgramPair { server: "cmtime", client: "cmtime", args: &["-c", "1000"] };
    // Debian's cmtime server never exits by itself.
    let Some([server, client]) = pair.run(&Network::Loopback, User::Same, false) else { return };
    assert_eq!(server.said, "");
    assert_eq!(client.well().count("connect      :"), 1, "{client:?}");
}

#[test]
fn rdma_client_and_server_synchronous_ids() {
    ProgramPair { server: "rdma_server", client: "rdma_client", args: &[] }.both_end_well();
}

#[test]
fn shared_receive_queue_of_rdma_xserver() {
    // The requests of the server share a receive queue. XRC itself is refused, like every transport
    // except RC.
    ProgramPair { server: "rdma_xserver", client: "rdma_xclient", args: &["-c", "r"] }
        .both_end_well();
}

#[test]
fn xserver_with_unshared_client() {
    let pair = ProgramPair { server: "rdma_xserver", client: "rdma_client", args: &[] };
    let Some(ends) = pair.run(&Network::Loopback, User::Same, true) else { return };
    for end in &ends {
        end.well();
    }
}

#[test]
fn missing_iwarp_features_refused() {
    let libraries = Libraries::get();
    let unsupported = "Operation not supported";
    // The programs need UD queue pairs, an XRC domain and datagram sockets.
    for (program, args) in
        [("udaddy", &[] as &[&str]), ("rdma_xserver", &["-c", "x"]), ("udpong", &[])]
    {
        let Some(_) = uiw_interop::require(program) else { return };
        let mut command = libraries.command(User::Same, program);
        command.args(args);
        let ended = Running::start(command).end();
        assert_eq!(ended.code, 255, "what they all say on any error: {ended:?}");
        assert_eq!(ended.count(unsupported), 1, "{ended:?}");
    }
}
