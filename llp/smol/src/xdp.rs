//! Link over AF_XDP: frames pass between the driver and this process without the kernel's stack.
//! This needs CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN.
//!
//! A program on the interface (`xdp::program`) redirects the frames for our MAC address, and the
//! queries for our IP addresses, to this process. All other frames go to the kernel. This includes
//! frames to multicast groups: group members in the kernel's stack need them, and a program cannot
//! deliver a frame to both. While groups are joined, an AF_PACKET socket receives copies of these
//! frames.
//!
//! There is one AF_XDP socket for each receive queue, each with its own memory (`xdp::umem`). Each
//! flow sends through one of these sockets. Different flows therefore use the memory of all
//! sockets, and an interface at the other end that keeps the queues separate (like a veth)
//! distributes the flows over its own queues.

mod bpf;
mod features;
mod program;
mod ring;
mod socket;
#[cfg(test)]
mod tests;
mod umem;

use super::SmolConfig;
use super::claim::Claim;
use super::link::{Capabilities, Frame, Link, LinkLoss, Segmentation};
use super::segment::ETHERNET_HEADER;
use crate::netdev::{Queues, ethernet_address, is_virtual, mtu_of};
use crate::packet::{PacketFrame, PacketLink};
pub use features::XdpFeatures;
use rustix::event::epoll;
use socket::{ReceivedFrame, XdpSocket};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::time::{Duration, Instant};
use uiw_llp::interface::index_of;

/// Interval at which the interface and its program are checked while frames arrive.
const LOOK: Duration = Duration::from_millis(200);
/// Like [`LOOK`], while no frames arrive.
const LOOK_IDLE: Duration = Duration::from_secs(1);

/// Time after which frames that the kernel has left in a ring are submitted again. There is no
/// event when the resource for which the kernel waited (its own memory, a queue of the interface)
/// becomes available.
const AGAIN: Duration = Duration::from_micros(200);

/// Number of redirected frames after which the AF_PACKET socket of the groups is read, which costs
/// a system call each time.
const GROUPS_TURN: u32 = 64;

/// Errors that no other mode would avoid.
const NO_OTHER_MODE: [io::ErrorKind; 3] =
    [io::ErrorKind::PermissionDenied, io::ErrorKind::ResourceBusy, io::ErrorKind::AddrInUse];

/// Mode in which the program is attached and frames are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// The best mode that works: zero copy, otherwise native, otherwise generic.
    #[default]
    Auto,
    /// The driver runs the program, and frames stay in the memory to which the network card has
    /// written them.
    ZeroCopy,
    /// The driver runs the program; frames are copied.
    Native,
    /// The kernel runs the program before its own stack, with every driver. The interface must not
    /// merge segments (`gro off`, and `tso off gso off` at a virtual peer), because larger frames
    /// are lost.
    Generic,
}

impl FromStr for XdpMode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "zerocopy" => Ok(Self::ZeroCopy),
            "native" => Ok(Self::Native),
            "generic" => Ok(Self::Generic),
            _ => Err(()),
        }
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::ZeroCopy => "zerocopy",
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// Link over AF_XDP. Opening it needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF.
pub struct XdpLink {
    sockets: Vec<XdpSocket>,
    /// Number of sockets whose queue can also send.
    senders: usize,
    /// Index of the socket that is currently used for sending.
    sending: usize,
    /// Index of the socket from which the next frame is read.
    turn: usize,
    /// Link for frames to groups, which receives them while groups are joined. It is opened
    /// together with the sockets, because the process may have fewer privileges later.
    groups: PacketLink,
    /// True while frames to groups are received.
    has_groups: bool,
    /// Number of redirected frames since `groups` was last read.
    since_groups: u32,
    /// Epoll set with the descriptors of the sockets, if there are several.
    set: Option<OwnedFd>,
    /// Keeps the program attached.
    attachment: bpf::Attachment,
    mode: XdpMode,
    interface: String,
    index: u32,
    mtu: usize,
    is_virtual: bool,
    looked: Instant,
    /// Time of the next flush, if frames are left in a ring.
    again: Option<Instant>,
    failure: Option<LinkLoss>,
    /// Buffer in which frames that are longer than a chunk are built.
    scratch: Vec<u8>,
    _claim: Claim,
}

