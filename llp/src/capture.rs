//! Writes what passes through a stack to a pcapng file, with made-up IP and TCP headers around it, for Wireshark. No
//! right to capture is needed, and no TCP of the kernel.
//!
//! The headers have the true addresses and ports, sequence numbers from 0, and correct checksums; the three segments
//! of the handshake, FIN and RST stand where the stream reports them. Segments are as long as the calls were: where
//! the kernel cut is not visible here. Sent bytes are copied after they were sent; if the program changes them
//! meanwhile, the file has what it made of them.
//!
//! What was written reaches the file within [`FLUSH_AFTER`], as long as the stack is polled at its deadlines: of a process
//! that is killed no more is missing. A stack with a clock of its own is flushed when a stream ends.
//!
//! One [`PcapSink`] may serve several stacks; each is an interface of its own in the file. With both ends of a
//! connection in one sink Wireshark sees everything twice and calls the second time a retransmission: choose one with
//! the filter `frame.interface_name == "..."`, or give each end its own sink.

mod packet;
mod pcapng;
mod stream;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    fs::File,
    io::{self, BufWriter, Write},
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;

use crate::{Event, ListenOptions, Listener, Stack, Stream, StreamOptions, Token, foreign_stream};
use stream::CaptureStream;

/// How long a packet may wait in memory for others.
pub const FLUSH_AFTER: Duration = Duration::from_millis(50);

/// A pcapng file that is being written. It is flushed in good time, when a stream ends and when the last user drops it.
pub struct PcapSink {
    file: Mutex<Output>,
    /// When the oldest packet in memory has to go, in nanoseconds since the beginning; [`CLEAN`] without one.
    due: AtomicU64,
    /// The same moment on the clock of stacks and on the wall.
    began: (Instant, SystemTime),
}

/// Nothing waits to be flushed.
const CLEAN: u64 = u64::MAX;

struct Output {
    writer: BufWriter<Box<dyn Write + Send>>,
    interfaces: u32,
    failure: Option<io::ErrorKind>,
    /// The block in the making; kept to save allocations.
    block: Vec<u8>,
}

impl PcapSink {
    /// Makes the file, or empties it.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Arc<Self>> {
        Self::new(Box::new(File::create(path)?))
    }

    /// Writes to `writer`.
    ///
    /// # Errors
    /// The writer's.
    pub fn new(writer: Box<dyn Write + Send>) -> io::Result<Arc<Self>> {
        let mut writer = BufWriter::with_capacity(256 * 1024, writer);
        let mut block = Vec::new();
        pcapng::section(&mut block);
        writer.write_all(&block)?;
        let file = Mutex::new(Output { writer, interfaces: 0, failure: None, block });
        let due = AtomicU64::new(CLEAN);
        Ok(Arc::new(Self { file, due, began: (Instant::now(), SystemTime::now()) }))
    }

    /// Writes everything to the file.
    ///
    /// # Errors
    /// The system's, also of an earlier write. Streams go on without being captured then.
    pub fn flush(&self) -> io::Result<()> {
        let mut file = self.file.lock();
        self.due.store(CLEAN, Ordering::Relaxed);
        match file.failure {
            Some(kind) => Err(kind.into()),
            None => file.writer.flush(),
        }
    }

    /// A new interface; packets refer to its number.
    fn interface(&self, name: &str) -> u32 {
        let mut file = self.file.lock();
        let number = file.interfaces;
        file.interfaces += 1;
        file.write(|block| pcapng::interface(block, name));
        number
    }

    fn packet(&self, interface: u32, at: Instant, outgoing: bool, fill: impl FnOnce(&mut Vec<u8>)) {
        // Stacks with a virtual clock may have begun before the sink.
        let wall = match at.checked_duration_since(self.began.0) {
            Some(later) => self.began.1 + later,
            None => self.began.1 - self.began.0.duration_since(at),
        };
        let time = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let mut file = self.file.lock();
        if self.due.load(Ordering::Relaxed) == CLEAN {
            self.due.store(self.since_began(at + FLUSH_AFTER), Ordering::Relaxed);
        }
        file.write(|block| pcapng::packet(block, interface, time, outgoing, fill));
    }

    fn since_began(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began.0).as_nanos()).unwrap_or(CLEAN - 1)
    }

    /// When it is to be flushed.
    fn due(&self) -> Option<Instant> {
        let due = self.due.load(Ordering::Relaxed);
        (due != CLEAN).then(|| self.began.0 + Duration::from_nanos(due))
    }
}

