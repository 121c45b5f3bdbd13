//! Splits the received bytes into FPDUs, and checks the requirements of RFC 5044 for their framing.
//!
//! A normal receiver drops an FPDU with a wrong CRC. This one looks for the reason: it compares the
//! bytes with the result of each likely error of the sender.

use super::judge::Judgements;
use uiw_mpa::{MAX_ULPDU, MIN_MULPDU, crc32c, pad_len};

const MARKER_INTERVAL: u64 = 512;
const MARKER_LEN: usize = 4;
const LENGTH_FIELD_LEN: usize = 2;
const CRC_LEN: usize = 4;
/// Length of the shortest ULPDU, which is a tagged header.
const MIN_ULPDU: usize = 14;

/// Receiver of FPDUs in Full Operation.
#[derive(Debug)]
pub(super) struct Deframer {
    crc: bool,
    markers: bool,
    position: u64,
    /// Number of FPDUs so far.
    count: u64,
    /// CRC field of the previous FPDU.
    last_field: [u8; CRC_LEN],
}

/// A complete FPDU.
#[derive(Debug)]
pub(super) struct WholeFpdu {
    pub(super) consumed: usize,
    pub(super) ulpdu: Vec<u8>,
}

/// Result of parsing an FPDU at the front of the bytes.
#[derive(Debug)]
pub(super) enum DeframeResult {
    Fpdu(WholeFpdu),
    /// More bytes are due.
    Incomplete,
    /// The bytes are not a valid FPDU. The reason was added to the judgements.
    Broken(String),
}

/// Offsets of the parts of an FPDU.
struct FpduLayout {
    /// Length of the whole FPDU, including Markers.
    len: usize,
    ulpdu_len: usize,
    /// Offset and expected FPDUPTR of each Marker.
    markers: Vec<(usize, u16)>,
}

impl FpduLayout {
    /// Returns whether the FPDU at the front of `bytes` is complete and has a matching CRC.
    fn has_crc(&self, bytes: &[u8]) -> bool {
        let raw = bytes.get(..self.len).and_then(|raw| raw.split_last_chunk::<CRC_LEN>());
        raw.is_some_and(|(covered, field)| crc32c(covered).to_le_bytes() == *field)
    }
}

impl Deframer {
    pub(super) fn new(crc: bool, markers: bool) -> Self {
        Self { crc, markers, position: 0, count: 0, last_field: [0; CRC_LEN] }
    }

    /// Parses the FPDU at the front of `bytes`. `more` is true if further bytes may follow.
    pub(super) fn next(
        &mut self,
        bytes: &[u8],
        more: bool,
        judged: &mut Judgements,
    ) -> DeframeResult {
        let Some(layout) = self.layout(bytes, self.markers) else {
            return self.handle_incomplete(bytes, more, judged);
        };
        let is_right = self.crc && layout.has_crc(bytes);
        if !(MIN_ULPDU..=MAX_ULPDU).contains(&layout.ulpdu_len) && !is_right {
            return self.implausible_length(bytes, layout.ulpdu_len, judged);
        }
        let Some(raw) = bytes.get(..layout.len) else {
            // An unexpected Marker looks like a length of zero. A missing Marker may look like an
            // FPDU that never becomes complete.
            if self.markers && self.is_whole_without_markers(bytes) {
                return self.missing_marker(judged);
            }
            if !more && bytes.len() + CRC_LEN == layout.len {
                judged.add_broken(&["RFC5044-4.4-11"], "an FPDU ends without a CRC field");
                return DeframeResult::Broken("an FPDU without a CRC field".to_owned());
            }
            return self.handle_incomplete(bytes, more, judged);
        };
        let field: [u8; CRC_LEN] = raw.last_chunk().copied().unwrap_or_default();
        if self.crc && !is_right {
            return self.wrong_crc(bytes, raw, &layout, field, judged);
        }
        self.judge(raw, &layout, judged);
        let ulpdu = extract_ulpdu(raw, &layout);
        (self.position, self.count) = (self.position + layout.len as u64, self.count + 1);
        self.last_field = field;
        DeframeResult::Fpdu(WholeFpdu { consumed: layout.len, ulpdu })
    }

