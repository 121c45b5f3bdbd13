//! Startup of the responder, which answers the Request.

use alloc::vec::Vec;

use super::config::{UNANNOUNCED_IRD, build_enhanced, check_private_data, limit_ord};
use super::{ConfigError, Negotiated, Rtr, RtrKinds, StartupConfig, StartupError};
use crate::wire::startup::{Enhanced, Frame, FrameKind, MAX_PRIVATE_DATA, NOT_NEGOTIATED, SIW_GSO};

/// Startup of the responder: parses the Request and builds the Reply.
#[derive(Clone, Debug)]
pub struct Responder {
    limits: StartupConfig,
}

/// Well-formed Request, which the ULP accepts or rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Request frame as received.
    pub frame: Frame,
}

impl Responder {
    /// Creates a responder with the `limits` of the listener.
    ///
    /// Requests above the revision of `limits` are errors. The other limits are sent to the peer in
    /// a rejection. [`accept`](Self::accept) has a separate configuration.
    #[must_use]
    pub const fn new(limits: StartupConfig) -> Self {
        Self { limits }
    }

    /// Parses the Request from all bytes received so far, starting with the first one. Returns
    /// `None` if it is not complete yet.
    ///
    /// The number in the result is the length of the Request.
    ///
    /// # Errors
    /// A [`StartupError`], after which the caller must close TCP and report the error locally.
    pub fn request(&mut self, input: &[u8]) -> Result<Option<(usize, Request)>, StartupError> {
        if FrameKind::detect(input)? == Some(FrameKind::Reply) {
            return Err(StartupError::ReplyWhereRequestDue);
        }
        // An unsupported revision is refused before the Private Data has arrived.
        if let Some(&revision) = input.get(17)
            && revision > self.limits.revision as u8
        {
            return Err(StartupError::UnknownRevision { revision });
        }
        let Some((frame, consumed)) = Frame::parse(input)? else { return Ok(None) };
        Ok(Some((consumed, Request { frame })))
    }

    /// Accepts the Request. Returns the bytes of the Reply and the negotiated properties.
    ///
    /// The Reply has the revision of the Request, and is enhanced if the Request is. No FPDU and no
    /// Marker may be sent before the first FPDU of the initiator has arrived (RFC 5044 section
    /// 7.1.2).
    ///
    /// # Errors
    /// The errors of [`Initiator::new`](super::Initiator::new), but [`ConfigError::NoRtrKind`] only
    /// if the Request asks for the peer-to-peer model.
    pub fn accept(
        &self,
        request: &Request,
        config: &StartupConfig,
        private_data: &[u8],
    ) -> Result<(Vec<u8>, Negotiated), ConfigError> {
        config.check_depths()?;
        check_private_data(private_data.len(), request.max_reply_private_data())?;
        let mut negotiated = Negotiated {
            revision: request.frame.revision,
            enhanced: request.frame.enhanced.is_some(),
            crc: config.crc || request.frame.crc,
            markers_tx: request.frame.markers,
            markers_rx: config.want_markers,
            ird: config.ird,
            ord: config.ord.min(UNANNOUNCED_IRD),
            peer_to_peer: request.peer_to_peer(),
            rtr: None,
            rtr_kinds: RtrKinds::NONE,
        };
        let enhanced = match request.frame.enhanced {
            Some(asked) => Some(answer_enhanced(asked, config, &mut negotiated)?),
            None => None,
        };
        let reply = Frame {
            kind: FrameKind::Reply,
            markers: config.want_markers,
            // C of the Request is repeated, because siw as initiator only looks at the Reply.
            crc: negotiated.crc,
            reject: false,
            enhanced,
            // The flag is only returned. A responder never sets it by itself.
            reserved: if config.siw_gso { request.frame.reserved & SIW_GSO } else { 0 },
            revision: negotiated.revision,
            private_data: private_data.to_vec(),
        };
        Ok((reply.emit(), negotiated))
    }

