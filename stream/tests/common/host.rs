//! Test host that consists of a few vectors and checks the stream's requests. The tests and the
//! fuzz target `stream` use it.

use std::collections::VecDeque;
use std::ops::Range;
use uiw_ddp::STag;
use uiw_mpa::{Crc32c, Verified};
use uiw_rdmap::AtomicRequest;
use uiw_stream::{
    AccessError, AtomicError, LocalError, Op, Payload, ReceiveError, ReceivedMessage, Request,
    RequestRefusal, ResponsePart, SourceGone, StreamHost,
};

/// STag of [`TestHost::memory`].
pub(crate) const MEMORY: STag = STag(0x4D00);

/// Posted request.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) request: Request,
    /// Payload, or memory for the bytes of the answer; the guard follows.
    pub(crate) bytes: Vec<u8>,
    pub(crate) msn: Option<u32>,
    pub(crate) completions: u32,
}

/// Memory, queues and completions of one end.
#[derive(Debug)]
pub(crate) struct TestHost {
    /// Memory that the peer can access; the guard follows.
    pub(crate) memory: Vec<u8>,
    /// Bytes after each block of memory, which no operation may send or change.
    guard: &'static [u8],
    pub(crate) requests: Vec<Posted>,
    /// Number of the first request, and the number of requests that were built.
    pub(crate) first_id: u32,
    pub(crate) built: usize,
    /// Completed requests, in the order of their completions.
    pub(crate) completed: Vec<u32>,
    /// Refused requests with the reason.
    pub(crate) refused: Vec<(u32, RequestRefusal)>,
    /// Lengths of posted receives.
    pub(crate) receives: VecDeque<u32>,
    receiving: Option<(u32, Vec<u8>)>,
    pub(crate) received: Vec<(ReceivedMessage, Vec<u8>)>,
    pub(crate) failed_receives: Vec<ReceiveError>,
    pub(crate) invalidated: Vec<STag>,
    /// STags that the peer may invalidate.
    pub(crate) may_invalidate: Vec<STag>,
    /// True if the stream has ended or was detached, so it must not access the queues.
    pub(crate) over: bool,
    pub(crate) detached: bool,
    /// Size in bytes of the elements that memory consists of.
    pub(crate) element: usize,
    /// Whether payloads may be sent directly from their memory.
    pub(crate) stable: bool,
    /// Whether long payloads are copied together with their CRC, instead of being sent from their
    /// memory.
    pub(crate) copies_with_crc: bool,
    /// Whether memory in the transmit queue was deregistered.
    pub(crate) gone: bool,
    /// Whether the memory of requests and receives was deregistered.
    pub(crate) no_local_memory: bool,
    /// Whether every completion queue is full.
    pub(crate) cq_full: bool,
    /// Range of bytes that the peer may not access.
    pub(crate) forbidden: Range<usize>,
    /// Number of requests that were built, and of pieces of memory that were read, since the stream
    /// released the host.
    pub(crate) unreleased: usize,
    /// Maximum of `unreleased` so far.
    pub(crate) max_unreleased: usize,
}

pub(crate) struct Source<'a> {
    bytes: &'a [u8],
    stable: bool,
    guard: &'static [u8],
}

fn guarded(bytes: &[u8], guard: &[u8]) -> Vec<u8> {
    [bytes, guard].concat()
}

impl Payload for Source<'_> {
    type Memory = Vec<u8>;

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn is_stable(&self) -> bool {
        self.stable
    }

    fn append_to(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceGone> {
        out.extend_from_slice(&self.bytes[range]);
        Ok(())
    }

    fn update_crc(&self, range: Range<usize>, crc: Crc32c) -> Result<Crc32c, SourceGone> {
        Ok(crc.update(&self.bytes[range]))
    }

    fn to_memory(&self) -> Vec<u8> {
        assert!(self.stable, "memory that may change is copied");
        guarded(self.bytes, self.guard)
    }
}

impl TestHost {
    pub(crate) fn new() -> Self {
        Self::with_memory(1 << 18, &[])
    }

    /// Creates a host with `len` bytes that the peer may access, and with `guard` after each block
    /// of memory.
    pub(crate) fn with_memory(len: usize, guard: &'static [u8]) -> Self {
        Self {
            memory: guarded(&vec![0; len], guard),
            guard,
            requests: Vec::new(),
            first_id: 0,
            built: 0,
            completed: Vec::new(),
            refused: Vec::new(),
            receives: VecDeque::new(),
            receiving: None,
            received: Vec::new(),
            failed_receives: Vec::new(),
            invalidated: Vec::new(),
            may_invalidate: Vec::new(),
            over: false,
            element: usize::MAX,
            stable: true,
            copies_with_crc: true,
            gone: false,
            no_local_memory: false,
            cq_full: false,
            forbidden: 0..0,
            unreleased: 0,
            max_unreleased: 0,
            detached: false,
        }
    }

