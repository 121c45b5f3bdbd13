//! Links, which send and receive Ethernet frames, and the adapter that turns a link into a smoltcp
//! device for one frame.

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
    /// Maximum size of an IP packet on the wire, in bytes.
    pub mtu: usize,
    /// Set if the link segments larger TCP packets, of both versions of IP, and computes the
    /// checksums of all TCP segments. The value is the maximum size in bytes, including the
    /// Ethernet header.
    pub segmentation: Option<usize>,
    /// True if frames may come from the same host, with TCP checksums that contain only the sum of
    /// the pseudo-header and would be completed by hardware. They are considered correct.
    pub partial_checksums: bool,
}

/// Instructions for splitting a TCP packet that does not fit into a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Size of payload and TCP options in each segment, in bytes: the peer's maximum segment size,
    /// limited by the MTU.
    pub size: u16,
}

/// Received frame.
pub trait Frame {
    /// Returns the bytes, from the Ethernet header on.
    fn bytes(&mut self) -> &mut [u8];

    /// Returns whether the link guarantees that the TCP checksum is correct, or the frame never had
    /// one because it came from the same host.
    fn is_checked(&self) -> bool;

    /// Returns the size of each UDP datagram except the last, in bytes, if the frame contains
    /// several: one header followed by their payloads.
    fn datagram_size(&self) -> Option<usize> {
        None
    }
}

/// Link for Ethernet frames. No call blocks.
///
/// ```
/// # mod uiw { pub mod smol { pub use uiw_smol::*; pub use uiw_smol::pipe::pipe; } }
/// use uiw::smol::{Frame, Link, pipe};
///
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

    /// Returns the next frame for our MAC address or for a group. Frames to groups are those of
    /// neighbour discovery and, between [`Link::start_groups`] and [`Link::stop_groups`], all
    /// others.
    fn receive(&mut self) -> Option<Self::Frame>;

    /// Takes back a frame that was processed, so that its memory can be reused.
    fn recycle(&mut self, frame: Self::Frame);

    /// Announces that the frames sent from now on belong to a flow with this hash. A link with
    /// several queues uses the same queue for all frames of a flow, so they stay in order.
    fn send_for(&mut self, _flow: u64) {}

    /// Returns whether [`Link::transmit`] has room now.
    fn has_room(&mut self) -> bool;

    /// Sends a frame of `len` bytes. `fill` writes the frame, and returns how it has to be split.
    /// The frame may be kept until [`Link::flush`].
    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Option<Segmentation>);

    /// Sends all frames that were kept.
    fn flush(&mut self);

    /// Returns a descriptor that is readable when [`Link::receive`] has a frame.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Called when the first multicast group is joined. Returns a descriptor that is readable when
    /// [`Link::receive`] has a frame to a group but [`Link::fd`] is not readable. It is the same
    /// descriptor each time, or one that [`Link::stop_groups`] closes.
    ///
    /// # Errors
    /// `Unsupported` if frames to groups cannot be received; OS errors.
    fn start_groups(&mut self) -> io::Result<Option<BorrowedFd<'_>>> {
        Ok(None)
    }

    /// Called when the last multicast group is left.
    fn stop_groups(&mut self) {}

    /// Returns the time at which [`Link::receive`] will have a frame, or at which [`Link::flush`]
    /// should be called again, if this depends only on the clock.
    fn next(&self) -> Option<Instant> {
        None
    }

    /// Returns the time at which [`Link::failure`] should be checked even if no frame arrives,
    /// because a failure would cause no event. It is checked while there are connections or
    /// listeners.
    fn watch(&self) -> Option<Instant> {
        None
    }

    /// Returns the reason why the link is gone: `NetworkDown` if it may come back, `NotFound` if it
    /// is gone for good (the interface was deleted, or its program detached). Returns `None` again
    /// when the link is back; listeners then continue, but connections are lost. `now` is the time
    /// of the stack's clock, which is the system clock if the link is an interface.
    fn failure(&mut self, now: Instant) -> Option<io::Error>;
}

/// Reason why the link over an interface is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkLoss {
    /// The interface is down.
    Down,
    /// The interface does not exist any more. Another one may have its name.
    Deleted,
    /// Another process has detached our XDP program.
    Detached,
}

