//! Interface between a stream and the program around it: memory, queues, completions.

use crate::error::{AccessError, AtomicError, LocalError, RequestRefusal};
use crate::request::Request;
use alloc::vec::Vec;
use core::ops::Range;
use uiw_ddp::STag;
use uiw_mpa::Crc32c;
use uiw_mpa::Verified;
use uiw_rdmap::AtomicRequest;

/// The program around a stream: it provides the memory that the peer accesses and the queues of
/// requests and receives, and takes the completions.
///
/// The stream calls its host only within its own methods, on the thread that called them, and keeps
/// no returned value. Methods that are called for a segment of the peer check everything about the
/// memory themselves: the stream has only checked that the segment is valid at this position of the
/// stream. Only verified bytes can be written to the peer-accessible memory; other bytes do not
/// compile:
///
/// ```compile_fail,E0308
/// fn write_unverified(host: &mut impl uiw_stream::StreamHost, bytes: &[u8]) {
///     let _ = host.write(uiw_ddp::STag(1), 0, bytes);
/// }
/// ```
///
/// With [`Verified`] bytes, the same call compiles:
///
/// ```
/// # mod uiw { pub mod stream { pub use uiw_stream::*; pub use uiw_mpa::Verified; pub use uiw_ddp::STag; } }
/// fn write(host: &mut impl uiw::stream::StreamHost, bytes: uiw::stream::Verified<'_>) {
///     let _ = host.write(uiw::stream::STag(1), 0, bytes);
/// }
/// ```
///
/// The examples of this crate's other items use this host with one region of memory, and these
/// functions that carry bytes between two ends:
///
#[doc = concat!("```\n", include_str!("../docs/peer.rs"), "# fn main() { established(Time::default()); }\n```")]
pub trait StreamHost {
    /// Reference to memory whose bytes are in the transmit queue. While it exists, the memory must
    /// not be reused unnoticed.
    type Memory;
    /// Memory that was looked up and checked, for the duration of one call.
    type Payload<'a>: Payload<Memory = Self::Memory>
    where
        Self: 'a;

    /// Returns whether the stream carries unreliable messages, on which both ends have agreed by
    /// other means: a message that cannot be delivered is discarded, and the stream continues. By
    /// default, messages are reliable.
    #[inline(always)]
    fn is_unreliable(&self) -> bool {
        false
    }

    /// Returns whether the peer may write all of the `len` bytes at `to`. Called before the first
    /// segment of an unreliable Write is placed. By default, each segment is only checked when it
    /// arrives.
    ///
    /// # Errors
    /// The [`AccessError`] for which nothing of the Write is placed.
    fn check_write(&mut self, stag: STag, to: u64, len: u32) -> Result<(), AccessError> {
        let _ = (stag, to, len);
        Ok(())
    }

