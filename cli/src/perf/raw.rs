//! Raw TCP for comparison with a measurement, between the same processes and as fast as sockets
//! permit.

use crate::shared::args::PeerConfig;
use crate::shared::fail::{Failure, Refusal, Result, printable};
use crate::shared::qp_setup::{PendingQp, QueueDepths, WaitMode};
use crate::shared::service::{ComparisonReply, RawTcpMode, RawTcpOrder, Service};
use crate::shared::spin::Spin;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use uiw::raw::{ConnConfig, Device, Pd};
use uiw_mpa::startup::{Initiator, Outcome, Revision, StartupConfig};
use uiw_mpa::wire::startup::HEADER_LEN;

pub(crate) use uiw_llp::process_cpu_ns as cpu_ns;

/// Largest buffer of a reader or writer, in bytes.
pub(crate) const MAX_BUFFER: u32 = 4 << 20;
/// Maximum size of the memory that a connection sends from or receives into, in bytes.
pub(crate) const MAX_MEMORY: u32 = 64 << 20;
/// Maximum number of connections of a comparison at a time: one for each direction.
pub(crate) const AT_ONCE: usize = 2;
/// Minimum number of bytes that a reader asks for, so that many small writes are read together.
const MIN_READ: usize = 64_000;
/// Time limit for a read or write, in case the peer stops.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Direction in which the bytes of a measurement go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawDirection {
    ToServer,
    ToClient,
    /// Both directions at the same time, each on its own connection.
    Both,
}

/// Sets time-outs, TCP_NODELAY and the congestion control of a stream.
pub(crate) fn set_stream_options(
    stream: &TcpStream,
    timeout: Duration,
    congestion: Option<&str>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    match congestion {
        Some(name) => Ok(rustix::net::sockopt::set_tcp_congestion(stream, name)?),
        None => Ok(()),
    }
}

/// Connects a TCP socket. The SYN announces the segment size, so it limits both directions.
fn connect_tcp(peer: SocketAddr, mss: Option<u16>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(bytes) = mss {
        socket.set_tcp_mss(bytes.into())?;
    }
    socket.connect(&peer.into())?;
    Ok(socket.into())
}

/// Performs the start-up of MPA, with which an iWARP port accepts raw TCP (docs/compatibility.md):
/// the private data of the Request contains an order, and the server answers with a Reply. No byte
/// after the Reply is read.
fn exchange_startup(stream: &mut TcpStream, order: &[u8]) -> io::Result<()> {
    // No FPDU follows, so nothing needs to be negotiated.
    let config = StartupConfig {
        revision: Revision::One,
        peer_to_peer: false,
        crc: false,
        ..StartupConfig::default()
    };
    let initiator = Initiator::new(config, order).map_err(io::Error::other)?;
    stream.write_all(&initiator.request())?;
    let mut reply = vec![0; HEADER_LEN];
    stream.read_exact(&mut reply)?;
    loop {
        let outcome = initiator
            .reply(&reply)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        match outcome {
            Some((_, Outcome::Accepted { .. })) => return Ok(()),
            Some((_, Outcome::Rejected { private_data, .. })) => {
                let why = format!("the peer rejected it, saying \"{}\"", printable(&private_data));
                return Err(io::Error::other(why));
            }
            None => {
                let mut next = [0];
                stream.read_exact(&mut next)?;
                reply.extend(next);
            }
        }
    }
}

/// Memory that is used piece by piece and begins again at its start after the last piece.
pub(crate) struct PieceRing {
    bytes: Vec<u8>,
    piece: usize,
    at: usize,
}

impl PieceRing {
    pub(crate) fn new(piece: usize, memory: u32) -> Self {
        Self { bytes: vec![0xA5; piece.max(memory as usize)], piece, at: 0 }
    }

    /// Returns the size of a reader's ring in bytes. A writer's ring is not larger.
    pub(crate) fn reader_len(buffer: u32, memory: u32) -> usize {
        (buffer.max(memory) as usize).max(MIN_READ)
    }

    /// Creates the ring of a reader, with pieces large enough to read many small writes together.
    pub(crate) fn for_reader(buffer: u32, memory: u32) -> Self {
        Self::new((buffer as usize).max(MIN_READ), memory)
    }

    pub(crate) fn next(&mut self) -> &mut [u8] {
        if self.at + self.piece > self.bytes.len() {
            self.at = 0;
        }
        let start = self.at;
        self.at += self.piece;
        &mut self.bytes[start..self.at]
    }
}

pub(crate) fn write_until(
    stream: &mut TcpStream,
    ring: &mut PieceRing,
    deadline: Instant,
) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        stream.write_all(ring.next())?;
        bytes += ring.piece as u64;
        if Instant::now() >= deadline {
            return Ok(bytes);
        }
    }
}