    /// Returns the offsets of the parts of the FPDU at the front of `bytes`, or `None` if its
    /// length has not arrived.
    fn layout(&self, bytes: &[u8], with_markers: bool) -> Option<FpduLayout> {
        let is_marker =
            |at: usize| with_markers && (self.position + at as u64).is_multiple_of(MARKER_INTERVAL);
        let lead = if is_marker(0) { MARKER_LEN } else { 0 };
        let length = bytes.get(lead..lead + LENGTH_FIELD_LEN)?;
        let ulpdu_len = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let mut markers = Vec::new();
        if lead > 0 {
            markers.push((0, 0));
        }
        let mut left = LENGTH_FIELD_LEN + ulpdu_len + pad_len(ulpdu_len) + CRC_LEN;
        let mut at = lead;
        while left > 0 {
            // The lengths of FPDUs and the distances of Markers are multiples of four bytes.
            if is_marker(at) {
                markers.push((at, (at - lead) as u16));
                at += MARKER_LEN;
            }
            at += MARKER_LEN.min(left);
            left = left.saturating_sub(MARKER_LEN);
        }
        Some(FpduLayout { len: at, ulpdu_len, markers })
    }

    fn handle_incomplete(
        &self,
        bytes: &[u8],
        more: bool,
        judged: &mut Judgements,
    ) -> DeframeResult {
        if more || bytes.is_empty() {
            return DeframeResult::Incomplete;
        }
        let what = format!("the stream ends {} bytes into an FPDU", bytes.len());
        judged.add_broken(&["RFC5044-4.1-01"], what.clone());
        DeframeResult::Broken(what)
    }

    fn is_whole_without_markers(&self, bytes: &[u8]) -> bool {
        self.layout(bytes, false).is_some_and(|layout| {
            (MIN_ULPDU..=MAX_ULPDU).contains(&layout.ulpdu_len) && layout.has_crc(bytes)
        })
    }

    /// Reports that no Marker is where one is due.
    fn missing_marker(&self, judged: &mut Judgements) -> DeframeResult {
        let what =
            format!("no Marker at byte {}, though our Request asked for Markers", self.position);
        judged.add_broken(&["RFC5044-4.3-02"], what.clone());
        if self.position == 0 {
            let ids = ["RFC5044-4.3-01", "RFC5044-4.3-07", "RFC5044-7.1.1-09"];
            judged.add_broken(&ids, what.clone());
        }
        DeframeResult::Broken(what)
    }

    /// Reports a length that no FPDU can have.
    fn implausible_length(
        &self,
        bytes: &[u8],
        length: usize,
        judged: &mut Judgements,
    ) -> DeframeResult {
        if self.markers && self.is_whole_without_markers(bytes) {
            return self.missing_marker(judged);
        }
        if !self.markers && self.position == 0 && bytes.starts_with(&[0; MARKER_LEN]) {
            let what = "a Marker, though our Request did not ask for Markers";
            judged.add_broken(&["RFC5044-7.1.1-08"], what);
            return DeframeResult::Broken(what.to_owned());
        }
        let what = format!("ULPDU_Length is {length} in FPDU {}", self.count + 1);
        if looks_like_header(self.last_field) && self.count > 0 {
            judged.add_broken(&["RFC5044-4.4-11"], "the FPDU before has no CRC field");
        }
        let id = if length > MAX_ULPDU { "RFC5044-3-05" } else { "RFC5044-4.1-01" };
        judged.add_broken(&[id], what.clone());
        DeframeResult::Broken(what)
    }

    /// Finds out and reports why a CRC is wrong.
    fn wrong_crc(
        &self,
        bytes: &[u8],
        raw: &[u8],
        layout: &FpduLayout,
        field: [u8; CRC_LEN],
        judged: &mut Judgements,
    ) -> DeframeResult {
        if self.markers && self.is_whole_without_markers(bytes) {
            return self.missing_marker(judged);
        }
        let covered = &raw[..raw.len() - CRC_LEN];
        let due = crc32c(covered);
        let is = |bytes: &[u8]| crc32c(bytes).to_le_bytes() == field;
        let lead =
            if layout.markers.first().is_some_and(|(at, _)| *at == 0) { MARKER_LEN } else { 0 };
        let without_markers = without_markers(covered, &layout.markers);
        let unpadded = LENGTH_FIELD_LEN + layout.ulpdu_len;
        let (why, ids): (&str, &[&str]) = if looks_like_header(field) {
            ("no CRC field: the next FPDU begins there", &["RFC5044-4.4-11", "RFC5044-4.1-01"])
        } else if field == due.to_be_bytes() {
            ("its bytes stand in the wrong order", &["RFC5044-4.4-16"])
        } else if field == [0; CRC_LEN] {
            ("zero: it was not computed", &["RFC5044-4.4-08", "RFC5044-7.1.1-11"])
        } else if lead > 0 && is(&covered[lead..]) {
            ("without the Marker in front", &["RFC5044-4.3-05", "RFC5044-4.4-15"])
        } else if is(&without_markers)
            || is(&covered[lead + LENGTH_FIELD_LEN..])
            || is(&covered[..covered.len() - pad_len(layout.ulpdu_len)])
        {
            ("over a part of what it must cover", &["RFC5044-4.4-14"])
        } else if pad_len(layout.ulpdu_len) > 0
            && bytes.get(unpadded..unpadded + CRC_LEN)
                == Some(&crc32c(&bytes[..unpadded]).to_le_bytes()[..])
        {
            ("behind the ULPDU, where the PAD is due", &["RFC5044-4.1-01"])
        } else {
            ("not CRC32c", &["RFC5044-4.4-12"])
        };
        let found = u32::from_le_bytes(field);
        let what = format!(
            "the CRC of FPDU {} is {found:#010x}, computed {due:#010x}: {why}",
            self.count + 1
        );
        judged.add_broken(ids, what.clone());
        DeframeResult::Broken(what)
    }

