//! Capability exchange between uiw peers, which uses only messages that are valid for every peer.
//!
//! MPA has no room to negotiate extensions, and siw echoes every reserved bit. So the initiator's
//! first FPDU is a zero-length RDMA Write, which every receiver accepts without checking its STag
//! and TO (RFC 5040 section 5.2.1). Here they carry a capability request: STag = magic, TO =
//! capabilities and a nonce. A uiw responder answers with another magic and a function of that
//! nonce, so that echoed or zero values are not recognised as a uiw peer.
//!
//! Extensions (RFC 7306, Send with immediate, large FPDUs) are enabled if both ends support them. A
//! request that needs one waits for the answer: a second and twelve round trips, at most 40 s,
//! where the round trip is the time between MPA Request and Reply. After that, and towards a peer
//! without the extension, the request alone fails, nothing of it is sent, and the stream continues.
//! While the peer has sent nothing, the capability request is repeated five times, because siw's
//! responder can miss the first FPDU. At revision 1 with the peer-to-peer model a zero-length Read
//! goes first, as Chelsio's adapters require.

use crate::reads::PLACEHOLDER;
use crate::request::Remote;
use core::time::Duration;
use uiw_ddp::STag;
use uiw_rdmap::Extensions;

const REQUEST: STag = STag(0x7569_7731);
const ANSWER: STag = STag(0x7569_7732);
const NONCE_BITS: u32 = 48;
const NONCE_MASK: u64 = (1 << NONCE_BITS) - 1;

/// Mode of the capability exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapabilityExchange {
    /// The first FPDU carries the request. Extensions are used if both ends support them.
    #[default]
    On,
    /// No request is sent, none is answered, and no extension is used.
    Off,
    /// No request is sent and none is answered, because the peer is known to implement RFC 7306
    /// (immediate data and atomics), as some NICs do.
    Assume,
}

/// Capabilities of a uiw peer, as bits in the TO of a request or a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u16);

impl Capabilities {
    const IMMEDIATE: u16 = 1;
    const ATOMIC: u16 = 2;
    const SEND_IMM: u16 = 4;
    const LARGE_FPDU: u16 = 8;
    const PLACEMENT_ACKS: u16 = 16;
    /// Bit of a request or an answer that is no capability: the end that sets it asks its peer for
    /// placement acknowledgements.
    const WANTS_ACKS: u16 = 32;
    /// All capabilities of this implementation.
    pub(crate) const OURS: Self = Self(
        Self::IMMEDIATE | Self::ATOMIC | Self::SEND_IMM | Self::LARGE_FPDU | Self::PLACEMENT_ACKS,
    );
    const NONE: Self = Self(0);
    const RFC_7306: Self = Self(Self::IMMEDIATE | Self::ATOMIC);

    /// Returns whether a zero-length Write to this STag is a capability request.
    #[must_use]
    pub fn is_request(stag: STag) -> bool {
        stag == REQUEST
    }

    /// Returns whether FPDUs larger than a TCP segment are accepted.
    #[must_use]
    pub const fn large_fpdu(self) -> bool {
        self.0 & Self::LARGE_FPDU != 0
    }

    /// Returns whether placement is acknowledged on request.
    #[must_use]
    pub const fn placement_acks(self) -> bool {
        self.0 & Self::PLACEMENT_ACKS != 0
    }

    /// Returns the supported messages beyond RFC 5040.
    #[must_use]
    pub const fn extensions(self) -> Extensions {
        Extensions {
            immediate: self.0 & Self::IMMEDIATE != 0,
            atomic: self.0 & Self::ATOMIC != 0,
            send_imm: self.0 & Self::SEND_IMM != 0,
        }
    }
}

/// Kind of the peer, as far as the capability exchange has determined it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// The exchange is not decided yet.
    Unknown,
    /// A uiw peer, or one that is assumed to have the same capabilities, with the capabilities of
    /// both ends.
    Capable(Capabilities),
    /// Any other iWARP peer.
    Foreign,
}

/// The capability exchange of one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCaps {
    pub(crate) kind: PeerKind,
    /// Destination of the zero-length Write to send before anything else: a request, a response, or
    /// nothing (the plain RTR message).
    pub(crate) due: Option<Remote>,
    /// Time for which the initiator waits for the response.
    pub(crate) timeout: Duration,
    initiator: bool,
    on: bool,
    /// True if this end has requested placement acknowledgements.
    wants_acks: bool,
    /// True if the peer has requested placement acknowledgements.
    pub(crate) peer_wants_acks: bool,
    /// True if the peer was taken for a foreign one, because no response arrived in time or its
    /// first FPDU was something else. From then on requests complete with Reads, whatever arrives
    /// later.
    pub(crate) gave_up: bool,
    /// Nonce of the initiator.
    nonce: u64,
}

