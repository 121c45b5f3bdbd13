//! Bridge between two interfaces that emulates a network path.

mod schedule;

use crate::packet::LONGEST;
use crate::packet::socket::{FrameFilter, PacketSocket};
use crate::packet::virtio::{HEADER, Header};
use crate::segments;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use schedule::Lateness;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use uiw_impair::wan::{Counts, Direction, Profile};

/// Maximum number of frames that are read from one interface, and sent to the other one, in one
/// turn.
const BURST: usize = 64;
/// Time before the next frame is due during which the clock is polled. A sleep ends this much
/// earlier, because a short sleep would take longer than requested.
const SPIN: Duration = Duration::from_micros(60);

/// One of the two interfaces of a [`Bridge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgeSide {
    /// The first interface.
    A,
    /// The second interface.
    B,
}

/// Frames of an interface that do not appear in the counters of the path model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Frames that arrived faster than they were read. They are lost. This number is updated when
    /// [`Bridge::run`] stops.
    pub missed: u64,
    /// Frames that the interface did not accept when they were due, because they were too long or
    /// there was no room.
    pub refused: u64,
    /// Frames that had to be segmented but are neither TCP nor UDP. They are lost.
    pub unknown: u64,
}

struct BridgePort {
    socket: PacketSocket,
    name: String,
    counts: PortCounts,
    /// Model for the frames that arrive at this interface.
    inward: Direction,
}

/// Bridge that carries every frame of one interface to the other, according to the models of the
/// two directions.
///
/// The interfaces should have no addresses, because the kernel also sees their frames. VLAN tags
/// are not carried. Opening a bridge needs CAP_NET_RAW.
pub struct Bridge {
    ports: [BridgePort; 2],
    start: Instant,
    scratch: Vec<u8>,
    realtime: bool,
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge")
            .field("between", &[&self.ports[0].name, &self.ports[1].name])
            .finish_non_exhaustive()
    }
}

impl Bridge {
    /// Opens both interfaces, with the same path model in both directions. Random choices are
    /// derived from `seed`.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface, `PermissionDenied` without CAP_NET_RAW;
    /// `InvalidInput` that contains a [`uiw_impair::wan::ProfileError`]; OS errors.
    pub fn open(names: [&str; 2], profile: &Profile, seed: u64) -> io::Result<Self> {
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let port = |name: &str, seed| -> io::Result<BridgePort> {
            let inward = Direction::new(profile, seed).map_err(wrong)?;
            let (socket, _) = PacketSocket::open(name, FrameFilter::All)?;
            Ok(BridgePort { socket, name: name.to_owned(), counts: PortCounts::default(), inward })
        };
        let [a, b] = names;
        // The losses of the two directions are independent.
        let ports = [port(a, seed)?, port(b, !seed)?];
        Ok(Self {
            ports,
            start: Instant::now(),
            scratch: vec![0; HEADER + LONGEST],
            realtime: false,
        })
    }

    /// Sets whether [`Self::run`] gives its thread the scheduling class SCHED_FIFO, so that frames
    /// leave in time even on a busy machine. While the thread carries frames it may use a whole
    /// processor, so the machine needs two.
    pub fn set_realtime(&mut self, realtime: bool) {
        self.realtime = realtime;
    }

    /// Carries frames until `stop` is readable. Logs a warning if frames leave more than a
    /// millisecond late on average.
    ///
    /// # Errors
    /// `NetworkDown` if an interface is gone or down; `PermissionDenied` if [`Self::set_realtime`]
    /// was used without CAP_SYS_NICE; OS errors.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        if self.realtime {
            schedule::enter_realtime()?;
        }
        let mut lateness = Lateness::default();
        // With the default timer slack, a sleep may end 50 microseconds late.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        loop {
            let moved = self.carry()?;
            let [a, b] = &self.ports;
            if let Some(late) =
                lateness.judge(self.start.elapsed(), [a.inward.counts(), b.inward.counts()])
            {
                tracing::warn!(
                    late_us = late.as_micros(),
                    realtime = self.realtime,
                    "frames leave late: this machine is too busy for the path"
                );
            }
            let next = self.ports.iter().filter_map(|port| port.inward.next()).min();
            let wait = next.map(|at| at.saturating_sub(self.start.elapsed()));
            let wait = match wait {
                Some(wait) if moved || wait < SPIN => Some(Duration::ZERO),
                Some(wait) => Some(wait - SPIN),
                None if moved => Some(Duration::ZERO),
                None => None,
            };
            if self.is_stopped(stop, wait)? {
                return self.count_missed();
            }
        }
    }

    fn is_stopped(&self, stop: BorrowedFd<'_>, wait: Option<Duration>) -> io::Result<bool> {
        let [a, b] = &self.ports;
        let mut fds = [
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::from_borrowed_fd(a.socket.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(b.socket.fd(), PollFlags::IN),
        ];
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!fds[0].revents().is_empty()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads frames that have arrived, and sends those that are due. Returns whether a frame was
    /// moved.
    fn carry(&mut self) -> io::Result<bool> {
        let mut moved = false;
        for side in [BridgeSide::A, BridgeSide::B] {
            let [a, b] = &mut self.ports;
            let (from, to) = match side {
                BridgeSide::A => (a, b),
                BridgeSide::B => (b, a),
            };
            for _ in 0..BURST {
                if !from.take_in(&mut self.scratch, self.start)? {
                    break;
                }
                moved = true;
            }
            let now = self.start.elapsed();
            for _ in 0..BURST {
                let Some(frame) = from.inward.take(now) else { break };
                to.send(&frame)?;
                moved = true;
            }
        }
        Ok(moved)
    }

    fn count_missed(&mut self) -> io::Result<()> {
        for port in &mut self.ports {
            port.counts.missed += port.socket.missed()?;
        }
        Ok(())
    }

    /// Returns the counters of frames that arrived at an interface.
    #[must_use]
    pub fn counts(&self, side: BridgeSide) -> (&Counts, PortCounts) {
        let port = &self.ports[side as usize];
        (port.inward.counts(), port.counts)
    }
}

impl BridgePort {
    /// Reads a frame. Returns false if there is none. The kernel may have combined several frames
    /// into one, for a network card to split, so the frame is split first.
    fn take_in(&mut self, scratch: &mut [u8], start: Instant) -> io::Result<bool> {
        let len = match self.socket.recv(scratch) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return self.judge(error).map(|()| false),
        };
        let now = start.elapsed();
        let Some(frame) = scratch.get(HEADER..len) else { return Ok(true) };
        let inward = &mut self.inward;
        if !segments::split_frame(Header::parse(scratch), frame, &mut |frame| {
            inward.offer(now, frame);
        }) {
            self.counts.unknown += 1;
        }
        Ok(true)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        // A header of zeros requests no offloads.
        match self.socket.send_parts(&[0; HEADER], frame) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.counts.refused += 1;
                self.judge(error)
            }
        }
    }

    /// Returns the error if it ends the path. An error that affects only the current frame is
    /// ignored.
    fn judge(&self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Err(io::Error::new(
                io::ErrorKind::NetworkDown,
                format!("`{}` is gone or down", self.name),
            )),
            Some(libc::ENOBUFS | libc::EMSGSIZE | libc::EAGAIN | libc::EINVAL) => Ok(()),
            _ => Err(error),
        }
    }
}
