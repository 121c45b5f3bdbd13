//! Paths that lose long packets without a message: packetization layer path MTU discovery (RFC
//! 4821), as far as a connection needs it to go on.
//!
//! smoltcp has one segment size for an interface, and a connection's is fixed by its SYNs. So its
//! segments are cut below it: what it sends as one segment leaves as several, and acknowledgements
//! count bytes. When the first segment that is not acknowledged was sent again in vain, packets
//! become shorter step by step. An outage looks the same; so when bytes are acknowledged again, one
//! whole segment is sent to find out, and if it arrives they are whole again. If it does not, the
//! next one goes ten minutes later, as RFC 4821 section 7.3 has it for raising the size.

use super::segment::is_behind;

/// Longest IP packets that are tried, one after the other: Ethernet's, IPv6's least (RFC 8200
/// section 5), IPv4's that every host takes.
const PACKETS: [usize; 3] = [1500, 1280, 576];
/// Times in vain before packets become shorter for the first time; from then on one is enough, as
/// smoltcp's pauses have grown.
const IN_VAIN: u8 = 2;
/// Microseconds between two times that count. Retransmissions by a timer are further apart, those
/// by duplicate acknowledgements are not.
const APART: i64 = 100_000;
/// Microseconds until a whole segment is tried again.
const RAISE: i64 = 600_000_000;

/// Knowledge about the path of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PathMtu {
    /// Bytes of payload in a segment at most, where the path carries fewer than the interface.
    limit: Option<usize>,
    /// The first byte that the peer has not acknowledged.
    acknowledged: u32,
    /// The byte behind the last one that was ever sent, once bytes may be sent.
    sent: Option<u32>,
    /// Number and time of retransmissions of the first segment since bytes were acknowledged.
    in_vain: u8,
    last: i64,
    /// A whole segment that was sent to find out whether the path carries it: where it begins and
    /// ends.
    probe: Option<(u32, u32)>,
    /// Time when the next probe may be sent: `None` until bytes are acknowledged in segments of
    /// `limit`.
    next_probe: Option<i64>,
}

impl PathMtu {
    /// Bytes of payload in a segment now, where the interface carries `whole`.
    pub(super) fn segment(&self, whole: usize) -> usize {
        self.limit.map_or(whole, |limit| limit.min(whole))
    }

    /// Returns whether the next segment may have to be cut.
    pub(super) fn may_cut(&self) -> bool {
        self.limit.is_some() || self.in_vain + 1 >= IN_VAIN
    }

    /// Handles a segment with `len` bytes of payload from `start` on that is sent at `now` (in
    /// microseconds), in an IP packet with `headers` bytes of headers, on an interface that carries
    /// `whole` bytes. Returns the payload size with which the segment has to be split, if
    /// necessary.
    pub(super) fn note_sent(
        &mut self,
        (start, len): (u32, usize),
        headers: usize,
        whole: usize,
        now: i64,
    ) -> Option<usize> {
        let end = start.wrapping_add(len as u32);
        let is_new = is_behind(end, self.sent?);
        if is_new {
            self.sent = Some(end);
        } else {
            self.note_retransmission(start, len, now);
            if start == self.acknowledged {
                self.count_retransmission(len, headers, whole, now);
            }
        }
        let limit = self.limit.filter(|limit| len > *limit)?;
        if is_new && self.probe.is_none() && self.next_probe.is_some_and(|at| at <= now) {
            // Not more than one packet: what the interface would cut is.
            self.probe = Some((start, end));
            return Some(whole).filter(|whole| len > *whole);
        }
        Some(limit)
    }

    /// Handles data that is sent again. If it replaces a probe, its arrival tells nothing about the
    /// probe.
    fn note_retransmission(&mut self, start: u32, len: usize, now: i64) {
        let end = start.wrapping_add(len as u32);
        if let Some((from, to)) = self.probe
            && is_behind(end, from)
            && is_behind(to, start)
        {
            self.probe = None;
            self.next_probe = Some(now.saturating_add(RAISE));
        }
    }

    /// Counts a retransmission of the first segment.
    fn count_retransmission(&mut self, len: usize, headers: usize, whole: usize, now: i64) {
        let present = self.limit.unwrap_or(whole);
        let mut shorter = PACKETS.into_iter().map(|packet| packet.saturating_sub(headers) & !3);
        let Some(shorter) = shorter.find(|shorter| *shorter < present) else { return };
        // A short one that is lost is no sign.
        if len <= shorter || now.saturating_sub(self.last) < APART && self.in_vain > 0 {
            return;
        }
        self.last = now;
        self.in_vain = self.in_vain.saturating_add(1);
        if self.in_vain >= IN_VAIN {
            tracing::debug!(bytes = shorter, "segments are not acknowledged: shorter ones are sent");
            self.limit = Some(shorter);
            self.next_probe = None;
        }
    }

