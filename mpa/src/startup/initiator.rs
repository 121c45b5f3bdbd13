//! Startup of the initiator, which sends the Request.

use alloc::vec::Vec;

use super::config::{UNANNOUNCED_IRD, build_enhanced, check_private_data, limit_ord};
use super::{
    ConfigError, Negotiated, Revision, RtrKinds, StartupConfig, StartupError, StartupRefusal,
};
use crate::wire::startup::{Enhanced, Frame, FrameKind, MAX_PRIVATE_DATA, NOT_NEGOTIATED, SIW_GSO};

/// Startup of the initiator: sends the Request and interprets the Reply.
#[derive(Clone, Debug)]
pub struct Initiator {
    config: StartupConfig,
    request: Frame,
}

/// Meaning of a well-formed Reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The responder accepts the connection.
    Accepted {
        /// Negotiated properties of the connection.
        negotiated: Negotiated,
        /// Enhanced data of the Reply as received, so that the ULP gets the peer's IRD and ORD (RFC
        /// 6581 section 9.1).
        enhanced: Option<Enhanced>,
        /// The responder's Private Data.
        private_data: Vec<u8>,
        /// Refusal to report in a Terminate. If set, the connection exists only for that Terminate.
        terminate: Option<StartupRefusal>,
    },
    /// The responder rejects the connection. MPA ends; TCP stays open.
    Rejected {
        /// Enhanced data of the Reply as received. It may contain the values that the responder
        /// would have accepted.
        enhanced: Option<Enhanced>,
        /// The responder's Private Data.
        private_data: Vec<u8>,
        /// Revision of the Reply.
        revision: u8,
        /// True if this end asked for Markers. That may be the reason for the rejection, as some
        /// peers cannot send them.
        markers_asked: bool,
    },
}

impl Initiator {
    /// Creates an initiator whose Request carries `private_data`.
    ///
    /// # Errors
    /// A [`ConfigError`] if the Private Data does not fit (512 bytes, 508 at revision 2), IRD or
    /// ORD does not fit 14 bits, or the peer-to-peer model has no usable RTR kind.
    pub fn new(config: StartupConfig, private_data: &[u8]) -> Result<Self, ConfigError> {
        config.check_depths()?;
        let mut enhanced_data = None;
        let mut room = MAX_PRIVATE_DATA;
        if config.revision == Revision::Two {
            let kinds = config.rtr.usable_at_depth(config.ord);
            if config.peer_to_peer && kinds.is_empty() {
                return Err(ConfigError::NoRtrKind);
            }
            enhanced_data =
                Some(build_enhanced(config.peer_to_peer, kinds, config.ird, config.ord));
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

    /// Returns the bytes of the Request.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        self.request.emit()
    }

    /// Parses the Reply from all bytes received so far, starting with the first one. Returns `None`
    /// if it is not complete yet.
    ///
    /// The number in the result is the length of the Reply. The bytes after it belong to Full
    /// Operation.
    ///
    /// # Errors
    /// A [`StartupError`], after which the caller must close TCP and report the error locally.
    pub fn reply(&self, input: &[u8]) -> Result<Option<(usize, Outcome)>, StartupError> {
        if FrameKind::detect(input)? == Some(FrameKind::Request) {
            return Err(StartupError::RequestWhereReplyDue);
        }
        let Some((reply, consumed)) = Frame::parse(input)? else { return Ok(None) };
        let outcome = if reply.reject { self.rejected(reply) } else { self.accepted(reply)? };
        Ok(Some((consumed, outcome)))
    }

    /// Interprets a rejection, which may have any revision: the revision itself may be the reason
    /// for it.
    fn rejected(&self, reply: Frame) -> Outcome {
        Outcome::Rejected {
            enhanced: reply.enhanced,
            private_data: reply.private_data,
            revision: reply.revision,
            markers_asked: self.config.want_markers,
        }
    }

    /// Interprets a Reply that accepts the connection.
    fn accepted(&self, reply: Frame) -> Result<Outcome, StartupError> {
        if reply.revision != self.request.revision {
            return Err(StartupError::ReplyRevision {
                sent: self.request.revision,
                got: reply.revision,
            });
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
            negotiated.rtr =
                self.config.rtr.usable_at_depth(negotiated.ord).preferred_unnegotiated();
        }
        let terminate = reply
            .enhanced
            .and_then(|enhanced| self.apply_enhanced(enhanced, &mut negotiated).err());
        Ok(Outcome::Accepted {
            negotiated,
            enhanced: reply.enhanced,
            private_data: reply.private_data,
            terminate,
        })
    }

    /// Applies the enhanced data of the Reply (RFC 6581 sections 9.1 and 9.2).
    fn apply_enhanced(
        &self,
        reply: Enhanced,
        negotiated: &mut Negotiated,
    ) -> Result<(), StartupRefusal> {
        negotiated.ord = limit_ord(self.config.ord, reply.ird);
        // A responder must not set A unless the Request has it. If it does so, A is ignored: the
        // responder waits for our first FPDU anyway.
        negotiated.peer_to_peer = self.config.peer_to_peer && reply.peer_to_peer;
        let (ours, needed) = (self.config.ird, reply.ord);
        if needed != NOT_NEGOTIATED && needed > ours {
            return Err(StartupRefusal::InsufficientIrd { ours, needed });
        }
        if negotiated.peer_to_peer {
            negotiated.rtr_kinds = RtrKinds::from(reply);
            let common =
                self.config.rtr.intersect(negotiated.rtr_kinds).usable_at_depth(negotiated.ord);
            negotiated.rtr = Some(common.preferred().ok_or(StartupRefusal::NoMatchingRtr)?);
        }
        Ok(())
    }
}
