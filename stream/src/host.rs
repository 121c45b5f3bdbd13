//! What a stream needs of the program around it: memory, queues, completions.

use crate::error::{AccessError, AtomicError, LocalError};
use crate::request::Request;
use alloc::vec::Vec;
use core::ops::Range;
use uiw_ddp::STag;
use uiw_mpa::Verified;
use uiw_mpa::crc::Crc32c;
use uiw_rdmap::AtomicRequest;

/// The program around a stream: the memory that peers reach, the queues of requests and receives,
/// and what becomes of them.
///
/// The stream calls its host only inside of its own methods, from the thread that called them, and
/// never keeps what a call returned. A method that the stream calls for a peer's segment checks
/// everything about the memory itself: the stream has only that the segment is legal at this place
/// of the stream. What reaches a peer's memory was verified first: no other bytes compile.
///
/// ```compile_fail,E0308
/// fn write_unverified(host: &mut impl uiw_stream::StreamHost, bytes: &[u8]) {
///     let _ = host.write(uiw_ddp::STag(1), 0, bytes);
/// }
/// ```
///
/// With [`Verified`] bytes the same call does:
///
/// ```
/// # mod uiw { pub mod stream { pub use uiw_stream::*; pub use uiw_mpa::Verified; pub use uiw_ddp::STag; } }
/// fn write(host: &mut impl uiw::stream::StreamHost, bytes: uiw::stream::Verified<'_>) {
///     let _ = host.write(uiw::stream::STag(1), 0, bytes);
/// }
/// ```
///
/// A host with one region of memory, and what carries bytes between two ends; the examples of this
/// crate's other items use it:
///
#[doc = concat!("```\n", include_str!("../docs/peer.rs"), "# fn main() { established(Time::default()); }\n```")]
pub trait StreamHost {
    /// Names memory whose bytes wait in the transmit queue. Keeping it must keep the memory from
    /// being reused unnoticed.
    type Memory;
    /// Memory that was looked up and checked, for the time of one call.
    type Payload<'a>: Payload<Memory = Self::Memory>
    where
        Self: 'a;

    /// Returns whether the stream carries unreliable messages, as both ends have agreed by other
    /// means: a message that cannot be delivered is discarded, and the stream goes on. As provided,
    /// messages are reliable.
    #[inline(always)]
    fn is_unreliable(&self) -> bool {
        false
    }

    /// Returns whether the peer may write all of the `len` bytes from `to` on. Asked before the
    /// first segment of an unreliable Write is placed. As provided, each segment is checked when it
    /// comes.
    ///
    /// # Errors
    /// [`AccessError`]: nothing of the Write is placed.
    fn check_write(&mut self, stag: STag, to: u64, len: u32) -> Result<(), AccessError> {
        let _ = (stag, to, len);
        Ok(())
    }

