//! The maximum segment size (RFC 9293 section 3.7.1) over a link that splits packets itself.
//!
//! smoltcp drops IPv6 packets that are longer than the MTU, even if the link would split them. It
//! is therefore configured with an MTU that equals the link's longest packet, and the segment sizes
//! in SYNs are corrected in both directions: ours to the size that the true MTU permits, and that
//! of a peer to at most this size.

use super::segment::{ETHERNET_HEADER, TCP_HEADER, segment_of};
use smoltcp::wire::TcpPacket;

/// Segment size of a peer that announces none. It is smoltcp's default for both versions of IP.
const UNSAID: u16 = 536;
/// Minimum segment size that smoltcp uses, regardless of the peer.
const LEAST: u16 = 48;
/// Kinds of TCP options (RFC 9293 section 3.2).
const END: u8 = 0;
const NOTHING: u8 = 1;
const MSS: u8 = 2;

/// Limits the segment size in a SYN to the size that an IP packet of `mtu` bytes permits. Returns
/// the resulting size, or `None` for frames that are not a SYN.
pub(super) fn limit(frame: &mut [u8], mtu: usize) -> Option<u16> {
    let (at, bytes) = segment_of(frame)?;
    let segment = TcpPacket::new_checked(&frame[at..at + bytes]).ok()?;
    if !segment.syn() {
        return None;
    }
    let end = at + usize::from(segment.header_len());
    let most = (mtu + ETHERNET_HEADER).saturating_sub(at + TCP_HEADER);
    let most = u16::try_from(most).unwrap_or(u16::MAX);
    let options = &mut frame[at + TCP_HEADER..end];
    let Some(field) = find(options).and_then(|at| options[at..].first_chunk_mut::<2>()) else {
        return Some(most.min(UNSAID));
    };
    match u16::from_be_bytes(*field) {
        // A size of 0 is treated like a missing one, as in smoltcp.
        0 => Some(most.min(UNSAID)),
        said => {
            *field = said.min(most).to_be_bytes();
            Some(said.min(most).max(LEAST))
        }
    }
}

/// Returns the offset of the segment size in the options of a header.
fn find(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *options.get(at..)? {
            [NOTHING, ..] => at += 1,
            [MSS, 4, _, _, ..] => return Some(at + 2),
            [END, ..] | [] | [_] => return None,
            [_, len, ..] => at += usize::from(len).max(2),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet};

    /// Returns a segment with these options, whose size is a multiple of four bytes.
    pub(crate) fn segment(v6: bool, options: &[u8], syn: bool) -> Vec<u8> {
        let ip = if v6 { 40 } else { 20 };
        let tcp = TCP_HEADER + options.len();
        let mut frame = vec![0; ETHERNET_HEADER + ip + tcp];
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
        ethernet.set_ethertype(if v6 { EthernetProtocol::Ipv6 } else { EthernetProtocol::Ipv4 });
        let packet = ethernet.payload_mut();
        if v6 {
            let mut packet = Ipv6Packet::new_unchecked(packet);
            packet.set_version(6);
            packet.set_payload_len(tcp as u16);
            packet.set_next_header(IpProtocol::Tcp);
        } else {
            let mut packet = Ipv4Packet::new_unchecked(packet);
            packet.set_version(4);
            packet.set_header_len(20);
            packet.set_total_len((ip + tcp) as u16);
            packet.set_next_header(IpProtocol::Tcp);
        }
        let at = ETHERNET_HEADER + ip;
        let mut segment = TcpPacket::new_unchecked(&mut frame[at..]);
        segment.set_src_port(1);
        segment.set_dst_port(2);
        segment.set_header_len(tcp as u8);
        segment.set_syn(syn);
        frame[at + TCP_HEADER..].copy_from_slice(options);
        frame
    }

    #[test]
    fn mss_of_syn_fits_link() {
        // The option follows others, and the checksum covers bytes at an odd offset.
        let options = |size: u16| {
            let [a, b] = size.to_be_bytes();
            [1, 3, 3, 7, 4, 2, 1, 2, 4, a, b, 0]
        };
        for (v6, mtu, said, known) in [
            (false, 1500, 65_461, 1460),
            (true, 1500, 65_461, 1440),
            (false, 1500, 1400, 1400),
            (true, 9000, 1440, 1440),
            (true, 9000, 65_461, 8940),
        ] {
            let mut frame = segment(v6, &options(said), true);
            let before = frame.clone();
            assert_eq!(limit(&mut frame, mtu), Some(known));
            let size = frame.len() - 3;
            assert_eq!(frame[size..size + 2], known.to_be_bytes());
            assert_eq!((&frame[..size], frame[size + 2]), (&before[..size], 0), "nothing else");
        }
    }

    #[test]
    fn syn_without_mss_and_invalid_segments() {
        for options in
            [&[][..], &[2, 4, 0, 0], &[0, 2, 4, 9], &[1, 1, 1, 2], &[3, 0, 1, 0], &[8, 200, 0, 0]]
        {
            let mut frame = segment(true, options, true);
            let before = frame.clone();
            assert_eq!(limit(&mut frame, 1500), Some(UNSAID), "{options:?}");
            assert_eq!(frame, before);
        }
        let mut tiny = segment(false, &[2, 4, 0, 10], true);
        assert_eq!(limit(&mut tiny, 1500), Some(LEAST), "as smoltcp has it");
        let mut frame = segment(false, &[2, 4, 255, 255], false);
        let before = frame.clone();
        assert_eq!(limit(&mut frame, 1500), None);
        assert_eq!(frame, before, "an option of no SYN is none");
        assert_eq!(limit(&mut [0; 60], 1500), None);
        for len in 0..frame.len() {
            let mut cut = segment(true, &[2, 4, 255, 255], true);
            cut.truncate(len);
            assert_eq!(limit(&mut cut, 1500), None, "{len} bytes");
        }
    }
}
