//! Counters of the transfers of a server of `uiw cp`.

use crate::layout::transfers;

/// Direction of a transfer, as seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum TransferDirection {
    /// Transfer to the server.
    Upload = 0,
    /// Transfer from the server.
    Download = 1,
}

/// Result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum TransferResult {
    /// The client has reported that everything was copied.
    Complete = 0,
    /// The client has reported failed entries.
    Failed = 1,
    /// The client has disconnected without a report.
    Interrupted = 2,
}

/// Transfers in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCounts {
    /// Complete transfers.
    pub complete: u64,
    /// Transfers with failed entries.
    pub failed: u64,
    /// Interrupted transfers.
    pub interrupted: u64,
    /// Number of files and symbolic links.
    pub files: u64,
    /// Bytes of files sent over connections.
    pub bytes: u64,
}

/// Transfers in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Transfers to the server.
    pub uploads: TransferCounts,
    /// Transfers from the server.
    pub downloads: TransferCounts,
}

impl TransferCounts {
    /// Returns the number of transfers for each result, with its name.
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
        Self {
            uploads: counts(TransferDirection::Upload),
            downloads: counts(TransferDirection::Download),
        }
    }

    /// Returns the counts of each direction, with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, TransferCounts); 2] {
        [("upload", self.uploads), ("download", self.downloads)]
    }
}
