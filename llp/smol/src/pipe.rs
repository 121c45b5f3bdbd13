//! A link within one process, for tests and for embedding without an interface. Each end receives
//! what the other end sends.

use super::link::{Capabilities, Frame, Link, Segmentation};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use uiw_impair::wan::{Counts, Direction};
use uiw_llp::Clock;

/// Maximum number of frames in one direction. Further frames are lost, as on a wire.
const DEPTH: usize = 1024;

/// One direction.
struct WireDirection {
    frames: VecDeque<Vec<u8>>,
    /// Model through which frames pass first, if any.
    path: Option<PathModel>,
    free: Vec<Vec<u8>>,
    cut: bool,
    readable: Arc<OwnedFd>,
}

/// Model of a path, and the time at which it began.
struct PathModel {
    direction: Direction,
    clock: Clock,
    start: Instant,
}

/// One end of a pipe.
pub struct PipeLink {
    mtu: usize,
    out: Arc<Mutex<WireDirection>>,
    into: Arc<Mutex<WireDirection>>,
    readable: Arc<OwnedFd>,
}

/// Creates the two ends of a link with IP packets of up to `mtu` bytes.
///
/// # Errors
/// Returns OS errors, for example if the process is out of descriptors.
pub fn pipe(mtu: usize) -> io::Result<(PipeLink, PipeLink)> {
    let wire = || -> io::Result<_> {
        let readable = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let wire = WireDirection {
            frames: VecDeque::new(),
            path: None,
            free: Vec::new(),
            cut: false,
            readable,
        };
        Ok(Arc::new(Mutex::new(wire)))
    };
    let (there, back) = (wire()?, wire()?);
    let end = |out: &Arc<Mutex<WireDirection>>, into: &Arc<Mutex<WireDirection>>| {
        let readable = Arc::clone(&into.lock().readable);
        PipeLink { mtu, out: Arc::clone(out), into: Arc::clone(into), readable }
    };
    Ok((end(&there, &back), end(&back, &there)))
}

impl PipeLink {
    /// Passes the frames that this end sends through `direction`. The clock should be the one of
    /// the stacks at both ends.
    #[must_use]
    pub fn through(self, direction: Direction, clock: &Clock) -> Self {
        self.out.lock().path =
            Some(PathModel { direction, clock: clock.clone(), start: clock.now() });
        self
    }

    /// Returns the counters of the frames that this end has sent, or `None` if they do not pass
    /// through a [`Direction`].
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        self.out.lock().path.as_ref().map(|path| path.direction.counts().clone())
    }

    /// Returns a handle that cuts the link, like pulling the cable.
    #[must_use]
    pub fn scissors(&self) -> Scissors {
        Scissors([Arc::clone(&self.out), Arc::clone(&self.into)])
    }
}

/// Handle that cuts a pipe.
pub struct Scissors([Arc<Mutex<WireDirection>>; 2]);

impl Scissors {
    /// Cuts the link in both directions, so that both ends report `NetworkDown`.
    pub fn cut(&self) {
        for wire in &self.0 {
            let mut wire = wire.lock();
            wire.cut = true;
            let _ = rustix::io::write(&wire.readable, &1u64.to_ne_bytes());
        }
    }
}

/// Frame of a pipe.
#[derive(Debug)]
pub struct PipeFrame(Vec<u8>);

impl fmt::Debug for PipeLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeLink").field("mtu", &self.mtu).finish_non_exhaustive()
    }
}

impl fmt::Debug for Scissors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scissors")
    }
}

impl Frame for PipeFrame {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn is_checked(&self) -> bool {
        false
    }
}

impl WireDirection {
    fn push(&mut self, frame: Vec<u8>) {
        if self.frames.len() < DEPTH {
            if self.frames.is_empty() {
                let _ = rustix::io::write(&self.readable, &1u64.to_ne_bytes());
            }
            self.frames.push_back(frame);
        }
    }

    /// Sends a frame through the model, or directly.
    fn send(&mut self, frame: Vec<u8>) {
        match &mut self.path {
            None => self.push(frame),
            Some(path) => path.direction.offer(path.clock.now() - path.start, frame),
        }
    }

    /// Delivers the frames that are due.
    fn arrive(&mut self) {
        while let Some(path) = &mut self.path
            && let Some(frame) = path.direction.take(path.clock.now() - path.start)
        {
            self.push(frame);
        }
    }
}

impl Link for PipeLink {
    type Frame = PipeFrame;

    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: self.mtu, segmentation: None, partial_checksums: false }
    }

    fn receive(&mut self) -> Option<PipeFrame> {
        let mut wire = self.into.lock();
        wire.arrive();
        let frame = wire.frames.pop_front()?;
        if wire.frames.is_empty() {
            let _ = rustix::io::read(&wire.readable, &mut [0u8; 8]);
        }
        Some(PipeFrame(frame))
    }

    fn recycle(&mut self, mut frame: PipeFrame) {
        let mut wire = self.into.lock();
        if wire.free.len() < DEPTH {
            frame.0.clear();
            wire.free.push(frame.0);
        }
    }

    fn has_room(&mut self) -> bool {
        self.out.lock().frames.len() < DEPTH
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<Segmentation>) {
        let mut frame = self.out.lock().free.pop().unwrap_or_default();
        frame.resize(len, 0);
        fill(&mut frame);
        self.out.lock().send(frame);
    }

    fn flush(&mut self) {}

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readable.as_fd())
    }

    fn next(&self) -> Option<Instant> {
        let wire = self.into.lock();
        let path = wire.path.as_ref()?;
        path.start.checked_add(path.direction.next()?)
    }

    fn failure(&mut self, _now: Instant) -> Option<io::Error> {
        let cut = self.into.lock().cut;
        cut.then(|| io::Error::new(io::ErrorKind::NetworkDown, "the pipe was cut"))
    }
}
