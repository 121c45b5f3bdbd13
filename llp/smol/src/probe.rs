//! Probes of connections that are silent, and of those whose bytes are not acknowledged.
//!
//! smoltcp's keep-alive segment carries a byte of zero in the place of the last byte that was sent.
//! It may be sent while bytes are in flight: a fast retransmission that finds no room on the link,
//! or no MAC address of the gateway, is forgotten together with the retransmission timer. A peer
//! that holds the last byte out of order, behind a lost segment, may then replace it by the zero,
//! and the stream is damaged. So smoltcp's keep-alive is off. The probes of this module carry no
//! byte (RFC 9293 section 3.8.4, SHLD-12), and stand in front of what the peer has acknowledged, so
//! that it answers each of them (section 3.10.7.4). Where bytes are in flight, its answer is what
//! starts the retransmission that smoltcp has forgotten.

use super::segment::{ETHERNET_HEADER, LONGEST, TCP_HEADER, ethertype, fill_checksum, scale_of, segment_of};
use smoltcp::wire::{EthernetProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};
use std::time::Duration;

/// The longest time between segments. smoltcp repeats no window update and no acknowledgement, and
/// starts no probes of a closed window where its retransmission timer has expired: a connection
/// whose last update was lost goes on with the answer to a probe.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// smoltcp retransmits the first segment at the third duplicate acknowledgement.
const DUPLICATES: usize = 3;

/// Times and contents of the probes of a connection. Times are in microseconds of the stack's
/// clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// Microseconds of silence before a probe.
    interval: i64,
    /// Time when a segment left or arrived last.
    heard: i64,
    /// Time when bytes were acknowledged last, or the first byte that is not acknowledged was sent.
    progress: i64,
    /// Headers of the last segment that left, without options.
    headers: [u8; LONGEST],
    /// Bytes of `headers`; 0 before a segment with an acknowledgement has left.
    len: usize,
    /// A probe was sent while bytes were in flight, and the peer has not answered.
    is_asking: bool,
}

impl Probe {
    /// Creates the state for a connection that is dead when its peer was silent for `dead_after`.
    pub(super) fn new(dead_after: Option<Duration>) -> Self {
        let mut probe =
            Self { interval: 0, heard: 0, progress: 0, headers: [0; LONGEST], len: 0, is_asking: false };
        probe.set_dead_after(dead_after);
        probe
    }

    /// Several probes go before a silent peer is dead.
    pub(super) fn set_dead_after(&mut self, after: Option<Duration>) {
        let interval = after.map_or(LONGEST_SILENCE, |after| LONGEST_SILENCE.min(after / 4));
        self.interval = i64::try_from(interval.as_micros()).unwrap_or(i64::MAX).max(1);
    }

    /// Handles a frame with a TCP segment that is sent. Its header is at `at`. `is_first` is true
    /// if it begins with the first unacknowledged byte.
    pub(super) fn note_sent(&mut self, frame: &[u8], at: usize, is_first: bool, now: i64) {
        self.heard = now;
        if is_first {
            self.progress = now;
        }
        let segment = TcpPacket::new_unchecked(&frame[at..]);
        let len = at + TCP_HEADER;
        // The headers of a packet with IP options are longer; smoltcp sends none.
        if !segment.ack() || segment.rst() || len > LONGEST {
            return;
        }
        self.headers[..len].copy_from_slice(&frame[..len]);
        self.len = len;
        if segment.syn() {
            // RFC 7323 section 2.2: the window of a SYN is not scaled, that of the probe is.
            let window = segment.window_len() >> scale_of(&segment);
            TcpPacket::new_unchecked(&mut self.headers[at..len]).set_window_len(window);
        }
    }

    /// Handles a frame with a segment of the peer. `is_progress` is true if it acknowledges data.
    pub(super) fn note_received(&mut self, is_progress: bool, now: i64) {
        self.heard = now;
        if is_progress {
            self.progress = now;
            self.is_asking = false;
        }
    }

    /// Returns the time when a probe is due. `in_flight` states that bytes wait for their
    /// acknowledgement.
    pub(super) fn next(&self, in_flight: bool) -> Option<i64> {
        let since = if in_flight { self.heard.min(self.progress) } else { self.heard };
        (self.len > 0).then(|| since.saturating_add(self.interval))
    }

    /// The frame of a probe that is sent `now`, in front of `acknowledged`.
    pub(super) fn frame(&mut self, acknowledged: u32, in_flight: bool, now: i64) -> &[u8] {
        (self.heard, self.progress, self.is_asking) = (now, now, in_flight);
        let frame = &mut self.headers[..self.len];
        let at = frame.len() - TCP_HEADER;
        if ethertype(frame) == Some(EthernetProtocol::Ipv6) {
            let mut packet = Ipv6Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
            packet.set_payload_len(TCP_HEADER as u16);
        } else {
            let mut packet = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
            packet.set_total_len((at - ETHERNET_HEADER + TCP_HEADER) as u16);
            packet.fill_checksum();
        }
        let mut segment = TcpPacket::new_unchecked(&mut frame[at..]);
        segment.set_header_len(TCP_HEADER as u8);
        segment.set_seq_number(TcpSeqNumber(acknowledged.wrapping_sub(1).cast_signed()));
        segment.clear_flags();
        segment.set_ack(true);
        fill_checksum(frame, at);
        frame
    }

    /// The answer to a probe: where its bytes in flight did not reach the peer, duplicates of it
    /// come before it. They reset smoltcp's count of duplicates, which starts a retransmission when
    /// it becomes three and not when it is beyond, and then count.
    pub(super) fn duplicates(&mut self, frame: &[u8]) -> Option<Duplicates> {
        if !self.is_asking {
            return None;
        }
        let (at, bytes) = segment_of(frame)?;
        let segment = TcpPacket::new_checked(frame.get(at..at + bytes)?).ok()?;
        let window = segment.window_len();
        let is_answer = segment.ack()
            && !(segment.syn() || segment.fin() || segment.rst())
            && segment.payload().is_empty();
        if !is_answer {
            return None;
        }
        self.is_asking = false;
        // A closed window: smoltcp probes it.
        (window > 0).then_some(Duplicates { at, window, left: DUPLICATES + 1 })
    }
}

/// Changes a frame into one duplicate after the other, and at last into itself.
pub(super) struct Duplicates {
    at: usize,
    window: u16,
    left: usize,
}

impl Duplicates {
    /// The next one, in the place of `frame`. Its TCP checksum is not filled.
    pub(super) fn write(&mut self, frame: &mut [u8]) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        // A window update is no duplicate.
        let window = match left {
            DUPLICATES if self.window == u16::MAX => self.window - 1,
            DUPLICATES => self.window + 1,
            _ => self.window,
        };
        TcpPacket::new_unchecked(&mut frame[self.at..]).set_window_len(window);
        self.left = left;
        true
    }
}
