//! Writes the traffic of a stack to a pcapng file, with synthetic IP and TCP or UDP headers, for
//! Wireshark. This needs neither the right to capture packets nor the kernel's TCP.
//!
//! The headers contain the real addresses and ports, sequence numbers from 0, and correct
//! checksums. The three segments of the handshake, FIN and RST are written when the stream reports
//! them. Segments have the sizes of the calls, because the kernel's segmentation is not visible
//! here. Sent bytes are copied after they were sent; if the program changes them meanwhile, the
//! file contains the changed bytes.
//!
//! Captured traffic reaches the file within [`FLUSH_AFTER`], as long as the stack is polled at its
//! deadlines, so no more than that is lost if a process is killed. The capture of a stack with its
//! own clock is flushed when a stream ends.
//!
//! One [`PcapSink`] may serve several stacks; each is a separate interface in the file. If both
//! ends of a connection are in one sink, Wireshark sees every packet twice and reports the second
//! one as a retransmission. In that case choose one interface with the filter
//! `frame.interface_name == "..."`, or give each end its own sink.

mod datagram;
mod file;
mod packet;
mod pcapng;
mod stream;

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;

use crate::{
    DatagramSocket, Event, Token, TransportStack, TransportStream,
    wrap::{Origin, StackHooks, WrappedStack, WrappedStream},
};
pub use file::{PcapConfig, PcapConfigError};
use stream::CaptureStream;

/// Maximum time for which a packet stays in memory, so that several are written together.
pub const FLUSH_AFTER: Duration = Duration::from_millis(50);

/// A pcapng file that is being written. It is flushed within [`FLUSH_AFTER`], when a stream ends,
/// and when the last user drops it.
///
/// ```
/// # mod uiw { pub mod llp { pub use uiw_llp::*; pub use uiw_mem::{IoVec, IoVecMut}; } }
/// use uiw::llp::capture::{CaptureStack, PcapConfig, PcapSink};
/// use uiw::llp::tcp::TcpStack;
/// use uiw::llp::{StackExtensions, TransportConfig, Token};
/// use std::sync::Arc;
///
/// let path = std::env::temp_dir().join(format!("uiw-sink-{}.pcapng", std::process::id()));
/// let sink = PcapSink::create(PcapConfig::new(&path))?;
/// let mut stack = CaptureStack::new(Box::new(TcpStack::new()?), Arc::clone(&sink), "client");
/// let mut stream = stack.connect_self(([127, 0, 0, 1], 0).into(), &TransportConfig::default(), Token(1))?;
/// while !stream.connect_result()? {}
/// stream.send(&[uiw::llp::IoVec::from(&b"MPA ID Req Frame"[..])])?;
/// sink.flush()?;
/// let file = std::fs::read(&path)?;
/// assert!(file.windows(16).any(|part| part == b"MPA ID Req Frame"));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct PcapSink {
    file: Mutex<CaptureOutput>,
    /// Time at which the oldest packet in memory must be flushed, in nanoseconds since `began`;
    /// [`CLEAN`] if there is none.
    due: AtomicU64,
    /// Time of creation, on the clock of stacks and on the wall clock.
    began: (Instant, SystemTime),
}

/// Size of the write buffer in bytes.
const BUFFER: usize = 256 * 1024;

/// Value of `due` when nothing waits to be flushed.
const CLEAN: u64 = u64::MAX;

struct CaptureOutput {
    writer: BufWriter<Box<dyn Write + Send>>,
    /// Configuration of the file, or `None` if the output is another writer.
    file: Option<PcapConfig>,
    /// Size of the current file in bytes.
    written: u64,
    /// Names of the interfaces, with which each file begins.
    interfaces: Vec<String>,
    failure: Option<io::ErrorKind>,
    /// Block that is being built. It is kept to avoid allocations.
    block: Vec<u8>,
}

/// Opens or creates a file that only its owner can access, because a capture contains the data of
/// programs.
fn open(path: &std::path::Path, options: &mut fs::OpenOptions) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.create(true).mode(0o600).open(path)
}

/// Creates a file, or truncates it.
fn create(path: &std::path::Path) -> io::Result<File> {
    open(path, File::options().write(true).truncate(true))
}

