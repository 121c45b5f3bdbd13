//! Paths that silently lose long packets. This is packetization layer path MTU discovery (RFC
//! 4821), limited to what a connection needs to continue.
//!
//! smoltcp has one segment size for an interface, and that of a connection is fixed by its SYNs.
//! Segments are therefore split below smoltcp: one segment of smoltcp leaves as several, and
//! acknowledgements count bytes. When the first unacknowledged segment was retransmitted without
//! success, packets become shorter step by step. An outage looks the same, so when data is
//! acknowledged again, one whole segment is sent as a probe. If it arrives, segments are whole
//! again. If it does not, the next probe is sent ten minutes later, the time that RFC 4821 section
//! 7.3 specifies for raising the size.

use super::segment::is_behind;

/// Maximum packet sizes that are tried one after the other: that of Ethernet, the minimum of IPv6
/// (RFC 8200 section 5), and the size that every IPv4 host accepts.
const PACKETS: [usize; 3] = [1500, 1280, 576];
/// Number of unsuccessful retransmissions before packets become shorter for the first time. After
/// that, one is sufficient for each further step, because the intervals of smoltcp have grown.
const IN_VAIN: u8 = 2;
/// Minimum time between two retransmissions that are counted, in microseconds. Retransmissions by a
/// timer are further apart, but those because of duplicate acknowledgements are not.
const APART: i64 = 100_000;
/// Time until a whole segment is tried again, in microseconds.
const RAISE: i64 = 600_000_000;

/// State of path MTU discovery for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PathMtu {
    /// Maximum payload of a segment in bytes, if the path carries less than the interface.
    limit: Option<usize>,
    /// Sequence number of the first byte that the peer has not acknowledged.
    acknowledged: u32,
    /// Sequence number after the last byte that was ever sent; `None` until data may be sent.
    sent: Option<u32>,
    /// Number of retransmissions of the first segment since data was acknowledged.
    in_vain: u8,
    /// Time of the last one of these retransmissions, in microseconds.
    last: i64,
    /// Start and end of a whole segment that was sent as a probe.
    probe: Option<(u32, u32)>,
    /// Time at which the next probe may be sent. `None` until data is acknowledged in segments of
    /// `limit`.
    next_probe: Option<i64>,
}

impl PathMtu {
    /// Returns the current maximum payload of a segment in bytes. The interface carries `whole`
    /// bytes.
    pub(super) fn segment(&self, whole: usize) -> usize {
        self.limit.map_or(whole, |limit| limit.min(whole))
    }

    /// Returns whether the next segment may have to be split.
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
            // If the interface splits packets, this one may be longer than `whole`.
            self.probe = Some((start, end));
            return Some(whole).filter(|whole| len > *whole);
        }
        Some(limit)
    }

    /// Handles data that is sent again. If it overlaps a probe, its acknowledgement no longer shows
    /// that the probe has arrived.
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
        // The loss of a short segment is no evidence.
        if len <= shorter || now.saturating_sub(self.last) < APART && self.in_vain > 0 {
            return;
        }
        self.last = now;
        self.in_vain = self.in_vain.saturating_add(1);
        if self.in_vain >= IN_VAIN {
            tracing::debug!(
                bytes = shorter,
                "segments are not acknowledged: shorter ones are sent"
            );
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
        // The first acknowledgement is that of the SYN.
        self.sent.get_or_insert(acknowledged);
        match self.probe {
            Some((_, end)) if !is_behind(end, acknowledged) => {
                tracing::debug!("the path carries whole segments");
                (self.limit, self.probe, self.next_probe) = (None, None, None);
            }
            None if self.limit.is_some() && self.next_probe.is_none() => {
                self.next_probe = Some(now);
            }
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

    /// Returns the state of a connection whose sequence numbers begin at `base`, with some data
    /// sent and acknowledged.
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
            // The other segments of the same burst and new ones are short as well.
            assert_eq!(send(&mut path, at(WHOLE), WHOLE, 4 * SECOND), Some(1240));
            assert_eq!(send(&mut path, at(2 * WHOLE), WHOLE, 4 * SECOND), Some(1240));
            assert_eq!(send(&mut path, at(0), WHOLE, 8 * SECOND), Some(536), "one more is enough");
            assert_eq!(
                send(&mut path, at(0), WHOLE, 16 * SECOND),
                Some(536),
                "there is no shorter one"
            );
            path.note_acknowledged(at(WHOLE), 17 * SECOND);
            assert_eq!(
                send(&mut path, at(WHOLE), WHOLE, 17 * SECOND),
                Some(536),
                "no probe with old bytes"
            );
            assert_eq!(send(&mut path, at(3 * WHOLE), WHOLE, 17 * SECOND), None, "the probe");
            assert_eq!(
                send(&mut path, at(4 * WHOLE), WHOLE, 17 * SECOND),
                Some(536),
                "one at a time"
            );
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
        assert_eq!(
            send(&mut path, at(WHOLE), WHOLE, 6 * SECOND),
            Some(1240),
            "and once more, in pieces"
        );
        path.note_acknowledged(at(2 * WHOLE), 7 * SECOND);
        assert_eq!(send(&mut path, at(2 * WHOLE), WHOLE, 7 * SECOND), Some(1240));
        assert_eq!(send(&mut path, at(3 * WHOLE), WHOLE, 605 * SECOND), Some(1240));
        assert_eq!(send(&mut path, at(4 * WHOLE), WHOLE, 607 * SECOND), None, "ten minutes later");
    }

    #[test]
    fn path_mtu_unaffected_by_short_segments() {
        // A short segment that is lost many times indicates an outage.
        let mut path = begun(1);
        for second in 1..10 {
            assert_eq!(send(&mut path, 1 + WHOLE as u32, 1000, second * SECOND), None);
        }
        assert!(!path.may_cut());
        // Duplicate acknowledgements cause many retransmissions of the same segment within a
        // moment.
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
        assert_eq!(
            path.note_sent((70_000, 62_720), HEADERS, 8960, 17 * SECOND),
            Some(8960),
            "the probe"
        );
    }
}
