//! Acknowledgements that cover many segments.
//!
//! smoltcp opens its congestion window by at most one segment for each acknowledgement, regardless
//! of the number of bytes that it acknowledges. But a peer that receives packets of 64 KiB sends
//! one acknowledgement for each packet, and a busy peer sends one for everything that has arrived.
//! The window would open by only a few segments in each round trip, whereas TCP requires it to
//! double. Such an acknowledgement is therefore passed to smoltcp in parts, as if the peer had
//! acknowledged each segment. The parts acknowledge no more than the peer has, and are used only
//! while nothing but the congestion window limits the connection.

use super::segment::{
    ETHERNET_HEADER, IPV6_HEADER, LONGEST, TCP_HEADER, ethertype, is_behind, scale_of, segment_of,
    sequence,
};
use smoltcp::wire::{EthernetProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};

/// Maximum number of parts of an acknowledgement. Processing a part costs as much as a frame.
const PARTS: u32 = 64;

/// State of a connection's sending direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Sequence number of the first byte that the peer has not acknowledged.
    acknowledged: u32,
    /// Sequence number after the last byte that was sent. A SYN and a FIN are counted.
    sent: u32,
    /// Highest value that `sent` has had on this connection. `sent` goes back for retransmissions.
    highest: u32,
    /// Window of the peer in bytes.
    window: u32,
    /// Acknowledgement number of the last segment that was sent; `None` until the peer's SYN has
    /// arrived.
    expected: Option<u32>,
    /// Number of bits by which the peer's window field is shifted.
    scale: u8,
    /// True if only the congestion window limited sending at the last check.
    is_limited: bool,
}

impl Stretch {
    /// Handles a frame that is sent. For a TCP segment, returns its offset in the frame, its
    /// sequence number, and the size of its payload.
    pub(super) fn note_sent(&mut self, frame: &[u8]) -> Option<(usize, u32, usize)> {
        let (at, bytes) = segment_of(frame)?;
        let segment = TcpPacket::new_unchecked(&frame[at..at + bytes]);
        let flags = usize::from(segment.syn()) + usize::from(segment.fin());
        let (start, len) = (
            sequence(segment.seq_number()),
            bytes.saturating_sub(usize::from(segment.header_len())),
        );
        // A RST may answer a forged segment, whose numbers it has.
        if segment.rst() {
            return Some((at, start, len));
        }
        if segment.ack() {
            self.expected = Some(sequence(segment.ack_number()));
        }
        self.sent = start.wrapping_add((len + flags) as u32);
        if segment.syn() || is_behind(self.sent, self.highest) {
            self.highest = self.sent;
        }
        Some((at, start, len))
    }

    /// Returns the sequence number for segments without data. RFC 9293 section 3.10.7.4 requires
    /// SND.NXT. smoltcp's own number goes back for retransmissions, and a peer that has received
    /// everything accepts no acknowledgement with a number before its own. The returned number is
    /// not beyond the peer's window, so a probe of a closed window is acceptable as well.
    pub(super) fn acceptable(&self) -> u32 {
        let end = self.acknowledged.wrapping_add(self.window);
        if is_behind(self.highest, end) { end } else { self.highest }
    }

    /// Returns the sequence number of the first unacknowledged byte.
    pub(super) fn acknowledged(&self) -> u32 {
        self.acknowledged
    }

    /// Records that smoltcp has sent everything that it could. `queued` is the number of
    /// unacknowledged bytes, including unsent ones. `mss` is the segment size in bytes.
    pub(super) fn note_all_sent(&mut self, queued: usize, mss: usize) {
        let flight = self.sent.wrapping_sub(self.acknowledged) as usize;
        let room = (self.window as usize).saturating_sub(flight);
        self.is_limited = queued > flight && room >= mss;
    }

