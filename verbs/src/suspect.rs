//! Peers that are known to end a connection in its start-up, and the options that they need: from
//! the sources of their drivers (docs/nics.md).

mod detection;

use std::fmt;

/// A peer that is suspected when a connection could not be set up, and what to set. The suspicion
/// follows from what this end had asked for and from how the peer ended the connection; it is no
/// proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspect {
    /// irdma and i40iw end the connection on a Request of revision 2 without the peer-to-peer model
    /// or without a Write or Read RTR.
    PeerToPeerRequired,
    /// A peer of revision 1 (cxgb4 with `mpa_rev=1`) ends the connection on a Request of revision
    /// 2.
    RevisionOne,
    /// cxgb4 with `peer2peer=1` takes nothing but a zero-length Read as the first FPDU of a
    /// connection of revision 1.
    ReadRtrRequired,
    /// cxgb4 uses the RTR kind of its `p2p_type` alone, whatever the other end offers.
    RtrKinds,
    /// The peer's application asks for more Reads outstanding than this end takes.
    Ird,
    /// This end asks for more Reads outstanding than the peer takes.
    Ord,
    /// A peer that cannot send Markers, such as siw, rejects a Request for them.
    Markers,
    /// A peer that checks the STag of a zero-length Write refuses the one of the capability
    /// exchange.
    CapabilityExchange,
}

impl Suspect {
    /// The options to try, by the names that they have as options of `uiw`: `peer-to-peer` is
    /// `--peer-to-peer`, [`ConnConfig::peer_to_peer`](crate::ConnConfig::peer_to_peer) and, for C
    /// programs, `UIW_PEER_TO_PEER`. A value in capitals is the reader's to choose.
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

    /// Names the suspected peer and its behaviour.
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
            Self::Markers => "a peer that cannot send Markers, such as siw, rejects a Request for them",
            Self::CapabilityExchange => {
                "an adapter that checks the STag of a zero-length Write refuses the capability exchange's"
            }
        }
    }
}

/// The reason and the options to try.
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