impl fmt::Debug for XdpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdpLink")
            .field("interface", &self.interface)
            .field("mode", &self.mode)
            .field("mtu", &self.mtu)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl XdpLink {
    /// Attaches to `interface` for the addresses of `config`.
    ///
    /// # Errors
    /// `PermissionDenied` without the capabilities, `NotFound` if there is no such interface,
    /// `NetworkDown`, `Unsupported` if it has no Ethernet frames; `AddrInUse` for addresses of the
    /// kernel or of another process; `ResourceBusy` if another program is attached, `InvalidInput`
    /// if the driver lacks the mode, `OutOfMemory` if RLIMIT_MEMLOCK is too small for the frames;
    /// OS errors.
    pub fn open(interface: &str, mode: XdpMode, config: &SmolConfig) -> io::Result<Self> {
        let index = index_of(interface)?;
        let modes: &[XdpMode] = match mode {
            XdpMode::Auto => &[XdpMode::ZeroCopy, XdpMode::Native, XdpMode::Generic],
            ref one => std::slice::from_ref(one),
        };
        // Missing permissions are reported first.
        socket::socket()?;
        ethernet_address(interface)?;
        let mut last = None;
        for mode in modes {
            match Self::open_as(interface, index, *mode, config) {
                Ok(link) => {
                    tracing::info!(interface, %mode, queues = link.sockets.len(), "AF_XDP");
                    return Ok(link);
                }
                Err(error) if NO_OTHER_MODE.contains(&error.kind()) => return Err(error),
                Err(error) => {
                    tracing::debug!(interface, %mode, %error, "not in this mode");
                    last = Some(error);
                }
            }
        }
        Err(match last {
            Some(error)
                if mode != XdpMode::Auto && error.raw_os_error() == Some(libc::EOPNOTSUPP) =>
            {
                let why = format!("the interface's driver has no mode={mode}");
                io::Error::new(io::ErrorKind::InvalidInput, why)
            }
            last => last.unwrap_or_else(|| io::ErrorKind::Unsupported.into()),
        })
    }

    fn open_as(
        interface: &str,
        index: u32,
        mode: XdpMode,
        config: &SmolConfig,
    ) -> io::Result<Self> {
        let mtu = mtu_of(interface)?;
        let layout = umem::Layout::for_frames(mtu + ETHERNET_HEADER);
        let queues = Queues::query(interface)?;
        let map = bpf::XskMap::create(queues.rx)?;
        let instructions = program::redirect(map.fd(), config);
        let program = bpf::Program::load(&instructions, layout.several)?;
        let attachment = bpf::Attachment::new(&program, index, mode == XdpMode::Generic)?;
        let claim = Claim::new(interface, config)?;
        let mut sockets = Vec::new();
        for queue in 0..queues.rx {
            let socket = XdpSocket::open(index, queue, mode == XdpMode::ZeroCopy, &layout)?;
            map.set(queue, socket.fd())?;
            sockets.push(socket);
        }
        let set = match sockets.len() {
            1 => None,
            _ => {
                let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                for socket in &sockets {
                    epoll::add(
                        &set,
                        socket.fd(),
                        epoll::EventData::new_u64(0),
                        epoll::EventFlags::IN,
                    )?;
                }
                Some(set)
            }
        };
        Ok(Self {
            senders: sockets.len().min(queues.tx as usize),
            sending: 0,
            turn: 0,
            groups: PacketLink::for_groups(interface)?,
            has_groups: false,
            since_groups: 0,
            sockets,
            set,
            attachment,
            mode,
            interface: interface.to_owned(),
            index,
            mtu,
            is_virtual: is_virtual(interface)?,
            looked: Instant::now(),
            again: None,
            failure: None,
            scratch: Vec::new(),
            _claim: claim,
        })
    }

    /// Checks whether this process may use AF_XDP, by creating a socket, a map and a program
    /// without attaching anything.
    ///
    /// # Errors
    /// `PermissionDenied` without the capabilities; OS errors.
    pub fn permitted() -> io::Result<()> {
        socket::socket()?;
        let map = bpf::XskMap::create(1)?;
        let config = SmolConfig::new(std::net::Ipv4Addr::LOCALHOST.into(), 8);
        bpf::Program::load(&program::redirect(map.fd(), &config), false).map(drop)
    }

    /// Returns the size of the memory for the frames of an interface, in bytes. Without
    /// CAP_IPC_LOCK this memory counts against the limit of locked memory.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface; OS errors.
    pub fn frame_memory(interface: &str) -> io::Result<usize> {
        let layout = umem::Layout::for_frames(mtu_of(interface)? + ETHERNET_HEADER);
        Ok(layout.chunk * umem::CHUNKS as usize * Queues::query(interface)?.rx as usize)
    }

    /// Returns the mode in which the program is attached.
    #[must_use]
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Returns the next frame that the program has redirected.
    fn redirected(&mut self) -> Option<XdpFrame> {
        // The queues are read in turn, so a queue that is always busy does not starve the others.
        for _ in 0..self.sockets.len() {
            let queue = self.turn;
            self.turn = (queue + 1) % self.sockets.len();
            if let Some(received) = self.sockets[queue].receive() {
                return Some(XdpFrame(FrameSource::Queue { queue, received }));
            }
        }
        None
    }

    fn look(&mut self) {
        match self.groups.find_interface() {
            Ok(now) if now.index != self.index => self.failure = Some(LinkLoss::Deleted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.failure = Some(LinkLoss::Deleted);
            }
            Ok(_) if !self.attachment.is_attached() => self.failure = Some(LinkLoss::Detached),
            // The interface was down and is up again.
            Ok(now) if now.is_up => self.failure = None,
            _ => {}
        }
    }
}