    /// Places a segment of the peer's RDMA Write.
    ///
    /// # Errors
    /// [`AccessError`]: nothing was placed; the stream is terminated (RFC 5041 section 7.1), unless [`StreamHost::is_unreliable`].
    fn write(&mut self, stag: STag, to: u64, payload: Verified<'_>) -> Result<(), AccessError>;

    /// The `len` bytes from `to` on of the memory that the peer reads, or the first of them if they
    /// lie in several pieces.
    ///
    /// # Errors
    /// [`AccessError`]: one of the bytes may not be read. The stream asks again for fewer, and is terminated at the segment that
    /// holds the byte.
    fn read_source(&mut self, stag: STag, to: u64, len: u32) -> Result<Self::Payload<'_>, AccessError>;

    /// Executes the peer's atomic ([`AtomicRequest::apply`]). Returns the value before. As
    /// provided, no memory gives the right.
    ///
    /// # Errors
    /// [`AtomicError`]: the memory is as before; the stream is terminated.
    fn atomic(&mut self, request: &AtomicRequest) -> Result<u64, AtomicError> {
        let _ = request;
        Err(AccessError::AccessRights.into())
    }

    /// Invalidates the STag that the peer's Send names. As provided, no STag may be invalidated by
    /// the peer.
    ///
    /// # Errors
    /// [`AccessError`]: the peer may not invalidate it; the stream is terminated.
    fn invalidate(&mut self, stag: STag) -> Result<(), AccessError> {
        let _ = stag;
        Err(AccessError::AccessRights)
    }

    /// Begins to fill the oldest posted receive. Returns its bytes; `None` when none is posted:
    /// then the stream is not read until [`crate::RdmapStream::receive_posted`], or until
    /// [`crate::RdmapConfig::no_receive_timeout`] has passed.
    fn begin_receive(&mut self) -> Option<u32>;

    /// Places a segment of a Send at byte `offset` of the receive that was begun.
    ///
    /// # Errors
    /// [`LocalError::Protection`]: the receive's memory is gone.
    fn place(&mut self, offset: u32, payload: Verified<'_>) -> Result<(), LocalError>;

    /// Completes the receive that was begun.
    ///
    /// # Errors
    /// [`LocalError::CqOverflow`].
    fn receive(&mut self, message: ReceivedMessage) -> Result<(), LocalError>;

    /// The receive that was begun is too short for its message (`TooLong`), or its memory is gone:
    /// it completes with an error.
    fn fail_receive(&mut self, error: ReceiveError);

    /// The oldest request that was not given to [`StreamHost::built`], if it may be sent. It stays
    /// the same until then.
    ///
    /// A host may keep locks and pins across calls until [`StreamHost::release`].
    fn next_request(&mut self) -> Option<Request>;

    /// The stream has done one batch of work: the host releases what it kept locked or pinned
    /// across calls.
    fn release(&mut self) {}

    /// A message of request `id` is begun, of which more than one segment is to be built or whose
    /// answer is awaited. It has this MSN on its queue: a Terminate of the peer may name it.
    fn begun(&mut self, id: u32, msn: u32) {
        let _ = (id, msn);
    }

    /// The next request, `id`, is in the transmit queue, whole; its last message has this MSN.
    fn built(&mut self, id: u32, msn: u32);

    /// Appends `range` of the payload of request `id`. As provided, of what
    /// [`StreamHost::request_payload`] returns.
    ///
    /// # Errors
    /// [`LocalError::Protection`].
    fn copy_request(&mut self, id: u32, range: Range<u32>, out: &mut Vec<u8>) -> Result<(), LocalError> {
        let mut at = range.start;
        while at < range.end {
            let payload = self.request_payload(id, at, range.end - at)?;
            payload.append_to(0..payload.len(), out).map_err(|SourceGone| LocalError::Protection)?;
            at += payload.len() as u32;
        }
        Ok(())
    }

    /// The `len` bytes from `offset` on of the payload of request `id`, or the first of them if
    /// they lie in several pieces.
    ///
    /// # Errors
    /// [`LocalError::Protection`].
    fn request_payload(&mut self, id: u32, offset: u32, len: u32) -> Result<Self::Payload<'_>, LocalError>;

    /// Executes a request that sends nothing ([`crate::Op::Local`]), and completes it. As provided,
    /// there are no such requests.
    ///
    /// # Errors
    /// [`LocalError`].
    fn execute_local(&mut self, id: u32) -> Result<(), LocalError> {
        let _ = id;
        Err(LocalError::GivenUp)
    }

    /// Completes a request with an error, as the peer does not have the extension that it needs:
    /// `missing` says which. Nothing of it was sent, and the stream goes on with the next one. As
    /// provided, the stream ends.
    ///
    /// # Errors
    /// [`LocalError`].
    fn refuse(&mut self, id: u32, missing: &'static str) -> Result<(), LocalError> {
        let _ = id;
        Err(LocalError::Unsupported(missing))
    }

    /// Places a part of the answer to a Read or an atomic at byte `offset` of the memory of request
    /// `id`. The answers come in the order of the requests.
    ///
    /// # Errors
    /// [`LocalError::Protection`].
    fn place_answer(&mut self, id: u32, offset: u32, payload: ResponsePart<'_>) -> Result<(), LocalError>;

    /// The Read or atomic `id` has its whole answer: it completes, after its STag (if any) was
    /// invalidated.
    ///
    /// # Errors
    /// [`LocalError`].
    fn answered(&mut self, id: u32, invalidate: Option<STag>) -> Result<(), LocalError>;

    /// TCP has taken the last byte of the Writes and Sends that `ids` yields, or the peer has
    /// acknowledged it: they complete.
    ///
    /// # Errors
    /// [`LocalError::CqOverflow`].
    fn sent(&mut self, ids: impl Iterator<Item = u32>) -> Result<(), LocalError>;

    /// The peer has placed every Write and Send up to request `id`: they complete
    /// ([`crate::RdmapConfig::acknowledged`]).
    ///
    /// # Errors
    /// [`LocalError::CqOverflow`].
    fn acknowledged(&mut self, id: u32) -> Result<(), LocalError>;

    /// `bytes` of payload were cut into FPDUs or placed, and `messages` completed by them. Read
    /// Responses and answers to atomics count, not their requests. Writes and Reads without payload
    /// do not count: the stream has such of its own. As provided, nothing is counted.
    #[inline(always)]
    fn count(&mut self, traffic: Traffic, messages: u32, bytes: u64) {
        let _ = (traffic, messages, bytes);
    }

    /// The stream waits, once more than before: see [`Wait`]. As provided, nothing is counted.
    #[inline(always)]
    fn count_wait(&mut self, wait: Wait) {
        let _ = wait;
    }

    /// Appends `range` of memory that waits in the transmit queue. False: it is gone. As provided,
    /// it is: a host whose payloads are never stable has no memory there.
    fn copy_memory(&mut self, memory: &Self::Memory, range: Range<usize>, out: &mut Vec<u8>) -> bool {
        let _ = (memory, range, out);
        false
    }
}

/// Length of an atomic's operand.
pub(crate) const ATOMIC_BYTES: u32 = 8;

/// Kind of payload that [`StreamHost::count`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// A Send, or Immediate Data, which counts as a Send without payload.
    SendSent,
    /// A Send of the peer.
    SendReceived,
    /// An RDMA Write.
    WriteSent,
    /// An RDMA Write of the peer.
    WriteReceived,
    /// A Read Response.
    ReadSent,
    /// A Read Response of the peer.
    ReadReceived,
    /// An answer to an atomic of the peer: eight bytes.
    AtomicSent,
    /// The peer's answer to an atomic.
    AtomicReceived,
}

/// Reason for which a stream waits ([`StreamHost::count_wait`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The next request is a Read or an atomic, and as many are outstanding as ORD allows.
    Credit,
    /// A Send came for which no receive is posted.
    Receive,
}

/// Bytes of a [`Payload`] that were there when it was looked up are not any more: a program has
/// unmapped them meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory of a payload is gone")]
pub struct SourceGone;

/// Memory that was looked up and checked. Its bytes may change while they are read if
/// [`Payload::is_stable`] is false.
pub trait Payload {
    /// See [`StreamHost::Memory`].
    type Memory;

