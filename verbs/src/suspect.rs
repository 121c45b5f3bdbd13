//! Peers that are known to end a connection during start-up, and the options that they need,
//! according to the sources of their drivers (docs/nics.md).

mod detection;

use std::fmt;

/// Peer that is suspected when a connection could not be set up, and the options to change. The
/// suspicion follows from what this end has requested and from how the peer has ended the
/// connection. It is no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspect {
    /// irdma and i40iw end the connection after a Request of revision 2 without the peer-to-peer
    /// model, or without a Write or Read RTR.
    PeerToPeerRequired,
    /// A peer of revision 1 (cxgb4 with `mpa_rev=1`) ends the connection after a Request of
    /// revision 2.
    RevisionOne,
    /// cxgb4 with `peer2peer=1` accepts only a zero-length Read as the first FPDU of a connection
    /// of revision 1.
    ReadRtrRequired,
    /// cxgb4 uses only the RTR kind of its `p2p_type`, whatever the other end offers.
    RtrKinds,
    /// The application of the peer requests more outstanding Reads than this end accepts.
    Ird,
    /// This end requests more outstanding Reads than the peer accepts.
    Ord,
    /// A peer that cannot send Markers, such as siw, rejects a Request for them.
    Markers,
    /// A peer that checks the STag of a zero-length Write refuses the Write of the capability
    /// exchange.
    CapabilityExchange,
}

impl Suspect {
    /// Returns the options to try, with the names of the options of `uiw`. For example,
    /// `peer-to-peer` is `--peer-to-peer`,
    /// [`ConnConfig::peer_to_peer`](crate::ConnConfig::peer_to_peer) and, for C programs,
    /// `UIW_PEER_TO_PEER`. A value in capitals is chosen by the user.
    #[must_use]
    pub const fn options(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::PeerToPeerRequired => &[("peer-to-peer", "on"), ("rtr", "write,read")],
            Self::RevisionOne => &[("fallback", "on")],
            Self::ReadRtrRequired => &[("peer-to-peer", "on"), ("rtr", "read")],
            Self::RtrKinds => &[("rtr", "write,read,send")],
            Self::Ird => &[("ird", "N")],
            Self::Ord => &[("ord", "N")],
            Self::Markers => &[("markers", "off")],
            Self::CapabilityExchange => &[("capabilities", "off")],
        }
    }

    /// Returns a description of the suspected peer and its behaviour.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::PeerToPeerRequired => {
                "Intel's irdma and i40iw end a connection without the peer-to-peer model or without a Write or Read RTR"
            }
            Self::RevisionOne => {
                "a peer of MPA revision 1, such as Chelsio's cxgb4 with mpa_rev=1, ends a connection of revision 2"
            }
            Self::ReadRtrRequired => {
                "Chelsio's cxgb4 with peer2peer=1 takes nothing but a zero-length Read as the first FPDU at revision 1"
            }
            Self::RtrKinds => {
                "Chelsio's cxgb4 uses the RTR kind of its p2p_type alone, which this end does not offer"
            }
            Self::Ird => "the peer asks for more Reads outstanding than this end takes",
            Self::Ord => "this end asks for more Reads outstanding than the peer takes",
            Self::Markers => {
                "a peer that cannot send Markers, such as siw, rejects a Request for them"
            }
            Self::CapabilityExchange => {
                "an adapter that checks the STag of a zero-length Write refuses the capability exchange's"
            }
        }
    }
}

/// Formats the reason and the options to try.
impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())?;
        f.write_str("; try")?;
        for (name, value) in self.options() {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}
