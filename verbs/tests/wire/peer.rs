//! A peer that speaks MPA byte by byte over a plain stream: it sends exactly what a test specifies,
//! right or wrong.

use crate::simulation::SimPort;
use crate::transport::PeerStream;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use uiw_ddp::{Header, STag, Tagged, Untagged};
use uiw_mpa::rx::{FpduRx, Step};
use uiw_mpa::tx::FpduTx;
use uiw_mpa::wire::startup::{Enhanced, Frame, FrameKind};
use uiw_rdmap::{Opcode, ReadRequest, Terminate};

/// Timeout for reads, longer than any expected event takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Peer {
    pub(crate) stream: PeerStream,
    pub(crate) tx: FpduTx,
    pub(crate) rx: FpduRx,
    inbox: Vec<u8>,
    pub(crate) msn: [u32; 4],
}

/// Segment that the peer has received.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) ulpdu: Vec<u8>,
}

impl Segment {
    pub(crate) fn opcode(&self) -> Opcode {
        Opcode::from_raw(self.header.rsvd_ulp() & 15).unwrap()
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.ulpdu[self.header.len()..]
    }

    pub(crate) fn tagged(&self) -> Tagged {
        let Header::Tagged(tagged) = self.header else { panic!("untagged: {self:?}") };
        tagged
    }

    pub(crate) fn untagged(&self) -> Untagged {
        let Header::Untagged(untagged) = self.header else { panic!("tagged: {self:?}") };
        untagged
    }

    pub(crate) fn is_empty_write(&self) -> bool {
        self.opcode() == Opcode::Write && self.payload().is_empty()
    }

    pub(crate) fn read_request(&self) -> ReadRequest {
        assert_eq!(self.opcode(), Opcode::ReadRequest, "{self:?}");
        ReadRequest::parse(self.payload()).unwrap()
    }
}

/// Returns a start-up frame without enhanced data.
pub(crate) fn frame(kind: FrameKind, revision: u8, private_data: &[u8]) -> Frame {
    Frame {
        kind,
        markers: false,
        crc: true,
        reject: false,
        enhanced: None,
        reserved: 0,
        revision,
        private_data: private_data.to_vec(),
    }
}

pub(crate) fn request(revision: u8) -> Frame {
    frame(FrameKind::Request, revision, b"")
}

pub(crate) fn reply(revision: u8) -> Frame {
    frame(FrameKind::Reply, revision, b"")
}

/// Returns enhanced data without the peer-to-peer model.
pub(crate) fn enhanced(ird: u16, ord: u16) -> Enhanced {
    Enhanced { ird, ord, ..Enhanced::default() }
}

pub(crate) fn with(mut frame: Frame, enhanced: Enhanced) -> Frame {
    frame.enhanced = Some(enhanced);
    frame
}

impl Peer {
    pub(crate) fn new(stream: PeerStream) -> Self {
        let (tx, rx) = (FpduTx::new(true, false), FpduRx::new(true, false));
        Self { stream, tx, rx, inbox: Vec::new(), msn: [1; 4] }
    }

    pub(crate) fn connect(to: SocketAddr) -> Self {
        Self::new(PeerStream::connect(to).unwrap())
    }

    /// Connects to a listener and sends it the Request.
    pub(crate) fn requesting(to: SocketAddr, request: &Frame) -> Self {
        let mut peer = Self::connect(to);
        peer.raw(&request.emit());
        peer
    }

    /// Enters Full Operation.
    pub(crate) fn full(&mut self, crc: bool, markers_tx: bool, markers_rx: bool) {
        self.tx = FpduTx::new(crc, markers_tx);
        self.rx = FpduRx::new(crc, markers_rx);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Returns the FPDU that contains `ulpdu` without sending it.
    pub(crate) fn seal(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0];
        bytes.extend_from_slice(ulpdu);
        self.tx.seal(&mut bytes, 0);
        bytes
    }

    pub(crate) fn fpdu(&mut self, ulpdu: &[u8]) {
        let bytes = self.seal(ulpdu);
        self.raw(&bytes);
    }

    fn next_msn(&mut self, qn: u32) -> u32 {
        let msn = &mut self.msn[qn as usize];
        *msn = msn.wrapping_add(1);
        msn.wrapping_sub(1)
    }

    pub(crate) fn send(&mut self, payload: &[u8]) {
        let msn = self.next_msn(0);
        self.fpdu(&untagged(Opcode::Send, 0, msn, 0, true, 0, payload));
    }

    pub(crate) fn write(&mut self, stag: u32, to: u64, payload: &[u8]) {
        self.fpdu(&tagged(Opcode::Write, stag, to, true, payload));
    }

    pub(crate) fn empty_write(&mut self) {
        self.write(1, 0, b"");
    }

    pub(crate) fn read(&mut self, source: u32, to: u64, len: u32) {
        let msn = self.next_msn(1);
        self.fpdu(&read_request(msn, source, to, len));
    }

    /// Sends the whole Read Response in one segment.
    pub(crate) fn answer(&mut self, read: &ReadRequest, payload: &[u8]) {
        self.fpdu(&tagged(Opcode::ReadResponse, read.sink_stag.0, read.sink_to, true, payload));
    }

