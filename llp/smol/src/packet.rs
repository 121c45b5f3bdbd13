//! AF_PACKET with virtio-net headers: frames of an interface that the kernel uses as well. Needs
//! CAP_NET_RAW only.
//!
//! The header carries what a network card would do: TCP packets of up to 64 KiB leave whole and are
//! cut by the interface, and what came in segments may arrive as one. The kernel's own stack sees
//! the frames too; ours have a MAC and an IP address of their own, so to it they are another
//! host's.

mod filter;
pub(crate) mod socket;
pub(crate) mod virtio;

use super::SmolConfig;
use super::claim::Claim;
use super::link::{Capabilities, Frame, Link, LinkLoss, Segmentation};
use socket::{FrameFilter, PacketSocket};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use uiw_llp::Interface;
use virtio::{HEADER, Header};

/// Longest frame: an IPv6 packet with 65,535 bytes behind its header, and the Ethernet header.
pub(crate) const LONGEST: usize = 65_535 + 40 + 14;
/// Longest frame that is sent for the interface to cut. From 65,536 bytes on (`gso_max_size`) the
/// kernel cuts in software, before the interface: half the throughput on a veth.
const LONGEST_SENT: usize = 65_535;
/// Frames that wait for the interface to have room.
const WAITING: usize = 64;
/// Interval at which a failed interface is checked while it is used.
const LOOK: Duration = Duration::from_millis(200);
/// Interval while it is not used.
const LOOK_DOWN: Duration = Duration::from_secs(1);
/// Buffers kept.
const SPARE: usize = 256;

/// A link over one interface of this machine.
///
/// It needs CAP_NET_RAW.
pub struct PacketLink {
    socket: PacketSocket,
    mtu: usize,
    /// Frames that the interface had no room for, oldest first, each with the bytes that it takes
    /// of its buffer.
    waiting: VecDeque<(Vec<u8>, usize)>,
    free: Vec<Vec<u8>>,
    /// Buffer for the next frame: long enough for any, set to zero once.
    scratch: Vec<u8>,
    failure: Option<LinkLoss>,
    interface: Interface,
    /// Time when the failed interface was checked last.
    looked: Instant,
    /// Claim of the addresses for which the interface receives frames.
    _claim: Option<Claim>,
}

