//! The virtio-net header that precedes every frame of a PACKET_VNET_HDR socket
//! (`struct virtio_net_hdr`, native byte order).

use super::super::flow::pseudo_sum;
use super::super::link::Segmentation;
use super::super::segment::{ETHERNET_HEADER, TCP_HEADER};
use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet};
use std::net::IpAddr;

/// Size of the header in bytes.
pub(crate) const HEADER: usize = 10;

/// Flag: the checksum from `csum_start` on is incomplete.
const NEEDS_CSUM: u8 = 1;
/// Flag: the checksum was verified.
const DATA_VALID: u8 = 2;
/// The frame is not split.
pub(crate) const GSO_NONE: u8 = 0;
/// The interface splits TCP over IPv4.
pub(crate) const GSO_TCPV4: u8 = 1;
/// The interface splits TCP over IPv6.
pub(crate) const GSO_TCPV6: u8 = 4;
/// The interface splits UDP datagrams.
pub(crate) const GSO_UDP_L4: u8 = 5;
/// Bit in the segmentation type: the packet has congestion marks.
const GSO_ECN: u8 = 0x80;
/// Offset of the checksum in a TCP header.
const CSUM_OFFSET: usize = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: half(2),
            gso_size: half(4),
            csum_start: half(6),
            csum_offset: half(8),
        }
    }

    fn emit(self, bytes: &mut [u8]) {
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        for (at, half) in
            [(2, self.hdr_len), (4, self.gso_size), (6, self.csum_start), (8, self.csum_offset)]
        {
            bytes[at..at + 2].copy_from_slice(&half.to_ne_bytes());
        }
    }

    /// Returns the segmentation type of the frame.
    pub(crate) fn gso(self) -> u8 {
        self.gso_type & !GSO_ECN
    }

    /// Returns the payload size of each segment in bytes.
    pub(crate) fn gso_size(self) -> usize {
        usize::from(self.gso_size)
    }

    /// Returns the start of the range whose checksum has to be completed, and the offset of the
    /// checksum field in that range.
    pub(crate) fn checksum_at(self) -> Option<(usize, usize)> {
        let at = (usize::from(self.csum_start), usize::from(self.csum_offset));
        (self.flags & NEEDS_CSUM != 0).then_some(at)
    }

    /// Returns the header of a frame to split, whose checksum is incomplete.
    #[cfg(test)]
    pub(crate) fn to_cut(gso_type: u8, gso_size: u16, csum_start: usize, csum_offset: u16) -> Self {
        Self {
            flags: NEEDS_CSUM,
            gso_type,
            hdr_len: 0,
            gso_size,
            csum_start: csum_start as u16,
            csum_offset,
        }
    }

    /// Returns whether the checksum need not be verified, because the frame was sent by this host
    /// or a network card has verified it.
    pub(super) fn is_checked(self) -> bool {
        self.flags & (NEEDS_CSUM | DATA_VALID) != 0
    }
}

/// Offset of a frame's TCP header, sum of its pseudo-header, and its segmentation type.
struct TcpOffsets {
    start: usize,
    pseudo_sum: u16,
    gso_type: u8,
}

/// Fills in the header at the beginning of `buffer`. The interface completes the TCP checksum of
/// the frame that follows: this function stores the sum of the pseudo-header in its place.
pub(super) fn complete(buffer: &mut [u8], segmentation: Option<Segmentation>) {
    let (header, frame) = buffer.split_at_mut(HEADER);
    let Some(tcp) = locate(frame) else {
        return Header::default().emit(header);
    };
    let at = tcp.start + CSUM_OFFSET;
    frame[at..at + 2].copy_from_slice(&tcp.pseudo_sum.to_be_bytes());
    let tcp_header = usize::from(frame[tcp.start + 12] >> 4) * 4;
    let header_len = tcp.start + tcp_header;
    // The segment size includes TCP options (RFC 9293 section 3.7.1).
    let options = tcp_header.saturating_sub(TCP_HEADER) as u16;
    let size = segmentation.map(|segmentation| segmentation.size.saturating_sub(options).max(1));
    let size = size.filter(|size| frame.len() > header_len + usize::from(*size));
    Header {
        flags: NEEDS_CSUM,
        gso_type: if size.is_some() { tcp.gso_type } else { GSO_NONE },
        hdr_len: header_len as u16,
        gso_size: size.unwrap_or(0),
        csum_start: tcp.start as u16,
        csum_offset: CSUM_OFFSET as u16,
    }
    .emit(header);
}