    /// Rejects the Request. Returns the bytes of the Reply.
    ///
    /// IRD and ORD of an enhanced Reply are those of the listener: the IRD that it would have
    /// accepted, and the ORD that it would have needed (RFC 6581 section 9.1).
    ///
    /// # Errors
    /// [`ConfigError::PrivateDataTooLong`] if the Private Data does not fit.
    pub fn reject(&self, request: &Request, private_data: &[u8]) -> Result<Vec<u8>, ConfigError> {
        check_private_data(private_data.len(), request.max_reply_private_data())?;
        let enhanced = request.frame.enhanced.map(|asked| {
            build_enhanced(asked.peer_to_peer, self.limits.rtr, self.limits.ird, self.limits.ord)
        });
        let reply = Frame {
            kind: FrameKind::Reply,
            markers: false,
            crc: self.limits.crc || request.frame.crc,
            reject: true,
            enhanced,
            reserved: 0,
            revision: request.frame.revision,
            private_data: private_data.to_vec(),
        };
        Ok(reply.emit())
    }
}

/// Builds the enhanced data of the Reply and updates `negotiated` (RFC 6581 sections 9.1 and 9.2).
fn answer_enhanced(
    asked: Enhanced,
    config: &StartupConfig,
    negotiated: &mut Negotiated,
) -> Result<Enhanced, ConfigError> {
    negotiated.ord = limit_ord(config.ord, asked.ird);
    let mut offered = RtrKinds::NONE;
    if asked.peer_to_peer {
        offered = offered_kinds(RtrKinds::from(asked), config)?;
        // A Read as the only RTR needs an IRD of 1: "the responder IRD MAY be increased".
        if offered.preferred() == Some(Rtr::Read) && !offered.send {
            negotiated.ird = negotiated.ird.max(1);
        }
        negotiated.rtr = single_kind(offered);
        negotiated.rtr_kinds = offered;
    }
    let not_negotiated_or =
        |asked: u16, ours: u16| if asked == NOT_NEGOTIATED { asked } else { ours };
    let ird = not_negotiated_or(asked.ord, negotiated.ird);
    let ord = not_negotiated_or(asked.ird, negotiated.ord);
    Ok(build_enhanced(asked.peer_to_peer, offered, ird, ord))
}

/// Returns the RTR kinds to set in the Reply: the requested kinds that this end supports, or all
/// that it supports if there are none.
fn offered_kinds(asked: RtrKinds, config: &StartupConfig) -> Result<RtrKinds, ConfigError> {
    if config.rtr.is_empty() {
        return Err(ConfigError::NoRtrKind);
    }
    let free = config.rtr.usable_at_depth(config.ird);
    // With an IRD of 0 a Read is offered only if no other kind is possible.
    let choices = [asked.intersect(free), asked.intersect(config.rtr), free, config.rtr];
    Ok(choices.into_iter().find(|kinds| !kinds.is_empty()).unwrap_or(config.rtr))
}

/// Returns the kind in the set if there is exactly one.
fn single_kind(kinds: RtrKinds) -> Option<Rtr> {
    let count = u8::from(kinds.write) + u8::from(kinds.read) + u8::from(kinds.send);
    if count == 1 { kinds.preferred() } else { None }
}

impl Request {
    /// Returns the initiator's Private Data.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.frame.private_data
    }

    /// Returns the revision of the Request.
    #[must_use]
    pub const fn revision(&self) -> u8 {
        self.frame.revision
    }

    /// Returns the initiator's IRD, the maximum number of Reads that we may have outstanding there.
    /// `None` without enhanced data.
    #[must_use]
    pub fn ird(&self) -> Option<u16> {
        self.frame.enhanced.map(|enhanced| enhanced.ird)
    }

    /// Returns the initiator's ORD, the number of Reads that it intends to have outstanding at us.
    /// `None` without enhanced data.
    #[must_use]
    pub fn ord(&self) -> Option<u16> {
        self.frame.enhanced.map(|enhanced| enhanced.ord)
    }

    /// Returns whether the initiator asks for the peer-to-peer model.
    #[must_use]
    pub fn peer_to_peer(&self) -> bool {
        self.frame.enhanced.is_some_and(|enhanced| enhanced.peer_to_peer)
    }

    /// Returns the maximum length of the Reply's Private Data, in bytes.
    #[must_use]
    pub fn max_reply_private_data(&self) -> usize {
        MAX_PRIVATE_DATA - self.frame.enhanced.map_or(0, |_| Enhanced::LEN)
    }
}
