//! State that both halves of a stream use.

use crate::capabilities::PeerCaps;
use crate::placement::PlacementAcks;
use crate::reads::Reads;
use crate::timers::Timers;
use crate::{EstablishedStream, Event, RdmapConfig, Time};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// Progress of the close, in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fin {
    /// FIN is sent when everything before it is.
    pub(crate) wanted: bool,
    /// The last request before it, the drain Read, was begun.
    pub(crate) drain_begun: bool,
    pub(crate) sent: bool,
    pub(crate) received: bool,
}

/// State that the sender and the receiver have in common, and messages between them.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: RdmapConfig,
    pub(crate) initiator: bool,
    /// The time of the call that is being served.
    pub(crate) now: Time,
    /// Time when our MPA Request or Reply was sent, on which the peer's Reply or first FPDU
    /// follows.
    pub(crate) startup_sent: Time,
    pub(crate) timers: Timers,
    pub(crate) caps: PeerCaps,
    pub(crate) reads: Reads,
    /// Acknowledgements of what this end has placed.
    pub(crate) placement: PlacementAcks,
    /// Lower bits of the position that the peer has acknowledged and the sender has not looked at.
    pub(crate) peer_placed: Option<u64>,
    pub(crate) fin: Fin,
    /// No FPDU is sent: RFC 5044 section 7.1.1, a responder before it has validated the initiator's
    /// first FPDU; an initiator before [`crate::RdmapStream::establish`]; and behind our FIN.
    pub(crate) hold: bool,
    /// [`crate::RdmapStream::establish`] is awaited.
    pub(crate) awaits_establish: bool,
    /// The peer's first FPDU was received and validated.
    pub(crate) first_fpdu: bool,
    /// The host's queues are gone: Sends are discarded, Reads are still answered.
    pub(crate) detached: bool,
    pub(crate) events: VecDeque<Event>,
    /// Reported when the peer's first FPDU comes: a responder of the peer-to-peer model waits for
    /// the RTR message.
    pub(crate) established: Option<Box<EstablishedStream>>,
}

impl Shared {
    /// Returns whether Writes and Sends complete with the peer's placement acknowledgements, and
    /// not with the answers to zero-length Reads.
    #[inline]
    pub(crate) fn completes_by_placement(&self) -> bool {
        self.reads.acks.on && self.caps.receives_placement_acks() && !self.caps.gave_up
    }

    /// Returns whether this end acknowledges what it places, and still can.
    #[inline]
    pub(crate) fn sends_placement_acks(&self) -> bool {
        self.caps.sends_placement_acks() && !self.hold
    }

    /// The peer's first FPDU has come.
    pub(crate) fn first_fpdu_came(&mut self) {
        if let Some(established) = self.established.take() {
            self.events.push_back(Event::Established(established));
        }
    }
}
