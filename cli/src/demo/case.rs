//! The lines of the demo: every way a byte can move, and the ways the wire can be set up.

use crate::shared::args::PeerConfig;
use uiw::raw::{ConnConfig, FpduSize};

/// A way to move a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Send,
    SendSolicited,
    SendInvalidate,
    SendImmediate,
    SendInline,
    SendShared,
    Write,
    WriteImmediate,
    WriteWindow,
    Read,
    ReadElements,
    FetchAdd,
    CmpSwap,
}

/// One line.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) way: Way,
    pub(super) peer_options: PeerConfig,
    /// What is special about the wire.
    pub(super) wire: &'static str,
}

/// Bytes of a block. A file is Sent, Written and Read in blocks.
const BLOCK: usize = 256 << 10;
/// Bytes of an inline Send.
const INLINE: usize = 1024;
/// Elements of a Read into several.
pub(super) const ELEMENTS: usize = 4;

impl Way {
    const ALL: [Self; 13] = [
        Self::Send,
        Self::SendSolicited,
        Self::SendInvalidate,
        Self::SendImmediate,
        Self::SendInline,
        Self::SendShared,
        Self::Write,
        Self::WriteImmediate,
        Self::WriteWindow,
        Self::Read,
        Self::ReadElements,
        Self::FetchAdd,
        Self::CmpSwap,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::SendSolicited => "Send with Solicited Event",
            Self::SendInvalidate => "Send with Invalidate",
            Self::SendImmediate => "Send with immediate",
            Self::SendInline => "Send, inline",
            Self::SendShared => "Send into a shared receive queue",
            Self::Write => "RDMA Write",
            Self::WriteImmediate => "RDMA Write with immediate",
            Self::WriteWindow => "RDMA Write through a memory window",
            Self::Read => "RDMA Read",
            Self::ReadElements => "RDMA Read into four elements",
            Self::FetchAdd => "RDMA Write, blocks by FetchAdd",
            Self::CmpSwap => "RDMA Write, lock by CmpSwap",
        }
    }

    /// Bytes of a message.
    pub(super) const fn block(self) -> usize {
        if matches!(self, Self::SendInline) { INLINE } else { BLOCK }
    }

    /// Whether the bytes are placed by the peer's receives.
    pub(super) const fn is_send(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendSolicited
                | Self::SendInvalidate
                | Self::SendImmediate
                | Self::SendInline
                | Self::SendShared
        )
    }

    /// Whether every block takes a receive of the peer's.
    pub(super) const fn takes_receives(self) -> bool {
        self.is_send() || matches!(self, Self::WriteImmediate)
    }

    /// Whether the bytes come from the peer.
    pub(super) const fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadElements)
    }
}

/// All lines, in their order.
pub(super) fn all() -> Vec<Case> {
    let usual = Way::ALL.map(|way| Case { way, peer_options: PeerConfig::default(), wire: "" });
    let settings = [
        ("CRC off", PeerConfig::new(ConnConfig::default().crc(false))),
        ("Markers", PeerConfig::new(ConnConfig::default().markers(true))),
        // What fits an Ethernet frame of 1500 bytes.
        ("FPDUs of 1424", PeerConfig::new(ConnConfig::default().fpdu(FpduSize::Fixed(1424)))),
    ];
    let special = settings.into_iter().flat_map(|(wire, peer_options)| {
        [Way::Send, Way::Write, Way::Read].map(|way| Case { way, peer_options: peer_options.clone(), wire })
    });
    usual.into_iter().chain(special).collect()
}

/// The blocks of a file of `len` bytes: offset and length.
pub(super) fn blocks(len: usize, block: usize) -> impl ExactSizeIterator<Item = (usize, usize)> {
    (0..len.div_ceil(block)).map(move |index| {
        let offset = index * block;
        (offset, block.min(len - offset))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_file() {
        for len in [1, 1023, 1024, 1025, 4096] {
            let mut end = 0;
            for (offset, len) in blocks(len, 1024) {
                assert_eq!(offset, end);
                assert!(len > 0);
                end += len;
            }
            assert_eq!(end, len);
        }
    }

    #[test]
    fn every_way_has_a_line() {
        let lines = all();
        assert_eq!(lines.len(), 22);
        for way in Way::ALL {
            assert!(lines.iter().any(|line| line.way == way), "{way:?}");
        }
    }
}