    /// Returns whether the TCP segment in a frame can be from the peer: its sequence number has to
    /// be within the receive window (RFC 9293 section 3.10.7.4), which has at most `capacity`
    /// bytes. Before the peer's SYN has arrived, only a SYN is accepted. Other segments are forged or
    /// old, and concern only smoltcp, which may answer them.
    pub(super) fn accepts(&self, frame: &[u8], capacity: usize) -> bool {
        let Some((at, bytes)) = segment_of(frame) else { return false };
        let Ok(segment) = TcpPacket::new_checked(&frame[at..at + bytes]) else { return false };
        let Some(expected) = self.expected else {
            return segment.syn()
                && (!segment.ack() || sequence(segment.ack_number()) == self.highest);
        };
        let start = sequence(segment.seq_number());
        let end = start.wrapping_add(segment.segment_len() as u32);
        let edge = expected.wrapping_add(capacity as u32);
        !segment.syn() && !is_behind(expected, end) && !is_behind(start, edge)
    }

    /// Handles a frame with a TCP segment that was accepted (see [`Stretch::accepts`]). Returns the
    /// parts in which smoltcp should get its acknowledgement before the frame itself.
    pub(super) fn note_received(&mut self, frame: &[u8], mss: usize) -> Option<Parts> {
        let (at, bytes) = segment_of(frame)?;
        let segment = TcpPacket::new_checked(&frame[at..at + bytes]).ok()?;
        if segment.syn() {
            self.scale = scale_of(&segment);
        }
        if !segment.ack() || segment.rst() {
            return None;
        }
        let ack = sequence(segment.ack_number());
        let shift = if segment.syn() { 0 } else { self.scale };
        self.window = u32::from(segment.window_len()) << shift;
        let covers = ack.wrapping_sub(self.acknowledged);
        let is_new = covers > 0 && covers <= self.highest.wrapping_sub(self.acknowledged);
        let before = self.acknowledged;
        if segment.syn() || is_new {
            self.acknowledged = ack;
        }
        let mss = u32::try_from(mss).unwrap_or(u32::MAX);
        if segment.syn() || segment.fin() || !is_new || !self.is_limited || covers <= mss {
            return None;
        }
        Parts::from_frame(frame, at, (before, ack), mss)
    }
}

/// Parts into which one acknowledgement is split.
pub(super) struct Parts {
    frame: [u8; LONGEST],
    len: usize,
    /// Offset of the TCP header in `frame`.
    at: usize,
    /// Acknowledgement number of the next part.
    next: u32,
    /// Number of bytes that each part acknowledges.
    step: u32,
    /// Number of remaining parts.
    left: u32,
}