    /// Places a segment of an RDMA Write of the peer.
    ///
    /// # Errors
    /// The [`AccessError`] for which nothing was placed. The stream is terminated (RFC 5041 section
    /// 7.1), unless it is unreliable ([`StreamHost::is_unreliable`]).
    fn write(&mut self, stag: STag, to: u64, payload: Verified<'_>) -> Result<(), AccessError>;

    /// Returns the `len` bytes at `to` of the memory that the peer reads, or the first part of them
    /// if they are not contiguous.
    ///
    /// # Errors
    /// The [`AccessError`] for which one of the bytes may not be read. The stream is terminated: at
    /// the beginning of a Read, all of whose bytes are asked for, or later at the segment that
    /// contains the byte.
    fn read_source(
        &mut self,
        stag: STag,
        to: u64,
        len: u32,
    ) -> Result<Self::Payload<'_>, AccessError>;

    /// Executes an atomic of the peer ([`AtomicRequest::apply`]), and returns the value before it.
    /// By default, no memory allows atomics.
    ///
    /// # Errors
    /// The [`AtomicError`] for which the memory is unchanged. The stream is terminated.
    fn atomic(&mut self, request: &AtomicRequest) -> Result<u64, AtomicError> {
        let _ = request;
        Err(AccessError::AccessRights.into())
    }

    /// Invalidates the STag that a Send of the peer names. By default, the peer may not invalidate
    /// any STag.
    ///
    /// # Errors
    /// The [`AccessError`] for which the peer may not invalidate it. The stream is terminated.
    fn invalidate(&mut self, stag: STag) -> Result<(), AccessError> {
        let _ = stag;
        Err(AccessError::AccessRights)
    }

    /// Begins to fill the oldest posted receive, and returns its length. If it returns `None`,
    /// because no receive is posted, the stream is not read until
    /// [`crate::RdmapStream::receive_posted`] is called, or
    /// [`crate::RdmapConfig::no_receive_timeout`] has passed.
    fn begin_receive(&mut self) -> Option<u32>;

    /// Places a segment of a Send at `offset` of the current receive.
    ///
    /// # Errors
    /// [`LocalError::Protection`] if the memory of the receive is no longer valid,
    /// [`LocalError::ReceiveMemory`] if the host has no memory for the rest of the message.
    fn place(&mut self, offset: u32, payload: Verified<'_>) -> Result<(), LocalError>;

    /// Completes the current receive.
    ///
    /// # Errors
    /// [`LocalError::CqOverflow`] if the completion queue is full, or another error for which the
    /// stream ends.
    fn receive(&mut self, message: ReceivedMessage) -> Result<(), LocalError>;

    /// Completes the current receive with an error: it is too short for its message (`TooLong`), or
    /// its memory is no longer valid.
    fn fail_receive(&mut self, error: ReceiveError);

    /// Returns the oldest request that was not passed to [`StreamHost::built`], if it may be sent.
    /// The result stays the same until then.
    ///
    /// A host may keep locks and pins across calls until [`StreamHost::release`].
    fn next_request(&mut self) -> Option<Request>;

    /// Returns whether the program may be waiting for an answer to request `id`, which is then the
    /// only one in progress. Called once for each request, only with
    /// [`RdmapConfig::divides_long_messages`](crate::RdmapConfig::divides_long_messages).
    fn is_awaited(&mut self, id: u32) -> bool {
        let _ = id;
        false
    }

    /// Releases the locks and pins that the host has kept across calls, because the stream has
    /// completed a batch of work.
    fn release(&mut self) {}

    /// Reports that a message of request `id` was begun whose segments may be built over several
    /// calls, or whose response is awaited. `msn` is its MSN on its queue, by which a Terminate of
    /// the peer may name it.
    fn begun(&mut self, id: u32, msn: u32) {
        let _ = (id, msn);
    }

    /// Reports that the next request, `id`, is completely in the transmit queue. Its last message
    /// has this MSN.
    fn built(&mut self, id: u32, msn: u32);

    /// Appends `range` of the payload of request `id`. By default, uses
    /// [`StreamHost::request_payload`].
    ///
    /// # Errors
    /// [`LocalError::Protection`] if the memory is no longer valid.
    fn copy_request(
        &mut self,
        id: u32,
        range: Range<u32>,
        out: &mut Vec<u8>,
    ) -> Result<(), LocalError> {
        let mut at = range.start;
        while at < range.end {
            let payload = self.request_payload(id, at, range.end - at)?;
            payload
                .append_to(0..payload.len(), out)
                .map_err(|SourceGone| LocalError::Protection)?;
            at += payload.len() as u32;
        }
        Ok(())
    }

    /// Returns whether a copy and its CRC take less time in one pass
    /// ([`StreamHost::copy_request_with_crc`], [`Payload::append_with_crc`]).
    fn copies_with_crc(&self) -> bool {
        false
    }

    /// Like [`StreamHost::copy_request`], but also returns `crc` continued over the bytes that were
    /// appended.
    ///
    /// # Errors
    /// The errors of [`StreamHost::copy_request`].
    fn copy_request_with_crc(
        &mut self,
        id: u32,
        range: Range<u32>,
        out: &mut Vec<u8>,
        crc: Crc32c,
    ) -> Result<Crc32c, LocalError> {
        let start = out.len();
        self.copy_request(id, range, out)?;
        Ok(crc.update(&out[start..]))
    }

    /// Returns the `len` bytes at `offset` of the payload of request `id`, or the first part of
    /// them if they are not contiguous.
    ///
    /// # Errors
    /// [`LocalError::Protection`] if the memory is no longer valid.
    fn request_payload(
        &mut self,
        id: u32,
        offset: u32,
        len: u32,
    ) -> Result<Self::Payload<'_>, LocalError>;

    /// Executes a request that sends nothing ([`crate::Op::Local`]), and completes it. By default,
    /// there are no such requests.
    ///
    /// # Errors
    /// The [`LocalError`] that ends the stream.
    fn execute_local(&mut self, id: u32) -> Result<(), LocalError> {
        let _ = id;
        Err(LocalError::GivenUp)
    }

    /// Completes a request with an error because of `refusal`. Nothing of the request was sent, and
    /// the stream continues with the next one. By default, the stream ends.
    ///
    /// # Errors
    /// The [`LocalError`] that ends the stream.
    fn refuse(&mut self, id: u32, refusal: RequestRefusal) -> Result<(), LocalError> {
        let _ = id;
        Err(refusal.into())
    }

    /// Places a part of the response to a Read or an atomic at `offset` of the memory of request
    /// `id`. Responses arrive in the order of the requests.
    ///
    /// # Errors
    /// [`LocalError::Protection`] if the memory is no longer valid.
    fn place_answer(
        &mut self,
        id: u32,
        offset: u32,
        payload: ResponsePart<'_>,
    ) -> Result<(), LocalError>;

    /// Completes the Read or atomic `id`, whose response has arrived completely. Before that, the
    /// host invalidates the STag `invalidate`, if there is one.
    ///
    /// # Errors
    /// The [`LocalError`] that ends the stream.
    fn answered(&mut self, id: u32, invalidate: Option<STag>) -> Result<(), LocalError>;

    /// Completes the Writes and Sends in `ids`, whose last byte TCP has accepted or the peer has
    /// acknowledged.
    ///
    /// # Errors
    /// [`LocalError::CqOverflow`] if the completion queue is full.
    fn sent(&mut self, ids: impl Iterator<Item = u32>) -> Result<(), LocalError>;

    /// Completes all Writes and Sends up to request `id`, because the peer has placed them
    /// ([`crate::RdmapConfig::acknowledged`]).
    ///
    /// # Errors
    /// [`LocalError::CqOverflow`] if the completion queue is full.
    fn acknowledged(&mut self, id: u32) -> Result<(), LocalError>;

    /// Counts `bytes` of payload that were sent or placed, and `messages` that were completed by
    /// them. Responses to Reads and atomics count, but not their requests. Writes and Reads without
    /// payload do not count, because the stream itself sends some. By default, nothing is counted.
    #[inline(always)]
    fn count(&mut self, traffic: Traffic, messages: u32, bytes: u64) {
        let _ = (traffic, messages, bytes);
    }

    /// Counts that the stream has to wait (see [`Wait`]). By default, nothing is counted.
    #[inline(always)]
    fn count_wait(&mut self, wait: Wait) {
        let _ = wait;
    }

    /// Appends `range` of memory that is in the transmit queue. Returns false if the memory is no
    /// longer valid. By default, returns false, because a host whose payloads are never stable has
    /// no memory there.
    fn copy_memory(
        &mut self,
        memory: &Self::Memory,
        range: Range<usize>,
        out: &mut Vec<u8>,
    ) -> bool {
        let _ = (memory, range, out);
        false
    }
}

/// Length of the operand of an atomic, in bytes.
pub(crate) const ATOMIC_BYTES: u32 = 8;

/// Kind of traffic that [`StreamHost::count`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Sends, and Immediate Data, which counts as a Send without payload.
    SendSent,
    /// Sends of the peer.
    SendReceived,
    /// RDMA Writes.
    WriteSent,
    /// RDMA Writes of the peer.
    WriteReceived,
    /// Read Responses.
    ReadSent,
    /// Read Responses of the peer.
    ReadReceived,
    /// Responses to atomics of the peer, of eight bytes each.
    AtomicSent,
    /// Responses of the peer to atomics.
    AtomicReceived,
}

/// Reason why a stream waits ([`StreamHost::count_wait`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The next request is a Read or an atomic, and ORD allows no other outstanding one.
    Credit,
    /// A Send has arrived, and no receive is posted.
    Receive,
}