    /// Bytes; more than none.
    fn len(&self) -> usize;

    /// Returns whether there is no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether these bytes are not written before the request completes: then they may be
    /// sent from their memory, and a CRC that was computed over them stays right.
    fn is_stable(&self) -> bool;

    /// Appends the bytes of `range`.
    ///
    /// # Errors
    /// [`SourceGone`]: some of them are not there, and none is appended.
    fn append_to(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceGone>;

    /// `crc`, updated with the bytes of `range`.
    ///
    /// # Errors
    /// [`SourceGone`]: some of them are not there.
    fn update_crc(&self, range: Range<usize>, crc: Crc32c) -> Result<Crc32c, SourceGone>;

    /// Names the memory, to be sent from where it lies.
    fn to_memory(&self) -> Self::Memory;
}

/// Bytes that are copied into the FPDU: for a host that lends its memory for the time of a call
/// only.
impl Payload for &[u8] {
    type Memory = Vec<u8>;

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn is_stable(&self) -> bool {
        false
    }

    fn append_to(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceGone> {
        out.extend_from_slice(&self[range]);
        Ok(())
    }

    fn update_crc(&self, range: Range<usize>, crc: Crc32c) -> Result<Crc32c, SourceGone> {
        Ok(crc.update(&self[range]))
    }

    fn to_memory(&self) -> Vec<u8> {
        self.to_vec()
    }
}

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponsePart<'a> {
    /// Bytes of a Read Response.
    Read(Verified<'a>),
    /// Value before an atomic operation, in the byte order of this machine.
    Atomic(u64),
}

/// A message that has come for a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Kind of the message.
    pub kind: ReceivedKind,
    /// The peer asked for a solicited event.
    pub solicited: bool,
    /// The STag that it invalidated.
    pub invalidated: Option<STag>,
    /// True if the peer waits for a placement acknowledgement of this message. A program that may
    /// exit as soon as it has seen the message is to see it only after
    /// [`crate::RdmapStream::take_acknowledged`] has counted it.
    pub awaits_ack: bool,
}

/// Kind of a message that takes a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedKind {
    /// A Send.
    Send {
        /// Bytes placed.
        len: u32,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// Immediate Data (RFC 7306 section 6).
    Immediate {
        /// The immediate.
        imm: u32,
        /// Bytes of the Write in front of it, 0 if there was none.
        write_len: u32,
    },
}

/// Reason why a receive fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The message is longer.
    #[error("the message of at least {message} bytes is longer than the receive")]
    TooLong {
        /// Length of the message, as far as it has arrived.
        message: u32,
    },
    /// The memory of the receive is gone.
    #[error("local memory protection error")]
    Protection,
}
