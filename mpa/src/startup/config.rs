//! Settings of one end, and the properties negotiated by both ends.

use super::{ConfigError, Rtr, RtrKinds};
#[cfg(doc)]
use crate::wire::startup::SIW_GSO;
use crate::wire::startup::{Enhanced, NOT_NEGOTIATED};

/// MPA revision supported by this implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// Revision 1 (RFC 5044).
    One = 1,
    /// Revision 2 (RFC 6581), which negotiates IRD, ORD and the peer-to-peer model.
    Two = 2,
}

/// Startup settings of one end, as initiator or responder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupConfig {
    /// Highest revision to use.
    pub revision: Revision,
    /// True to ask for CRCs (flag C).
    ///
    /// CRCs are used if either end asks for them; an end cannot refuse them (RFC 5044 section
    /// 7.1.1). Only an explicit setting by the administrator may turn this off (section 4.4).
    pub crc: bool,
    /// True to ask the peer to insert Markers into the stream that it sends (flag M).
    pub want_markers: bool,
    /// True if an initiator asks for the peer-to-peer model (flag A).
    ///
    /// A responder ignores this setting and answers with the model of the Request. Revision 1 has
    /// no flag A. There the initiator sends a zero-length Read or Write before anything else,
    /// because some responders require one.
    pub peer_to_peer: bool,
    /// RTR kinds supported by this end.
    pub rtr: RtrKinds,
    /// Maximum number of RDMA Reads and atomics that the peer may have outstanding at this end, 0
    /// to 0x3FFE. 0x3FFF leaves it to the ULP.
    pub ird: u16,
    /// Maximum number of RDMA Reads and atomics that this end has outstanding at the peer, 0 to
    /// 0x3FFE. 0x3FFF leaves it to the ULP.
    pub ord: u16,
    /// True to set (initiator) or return (responder) [`SIW_GSO`] in the field Res.
    ///
    /// The Linux siw driver announces with it that it may send FPDUs larger than a TCP segment. RFC
    /// 5044 section 7.1.1 requires Res to be zero, so this should be off unless the peer is known
    /// to be siw.
    pub siw_gso: bool,
}

impl Default for StartupConfig {
    /// Returns revision 2, CRCs, no Markers, peer-to-peer with every RTR kind, IRD and ORD 128.
    fn default() -> Self {
        Self {
            revision: Revision::Two,
            crc: true,
            want_markers: false,
            peer_to_peer: true,
            rtr: RtrKinds::ALL,
            ird: 128,
            ord: 128,
            siw_gso: false,
        }
    }
}

impl StartupConfig {
    /// Checks that IRD and ORD fit the 14 bits that they have on the wire.
    pub(super) fn check_depths(&self) -> Result<(), ConfigError> {
        if self.ird > NOT_NEGOTIATED {
            return Err(ConfigError::IrdOutOfRange { ird: self.ird });
        }
        if self.ord > NOT_NEGOTIATED {
            return Err(ConfigError::OrdOutOfRange { ord: self.ord });
        }
        Ok(())
    }
}

/// Properties of the connection that both ends know after the Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Revision of the Reply. 0 means that the peer follows the RDMA Consortium's specifications.
    pub revision: u8,
    /// True if IRD, ORD and the connection model were negotiated (flag S).
    pub enhanced: bool,
    /// True if CRCs are generated and checked, in both directions.
    pub crc: bool,
    /// True if this end inserts Markers into the stream that it sends.
    pub markers_tx: bool,
    /// True if the peer inserts Markers into the stream that it sends.
    pub markers_rx: bool,
    /// Maximum number of Reads and atomics that the peer may have outstanding at this end.
    pub ird: u16,
    /// Maximum number of Reads and atomics that this end may have outstanding at the peer.
    pub ord: u16,
    /// True if the peer-to-peer model is used, in which the initiator's provider sends the first
    /// FPDU by itself.
    pub peer_to_peer: bool,
    /// Kind of the initiator's first FPDU.
    ///
    /// An initiator sends it before anything else; at revision 1 it does so without the responder's
    /// agreement. At a responder this is `Some` only if a single kind is possible.
    pub rtr: Option<Rtr>,
    /// RTR kinds that the responder offered, any of which may be the first FPDU. Empty without the
    /// peer-to-peer model.
    pub rtr_kinds: RtrKinds,
}

/// Maximum ORD if the peer's IRD is not known, because revision 1 has no field for it or neither end
/// has negotiated the value. siw and common RNICs offer this IRD.
pub(super) const UNANNOUNCED_IRD: u16 = 128;

/// Limits our ORD to the peer's IRD. If the peer does not negotiate its IRD, our ORD is unchanged
/// (RFC 6581 section 9.1).
pub(super) fn limit_ord(ord: u16, peer_ird: u16) -> u16 {
    match ord.min(peer_ird) {
        NOT_NEGOTIATED => UNANNOUNCED_IRD,
        ord => ord,
    }
}

/// Builds the enhanced data of a Request or Reply.
pub(super) fn build_enhanced(peer_to_peer: bool, rtr: RtrKinds, ird: u16, ord: u16) -> Enhanced {
    // With A = 0, the flags B, C and D must be 0 too (RFC 6581 section 9.2).
    let rtr = if peer_to_peer { rtr } else { RtrKinds::NONE };
    Enhanced {
        peer_to_peer,
        rtr_send: rtr.send,
        rtr_write: rtr.write,
        rtr_read: rtr.read,
        ird,
        ord,
    }
}

/// Checks that `len` bytes of Private Data fit `max` bytes.
pub(super) fn check_private_data(len: usize, max: usize) -> Result<(), ConfigError> {
    if len > max { Err(ConfigError::PrivateDataTooLong { len, max }) } else { Ok(()) }
}
