//! Which connection a frame belongs to, read from its headers before smoltcp sees it.

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};
use std::net::{IpAddr, SocketAddr};

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A TCP segment; `opens` = a SYN without ACK.
    Tcp { flow: Flow, opens: bool },
    /// Neighbours, echoes, and what is too broken to say.
    Other,
}

/// Looks at a frame. With `verify`, a TCP segment whose checksum is wrong gives `None`.
pub(super) fn classify(frame: &[u8], verify: bool) -> Option<Kind> {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return Some(Kind::Other) };
    match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            let Ok(ip) = Ipv4Packet::new_checked(ethernet.payload()) else { return Some(Kind::Other) };
            if ip.next_header() != IpProtocol::Tcp || ip.more_frags() || ip.frag_offset() != 0 {
                return Some(Kind::Other);
            }
            tcp(ip.src_addr().into(), ip.dst_addr().into(), ip.payload(), verify)
        }
        EthernetProtocol::Ipv6 => {
            let Ok(ip) = Ipv6Packet::new_checked(ethernet.payload()) else { return Some(Kind::Other) };
            if ip.next_header() != IpProtocol::Tcp {
                return Some(Kind::Other);
            }
            tcp(ip.src_addr().into(), ip.dst_addr().into(), ip.payload(), verify)
        }
        _ => Some(Kind::Other),
    }
}

fn tcp(source: IpAddr, destination: IpAddr, segment: &[u8], verify: bool) -> Option<Kind> {
    let Ok(segment) = TcpPacket::new_checked(segment) else { return Some(Kind::Other) };
    if verify && !segment.verify_checksum(&source.into(), &destination.into()) {
        return None;
    }
    let flow = Flow {
        local: SocketAddr::new(destination, segment.dst_port()),
        peer: SocketAddr::new(source, segment.src_port()),
    };
    Some(Kind::Tcp { flow, opens: segment.syn() && !segment.ack() })
}
