//! Datagrams between uiw peers (`docs/datagrams.md`), which are recognised by version, kind and CRC
//! on any port.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use uiw_datagram::sidr::{Reply, Request, Status};
use uiw_datagram::{DatagramError, Header, Kind, Qpn};

use super::event::{Datagram, Event, hex_digits, quoted};

/// Maximum number of queue pairs whose MSNs are followed. If there are more, all of them are
/// forgotten, including those that no longer send.
const MAX_SOURCES: usize = 65_536;
/// Number of MSNs, up to the highest one, for which it is known whether they have arrived.
const WINDOW: u32 = 64;

/// Decoder of datagrams, with the MSNs of every sending queue pair.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    sources: BTreeMap<(IpAddr, Qpn), DatagramSource>,
}

#[derive(Debug)]
struct DatagramSource {
    epoch: u32,
    highest: u32,
    /// Bit mask of arrived MSNs: bit 0 is `highest`, bit n is n below it.
    came: u64,
}

impl Datagrams {
    /// Decodes a UDP datagram. Returns no events for other protocols.
    pub(super) fn datagram(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Vec<Event> {
        match Kind::of(bytes) {
            Some(Kind::Message) => self.message(from, to, bytes),
            Some(Kind::SidrRequest) => match Request::parse(bytes) {
                Ok(request) => vec![datagram(Datagram {
                    transaction: Some(request.transaction),
                    private_data_length: Some(request.private_data.len()),
                    private_data: Some(hex_digits(request.private_data)),
                    private_text: quoted(request.private_data),
                    ..Datagram::new("SIDR request", 0)
                })],
                Err(error) => illegal(&error),
            },
            Some(Kind::SidrReply) => match Reply::parse(bytes) {
                Ok(reply) => vec![datagram(Datagram {
                    transaction: Some(reply.transaction),
                    private_data_length: Some(reply.private_data.len()),
                    private_data: Some(hex_digits(reply.private_data)),
                    private_text: quoted(reply.private_data),
                    destination_qpn: (reply.status == Status::Valid).then(|| reply.qpn.raw()),
                    qkey: (reply.status == Status::Valid).then_some(reply.qkey),
                    ..Datagram::new(
                        match reply.status {
                            Status::Valid => "SIDR reply",
                            Status::Rejected => "SIDR reply, rejected",
                            Status::NoQp => "SIDR reply, no queue pair",
                        },
                        0,
                    )
                })],
                Err(error) => illegal(&error),
            },
            None => Vec::new(),
        }
    }

    fn message(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) -> Vec<Event> {
        let (header, payload) = match Header::parse(bytes) {
            Ok(parsed) => parsed,
            Err(error) => return illegal(&error),
        };
        let name = match (header.immediate, header.solicited) {
            (None, false) => "Send",
            (None, true) => "Send with SE",
            (Some(_), _) => "Send with Immediate",
        };
        let mut events = vec![datagram(Datagram {
            epoch: Some(header.epoch),
            destination_qpn: Some(header.destination.raw()),
            source_qpn: Some(header.source.raw()),
            qkey: Some(header.qkey),
            msn: Some(header.msn),
            immediate: header.immediate,
            order: self.order(from.ip(), &header),
            ..Datagram::new(name, payload.len())
        })];
        if let Err(error) = header.check_source(from.port()) {
            events.extend(illegal(&error));
        }
        let port = if header.destination == Qpn::MULTICAST {
            uiw_datagram::MULTICAST_PORT
        } else {
            header.destination.port()
        };
        if port != to.port() {
            events.push(Event::departure(
                RULE,
                format!("destination QPN {} at UDP port {}", header.destination, to.port()),
            ));
        }
        events
    }

    /// Returns a description of the position of the message in its epoch, unless it is the next
    /// one.
    fn order(&mut self, from: IpAddr, header: &Header) -> Option<String> {
        if self.sources.len() >= MAX_SOURCES {
            self.sources.clear();
        }
        let msn = header.msn;
        let new = DatagramSource { epoch: header.epoch, highest: msn, came: 1 };
        let source = self.sources.entry((from, header.source)).or_insert_with(|| DatagramSource {
            highest: msn.wrapping_sub(1),
            came: 0,
            ..new
        });
        if source.epoch != header.epoch {
            *source = new;
            return (msn != 1)
                .then(|| format!("a new epoch, {} before it not captured", msn.wrapping_sub(1)));
        }
        let ahead = msn.wrapping_sub(source.highest);
        if ahead.cast_signed() > 0 {
            source.came = source.came.checked_shl(ahead).unwrap_or(0) | 1;
            source.highest = msn;
            return (ahead > 1).then(|| format!("{} before it not captured", ahead - 1));
        }
        let behind = source.highest.wrapping_sub(msn);
        if behind >= WINDOW {
            return Some("late or repeated".to_owned());
        }
        let bit = 1 << behind;
        let repeated = source.came & bit != 0;
        source.came |= bit;
        Some(if repeated { "repeated" } else { "late" }.to_owned())
    }
}

fn datagram(datagram: Datagram) -> Event {
    Event::Datagram(Box::new(datagram))
}

/// Document with the rules for datagrams.
const RULE: &str = "docs/datagrams.md";

/// Returns the events for a datagram that begins like one of ours but is invalid. Datagrams of
/// other protocols may begin in the same way, so a wrong CRC or length is not reported.
fn illegal(error: &DatagramError) -> Vec<Event> {
    match error {
        DatagramError::Crc { .. }
        | DatagramError::TooShort { .. }
        | DatagramError::SidrLength { .. } => Vec::new(),
        error => vec![Event::departure(RULE, error.to_string())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(epoch: u32, msn: u32) -> Vec<u8> {
        let header = Header {
            epoch,
            destination: Qpn::new(4000, 1),
            source: Qpn::new(4001, 2),
            qkey: 7,
            msn,
            solicited: false,
            immediate: None,
        };
        let mut bytes = header.emit().to_vec();
        bytes.extend_from_slice(&uiw_datagram::crc(&bytes));
        bytes
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn lost_and_repeated_messages_named() {
        let mut datagrams = Datagrams::default();
        let mut order = |epoch, msn| {
            let events = datagrams.datagram(address(4001), address(4000), &message(epoch, msn));
            let [Event::Datagram(datagram)] = &events[..] else { panic!("{events:?}") };
            datagram.order.clone()
        };
        assert_eq!(order(1, 5), None, "a capture may begin anywhere");
        assert_eq!(order(1, 6), None);
        assert_eq!(order(1, 9).as_deref(), Some("2 before it not captured"));
        assert_eq!(order(1, 8).as_deref(), Some("late"));
        assert_eq!(order(1, 8).as_deref(), Some("repeated"));
        assert_eq!(order(1, 9).as_deref(), Some("repeated"));
        assert_eq!(order(1, 10), None);
        assert_eq!(order(1, 10_000).as_deref(), Some("9989 before it not captured"));
        assert_eq!(order(1, 10).as_deref(), Some("late or repeated"));
        assert_eq!(order(2, 1), None, "a new epoch");
        assert_eq!(order(2, u32::MAX).as_deref(), Some("late"), "before the first one");
    }

    #[test]
    fn departures_named_other_protocols_skipped() {
        let mut datagrams = Datagrams::default();
        let events = datagrams.datagram(address(4002), address(4003), &message(1, 1));
        assert!(
            matches!(events[..], [Event::Datagram(_), Event::Departure(_), Event::Departure(_)]),
            "{events:?}"
        );
        let mut wrong = message(1, 2);
        wrong[21] = 0x47;
        let end = wrong.len() - 4;
        let crc = uiw_datagram::crc(&wrong[..end]);
        wrong[end..].copy_from_slice(&crc);
        let events = datagrams.datagram(address(4001), address(4000), &wrong);
        assert!(matches!(events[..], [Event::Departure(_)]), "{events:?}");
        wrong[30] ^= 1;
        assert!(datagrams.datagram(address(4001), address(4000), &wrong).is_empty());
        assert!(datagrams.datagram(address(53), address(4000), b"\x01\x01 a query").is_empty());
    }
}