impl PcapSink {
    /// Creates the file, or truncates it unless the capture is to be appended. In that case only an
    /// incomplete packet at its end is removed.
    ///
    /// # Errors
    /// Returns OS errors, and `InvalidData` if the capture cannot be appended to the file.
    pub fn create(file: impl Into<PcapConfig>) -> io::Result<Arc<Self>> {
        let file = file.into();
        let (opened, length) = if file.append {
            let opened = open(&file.path, File::options().read(true).append(true))?;
            let length = pcapng::remove_incomplete_block(&opened)?;
            (opened, length)
        } else {
            (create(&file.path)?, 0)
        };
        Self::with(Box::new(opened), Some(file), length)
    }

    /// Creates a sink that writes to `writer`.
    ///
    /// # Errors
    /// Returns errors of the writer.
    pub fn new(writer: Box<dyn Write + Send>) -> io::Result<Arc<Self>> {
        Self::with(writer, None, 0)
    }

    fn with(
        writer: Box<dyn Write + Send>,
        file: Option<PcapConfig>,
        written: u64,
    ) -> io::Result<Arc<Self>> {
        let mut output = CaptureOutput {
            writer: BufWriter::with_capacity(BUFFER, writer),
            file,
            written,
            interfaces: Vec::new(),
            failure: None,
            block: Vec::new(),
        };
        output.begin()?;
        let file = Mutex::new(output);
        let due = AtomicU64::new(CLEAN);
        Ok(Arc::new(Self { file, due, began: (Instant::now(), SystemTime::now()) }))
    }

    /// Writes everything to the file.
    ///
    /// # Errors
    /// Returns OS errors, including those of earlier writes. After an error, streams continue
    /// without being captured.
    pub fn flush(&self) -> io::Result<()> {
        let mut file = self.file.lock();
        self.due.store(CLEAN, Ordering::Relaxed);
        match file.failure {
            Some(kind) => Err(kind.into()),
            None => file.writer.flush().inspect_err(|error| file.fail(error)),
        }
    }

    /// Adds an interface. Returns its number, to which packets refer.
    fn interface(&self, name: &str) -> u32 {
        let mut file = self.file.lock();
        let number = file.interfaces.len() as u32;
        file.interfaces.push(name.to_owned());
        let snap = file.snap();
        file.write(|block| pcapng::interface(block, name, snap));
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
        let snap = file.snap();
        file.rotate();
        file.write(|block| {
            pcapng::packet(block, &pcapng::Packet { interface, time, outgoing, snap }, fill);
        });
    }

    fn since_began(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began.0).as_nanos()).unwrap_or(CLEAN - 1)
    }

    /// Returns the time of the next flush.
    fn due(&self) -> Option<Instant> {
        let due = self.due.load(Ordering::Relaxed);
        (due != CLEAN).then(|| self.began.0 + Duration::from_nanos(due))
    }
}

impl CaptureOutput {
    /// Returns the maximum number of bytes that are written for a packet.
    fn snap(&self) -> Option<u32> {
        self.file.as_ref().and_then(|file| file.snap)
    }

    /// Begins a section with the known interfaces.
    fn begin(&mut self) -> io::Result<()> {
        let snap = self.snap();
        self.block.clear();
        pcapng::section(&mut self.block);
        for name in &self.interfaces {
            pcapng::interface(&mut self.block, name, snap);
        }
        self.written += self.block.len() as u64;
        self.writer.write_all(&self.block)
    }

