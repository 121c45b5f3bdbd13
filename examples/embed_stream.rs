//! Complete peer over any reader and writer, such as a pipe, a TLS session, a serial line or your
//! own TCP; here it is a pair of Unix sockets.
//!
//! It uses neither the engine nor a driver thread, but one `uiw::stream::RdmapStream`, and a host
//! (`embed_host.rs`) with the memory, the requests and the receives. `embed_exchange.rs` has the
//! messages that the two ends exchange.

#[path = "embed_exchange.rs"]
mod embed_exchange;
#[path = "embed_host.rs"]
mod embed_host;

use embed_exchange::{AnyError, SINK};
use embed_host::Peer;
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use uiw::stream::{RdmapConfig, RdmapStream, Time, Transmit};

/// Runs a stream to its end. Reads must time out, so that the stream's deadlines are handled.
/// `shut_down` ends the sending half of the transport.
fn run<T: Read + Write>(
    mut transport: T,
    shut_down: impl Fn(&T) -> std::io::Result<()>,
    mut stream: RdmapStream<Vec<u8>>,
    mut peer: Peer,
) -> Result<Peer, AnyError> {
    let start = Instant::now();
    let now = || Time::from_nanos(start.elapsed().as_nanos() as u64);
    let (mut unread, mut block) = (Vec::new(), [0; 4096]);
    stream.handle_connected(now());
    loop {
        if stream.poll_timeout() <= now() {
            stream.handle_timeout(&mut peer, now());
        }
        while let Some(transmit) = stream.poll_transmit(&mut peer, now()) {
            let mut bytes = Vec::new();
            match transmit {
                Transmit::Bytes(batch) => batch.append_to(&mut bytes),
                Transmit::Fin => shut_down(&transport)?,
            }
            transport.write_all(&bytes)?;
            stream.handle_sent(&mut peer, bytes.len(), now());
        }
        while let Some(event) = stream.poll_event() {
            peer.on_event(event, &mut stream, now())?;
        }
        if stream.is_over() {
            return Ok(peer);
        }
        // Bytes that arrived together with a startup frame belong to Full Operation. They are
        // processed after the host has handled the event of the frame.
        let used = stream.handle_bytes(&mut peer, &mut unread, now());
        unread.drain(..used);
        if used > 0 || !stream.accepts_bytes() {
            continue;
        }
        match transport.read(&mut block) {
            Ok(0) => stream.handle_eof(&mut peer, unread.len(), now()),
            Ok(count) => unread.extend_from_slice(&block[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn main() -> Result<(), AnyError> {
    let (here, there) = UnixStream::pair()?;
    for end in [&here, &there] {
        end.set_read_timeout(Some(Duration::from_millis(10)))?;
    }
    let shut_down = |end: &UnixStream| end.shutdown(std::net::Shutdown::Write);
    let stream = RdmapStream::listen(RdmapConfig::default(), SINK, Time::default());
    let responder = std::thread::spawn(move || run(there, shut_down, stream, Peer::responder()));
    let nonce = RandomState::new().hash_one(0);
    let stream = RdmapStream::connect(RdmapConfig::default(), b"", SINK, nonce, Time::default())?;
    let initiator = run(here, shut_down, stream, Peer::default())?;
    let responder = responder.join().map_err(|_| "the responder panicked")??;
    embed_exchange::report(&initiator, &responder);
    Ok(())
}
