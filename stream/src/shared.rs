//! State that both halves of a stream use.

use crate::capabilities::PeerCaps;
use crate::placement::PlacementAcks;
use crate::reads::Reads;
use crate::timers::Timers;
use crate::{EstablishedStream, Event, RdmapConfig, Time};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// Progress of the close in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fin {
    /// True if FIN is to be sent, after everything before it.
    pub(crate) wanted: bool,
    /// True if the last request before FIN, the drain Read, was begun.
    pub(crate) drain_begun: bool,
    pub(crate) sent: bool,
    pub(crate) received: bool,
}

/// State that the sender and the receiver share, and messages between them.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: RdmapConfig,
    pub(crate) initiator: bool,
    /// Time of the call that is being served.
    pub(crate) now: Time,
    /// Time when this end sent its MPA Request or Reply, which the peer's Reply or first FPDU
    /// answers.
    pub(crate) startup_sent: Time,
    pub(crate) timers: Timers,
    pub(crate) caps: PeerCaps,
    pub(crate) reads: Reads,
    /// Acknowledgements of the data that this end has placed.
    pub(crate) placement: PlacementAcks,
    /// Lower bits of the position that the peer has acknowledged and the sender has not handled
    /// yet.
    pub(crate) peer_placed: Option<u64>,
    pub(crate) fin: Fin,
    /// True while no FPDU may be sent: a responder before it has validated the first FPDU of the
    /// initiator (RFC 5044 section 7.1.1), an initiator before [`crate::RdmapStream::establish`],
    /// and after FIN.
    pub(crate) sending_blocked: bool,
    /// True if the initiator may not send its first FPDU before [`crate::RdmapStream::establish`],
    /// which was not called yet.
    pub(crate) awaits_establish: bool,
    /// True if the peer's first FPDU was received and validated.
    pub(crate) first_fpdu: bool,
    /// True if the host is detached: Sends and Writes are discarded, Reads are still answered.
    pub(crate) detached: bool,
    /// True if a Send or Write was discarded. Then no placement is acknowledged any more, or no Read
    /// of another peer answered, which would take the response for success of the message.
    pub(crate) discarded: bool,
    pub(crate) events: VecDeque<Event>,
    /// Event to report when the peer's first FPDU arrives, for a responder of the peer-to-peer
    /// model, which waits for the RTR message.
    pub(crate) established: Option<Box<EstablishedStream>>,
}

impl Shared {
    /// Returns whether Writes and Sends complete with placement acknowledgements of the peer,
    /// instead of with responses to zero-length Reads.
    #[inline]
    pub(crate) fn completes_by_placement(&self) -> bool {
        self.reads.acks.on && self.caps.receives_placement_acks() && !self.caps.gave_up
    }

    /// Returns whether this end acknowledges placement, and still can.
    #[inline]
    pub(crate) fn sends_placement_acks(&self) -> bool {
        self.caps.sends_placement_acks() && !self.sending_blocked
    }

    /// Handles the arrival of the peer's first FPDU.
    pub(crate) fn report_established(&mut self) {
        if let Some(established) = self.established.take() {
            self.events.push_back(Event::Established(established));
        }
    }
}
