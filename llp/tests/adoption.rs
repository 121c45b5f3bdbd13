//! Streams that a shard of the kernel's TCP does not adopt.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use uiw_llp::tcp::TcpStack;
use uiw_llp::{
    ListenConfig, StackExtensions, Token, TransportConfig, TransportListener, TransportStack, TransportStream,
};
use uiw_testkit::sim::Network;

const LISTENER: Token = Token(1);
const CLIENT: Token = Token(2);
const SERVER: Token = Token(3);
const MOVED: Token = Token(4);

/// Two connected ends in one stack.
struct Pair {
    stack: TcpStack,
    client: Box<dyn TransportStream>,
    server: Box<dyn TransportStream>,
    _listener: Box<dyn TransportListener>,
}

impl Pair {
    fn new() -> Self {
        let mut stack = TcpStack::new().unwrap();
        let local = (Ipv4Addr::LOCALHOST, 0).into();
        let mut listener = stack.listen(local, &ListenConfig::default(), LISTENER).unwrap();
        let options = TransportConfig::default();
        let mut client = stack.connect(None, listener.local_addr(), &options, CLIENT).unwrap();
        let server = loop {
            match listener.accept(SERVER) {
                Ok(server) => break server,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        };
        while !client.connect_result().unwrap() {}
        Self { stack, client, server, _listener: listener }
    }
}

#[test]
fn what_cannot_be_adopted() {
    let mut pair = Pair::new();
    let mut other = pair.stack.shard().unwrap().unwrap();
    let mut kind = |stream: &mut Box<dyn TransportStream>| other.adopt(stream, MOVED).unwrap_err().kind();
    assert_eq!(kind(&mut pair.server), ErrorKind::InvalidInput, "still in its first set");
    let network = Network::new(1);
    let mut simulated = network.stack(Ipv4Addr::LOCALHOST);
    let to = pair.client.peer_addr();
    let mut foreign = simulated.connect(None, to, &TransportConfig::default(), CLIENT).unwrap();
    assert_eq!(kind(&mut foreign), ErrorKind::InvalidInput);
    assert_eq!(foreign.detach().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(simulated.adopt(&mut foreign, MOVED).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(simulated.shard().unwrap().is_none());
    pair.server.detach().unwrap();
    pair.server.abort();
    assert_eq!(kind(&mut pair.server), ErrorKind::NotConnected);
    assert_eq!(pair.server.detach().unwrap_err().kind(), ErrorKind::NotConnected);
}
