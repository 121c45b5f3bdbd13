//! The TCP connection of a case, and the transcript of its bytes.

use super::values::hex;
use rustix::net::sockopt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Pause between two pieces of a frame, so that TCP sends them in separate segments.
const PIECE_GAP: Duration = Duration::from_millis(1);
/// Time between keepalive probes of a silent stream.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// Number of unanswered keepalive probes after which the stream has failed.
const PROBE_COUNT: u32 = 100;
/// Number of bytes of a frame that a transcript shows.
const MAX_SHOWN_BYTES: usize = 96;
/// Maximum number of lines of a transcript. Lines in the middle are left out.
const MAX_LINES: usize = 200;

/// Kind of the end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Fin,
    Reset,
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    Bytes,
    Ended(Ending),
    Late,
}

/// Network of the connections: TCP, or in tests a simulated network with its own clock.
#[derive(Debug)]
pub(super) struct Network {
    /// Connects, within the given time limit.
    pub(super) connect: fn(SocketAddr, Duration) -> io::Result<Box<dyn Pipe>>,
    pub(super) now: fn() -> Instant,
    pub(super) pause: fn(Duration),
}

/// The kernel's TCP.
pub(super) static TCP: Network =
    Network { connect: TcpLink::connect, now: Instant::now, pause: std::thread::sleep };

/// One end of a stream.
pub(super) trait Pipe: std::fmt::Debug {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Reads bytes that arrive until the given time. Returns 0 at the end of the stream, and `None`
    /// if nothing arrives.
    fn read(&mut self, bytes: &mut [u8], until: Instant) -> io::Result<Option<usize>>;
    fn fin(&mut self);
    fn reset(self: Box<Self>);
}

#[derive(Debug)]
struct TcpLink(TcpStream);

#[derive(Debug)]
pub(super) struct Link {
    network: &'static Network,
    pipe: Box<dyn Pipe>,
    pub(super) inbox: Vec<u8>,
    pub(super) ended: Option<Ending>,
    /// Time that TCP took to connect.
    pub(super) round_trip: Duration,
}

/// Enables keepalive probes. A peer may end the stream by RST, which TCP sends only once; if it is
/// lost, the answer to a probe is another RST.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBE_COUNT)?;
    Ok(())
}

impl TcpLink {
    fn connect(to: SocketAddr, within: Duration) -> io::Result<Box<dyn Pipe>> {
        let stream = TcpStream::connect_timeout(&to, within)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(within))?;
        keep_alive(&stream)?;
        Ok(Box::new(Self(stream)))
    }
}

impl Pipe for TcpLink {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn read(&mut self, bytes: &mut [u8], until: Instant) -> io::Result<Option<usize>> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.0.set_read_timeout(Some(left)).is_err() {
                return Ok(None);
            }
            match self.0.read(bytes) {
                Ok(got) => return Ok(Some(got)),
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn fin(&mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }

    fn reset(self: Box<Self>) {
        let _ = sockopt::set_socket_linger(&self.0, Some(Duration::ZERO));
    }
}

impl Link {
    pub(super) fn connect(
        network: &'static Network,
        to: SocketAddr,
        within: Duration,
    ) -> io::Result<Self> {
        let begun = (network.now)();
        let pipe = (network.connect)(to, within)?;
        let round_trip = (network.now)().saturating_duration_since(begun);
        Ok(Self { network, pipe, inbox: Vec::new(), ended: None, round_trip })
    }

    /// Sends bytes, in pieces of `cut` bytes unless it is 0. Errors are ignored, because bytes that
    /// the peer sent before it ended the stream are still read.
    pub(super) fn send(&mut self, bytes: &[u8], cut: usize) {
        let pieces = bytes.chunks(if cut == 0 { bytes.len().max(1) } else { cut });
        for (number, piece) in pieces.enumerate() {
            if number > 0 {
                (self.network.pause)(PIECE_GAP);
            }
            if self.pipe.write_all(piece).is_err() {
                return;
            }
        }
    }

    pub(super) fn fin(&mut self) {
        self.pipe.fin();
    }

    pub(super) fn reset(self) {
        self.pipe.reset();
    }

    /// Waits for bytes, and appends them to the inbox.
    pub(super) fn receive(&mut self, until: Instant) -> WaitOutcome {
        if let Some(ending) = self.ended {
            return WaitOutcome::Ended(ending);
        }
        let mut bytes = [0; 65_536];
        match self.pipe.read(&mut bytes, until) {
            Ok(None) => WaitOutcome::Late,
            Ok(Some(0)) => {
                self.ended = Some(Ending::Fin);
                WaitOutcome::Ended(Ending::Fin)
            }
            Ok(Some(got)) => {
                self.inbox.extend_from_slice(&bytes[..got]);
                WaitOutcome::Bytes
            }
            Err(_) => {
                self.ended = Some(Ending::Reset);
                WaitOutcome::Ended(Ending::Reset)
            }
        }
    }
}

/// Record of a case, line by line.
#[derive(Clone, Debug)]
pub(super) struct Transcript {
    network: &'static Network,
    begun: Instant,
    lines: Vec<String>,
    left_out: usize,
}

impl Transcript {
    pub(super) fn new(network: &'static Network) -> Self {
        Self { network, begun: (network.now)(), lines: Vec::new(), left_out: 0 }
    }

    /// Adds a frame. `sign` is `>` for a sent and `<` for a received one.
    pub(super) fn frame(&mut self, sign: char, what: &str, bytes: &[u8]) {
        let more = if bytes.len() > MAX_SHOWN_BYTES { ".." } else { "" };
        self.line(&format!(
            "{sign} {what}: {}{more}",
            hex(&bytes[..bytes.len().min(MAX_SHOWN_BYTES)])
        ));
    }

    pub(super) fn line(&mut self, what: &str) {
        if self.lines.len() >= MAX_LINES {
            self.lines.remove(MAX_LINES / 2);
            self.left_out += 1;
        }
        let since = (self.network.now)().saturating_duration_since(self.begun);
        self.lines.push(format!("{:9.6} {what}", since.as_secs_f64()));
    }

    pub(super) fn finish(mut self) -> Vec<String> {
        if self.left_out > 0 {
            self.lines.insert(MAX_LINES / 2, format!("          .. {} lines ..", self.left_out));
        }
        self.lines
    }
}
