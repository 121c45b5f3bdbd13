//! Links: where Ethernet frames come from and go to. And the little that makes one a device of
//! smoltcp's for one frame.

use super::mss;
use super::path_mtu::PathMtu;
use super::probe::Probe;
use super::segment::{ETHERNET_HEADER, TCP_HEADER, fill_checksum};
use super::stretch::Stretch;
use crate::segments::split_tcp;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant as Tick;
use smoltcp::wire::{TcpPacket, TcpSeqNumber};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Capabilities of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Bytes of an IP packet on the wire.
    pub mtu: usize,
    /// The link cuts larger TCP packets itself, over both versions of IP, up to this many bytes
    /// with their Ethernet header, and computes the checksums of all TCP segments.
    pub segmentation: Option<usize>,
    /// Frames may come from this machine, with TCP checksums that are only begun: the sum of the
    /// pseudo-header, which hardware would complete. They are taken for right.
    pub partial_checksums: bool,
}

/// Instructions for cutting a TCP packet into segments, if a segment does not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Bytes of payload and TCP options in each: the peer's maximum segment size, at most what the
    /// MTU carries.
    pub size: u16,
}

/// A frame that came.
pub trait Frame {
    /// Returns the bytes, from the Ethernet header on.
    fn bytes(&mut self) -> &mut [u8];

    /// Returns whether the link vouches for its TCP checksum, or it never had one (it came from
    /// this machine).
    fn is_checked(&self) -> bool;

    /// Bytes of each UDP datagram but the last one, where the frame has several: one header, and
    /// their payloads one behind the other.
    fn datagram_size(&self) -> Option<usize> {
        None
    }
}

/// A link of Ethernet frames. Nothing here blocks.
///
/// ```
/// # mod uiw { pub mod smol { pub use uiw_smol::*; pub use uiw_smol::pipe::pipe; } }
/// use uiw::smol::{Frame, Link, pipe};
/// let (mut a, mut b) = pipe(1500)?;
/// assert!(a.has_room());
/// a.transmit(60, &mut |frame| {
///     frame.fill(7);
///     None
/// });
/// a.flush();
/// let mut frame = b.receive().expect("the frame of the other end");
/// assert_eq!(frame.bytes(), [7; 60]);
/// b.recycle(frame);
/// assert!(b.receive().is_none());
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Link: Send {
    /// Frame returned by [`Link::receive`].
    type Frame: Frame;

    /// Returns the capabilities of the link, which do not change.
    fn capabilities(&self) -> Capabilities;

    /// The next frame that came for our MAC or for a group: those of neighbour discovery, and any
    /// between [`Link::start_groups`] and [`Link::stop_groups`].
    fn receive(&mut self) -> Option<Self::Frame>;

    /// Takes back a frame that was used: its memory serves another one.
    fn recycle(&mut self, frame: Self::Frame);

    /// Frames that are sent from now on belong to a flow with this hash. A link with several queues
    /// has one for each flow: its frames stay in order.
    fn send_for(&mut self, _flow: u64) {}

    /// Returns whether [`Link::transmit`] has room now.
    fn has_room(&mut self) -> bool;

    /// Sends a frame of `len` bytes that `fill` writes, which then says how it is to be cut. It may
    /// be kept until [`Link::flush`].
    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<Segmentation>);

    /// Frames given so far leave.
    fn flush(&mut self);

    /// Readable when [`Link::receive`] has something.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// A multicast group was joined, and none was before. Returns a descriptor that is readable
    /// when [`Link::receive`] has a frame to a group, where [`Link::fd`] is not: the same one each
    /// time, or one that [`Link::stop_groups`] closes.
    ///
    /// # Errors
    /// `Unsupported` where frames to groups do not come; the system's.
    fn start_groups(&mut self) -> io::Result<Option<BorrowedFd<'_>>> {
        Ok(None)
    }

    /// The last multicast group was left.
    fn stop_groups(&mut self) {}

    /// Returns the time when [`Link::receive`] will have something, or [`Link::flush`] should be
    /// called again, if only the clock decides.
    fn next(&self) -> Option<Instant> {
        None
    }

    /// Returns the time when [`Link::failure`] should be checked though nothing comes, because
    /// there would be no event. It is checked while there are connections or listeners.
    fn watch(&self) -> Option<Instant> {
        None
    }

    /// Returns the reason why the link is gone, once it is: `NetworkDown` where it may come back,
    /// `NotFound` where it is gone for good (the interface was deleted, its program detached).
    /// `None` again when it is back: listeners go on then, and what was connected is lost. `now` is
    /// the stack's time: the system's, where the link is an interface.
    fn failure(&mut self, now: Instant) -> Option<io::Error>;
}

