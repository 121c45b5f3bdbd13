//! The formats: what is in MPA's private data, and the header of each Send.

mod join;
mod message;

pub use join::{JOIN_LEN, Join, JoinError, Reason, Reply, Request};
pub use message::{Header, HeaderError, Kind, MESSAGE_HEADER_LEN};

/// The version of the formats.
pub const VERSION: u8 = 1;

/// The `N` bytes of `bytes` from `at` on; zeros where it ends before.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    field
}