    pub(crate) fn fin(&mut self) {
        self.stream.shutdown().unwrap();
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset(self) {
        self.stream.reset();
    }

    /// Reads more bytes; returns false at the end of the stream.
    fn more(&mut self) -> bool {
        let mut bytes = [0; 65536];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(got) => {
                    self.inbox.extend_from_slice(&bytes[..got]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    pub(crate) fn startup_frame(&mut self) -> Frame {
        loop {
            if let Some((frame, used)) = Frame::parse(&self.inbox).unwrap() {
                self.inbox.drain(..used);
                return frame;
            }
            assert!(self.more(), "closed before a start-up frame");
        }
    }

    /// Reads the next FPDU, or returns `None` if the stream has ended between two FPDUs.
    pub(crate) fn next(&mut self) -> Option<Segment> {
        loop {
            match self.rx.next(&mut self.inbox).expect("a well-formed FPDU") {
                Step::Fpdu(fpdu) => {
                    let (ulpdu, consumed) = (fpdu.ulpdu.to_vec(), fpdu.consumed);
                    self.inbox.drain(..consumed);
                    let (header, _) = Header::parse(&ulpdu).expect("a DDP header");
                    return Some(Segment { header, ulpdu });
                }
                Step::NeedMore { .. } => {
                    if !self.more() {
                        assert!(self.inbox.is_empty(), "ended inside an FPDU: {:02x?}", self.inbox);
                        return None;
                    }
                }
            }
        }
    }

    /// Reads the next FPDU that is not a capability request.
    pub(crate) fn expect_fpdu(&mut self) -> Segment {
        loop {
            let segment = self.next().expect("an FPDU, not the end");
            if !segment.is_empty_write() {
                return segment;
            }
        }
    }

    /// Expects a Terminate with these codes, preceded by nothing but capability requests and
    /// followed by the end of the stream.
    pub(crate) fn expect_terminate(&mut self, layer: u8, etype: u8, code: u8) -> Terminate {
        let segment = self.expect_fpdu();
        let terminate = terminate_of(&segment);
        assert_eq!(
            (terminate.layer, terminate.etype, terminate.code),
            (layer, etype, code),
            "{terminate:?}"
        );
        self.expect_close();
        terminate
    }

    /// Expects the end of the stream without another FPDU.
    pub(crate) fn expect_close(&mut self) {
        if let Some(segment) = self.next() {
            panic!("an FPDU instead of the end: {segment:?}");
        }
    }

    /// Asserts that nothing arrives for `millis`, and that the stream stays open.
    pub(crate) fn expect_silence(&mut self, millis: u64) {
        assert!(self.inbox.is_empty(), "{:02x?}", self.inbox);
        self.stream.set_read_timeout(Duration::from_millis(millis));
        let mut byte = [0; 64];
        match self.stream.read(&mut byte) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            other => panic!("not silent: {other:?} {byte:02x?}"),
        }
        self.stream.set_read_timeout(TIMEOUT);
    }

    /// Returns all bytes up to the end of the stream.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.more() {}
        std::mem::take(&mut self.inbox)
    }
}

pub(crate) fn terminate_of(segment: &Segment) -> Terminate {
    assert_eq!(segment.opcode(), Opcode::Terminate, "{segment:?}");
    let header = segment.untagged();
    assert_eq!((header.qn, header.msn, header.mo, header.last), (2, 1, 0, true));
    assert_eq!((header.rsvd_ulp, header.rsvd_ulp32), (0x47, 0));
    Terminate::parse(segment.payload()).unwrap()
}

pub(crate) fn tagged(opcode: Opcode, stag: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = uiw_rdmap::tagged_header(opcode, STag(stag), to, last).emit().to_vec();
    ulpdu.extend_from_slice(payload);
    ulpdu
}

pub(crate) fn untagged(
    opcode: Opcode,
    qn: u32,
    msn: u32,
    mo: u32,
    last: bool,
    ulp: u32,
    payload: &[u8],
) -> Vec<u8> {
    let mut ulpdu = uiw_rdmap::untagged_header(opcode, qn, msn, mo, last, ulp).emit().to_vec();
    ulpdu.extend_from_slice(payload);
    ulpdu
}

pub(crate) fn read_request(msn: u32, source: u32, to: u64, len: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: STag(0x51),
        sink_to: 0x1000,
        len,
        source_stag: STag(source),
        source_to: to,
    };
    untagged(Opcode::ReadRequest, 1, msn, 0, true, 0, &request.emit())
}

pub(crate) fn terminate(layer: u8, etype: u8, code: u8) -> Vec<u8> {
    untagged(Opcode::Terminate, 2, 1, 0, true, 0, &[layer << 4 | etype, code, 0, 0])
}

/// Port on which scripted peers wait for connections from a device.
pub(crate) enum Port {
    Tcp(TcpListener),
    Simulated(SimPort),
}

impl Port {
    /// Creates a port on the simulated network.
    pub(crate) fn new() -> Self {
        Self::Simulated(SimPort::new())
    }

    /// Creates a port on the kernel's TCP.
    pub(crate) fn tcp() -> Self {
        Self::Tcp(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        match self {
            Self::Tcp(listener) => listener.local_addr().unwrap(),
            Self::Simulated(port) => port.addr(),
        }
    }

    pub(crate) fn accept(&self) -> Peer {
        Peer::new(match self {
            Self::Tcp(listener) => PeerStream::tcp(listener.accept().unwrap().0),
            Self::Simulated(port) => {
                PeerStream::Simulated(port.accept(TIMEOUT).expect("a connection"))
            }
        })
    }

    /// Returns whether no connection arrives for `millis` milliseconds.
    pub(crate) fn is_quiet(&self, millis: u64) -> bool {
        let time = Duration::from_millis(millis);
        let listener = match self {
            Self::Tcp(listener) => listener,
            Self::Simulated(port) => return port.accept(time).is_none(),
        };
        listener.set_nonblocking(true).unwrap();
        let until = Instant::now() + time;
        while Instant::now() < until {
            if listener.accept().is_ok() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}
