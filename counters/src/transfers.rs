//! Counts of the files that a server of `uiw cp` has transferred.

use crate::layout::transfers;

/// The direction of a transfer, seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum TransferDirection {
    /// Transfer to the server.
    Upload = 0,
    /// Transfer from the server.
    Download = 1,
}

/// The end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum TransferResult {
    /// The client has reported that everything is there.
    Complete = 0,
    /// The client has reported entries that failed.
    Failed = 1,
    /// The client went away without a report.
    Interrupted = 2,
}

/// Transfers of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCounts {
    /// Transfers by [`TransferResult`]: complete ones.
    pub complete: u64,
    /// Transfers with failed entries.
    pub failed: u64,
    /// Interrupted transfers.
    pub interrupted: u64,
    /// Files and symbolic links.
    pub files: u64,
    /// Bytes of files that went over connections.
    pub bytes: u64,
}

/// Transfers of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Transfers to the server.
    pub uploads: TransferCounts,
    /// Transfers from the server.
    pub downloads: TransferCounts,
}

impl TransferCounts {
    /// Each result with its name and count.
    #[must_use]
    pub fn results(&self) -> [(&'static str, u64); 3] {
        [("complete", self.complete), ("failed", self.failed), ("interrupted", self.interrupted)]
    }
}

impl Transfers {
    pub(crate) fn read(block: &[u64]) -> Self {
        let counts = |direction: TransferDirection| {
            let at = direction as usize * transfers::WORDS;
            TransferCounts {
                complete: block[at],
                failed: block[at + TransferResult::Failed as usize],
                interrupted: block[at + TransferResult::Interrupted as usize],
                files: block[at + transfers::FILES],
                bytes: block[at + transfers::BYTES],
            }
        };
        Self { uploads: counts(TransferDirection::Upload), downloads: counts(TransferDirection::Download) }
    }

    /// Each direction with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, TransferCounts); 2] {
        [("upload", self.uploads), ("download", self.downloads)]
    }
}