/// Frame received by an [`XdpLink`]: in the memory that the driver has filled, copied from several
/// pieces, or read from the AF_PACKET socket of the groups.
pub struct XdpFrame(FrameSource);

/// Origin of a received frame.
enum FrameSource {
    Queue { queue: usize, received: ReceivedFrame },
    Groups(PacketFrame),
}

impl fmt::Debug for XdpFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = match &self.0 {
            FrameSource::Queue { queue, .. } => Some(queue),
            FrameSource::Groups(_) => None,
        };
        f.debug_struct("XdpFrame").field("queue", &queue).finish_non_exhaustive()
    }
}

impl Frame for XdpFrame {
    fn bytes(&mut self) -> &mut [u8] {
        match &mut self.0 {
            FrameSource::Queue { received, .. } => received.bytes(),
            FrameSource::Groups(frame) => frame.bytes(),
        }
    }

    fn is_checked(&self) -> bool {
        match &self.0 {
            FrameSource::Queue { .. } => false,
            FrameSource::Groups(frame) => frame.is_checked(),
        }
    }

    fn datagram_size(&self) -> Option<usize> {
        match &self.0 {
            FrameSource::Queue { .. } => None,
            FrameSource::Groups(frame) => frame.datagram_size(),
        }
    }
}

impl Link for XdpLink {
    type Frame = XdpFrame;

    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: self.mtu, segmentation: None, partial_checksums: self.is_virtual }
    }

    fn receive(&mut self) -> Option<XdpFrame> {
        if !self.has_groups {
            return self.redirected();
        }
        let groups_first = self.since_groups >= GROUPS_TURN;
        if !groups_first && let Some(frame) = self.redirected() {
            self.since_groups += 1;
            return Some(frame);
        }
        self.since_groups = 0;
        match self.groups.receive() {
            Some(frame) => Some(XdpFrame(FrameSource::Groups(frame))),
            None if groups_first => self.redirected(),
            None => None,
        }
    }

    fn recycle(&mut self, frame: XdpFrame) {
        match frame.0 {
            FrameSource::Queue { queue, received } => {
                // Not a frame of this link if it has no such queue.
                if let Some(socket) = self.sockets.get_mut(queue) {
                    socket.recycle(received);
                }
            }
            FrameSource::Groups(frame) => self.groups.recycle(frame),
        }
    }

    fn start_groups(&mut self) -> io::Result<Option<BorrowedFd<'_>>> {
        self.groups.take_groups(true)?;
        self.has_groups = true;
        Ok(self.groups.fd())
    }

    fn stop_groups(&mut self) {
        // If the kernel refuses this, `groups` still receives frames and must still be read.
        self.has_groups = self.groups.take_groups(false).is_err();
    }

    fn send_for(&mut self, flow: u64) {
        self.sending = (flow % self.senders as u64) as usize;
    }

    fn has_room(&mut self) -> bool {
        self.sockets[self.sending].has_room()
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<Segmentation>) {
        self.sockets[self.sending].transmit(len, &mut self.scratch, &mut |bytes| _ = fill(bytes));
    }

    fn flush(&mut self) {
        let mut all = true;
        for socket in &mut self.sockets {
            match socket.flush() {
                Ok(left) => all &= left,
                Err(error) => {
                    tracing::debug!(%error, "AF_XDP");
                    self.looked = Instant::now();
                    self.failure.get_or_insert(LinkLoss::Down);
                }
            }
        }
        self.again = if all { None } else { Instant::now().checked_add(AGAIN) };
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.set {
            Some(set) => Some(set.as_fd()),
            None => self.sockets.first().map(XdpSocket::fd),
        }
    }

    fn next(&self) -> Option<Instant> {
        self.again
    }

    fn watch(&self) -> Option<Instant> {
        // If the program is detached, frames go to the kernel, and no event reports this.
        self.looked.checked_add(LOOK_IDLE)
    }

    fn failure(&mut self, now: Instant) -> Option<io::Error> {
        if now.saturating_duration_since(self.looked) >= LOOK {
            self.looked = now;
            self.look();
        }
        self.failure.map(|gone| gone.error(&self.interface))
    }
}
