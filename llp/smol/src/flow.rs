//! Classification of frames by their headers, before smoltcp sees them: the connection or UDP
//! socket to which a frame belongs.

use super::segment::ETHERNET_HEADER;
use smoltcp::wire::{
    ArpPacket, EthernetFrame, EthernetProtocol, Icmpv6Message, Icmpv6Packet, IpProtocol,
    Ipv4Packet, Ipv6Packet, TcpPacket,
};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

/// Size of the UDP header in bytes.
const UDP_HEADER: usize = 8;

/// Addresses of the two ends of a connection, or of two UDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

impl Flow {
    /// Returns a hash of the addresses, which is the same for all frames of the flow and evenly
    /// distributed.
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Hash::hash(self, &mut hasher);
        hasher.finish()
    }
}

/// Kind of a frame, and the flow to which it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameClass {
    /// A TCP segment; `opens` is true for a SYN without ACK.
    Tcp { flow: Flow, opens: bool },
    /// One or more UDP datagrams. `payload` is the range of the payload in the frame.
    Udp { flow: Flow, payload: (usize, usize) },
    /// Any other frame: for example neighbour discovery, ICMP, IP fragments, and invalid frames.
    Other,
}

/// How the checksum of a TCP segment is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    /// The checksum is not verified, because the link guarantees that it is correct.
    Trusted,
    /// The checksum must be correct.
    Whole,
    /// The checksum field must contain the correct checksum, or only the sum of the pseudo-header
    /// ([`pseudo_sum`]).
    WholeOrBegun,
}

/// Classifies a frame. Returns `None` for a TCP segment with a wrong checksum.
pub(super) fn classify(frame: &[u8], checksum: Checksum) -> Option<FrameClass> {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return Some(FrameClass::Other) };
    match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            let Ok(ip) = Ipv4Packet::new_checked(ethernet.payload()) else {
                return Some(FrameClass::Other);
            };
            if ip.next_header() == IpProtocol::Udp && !ip.more_frags() && ip.frag_offset() == 0 {
                let at = ETHERNET_HEADER + usize::from(ip.header_len());
                return Some(udp(ip.src_addr().into(), ip.dst_addr().into(), ip.payload(), at));
            }
            if ip.next_header() != IpProtocol::Tcp || ip.more_frags() || ip.frag_offset() != 0 {
                return Some(FrameClass::Other);
            }
            tcp(ip.src_addr().into(), ip.dst_addr().into(), ip.payload(), checksum)
        }
        EthernetProtocol::Ipv6 => {
            let Ok(ip) = Ipv6Packet::new_checked(ethernet.payload()) else {
                return Some(FrameClass::Other);
            };
            if ip.next_header() == IpProtocol::Udp {
                let at = ETHERNET_HEADER + ip.header_len();
                return Some(udp(ip.src_addr().into(), ip.dst_addr().into(), ip.payload(), at));
            }
            if ip.next_header() != IpProtocol::Tcp {
                return Some(FrameClass::Other);
            }
            tcp(ip.src_addr().into(), ip.dst_addr().into(), ip.payload(), checksum)
        }
        _ => Some(FrameClass::Other),
    }
}

/// Returns the IP address of the sender of a neighbour discovery frame: ARP (RFC 826) or Neighbor
/// Discovery (RFC 4861 sections 4.3 and 4.4).
pub(super) fn neighbour(frame: &[u8]) -> Option<IpAddr> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    match ethernet.ethertype() {
        EthernetProtocol::Arp => {
            let arp = ArpPacket::new_checked(ethernet.payload()).ok()?;
            let address: [u8; 4] = arp.source_protocol_addr().try_into().ok()?;
            Some(address.into())
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
            let icmp = Icmpv6Packet::new_checked(ip.payload()).ok();
            match icmp.filter(|_| ip.next_header() == IpProtocol::Icmpv6)? {
                icmp if icmp.msg_type() == Icmpv6Message::NeighborAdvert => {
                    Some(icmp.target_addr().into())
                }
                icmp if icmp.msg_type() == Icmpv6Message::NeighborSolicit => {
                    Some(ip.src_addr().into())
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Classifies a UDP datagram whose header is at offset `at`. Its checksum is not verified, because
/// our datagrams end with a CRC. The payload is delimited by the length of the IP packet: if a
/// frame contains several datagrams, the UDP length may be that of one or of all of them.
fn udp(source: IpAddr, destination: IpAddr, datagram: &[u8], at: usize) -> FrameClass {
    let [a, b, c, d, _, _, _, _, ..] = *datagram else { return FrameClass::Other };
    let flow = Flow {
        local: SocketAddr::new(destination, u16::from_be_bytes([c, d])),
        peer: SocketAddr::new(source, u16::from_be_bytes([a, b])),
    };
    FrameClass::Udp { flow, payload: (at + UDP_HEADER, at + datagram.len()) }
}

fn tcp(
    source: IpAddr,
    destination: IpAddr,
    segment: &[u8],
    checksum: Checksum,
) -> Option<FrameClass> {
    let bytes = segment;
    let Ok(segment) = TcpPacket::new_checked(bytes) else { return Some(FrameClass::Other) };
    let whole = || segment.verify_checksum(&source.into(), &destination.into());
    let begun = || pseudo_sum(source, destination, bytes.len()) == segment.checksum();
    let right = match checksum {
        Checksum::Trusted => true,
        Checksum::Whole => whole(),
        Checksum::WholeOrBegun => whole() || begun(),
    };
    if !right {
        return None;
    }
    let flow = Flow {
        local: SocketAddr::new(destination, segment.dst_port()),
        peer: SocketAddr::new(source, segment.src_port()),
    };
    Some(FrameClass::Tcp { flow, opens: segment.syn() && !segment.ack() })
}

/// Returns the sum of the pseudo-header: addresses, protocol and TCP length (RFC 9293 section 3.1).
/// It is stored in the checksum field until the network card completes the checksum.
pub(super) fn pseudo_sum(source: IpAddr, destination: IpAddr, len: usize) -> u16 {
    let sum = |address: IpAddr| match address {
        IpAddr::V4(v4) => sum(&v4.octets()),
        IpAddr::V6(v6) => sum(&v6.octets()),
    };
    let mut whole =
        sum(source) + sum(destination) + u32::from(u8::from(IpProtocol::Tcp)) + len as u32;
    while whole > 0xFFFF {
        whole = (whole & 0xFFFF) + (whole >> 16);
    }
    whole as u16
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}