impl fmt::Debug for PacketLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketLink")
            .field("mtu", &self.mtu)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl PacketLink {
    /// Opens `interface` for frames to the MAC address of `config` and to groups.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW; `NotFound` when there is no such interface,
    /// `NetworkDown`, `Unsupported` where it has no Ethernet frames; `AddrInUse` for addresses of
    /// the kernel's or of another process; the system's.
    pub fn open(interface: &str, config: &SmolConfig) -> io::Result<Self> {
        let (socket, mtu) = PacketSocket::open(interface, FrameFilter::For(config.mac))?;
        Self::new(interface, socket, mtu, Some(Claim::new(interface, config)?))
    }

    /// Opens a second link to `interface`, only for frames to multicast groups. It receives none
    /// before [`PacketLink::take_groups`].
    pub(super) fn for_groups(interface: &str) -> io::Result<Self> {
        let (socket, mtu) = PacketSocket::open(interface, FrameFilter::Nothing)?;
        Self::new(interface, socket, mtu, None)
    }

    /// Returns whether frames to groups come. It needs no privilege, and may be called in another
    /// network namespace.
    pub(super) fn take_groups(&mut self, taken: bool) -> io::Result<()> {
        self.socket.take_groups(self.interface.index as libc::c_int, taken)?;
        if !taken {
            // What is left would keep the descriptor readable.
            while let Some(frame) = self.receive() {
                self.recycle(frame);
            }
        }
        Ok(())
    }

    fn new(interface: &str, socket: PacketSocket, mtu: usize, claim: Option<Claim>) -> io::Result<Self> {
        Ok(Self {
            interface: Interface::find(interface)?,
            looked: Instant::now(),
            _claim: claim,
            socket,
            mtu,
            waiting: VecDeque::new(),
            free: Vec::new(),
            scratch: vec![0; HEADER + LONGEST],
            failure: None,
        })
    }

    /// Returns whether this process may use AF_PACKET at all.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW; the system's.
    pub fn permitted() -> io::Result<()> {
        PacketSocket::closed().map(drop)
    }

    fn note(&mut self, error: &io::Error) {
        // ENETDOWN, ENXIO, ENODEV: the interface was deleted or is down.
        let gone = [libc::ENETDOWN, libc::ENXIO, libc::ENODEV];
        if error.raw_os_error().is_some_and(|code| gone.contains(&code)) {
            self.failure.get_or_insert(LinkLoss::Down);
            self.looked = Instant::now();
        }
    }

    /// An interface that was down may be up again; the kernel gives frames to the socket again
    /// then. One that was deleted is gone, though another one may have its name.
    fn look(&mut self) {
        match Interface::find(&self.interface.name) {
            Ok(now) if now.index != self.interface.index => self.failure = Some(LinkLoss::Deleted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.failure = Some(LinkLoss::Deleted),
            Ok(now) if now.is_up => {
                self.failure = None;
                self.waiting.clear();
            }
            _ => {}
        }
    }

    /// Sends what waits, as far as there is room.
    fn send_waiting(&mut self) {
        while let Some((buffer, len)) = self.waiting.front() {
            match self.socket.send(&buffer[..*len]) {
                Ok(()) => {}
                Err(error) if is_full(&error) => return,
                // A frame that cannot be sent is a lost one.
                Err(error) => self.note(&error),
            }
            if let Some((buffer, _)) = self.waiting.pop_front()
                && self.free.len() < SPARE
            {
                self.free.push(buffer);
            }
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// A received frame behind its header.
///
/// It needs CAP_NET_RAW.
#[derive(Debug)]
pub struct PacketFrame {
    buffer: Vec<u8>,
    len: usize,
    checked: bool,
    datagram_size: Option<usize>,
}

impl Frame for PacketFrame {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer[HEADER..self.len]
    }

    fn is_checked(&self) -> bool {
        self.checked
    }

    fn datagram_size(&self) -> Option<usize> {
        self.datagram_size
    }
}

impl Link for PacketLink {
    type Frame = PacketFrame;

    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: self.mtu, segmentation: Some(LONGEST_SENT), partial_checksums: false }
    }

    fn receive(&mut self) -> Option<PacketFrame> {
        if self.scratch.is_empty() {
            // The frame before was not given back.
            self.scratch = vec![0; HEADER + LONGEST];
        }
        let len = match self.socket.recv(&mut self.scratch) {
            Ok(len) if len > HEADER => len,
            Ok(_) => return None,
            Err(error) => {
                self.note(&error);
                return None;
            }
        };
        let header = Header::parse(&self.scratch);
        let datagram_size = (header.gso() == virtio::GSO_UDP_L4).then(|| header.gso_size());
        let buffer = std::mem::take(&mut self.scratch);
        Some(PacketFrame { buffer, len, checked: header.is_checked(), datagram_size })
    }

    fn recycle(&mut self, frame: PacketFrame) {
        // Its length stays: to set 64 KiB to zero for every frame would cost more than the frame.
        self.scratch = frame.buffer;
    }

    fn has_room(&mut self) -> bool {
        self.waiting.len() < WAITING
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<Segmentation>) {
        let mut buffer = self.free.pop().unwrap_or_default();
        let whole = HEADER + len;
        if buffer.len() < whole {
            // Once for its life: to set 64 KiB to zero for every frame costs a twentieth of the
            // throughput.
            buffer.resize(whole, 0);
        }
        let segmentation = fill(&mut buffer[HEADER..whole]);
        virtio::complete(&mut buffer[..whole], segmentation);
        self.waiting.push_back((buffer, whole));
        // Room may be short; order is kept.
        if self.waiting.len() >= 8 {
            self.send_waiting();
        }
    }

    fn flush(&mut self) {
        self.send_waiting();
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.fd())
    }

    fn watch(&self) -> Option<Instant> {
        // One that is down may be deleted, and the socket gets no second event.
        (self.failure == Some(LinkLoss::Down)).then(|| self.looked + LOOK_DOWN)
    }

    fn failure(&mut self, now: Instant) -> Option<io::Error> {
        if self.failure == Some(LinkLoss::Down) && now.saturating_duration_since(self.looked) >= LOOK {
            self.looked = now;
            self.look();
        }
        self.failure.map(|gone| gone.error(&self.interface.name))
    }
}