impl PeerCaps {
    pub(crate) fn new(
        initiator: bool,
        mode: CapabilityExchange,
        wants_acks: bool,
        nonce: u64,
    ) -> Self {
        let kind = match mode {
            CapabilityExchange::On => PeerKind::Unknown,
            CapabilityExchange::Off => PeerKind::Foreign,
            CapabilityExchange::Assume => PeerKind::Capable(Capabilities::RFC_7306),
        };
        let on = mode == CapabilityExchange::On;
        Self {
            kind,
            due: None,
            timeout: Duration::ZERO,
            initiator,
            on,
            wants_acks,
            peer_wants_acks: false,
            gave_up: false,
            nonce: nonce & NONCE_MASK,
        }
    }

    /// Creates the exchange of a stream to itself: both ends have the same capabilities.
    pub(crate) fn loopback(wants_acks: bool) -> Self {
        Self {
            kind: PeerKind::Capable(Capabilities::OURS),
            peer_wants_acks: wants_acks,
            ..Self::new(true, CapabilityExchange::Off, wants_acks, 0)
        }
    }

    /// Returns whether this end acknowledges what it places.
    #[inline]
    pub(crate) fn sends_placement_acks(&self) -> bool {
        self.peer_wants_acks && self.capabilities().placement_acks()
    }

    /// Returns whether the peer acknowledges what it places.
    #[inline]
    pub(crate) fn receives_placement_acks(&self) -> bool {
        self.wants_acks && self.capabilities().placement_acks()
    }

    /// Returns the check value of this stream's placement acknowledgements.
    pub(crate) fn ack_check(&self) -> u16 {
        mix(self.nonce ^ u64::from(crate::placement::STAG.0)) as u16
    }

    /// Returns the capability bits that this end sends.
    fn bits(&self, capabilities: Capabilities) -> u64 {
        let wants = if self.wants_acks { Capabilities::WANTS_ACKS } else { 0 };
        u64::from(capabilities.0 | wants) << NONCE_BITS
    }

    /// Returns whether the exchange is still in progress.
    #[inline]
    pub(crate) fn is_undecided(&self) -> bool {
        self.kind == PeerKind::Unknown
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        match self.kind {
            PeerKind::Capable(capabilities) => capabilities,
            PeerKind::Unknown | PeerKind::Foreign => Capabilities::NONE,
        }
    }

    /// Returns the initiator's request, or a plain zero-length Write if the exchange is off.
    pub(crate) fn request(&self) -> Remote {
        if self.on {
            Remote { stag: REQUEST, to: self.bits(Capabilities::OURS) | self.nonce }
        } else {
            PLACEHOLDER
        }
    }

    /// Handles an incoming zero-length Write, and schedules the response. A responder accepts a
    /// request only if `first` is true, that is, if at most RTR messages have arrived before. The
    /// answer to a further request repeats the first one. Returns whether the Write has decided the
    /// exchange.
    pub(crate) fn on_zero_write(&mut self, stag: STag, to: u64, first: bool) -> bool {
        if !self.on {
            return false;
        }
        let before = self.kind;
        let agreed = matches!(self.kind, PeerKind::Capable(_));
        let bits = (to >> NONCE_BITS) as u16;
        let common = Capabilities(bits & Capabilities::OURS.0);
        let wants_acks = bits & Capabilities::WANTS_ACKS != 0;
        let nonce = to & NONCE_MASK;
        if self.initiator {
            // A late response still counts, because nothing was sent meanwhile that it would
            // forbid.
            if !agreed && stag == ANSWER && nonce == mix(self.nonce) {
                self.kind = PeerKind::Capable(common);
                self.peer_wants_acks = wants_acks;
            }
        } else if first && stag == REQUEST {
            if !agreed {
                self.kind = PeerKind::Capable(common);
                self.peer_wants_acks = wants_acks;
                self.nonce = nonce;
            }
            let to = self.bits(self.capabilities()) | mix(self.nonce);
            self.due = Some(Remote { stag: ANSWER, to });
        }
        self.kind != before
    }

    /// Decides that the peer is a foreign one, because its first FPDU was something else or no
    /// response arrived in time.
    pub(crate) fn give_up(&mut self) {
        if self.kind == PeerKind::Unknown {
            self.kind = PeerKind::Foreign;
            self.gave_up = true;
        }
    }
}

