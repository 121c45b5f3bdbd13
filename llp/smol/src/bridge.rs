//! Two interfaces with a path between them.

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

/// Frames of one interface in one go.
const BURST: usize = 64;
/// Shortest sleep: a shorter one would take longer than requested, so the clock is watched instead.
const SPIN: Duration = Duration::from_micros(60);

/// An interface of the two.
///
/// It needs CAP_NET_RAW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgeSide {
    /// The first.
    A,
    /// The second.
    B,
}

/// Frames that an interface handled in addition to the model of its direction.
///
/// It needs CAP_NET_RAW.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Frames that came faster than they were read: lost without the model's knowledge.
    pub missed: u64,
    /// Frames that the interface did not take when they were due: too long for it, or no room.
    pub refused: u64,
    /// Frames that were to be cut, but not of TCP or UDP: lost.
    pub unknown: u64,
}

struct BridgePort {
    socket: PacketSocket,
    name: String,
    counts: PortCounts,
    /// Model of the frames that arrive here.
    inward: Direction,
}

/// Carries every frame of one interface to the other, as two directions have it. Needs CAP_NET_RAW.
/// The interfaces should have no addresses: the kernel sees their frames too. VLAN tags are not
/// carried.
///
/// It needs CAP_NET_RAW.
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
    /// Opens both interfaces, for the same path in both directions; random choices follow from
    /// `seed`.
    ///
    /// # Errors
    /// `NotFound` when there is no such interface, `PermissionDenied` without CAP_NET_RAW;
    /// `InvalidInput` with a [`uiw_impair::wan::ProfileError`] inside; the system's.
    pub fn open(names: [&str; 2], profile: &Profile, seed: u64) -> io::Result<Self> {
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let port = |name: &str, seed| -> io::Result<BridgePort> {
            let inward = Direction::new(profile, seed).map_err(wrong)?;
            let (socket, _) = PacketSocket::open(name, FrameFilter::All)?;
            Ok(BridgePort { socket, name: name.to_owned(), counts: PortCounts::default(), inward })
        };
        let [a, b] = names;
        // Both directions have losses of their own.
        let ports = [port(a, seed)?, port(b, !seed)?];
        Ok(Self { ports, start: Instant::now(), scratch: vec![0; HEADER + LONGEST], realtime: false })
    }

    /// [`Self::run`] gives its thread the scheduling class SCHED_FIFO: frames leave in time on a
    /// busy machine as well. While frames are on their way it keeps a processor busy, so the
    /// machine needs two.
    pub fn set_realtime(&mut self, realtime: bool) {
        self.realtime = realtime;
    }

    /// Carries frames until `stop` is readable. Where they leave more than a millisecond late on
    /// average, the log has a warning.
    ///
    /// # Errors
    /// An interface is gone or down; `PermissionDenied` for [`Self::set_realtime`] without
    /// CAP_SYS_NICE; the system's.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        if self.realtime {
            schedule::enter_realtime()?;
        }
        let mut lateness = Lateness::default();
        // A sleep may end 50 microseconds late otherwise.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        loop {
            let moved = self.carry()?;
            let [a, b] = &self.ports;
            if let Some(late) = lateness.judge(self.start.elapsed(), [a.inward.counts(), b.inward.counts()]) {
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

    /// Takes what came, and sends what is due. True when a frame moved.
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
    /// Takes a frame, or several that were one for want of a card.
    fn take_in(&mut self, scratch: &mut [u8], start: Instant) -> io::Result<bool> {
        let len = match self.socket.recv(scratch) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return self.judge(error).map(|()| false),
        };
        let now = start.elapsed();
        let Some(frame) = scratch.get(HEADER..len) else { return Ok(true) };
        let inward = &mut self.inward;
        if !segments::split_frame(Header::parse(scratch), frame, &mut |frame| inward.offer(now, frame)) {
            self.counts.unknown += 1;
        }
        Ok(true)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        // A header of zeros: nothing is left to do for the interface.
        match self.socket.send_parts(&[0; HEADER], frame) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.counts.refused += 1;
                self.judge(error)
            }
        }
    }

    /// Errors that end a path, and those that cost a frame.
    fn judge(&self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                Err(io::Error::new(io::ErrorKind::NetworkDown, format!("`{}` is gone or down", self.name)))
            }
            Some(libc::ENOBUFS | libc::EMSGSIZE | libc::EAGAIN | libc::EINVAL) => Ok(()),
            _ => Err(error),
        }
    }
}
