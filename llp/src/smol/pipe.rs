//! A link in one process: what one end sends, the other receives. For tests, and for embedding without an interface.

use super::link::{Capabilities, Frame, Link, Segmentation};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Frames that one direction holds; more are lost, as on any wire.
const DEPTH: usize = 1024;

/// What may happen to a frame on its way.
pub type Fate = Box<dyn FnMut(&mut Vec<u8>) -> Delivery + Send>;

/// How often a frame arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Never.
    Lost,
    /// Once.
    Once,
    /// Twice.
    Twice,
    /// Once, after the next one.
    Late,
}

/// One direction.
struct Wire {
    frames: VecDeque<Vec<u8>>,
    late: Option<Vec<u8>>,
    free: Vec<Vec<u8>>,
    cut: bool,
    readable: Arc<OwnedFd>,
}

/// One end of a pipe.
pub struct PipeLink {
    mtu: usize,
    out: Arc<Mutex<Wire>>,
    into: Arc<Mutex<Wire>>,
    readable: Arc<OwnedFd>,
    fate: Option<Fate>,
}

/// Both ends of a link with IP packets of up to `mtu` octets.
///
/// # Errors
/// The process has no descriptor left.
pub fn pipe(mtu: usize) -> io::Result<(PipeLink, PipeLink)> {
    let wire = || -> io::Result<_> {
        let readable = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let wire = Wire { frames: VecDeque::new(), late: None, free: Vec::new(), cut: false, readable };
        Ok(Arc::new(Mutex::new(wire)))
    };
    let (there, back) = (wire()?, wire()?);
    let end = |out: &Arc<Mutex<Wire>>, into: &Arc<Mutex<Wire>>| {
        let readable = Arc::clone(&into.lock().readable);
        PipeLink { mtu, out: Arc::clone(out), into: Arc::clone(into), readable, fate: None }
    };
    Ok((end(&there, &back), end(&back, &there)))
}

impl PipeLink {
    /// What happens to the frames that this end sends.
    #[must_use]
    pub fn with_fate(mut self, fate: Fate) -> Self {
        self.fate = Some(fate);
        self
    }

    /// A handle that cuts the link, as pulling the cable does.
    #[must_use]
    pub fn scissors(&self) -> Scissors {
        Scissors([Arc::clone(&self.out), Arc::clone(&self.into)])
    }
}

/// Cuts a pipe.
pub struct Scissors([Arc<Mutex<Wire>>; 2]);

impl Scissors {
    /// Both ends find their interface gone.
    pub fn cut(&self) {
        for wire in &self.0 {
            let mut wire = wire.lock();
            wire.cut = true;
            let _ = rustix::io::write(&wire.readable, &1u64.to_ne_bytes());
        }
    }
}

/// A frame of a pipe.
pub struct PipeFrame(Vec<u8>);

impl Frame for PipeFrame {
    fn octets(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn is_checked(&self) -> bool {
        false
    }
}

impl Wire {
    fn push(&mut self, frame: Vec<u8>) {
        if self.frames.len() < DEPTH {
            if self.frames.is_empty() {
                let _ = rustix::io::write(&self.readable, &1u64.to_ne_bytes());
            }
            self.frames.push_back(frame);
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

    fn transmit(&mut self, len: usize, _: Option<Segmentation>, fill: &mut dyn FnMut(&mut [u8])) {
        let mut frame = self.out.lock().free.pop().unwrap_or_default();
        frame.resize(len, 0);
        fill(&mut frame);
        let delivery = self.fate.as_mut().map_or(Delivery::Once, |fate| fate(&mut frame));
        let mut wire = self.out.lock();
        let late = wire.late.take();
        match delivery {
            Delivery::Lost => {}
            Delivery::Once => wire.push(frame),
            Delivery::Twice => {
                wire.push(frame.clone());
                wire.push(frame);
            }
            Delivery::Late => wire.late = Some(frame),
        }
        if let Some(late) = late {
            wire.push(late);
        }
    }

    fn flush(&mut self) {}

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readable.as_fd())
    }

    fn failure(&mut self) -> Option<io::Error> {
        let cut = self.into.lock().cut;
        cut.then(|| io::Error::new(io::ErrorKind::NetworkDown, "the pipe was cut"))
    }
}
