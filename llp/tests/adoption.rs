//! Streams that a shard of the kernel's TCP does not adopt.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use uiw_llp::tcp::TcpStack;
use uiw_llp::{StackExtensions, Token, TransportConfig, TransportStack, TransportStream};
use uiw_testkit::sim::Network;

const STREAM: Token = Token(1);
const MOVED: Token = Token(2);

#[test]
fn unsuitable_stream_not_adopted() {
    let mut stack = TcpStack::new().unwrap();
    let (local, config) = ((Ipv4Addr::LOCALHOST, 0).into(), TransportConfig::default());
    let mut stream = stack.connect_self(local, &config, STREAM).unwrap();
    while !stream.connect_result().unwrap() {}
    let mut other = stack.shard().unwrap().unwrap();
    let mut kind =
        |stream: &mut Box<dyn TransportStream>| other.adopt(stream, MOVED).unwrap_err().kind();
    assert_eq!(kind(&mut stream), ErrorKind::InvalidInput, "still in its first set");
    let network = Network::new(1);
    let mut simulated = network.stack(Ipv4Addr::LOCALHOST);
    let mut foreign = simulated.connect(None, stream.peer_addr(), &config, STREAM).unwrap();
    assert_eq!(kind(&mut foreign), ErrorKind::InvalidInput);
    assert_eq!(foreign.detach().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(simulated.adopt(&mut foreign, MOVED).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(simulated.shard().unwrap().is_none());
    stream.detach().unwrap();
    stream.abort();
    assert_eq!(kind(&mut stream), ErrorKind::NotConnected);
    assert_eq!(stream.detach().unwrap_err().kind(), ErrorKind::NotConnected);
}
