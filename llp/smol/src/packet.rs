//! Link over AF_PACKET with virtio-net headers, on an interface that the kernel uses as well. This
//! needs only CAP_NET_RAW.
//!
//! The header requests the offloads of a network card: TCP packets of up to 64 KiB are sent as a
//! whole and split by the interface, and segments may be received combined. The kernel's own stack
//! sees the frames too. Our frames have their own MAC and IP addresses, so for the kernel they
//! belong to another host.

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

/// Size of the longest frame: an IPv6 packet with 65,535 bytes after its header, and the Ethernet
/// header.
pub(crate) const LONGEST: usize = 65_535 + 40 + 14;
/// Size of the longest frame that is sent for the interface to split. The kernel splits frames
/// above this size (`gso_max_size`) in software, before they reach the interface, which costs much
/// of the throughput.
const LONGEST_SENT: usize = 65_535;
/// Maximum number of frames that wait to be sent.
const WAITING: usize = 64;
/// Maximum number of frames that wait, including replies, which are also queued without room.
const WAITING_REPLIES: usize = 4 * WAITING;
/// Interval at which a failed interface is checked while it is used.
const LOOK: Duration = Duration::from_millis(200);
/// Interval at which a failed interface is checked while it is not used.
const LOOK_DOWN: Duration = Duration::from_secs(1);
/// Time after which frames for which the interface had no room are sent.
const AGAIN: Duration = Duration::from_millis(1);
/// Maximum number of sent buffers that are kept for reuse.
const SPARE: usize = 256;

/// Link over one interface of this host. Opening it needs CAP_NET_RAW.
pub struct PacketLink {
    socket: PacketSocket,
    mtu: usize,
    /// Frames to send, oldest first, with the number of used bytes in each buffer.
    waiting: VecDeque<(Vec<u8>, usize)>,
    free: Vec<Vec<u8>>,
    /// Time of the next flush, if frames wait. No event reports that the interface has room.
    again: Option<Instant>,
    /// Buffer for the next received frame. It has the maximum size, and is zeroed only once.
    scratch: Vec<u8>,
    failure: Option<LinkLoss>,
    interface: Interface,
    /// Time at which the failed interface was last checked.
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
    /// Opens `interface` for frames to the MAC address of `config`, and to multicast groups.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW; `NotFound` if there is no such interface,
    /// `NetworkDown`, `Unsupported` if it has no Ethernet frames; `AddrInUse` for addresses of the
    /// kernel or of another process; OS errors.
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

    /// Sets whether frames to multicast groups are received. This needs no privilege, and may be
    /// called in another network namespace.
    pub(super) fn take_groups(&mut self, taken: bool) -> io::Result<()> {
        self.socket.take_groups(self.interface.index as libc::c_int, taken)?;
        if !taken {
            // Frames that have already arrived would keep the descriptor readable.
            while let Some(frame) = self.receive() {
                self.recycle(frame);
            }
        }
        Ok(())
    }

    fn new(
        interface: &str,
        socket: PacketSocket,
        mtu: usize,
        claim: Option<Claim>,
    ) -> io::Result<Self> {
        Ok(Self {
            interface: Interface::find(interface)?,
            looked: Instant::now(),
            _claim: claim,
            socket,
            mtu,
            waiting: VecDeque::new(),
            free: Vec::new(),
            again: None,
            scratch: vec![0; HEADER + LONGEST],
            failure: None,
        })
    }

    /// Checks whether this process may use AF_PACKET.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW; OS errors.
    pub fn permitted() -> io::Result<()> {
        PacketSocket::closed().map(drop)
    }

    fn note(&mut self, error: &io::Error) {
        // ENETDOWN, ENXIO and ENODEV mean that the interface was deleted or is down.
        let gone = [libc::ENETDOWN, libc::ENXIO, libc::ENODEV];
        if error.raw_os_error().is_some_and(|code| gone.contains(&code)) {
            self.failure.get_or_insert(LinkLoss::Down);
            self.looked = Instant::now();
        }
    }

    /// Queries the interface, in the network namespace in which the link was opened.
    pub(super) fn find_interface(&self) -> io::Result<Interface> {
        Interface::find_by(self.socket.fd(), &self.interface.name)
    }

    /// Checks whether an interface that was down is up again, in which case the kernel delivers
    /// frames to the socket again. A deleted interface stays lost even if a new one has the same
    /// name.
    fn look(&mut self) {
        match self.find_interface() {
            Ok(now) if now.index != self.interface.index => self.failure = Some(LinkLoss::Deleted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.failure = Some(LinkLoss::Deleted);
            }
            Ok(now) if now.is_up => {
                self.failure = None;
                self.waiting.clear();
            }
            _ => {}
        }
    }

    /// Sends waiting frames until the interface has no more room.
    fn send_waiting(&mut self) {
        while let Some((buffer, len)) = self.waiting.front() {
            match self.socket.send(&buffer[..*len]) {
                Ok(()) => {}
                Err(error) if is_full(&error) => return,
                // A frame that cannot be sent is lost.
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

/// Received frame. In the buffer, its virtio-net header precedes it.
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
            // The previous frame was not returned.
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
        // The buffer keeps its full length, because zeroing 64 KiB for every frame would cost more
        // than handling the frame.
        self.scratch = frame.buffer;
    }

    fn has_room(&mut self) -> bool {
        self.waiting.len() < WAITING
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<Segmentation>) {
        let mut buffer = self.free.pop().unwrap_or_default();
        let whole = HEADER + len;
        if buffer.len() < whole {
            // A buffer is extended only when a longer frame needs it, because zeroing 64 KiB for
            // every frame would be expensive.
            buffer.resize(whole, 0);
        }
        let segmentation = fill(&mut buffer[HEADER..whole]);
        if self.waiting.len() >= WAITING_REPLIES {
            self.free.push(buffer);
            return;
        }
        virtio::complete(&mut buffer[..whole], segmentation);
        self.waiting.push_back((buffer, whole));
        // Frames always pass through the queue, which keeps them in order when there is no room.
        // They are sent in batches; `flush` sends the rest.
        if self.waiting.len() >= 8 {
            self.send_waiting();
        }
    }

    fn flush(&mut self) {
        self.send_waiting();
        self.again = if self.waiting.is_empty() { None } else { Instant::now().checked_add(AGAIN) };
    }

    fn next(&self) -> Option<Instant> {
        self.again
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.fd())
    }

    fn watch(&self) -> Option<Instant> {
        // An interface that is down may be deleted later, and the socket does not report this.
        (self.failure == Some(LinkLoss::Down)).then(|| self.looked + LOOK_DOWN)
    }

    fn failure(&mut self, now: Instant) -> Option<io::Error> {
        if self.failure == Some(LinkLoss::Down)
            && now.saturating_duration_since(self.looked) >= LOOK
        {
            self.looked = now;
            self.look();
        }
        self.failure.map(|gone| gone.error(&self.interface.name))
    }
}