impl Parts {
    /// Creates the parts from the headers of a frame, without its options and payload. They
    /// acknowledge the range from `before` to `ack`, except for the last step, which the frame
    /// itself acknowledges.
    fn from_frame(whole: &[u8], at: usize, (before, ack): (u32, u32), mss: u32) -> Option<Self> {
        let covers = ack.wrapping_sub(before);
        let parts = covers.div_ceil(mss).min(PARTS);
        // The step is a multiple of four, like the amounts that are acknowledged: the congestion
        // window grows by the step, and segments end where the window ends.
        let step = covers.div_ceil(parts).next_multiple_of(4);
        let v6 = ethertype(whole)? == EthernetProtocol::Ipv6;
        let ip = if v6 { IPV6_HEADER } else { 20 };
        let (start, len) = (ETHERNET_HEADER + ip, ETHERNET_HEADER + ip + TCP_HEADER);
        let mut frame = [0; LONGEST];
        frame[..start].copy_from_slice(&whole[..start]);
        frame[start..len].copy_from_slice(&whole[at..at + TCP_HEADER]);
        let mut segment = TcpPacket::new_unchecked(&mut frame[start..len]);
        segment.set_header_len(TCP_HEADER as u8);
        if v6 {
            let mut packet = Ipv6Packet::new_unchecked(&mut frame[ETHERNET_HEADER..len]);
            packet.set_payload_len(TCP_HEADER as u16);
            packet.set_next_header(smoltcp::wire::IpProtocol::Tcp);
        } else {
            let mut packet = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..len]);
            packet.set_header_len(20);
            packet.set_total_len((ip + TCP_HEADER) as u16);
            packet.fill_checksum();
        }
        Some(Self {
            frame,
            len,
            at: start,
            next: before.wrapping_add(step),
            step,
            left: (covers - 1) / step,
        })
    }

    /// Returns the next part: a frame whose TCP checksum is not filled in and must not be verified.
    pub(super) fn next(&mut self) -> Option<&mut [u8]> {
        self.left = self.left.checked_sub(1)?;
        let frame = &mut self.frame[..self.len];
        frame[self.at + 8..self.at + 12].copy_from_slice(&self.next.to_be_bytes());
        self.next = self.next.wrapping_add(self.step);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::{EthernetFrame, TcpSeqNumber};

    /// Returns a segment without data, or a SYN with window scale 7.
    fn segment(seq: u32, ack: Option<u32>, syn: bool) -> Vec<u8> {
        let mut frame =
            crate::mss::tests::segment(false, if syn { &[3, 3, 7, 0] } else { &[] }, syn);
        let mut segment = TcpPacket::new_unchecked(&mut frame[ETHERNET_HEADER + 20..]);
        segment.set_seq_number(TcpSeqNumber(seq.cast_signed()));
        segment.set_ack(ack.is_some());
        segment.set_ack_number(TcpSeqNumber(ack.unwrap_or(0).cast_signed()));
        segment.set_window_len(100);
        frame
    }

    #[test]
    fn forged_segments_not_accepted() {
        let (ours, theirs) = (u32::MAX - 1, 5_000);
        let mut stretch = Stretch::default();
        stretch.note_sent(&segment(ours, None, true));
        let syn_ack = |ack: u32| segment(theirs, Some(ack), true);
        assert!(!stretch.accepts(&syn_ack(ours), 1000), "it acknowledges another SYN");
        assert!(!stretch.accepts(&segment(theirs, Some(ours.wrapping_add(1)), false), 1000));
        let ack = ours.wrapping_add(1);
        assert!(stretch.accepts(&syn_ack(ack), 1000));
        assert!(stretch.note_received(&syn_ack(ack), 1460).is_none());
        stretch.note_sent(&segment(ack, Some(theirs + 1), false));
        assert_eq!(
            (stretch.acknowledged, stretch.scale, stretch.expected),
            (ack, 7, Some(theirs + 1))
        );
        assert!(!stretch.accepts(&syn_ack(ack), 1000), "a second SYN");
        let accepted = |seq| stretch.accepts(&segment(seq, Some(ack), false), 1000);
        assert!([theirs + 1, theirs + 1001].into_iter().all(accepted));
        assert!(![0, theirs, theirs + 1002, theirs + (1 << 31)].into_iter().any(accepted));
        // A RST repeats numbers of the segment that it answers.
        let mut reset = segment(77, Some(99), false);
        TcpPacket::new_unchecked(&mut reset[ETHERNET_HEADER + 20..]).set_rst(true);
        let before = stretch;
        stretch.note_sent(&reset);
        assert_eq!(stretch, before);
    }

    #[test]
    fn stretched_parts_ordered_and_aligned() {
        let mut whole = vec![0; ETHERNET_HEADER + 20 + TCP_HEADER];
        EthernetFrame::new_unchecked(&mut whole[..]).set_ethertype(EthernetProtocol::Ipv4);
        let at = ETHERNET_HEADER + 20;
        for (before, covers) in
            [(0, 1464), (1000, 37_120), (1000, 37_121), (u32::MAX - 5000, 65_480), (4, 10_000_000)]
        {
            for mss in [28, 1459, 1460, 8960] {
                let mut parts =
                    Parts::from_frame(&whole, at, (before, before.wrapping_add(covers)), mss)
                        .unwrap();
                let (mut last, mut count) = (0, 0);
                while let Some(frame) = parts.next() {
                    let ack = sequence(TcpPacket::new_unchecked(&frame[at..]).ack_number())
                        .wrapping_sub(before);
                    assert!(ack > last && ack < covers, "{covers} in {mss}: {ack} behind {last}");
                    assert_eq!(ack % 4, 0, "{covers} in {mss}");
                    (last, count) = (ack, count + 1);
                }
                assert!(count < PARTS, "{covers} in {mss}: {count} parts");
            }
        }
    }
}
