//! Raw TCP beside a measurement: the same machines, the same processes, the same kind of thread, as fast as sockets get.

use crate::fail::{Failure, Result};
use crate::qp_setup::{Depths, Half, Until, Wait};
use crate::service::{RawReply, Service};
use crate::spin::Spin;
use crate::stop::Stop;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use uiw_verbs::cm::ConnRequest;
use uiw_verbs::{ConnOptions, Device, Pd};

/// Largest buffer of a reader or writer.
const MAX_BUFFER: u32 = 4 << 20;
/// Most memory that a connection's bytes come from, or go to.
const MAX_MEMORY: u32 = 64 << 20;
/// Connections served at a time: one a direction.
const AT_ONCE: usize = 2;
/// Bytes of memory that serving them takes at most.
pub(crate) const MEMORY: u64 = AT_ONCE as u64 * (MAX_MEMORY as u64 + MAX_BUFFER as u64);
/// A reader of small writes asks for this many bytes.
const MIN_READ: usize = 64_000;
/// A peer that stops in the middle.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Where a measurement's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToServer,
    ToClient,
    /// Both at once, on a connection each.
    Both,
}

/// What a raw connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The client writes until it is done.
    ToServer,
    /// The server writes for a time.
    ToClient,
    /// Messages there and back; both ends poll.
    PingPongSpin,
    /// Messages there and back; both ends block.
    PingPongBlock,
}

/// The first bytes on a raw connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    kind: Kind,
    /// Bytes of one write, or of a message.
    buffer: u32,
    /// Bytes of memory that the writes come from, one behind the other, and the reads go to: as much as the messages of a
    /// measurement beside it, or the caches would serve one of the two better.
    memory: u32,
    /// How long the server writes.
    millis: u32,
    /// Congestion control by name, padded with zeros.
    congestion: [u8; 16],
}

impl Header {
    const LEN: usize = 29;

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = self.kind as u8;
        out[1..5].copy_from_slice(&self.buffer.to_be_bytes());
        out[5..9].copy_from_slice(&self.millis.to_be_bytes());
        out[9..13].copy_from_slice(&self.memory.to_be_bytes());
        out[13..].copy_from_slice(&self.congestion);
        out
    }

    fn from_bytes(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let kind = match bytes[0] {
            0 => Kind::ToServer,
            1 => Kind::ToClient,
            2 => Kind::PingPongSpin,
            3 => Kind::PingPongBlock,
            _ => return None,
        };
        let number = |at: usize| bytes[at..at + 4].iter().fold(0, |n, &byte| n << 8 | u32::from(byte));
        let (buffer, memory) = (number(1), number(9));
        let mut congestion = [0; 16];
        congestion.copy_from_slice(&bytes[13..]);
        let sane = (1..=MAX_BUFFER).contains(&buffer) && memory <= MAX_MEMORY;
        sane.then_some(Self { kind, buffer, memory, millis: number(5), congestion })
    }
}

/// Processor time of this process so far.
pub(crate) fn cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Serves raw connections as long as the iWARP connection stands that asked for them.
pub(crate) fn serve(device: &Device, pd: &Pd, stop: &Stop, request: ConnRequest) -> Result<()> {
    let peer = request.peer_addr();
    let failed = |error: io::Error| Failure::local(format!("cannot serve raw TCP to {peer}"), error);
    let listener = TcpListener::bind((request.local_addr().ip(), 0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let reply = serde_json::to_vec(&RawReply { port }).unwrap_or_default();
    let half = Half::new(device, pd, &Depths::new(1, 1))?;
    crate::qp_setup::post_recvs(&half.qp, [(0, None)])?;
    let link = half.accept(request, &ConnOptions::default(), &reply, Until::stop(stop))?;
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| accept_all(&listener, peer));
        }
        // The connection says nothing more; its end is what is waited for.
        let _ = link.next(Wait::Sleep, Until::stop(stop));
        // Ends the other threads' accepts.
        let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
    });
    Ok(())
}

fn accept_all(listener: &TcpListener, peer: SocketAddr) {
    while let Ok((stream, from)) = listener.accept() {
        if from.ip() != peer.ip() {
            continue;
        }
        if let Err(error) = serve_one(stream) {
            tracing::info!(%peer, %error, "raw connection");
        }
    }
}