    pub(crate) fn post(&mut self, op: Op, payload: &[u8]) -> u32 {
        self.post_with(op, payload, |_| {})
    }

    pub(crate) fn post_with(
        &mut self,
        op: Op,
        payload: &[u8],
        change: impl FnOnce(&mut Request),
    ) -> u32 {
        let id = self.first_id.wrapping_add(self.requests.len() as u32);
        let mut request = Request {
            id,
            op,
            len: payload.len() as u32,
            fence: false,
            solicited: false,
            inline: false,
        };
        change(&mut request);
        self.requests.push(Posted {
            request,
            bytes: guarded(payload, self.guard),
            msn: None,
            completions: 0,
        });
        id
    }

    pub(crate) fn get(&mut self, id: u32) -> &mut Posted {
        &mut self.requests[id.wrapping_sub(self.first_id) as usize]
    }

    fn asked(&self) {
        assert!(!self.over && !self.detached, "asked behind the end");
    }

    fn complete(&mut self, id: u32) -> Result<(), LocalError> {
        self.asked();
        if self.cq_full {
            return Err(LocalError::CqOverflow);
        }
        assert!(
            (id.wrapping_sub(self.first_id) as usize) < self.built,
            "{id} completes before it is built"
        );
        let posted = self.get(id);
        posted.completions += 1;
        assert_eq!(posted.completions, 1, "request {id} completes twice");
        self.completed.push(id);
        Ok(())
    }

    pub(crate) fn assert_completed_at_most_once(&self) {
        assert!(self.requests.iter().all(|posted| posted.completions <= 1));
    }

    /// Asserts that every request has completed.
    pub(crate) fn assert_all_completed(&self) {
        let open: Vec<_> = self.requests.iter().filter(|posted| posted.completions != 1).collect();
        assert!(open.is_empty(), "{} requests, the first {:?}", open.len(), open[0].request);
    }

    pub(crate) fn assert_guards(&self) {
        let mut memory = self.requests.iter().map(|posted| &posted.bytes).chain([&self.memory]);
        assert!(
            memory.all(|bytes| bytes.ends_with(self.guard)),
            "bytes behind memory were written"
        );
    }

    pub(crate) fn range(
        &self,
        stag: STag,
        to: u64,
        len: usize,
    ) -> Result<Range<usize>, AccessError> {
        if stag != MEMORY || self.detached {
            return Err(AccessError::InvalidStag);
        }
        let end = to.checked_add(len as u64).ok_or(AccessError::ToWrap)?;
        if end > (self.memory.len() - self.guard.len()) as u64 {
            return Err(AccessError::BaseOrBounds);
        }
        let range = to as usize..end as usize;
        if range.start < self.forbidden.end && self.forbidden.start < range.end {
            return Err(AccessError::AccessRights);
        }
        Ok(range)
    }

    /// Returns the range that begins at `from` and stays within one element, with at most `len`
    /// bytes.
    fn in_element(&self, from: usize, len: usize) -> Range<usize> {
        let room = self.element - from % self.element;
        from..from + len.min(room)
    }

    fn check_local(&self) -> Result<(), LocalError> {
        self.asked();
        if self.no_local_memory { Err(LocalError::Protection) } else { Ok(()) }
    }
}

impl TestHost {
    fn note_use(&mut self) {
        self.unreleased += 1;
        self.max_unreleased = self.max_unreleased.max(self.unreleased);
    }
}

impl StreamHost for TestHost {
    type Memory = Vec<u8>;
    type Payload<'a> = Source<'a>;

    fn copies_with_crc(&self) -> bool {
        self.copies_with_crc
    }

    fn write(&mut self, stag: STag, to: u64, payload: Verified<'_>) -> Result<(), AccessError> {
        self.asked();
        assert!(!payload.is_empty(), "an empty Write names no memory");
        let range = self.range(stag, to, payload.len())?;
        self.memory[range].copy_from_slice(&payload);
        Ok(())
    }

