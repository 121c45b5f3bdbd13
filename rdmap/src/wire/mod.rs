//! RDMAP headers (RFC 5040 section 4, RFC 7306 sections 5 and 6). They follow the DDP header,
//! except for the control byte, which is part of the DDP header.

mod atomic;
mod control;
mod immediate;
mod read_request;
mod terminate;

pub use atomic::{AtomicOp, AtomicRequest, AtomicResponse};
pub use control::Control;
pub use immediate::ImmediateData;
pub use read_request::ReadRequest;
pub use terminate::{HeaderCopy, Terminate, TerminateEncoding, TerminateTooShort};

use crate::Opcode;

/// Version of RDMAP in RFC 5040. Version 0 is that of the RDMA Consortium's specifications.
pub const VERSION: u8 = 1;

/// Reason why the bytes of a message do not fit its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A message with a fixed length has a different length, or a Terminate is too short.
    #[error("{message} of {len} bytes instead of {needed}")]
    Length {
        /// Opcode of the message.
        message: Opcode,
        /// Number of bytes after the DDP header.
        len: usize,
        /// Expected number of bytes, the least for a Terminate.
        needed: usize,
    },
    /// An Atomic Request has a code that RFC 7306 section 5.2.1 does not define.
    #[error("Atomic Operation Code {code}")]
    AtomicCode {
        /// AOpCode, four bits.
        code: u8,
    },
}

/// Converts the bytes of a message to an array of `N` bytes.
fn check_len<const N: usize>(message: Opcode, bytes: &[u8]) -> Result<&[u8; N], FormatError> {
    bytes.try_into().map_err(|_| FormatError::Length { message, len: bytes.len(), needed: N })
}

/// Returns the big-endian 32-bit integer at offset `at`.
fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Returns the big-endian 64-bit integer at offset `at`.
fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}
