//! Extraction of TCP segments and UDP datagrams from captured packets.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, LaxIpPayloadSlice, LaxNetSlice, LaxSlicedPacket, TcpSlice, TransportSlice,
    ether_type, ip_number,
};

use crate::pcap::{LinkType, Packet};

/// A TCP segment as it was captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TcpSegment<'a> {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) sequence: u32,
    /// `None` without the ACK flag.
    pub(super) acknowledgment: Option<u32>,
    pub(super) syn: bool,
    pub(super) fin: bool,
    pub(super) rst: bool,
    pub(super) payload: &'a [u8],
    /// Number of payload bytes that are not in the capture, because the snapshot length has cut
    /// them off.
    pub(super) cut: u32,
}

/// Content of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PacketContent<'a> {
    Tcp(TcpSegment<'a>),
    /// A complete UDP datagram: sender, receiver and bytes.
    Udp(SocketAddr, SocketAddr, &'a [u8]),
    /// An IP fragment of a TCP segment. Fragments are not reassembled.
    Fragment,
    /// A TCP segment whose header is damaged or cut off.
    BrokenTcp,
    /// A packet with an unsupported link type.
    UnknownLink(LinkType),
    Other,
}

/// Extracts the content of a packet.
pub(super) fn parse(packet: &Packet) -> PacketContent<'_> {
    let bytes = packet.bytes.as_slice();
    let sliced = match packet.link {
        LinkType::ETHERNET => LaxSlicedPacket::from_ethernet(bytes).ok(),
        LinkType::RAW | LinkType::RAW_12 | LinkType::RAW_14 | LinkType::IPV4 | LinkType::IPV6 => {
            slice_ip(bytes)
        }
        // The number of the address family differs between systems, so the version field of IP is
        // used instead.
        LinkType::NULL | LinkType::LOOP => bytes.get(4..).and_then(slice_ip),
        // The protocol number is at offset 14 of a header of 16 bytes.
        LinkType::LINUX_SLL => slice_cooked(bytes, 14, 16),
        // The protocol number is at offset 0 of a header of 20 bytes.
        LinkType::LINUX_SLL2 => slice_cooked(bytes, 0, 20),
        other => return PacketContent::UnknownLink(other),
    };
    sliced.map_or(PacketContent::Other, |sliced| extract_content(&sliced))
}

fn slice_ip(bytes: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    LaxSlicedPacket::from_ip(bytes).ok()
}

fn slice_cooked(bytes: &[u8], protocol_at: usize, header: usize) -> Option<LaxSlicedPacket<'_>> {
    let protocol = u16::from_be_bytes(*bytes.get(protocol_at..)?.first_chunk()?);
    let payload = bytes.get(header..)?;
    match EtherType(protocol) {
        ether_type::IPV4 | ether_type::IPV6 => slice_ip(payload),
        other => Some(LaxSlicedPacket::from_ether_type(other, payload)),
    }
}

fn extract_content<'a>(sliced: &LaxSlicedPacket<'a>) -> PacketContent<'a> {
    let Some((source, destination, payload, announced)) = sliced.net.as_ref().and_then(addresses)
    else {
        return PacketContent::Other;
    };
    if payload.ip_number == ip_number::UDP && !payload.fragmented && !payload.incomplete {
        let Some(TransportSlice::Udp(udp)) = &sliced.transport else { return PacketContent::Other };
        let from = SocketAddr::new(source, udp.source_port());
        return PacketContent::Udp(
            from,
            SocketAddr::new(destination, udp.destination_port()),
            udp.payload(),
        );
    }
    if payload.ip_number != ip_number::TCP {
        return PacketContent::Other;
    }
    if payload.fragmented {
        return PacketContent::Fragment;
    }
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { return PacketContent::BrokenTcp };
    let missing =
        if payload.incomplete { announced.saturating_sub(payload.payload.len()) } else { 0 };
    PacketContent::Tcp(segment(tcp, source, destination, missing))
}

/// Returns both addresses, the IP payload, and its length as the IP header announces it.
fn addresses<'a, 'b>(
    net: &'b LaxNetSlice<'a>,
) -> Option<(IpAddr, IpAddr, &'b LaxIpPayloadSlice<'a>, usize)> {
    match net {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            let extensions = ip.extensions().auth.map_or(0, |auth| auth.slice().len());
            let before = header.slice().len() + extensions;
            let announced = usize::from(header.total_len()).saturating_sub(before);
            let (source, destination) =
                (header.source_addr().into(), header.destination_addr().into());
            Some((source, destination, ip.payload(), announced))
        }
        LaxNetSlice::Ipv6(ip) => {
            let header = ip.header();
            let extensions = ip.extensions().slice().len();
            let announced = usize::from(header.payload_length()).saturating_sub(extensions);
            let (source, destination) =
                (header.source_addr().into(), header.destination_addr().into());
            Some((source, destination, ip.payload(), announced))
        }
        LaxNetSlice::Arp(_) => None,
    }
}

fn segment<'a>(
    tcp: &TcpSlice<'a>,
    source: IpAddr,
    destination: IpAddr,
    missing: usize,
) -> TcpSegment<'a> {
    TcpSegment {
        from: SocketAddr::new(source, tcp.source_port()),
        to: SocketAddr::new(destination, tcp.destination_port()),
        sequence: tcp.sequence_number(),
        acknowledgment: tcp.ack().then(|| tcp.acknowledgment_number()),
        syn: tcp.syn(),
        fin: tcp.fin(),
        rst: tcp.rst(),
        payload: tcp.payload(),
        cut: u32::try_from(missing).unwrap_or(u32::MAX),
    }
}
