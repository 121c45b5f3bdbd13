//! The settings of one end, and those that both agreed on.

use super::{ConfigError, Rtr, RtrKinds};
#[cfg(doc)]
use crate::wire::startup::SIW_GSO;
use crate::wire::startup::{Enhanced, NOT_NEGOTIATED};

/// A revision of MPA this implementation speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// RFC 5044.
    One = 1,
    /// RFC 6581: IRD and ORD, and the peer-to-peer model, are negotiated.
    Two = 2,
}

/// The settings of this end, in both roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupConfig {
    /// The highest revision to speak.
    pub revision: Revision,
    /// C: ask for CRCs. They are on if either end asks; there is no way to refuse them (RFC 5044 section
    /// 7.1.1). Turning this off takes an explicit setting by the administrator (section 4.4).
    pub crc: bool,
    /// M: have the peer put Markers into what it sends to us.
    pub want_markers: bool,
    /// A: ask for the peer-to-peer model. A responder answers with the model of the Request, whatever this says. At revision 1, which has no
    /// A, an initiator sends a zero-length Read or Write before anything else: there are responders that require one.
    pub peer_to_peer: bool,
    /// The RTR kinds this end supports.
    pub rtr: RtrKinds,
    /// RDMA Reads and atomics taken from the peer at a time, 0 to 0x3FFE; 0x3FFF leaves it to the ULP.
    pub ird: u16,
    /// RDMA Reads and atomics outstanding at the peer at a time, 0 to 0x3FFE; 0x3FFF leaves it to the ULP.
    pub ord: u16,
    /// A departure from RFC 5044 section 7.1.1, where Res is sent as zero: sets (initiator) or returns (responder)
    /// [`SIW_GSO`], by which the Linux siw driver announces that it may send FPDUs larger than a TCP segment. Off unless
    /// the peer is known to be siw.
    pub siw_gso: bool,
}

impl Default for StartupConfig {
    /// Revision 2, CRCs, no Markers, peer-to-peer with every RTR kind, IRD and ORD 128.
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
    /// IRD and ORD have 14 bits on the wire.
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

/// Properties of the connection, as both ends understand it after the Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Rev of the Reply. 0 is a peer of the RDMA Consortium's specifications.
    pub revision: u8,
    /// True if IRD, ORD and the connection model were negotiated (S = 1).
    pub enhanced: bool,
    /// CRCs are generated and checked, in both directions.
    pub crc: bool,
    /// We put Markers into what we send.
    pub markers_tx: bool,
    /// The peer puts Markers into what it sends.
    pub markers_rx: bool,
    /// Reads and atomics the peer may have outstanding at us.
    pub ird: u16,
    /// Reads and atomics we may have outstanding at the peer.
    pub ord: u16,
    /// The peer-to-peer model: the initiator's provider sends the first FPDU by itself.
    pub peer_to_peer: bool,
    /// The initiator's first FPDU. As initiator, we send this before anything else, at revision 1 without the responder's agreement. As
    /// responder, `Some` if only one kind is possible.
    pub rtr: Option<Rtr>,
    /// The kinds of RTR the responder offered: whichever of them may be the first FPDU. None without the
    /// peer-to-peer model.
    pub rtr_kinds: RtrKinds,
}

/// Our ORD towards a peer whose IRD is not known, as revision 1 has no field for it: what siw and common RNICs offer.
pub(super) const UNANNOUNCED_IRD: u16 = 128;

/// Our ORD against the peer's IRD.
pub(super) fn at_most(ord: u16, peer_ird: u16) -> u16 {
    ord.min(if peer_ird == NOT_NEGOTIATED { UNANNOUNCED_IRD } else { peer_ird })
}

/// The enhanced data that says this.
pub(super) fn enhanced(peer_to_peer: bool, rtr: RtrKinds, ird: u16, ord: u16) -> Enhanced {
    // With A = 0, the flags B, C and D must be 0 too (RFC 6581 section 9.2).
    let rtr = if peer_to_peer { rtr } else { RtrKinds::NONE };
    Enhanced { peer_to_peer, rtr_send: rtr.send, rtr_write: rtr.write, rtr_read: rtr.read, ird, ord }
}

/// The Private Data has to fit.
pub(super) fn check_private_data(len: usize, max: usize) -> Result<(), ConfigError> {
    if len > max { Err(ConfigError::PrivateDataTooLong { len, max }) } else { Ok(()) }
}