impl LinkLoss {
    /// Returns the error for [`Link::failure`].
    pub(super) fn error(self, interface: &str) -> io::Error {
        let (kind, what) = match self {
            Self::Down => (io::ErrorKind::NetworkDown, "is down"),
            Self::Deleted => (io::ErrorKind::NotFound, "was deleted"),
            Self::Detached => (io::ErrorKind::NotFound, "has lost its XDP program"),
        };
        io::Error::new(kind, format!("interface `{interface}` {what}"))
    }
}

/// View of a link for smoltcp during one call: it has one received frame, or none.
pub(super) struct Port<'a, L: Link> {
    pub(super) link: &'a mut L,
    pub(super) frame: Option<&'a mut [u8]>,
    /// State of the connection whose segments are sent, or `None` if the frame belongs to no
    /// connection.
    pub(super) sender: Option<Sender<'a>>,
}

/// State of a connection that concerns its segments on the link.
pub(super) struct Sender<'a> {
    pub(super) stretch: &'a mut Stretch,
    pub(super) path: &'a mut PathMtu,
    pub(super) probe: &'a mut Probe,
    /// Segmentation, for links that split packets.
    pub(super) segmentation: Option<Segmentation>,
    /// Current time in microseconds of the stack's clock.
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

/// Sets the sequence number of a segment without data, whose header is at `at`, to `acceptable`. A
/// SYN and a FIN keep their numbers.
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
        // If the link splits packets, the maximum is that of its longest packet: see `mss`.
        theirs.max_transmission_unit =
            ours.segmentation.unwrap_or(longest_packet(ours.mtu) + ETHERNET_HEADER);
        // Received segments are verified before smoltcp sees them, because only this code knows
        // whether a segment must be verified.
        theirs.checksum.tcp =
            if ours.segmentation.is_some() { Checksum::None } else { Checksum::Tx };
        let cut = |headers| {
            ours.segmentation
                .and_then(|longest| NonZeroUsize::new(whole_segments(longest, ours.mtu, headers)))
        };
        theirs.segmentation.tcpv4 = cut(IPV4_AND_TCP);
        theirs.segmentation.tcpv6 = cut(IPV6_AND_TCP);
        theirs
    }
}

/// Returns the maximum size of an IP packet to send, in bytes: the MTU, reduced so that the payload
/// is a multiple of four. The length of an FPDU is such a multiple (RFC 5044 section 4.1), so no
/// segment ends within its CRC. Linux's siw does not accept a CRC that arrives in two segments.
pub(super) fn longest_packet(mtu: usize) -> usize {
    mtu & !3
}

/// Returns the maximum size in bytes of a frame that the link splits, at most `longest`. The
/// payload of such a frame consists of whole segments: a remainder would be a short segment after
/// each frame, and might end anywhere.
fn whole_segments(longest: usize, mtu: usize, ip_and_tcp: usize) -> usize {
    let headers = ETHERNET_HEADER + ip_and_tcp;
    let segment = longest_packet(mtu).saturating_sub(ip_and_tcp).max(1);
    let payload = longest.saturating_sub(headers);
    headers + if payload < segment { payload & !3 } else { payload / segment * segment }
}

/// Total size of the IP and TCP headers without options, in bytes.
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
            // A link that has lost its interface does not call the function, but smoltcp expects
            // its result.
            (None, Some(f)) => f(&mut vec![0; len]),
            (None, None) => unreachable!("what was called has a result"),
        }
    }
}

/// Sends a frame of `len` bytes that `f` writes, over a link that does not split packets, in as
/// many pieces as its path needs.
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
                assert!(
                    payload + segment > 65_535 - ETHERNET_HEADER - headers,
                    "MTU {mtu}: another fits"
                );
            }
        }
        // Interfaces whose packets are longer than a frame to split, among them loopback with
        // 65,536 bytes.
        for mtu in [65_536, 70_000] {
            assert_eq!(
                whole_segments(65_535, mtu, IPV4_AND_TCP),
                ETHERNET_HEADER + IPV4_AND_TCP + 65_480
            );
        }
    }
}