impl Output {
    fn write(&mut self, make: impl FnOnce(&mut Vec<u8>)) {
        if self.failure.is_some() {
            return;
        }
        self.block.clear();
        make(&mut self.block);
        if let Err(error) = self.writer.write_all(&self.block) {
            tracing::warn!(%error, "capturing ends");
            self.failure = Some(error.kind());
        }
    }
}

impl Drop for PcapSink {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            tracing::warn!(%error, "the capture file is not complete");
        }
    }
}

impl fmt::Debug for PcapSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PcapSink")
    }
}

/// A stack whose streams are captured.
#[derive(Debug)]
pub struct CaptureStack<S> {
    inner: S,
    tap: Tap,
}

/// Where the streams of one stack write to, and their clock.
#[derive(Clone, Debug)]
struct Tap {
    sink: Arc<PcapSink>,
    interface: u32,
    /// The clock of a stack that has one of its own, at its last poll. Streams cannot ask for it.
    own_clock: Option<Arc<Mutex<Instant>>>,
}

impl<S: Stack> CaptureStack<S> {
    /// Captures to `sink`, as the interface `name`; so do its shards, for which the lock of the sink is the one they share.
    pub fn new(inner: S, sink: Arc<PcapSink>, name: &str) -> Self {
        let interface = sink.interface(name);
        Self::on_interface(inner, sink, interface)
    }

    fn on_interface(inner: S, sink: Arc<PcapSink>, interface: u32) -> Self {
        // Without a descriptor to wait for, a stack lives in a time of its own.
        let own_clock = inner.wait_fd().is_none().then(|| Arc::new(Mutex::new(inner.now())));
        Self { inner, tap: Tap { sink, interface, own_clock } }
    }

    /// Not by a clock that is not the wall's: what happens there would depend on the capture.
    fn flush_due(&self) -> Option<Instant> {
        if self.tap.own_clock.is_some() { None } else { self.tap.sink.due() }
    }

    fn set_clock(&self) {
        if let Some(clock) = &self.tap.own_clock {
            *clock.lock() = self.inner.now();
        }
    }
}

impl Tap {
    fn now(&self) -> Instant {
        self.own_clock.as_ref().map_or_else(Instant::now, |clock| *clock.lock())
    }
}

impl<S: Stack> Stack for CaptureStack<S> {
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenOptions,
        token: Token,
    ) -> io::Result<Box<dyn Listener>> {
        let inner = self.inner.listen(local, options, token)?;
        Ok(Box::new(CaptureListener { inner, tap: self.tap.clone() }))
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &StreamOptions,
        token: Token,
    ) -> io::Result<Box<dyn Stream>> {
        self.set_clock();
        let inner = self.inner.connect(local, peer, options, token)?;
        Ok(Box::new(CaptureStream::connecting(inner, self.tap.clone())))
    }

    fn connect_self(
        &mut self,
        local: SocketAddr,
        options: &StreamOptions,
        token: Token,
    ) -> io::Result<Box<dyn Stream>> {
        self.set_clock();
        let inner = self.inner.connect_self(local, options, token)?;
        Ok(Box::new(CaptureStream::to_itself(inner, self.tap.clone())))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.set_clock();
        if self.flush_due().is_some_and(|at| at <= Instant::now()) {
            // An error stays with the sink.
            let _ = self.tap.sink.flush();
        }
        self.inner.poll(events)
    }

    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        self.inner.wait_fd()
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline().into_iter().chain(self.flush_due()).min()
    }

    fn now(&self) -> Instant {
        self.set_clock();
        self.inner.now()
    }

    fn shard(&self) -> io::Result<Option<Box<dyn Stack>>> {
        let Some(inner) = self.inner.shard()? else { return Ok(None) };
        let Tap { sink, interface, .. } = &self.tap;
        Ok(Some(Box::new(CaptureStack::on_interface(inner, Arc::clone(sink), *interface))))
    }

    fn adopt(&mut self, stream: &mut Box<dyn Stream>, token: Token) -> io::Result<()> {
        let stream = stream.downcast_mut::<CaptureStream>().ok_or_else(foreign_stream)?;
        stream.enter(&mut self.inner, token, &self.tap)
    }

    fn drain(&mut self) -> bool {
        self.inner.drain()
    }
}

struct CaptureListener {
    inner: Box<dyn Listener>,
    tap: Tap,
}

impl Listener for CaptureListener {
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn Stream>> {
        let inner = self.inner.accept(token)?;
        Ok(Box::new(CaptureStream::accepted(inner, self.tap.clone())))
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }
}
