//! Probes of silent connections, and of those with unacknowledged data.
//!
//! smoltcp's keep-alive segment contains a byte of zero instead of the last byte that was sent. It
//! may be sent while data is in flight: a fast retransmission that finds no room on the link, or no
//! MAC address of the gateway, is forgotten together with the retransmission timer. A peer that
//! holds the last byte out of order, after a lost segment, may then replace it by the zero, which
//! damages the stream. smoltcp's keep-alive is therefore disabled. The probes of this module
//! contain no byte (RFC 9293 section 3.8.4, SHLD-12). Their sequence number precedes the data that
//! the peer has acknowledged, so the peer answers each of them (section 3.10.7.4). If data is in
//! flight, the answer starts the retransmission that smoltcp has forgotten.

use super::segment::{
    ETHERNET_HEADER, LONGEST, TCP_HEADER, ethertype, fill_checksum, scale_of, segment_of,
};
use smoltcp::wire::{EthernetProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};
use std::time::Duration;

/// Maximum time between segments. smoltcp repeats neither window updates nor acknowledgements, and
/// sends no probes of a closed window if its retransmission timer has expired. A connection whose
/// last update was lost continues when the peer answers a probe.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// Number of duplicate acknowledgements at which smoltcp retransmits the first segment.
const DUPLICATES: usize = 3;

/// State of the probes of a connection. Times are in microseconds of the stack's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// Time of silence before a probe, in microseconds.
    interval: i64,
    /// Time at which the last segment or probe was sent, or the last segment was received.
    heard: i64,
    /// Time at which data was last acknowledged, the first unacknowledged byte was sent, or a probe
    /// was sent.
    progress: i64,
    /// Headers of the last segment that was sent, without options.
    headers: [u8; LONGEST],
    /// Number of bytes in `headers`; 0 until a segment with an acknowledgement was sent.
    len: usize,
    /// True if a probe was sent while data was in flight, and the peer has not answered.
    is_asking: bool,
}

impl Probe {
    /// Creates the state for a connection that is considered dead after its peer was silent for
    /// `dead_after`.
    pub(super) fn new(dead_after: Option<Duration>) -> Self {
        let mut probe = Self {
            interval: 0,
            heard: 0,
            progress: 0,
            headers: [0; LONGEST],
            len: 0,
            is_asking: false,
        };
        probe.set_dead_after(dead_after);
        probe
    }

    /// Sets the interval so that several probes are sent before a silent peer is considered dead.
    pub(super) fn set_dead_after(&mut self, after: Option<Duration>) {
        let interval = after.map_or(LONGEST_SILENCE, |after| LONGEST_SILENCE.min(after / 4));
        self.interval = i64::try_from(interval.as_micros()).unwrap_or(i64::MAX).max(1);
    }

    /// Handles a frame with a TCP segment that is sent. The TCP header is at offset `at`.
    /// `is_first` is true if the segment begins with the first unacknowledged byte.
    pub(super) fn note_sent(&mut self, frame: &[u8], at: usize, is_first: bool, now: i64) {
        self.heard = now;
        if is_first {
            self.progress = now;
        }
        let segment = TcpPacket::new_unchecked(&frame[at..]);
        let len = at + TCP_HEADER;
        // The headers of a packet with IP options are longer, but smoltcp sends none.
        if !segment.ack() || segment.rst() || len > LONGEST {
            return;
        }
        self.headers[..len].copy_from_slice(&frame[..len]);
        self.len = len;
        if segment.syn() {
            // The window of a SYN is not scaled, but that of the probe is (RFC 7323 section 2.2).
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

    /// Returns the time at which a probe is due. `in_flight` is true if there is unacknowledged
    /// data.
    pub(super) fn next(&self, in_flight: bool) -> Option<i64> {
        let since = if in_flight { self.heard.min(self.progress) } else { self.heard };
        (self.len > 0).then(|| since.saturating_add(self.interval))
    }

    /// Returns the frame of a probe that is sent at `now`, with a sequence number before
    /// `acknowledged`.
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

    /// Handles the answer to a probe. If data in flight did not reach the peer, returns duplicates
    /// of the answer that smoltcp has to process before the answer itself. smoltcp starts a
    /// retransmission only when its count of duplicates becomes three, so the first of them has a
    /// different window, which resets this count.
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
        // If the window is closed, smoltcp probes it itself.
        (window > 0).then_some(Duplicates { at, window, left: DUPLICATES + 1 })
    }
}

/// Duplicates of a frame, for smoltcp to process before the frame itself.
pub(super) struct Duplicates {
    at: usize,
    window: u16,
    left: usize,
}

impl Duplicates {
    /// Overwrites `frame` with the next duplicate, whose TCP checksum is not filled in. Returns
    /// false at the end.
    pub(super) fn write(&mut self, frame: &mut [u8]) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        // smoltcp takes a segment with another window for a window update, and resets its count.
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