/// Reason why the link over an interface is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkLoss {
    /// It is down.
    Down,
    /// There is no such interface any more, though another one may have its name.
    Deleted,
    /// Another process has detached our XDP program.
    Detached,
}

impl LinkLoss {
    /// Like [`Link::failure`] has it.
    pub(super) fn error(self, interface: &str) -> io::Error {
        let (kind, what) = match self {
            Self::Down => (io::ErrorKind::NetworkDown, "is down"),
            Self::Deleted => (io::ErrorKind::NotFound, "was deleted"),
            Self::Detached => (io::ErrorKind::NotFound, "has lost its XDP program"),
        };
        io::Error::new(kind, format!("interface `{interface}` {what}"))
    }
}

/// A link as smoltcp sees it during one call: with one received frame, or none.
pub(super) struct Port<'a, L: Link> {
    pub(super) link: &'a mut L,
    pub(super) frame: Option<&'a mut [u8]>,
    /// State of the connection whose segments leave.
    pub(super) sender: Option<Sender<'a>>,
}

/// A connection as far as its segments on the link go.
pub(super) struct Sender<'a> {
    pub(super) stretch: &'a mut Stretch,
    pub(super) path: &'a mut PathMtu,
    pub(super) probe: &'a mut Probe,
    /// Segmentation, for links that cut.
    pub(super) segmentation: Option<Segmentation>,
    /// Time in microseconds of the stack's clock.
    pub(super) now: i64,
}

impl Sender<'_> {
    fn again(&mut self) -> Sender<'_> {
        let Self { stretch, path, probe, segmentation, now } = self;
        Sender { stretch, path, probe, segmentation: *segmentation, now: *now }
    }

    /// Handles a frame that is sent over a link whose packets have up to `mtu` bytes. Returns the
    /// payload size in bytes with which the frame has to be split, if necessary.
    fn note_sent(&mut self, frame: &mut [u8], mtu: usize) -> Option<usize> {
        let (at, start, len) = self.stretch.note_sent(frame)?;
        if len == 0 {
            place_empty(frame, at, self.stretch.acceptable());
        }
        let is_first = len > 0 && start == self.stretch.acknowledged();
        self.probe.note_sent(frame, at, is_first, self.now);
        if len == 0 {
            return None;
        }
        let headers = at + TCP_HEADER - ETHERNET_HEADER;
        let whole = self.segmentation.map_or(mtu - headers, |cut| usize::from(cut.size));
        self.path.note_sent((start, len), headers, whole, self.now)
    }
}

/// Gives a segment without bytes, whose header is at `at`, the sequence number `acceptable`. A SYN
/// and a FIN have their own.
fn place_empty(frame: &mut [u8], at: usize, acceptable: u32) {
    let segment = TcpPacket::new_unchecked(&frame[at..]);
    let acceptable = TcpSeqNumber(acceptable.cast_signed());
    if segment.syn() || segment.fin() || segment.seq_number() >= acceptable {
        return;
    }
    TcpPacket::new_unchecked(&mut frame[at..]).set_seq_number(acceptable);
    fill_checksum(frame, at);
}

impl<L: Link> Device for Port<'_, L> {
    type RxToken<'a>
        = Rx<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Tx<'a, L>
    where
        Self: 'a;

    fn receive(&mut self, _: Tick) -> Option<(Rx<'_>, Tx<'_, L>)> {
        let frame = self.frame.take()?;
        Some((Rx(frame), Tx { link: self.link, sender: self.sender.as_mut().map(Sender::again) }))
    }

    fn transmit(&mut self, _: Tick) -> Option<Tx<'_, L>> {
        self.link
            .has_room()
            .then_some(Tx { link: self.link, sender: self.sender.as_mut().map(Sender::again) })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let ours = self.link.capabilities();
        let mut theirs = DeviceCapabilities::default();
        theirs.medium = Medium::Ethernet;
        // Where the link cuts, of the longest packet: see `mss`.
        theirs.max_transmission_unit =
            ours.segmentation.unwrap_or(longest_packet(ours.mtu) + ETHERNET_HEADER);
        // Received segments are verified before smoltcp sees them: whether one needs it is known
        // only here.
        theirs.checksum.tcp = if ours.segmentation.is_some() { Checksum::None } else { Checksum::Tx };
        let cut = |headers| {
            ours.segmentation
                .and_then(|longest| NonZeroUsize::new(whole_segments(longest, ours.mtu, headers)))
        };
        theirs.segmentation.tcpv4 = cut(IPV4_AND_TCP);
        theirs.segmentation.tcpv6 = cut(IPV6_AND_TCP);
        theirs
    }
}

