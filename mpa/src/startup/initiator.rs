//! The end that sends the Request.

use alloc::vec::Vec;

use super::config::{UNANNOUNCED_IRD, at_most, check_private_data, enhanced};
use super::{ConfigError, Negotiated, Revision, RtrKinds, StartupConfig, StartupError, StartupRefusal};
use crate::wire::startup::{Enhanced, Frame, FrameKind, MAX_PRIVATE_DATA, NOT_NEGOTIATED, SIW_GSO};

/// The initiator's side of the startup: a Request to send, a Reply to understand.
#[derive(Clone, Debug)]
pub struct Initiator {
    config: StartupConfig,
    request: Frame,
}

/// Meaning of a well-formed Reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The responder accepts.
    Accepted {
        /// Negotiated properties of the connection.
        negotiated: Negotiated,
        /// The Reply's enhanced data as received: the ULP receives the peer's IRD and ORD (RFC 6581 section 9.1).
        enhanced: Option<Enhanced>,
        /// The responder's Private Data.
        private_data: Vec<u8>,
        /// Refusal to send in a Terminate. If set, the connection exists only for that Terminate.
        terminate: Option<StartupRefusal>,
    },
    /// The responder rejects: MPA is over, TCP stays open.
    Rejected {
        /// The Reply's enhanced data as received: it may say what would have been accepted.
        enhanced: Option<Enhanced>,
        /// The responder's Private Data.
        private_data: Vec<u8>,
        /// Rev of the Reply.
        revision: u8,
        /// We asked for Markers, which may be why: there are peers that cannot send them.
        markers_refused: bool,
    },
}

impl Initiator {
    /// An initiator with the settings `config` and `private_data` for the responder.
    ///
    /// # Errors
    /// If the Private Data does not fit (512 bytes; 508 from revision 2 on), IRD or ORD does not fit 14 bits,
    /// or the peer-to-peer model is wanted without a usable RTR kind.
    pub fn new(config: StartupConfig, private_data: &[u8]) -> Result<Self, ConfigError> {
        config.check_depths()?;
        let mut enhanced_data = None;
        let mut room = MAX_PRIVATE_DATA;
        if config.revision == Revision::Two {
            let kinds = config.rtr.with_reads(config.ord);
            if config.peer_to_peer && kinds.is_empty() {
                return Err(ConfigError::NoRtrKind);
            }
            enhanced_data = Some(enhanced(config.peer_to_peer, kinds, config.ird, config.ord));
            room -= Enhanced::LEN;
        }
        check_private_data(private_data.len(), room)?;
        let request = Frame {
            kind: FrameKind::Request,
            markers: config.want_markers,
            crc: config.crc,
            reject: false,
            enhanced: enhanced_data,
            reserved: if config.siw_gso { SIW_GSO } else { 0 },
            revision: config.revision as u8,
            private_data: private_data.to_vec(),
        };
        Ok(Self { config, request })
    }

    /// The bytes of the Request.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        self.request.emit()
    }

    /// Looks at the bytes received so far, always from the first one on. `Ok(None)` asks for more.
    ///
    /// The number is that of the Reply's bytes; what stands behind them is Full Operation already.
    ///
    /// # Errors
    /// Any means: close TCP, report locally.
    pub fn reply(&self, input: &[u8]) -> Result<Option<(usize, Outcome)>, StartupError> {
        if FrameKind::detect(input)? == Some(FrameKind::Request) {
            return Err(StartupError::RequestWhereReplyDue);
        }
        let Some((reply, consumed)) = Frame::parse(input)? else { return Ok(None) };
        let outcome = if reply.reject { self.rejected(reply) } else { self.accepted(reply)? };
        Ok(Some((consumed, outcome)))
    }

    /// A rejection is taken in any revision: it may be the revision that is rejected.
    fn rejected(&self, reply: Frame) -> Outcome {
        Outcome::Rejected {
            enhanced: reply.enhanced,
            private_data: reply.private_data,
            revision: reply.revision,
            markers_refused: self.config.want_markers,
        }
    }

    fn accepted(&self, reply: Frame) -> Result<Outcome, StartupError> {
        if reply.revision != self.request.revision {
            return Err(StartupError::ReplyRevision { sent: self.request.revision, got: reply.revision });
        }
        if self.request.enhanced.is_some() && reply.enhanced.is_none() {
            return Err(StartupError::ReplyNotEnhanced);
        }
        let mut negotiated = Negotiated {
            revision: reply.revision,
            enhanced: reply.enhanced.is_some(),
            crc: self.config.crc || reply.crc,
            markers_tx: reply.markers,
            markers_rx: self.config.want_markers,
            ird: self.config.ird,
            ord: self.config.ord.min(UNANNOUNCED_IRD),
            peer_to_peer: false,
            rtr: None,
            rtr_kinds: RtrKinds::NONE,
        };
        if reply.enhanced.is_none() && self.config.peer_to_peer {
            negotiated.rtr = self.config.rtr.with_reads(negotiated.ord).unnegotiated();
        }
        let terminate = reply.enhanced.and_then(|enhanced| self.adopt(enhanced, &mut negotiated).err());
        Ok(Outcome::Accepted {
            negotiated,
            enhanced: reply.enhanced,
            private_data: reply.private_data,
            terminate,
        })
    }

    /// RFC 6581 sections 9.1 and 9.2, what the initiator does upon the Reply.
    fn adopt(&self, reply: Enhanced, negotiated: &mut Negotiated) -> Result<(), StartupRefusal> {
        negotiated.ord = at_most(self.config.ord, reply.ird);
        // A responder must not set A on its own; one that does waits for our first FPDU all the same.
        negotiated.peer_to_peer = self.config.peer_to_peer && reply.peer_to_peer;
        let (ours, needed) = (self.config.ird, reply.ord);
        if needed != NOT_NEGOTIATED && needed > ours {
            return Err(StartupRefusal::InsufficientIrd { ours, needed });
        }
        if negotiated.peer_to_peer {
            negotiated.rtr_kinds = RtrKinds::from(reply);
            let common = self.config.rtr.intersect(negotiated.rtr_kinds).with_reads(negotiated.ord);
            negotiated.rtr = Some(common.preferred().ok_or(StartupRefusal::NoMatchingRtr)?);
        }
        Ok(())
    }
}
