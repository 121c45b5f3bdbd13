//! Peers that are known to end a connection in its start-up, and the options that they need: from the sources of their drivers (docs/nics.md).

use crate::error::Error;
use crate::options::ConnConfig;
use std::fmt;
use std::io;
use uiw_mpa::startup::{Negotiated, Revision, Rtr, StartupRefusal};

/// A peer that is suspected when a connection could not be set up, and what to set. The suspicion follows from what this end had asked for and from
/// how the peer ended the connection; it is no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspect {
    /// irdma and i40iw end the connection on a Request of revision 2 without the peer-to-peer model or without a Write or Read RTR.
    PeerToPeerRequired,
    /// A peer of revision 1 (cxgb4 with `mpa_rev=1`) ends the connection on a Request of revision 2.
    RevisionOne,
    /// cxgb4 with `peer2peer=1` takes nothing but a zero-length Read as the first FPDU of a connection of revision 1.
    ReadRtrRequired,
    /// cxgb4 uses the RTR kind of its `p2p_type` alone, whatever the other end offers.
    RtrKinds,
    /// The peer's application asks for more Reads outstanding than this end takes.
    Ird,
    /// This end asks for more Reads outstanding than the peer takes.
    Ord,
    /// A peer that cannot send Markers, such as siw, rejects a Request for them.
    Markers,
    /// A peer that checks the STag of a zero-length Write refuses the one of the capability exchange.
    CapabilityExchange,
}

impl Suspect {
    /// Returns the suspicion about a connection that this end has begun with `options` and that was not established.
    #[must_use]
    pub fn of_connect(options: &ConnConfig, error: &Error) -> Option<Self> {
        match error {
            Error::ClosedInStartup { .. } => Self::of_closed(options),
            Error::Lost { source, .. } if source.kind() == io::ErrorKind::ConnectionReset => {
                Self::of_closed(options)
            }
            Error::Rejected { markers_asked: true, .. } => Some(Self::Markers),
            Error::PeerRefusal { refusal, .. } => Some(match refusal {
                StartupRefusal::InsufficientIrd { .. } => Self::Ird,
                StartupRefusal::NoMatchingRtr => Self::RtrKinds,
            }),
            _ => None,
        }
    }

    /// The peer ended the connection where its Reply was due.
    fn of_closed(options: &ConnConfig) -> Option<Self> {
        if options.revision == Revision::One {
            return None;
        }
        if !options.peer_to_peer || !(options.rtr.write || options.rtr.read) {
            return Some(Self::PeerToPeerRequired);
        }
        (!options.fallback).then_some(Self::RevisionOne)
    }

    /// Returns the suspicion about an established connection that the peer terminated, with `codes` (layer, type, code), before it sent any FPDU.
    pub(crate) fn of_first_terminate(
        options: &ConnConfig,
        negotiated: &Negotiated,
        initiator: bool,
        codes: (u8, u8, u8),
    ) -> Option<Self> {
        match codes {
            // RFC 6581 section 8: the peer's judgement of our Reply.
            (2, 0, 6) if !initiator => return Some(Self::Ord),
            (2, 0, 7) if !initiator => return Some(Self::RtrKinds),
            // RFC 5044 section 8: the CRC or a Marker was wrong, so the bytes were damaged, whatever they were.
            (2, 0, 2 | 3) => return None,
            _ => {}
        }
        if !initiator {
            return None;
        }
        let first = negotiated.rtr;
        if !negotiated.enhanced && first != Some(Rtr::Read) {
            return Some(Self::ReadRtrRequired);
        }
        (options.capabilities == uiw_stream::CapabilityExchange::On).then_some(Self::CapabilityExchange)
    }

    /// The options to try, by the names that they have as options of `uiw`: `peer-to-peer` is `--peer-to-peer`,
    /// [`ConnConfig::peer_to_peer`] and, for C programs, `UIW_PEER_TO_PEER`. A value in capitals is the reader's to choose.
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

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_mpa::startup::RtrKinds;

    fn peer() -> std::net::SocketAddr {
        "192.0.2.1:9".parse().unwrap()
    }

    #[test]
    fn close_on_request() {
        let closed = Error::ClosedInStartup { peer: peer() };
        let reset = Error::Lost { peer: peer(), source: io::ErrorKind::ConnectionReset.into() };
        for error in [closed, reset] {
            let of = |options: ConnConfig| Suspect::of_connect(&options, &error);
            assert_eq!(of(ConnConfig::default()), None);
            assert_eq!(of(ConnConfig::default().peer_to_peer(false)), Some(Suspect::PeerToPeerRequired));
            let send = RtrKinds { send: true, ..RtrKinds::NONE };
            assert_eq!(of(ConnConfig::default().rtr(send)), Some(Suspect::PeerToPeerRequired));
            assert_eq!(of(ConnConfig::default().fallback(false)), Some(Suspect::RevisionOne));
            assert_eq!(of(ConnConfig::default().revision(Revision::One)), None);
        }
        let refused = Error::Refused { peer: peer() };
        assert_eq!(Suspect::of_connect(&ConnConfig::default().fallback(false), &refused), None);
    }

    #[test]
    fn unacceptable_reply() {
        for (refusal, expected) in [
            (StartupRefusal::NoMatchingRtr, Suspect::RtrKinds),
            (StartupRefusal::InsufficientIrd { ours: 1, needed: 2 }, Suspect::Ird),
        ] {
            let error = Error::PeerRefusal { peer: peer(), refusal };
            assert_eq!(Suspect::of_connect(&ConnConfig::default(), &error), Some(expected));
        }
    }

    #[test]
    fn first_terminate() {
        let negotiated = Negotiated {
            revision: 2,
            enhanced: true,
            crc: true,
            markers_tx: false,
            markers_rx: false,
            ird: 1,
            ord: 1,
            peer_to_peer: true,
            rtr: Some(Rtr::Write),
            rtr_kinds: RtrKinds::ALL,
        };
        let of = |codes| Suspect::of_first_terminate(&ConnConfig::default(), &negotiated, true, codes);
        assert_eq!(of((1, 1, 0)), Some(Suspect::CapabilityExchange));
        // Damaged on the way.
        assert_eq!((of((2, 0, 2)), of((2, 0, 3))), (None, None));
    }

    #[test]
    fn text_names_options() {
        let text = Suspect::ReadRtrRequired.to_string();
        assert!(text.ends_with("; try peer-to-peer=on rtr=read"), "{text}");
    }
}
