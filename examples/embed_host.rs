//! Host of `embed_stream` and `embed_smoltcp`: memory, requests and receives of one end.

use uiw::stream::{
    AccessError, AtomicError, AtomicRequest, LocalError, Op, PeerKind, ReceiveError,
    ReceivedMessage, Request, ResponsePart, STag, StreamEnd, StreamHost, Verified,
};

/// STag of the responder's memory.
pub(crate) const MEMORY: STag = STag(0x1234);

/// Memory, requests and receives of one end.
#[derive(Default)]
pub(crate) struct Peer {
    pub(crate) memory: Vec<u8>,
    /// All requests, each with its payload or the buffer for its answer. The stream has already
    /// built the first `built` ones.
    pub(crate) requests: Vec<(Request, Vec<u8>)>,
    pub(crate) built: usize,
    pub(crate) completed: Vec<u32>,
    pub(crate) message: Vec<u8>,
    pub(crate) messages: Vec<String>,
    pub(crate) kind: Option<PeerKind>,
    pub(crate) ended: Option<Box<StreamEnd>>,
}

impl Peer {
    pub(crate) fn post(&mut self, op: Op, payload: &[u8], fence: bool) {
        let (id, len) = (self.requests.len() as u32, payload.len() as u32);
        let request = Request { id, op, len, fence, solicited: false, inline: false };
        self.requests.push((request, payload.to_vec()));
    }

    /// Returns a range of the memory. STag and range are checked before any byte is accessed (RFC
    /// 5041 section 7.1).
    fn range(&mut self, stag: STag, to: u64, len: usize) -> Result<&mut [u8], AccessError> {
        let end = to.checked_add(len as u64).ok_or(AccessError::ToWrap)?;
        if stag != MEMORY {
            return Err(AccessError::InvalidStag);
        }
        self.memory.get_mut(to as usize..end as usize).ok_or(AccessError::BaseOrBounds)
    }
}

impl StreamHost for Peer {
    type Memory = Vec<u8>;
    type Payload<'a> = &'a [u8];

    fn write(&mut self, stag: STag, to: u64, bytes: Verified<'_>) -> Result<(), AccessError> {
        self.range(stag, to, bytes.len()).map(|place| place.copy_from_slice(&bytes))
    }
    fn read_source(&mut self, stag: STag, to: u64, len: u32) -> Result<&[u8], AccessError> {
        self.range(stag, to, len as usize).map(|source| &*source)
    }
    fn atomic(&mut self, request: &AtomicRequest) -> Result<u64, AtomicError> {
        let field = self.range(request.stag, request.to, 8)?;
        let old = u64::from_ne_bytes(field.try_into().map_err(|_| AtomicError::Unaligned)?);
        field.copy_from_slice(&request.apply(old).to_ne_bytes());
        Ok(old)
    }
    fn begin_receive(&mut self) -> Option<u32> {
        Some(4096)
    }
    fn place(&mut self, _: u32, bytes: Verified<'_>) -> Result<(), LocalError> {
        self.message.extend_from_slice(&bytes);
        Ok(())
    }
    fn receive(&mut self, _: ReceivedMessage) -> Result<(), LocalError> {
        self.messages.push(String::from_utf8_lossy(&self.message).into());
        self.message.clear();
        Ok(())
    }
    fn fail_receive(&mut self, _: ReceiveError) {}
    fn next_request(&mut self) -> Option<Request> {
        self.requests.get(self.built).map(|(request, _)| *request)
    }
    fn built(&mut self, _: u32, _: u32) {
        self.built += 1;
    }
    fn request_payload(&mut self, id: u32, offset: u32, len: u32) -> Result<&[u8], LocalError> {
        Ok(&self.requests[id as usize].1[offset as usize..][..len as usize])
    }
    fn place_answer(
        &mut self,
        id: u32,
        offset: u32,
        answer: ResponsePart<'_>,
    ) -> Result<(), LocalError> {
        let place = &mut self.requests[id as usize].1[offset as usize..];
        match answer {
            ResponsePart::Read(bytes) => place[..bytes.len()].copy_from_slice(&bytes),
            ResponsePart::Atomic(old) => place.copy_from_slice(&old.to_ne_bytes()),
        }
        Ok(())
    }
    fn answered(&mut self, id: u32, _: Option<STag>) -> Result<(), LocalError> {
        self.sent([id].into_iter())
    }
    fn acknowledged(&mut self, id: u32) -> Result<(), LocalError> {
        self.sent(self.completed.len() as u32..=id)
    }
    fn sent(&mut self, ids: impl Iterator<Item = u32>) -> Result<(), LocalError> {
        self.completed.extend(ids);
        Ok(())
    }
}
