//! The end that answers a Request.

use alloc::vec::Vec;

use super::config::{UNANNOUNCED_IRD, at_most, check_private_data, enhanced};
use super::{ConfigError, Negotiated, Rtr, RtrKinds, StartupConfig, StartupError};
use crate::wire::startup::{Enhanced, Frame, FrameKind, MAX_PRIVATE_DATA, NOT_NEGOTIATED, SIW_GSO};

/// The responder's side of the startup: a Request to understand, a Reply to send.
#[derive(Clone, Debug)]
pub struct Responder {
    limits: StartupConfig,
}

/// A well-formed Request, for the ULP to judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The frame as received.
    pub frame: Frame,
}

impl Responder {
    /// A responder with the listener's `limits`. Its revision decides which Requests are understood; the rest
    /// is what a rejection sends to the peer. [`accept`](Self::accept) takes a configuration of its own.
    #[must_use]
    pub const fn new(limits: StartupConfig) -> Self {
        Self { limits }
    }

    /// Looks at the bytes received so far, always from the first one on. `Ok(None)` asks for more.
    ///
    /// The number is that of the Request's bytes.
    ///
    /// # Errors
    /// Any means: close TCP, report locally.
    pub fn request(&mut self, input: &[u8]) -> Result<Option<(usize, Request)>, StartupError> {
        if FrameKind::detect(input)? == Some(FrameKind::Reply) {
            return Err(StartupError::ReplyWhereRequestDue);
        }
        // A revision is seen, and refused, before the Private Data has come.
        if let Some(&revision) = input.get(17)
            && revision > self.limits.revision as u8
        {
            return Err(StartupError::UnknownRevision { revision });
        }
        let Some((frame, consumed)) = Frame::parse(input)? else { return Ok(None) };
        Ok(Some((consumed, Request { frame })))
    }

    /// Accepts: the bytes of the Reply, and how the connection works from then on.
    ///
    /// The Reply is of the Request's revision, and enhanced if the Request was. No FPDU and no Marker may be
    /// sent before the first FPDU of the initiator has come (RFC 5044 section 7.1.2).
    ///
    /// # Errors
    /// As for [`Initiator::new`](super::Initiator::new); [`ConfigError::NoRtrKind`] only if the Request asks
    /// for the peer-to-peer model.
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
            Some(asked) => Some(answer(asked, config, &mut negotiated)?),
            None => None,
        };
        let reply = Frame {
            kind: FrameKind::Reply,
            markers: config.want_markers,
            // C of the Request is repeated: siw as initiator goes by the Reply alone.
            crc: negotiated.crc,
            reject: false,
            enhanced,
            // Returned, never set on our own.
            reserved: if config.siw_gso { request.frame.reserved & SIW_GSO } else { 0 },
            revision: negotiated.revision,
            private_data: private_data.to_vec(),
        };
        Ok((reply.emit(), negotiated))
    }

    /// Rejects: the bytes of the Reply. In enhanced data, IRD and ORD are the listener's: what it would have
    /// taken, and what it would have needed (RFC 6581 section 9.1).
    ///
    /// # Errors
    /// If the Private Data does not fit.
    pub fn reject(&self, request: &Request, private_data: &[u8]) -> Result<Vec<u8>, ConfigError> {
        check_private_data(private_data.len(), request.max_reply_private_data())?;
        let enhanced = request
            .frame
            .enhanced
            .map(|asked| enhanced(asked.peer_to_peer, self.limits.rtr, self.limits.ird, self.limits.ord));
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

/// RFC 6581 sections 9.1 and 9.2, what the responder answers.
fn answer(
    asked: Enhanced,
    config: &StartupConfig,
    negotiated: &mut Negotiated,
) -> Result<Enhanced, ConfigError> {
    negotiated.ord = at_most(config.ord, asked.ird);
    let mut offered = RtrKinds::NONE;
    if asked.peer_to_peer {
        offered = offer(RtrKinds::from(asked), config)?;
        // "the responder IRD MAY be increased": a Read that is the only RTR needs one.
        if offered.preferred() == Some(Rtr::Read) && !offered.send {
            negotiated.ird = negotiated.ird.max(1);
        }
        negotiated.rtr = sole(offered);
        negotiated.rtr_kinds = offered;
    }
    let not_negotiated_or = |asked: u16, ours: u16| if asked == NOT_NEGOTIATED { asked } else { ours };
    let ird = not_negotiated_or(asked.ord, negotiated.ird);
    let ord = not_negotiated_or(asked.ird, negotiated.ord);
    Ok(enhanced(asked.peer_to_peer, offered, ird, ord))
}

/// The RTR kinds to set in the Reply: those asked for that we support, or else all that we support.
fn offer(asked: RtrKinds, config: &StartupConfig) -> Result<RtrKinds, ConfigError> {
    if config.rtr.is_empty() {
        return Err(ConfigError::NoRtrKind);
    }
    let free = config.rtr.with_reads(config.ird);
    // With an IRD of 0 a Read comes into question only if nothing else does.
    let choices = [asked.intersect(free), asked.intersect(config.rtr), free, config.rtr];
    Ok(choices.into_iter().find(|kinds| !kinds.is_empty()).unwrap_or(config.rtr))
}

/// The only kind in the set.
fn sole(kinds: RtrKinds) -> Option<Rtr> {
    let count = u8::from(kinds.write) + u8::from(kinds.read) + u8::from(kinds.send);
    if count == 1 { kinds.preferred() } else { None }
}

impl Request {
    /// The initiator's Private Data.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.frame.private_data
    }

    /// Rev of the Request.
    #[must_use]
    pub const fn revision(&self) -> u8 {
        self.frame.revision
    }

    /// The initiator's IRD: how many Reads it takes from us at a time. `None` without enhanced data.
    #[must_use]
    pub fn ird(&self) -> Option<u16> {
        self.frame.enhanced.map(|enhanced| enhanced.ird)
    }

    /// The initiator's ORD: how many Reads it means to have outstanding at us. `None` without enhanced data.
    #[must_use]
    pub fn ord(&self) -> Option<u16> {
        self.frame.enhanced.map(|enhanced| enhanced.ord)
    }

    /// Returns whether the initiator asks for the peer-to-peer model.
    #[must_use]
    pub fn peer_to_peer(&self) -> bool {
        self.frame.enhanced.is_some_and(|enhanced| enhanced.peer_to_peer)
    }

    /// Bytes of Private Data the Reply has room for.
    #[must_use]
    pub fn max_reply_private_data(&self) -> usize {
        MAX_PRIVATE_DATA - self.frame.enhanced.map_or(0, |_| Enhanced::LEN)
    }
}