    /// Checks a complete FPDU with a valid CRC.
    fn judge(&self, raw: &[u8], layout: &FpduLayout, judged: &mut Judgements) {
        judged.add_kept(&["RFC5044-4.1-01", "RFC5044-4.4-11"]);
        if self.crc {
            judged.add_kept(&[
                "RFC5044-4.4-08",
                "RFC5044-4.4-12",
                "RFC5044-4.4-14",
                "RFC5044-4.4-16",
                "RFC5044-7.1.1-11",
            ]);
        }
        let pad = pad_len(layout.ulpdu_len);
        if pad > 0 {
            let plain = without_markers(&raw[..raw.len() - CRC_LEN], &layout.markers);
            let found = &plain[plain.len() - pad..];
            judged.check(found.iter().all(|byte| *byte == 0), &["RFC5044-4.1-02"], || {
                format!("PAD is {found:02x?}")
            });
        }
        if self.markers {
            self.judge_markers(raw, layout, judged);
        } else if self.position == 0 {
            judged.add_kept(&["RFC5044-7.1.1-08"]);
        }
    }

    fn judge_markers(&self, raw: &[u8], layout: &FpduLayout, judged: &mut Judgements) {
        if self.position == 0 {
            judged.add_kept(&["RFC5044-4.3-01", "RFC5044-4.3-07", "RFC5044-7.1.1-09"]);
        }
        for (at, due) in &layout.markers {
            let Some([r0, r1, high, low]) =
                raw.get(*at..).and_then(|bytes| bytes.first_chunk()).copied()
            else {
                continue;
            };
            let (reserved, pointer) =
                (u16::from_be_bytes([r0, r1]), u16::from_be_bytes([high, low]));
            let place = self.position + *at as u64;
            judged.check(reserved == 0, &["RFC5044-4.2-02"], || {
                format!("the Marker at byte {place} has {reserved:#06x} in its reserved field")
            });
            judged.check(pointer & 3 == 0, &["RFC5044-4.2-03a"], || {
                format!("the Marker at byte {place} has FPDUPTR {pointer}: its low two bits are not zero")
            });
            let between = *at == 0;
            let ids: &[&str] = if between {
                &["RFC5044-4.3-09b", "RFC5044-4.2-01"]
            } else {
                &["RFC5044-4.3-03", "RFC5044-4.3-09a", "RFC5044-4.2-01"]
            };
            judged.check(pointer & !3 == *due, ids, || {
                format!("the Marker at byte {place} points {pointer} bytes back, {due} is due")
            });
            if between {
                judged.add_kept(&["RFC5044-4.3-05", "RFC5044-4.4-15"]);
            }
            if place > 0 {
                judged.add_kept(&["RFC5044-4.3-02"]);
            }
        }
        let inner = layout.markers.iter().filter(|(at, _)| *at > 0).count();
        if inner > 1 {
            let right = layout
                .markers
                .iter()
                .all(|(at, due)| raw.get(at + 2..at + 4) == Some(&due.to_be_bytes()[..]));
            judged.check(right, &["RFC5044-4.3-08"], || {
                "the Markers of an FPDU do not all point to its ULPDU_Length".to_owned()
            });
        }
    }
}

/// Returns whether four bytes look like the front of an FPDU: a length, then the control fields of
/// DDP and RDMAP.
fn looks_like_header(bytes: [u8; 4]) -> bool {
    let length = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    (MIN_ULPDU..=MAX_ULPDU).contains(&length)
        && bytes[2] & 0x3F == 1
        && bytes[3] & 0xF0 == 0x40
        && bytes[3] & 15 <= 11
}

