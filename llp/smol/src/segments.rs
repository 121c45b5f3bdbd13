//! Conversion of frames of an interface with offloads to frames on the wire: TCP packets and UDP
//! datagrams that hardware would split are split, and checksums that it would complete are
//! completed.

use crate::packet::virtio::{GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Header};

const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xDD];
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6_HEADER: usize = 40;
/// TCP flag that only the first segment of a packet keeps.
const CWR: u8 = 0x80;
/// TCP flags that only the last segment of a packet keeps.
const FIN_PSH: u8 = 0x09;

/// Passes the frames that hardware would send for `frame` to `each`. Returns false, without calling
/// `each`, if the frame cannot be parsed.
pub(crate) fn split_frame(header: Header, frame: &[u8], each: &mut dyn FnMut(Vec<u8>)) -> bool {
    if header.gso() == GSO_NONE {
        let mut whole = frame.to_vec();
        let right = match header.checksum_at() {
            Some((start, offset)) => complete(&mut whole, start, offset).is_some(),
            None => true,
        };
        if right {
            each(whole);
        }
        return right;
    }
    let Some(packet) = PacketLayout::parse(header, frame) else { return false };
    packet.split(frame, each);
    true
}

/// Passes the segments of a TCP packet, with up to `size` bytes of payload each, to `each`. Returns
/// false, without calling `each`, if it is not a TCP packet or need not be split.
pub(crate) fn split_tcp(frame: &[u8], size: usize, each: &mut dyn FnMut(Vec<u8>)) -> bool {
    let Some(packet) = PacketLayout::locate(frame, false, size) else { return false };
    let is_longer = frame.len() - packet.payload > size;
    if is_longer {
        packet.split(frame, each);
    }
    is_longer
}

/// Completes the checksum at `start + offset`, which contains the sum of the pseudo-header.
fn complete(frame: &mut [u8], start: usize, offset: usize) -> Option<()> {
    let sum = fold(sum(frame.get(start..)?));
    let is_udp = offset == 6;
    let field = frame.get_mut(start + offset..start + offset + 2)?;
    field.copy_from_slice(&finished(sum, is_udp));
    Some(())
}

/// Returns the bytes of a checksum field. A UDP checksum of zero is written as ones (RFC 768).
fn finished(sum: u16, is_udp: bool) -> [u8; 2] {
    let checksum = !sum;
    (if checksum == 0 && is_udp { 0xFFFF } else { checksum }).to_ne_bytes()
}

/// Returns the sum of 16-bit words (RFC 1071), in any byte order. The upper half contains the
/// carries.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let whole: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let (pairs, last) = rest.as_chunks::<2>();
    let pairs: u64 = pairs.iter().map(|pair| u64::from(u16::from_ne_bytes(*pair))).sum();
    let last: u64 = last.iter().map(|byte| u64::from(u16::from_ne_bytes([*byte, 0]))).sum();
    whole + pairs + last
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

/// Offsets of the parts of a packet to split.
struct PacketLayout {
    is_v4: bool,
    is_udp: bool,
    /// Offset of the TCP or UDP header.
    transport: usize,
    /// Offset of the payload after that header.
    payload: usize,
    /// Payload size of each segment in bytes.
    size: usize,
}

impl PacketLayout {
    fn parse(header: Header, frame: &[u8]) -> Option<Self> {
        let is_udp = match header.gso() {
            GSO_TCPV4 | GSO_TCPV6 => false,
            GSO_UDP_L4 => true,
            _ => return None,
        };
        Self::locate(frame, is_udp, header.gso_size())
    }

    fn locate(frame: &[u8], is_udp: bool, size: usize) -> Option<Self> {
        let kind: [u8; 2] = frame.get(12..ETHERNET)?.try_into().ok()?;
        let (transport, protocol) = match kind {
            IPV4 => {
                let first = *frame.get(ETHERNET)?;
                (ETHERNET + usize::from(first & 15) * 4, *frame.get(ETHERNET + 9)?)
            }
            // Interfaces split only packets without extension headers.
            IPV6 => (ETHERNET + IPV6_HEADER, *frame.get(ETHERNET + 6)?),
            _ => return None,
        };
        if protocol != if is_udp { UDP } else { TCP } {
            return None;
        }
        let header_len = if is_udp { 8 } else { usize::from(*frame.get(transport + 12)? >> 4) * 4 };
        let payload = transport + header_len;
        let sane = size > 0 && header_len >= if is_udp { 8 } else { 20 };
        (sane && transport >= ETHERNET + 20 && payload < frame.len()).then_some(Self {
            is_v4: kind == IPV4,
            is_udp,
            transport,
            payload,
            size,
        })
    }

