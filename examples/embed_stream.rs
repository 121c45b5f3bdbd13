//! The protocol crates over any reader and writer (here a pair of Unix sockets): a pipe, a TLS session, a serial line, a TCP of your
//! own. No engine, no driver thread. One end opens memory by an STag; the other places octets there with an RDMA Write and says so
//! with a Send.

use ddp::{Header, STag, UntaggedRx};
use mpa::rx::{FpduRx, Step};
use mpa::startup::{Config, Initiator, Negotiated, Outcome, Responder, Rtr};
use mpa::tx::FpduTx;
use rdmap::{Extensions, Inbound, Opcode, QN_SEND, StreamRx};
use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// One end of a connection in Full Operation.
struct Wire<S> {
    stream: S,
    tx: FpduTx,
    rx: FpduRx,
    messages: StreamRx,
    sends: UntaggedRx,
    sent: u32,
    received: Vec<u8>,
}

/// What came.
enum Came {
    /// Octets for tagged memory.
    Write { stag: STag, at: u64, octets: Vec<u8> },
    /// A whole message.
    Send(Vec<u8>),
}

/// More octets from the reader.
fn more(stream: &mut impl Read, octets: &mut Vec<u8>) -> Result<()> {
    let mut block = [0; 4096];
    match stream.read(&mut block)? {
        0 => Err("the stream has ended".into()),
        count => {
            octets.extend_from_slice(&block[..count]);
            Ok(())
        }
    }
}

impl<S: Read + Write> Wire<S> {
    fn new(stream: S, negotiated: &Negotiated, received: Vec<u8>) -> Self {
        Self {
            stream,
            tx: FpduTx::new(negotiated.crc, negotiated.markers_tx),
            rx: FpduRx::new(negotiated.crc, negotiated.markers_rx),
            messages: StreamRx::new(Extensions::default()),
            // RFC 5041 section 5.1: messages on a queue are counted from 1.
            sends: UntaggedRx::new(1),
            sent: 0,
            received,
        }
    }

    fn connect(mut stream: S) -> Result<Self> {
        let initiator = Initiator::new(Config::default(), b"")?;
        stream.write_all(&initiator.request())?;
        let mut received = Vec::new();
        let (used, outcome) = loop {
            more(&mut stream, &mut received)?;
            if let Some(reply) = initiator.reply(&received)? {
                break reply;
            }
        };
        received.drain(..used);
        let Outcome::Accepted { negotiated, .. } = outcome else { return Err("rejected".into()) };
        let mut wire = Self::new(stream, &negotiated, received);
        // RFC 6581 section 9.2: the first FPDU is the initiator's. A Write of nothing names no memory.
        match negotiated.rtr {
            Some(Rtr::Write) => wire.write(STag(1), 0, b"")?,
            None => {}
            Some(other) => return Err(format!("an RTR message of kind {other:?}").into()),
        }
        Ok(wire)
    }

    fn accept(mut stream: S) -> Result<Self> {
        let mut responder = Responder::new(Config::default());
        let mut received = Vec::new();
        let (used, request) = loop {
            more(&mut stream, &mut received)?;
            if let Some(request) = responder.request(&received)? {
                break request;
            }
        };
        received.drain(..used);
        let (reply, negotiated) = responder.accept(&request, &Config::default(), b"")?;
        stream.write_all(&reply)?;
        Ok(Self::new(stream, &negotiated, received))
    }

    fn fpdu(&mut self, header: Header, payload: &[u8]) -> Result<()> {
        let mut octets = vec![0; 2 + header.len()];
        header.emit(&mut octets[2..]);
        octets.extend_from_slice(payload);
        self.tx.seal(&mut octets, 0);
        Ok(self.stream.write_all(&octets)?)
    }

    fn write(&mut self, stag: STag, at: u64, octets: &[u8]) -> Result<()> {
        self.fpdu(Header::Tagged(rdmap::tagged_header(Opcode::Write, stag, at, true)), octets)
    }

    fn send(&mut self, octets: &[u8]) -> Result<()> {
        self.sent += 1;
        let header = rdmap::untagged_header(Opcode::Send, QN_SEND, self.sent, 0, true, 0);
        self.fpdu(Header::Untagged(header), octets)
    }

    /// The next segment; messages here are one segment long.
    fn next(&mut self) -> Result<Came> {
        let (ulpdu, consumed) = loop {
            match self.rx.next(&mut self.received)? {
                Step::Fpdu(fpdu) => break (fpdu.ulpdu.to_vec(), fpdu.consumed),
                Step::NeedMore { .. } => more(&mut self.stream, &mut self.received)?,
            }
        };
        let ulpdu = &ulpdu[..];
        let (header, header_len) = Header::parse(ulpdu)?;
        let octets = ulpdu[header_len..].to_vec();
        let came = match (header, self.messages.admit(&header)?) {
            (Header::Tagged(tagged), Inbound::Write) => {
                Came::Write { stag: tagged.stag, at: tagged.to, octets }
            }
            (Header::Untagged(untagged), Inbound::Send { .. }) => {
                self.sends.check(&untagged, octets.len() as u32, Some(4096))?;
                self.sends.placed(&untagged, octets.len() as u32);
                Came::Send(octets)
            }
            (_, other) => return Err(format!("{other:?} is not for this example").into()),
        };
        self.received.drain(..consumed);
        Ok(came)
    }
}

/// Opens 32 octets, and waits until the other end says that they are there.
fn serve(stream: impl Read + Write) -> Result<()> {
    let mut wire = Wire::accept(stream)?;
    let (name, mut memory) = (STag(0x1234), vec![0; 32]);
    // The initiator's first FPDU comes before anything of ours (RFC 5044 section 7.1.1).
    let Came::Write { octets, .. } = wire.next()? else { return Err("no RTR message".into()) };
    assert!(octets.is_empty());
    wire.send(&name.0.to_be_bytes())?;
    loop {
        match wire.next()? {
            Came::Write { stag, at, octets } => {
                // RFC 5041 section 7.1: name and range are checked before an octet is placed.
                let end = (at as usize).checked_add(octets.len()).filter(|end| *end <= memory.len());
                let (true, Some(end)) = (stag == name, end) else { return Err("not our memory".into()) };
                memory[at as usize..end].copy_from_slice(&octets);
            }
            Came::Send(word) => {
                println!(
                    "{:?}: {:?}",
                    String::from_utf8_lossy(&word),
                    String::from_utf8_lossy(&memory[4..26])
                );
                return Ok(());
            }
        }
    }
}

fn main() -> Result<()> {
    let (here, there) = UnixStream::pair()?;
    let server = std::thread::spawn(move || serve(there));
    let mut wire = Wire::connect(here)?;
    let Came::Send(name) = wire.next()? else { return Err("no name of memory".into()) };
    let name = STag(u32::from_be_bytes(name.try_into().map_err(|_| "a name has four octets")?));
    wire.write(name, 4, b"placed in two ")?;
    wire.write(name, 18, b"segments")?;
    wire.send(b"look")?;
    server.join().map_err(|_| "the server panicked")?
}
