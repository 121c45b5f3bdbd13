//! Responder without an engine, which reads and sends the bytes that a test specifies.

use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use uiw::{
    CapabilityExchange, ConnConfig, Connection, ConnectionConfig, FpduSize,
    Revision as VerbsRevision,
};
use uiw_llp::{ListenConfig, Token, TransportListener, TransportStack, TransportStream};
use uiw_mem::{IoVec, IoVecMut};
use uiw_mpa::rx::{FpduRx, Step};
use uiw_mpa::startup::{Responder, Revision, StartupConfig};

use crate::link::Simulation;

pub(crate) const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

/// Responder that reads ULPDUs.
pub(crate) struct Reader {
    pub(crate) stream: Box<dyn TransportStream>,
    rx: FpduRx,
    bytes: Vec<u8>,
    pub(crate) ulpdus: Vec<Vec<u8>>,
    /// Number of bytes of FPDUs that were read.
    pub(crate) read: usize,
}

impl Reader {
    pub(crate) fn read(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(got) = self.stream.recv(&mut [IoVecMut::from(&mut buffer[..])]) {
            if got == 0 {
                break;
            }
            self.bytes.extend_from_slice(&buffer[..got]);
            self.read += got;
        }
        while let Step::Fpdu(fpdu) = self.rx.next(&mut self.bytes).unwrap() {
            let consumed = fpdu.consumed;
            self.ulpdus.push(fpdu.ulpdu.to_vec());
            self.bytes.drain(..consumed);
        }
    }
}

/// Connects our client to a [`Reader`].
pub(crate) fn reader(
    simulation: &Simulation,
    settings: &ConnectionConfig,
) -> (uiw::Pd, Connection, Reader) {
    let mut stack = simulation.network().stack(PEER);
    let mut listener: Box<dyn TransportListener> =
        stack.listen((PEER, 4791).into(), &ListenConfig::default(), Token(0)).unwrap();
    let pd = simulation.client.alloc_pd().unwrap();
    let address = listener.local_addr();
    let (connection, reader) = simulation.run(
        async { Connection::connect(&pd, address, settings).await.unwrap() },
        std::future::poll_fn({
            let mut accepted: Option<(Box<dyn TransportStream>, Vec<u8>)> = None;
            move |_| {
                if accepted.is_none() {
                    accepted = listener.accept(Token(1)).ok().map(|stream| (stream, Vec::new()));
                }
                let Some((mut stream, mut bytes)) = accepted.take() else { return Poll::Pending };
                let mut buffer = [0; 600];
                if let Ok(got) = stream.recv(&mut [IoVecMut::from(&mut buffer[..])]) {
                    bytes.extend_from_slice(&buffer[..got]);
                }
                let config = StartupConfig {
                    revision: Revision::One,
                    crc: true,
                    ..StartupConfig::default()
                };
                let mut responder = Responder::new(config.clone());
                let Some((_, request)) = responder.request(&bytes).unwrap() else {
                    accepted = Some((stream, bytes));
                    return Poll::Pending;
                };
                let (reply, negotiated) = responder.accept(&request, &config, b"").unwrap();
                assert_eq!(stream.send(&[IoVec::from(&reply[..])]).unwrap(), reply.len());
                let rx = FpduRx::new(negotiated.crc, negotiated.markers_rx);
                Poll::Ready(Reader { stream, rx, bytes: Vec::new(), ulpdus: Vec::new(), read: 0 })
            }
        }),
    );
    (pd, connection, reader)
}

pub(crate) fn settings() -> ConnectionConfig {
    let options = ConnConfig::default()
        .revision(VerbsRevision::One)
        .peer_to_peer(false)
        .capabilities(CapabilityExchange::Off)
        .fpdu(FpduSize::Segment);
    ConnectionConfig::default().options(options)
}

pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}
