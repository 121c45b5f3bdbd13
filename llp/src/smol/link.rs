//! Links: where Ethernet frames come from and go to. And the little that makes one a device of smoltcp's for one frame.

use super::stretch::Stretch;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, PacketMeta, RxToken, TxToken};
use smoltcp::time::Instant as Tick;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// What a link can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Octets of an IP packet on the wire.
    pub mtu: usize,
    /// The link cuts larger TCP packets itself, up to this many octets with their Ethernet header, and computes the checksums of
    /// all TCP segments.
    pub segmentation: Option<usize>,
    /// Frames may come from this machine, with TCP checksums that are only begun: the sum of the pseudo-header, which a card would
    /// complete. They are taken for right.
    pub partial_checksums: bool,
}

/// How the link is to cut a frame into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Octets of payload in each.
    pub size: u16,
}

/// A frame that came.
pub trait Frame {
    /// Its octets, from the Ethernet header on.
    fn octets(&mut self) -> &mut [u8];

    /// Whether the link vouches for its TCP checksum, or it never had one (it came from this machine).
    fn is_checked(&self) -> bool;
}

/// A link of Ethernet frames. Nothing here blocks.
pub trait Link: Send {
    /// What [`Link::receive`] gives.
    type Frame: Frame;

    /// What it can do. It does not change.
    fn capabilities(&self) -> Capabilities;

    /// The next frame that came for our MAC or for a group.
    fn receive(&mut self) -> Option<Self::Frame>;

    /// Takes back a frame that was used: its memory serves another one.
    fn recycle(&mut self, frame: Self::Frame);

    /// Frames that are sent from now on belong to a flow with this hash. A link with several queues has one for each flow: its
    /// frames stay in order.
    fn send_for(&mut self, _flow: u64) {}

    /// Whether [`Link::transmit`] has room now.
    fn has_room(&mut self) -> bool;

    /// Sends a frame of `len` octets that `fill` writes. It may be kept until [`Link::flush`].
    fn transmit(&mut self, len: usize, segmentation: Option<Segmentation>, fill: &mut dyn FnMut(&mut [u8]));

    /// Frames given so far leave.
    fn flush(&mut self);

    /// Readable when [`Link::receive`] has something.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// When [`Link::receive`] will have something, or [`Link::flush`] should be called again, where only the clock tells.
    fn next(&self) -> Option<Instant> {
        None
    }

    /// When [`Link::failure`] should be asked though nothing comes, because nothing would tell. It is, while there are connections.
    fn watch(&self) -> Option<Instant> {
        None
    }

    /// Why the link is gone, once it is: the interface was deleted, its program detached.
    fn failure(&mut self) -> Option<io::Error>;
}

/// A link as smoltcp sees it during one call: with one received frame, or none.
pub(super) struct Port<'a, L: Link> {
    pub(super) link: &'a mut L,
    pub(super) frame: Option<&'a mut [u8]>,
    /// Of the connection whose segments leave.
    pub(super) stretch: Option<&'a mut Stretch>,
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
        let stretch = self.stretch.as_deref_mut();
        Some((Rx(frame), Tx { link: self.link, segmentation: None, stretch }))
    }

    fn transmit(&mut self, _: Tick) -> Option<Tx<'_, L>> {
        let stretch = self.stretch.as_deref_mut();
        self.link.has_room().then_some(Tx { link: self.link, segmentation: None, stretch })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let ours = self.link.capabilities();
        let mut theirs = DeviceCapabilities::default();
        theirs.medium = Medium::Ethernet;
        theirs.max_transmission_unit = ours.mtu + ETHERNET_HEADER;
        // Received segments are verified before smoltcp sees them: whether one needs it is known only here.
        theirs.checksum.tcp = if ours.segmentation.is_some() { Checksum::None } else { Checksum::Tx };
        // IPv4 only: smoltcp 0.14 drops IPv6 packets that are longer than the MTU even where the device would cut them.
        theirs.segmentation.tcpv4 = ours.segmentation.and_then(NonZeroUsize::new);
        theirs
    }
}

/// Octets in front of the IP packet.
pub(super) const ETHERNET_HEADER: usize = 14;

pub(super) struct Rx<'a>(&'a mut [u8]);

impl RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(super) struct Tx<'a, L: Link> {
    link: &'a mut L,
    segmentation: Option<Segmentation>,
    stretch: Option<&'a mut Stretch>,
}

impl<L: Link> TxToken for Tx<'_, L> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let (mut f, mut result, mut stretch) = (Some(f), None, self.stretch);
        self.link.transmit(len, self.segmentation, &mut |octets| {
            result = f.take().map(|f| f(octets));
            if let Some(stretch) = &mut stretch {
                stretch.has_left(octets);
            }
        });
        match (result, f) {
            (Some(result), _) => result,
            // A link that has lost its interface fills nothing; smoltcp's answer is still due.
            (None, Some(f)) => f(&mut vec![0; len]),
            (None, None) => unreachable!("what was called has a result"),
        }
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segmentation = meta.segmentation_offload_size.map(|size| Segmentation { size: size.get() });
    }
}
