//! Packets within packets: MPLS (RFC 3032), VXLAN (RFC 7348), Geneve (RFC 8926), GRE (RFC 2784, 2890), IP in IP (RFC 2003, 4213).

use etherparse::{EtherType, IpNumber, LaxSlicedPacket, ether_type, ip_number};

const MPLS: [EtherType; 2] = [EtherType(0x8847), EtherType(0x8848)];
/// Transparent Ethernet bridging, of GRE and Geneve.
const ETHERNET: EtherType = EtherType(0x6558);
/// VXLAN's ports: the assigned one, and the one that Linux had before.
const VXLAN: [u16; 2] = [4789, 8472];
const GENEVE: u16 = 6081;
const UDP_HEADER: usize = 8;
const GRE_CHECKSUM: u8 = 0x80;
const GRE_KEY: u8 = 0x20;
const GRE_SEQUENCE: u8 = 0x10;

/// The packet within an Ethernet payload that is none of IP.
pub(super) fn of_ether_type<'a>(kind: EtherType, payload: &'a [u8]) -> Option<LaxSlicedPacket<'a>> {
    MPLS.contains(&kind).then(|| mpls(payload)).flatten()
}

/// The packet within an IP payload that may be a tunnel's.
pub(super) fn of_ip<'a>(number: IpNumber, payload: &'a [u8]) -> Option<LaxSlicedPacket<'a>> {
    match number {
        ip_number::GRE => gre(payload),
        ip_number::IPV4 | ip_number::IPV6 => LaxSlicedPacket::from_ip(payload).ok(),
        ip_number::MPLS_IN_IP => mpls(payload),
        ip_number::UDP => udp(payload),
        _ => None,
    }
}

fn udp(datagram: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    let to = u16::from_be_bytes(*datagram.get(2..)?.first_chunk()?);
    let payload = datagram.get(UDP_HEADER..)?;
    let &[flags, _, kind_high, kind_low] = payload.first_chunk()?;
    if VXLAN.contains(&to) {
        // The bit that says that the network identifier is there; all others are reserved.
        return (flags == 0x08).then(|| LaxSlicedPacket::from_ethernet(payload.get(8..)?).ok()).flatten();
    }
    if to == GENEVE && flags >> 6 == 0 {
        let header = 8 + usize::from(flags & 0x3f) * 4;
        return within(EtherType(u16::from_be_bytes([kind_high, kind_low])), payload.get(header..)?);
    }
    None
}

fn gre(payload: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    let &[flags, version, high, low] = payload.first_chunk()?;
    if version & 7 != 0 {
        return None;
    }
    let optional = [GRE_CHECKSUM, GRE_KEY, GRE_SEQUENCE].iter().filter(|bit| flags & **bit != 0).count();
    within(EtherType(u16::from_be_bytes([high, low])), payload.get(4 + optional * 4..)?)
}

fn within(kind: EtherType, payload: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    match kind {
        ETHERNET => LaxSlicedPacket::from_ethernet(payload).ok(),
        ether_type::IPV4 | ether_type::IPV6 => LaxSlicedPacket::from_ip(payload).ok(),
        kind if MPLS.contains(&kind) => mpls(payload),
        _ => None,
    }
}

/// Behind the label stack an IP packet, or an Ethernet frame with or without a control word (RFC 4448). The first four bits distinguish them.
fn mpls(mut payload: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    loop {
        let (label, rest) = payload.split_first_chunk::<4>()?;
        payload = rest;
        if label[2] & 1 != 0 {
            break;
        }
    }
    match payload.first()? >> 4 {
        4 | 6 => LaxSlicedPacket::from_ip(payload).ok(),
        0 => LaxSlicedPacket::from_ethernet(payload.get(4..)?).ok(),
        _ => LaxSlicedPacket::from_ethernet(payload).ok(),
    }
}