    /// Handles an acknowledgement of all data before `acknowledged`.
    pub(super) fn note_acknowledged(&mut self, acknowledged: u32, now: i64) {
        if acknowledged == self.acknowledged {
            return;
        }
        self.acknowledged = acknowledged;
        self.in_vain = 0;
        // The first time it is the SYN.
        self.sent.get_or_insert(acknowledged);
        match self.probe {
            Some((_, end)) if !is_behind(end, acknowledged) => {
                tracing::debug!("the path carries whole segments");
                (self.limit, self.probe, self.next_probe) = (None, None, None);
            }
            None if self.limit.is_some() && self.next_probe.is_none() => self.next_probe = Some(now),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: usize = 40;
    const WHOLE: usize = 1460;
    const SECOND: i64 = 1_000_000;

    /// A connection whose bytes are counted from `base`, in which some were sent and acknowledged.
    fn begun(base: u32) -> PathMtu {
        let mut path = PathMtu::default();
        path.note_acknowledged(base, 0);
        assert_eq!(path.note_sent((base, WHOLE), HEADERS, WHOLE, 0), None);
        path.note_acknowledged(base.wrapping_add(WHOLE as u32), 1);
        assert!(!path.may_cut());
        path
    }

    fn send(path: &mut PathMtu, start: u32, len: usize, now: i64) -> Option<usize> {
        path.note_sent((start, len), HEADERS, WHOLE, now)
    }

    #[test]
    fn segment_size_shrinks_and_recovers() {
        for base in [1, u32::MAX - 2000, u32::MAX / 2] {
            let at = |offset: usize| base.wrapping_add((WHOLE + offset) as u32);
            let mut path = begun(base);
            assert_eq!(send(&mut path, at(0), WHOLE, SECOND), None);
            assert_eq!(send(&mut path, at(WHOLE), WHOLE, SECOND), None);
            assert_eq!(send(&mut path, at(0), WHOLE, 2 * SECOND), None);
            assert!(path.may_cut());
            assert_eq!(send(&mut path, at(0), WHOLE, 4 * SECOND), Some(1240));
            // The others of the same go, and new ones, without a whole one among them.
            assert_eq!(send(&mut path, at(WHOLE), WHOLE, 4 * SECOND), Some(1240));
            assert_eq!(send(&mut path, at(2 * WHOLE), WHOLE, 4 * SECOND), Some(1240));
            assert_eq!(send(&mut path, at(0), WHOLE, 8 * SECOND), Some(536), "one more is enough");
            assert_eq!(send(&mut path, at(0), WHOLE, 16 * SECOND), Some(536), "there is no shorter one");
            path.note_acknowledged(at(WHOLE), 17 * SECOND);
            assert_eq!(send(&mut path, at(WHOLE), WHOLE, 17 * SECOND), Some(536), "no probe with old bytes");
            assert_eq!(send(&mut path, at(3 * WHOLE), WHOLE, 17 * SECOND), None, "the probe");
            assert_eq!(send(&mut path, at(4 * WHOLE), WHOLE, 17 * SECOND), Some(536), "one at a time");
            path.note_acknowledged(at(3 * WHOLE), 18 * SECOND);
            assert_eq!(path.limit, Some(536), "it has not arrived yet");
            path.note_acknowledged(at(4 * WHOLE), 18 * SECOND);
            assert_eq!(send(&mut path, at(5 * WHOLE), WHOLE, 18 * SECOND), None);
            assert!(!path.may_cut());
        }
    }

    #[test]
    fn repeated_probe_counts_as_lost() {
        let mut path = begun(1);
        let at = |offset: usize| (1 + WHOLE + offset) as u32;
        for second in [1, 2, 4] {
            send(&mut path, at(0), WHOLE, second * SECOND);
        }
        path.note_acknowledged(at(WHOLE), 5 * SECOND);
        assert_eq!(send(&mut path, at(WHOLE), WHOLE, 5 * SECOND), None, "the probe");
        assert_eq!(send(&mut path, at(WHOLE), WHOLE, 6 * SECOND), Some(1240), "and once more, in pieces");
        path.note_acknowledged(at(2 * WHOLE), 7 * SECOND);
        assert_eq!(send(&mut path, at(2 * WHOLE), WHOLE, 7 * SECOND), Some(1240));
        assert_eq!(send(&mut path, at(3 * WHOLE), WHOLE, 605 * SECOND), Some(1240));
        assert_eq!(send(&mut path, at(4 * WHOLE), WHOLE, 607 * SECOND), None, "ten minutes later");
    }

    #[test]
    fn path_mtu_unaffected_by_short_segments() {
        // A short one that is lost many times: an outage.
        let mut path = begun(1);
        for second in 1..10 {
            assert_eq!(send(&mut path, 1 + WHOLE as u32, 1000, second * SECOND), None);
        }
        assert!(!path.may_cut());
        // Duplicate acknowledgements let the same segment leave many times in a moment.
        let mut path = begun(1);
        for tick in 0..100 {
            assert_eq!(send(&mut path, 1 + WHOLE as u32, WHOLE, SECOND + tick), None);
        }
        // Packets of 9,000 bytes, of which the interface gets several at a time.
        let mut path = begun(1);
        let cut: Vec<_> = [1, 2, 4, 8, 16]
            .map(|at| path.note_sent((1 + WHOLE as u32, 62_720), HEADERS, 8960, at * SECOND))
            .into();
        assert_eq!(cut, [None, None, Some(1460), Some(1240), Some(536)]);
        path.note_acknowledged(70_000, 17 * SECOND);
        assert_eq!(path.note_sent((70_000, 62_720), HEADERS, 8960, 17 * SECOND), Some(8960), "the probe");
    }
}