    fn read_source(&mut self, stag: STag, to: u64, len: u32) -> Result<Source<'_>, AccessError> {
        assert!(!self.over, "asked behind the end");
        assert!(len > 0, "an empty Read names no memory");
        self.note_use();
        let range = self.range(stag, to, len as usize)?;
        let range = self.in_element(range.start, range.len());
        Ok(Source { bytes: &self.memory[range], stable: false, guard: self.guard })
    }

    fn atomic(&mut self, request: &AtomicRequest) -> Result<u64, AtomicError> {
        assert!(!self.over, "asked behind the end");
        let range = self.range(request.stag, request.to, 8)?;
        if !request.to.is_multiple_of(8) {
            return Err(AtomicError::Unaligned);
        }
        let field = &mut self.memory[range];
        let old = u64::from_ne_bytes((&*field).try_into().expect("eight bytes"));
        field.copy_from_slice(&request.apply(old).to_ne_bytes());
        Ok(old)
    }

    fn invalidate(&mut self, stag: STag) -> Result<(), AccessError> {
        self.asked();
        let place = self
            .may_invalidate
            .iter()
            .position(|may| *may == stag)
            .ok_or(AccessError::AccessRights)?;
        self.may_invalidate.remove(place);
        self.invalidated.push(stag);
        Ok(())
    }

    fn begin_receive(&mut self) -> Option<u32> {
        self.asked();
        assert!(self.receiving.is_none(), "one receive at a time");
        let len = self.receives.pop_front()?;
        self.receiving = Some((len, Vec::new()));
        Some(len)
    }

    fn place(&mut self, offset: u32, payload: Verified<'_>) -> Result<(), LocalError> {
        self.check_local()?;
        let (len, bytes) = self.receiving.as_mut().expect("a receive was begun");
        assert_eq!(offset as usize, bytes.len(), "segments of a message come in order");
        bytes.extend_from_slice(&payload);
        assert!(bytes.len() <= *len as usize, "beyond the receive");
        Ok(())
    }

    fn receive(&mut self, message: ReceivedMessage) -> Result<(), LocalError> {
        self.asked();
        let (_, bytes) = self.receiving.take().expect("a receive was begun");
        if self.cq_full {
            return Err(LocalError::CqOverflow);
        }
        self.received.push((message, bytes));
        Ok(())
    }

    fn fail_receive(&mut self, error: ReceiveError) {
        self.asked();
        assert!(self.receiving.take().is_some(), "a receive was begun");
        self.failed_receives.push(error);
    }

    fn next_request(&mut self) -> Option<Request> {
        self.asked();
        self.requests.get(self.built).map(|posted| posted.request)
    }

    fn is_awaited(&mut self, id: u32) -> bool {
        self.asked();
        self.requests.last().is_some_and(|posted| posted.request.id == id)
    }

    fn begun(&mut self, id: u32, msn: u32) {
        self.get(id).msn = Some(msn);
    }

    fn built(&mut self, id: u32, msn: u32) {
        self.asked();
        assert_eq!(id, self.first_id.wrapping_add(self.built as u32), "built in order");
        self.get(id).msn = Some(msn);
        self.built += 1;
        self.note_use();
    }

    fn release(&mut self) {
        self.unreleased = 0;
    }

    fn request_payload(
        &mut self,
        id: u32,
        offset: u32,
        len: u32,
    ) -> Result<Source<'_>, LocalError> {
        assert!(len > 0, "no memory is looked up for nothing");
        self.check_local()?;
        let range = self.in_element(offset as usize, len as usize);
        let (stable, guard) = (self.stable, self.guard);
        let posted = self.get(id);
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= posted.request.len), "beyond the payload");
        Ok(Source { bytes: &posted.bytes[range], stable, guard })
    }

    fn execute_local(&mut self, id: u32) -> Result<(), LocalError> {
        self.built(id, 0);
        self.complete(id)
    }

    fn refuse(&mut self, id: u32, refusal: RequestRefusal) -> Result<(), LocalError> {
        self.built(id, 0);
        self.refused.push((id, refusal));
        self.complete(id)
    }

    fn place_answer(
        &mut self,
        id: u32,
        offset: u32,
        payload: ResponsePart<'_>,
    ) -> Result<(), LocalError> {
        self.check_local()?;
        let posted = self.get(id);
        let bytes = &mut posted.bytes[offset as usize..posted.request.len as usize];
        match payload {
            ResponsePart::Read(part) => bytes[..part.len()].copy_from_slice(&part),
            ResponsePart::Atomic(before) => bytes.copy_from_slice(&before.to_ne_bytes()),
        }
        Ok(())
    }

    fn answered(&mut self, id: u32, invalidate: Option<STag>) -> Result<(), LocalError> {
        self.invalidated.extend(invalidate);
        self.complete(id)
    }

    fn sent(&mut self, ids: impl Iterator<Item = u32>) -> Result<(), LocalError> {
        ids.into_iter().try_for_each(|id| self.complete(id))
    }

    fn acknowledged(&mut self, id: u32) -> Result<(), LocalError> {
        let upto = id.wrapping_sub(self.first_id) as usize;
        let open: Vec<u32> = self.requests[..=upto]
            .iter()
            .filter(|posted| posted.completions == 0 && !posted.request.op.needs_ord())
            .map(|posted| posted.request.id)
            .collect();
        open.into_iter().try_for_each(|id| self.complete(id))
    }

    fn copy_memory(&mut self, memory: &Vec<u8>, range: Range<usize>, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&memory[range]);
        !self.gone
    }
}
