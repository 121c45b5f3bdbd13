//! A host whose memory lies between secrets, and which checks what the stream may ask of it.

use std::collections::VecDeque;
use std::ops::Range;

use ::stream::{
    AccessError, Answer, AtomicError, Host, LocalError, Op, Payload, ReceiveError, Received, Request,
};
use ddp::STag;
use mpa::{Crc32c, Verified};
use rdmap::AtomicRequest;

/// The STag of [`FuzzHost::memory`].
pub(super) const MEMORY: STag = STag(0x0001_4D00);
/// Bytes of memory that the peer may use.
pub(super) const LEN: usize = 40_000;
/// Stands behind all memory, and never comes from a peer.
pub(super) const SECRET: [u8; 16] = *b"\xC3\x5ASECRET-BYTES\xA5\x3C";

#[derive(Debug)]
struct Posted {
    request: Request,
    /// The payload, or the place of the answer; secrets follow.
    bytes: Vec<u8>,
    completions: u32,
}

/// Memory, queues and completions.
#[derive(Debug)]
pub(super) struct FuzzHost {
    memory: Vec<u8>,
    posted: Vec<Posted>,
    built: usize,
    receives: VecDeque<u32>,
    /// Length of the receive that was begun, and bytes placed.
    receiving: Option<(u32, u32)>,
    /// The host was asked to flush, or has released its queues: the stream must not use them.
    pub(super) over: bool,
    pub(super) detached: bool,
    /// The memory of requests and receives, and what waits in the transmit queue, was deregistered.
    pub(super) deregistered: bool,
    pub(super) cq_full: bool,
    pub(super) stable: bool,
    pub(super) element: usize,
}

pub(super) struct Source<'a> {
    bytes: &'a [u8],
    stable: bool,
}

fn guarded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(SECRET);
    bytes
}

impl Payload for Source<'_> {
    type Memory = Vec<u8>;

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn is_stable(&self) -> bool {
        self.stable
    }

    fn append_to(&self, range: Range<usize>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[range]);
    }

    fn update_crc(&self, range: Range<usize>, crc: Crc32c) -> Crc32c {
        crc.update(&self.bytes[range])
    }

    fn to_memory(&self) -> Vec<u8> {
        assert!(self.stable, "memory that may change is copied");
        guarded(self.bytes.to_vec())
    }
}

impl FuzzHost {
    pub(super) fn new(element: usize, stable: bool) -> Self {
        Self {
            memory: guarded(vec![0x4D; LEN]),
            posted: Vec::new(),
            built: 0,
            receives: VecDeque::new(),
            receiving: None,
            over: false,
            detached: false,
            deregistered: false,
            cq_full: false,
            stable,
            element,
        }
    }

    pub(super) fn post(&mut self, op: Op, len: u32, flags: u8) {
        let id = self.posted.len() as u32;
        let (fence, solicited, inline) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0 && !op.needs_ord());
        let request = Request { id, op, len, fence, solicited, inline };
        let bytes = guarded(vec![0x50; len as usize]);
        self.posted.push(Posted { request, bytes, completions: 0 });
    }

    pub(super) fn post_receive(&mut self, len: u32) {
        self.receives.push_back(len);
    }

    /// Every request has completed at most once, and those that were not completed are flushed.
    pub(super) fn check(&self, flushed: bool) {
        for posted in &self.posted {
            assert!(posted.completions <= 1, "{:?} completes twice", posted.request);
            assert!(
                flushed || posted.completions == 1 || self.built == 0,
                "{:?} is forgotten",
                posted.request
            );
            assert!(posted.bytes.ends_with(&SECRET), "bytes behind the answer were written");
        }
        assert!(self.memory.ends_with(&SECRET), "bytes behind the memory were written");
    }

    fn asked(&self) {
        assert!(!self.over && !self.detached, "asked behind the end");
    }

    fn complete(&mut self, id: u32) -> Result<(), LocalError> {
        self.asked();
        assert!((id as usize) < self.built, "{id} completes before it is built");
        if self.cq_full {
            return Err(LocalError::CqOverflow);
        }
        self.posted[id as usize].completions += 1;
        Ok(())
    }

    fn range(&self, stag: STag, to: u64, len: usize) -> Result<Range<usize>, AccessError> {
        assert!(len > 0, "no byte is no access");
        if stag != MEMORY || self.detached {
            return Err(AccessError::InvalidStag);
        }
        let end = to.checked_add(len as u64).ok_or(AccessError::ToWrap)?;
        if end > LEN as u64 {
            return Err(AccessError::BaseOrBounds);
        }
        Ok(to as usize..end as usize)
    }

    fn local(&self) -> Result<(), LocalError> {
        self.asked();
        if self.deregistered { Err(LocalError::Protection) } else { Ok(()) }
    }
}