/// Bytes of the longest IP packet that is sent: of the MTU, what leaves a payload of a multiple of
/// four. An FPDU has a length of that kind (RFC 5044 section 4.1), so no segment ends within its
/// CRC. Linux's siw takes no CRC that comes in two segments.
pub(super) fn longest_packet(mtu: usize) -> usize {
    mtu & !3
}

/// Bytes of the longest frame that the link is given to cut, of `longest`: one of whole segments. A
/// remainder would be a short segment behind each frame, and might end anywhere.
fn whole_segments(longest: usize, mtu: usize, ip_and_tcp: usize) -> usize {
    let headers = ETHERNET_HEADER + ip_and_tcp;
    let segment = longest_packet(mtu).saturating_sub(ip_and_tcp).max(1);
    let payload = longest.saturating_sub(headers);
    headers + if payload < segment { payload & !3 } else { payload / segment * segment }
}

/// Bytes of the two headers without options.
const IPV4_AND_TCP: usize = 40;
const IPV6_AND_TCP: usize = 60;

pub(super) struct Rx<'a>(&'a mut [u8]);

impl RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(super) struct Tx<'a, L: Link> {
    link: &'a mut L,
    sender: Option<Sender<'a>>,
}

impl<L: Link> TxToken for Tx<'_, L> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let (mut f, mut result, mut sender) = (Some(f), None, self.sender);
        let Capabilities { mtu, segmentation: cuts, .. } = self.link.capabilities();
        let mtu = longest_packet(mtu);
        if cuts.is_none()
            && let Some(sender) = &mut sender
            && sender.path.may_cut()
            && let Some(f) = f.take()
        {
            return cut(self.link, sender, mtu, len, f);
        }
        self.link.transmit(len, &mut |bytes| {
            result = f.take().map(|f| f(bytes));
            if cuts.is_some() {
                mss::limit(bytes, mtu);
            }
            let sender = sender.as_mut()?;
            let size = sender.note_sent(bytes, mtu).and_then(|size| u16::try_from(size).ok());
            size.map(|size| Segmentation { size }).or(sender.segmentation)
        });
        match (result, f) {
            (Some(result), _) => result,
            // A link that has lost its interface fills nothing; smoltcp's answer is still due.
            (None, Some(f)) => f(&mut vec![0; len]),
            (None, None) => unreachable!("what was called has a result"),
        }
    }
}

/// Sends a frame of `len` bytes that `f` writes by a link that does not cut, in as many pieces as
/// its path needs.
fn cut<L: Link, R>(
    link: &mut L,
    sender: &mut Sender<'_>,
    mtu: usize,
    len: usize,
    f: impl FnOnce(&mut [u8]) -> R,
) -> R {
    let mut frame = vec![0; len];
    let result = f(&mut frame);
    let mut send = |piece: &[u8]| {
        link.transmit(piece.len(), &mut |bytes| {
            bytes.copy_from_slice(piece);
            None
        });
    };
    let size = sender.note_sent(&mut frame, mtu);
    let is_cut = size.is_some_and(|size| split_tcp(&frame, size, &mut |piece| send(&piece)));
    if !is_cut {
        send(&frame);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_frames_hold_whole_segments() {
        for (mtu, packet) in
            [(1500, 1500), (1501, 1500), (1503, 1500), (1504, 1504), (9000, 9000), (9001, 9000)]
        {
            for headers in [IPV4_AND_TCP, IPV6_AND_TCP] {
                let payload = whole_segments(65_535, mtu, headers) - ETHERNET_HEADER - headers;
                let segment = packet - headers;
                assert_eq!(payload % segment, 0, "MTU {mtu}");
                assert_eq!(payload % 4, 0, "MTU {mtu}");
                assert!(payload + segment > 65_535 - ETHERNET_HEADER - headers, "MTU {mtu}: another fits");
            }
        }
        // An interface whose packets are longer than a frame to be cut, and the loopback's 65,536.
        for mtu in [65_536, 70_000] {
            assert_eq!(whole_segments(65_535, mtu, IPV4_AND_TCP), ETHERNET_HEADER + IPV4_AND_TCP + 65_480);
        }
    }
}
