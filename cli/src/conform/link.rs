//! The TCP connection of a case: bytes out, bytes in, and what passed.

use super::values::hex;
use rustix::net::sockopt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Between two pieces of a frame that is cut, so that TCP sends them apart.
const BETWEEN_PIECES: Duration = Duration::from_millis(1);
/// Between probes of a silent stream, and how many of them have no answer before the peer is gone.
const PROBES: Duration = Duration::from_secs(2);
const PROBE_COUNT: u32 = 100;
/// Bytes of a frame that a transcript shows.
const SHOWN: usize = 96;
/// Lines of a transcript at most; the front and the end are kept.
const LINES: usize = 200;

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Fin,
    Reset,
}

/// What came of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    Bytes,
    Ended(Ending),
    Late,
}

#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    pub(super) inbox: Vec<u8>,
    pub(super) ended: Option<Ending>,
    /// The time that TCP took to connect.
    pub(super) round_trip: Duration,
}

/// A peer may end the stream by RST, which TCP sends once: where it is lost, the answer to a probe is another one.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBES)?;
    sockopt::set_tcp_keepintvl(stream, PROBES)?;
    sockopt::set_tcp_keepcnt(stream, PROBE_COUNT)?;
    Ok(())
}

impl Link {
    pub(super) fn connect(to: SocketAddr, within: Duration) -> io::Result<Self> {
        let begun = Instant::now();
        let stream = TcpStream::connect_timeout(&to, within)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(within))?;
        keep_alive(&stream)?;
        Ok(Self { stream, inbox: Vec::new(), ended: None, round_trip: begun.elapsed() })
    }

    /// Sends bytes, in pieces of `cut` if it is not 0. A stream that the peer has ended takes nothing: what it said is still read.
    pub(super) fn send(&mut self, bytes: &[u8], cut: usize) {
        let pieces = bytes.chunks(if cut == 0 { bytes.len().max(1) } else { cut });
        for (number, piece) in pieces.enumerate() {
            if number > 0 {
                std::thread::sleep(BETWEEN_PIECES);
            }
            if self.stream.write_all(piece).is_err() {
                return;
            }
        }
    }

    pub(super) fn fin(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub(super) fn reset(self) {
        let _ = sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
    }

    /// Waits for more bytes.
    pub(super) fn more(&mut self, until: Instant) -> More {
        if let Some(ending) = self.ended {
            return More::Ended(ending);
        }
        let mut bytes = [0; 65_536];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stream.set_read_timeout(Some(left)).is_err() {
                return More::Late;
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    self.ended = Some(Ending::Fin);
                    return More::Ended(Ending::Fin);
                }
                Ok(got) => {
                    self.inbox.extend_from_slice(&bytes[..got]);
                    return More::Bytes;
                }
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                Err(_) => {
                    self.ended = Some(Ending::Reset);
                    return More::Ended(Ending::Reset);
                }
            }
        }
    }
}

/// What passed in a case, line by line.
#[derive(Clone, Debug)]
pub(super) struct Transcript {
    begun: Instant,
    lines: Vec<String>,
    left_out: usize,
}

impl Transcript {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), lines: Vec::new(), left_out: 0 }
    }

    /// A frame: `sign` is `>` or `<`.
    pub(super) fn frame(&mut self, sign: char, what: &str, bytes: &[u8]) {
        let more = if bytes.len() > SHOWN { ".." } else { "" };
        self.line(&format!("{sign} {what}: {}{more}", hex(&bytes[..bytes.len().min(SHOWN)])));
    }

    pub(super) fn line(&mut self, what: &str) {
        if self.lines.len() >= LINES {
            self.lines.remove(LINES / 2);
            self.left_out += 1;
        }
        self.lines.push(format!("{:9.6} {what}", self.begun.elapsed().as_secs_f64()));
    }

    pub(super) fn finish(mut self) -> Vec<String> {
        if self.left_out > 0 {
            self.lines.insert(LINES / 2, format!("          .. {} lines ..", self.left_out));
        }
        self.lines
    }
}