/// Reads one whole message. Returns false at the end of the stream.
pub(crate) fn read_message(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
    match stream.read_exact(buffer) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

/// Like [`read_message`], but polls a non-blocking socket.
pub(crate) fn read_spinning(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    timeout: Duration,
) -> io::Result<bool> {
    let mut got = 0;
    let mut spin = Spin::default();
    while got < buffer.len() {
        match stream.read(&mut buffer[got..]) {
            Ok(0) => return Ok(false),
            Ok(n) => {
                got += n;
                spin.restart();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => pause(&mut spin, timeout)?,
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

pub(crate) fn write_spinning(
    stream: &mut TcpStream,
    mut bytes: &[u8],
    timeout: Duration,
) -> io::Result<()> {
    let mut spin = Spin::default();
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => {
                bytes = &bytes[n..];
                spin.restart();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => pause(&mut spin, timeout)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits between two polls. Implements the time-out, which non-blocking sockets do not have.
fn pause(spin: &mut Spin, timeout: Duration) -> io::Result<()> {
    if spin.on_empty_poll() < timeout { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

/// Keeps the last eight bytes of a stream, which are the server's answer after the data.
fn keep_last(last: &mut [u8; 8], bytes: &[u8]) {
    let new = bytes.len().min(last.len());
    last.copy_within(new.., 0);
    last[8 - new..].copy_from_slice(&bytes[bytes.len() - new..]);
}

/// Result of a measurement on a raw connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawMeasurement {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_client_ns: u64,
    pub(crate) cpu_server_ns: u64,
}

impl RawMeasurement {
    /// Ends a measurement that began at `start`, when this process had used `cpu` nanoseconds.
    /// `answer` is the processor time of the server.
    fn since(start: Instant, cpu: u64, bytes: u64, answer: [u8; 8]) -> Self {
        Self {
            bytes,
            seconds: start.elapsed().as_secs_f64(),
            cpu_client_ns: cpu_ns() - cpu,
            cpu_server_ns: u64::from_be_bytes(answer),
        }
    }

    pub(crate) fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// Client of a comparison, with the token that admits its raw connections to the server.
#[derive(Clone, Debug)]
pub(crate) struct RawTcpClient {
    server: SocketAddr,
    token: u64,
    congestion: Option<String>,
    /// Maximum segment size of TCP, in bytes.
    mss: Option<u16>,
}

impl RawTcpClient {
    /// Asks `peer` to accept raw TCP on its port. The returned connection must live as long as the
    /// client.
    pub(crate) fn open(
        device: &Device,
        pd: &Pd,
        peer: SocketAddr,
        peer_options: &PeerConfig,
    ) -> Result<(Self, crate::shared::qp_setup::Link)> {
        let pending = PendingQp::new(device, pd, &QueueDepths::new(1, 1))?;
        let (congestion, mss) =
            (peer_options.congestion.clone(), peer_options.own.stream.max_segment);
        let mut options = ConnConfig::default();
        options.stream.max_segment = mss;
        let asked = pending.connect(peer, &options, &Service::Comparison.private_data());
        let link = asked.map_err(|failure| match failure.refusal {
            Some(Refusal::Rejected) => failure.with_fix(
                "the `uiw serve` there must be of this version, on the kernel's TCP and without TLS (docs/wan.md)",
            ),
            _ => failure,
        })?;
        let reply: ComparisonReply = serde_json::from_slice(&link.info.private_data)
            .map_err(|_| Failure::lost(peer, "accepted, but is no `uiw serve`"))?;
        Ok((Self { server: peer, token: reply.token, congestion, mss }, link))
    }

    fn connect(
        &self,
        kind: RawTcpMode,
        buffer: u32,
        memory: u32,
        time: Duration,
    ) -> io::Result<TcpStream> {
        let mut stream = connect_tcp(self.server, self.mss)?;
        set_stream_options(&stream, TIMEOUT, self.congestion.as_deref())?;
        let order = Service::RawTcp(RawTcpOrder {
            token: self.token,
            kind,
            buffer,
            memory: memory.min(MAX_MEMORY),
            millis: u32::try_from(time.as_millis()).unwrap_or(u32::MAX),
            congestion: self.congestion.clone(),
        });
        exchange_startup(&mut stream, &order.private_data())?;
        Ok(stream)
    }

    fn failed(&self, error: io::Error) -> Failure {
        Failure::lost(format!("raw TCP to {}", self.server), error)
    }

    /// Measures the throughput of one slice on new connections, with writes of `buffer` bytes from
    /// and to `memory` bytes of memory.
    pub(crate) fn measure_slice(
        &self,
        direction: RawDirection,
        buffer: u32,
        memory: u32,
        time: Duration,
    ) -> Result<RawMeasurement> {
        match direction {
            RawDirection::ToServer => self.write(buffer, memory, time),
            RawDirection::ToClient => self.read(buffer, memory, time),
            RawDirection::Both => self.both(buffer, memory, time),
        }
        .map_err(|error| self.failed(error))
    }

    /// Measures both directions at the same time. Returns the sum of the bytes, the longer time,
    /// and the larger processor times. Each processor time is that of the whole process, so the two
    /// must not be added.
    fn both(&self, buffer: u32, memory: u32, time: Duration) -> io::Result<RawMeasurement> {
        let (a, b) = std::thread::scope(|scope| {
            let other = scope.spawn(|| self.read(buffer, memory, time));
            let this = self.write(buffer, memory, time);
            let panicked = |_| Err(io::Error::other("the reader's thread panicked"));
            (this, other.join().unwrap_or_else(panicked))
        });
        let (a, b) = (a?, b?);
        Ok(RawMeasurement {
            bytes: a.bytes + b.bytes,
            seconds: a.seconds.max(b.seconds),
            cpu_client_ns: a.cpu_client_ns.max(b.cpu_client_ns),
            cpu_server_ns: a.cpu_server_ns.max(b.cpu_server_ns),
        })
    }

    fn write(&self, buffer: u32, memory: u32, time: Duration) -> io::Result<RawMeasurement> {
        let mut ring = PieceRing::new(buffer as usize, memory);
        let mut stream = self.connect(RawTcpMode::ToServer, buffer, memory, time)?;
        let (cpu, start) = (cpu_ns(), Instant::now());
        let bytes = write_until(&mut stream, &mut ring, start + time)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        Ok(RawMeasurement::since(start, cpu, bytes, answer))
    }

    fn read(&self, buffer: u32, memory: u32, time: Duration) -> io::Result<RawMeasurement> {
        let mut ring = PieceRing::for_reader(buffer, memory);
        let mut stream = self.connect(RawTcpMode::ToClient, buffer, memory, time)?;
        let (cpu, start) = (cpu_ns(), Instant::now());
        let (mut bytes, mut answer) = (0, [0; 8]);
        loop {
            let piece = ring.next();
            let n = stream.read(piece)?;
            if n == 0 {
                break;
            }
            bytes += n as u64;
            keep_last(&mut answer, &piece[..n]);
        }
        Ok(RawMeasurement::since(start, cpu, bytes, answer))
    }

    /// Makes round trips of `size` bytes for `time`, and calls `each` with the duration of each
    /// one.
    pub(crate) fn ping_pong(
        &self,
        wait: WaitMode,
        size: u32,
        time: Duration,
        each: impl FnMut(Duration),
    ) -> Result<RawMeasurement> {
        self.try_ping_pong(wait, size, time, each).map_err(|error| self.failed(error))
    }

    fn try_ping_pong(
        &self,
        wait: WaitMode,
        size: u32,
        time: Duration,
        mut each: impl FnMut(Duration),
    ) -> io::Result<RawMeasurement> {
        let spin = wait == WaitMode::Spin;
        let kind = if spin { RawTcpMode::PingPongSpin } else { RawTcpMode::PingPongBlock };
        let mut stream = self.connect(kind, size, size, time)?;
        stream.set_nonblocking(spin)?;
        let mut bytes = vec![0; size as usize];
        let (cpu, start) = (cpu_ns(), Instant::now());
        let mut rounds = 0u64;
        let mut now = start;
        while now < start + time {
            if spin {
                write_spinning(&mut stream, &bytes, TIMEOUT)?;
            } else {
                stream.write_all(&bytes)?;
            }
            let whole = if spin {
                read_spinning(&mut stream, &mut bytes, TIMEOUT)?
            } else {
                read_message(&mut stream, &mut bytes)?
            };
            if !whole {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let then = Instant::now();
            each(then - now);
            now = then;
            rounds += 1;
        }
        let cpu_client_ns = cpu_ns() - cpu;
        stream.set_nonblocking(false)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        let bytes = rounds * u64::from(size);
        let seconds = (now - start).as_secs_f64();
        Ok(RawMeasurement {
            bytes,
            seconds,
            cpu_client_ns,
            cpu_server_ns: u64::from_be_bytes(answer),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_bytes_kept() {
        let stream: Vec<u8> = (0..100).collect();
        for step in [1, 3, 8, 9, 64] {
            let mut last = [0; 8];
            stream.chunks(step).for_each(|bytes| keep_last(&mut last, bytes));
            assert_eq!(last, stream[92..], "in steps of {step}");
        }
    }

    /// Bytes that the server sends after its Reply belong to the measurement.
    #[test]
    fn startup_consumes_reply_only() {
        use uiw_mpa::wire::startup::{Frame, FrameKind};
        let reply = |reject, private_data: &[u8]| Frame {
            kind: FrameKind::Reply,
            markers: false,
            crc: false,
            reject,
            enhanced: None,
            reserved: 0,
            revision: 1,
            private_data: private_data.to_vec(),
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ask = |reply: Frame| {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            server.write_all(&[&reply.emit()[..], b"raw"].concat()).unwrap();
            drop(server);
            let started =
                exchange_startup(&mut client, b"order").map_err(|error| error.to_string());
            let mut rest = Vec::new();
            let _ = client.read_to_end(&mut rest);
            (started, rest)
        };
        assert_eq!(ask(reply(false, b"some")), (Ok(()), b"raw".to_vec()));
        let (refused, _) = ask(reply(true, b"not\nyou"));
        assert_eq!(refused.unwrap_err(), "the peer rejected it, saying \"notyou\"");
    }
}