    /// Begins the next file if the current one is full.
    fn rotate(&mut self) {
        let Some(file) = &self.file else { return };
        if self.failure.is_some() || file.rotate.is_none_or(|rotate| self.written < rotate.bytes) {
            return;
        }
        let next = |file: &PcapConfig,
                    writer: &mut BufWriter<Box<dyn Write + Send>>|
         -> io::Result<File> {
            writer.flush()?;
            let last = file.rotate.map_or(0, |rotate| rotate.files - 1);
            for age in (0..last).rev() {
                match fs::rename(file.rotated_path(age), file.rotated_path(age + 1)) {
                    // Fewer files exist so far.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    renamed => renamed?,
                }
            }
            create(&file.path)
        };
        let begun = next(file, &mut self.writer).and_then(|next| {
            self.writer = BufWriter::with_capacity(BUFFER, Box::new(next));
            self.written = 0;
            self.begin()
        });
        if let Err(error) = begun {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        tracing::warn!(%error, "capturing has ended");
        self.failure = Some(error.kind());
    }

    fn write(&mut self, make: impl FnOnce(&mut Vec<u8>)) {
        if self.failure.is_some() {
            return;
        }
        self.block.clear();
        make(&mut self.block);
        self.written += self.block.len() as u64;
        if let Err(error) = self.writer.write_all(&self.block) {
            self.fail(&error);
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

/// Stack whose streams are captured.
pub type CaptureStack = WrappedStack<CaptureHooks>;

/// Hooks of a [`CaptureStack`], with the destination of the capture.
#[derive(Clone, Debug)]
pub struct CaptureHooks {
    sink: Arc<PcapSink>,
    interface: u32,
    /// Time of the last poll, for a stack with its own clock, because streams cannot read the
    /// clock.
    own_clock: Option<Arc<Mutex<Instant>>>,
}

impl CaptureStack {
    /// Captures the traffic of `inner` to `sink`, as the interface `name`. Shards of the stack use
    /// the same interface; the only lock that they share is that of the sink.
    pub fn new(inner: Box<dyn TransportStack>, sink: Arc<PcapSink>, name: &str) -> Self {
        let interface = sink.interface(name);
        let hooks = CaptureHooks::new(&*inner, sink, interface);
        Self { inner, hooks }
    }
}

impl CaptureHooks {
    fn new(inner: &dyn TransportStack, sink: Arc<PcapSink>, interface: u32) -> Self {
        // A stack without a descriptor to wait for has its own clock.
        let own_clock = inner.wait_fd().is_none().then(|| Arc::new(Mutex::new(inner.now())));
        Self { sink, interface, own_clock }
    }

    /// Returns the time of the next flush, or `None` for a stack with its own clock, whose events
    /// must not depend on the capture.
    fn flush_due(&self) -> Option<Instant> {
        if self.own_clock.is_some() { None } else { self.sink.due() }
    }

    fn set_clock(&self, inner: &dyn TransportStack) {
        if let Some(clock) = &self.own_clock {
            *clock.lock() = inner.now();
        }
    }

    /// Returns the timestamp for packets of streams.
    fn time(&self) -> Instant {
        self.own_clock.as_ref().map_or_else(Instant::now, |clock| *clock.lock())
    }
}

impl StackHooks for CaptureHooks {
    type Stream = CaptureStream;

    fn stream(&self, inner: &dyn TransportStream, origin: Origin, _token: Token) -> CaptureStream {
        CaptureStream::new(inner, self.clone(), origin)
    }

    fn datagrams(&self, inner: Box<dyn DatagramSocket>, _token: Token) -> Box<dyn DatagramSocket> {
        Box::new(datagram::CaptureDatagrams::new(inner, self.clone()))
    }

    fn shard(&self, inner: &dyn TransportStack) -> Self {
        Self::new(inner, Arc::clone(&self.sink), self.interface)
    }

    fn before_connect(&mut self, inner: &dyn TransportStack) {
        self.set_clock(inner);
    }

    fn poll(&mut self, inner: &mut dyn TransportStack, events: &mut Vec<Event>) -> io::Result<()> {
        self.set_clock(inner);
        if self.flush_due().is_some_and(|at| at <= Instant::now()) {
            // The sink keeps the error.
            let _ = self.sink.flush();
        }
        inner.poll(events)
    }

    fn deadline(&self, inner: &dyn TransportStack) -> Option<Instant> {
        inner.deadline().into_iter().chain(self.flush_due()).min()
    }

    fn now(&self, inner: &dyn TransportStack) -> Instant {
        self.set_clock(inner);
        inner.now()
    }

    fn adopt(
        &mut self,
        inner: &mut dyn TransportStack,
        stream: &mut Box<dyn TransportStream>,
        token: Token,
    ) -> io::Result<()> {
        let stream = WrappedStream::<CaptureStream>::of(&mut **stream)?;
        inner.adopt(&mut stream.inner, token)?;
        stream.hooks.shared = self.clone();
        Ok(())
    }
}
