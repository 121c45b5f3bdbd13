//! What the demo's two processes say to each other beside the file: short Sends.
//!
//! ```text
//! peer    Go: where the file goes        ─►  client
//! client  the file, then an empty Send   ─►  peer
//! peer    an empty Send: all is here     ─►  client    (here the clock stops)
//! peer    Verdict: it compared           ─►  client    and again from Go, or the client closes
//! ```

use serde::{Deserialize, Serialize};

/// Private data of the client: this, and the number of the line.
pub(super) const GREETING: &[u8] = b"uiw-demo/1 ";
/// Bytes of a short Send at most.
pub(super) const TALK_LEN: usize = 512;

/// The peer is ready for the file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Go {
    /// Tagged offset and STag of where the file goes, or lies.
    pub(super) file: (u64, u32),
    /// Tagged offset and STag of the eight bytes for atomics.
    pub(super) cell: (u64, u32),
    /// The window to be invalidated.
    pub(super) window: u32,
}

/// What the peer found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Verdict {
    /// What is wrong; nothing if all is right.
    pub(super) wrong: Option<String>,
}
