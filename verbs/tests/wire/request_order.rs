//! Tests the order of connection requests at a listener. Programs that connect several queue pairs
//! expect the same order at both ends.

use crate::common::{loopback, next_request, plain};
use crate::peer::request;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use uiw_llp::tcp::TcpStack;
use uiw_llp::wrap::{Origin, StackHooks, WrappedStack};
use uiw_llp::{Token, TransportStream};
use uiw_verbs::cm::{CmChannel, ConnRequest, Listener};
use uiw_verbs::{Device, DeviceConfig, Progress};

/// Peers that have connected, and that send their Requests one after the other as soon as the last
/// connection has been accepted.
#[derive(Clone, Default)]
struct LatePeers(Arc<Mutex<OrderedPeers>>);

#[derive(Default)]
struct OrderedPeers {
    connected: Vec<TcpStream>,
    accepted: usize,
}

impl StackHooks for LatePeers {
    type Stream = ();

    fn stream(&self, _: &dyn TransportStream, origin: Origin, _: Token) {
        assert_eq!(origin, Origin::Accepted);
        let mut peers = self.0.lock().unwrap();
        peers.accepted += 1;
        if peers.accepted == peers.connected.len() {
            for stream in &mut peers.connected {
                stream.write_all(&request(1).emit()).unwrap();
            }
        }
    }
}

/// The engine reads the first accepted connections before their Requests arrive.
#[test]
fn requests_during_accepts_reported_in_order() {
    let hooks = LatePeers::default();
    let stack = WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks: hooks.clone() };
    let options = DeviceConfig::default().progress(Progress::Manual);
    let device = Device::with_stack(Box::new(stack), options).unwrap();
    let channel = Arc::<CmChannel>::default();
    let listener = Listener::bind(&device, loopback(), 64, &Arc::new(plain()), &channel).unwrap();
    let connect = |_| TcpStream::connect(listener.local_addr()).unwrap();
    hooks.0.lock().unwrap().connected = (0..5).map(connect).collect();
    let requests: Vec<_> = (0..5).map(|_| next_request(&device, &channel)).collect();
    let expected: Vec<_> = hooks
        .0
        .lock()
        .unwrap()
        .connected
        .iter()
        .map(|stream| stream.local_addr().unwrap())
        .collect();
    assert_eq!(requests.iter().map(ConnRequest::peer_addr).collect::<Vec<_>>(), expected);
}