/// Maps 48 bits to 48 bits by a permutation without a simple structure. The response shows that its
/// sender implements this protocol; it is no secret.
fn mix(nonce: u64) -> u64 {
    let mut x = nonce;
    for _ in 0..3 {
        x = x.wrapping_mul(0x9E37_79B9_7F4A_7C15 | 1) & NONCE_MASK;
        x ^= x >> 23;
    }
    (x ^ 0x5549_5721_7569) & NONCE_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_uiw_peers_agree() {
        let mut initiator =
            PeerCaps::new(true, CapabilityExchange::On, false, 0xFFFF_1234_5678_9ABC);
        let mut responder = PeerCaps::new(false, CapabilityExchange::On, false, 7);
        let request = initiator.request();
        assert!(responder.on_zero_write(request.stag, request.to, true));
        assert_eq!(responder.kind, PeerKind::Capable(Capabilities::OURS));
        let answer = responder.due.unwrap();
        assert!(initiator.on_zero_write(answer.stag, answer.to, true));
        assert_eq!((initiator.kind, initiator.due), (PeerKind::Capable(Capabilities::OURS), None));
    }

    #[test]
    fn each_end_asks_for_its_acks() {
        for (ours, theirs) in [(true, false), (false, true), (true, true)] {
            let mut initiator = PeerCaps::new(true, CapabilityExchange::On, ours, 42);
            let mut responder = PeerCaps::new(false, CapabilityExchange::On, theirs, 0);
            let request = initiator.request();
            assert!(responder.on_zero_write(request.stag, request.to, true));
            let answer = responder.due.unwrap();
            assert!(initiator.on_zero_write(answer.stag, answer.to, true));
            assert_eq!(initiator.kind, PeerKind::Capable(Capabilities::OURS));
            assert_eq!(responder.kind, initiator.kind);
            assert_eq!(
                (initiator.receives_placement_acks(), responder.sends_placement_acks()),
                (ours, ours)
            );
            let reverse = (responder.receives_placement_acks(), initiator.sends_placement_acks());
            assert_eq!(reverse, (theirs, theirs));
            assert_eq!(initiator.ack_check(), responder.ack_check());
        }
    }

    #[test]
    fn echoed_request_is_no_answer() {
        let mut initiator = PeerCaps::new(true, CapabilityExchange::On, false, 42);
        let request = initiator.request();
        assert!(!initiator.on_zero_write(request.stag, request.to, true));
        assert_eq!(initiator.kind, PeerKind::Unknown);
        initiator.give_up();
        assert_eq!(initiator.kind, PeerKind::Foreign);
    }

    #[test]
    fn first_answer_counts() {
        let mut initiator = PeerCaps::new(true, CapabilityExchange::On, false, 42);
        let answer = |capabilities: u64| capabilities << NONCE_BITS | mix(42);
        assert!(initiator.on_zero_write(ANSWER, answer(1), true));
        assert!(!initiator.on_zero_write(ANSWER, answer(15), true));
        assert_eq!(initiator.kind, PeerKind::Capable(Capabilities(1)));
    }

    #[test]
    fn zeros_are_neither_request_nor_answer() {
        for initiator in [true, false] {
            let mut caps = PeerCaps::new(initiator, CapabilityExchange::On, false, 42);
            assert!(!caps.on_zero_write(STag(0), 0, true));
            assert_eq!((caps.kind, caps.due), (PeerKind::Unknown, None));
        }
    }

    /// Otherwise a peer could stop asking for an acknowledgement that is already owed.
    #[test]
    fn first_request_counts() {
        let mut responder = PeerCaps::new(false, CapabilityExchange::On, false, 0);
        let request = PeerCaps::new(true, CapabilityExchange::On, true, 3).request();
        assert!(responder.on_zero_write(request.stag, request.to, true));
        let answer = responder.due.take();
        assert!(!responder.on_zero_write(REQUEST, 1 << NONCE_BITS | 4, true));
        assert_eq!(responder.due, answer);
        assert_eq!(responder.kind, PeerKind::Capable(Capabilities::OURS));
        assert!(responder.sends_placement_acks());
    }

    #[test]
    fn request_counts_in_first_fpdu_only() {
        let request = PeerCaps::new(true, CapabilityExchange::On, false, 3).request();
        let mut responder = PeerCaps::new(false, CapabilityExchange::On, false, 0);
        assert!(!responder.on_zero_write(request.stag, request.to, false));
        assert_eq!(responder.due, None);
    }

    #[test]
    fn siw_rtr_write_requests_nothing() {
        // The first FPDU is a zero-length Write with STag 1 and TO 0.
        let mut responder = PeerCaps::new(false, CapabilityExchange::On, false, 0);
        assert!(!responder.on_zero_write(STag(1), 0, true));
        assert_eq!(responder.kind, PeerKind::Unknown);
    }

    #[test]
    fn switched_off_neither_asks_nor_answers() {
        let request = PeerCaps::new(true, CapabilityExchange::On, false, 3).request();
        let mut off = PeerCaps::new(false, CapabilityExchange::Off, false, 0);
        assert!(!off.on_zero_write(request.stag, request.to, true));
        assert_ne!(PeerCaps::new(true, CapabilityExchange::Off, false, 0).request().stag, REQUEST);
    }
}