fn locate(frame: &[u8]) -> Option<TcpOffsets> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let total = frame.len() - ETHERNET_HEADER;
    let (header_len, gso_type, source, destination): (_, _, IpAddr, IpAddr) = match ethernet
        .ethertype()
    {
        EthernetProtocol::Ipv4 => {
            // The view is unchecked, because a packet to split may be longer than its length field
            // can represent.
            let ip = Ipv4Packet::new_unchecked(ethernet.payload());
            if ip.next_header() != IpProtocol::Tcp {
                return None;
            }
            (usize::from(ip.header_len()), GSO_TCPV4, ip.src_addr().into(), ip.dst_addr().into())
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_unchecked(ethernet.payload());
            if ip.next_header() != IpProtocol::Tcp {
                return None;
            }
            (ip.header_len(), GSO_TCPV6, ip.src_addr().into(), ip.dst_addr().into())
        }
        _ => return None,
    };
    let length = total.checked_sub(header_len).filter(|length| *length >= 20)?;
    let pseudo_sum = pseudo_sum(source, destination, length);
    Some(TcpOffsets { start: ETHERNET_HEADER + header_len, pseudo_sum, gso_type })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Checksum, FrameClass, classify};
    use crate::segments::split_frame;
    use smoltcp::wire::TcpPacket;

    /// Returns a TCP packet without a checksum, as smoltcp builds it for a link that splits
    /// packets.
    fn packet(v6: bool, options: usize, payload: usize) -> Vec<u8> {
        let ip = if v6 { 40 } else { 20 };
        let tcp = TCP_HEADER + options;
        let mut buffer = vec![0; HEADER + ETHERNET_HEADER + ip + TCP_HEADER];
        // Options without effect, followed by data.
        buffer.resize(buffer.len() + options + payload, 1);
        let mut ethernet = EthernetFrame::new_unchecked(&mut buffer[HEADER..]);
        ethernet.set_ethertype(if v6 { EthernetProtocol::Ipv6 } else { EthernetProtocol::Ipv4 });
        let bytes = ethernet.payload_mut();
        if v6 {
            let mut packet = Ipv6Packet::new_unchecked(&mut *bytes);
            packet.set_version(6);
            packet.set_payload_len((tcp + payload) as u16);
            packet.set_next_header(IpProtocol::Tcp);
            packet.set_src_addr("fd00::1".parse().unwrap());
            packet.set_dst_addr("fd00::2".parse().unwrap());
        } else {
            let mut packet = Ipv4Packet::new_unchecked(&mut *bytes);
            packet.set_version(4);
            packet.set_header_len(20);
            packet.set_total_len((ip + tcp + payload) as u16);
            packet.set_next_header(IpProtocol::Tcp);
            packet.set_src_addr([10, 0, 0, 1].into());
            packet.set_dst_addr([10, 0, 0, 2].into());
        }
        let mut segment = TcpPacket::new_unchecked(&mut bytes[ip..]);
        segment.set_src_port(7);
        segment.set_dst_port(8);
        segment.set_header_len(tcp as u8);
        segment.set_psh(true);
        buffer
    }

    /// Frames on the wire have correct checksums and lengths, and reassemble to the packet.
    #[test]
    fn long_packets_segmented() {
        for (v6, options, payload, size, segments) in [
            (true, 0, 64_000, 1440, 45),
            (false, 0, 64_000, 1460, 44),
            (true, 12, 2857, 1440, 3),
            (true, 12, 2856, 1440, 2),
            (true, 0, 1440, 1440, 1),
            (true, 0, 1441, 1440, 2),
            (false, 0, 600, 536, 2),
        ] {
            let mut buffer = packet(v6, options, payload);
            complete(&mut buffer, Some(Segmentation { size }));
            let mut frames = Vec::new();
            assert!(split_frame(Header::parse(&buffer), &buffer[HEADER..], &mut |frame| frames
                .push(frame)));
            assert_eq!(frames.len(), segments, "{payload} bytes in segments of {size}");
            let ip = if v6 { 40 } else { 20 };
            let mut sum = 0;
            for frame in &mut frames {
                let right = classify(frame, Checksum::Whole);
                assert!(matches!(right, Some(FrameClass::Tcp { .. })), "the checksum of a segment");
                let carried = frame.len() - ETHERNET_HEADER - ip - TCP_HEADER;
                assert!(carried <= usize::from(size), "options count");
                sum += carried - options;
            }
            assert_eq!(sum, payload);
        }
    }

    /// Segmentation is unknown before the peer's SYN has arrived.
    #[test]
    fn packets_to_unknown_peers_whole() {
        let mut buffer = packet(true, 0, 0);
        complete(&mut buffer, None);
        assert_eq!(Header::parse(&buffer).gso(), GSO_NONE);
        assert!(Header::parse(&buffer).checksum_at().is_some());
    }
}
