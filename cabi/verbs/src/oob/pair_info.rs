//! MPA private data of an out-of-band connection, which names the two queue pairs.

use uiw_cabi_core::abi::ibv_gid;

/// Marks the MPA Request of an out-of-band connected queue pair.
const MAGIC: [u8; 8] = *b"uiw pair";
/// Like [`MAGIC`], for an unreliable queue pair.
const UNRELIABLE_MAGIC: [u8; 8] = *b"uiw pruc";

/// Both ends, from the point of view of the sender of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PairInfo {
    pub(super) from: PairEnd,
    pub(super) to: PairEnd,
    /// True for unreliable connections (UC).
    pub(super) unreliable: bool,
    /// PSN that the sender expects.
    pub(super) expected_psn: u32,
    /// First PSN of the sender, if it is already known (from RTS on).
    pub(super) first_psn: Option<u32>,
}

/// One end of the pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PairEnd {
    pub(super) qp_num: u32,
    pub(super) gid: ibv_gid,
}

/// Represents an unknown PSN. PSNs have 24 bits.
const UNKNOWN: u32 = u32::MAX;

impl PairInfo {
    pub(super) const LEN: usize = 56;

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(if self.unreliable { &UNRELIABLE_MAGIC } else { &MAGIC });
        out[8..12].copy_from_slice(&self.from.qp_num.to_be_bytes());
        out[12..16].copy_from_slice(&self.to.qp_num.to_be_bytes());
        out[16..32].copy_from_slice(&self.from.gid.raw);
        out[32..48].copy_from_slice(&self.to.gid.raw);
        out[48..52].copy_from_slice(&self.expected_psn.to_be_bytes());
        out[52..].copy_from_slice(&self.first_psn.unwrap_or(UNKNOWN).to_be_bytes());
        out
    }

    /// Parses private data. Returns `None` if it is not from an out-of-band connection.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let gid = |at: usize| ibv_gid { raw: std::array::from_fn(|i| bytes[at + i]) };
        let unreliable = bytes[..8] == UNRELIABLE_MAGIC;
        (unreliable || bytes[..8] == MAGIC).then(|| Self {
            unreliable,
            from: PairEnd { qp_num: word(8), gid: gid(16) },
            to: PairEnd { qp_num: word(12), gid: gid(32) },
            expected_psn: word(48),
            first_psn: Some(word(52)).filter(|psn| *psn != UNKNOWN),
        })
    }
}

/// Private data of a rejection that requests another attempt later.
pub(super) const LATER: &[u8] = b"uiw pair: later";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emitted_messages_parse_back() {
        let gid = |last| ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, last] };
        let end = |qp_num, last| PairEnd { qp_num, gid: gid(last) };
        for (first_psn, unreliable) in [(None, false), (Some(0), true), (Some(0xFF_FFFF), false)] {
            let (from, to) = (end(0x12_3456, 1), end(0x65_4321, 2));
            let info = PairInfo { from, to, unreliable, expected_psn: 77, first_psn };
            assert_eq!(PairInfo::parse(&info.emit()), Some(info));
        }
    }

    #[test]
    fn other_data_is_refused() {
        let mut bytes = [0; PairInfo::LEN];
        assert_eq!(PairInfo::parse(&bytes), None);
        bytes[..8].copy_from_slice(&MAGIC);
        assert!(PairInfo::parse(&bytes).is_some());
        assert_eq!(PairInfo::parse(&bytes[..55]), None);
        assert_eq!(PairInfo::parse(&[]), None);
    }
}