fn without_markers(bytes: &[u8], markers: &[(usize, u16)]) -> Vec<u8> {
    let is_marker =
        |at: usize| markers.iter().any(|(marker, _)| (*marker..*marker + MARKER_LEN).contains(&at));
    bytes.iter().enumerate().filter(|(at, _)| !is_marker(*at)).map(|(_, byte)| *byte).collect()
}

/// Returns the ULPDU of an FPDU.
fn extract_ulpdu(raw: &[u8], layout: &FpduLayout) -> Vec<u8> {
    let plain = if layout.markers.is_empty() {
        raw.to_vec()
    } else {
        without_markers(raw, &layout.markers)
    };
    plain.into_iter().skip(LENGTH_FIELD_LEN).take(layout.ulpdu_len).collect()
}

/// Checks the length of a segment. Only the last one of a message may be short.
pub(super) fn judge_segment_length(ulpdu: usize, last: bool, judged: &mut Judgements) {
    if !last {
        judged.check(ulpdu >= MIN_MULPDU, &["RFC5044-3-04"], || {
            format!("a ULPDU of {ulpdu} bytes is not its message's last: MULPDU is below 128")
        });
    }
    judged.check(ulpdu <= MAX_ULPDU, &["RFC5044-3-05"], || format!("a ULPDU of {ulpdu} bytes"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_mpa::FpduTx;

    fn stream(crc: bool, markers: bool, lengths: &[usize]) -> Vec<u8> {
        let mut tx = FpduTx::new(crc, markers);
        let mut bytes = Vec::new();
        for length in lengths {
            let start = bytes.len();
            bytes.extend([0, 0]);
            bytes.extend((0..*length).map(|at| at as u8 | 1));
            tx.seal(&mut bytes, start);
        }
        bytes
    }

    fn broken(crc: bool, markers: bool, bytes: &[u8]) -> Vec<String> {
        let (mut deframe, mut judged, mut at) =
            (Deframer::new(crc, markers), Judgements::default(), 0);
        while let DeframeResult::Fpdu(whole) = deframe.next(&bytes[at..], false, &mut judged) {
            at += whole.consumed;
        }
        judged.broken()
    }

    #[test]
    fn codec_output_kept() {
        for crc in [true, false] {
            for markers in [true, false] {
                let lengths: Vec<usize> = (14..90).chain([2000, 517, 60_000]).collect();
                assert_eq!(
                    broken(crc, markers, &stream(crc, markers, &lengths)),
                    [""; 0],
                    "{crc} {markers}"
                );
            }
        }
    }

    #[test]
    fn each_error_has_its_sentence() {
        let whole = stream(true, false, &[14, 15, 14]);
        let change = |at: usize, to: u8| {
            let mut bytes = whole.clone();
            bytes[at] = to;
            bytes
        };
        assert_eq!(broken(true, false, &change(19, whole[19] ^ 1)), ["RFC5044-4.4-12"]);
        let mut swapped = whole.clone();
        swapped[16..20].reverse();
        assert_eq!(broken(true, false, &swapped), ["RFC5044-4.4-16"]);
        let mut zero = whole.clone();
        zero[16..20].fill(0);
        assert_eq!(broken(true, false, &zero), ["RFC5044-4.4-08", "RFC5044-7.1.1-11"]);
        assert_eq!(broken(true, false, &whole[..30]), ["RFC5044-4.1-01"]);
        assert_eq!(
            broken(true, true, &stream(true, false, &[14, 14])),
            ["RFC5044-4.3-01", "RFC5044-4.3-02", "RFC5044-4.3-07", "RFC5044-7.1.1-09"]
        );
        assert_eq!(broken(true, false, &stream(true, true, &[14, 14])), ["RFC5044-7.1.1-08"]);
        let mut marked = stream(true, true, &[14; 60]);
        marked[515] ^= 1;
        assert_eq!(
            broken(true, true, &marked),
            ["RFC5044-4.4-12"],
            "its CRC does not cover the change"
        );
        let mut marked = stream(false, true, &[14; 60]);
        marked[515] ^= 5;
        marked[513] = 1;
        let ids = [
            "RFC5044-4.2-01",
            "RFC5044-4.2-02",
            "RFC5044-4.2-03a",
            "RFC5044-4.3-03",
            "RFC5044-4.3-09a",
        ];
        assert_eq!(broken(false, true, &marked), ids);
    }
}
