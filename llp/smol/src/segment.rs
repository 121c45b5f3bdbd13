//! TCP segments in Ethernet frames: their location, and fields of their headers.

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpOption,
    TcpPacket, TcpSeqNumber,
};

/// Number of bytes before the IP packet.
pub(super) const ETHERNET_HEADER: usize = 14;
/// Size of the IPv6 header in bytes.
pub(super) const IPV6_HEADER: usize = 40;
/// Size of a TCP header without options, in bytes.
pub(super) const TCP_HEADER: usize = 20;
/// Maximum size of the headers of a segment without options, in bytes.
pub(super) const LONGEST: usize = ETHERNET_HEADER + IPV6_HEADER + TCP_HEADER;

/// Returns the offset and the size of the TCP segment in a frame.
pub(super) fn segment_of(frame: &[u8]) -> Option<(usize, usize)> {
    let packet = frame.get(ETHERNET_HEADER..)?;
    let (header, len) = match ethertype(frame)? {
        EthernetProtocol::Ipv4 => {
            let packet = Ipv4Packet::new_checked(packet).ok()?;
            if packet.next_header() != IpProtocol::Tcp {
                return None;
            }
            (usize::from(packet.header_len()), usize::from(packet.total_len()))
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(packet).ok()?;
            if packet.next_header() != IpProtocol::Tcp {
                return None;
            }
            (IPV6_HEADER, packet.total_len())
        }
        _ => return None,
    };
    let bytes = len.checked_sub(header).filter(|bytes| *bytes >= TCP_HEADER)?;
    Some((ETHERNET_HEADER + header, bytes))
}

pub(super) fn ethertype(frame: &[u8]) -> Option<EthernetProtocol> {
    Some(EthernetFrame::new_checked(frame).ok()?.ethertype())
}

/// Returns the window shift that a SYN announces (RFC 7323 section 2.2). The default is 0, and
/// values above 14 are treated as 14.
pub(super) fn scale_of(segment: &TcpPacket<&[u8]>) -> u8 {
    let mut options = segment.options();
    while !options.is_empty() {
        match TcpOption::parse(options) {
            Ok((_, TcpOption::WindowScale(shift))) => return shift.min(14),
            Ok((_, TcpOption::EndOfList)) | Err(_) => break,
            Ok((rest, _)) => options = rest,
        }
    }
    0
}

pub(super) fn sequence(number: TcpSeqNumber) -> u32 {
    number.0 as u32
}

/// Returns whether `this` comes after `other` in the sequence space.
pub(super) fn is_behind(this: u32, other: u32) -> bool {
    this.wrapping_sub(other).cast_signed() > 0
}

/// Fills in the checksum of the TCP segment from `at` to the end of `frame`.
pub(super) fn fill_checksum(frame: &mut [u8], at: usize) {
    let packet = &frame[ETHERNET_HEADER..at];
    let (source, destination): (IpAddress, IpAddress) =
        if ethertype(frame) == Some(EthernetProtocol::Ipv6) {
            let packet = Ipv6Packet::new_unchecked(packet);
            (packet.src_addr().into(), packet.dst_addr().into())
        } else {
            let packet = Ipv4Packet::new_unchecked(packet);
            (packet.src_addr().into(), packet.dst_addr().into())
        };
    TcpPacket::new_unchecked(&mut frame[at..]).fill_checksum(&source, &destination);
}