/// Bytes of a [`Payload`] that were valid when it was looked up no longer are, because the program
/// has unmapped them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory of a payload is gone")]
pub struct SourceGone;

/// Memory that was looked up and checked. Its bytes may change while they are read, unless
/// [`Payload::is_stable`] returns true.
pub trait Payload {
    /// See [`StreamHost::Memory`].
    type Memory;

    /// Returns the number of bytes. It is not 0.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the bytes do not change before the request completes. Then they may be sent
    /// from their memory, and a CRC that was computed over them stays correct.
    fn is_stable(&self) -> bool;

    /// Appends the bytes of `range`.
    ///
    /// # Errors
    /// [`SourceGone`] if some of them are no longer valid; none is appended.
    fn append_to(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceGone>;

    /// Appends the bytes of `range`, and returns `crc` continued over the bytes that were appended.
    ///
    /// # Errors
    /// [`SourceGone`] if some of them are no longer valid; none is appended.
    fn append_with_crc(
        &self,
        range: Range<usize>,
        out: &mut Vec<u8>,
        crc: Crc32c,
    ) -> Result<Crc32c, SourceGone> {
        let start = out.len();
        self.append_to(range, out)?;
        Ok(crc.update(&out[start..]))
    }

    /// Continues `crc` over the bytes of `range`.
    ///
    /// # Errors
    /// [`SourceGone`] if some of them are no longer valid.
    fn update_crc(&self, range: Range<usize>, crc: Crc32c) -> Result<Crc32c, SourceGone>;

    /// Returns a reference to the memory, to send the bytes from there.
    fn to_memory(&self) -> Self::Memory;
}

/// Payload that is copied into the FPDU, for a host that lends its memory only for the duration of
/// a call.
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

/// Part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponsePart<'a> {
    /// Bytes of a Read Response.
    Read(Verified<'a>),
    /// Value before an atomic operation, in the byte order of this machine.
    Atomic(u64),
}

/// Message that has arrived for a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Kind of the message.
    pub kind: ReceivedKind,
    /// True if the peer has requested a solicited event.
    pub solicited: bool,
    /// STag that the message has invalidated.
    pub invalidated: Option<STag>,
    /// True if the peer waits for a placement acknowledgement of this message. A program that may
    /// exit as soon as it has seen the message should see it only after
    /// [`crate::RdmapStream::take_acknowledged`] has counted it.
    pub awaits_ack: bool,
}

/// Kind of a message that takes a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedKind {
    /// A Send.
    Send {
        /// Number of bytes that were placed.
        len: u32,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// Immediate Data (RFC 7306 section 6).
    Immediate {
        /// Immediate data.
        imm: u32,
        /// Number of bytes of the Write before it, 0 if there was none.
        write_len: u32,
    },
}

/// Reason why a receive fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The message is longer than the receive.
    #[error("the message of at least {message} bytes is longer than the receive")]
    TooLong {
        /// Length of the message, as far as it has arrived.
        message: u32,
    },
    /// The memory of the receive is no longer valid.
    #[error("local memory protection error")]
    Protection,
}
