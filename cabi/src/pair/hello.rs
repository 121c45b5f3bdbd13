//! What two ends of a hand-made connection say in their MPA private data.

use crate::abi::ibv_gid;

/// Says that a Request is of a queue pair connected by hand.
const MAGIC: [u8; 8] = *b"uiw pair";

/// Who calls, and whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) from: End,
    pub(super) to: End,
    /// The PSN that the caller expects.
    pub(super) expects: u32,
    /// The PSN that the caller begins with, if it knows it already (from RTS on).
    pub(super) begins: Option<u32>,
}

/// One end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct End {
    pub(super) qp_num: u32,
    pub(super) gid: ibv_gid,
}

/// "No PSN yet": PSNs have 24 bits.
const UNKNOWN: u32 = u32::MAX;

impl Hello {
    pub(super) const LEN: usize = 56;

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.from.qp_num.to_be_bytes());
        out[12..16].copy_from_slice(&self.to.qp_num.to_be_bytes());
        out[16..32].copy_from_slice(&self.from.gid.raw);
        out[32..48].copy_from_slice(&self.to.gid.raw);
        out[48..52].copy_from_slice(&self.expects.to_be_bytes());
        out[52..].copy_from_slice(&self.begins.unwrap_or(UNKNOWN).to_be_bytes());
        out
    }

    /// `None` for what is no such greeting.
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        let octets: &[u8; Self::LEN] = octets.try_into().ok()?;
        let word =
            |at: usize| u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        let gid = |at: usize| ibv_gid { raw: std::array::from_fn(|i| octets[at + i]) };
        (octets[..8] == MAGIC).then(|| Self {
            from: End { qp_num: word(8), gid: gid(16) },
            to: End { qp_num: word(12), gid: gid(32) },
            expects: word(48),
            begins: Some(word(52)).filter(|psn| *psn != UNKNOWN),
        })
    }
}

/// Private data of a rejection that means: not now, ask again.
pub(super) const LATER: &[u8] = b"uiw pair: later";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_survive_the_wire() {
        let gid = |last| ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, last] };
        let end = |qp_num, last| End { qp_num, gid: gid(last) };
        for begins in [None, Some(0), Some(0xFF_FFFF)] {
            let hello = Hello { from: end(0x12_3456, 1), to: end(0x65_4321, 2), expects: 77, begins };
            assert_eq!(Hello::parse(&hello.emit()), Some(hello));
        }
    }

    #[test]
    fn anything_else_is_no_greeting() {
        let mut octets = [0; Hello::LEN];
        assert_eq!(Hello::parse(&octets), None);
        octets[..8].copy_from_slice(&MAGIC);
        assert!(Hello::parse(&octets).is_some());
        assert_eq!(Hello::parse(&octets[..55]), None);
        assert_eq!(Hello::parse(&[]), None);
    }
}