fn serve_one(mut stream: TcpStream) -> io::Result<()> {
    prepare(&stream)?;
    let mut header = [0; Header::LEN];
    stream.read_exact(&mut header)?;
    let Some(header) = Header::from_bytes(&header) else { return Err(io::ErrorKind::InvalidData.into()) };
    set_congestion(&stream, &header.congestion)?;
    let before = cpu_ns();
    let mut buffer = vec![0x5A; header.buffer as usize];
    match header.kind {
        Kind::ToServer => {
            let mut ring = Ring::of_reader(header.buffer, header.memory);
            while stream.read(ring.next())? > 0 {}
        }
        Kind::ToClient => {
            let mut ring = Ring::new(buffer.len(), header.memory);
            write_until(
                &mut stream,
                &mut ring,
                Instant::now() + Duration::from_millis(header.millis.into()),
            )?;
        }
        Kind::PingPongSpin => {
            stream.set_nonblocking(true)?;
            while read_spinning(&mut stream, &mut buffer)? {
                write_spinning(&mut stream, &buffer)?;
            }
            stream.set_nonblocking(false)?;
        }
        Kind::PingPongBlock => {
            while read_message(&mut stream, &mut buffer)? {
                stream.write_all(&buffer)?;
            }
        }
    }
    stream.write_all(&(cpu_ns() - before).to_be_bytes())
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))
}

fn set_congestion(stream: &TcpStream, name: &[u8; 16]) -> io::Result<()> {
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    match std::str::from_utf8(&name[..end]) {
        Ok("") => Ok(()),
        Ok(name) => Ok(rustix::net::sockopt::set_tcp_congestion(stream, name)?),
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Memory that is used piece by piece, from its start again behind its end.
struct Ring {
    bytes: Vec<u8>,
    piece: usize,
    at: usize,
}

impl Ring {
    fn new(piece: usize, memory: u32) -> Self {
        Self { bytes: vec![0xA5; piece.max(memory as usize)], piece, at: 0 }
    }

    /// Many small writes are read together.
    fn of_reader(buffer: u32, memory: u32) -> Self {
        Self::new((buffer as usize).max(MIN_READ), memory)
    }

    fn next(&mut self) -> &mut [u8] {
        if self.at + self.piece > self.bytes.len() {
            self.at = 0;
        }
        let start = self.at;
        self.at += self.piece;
        &mut self.bytes[start..self.at]
    }
}

fn write_until(stream: &mut TcpStream, ring: &mut Ring, deadline: Instant) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        stream.write_all(ring.next())?;
        bytes += ring.piece as u64;
        if Instant::now() >= deadline {
            return Ok(bytes);
        }
    }
}

/// One whole message; false at the end of the stream.
fn read_message(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
    let mut got = 0;
    while got < buffer.len() {
        match stream.read(&mut buffer[got..])? {
            0 => return Ok(false),
            n => got += n,
        }
    }
    Ok(true)
}

