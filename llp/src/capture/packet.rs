//! IP, TCP and UDP headers (RFC 791, 8200, 9293, 768).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum payload of a packet in bytes. Together with both headers it fits the 16-bit lengths of
/// IPv4 and IPv6.
pub(super) const MAX_PAYLOAD: usize = 65_000;

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// MSS 65,000 and window scale 14, so that Wireshark reports no segment as too long or outside the
/// window.
const SYN_OPTIONS: [u8; 8] = [2, 4, (MAX_PAYLOAD >> 8) as u8, MAX_PAYLOAD as u8, 1, 3, 3, 14];

/// Variable fields of a TCP header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
}

/// Appends a TCP packet. `fill` appends its payload.
pub(super) fn emit(out: &mut Vec<u8>, header: &Header, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    let addresses = PacketAddresses::new(header.from, header.to);
    out.resize(start + addresses.header_len(), 0);
    let tcp = out.len();
    let options: &[u8] = if header.flags & SYN != 0 { &SYN_OPTIONS } else { &[] };
    out.extend_from_slice(&header.from.port().to_be_bytes());
    out.extend_from_slice(&header.to.port().to_be_bytes());
    out.extend_from_slice(&header.seq.to_be_bytes());
    out.extend_from_slice(&header.ack.to_be_bytes());
    out.push(((20 + options.len() as u8) / 4) << 4);
    out.push(header.flags);
    out.extend_from_slice(&[0xFF, 0xFF, 0, 0, 0, 0]); // window, checksum, urgent pointer
    out.extend_from_slice(options);
    fill(out);
    let (ip, segment) = out[start..].split_at_mut(tcp - start);
    let len = segment.len();
    addresses.emit(ip, TCP, len as u16);
    let pseudo = addresses.pseudo_sum() + u32::from(TCP) + len as u32;
    let checksum = fold(sum(segment) + u64::from(pseudo));
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
}

/// Appends a UDP packet.
pub(super) fn emit_datagram(out: &mut Vec<u8>, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
    let start = out.len();
    let addresses = PacketAddresses::new(from, to);
    out.resize(start + addresses.header_len(), 0);
    let udp = out.len();
    // A UDP datagram with its header has at most 65,535 bytes.
    let len = (bytes.len() + 8) as u16;
    for number in [from.port(), to.port(), len, 0] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    out.extend_from_slice(bytes);
    let (ip, datagram) = out[start..].split_at_mut(udp - start);
    addresses.emit(ip, UDP, len);
    let pseudo = addresses.pseudo_sum() + u32::from(UDP) + u32::from(len);
    // A checksum of 0 would mean that there is none.
    let checksum = match fold(sum(datagram) + u64::from(pseudo)) {
        0 => u16::MAX,
        checksum => checksum,
    };
    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
}

enum PacketAddresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl PacketAddresses {
    fn new(from: SocketAddr, to: SocketAddr) -> Self {
        match (from.ip().to_canonical(), to.ip().to_canonical()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Self::V4(from, to),
            (from, to) => Self::V6(v6(from), v6(to)),
        }
    }

    fn header_len(&self) -> usize {
        match self {
            Self::V4(..) => 20,
            Self::V6(..) => 40,
        }
    }

    fn emit(&self, ip: &mut [u8], protocol: u8, payload: u16) {
        match self {
            Self::V4(from, to) => {
                ip[0] = 0x45;
                ip[2..4].copy_from_slice(&(payload + 20).to_be_bytes());
                ip[6] = 0x40; // do not fragment
                ip[8] = 64;
                ip[9] = protocol;
                ip[12..16].copy_from_slice(&from.octets());
                ip[16..20].copy_from_slice(&to.octets());
                let checksum = fold(sum(ip));
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            Self::V6(from, to) => {
                ip[0] = 0x60;
                ip[4..6].copy_from_slice(&payload.to_be_bytes());
                ip[6] = protocol;
                ip[7] = 64;
                ip[8..24].copy_from_slice(&from.octets());
                ip[24..40].copy_from_slice(&to.octets());
            }
        }
    }

    fn pseudo_sum(&self) -> u32 {
        let sum = match self {
            Self::V4(from, to) => sum(&from.octets()) + sum(&to.octets()),
            Self::V6(from, to) => sum(&from.octets()) + sum(&to.octets()),
        };
        sum as u32
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Returns the sum of the 16-bit words (RFC 1071).
fn sum(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks_exact(2);
    let odd = pairs.remainder().first().map_or(0, |&last| u64::from(last) << 8);
    pairs.map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u64>() + odd
}

/// Folds the sum to 16 bits and returns its complement, the Internet checksum.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_rfc_1071() {
        // The example in RFC 1071 section 3 has the sum ddf2.
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), !0xddf2);
        assert_eq!(sum(&[1, 2, 3]), 0x0102 + 0x0300);
    }

    #[test]
    fn datagram_has_lengths_and_checksum() {
        let mut out = Vec::new();
        emit_datagram(
            &mut out,
            "10.0.0.1:5".parse().unwrap(),
            "10.0.0.2:7".parse().unwrap(),
            b"odd",
        );
        let (ip, udp) = out.split_at(20);
        assert_eq!(
            (ip[9], fold(sum(ip)), ip[2..4] == [0, 31], udp[4..6] == [0, 11]),
            (17, 0, true, true)
        );
        assert_eq!(fold(sum(&ip[12..]) + sum(udp) + 17 + udp.len() as u64), 0);
        assert_eq!(&udp[8..], b"odd");
    }

    #[test]
    fn checksums_come_out_as_zero() {
        for (from, to) in [
            ("10.0.0.1:5", "10.0.0.2:7"),
            ("[fe80::1]:5", "[fe80::2]:7"),
            ("[::ffff:1.2.3.4]:5", "1.1.1.1:7"),
        ] {
            let header = Header {
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                seq: 0xFFFF_FFF0,
                ack: 77,
                flags: SYN,
            };
            let mut out = vec![9; 3];
            emit(&mut out, &header, |out| out.extend_from_slice(b"odd"));
            let packet = &out[3..];
            let v4 = packet[0] >> 4 == 4;
            assert_eq!(v4, !from.starts_with("[fe80"));
            let (ip, tcp) = packet.split_at(if v4 { 20 } else { 40 });
            assert!(!v4 || fold(sum(ip)) == 0);
            let addresses = if v4 { &ip[12..] } else { &ip[8..] };
            assert_eq!(fold(sum(addresses) + sum(tcp) + 6 + tcp.len() as u64), 0);
            assert_eq!(&tcp[28..], b"odd");
        }
    }
}
