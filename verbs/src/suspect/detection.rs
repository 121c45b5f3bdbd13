//! Derives a suspicion from the options that this end requested and from the way in which the
//! connection ended.

use super::Suspect;
use crate::error::Error;
use crate::options::ConnConfig;
use std::io;
use uiw_mpa::startup::{Negotiated, Revision, Rtr, StartupRefusal};

impl Suspect {
    /// Returns the suspicion about a connection that this end has initiated with `options` and that
    /// was not established.
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

    /// Returns the suspicion if the peer has ended the connection instead of sending its Reply.
    fn of_closed(options: &ConnConfig) -> Option<Self> {
        if options.revision == Revision::One {
            return None;
        }
        if !options.peer_to_peer || !(options.rtr.write || options.rtr.read) {
            return Some(Self::PeerToPeerRequired);
        }
        (!options.fallback).then_some(Self::RevisionOne)
    }

    /// Returns the suspicion about an established connection that the peer has terminated, with
    /// `codes` (layer, type, code), before it sent any FPDU.
    pub(crate) fn of_first_terminate(
        options: &ConnConfig,
        negotiated: &Negotiated,
        initiator: bool,
        codes: (u8, u8, u8),
    ) -> Option<Self> {
        match codes {
            // RFC 6581 section 8: the peer has rejected the Reply of this end.
            (2, 0, 6) if !initiator => return Some(Self::Ord),
            (2, 0, 7) if !initiator => return Some(Self::RtrKinds),
            // RFC 5044 section 8: the CRC or a Marker was wrong. The bytes were damaged on the
            // path, so the Terminate says nothing about the options.
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
        (options.capabilities == uiw_stream::CapabilityExchange::On)
            .then_some(Self::CapabilityExchange)
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
            assert_eq!(
                of(ConnConfig::default().peer_to_peer(false)),
                Some(Suspect::PeerToPeerRequired)
            );
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
        let of =
            |codes| Suspect::of_first_terminate(&ConnConfig::default(), &negotiated, true, codes);
        assert_eq!(of((1, 1, 0)), Some(Suspect::CapabilityExchange));
        // The Terminate reports damage on the path, so the peer is not suspected.
        assert_eq!((of((2, 0, 2)), of((2, 0, 3))), (None, None));
    }

    #[test]
    fn text_names_options() {
        let text = Suspect::ReadRtrRequired.to_string();
        assert!(text.ends_with("; try peer-to-peer=on rtr=read"), "{text}");
    }
}