fn read_spinning(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
    let mut got = 0;
    let mut spin = Spin::default();
    while got < buffer.len() {
        match stream.read(&mut buffer[got..]) {
            Ok(0) => return Ok(false),
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => spin.empty(),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn write_spinning(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let mut spin = Spin::default();
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => spin.empty(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Keeps the last bytes of a stream: what stands behind the data.
fn keep_last(last: &mut [u8; 8], bytes: &[u8]) {
    let new = bytes.len().min(last.len());
    last.copy_within(new.., 0);
    last[8 - new..].copy_from_slice(&bytes[bytes.len() - new..]);
}

/// What a raw connection measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_client_ns: u64,
    pub(crate) cpu_server_ns: u64,
}

impl Measured {
    pub(crate) fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// The client's side: where the server's raw port is.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    server: SocketAddr,
    congestion: [u8; 16],
}

impl Client {
    /// Asks `peer` for a raw port. The connection returned must live as long as the client.
    pub(crate) fn open(
        device: &Device,
        pd: &Pd,
        peer: SocketAddr,
        congestion: Option<&str>,
    ) -> Result<(Self, crate::qp_setup::Link)> {
        let half = Half::new(device, pd, &Depths::new(1, 1))?;
        let link = half.connect(peer, &ConnOptions::default(), &Service::Raw.private_data())?;
        let reply: RawReply = serde_json::from_slice(&link.info.private_data)
            .map_err(|_| Failure::lost(peer, "accepted, but is no `uiw serve`"))?;
        let mut name = [0; 16];
        for (to, from) in name.iter_mut().zip(congestion.unwrap_or_default().bytes()) {
            *to = from;
        }
        Ok((Self { server: SocketAddr::new(peer.ip(), reply.port), congestion: name }, link))
    }

    fn connect(&self, kind: Kind, buffer: u32, memory: u32, time: Duration) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.server)?;
        prepare(&stream)?;
        set_congestion(&stream, &self.congestion)?;
        let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let memory = memory.min(MAX_MEMORY);
        stream.write_all(&Header { kind, buffer, memory, millis, congestion: self.congestion }.to_bytes())?;
        Ok(stream)
    }

    fn failed(&self, error: io::Error) -> Failure {
        Failure::lost(format!("raw TCP to {}", self.server), error)
    }

    /// One slice of throughput on new connections: writes of `buffer` bytes, from and to `memory` bytes.
    pub(crate) fn slice(&self, way: Way, buffer: u32, memory: u32, time: Duration) -> Result<Measured> {
        match way {
            Way::ToServer => self.write(buffer, memory, time),
            Way::ToClient => self.read(buffer, memory, time),
            Way::Both => self.both(buffer, memory, time),
        }
        .map_err(|error| self.failed(error))
    }

    /// Bytes of both; the time and the processors' time, which is that of whole processes, of the longer one.
    fn both(&self, buffer: u32, memory: u32, time: Duration) -> io::Result<Measured> {
        let (a, b) = std::thread::scope(|scope| {
            let other = scope.spawn(|| self.read(buffer, memory, time));
            let this = self.write(buffer, memory, time);
            (this, other.join().unwrap_or_else(|_| Err(io::Error::other("the reader's thread panicked"))))
        });
        let (a, b) = (a?, b?);
        Ok(Measured {
            bytes: a.bytes + b.bytes,
            seconds: a.seconds.max(b.seconds),
            cpu_client_ns: a.cpu_client_ns.max(b.cpu_client_ns),
            cpu_server_ns: a.cpu_server_ns.max(b.cpu_server_ns),
        })
    }

    fn write(&self, buffer: u32, memory: u32, time: Duration) -> io::Result<Measured> {
        let mut ring = Ring::new(buffer as usize, memory);
        let mut stream = self.connect(Kind::ToServer, buffer, memory, time)?;
        let (cpu, start) = (cpu_ns(), Instant::now());
        let bytes = write_until(&mut stream, &mut ring, start + time)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        Ok(Measured {
            bytes,
            seconds: start.elapsed().as_secs_f64(),
            cpu_client_ns: cpu_ns() - cpu,
            cpu_server_ns: u64::from_be_bytes(answer),
        })
    }

    fn read(&self, buffer: u32, memory: u32, time: Duration) -> io::Result<Measured> {
        let mut ring = Ring::of_reader(buffer, memory);
        let mut stream = self.connect(Kind::ToClient, buffer, memory, time)?;
        let (cpu, start) = (cpu_ns(), Instant::now());
        let (mut bytes, mut answer) = (0, [0; 8]);
        loop {
            let piece = ring.next();
            match stream.read(piece)? {
                0 => break,
                n => {
                    bytes += n as u64;
                    keep_last(&mut answer, &piece[..n]);
                }
            }
        }
        Ok(Measured {
            bytes,
            seconds: start.elapsed().as_secs_f64(),
            cpu_client_ns: cpu_ns() - cpu,
            cpu_server_ns: u64::from_be_bytes(answer),
        })
    }

    /// Round trips of `size` bytes for `time`, each given to `each`.
    pub(crate) fn ping_pong(
        &self,
        wait: Wait,
        size: u32,
        time: Duration,
        each: impl FnMut(Duration),
    ) -> Result<Measured> {
        self.try_ping_pong(wait, size, time, each).map_err(|error| self.failed(error))
    }

    fn try_ping_pong(
        &self,
        wait: Wait,
        size: u32,
        time: Duration,
        mut each: impl FnMut(Duration),
    ) -> io::Result<Measured> {
        let spin = wait == Wait::Spin;
        let kind = if spin { Kind::PingPongSpin } else { Kind::PingPongBlock };
        let mut stream = self.connect(kind, size, size, time)?;
        stream.set_nonblocking(spin)?;
        let mut bytes = vec![0; size as usize];
        let (cpu, start) = (cpu_ns(), Instant::now());
        let mut rounds = 0u64;
        let mut now = start;
        while now < start + time {
            if spin {
                write_spinning(&mut stream, &bytes)?;
            } else {
                stream.write_all(&bytes)?;
            }
            let whole = if spin {
                read_spinning(&mut stream, &mut bytes)?
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
        Ok(Measured { bytes, seconds, cpu_client_ns, cpu_server_ns: u64::from_be_bytes(answer) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept_however_they_come() {
        let stream: Vec<u8> = (0..100).collect();
        for step in [1, 3, 8, 9, 64] {
            let mut last = [0; 8];
            stream.chunks(step).for_each(|bytes| keep_last(&mut last, bytes));
            assert_eq!(last, stream[92..], "in steps of {step}");
        }
    }

    #[test]
    fn header_comes_back() {
        let mut congestion = [0; 16];
        congestion[..3].copy_from_slice(b"bbr");
        let header =
            Header { kind: Kind::PingPongBlock, buffer: 64_000, memory: 1 << 20, millis: 200, congestion };
        assert_eq!(Header::from_bytes(&header.to_bytes()), Some(header));
        assert_eq!(Header::from_bytes(&[9; Header::LEN]), None);
    }
}