impl Host for FuzzHost {
    type Memory = Vec<u8>;
    type Payload<'a> = Source<'a>;

    fn write(&mut self, stag: STag, to: u64, payload: Verified<'_>) -> Result<(), AccessError> {
        self.asked();
        let range = self.range(stag, to, payload.len())?;
        self.memory[range].copy_from_slice(&payload);
        Ok(())
    }

    fn read_source(&mut self, stag: STag, to: u64, len: u32) -> Result<Source<'_>, AccessError> {
        assert!(!self.over, "asked behind the end");
        let range = self.range(stag, to, len as usize)?;
        let end = range.end.min(range.start + self.element - range.start % self.element);
        Ok(Source { bytes: &self.memory[range.start..end], stable: false })
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
        if stag.0 & 1 == 0 { Ok(()) } else { Err(AccessError::AccessRights) }
    }

    fn begin_receive(&mut self) -> Option<u32> {
        self.asked();
        assert!(self.receiving.is_none(), "one receive at a time");
        let len = self.receives.pop_front()?;
        self.receiving = Some((len, 0));
        Some(len)
    }

    fn place(&mut self, offset: u32, payload: Verified<'_>) -> Result<(), LocalError> {
        self.local()?;
        let (len, placed) = self.receiving.as_mut().expect("a receive was begun");
        assert_eq!(offset, *placed, "segments come in order");
        *placed += payload.len() as u32;
        assert!(*placed <= *len, "beyond the receive");
        Ok(())
    }

    fn receive(&mut self, _: Received) -> Result<(), LocalError> {
        self.asked();
        assert!(self.receiving.take().is_some(), "a receive was begun");
        if self.cq_full { Err(LocalError::CqOverflow) } else { Ok(()) }
    }

    fn fail_receive(&mut self, _: ReceiveError) {
        self.asked();
        assert!(self.receiving.take().is_some(), "a receive was begun");
    }

    fn next_request(&mut self) -> Option<Request> {
        self.asked();
        self.posted.get(self.built).map(|posted| posted.request)
    }

    fn built(&mut self, id: u32, _: u32) {
        self.asked();
        assert_eq!(id as usize, self.built, "built in order");
        self.built += 1;
    }

    fn request_payload(&mut self, id: u32, offset: u32, len: u32) -> Result<Source<'_>, LocalError> {
        self.local()?;
        let posted = &self.posted[id as usize];
        assert!(len > 0 && offset.checked_add(len).is_some_and(|end| end <= posted.request.len));
        let (start, end) = (offset as usize, (offset + len) as usize);
        let end = end.min(start + self.element - start % self.element);
        Ok(Source { bytes: &posted.bytes[start..end], stable: self.stable })
    }

    fn execute_local(&mut self, id: u32) -> Result<(), LocalError> {
        self.built(id, 0);
        self.complete(id)
    }

    fn place_answer(&mut self, id: u32, offset: u32, payload: Answer<'_>) -> Result<(), LocalError> {
        self.local()?;
        let posted = &mut self.posted[id as usize];
        let place = &mut posted.bytes[..posted.request.len as usize][offset as usize..];
        match payload {
            Answer::Read(part) => place[..part.len()].copy_from_slice(&part),
            Answer::Atomic(before) => place[..8].copy_from_slice(&before.to_ne_bytes()),
        }
        Ok(())
    }

    fn answered(&mut self, id: u32, _: Option<STag>) -> Result<(), LocalError> {
        self.complete(id)
    }

    fn sent(&mut self, mut ids: impl Iterator<Item = u32>) -> Result<(), LocalError> {
        ids.try_for_each(|id| self.complete(id))
    }

    fn acknowledged(&mut self, id: u32) -> Result<(), LocalError> {
        for n in 0..=id {
            let posted = &self.posted[n as usize];
            if posted.completions == 0 && !posted.request.op.needs_ord() {
                self.complete(n)?;
            }
        }
        Ok(())
    }

    fn copy_memory(&mut self, memory: &Vec<u8>, range: Range<usize>, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&memory[range]);
        !self.deregistered
    }
}