    fn split(&self, frame: &[u8], each: &mut dyn FnMut(Vec<u8>)) {
        let (headers, payload) = frame.split_at(self.payload);
        let count = payload.len().div_ceil(self.size);
        for (n, piece) in payload.chunks(self.size).enumerate() {
            let mut segment = Vec::with_capacity(headers.len() + piece.len());
            segment.extend_from_slice(headers);
            segment.extend_from_slice(piece);
            self.network(&mut segment, n);
            self.transport(&mut segment, n, n + 1 == count);
            each(segment);
        }
    }

    /// Writes the IP header of segment `n`.
    fn network(&self, segment: &mut [u8], n: usize) {
        let len = segment.len() - ETHERNET;
        let ip = &mut segment[ETHERNET..self.transport];
        if !self.is_v4 {
            ip[4..6].copy_from_slice(&((len - IPV6_HEADER) as u16).to_be_bytes());
            return;
        }
        ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(n as u16);
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].fill(0);
        let checksum = finished(fold(sum(ip)), false);
        ip[10..12].copy_from_slice(&checksum);
    }

    /// Writes the TCP or UDP header of segment `n`.
    fn transport(&self, segment: &mut [u8], n: usize, last: bool) {
        let pseudo = self.pseudo_sum(segment);
        let bytes = &mut segment[self.transport..];
        let checksum_at = if self.is_udp { 6 } else { 16 };
        if self.is_udp {
            let len = bytes.len() as u16;
            bytes[4..6].copy_from_slice(&len.to_be_bytes());
        } else {
            let sequence = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let sequence = sequence.wrapping_add((n * self.size) as u32);
            bytes[4..8].copy_from_slice(&sequence.to_be_bytes());
            if n > 0 {
                bytes[13] &= !CWR;
            }
            if !last {
                bytes[13] &= !FIN_PSH;
            }
        }
        bytes[checksum_at..checksum_at + 2].fill(0);
        let checksum = finished(fold(pseudo + sum(bytes)), self.is_udp);
        bytes[checksum_at..checksum_at + 2].copy_from_slice(&checksum);
    }

    fn pseudo_sum(&self, segment: &[u8]) -> u64 {
        let addresses =
            if self.is_v4 { ETHERNET + 12..ETHERNET + 20 } else { ETHERNET + 8..ETHERNET + 40 };
        let protocol = if self.is_udp { UDP } else { TCP };
        let len = ((segment.len() - self.transport) as u32).to_be_bytes();
        sum(&segment[addresses]) + sum(&len) + sum(&[0, protocol])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::{EthernetFrame, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};

    /// Returns a TCP or UDP frame with `payload`. The checksum field contains the sum of the
    /// pseudo-header, as the kernel leaves it.
    fn frame(v4: bool, udp: bool, payload: &[u8]) -> (Vec<u8>, usize) {
        let mut frame = vec![2; 12];
        frame.extend(if v4 { IPV4 } else { IPV6 });
        let transport_len = payload.len() + if udp { 8 } else { 20 };
        let protocol = if udp { UDP } else { TCP };
        if v4 {
            frame.extend([0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0]);
            let total = (20 + transport_len) as u16;
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            frame.extend([0x60, 0, 0, 0]);
            frame.extend((transport_len as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend((0..32).map(|n| n * 7));
        }
        let start = frame.len();
        frame.extend([0x12, 0x34, 0x56, 0x78]);
        if udp {
            frame.extend((transport_len as u16).to_be_bytes());
            frame.extend([0, 0]);
        } else {
            frame.extend([
                0xFF,
                0xFF,
                0xFF,
                0x00,
                0,
                0,
                0,
                1,
                0x50,
                CWR | FIN_PSH | 0x10,
                1,
                0,
                0,
                0,
                0,
                0,
            ]);
        }
        frame.extend(payload);
        let packet = PacketLayout { is_v4: v4, is_udp: udp, transport: start, payload: 0, size: 0 };
        let pseudo = fold(packet.pseudo_sum(&frame)).to_ne_bytes();
        let at = start + if udp { 6 } else { 16 };
        frame[at..at + 2].copy_from_slice(&pseudo);
        (frame, start)
    }

    fn check(segment: &[u8], v4: bool, udp: bool) -> Vec<u8> {
        let ethernet = EthernetFrame::new_checked(segment).unwrap();
        let (source, destination, inner): (IpAddress, IpAddress, &[u8]) = if v4 {
            let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
            assert!(ip.verify_checksum());
            (ip.src_addr().into(), ip.dst_addr().into(), ip.payload())
        } else {
            let ip = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
            (ip.src_addr().into(), ip.dst_addr().into(), ip.payload())
        };
        if udp {
            let packet = UdpPacket::new_checked(inner).unwrap();
            assert!(packet.verify_checksum(&source, &destination));
            packet.payload().to_vec()
        } else {
            let packet = TcpPacket::new_checked(inner).unwrap();
            assert!(packet.verify_checksum(&source, &destination));
            packet.payload().to_vec()
        }
    }

    #[test]
    fn packets_cut_like_hardware() {
        let payload: Vec<u8> = (0..4001u32).map(|n| (n * 13 % 251) as u8).collect();
        for (v4, udp, kind) in [
            (true, false, GSO_TCPV4),
            (false, false, GSO_TCPV6),
            (true, true, GSO_UDP_L4),
            (false, true, GSO_UDP_L4),
        ] {
            let (mut bytes, start) = frame(v4, udp, &payload);
            if v4 {
                // The IP checksum is that of the whole packet, not of a segment.
                let sum = finished(fold(sum(&bytes[14..34])), false);
                bytes[24..26].copy_from_slice(&sum);
            }
            let header = Header::to_cut(kind, 1448, start, if udp { 6 } else { 16 });
            let mut segments = Vec::new();
            assert!(split_frame(header, &bytes, &mut |segment| segments.push(segment)));
            assert_eq!(segments.len(), 3);
            let joined: Vec<u8> =
                segments.iter().flat_map(|segment| check(segment, v4, udp)).collect();
            assert_eq!(joined, payload);
            if !udp {
                let flags: Vec<_> = segments.iter().map(|segment| segment[start + 13]).collect();
                assert_eq!(flags, [CWR | 0x10, 0x10, FIN_PSH | 0x10]);
                let second = &segments[1][start + 4..start + 8];
                assert_eq!(second, 0xFFFF_FF00u32.wrapping_add(1448).to_be_bytes());
            }
        }
    }

    #[test]
    fn checksums_that_are_begun_are_completed() {
        for udp in [false, true] {
            let (mut bytes, start) = frame(true, udp, b"odd");
            let sum = finished(fold(sum(&bytes[14..34])), false);
            bytes[24..26].copy_from_slice(&sum);
            let header = Header::to_cut(GSO_NONE, 0, start, if udp { 6 } else { 16 });
            let mut whole = Vec::new();
            assert!(split_frame(header, &bytes, &mut |frame| whole = frame));
            assert_eq!(check(&whole, true, udp), b"odd");
        }
    }

    #[test]
    fn unknown_packets_refused() {
        let (bytes, start) = frame(true, false, &[7; 3000]);
        let never = &mut |_| panic!("nothing is to be given");
        for len in 0..start + 20 {
            assert!(!split_frame(Header::to_cut(GSO_TCPV4, 1448, start, 16), &bytes[..len], never));
        }
        assert!(!split_frame(Header::to_cut(GSO_TCPV4, 0, start, 16), &bytes, never));
        assert!(!split_frame(Header::to_cut(GSO_UDP_L4, 100, start, 6), &bytes, never));
        assert!(!split_frame(Header::to_cut(3, 100, start, 6), &bytes, never), "fragments of UDP");
        assert!(!split_frame(Header::to_cut(GSO_NONE, 0, 9999, 16), &bytes, never));
    }
}
