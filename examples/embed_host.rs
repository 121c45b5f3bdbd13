//! What `embed_stream` and `embed_smoltcp` have in common: a host with the memory, the requests and the receives of one end, and what
//! the two ends say to each other.

use std::error::Error;
use uiw_ddp::STag;
use uiw_mpa::Verified;
use uiw_rdmap::{AtomicRequest, TerminateReason};
use uiw_stream::{
    AccessError, Answer, AtomicError, Config, ConnError, Ended, Event, Host, LocalError, Op, PeerKind,
};
use uiw_stream::{ReceiveError, Received, Remote, Request, Stream, Time};

pub(crate) type AnyError = Box<dyn Error + Send + Sync>;

/// The memory of the responder, and an STag that names none.
pub(crate) const MEMORY: STag = STag(0x1234);
pub(crate) const SINK: STag = STag(0xFFFF_FF00);

/// Memory, requests and receives of one end.
#[derive(Default)]
pub(crate) struct Peer {
    memory: Vec<u8>,
    /// Every request, with its payload or the place of its answer. The stream has built this many of them.
    requests: Vec<(Request, Vec<u8>)>,
    built: usize,
    completed: Vec<u32>,
    message: Vec<u8>,
    messages: Vec<String>,
    kind: Option<PeerKind>,
    ended: Option<Box<Ended>>,
}

impl Peer {
    fn post(&mut self, op: Op, payload: &[u8], fence: bool) {
        let (id, len) = (self.requests.len() as u32, payload.len() as u32);
        let request = Request { id, op, len, fence, solicited: false, inline: false };
        self.requests.push((request, payload.to_vec()));
    }

    /// RFC 5041 section 7.1: STag and range are checked before a byte is touched.
    fn range(&mut self, stag: STag, to: u64, len: usize) -> Result<&mut [u8], AccessError> {
        let end = to.checked_add(len as u64).ok_or(AccessError::ToWrap)?;
        if stag != MEMORY {
            return Err(AccessError::InvalidStag);
        }
        self.memory.get_mut(to as usize..end as usize).ok_or(AccessError::BaseOrBounds)
    }
}

impl Host for Peer {
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
    fn receive(&mut self, _: Received) -> Result<(), LocalError> {
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
    fn place_answer(&mut self, id: u32, offset: u32, answer: Answer<'_>) -> Result<(), LocalError> {
        let place = &mut self.requests[id as usize].1[offset as usize..];
        match answer {
            Answer::Read(bytes) => place[..bytes.len()].copy_from_slice(&bytes),
            Answer::Atomic(old) => place.copy_from_slice(&old.to_ne_bytes()),
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

impl Peer {
    /// The end with the memory: 56 bytes and a counter.
    pub(crate) fn responder() -> Self {
        Self { memory: [vec![0; 56], 37u64.to_ne_bytes().to_vec()].concat(), ..Self::default() }
    }

    /// The responder offers its memory and greets, the initiator uses the memory.
    pub(crate) fn on_event(
        &mut self,
        event: Event,
        stream: &mut Stream<Vec<u8>>,
        now: Time,
    ) -> Result<(), AnyError> {
        match event {
            Event::Requested(_) => drop(stream.accept(Config::default(), &MEMORY.0.to_be_bytes(), now)?),
            Event::Established(with) if stream.is_initiator() => self.use_memory(&with.private_data)?,
            Event::Established(_) => self.post(Op::Send, b"welcome", false),
            Event::Peer(kind) => self.kind = Some(kind),
            Event::Failed(failure) => return Err(failure.into()),
            Event::Ended(how) => self.ended = Some(how),
            Event::Reconnect | Event::Drained => {}
        }
        stream.doorbell();
        Ok(())
    }

    /// Every operation, and behind them all a Write that breaks a rule.
    fn use_memory(&mut self, stag: &[u8]) -> Result<(), AnyError> {
        let stag = STag(u32::from_be_bytes(stag.try_into()?));
        let at = |to| Remote { stag, to };
        self.post(Op::Write { remote: at(8) }, b"placed by a Write", false);
        self.post(Op::Read { remote: at(8), invalidate: None }, &[0; 17], false);
        self.post(Op::FetchAdd { remote: at(56), add: 5, mask: 0 }, &[0; 8], false);
        self.post(Op::Send, b"look", false);
        self.post(Op::Write { remote: at(60) }, b"beyond", true);
        Ok(())
    }
}

/// Prints what happened, and panics if anything of it is wrong.
pub(crate) fn report(initiator: &Peer, responder: &Peer) {
    for (name, peer) in [("initiator", initiator), ("responder", responder)] {
        let error = &peer.ended.as_ref().expect("the stream has ended").error;
        println!("{name}: {:?}\n{name}: received {:?}, {error}", peer.kind, peer.messages);
        assert!(matches!(peer.kind, Some(PeerKind::Capable(_))), "both have every extension");
    }
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    let (read, before) = (&initiator.requests[1].1, number(&initiator.requests[2].1));
    let (written, after) = (&responder.memory[8..25], number(&responder.memory[56..]));
    println!("initiator: read {:?}; the counter was {before}, now is {after}", String::from_utf8_lossy(read));
    assert_eq!((written, &read[..]), (&b"placed by a Write"[..], &b"placed by a Write"[..]));
    assert_eq!((before, after), (37, 42));
    assert_eq!((&*initiator.messages, &*responder.messages), (&["welcome".into()][..], &["look".into()][..]));
    let mut completed = initiator.completed.clone();
    completed.sort_unstable();
    assert_eq!((&*completed, &*responder.completed), (&[0, 1, 2, 3, 4][..], &[0][..]));
    let Some(ConnError::Terminated(terminate, _)) = initiator.ended.as_ref().map(|ended| &ended.error) else {
        panic!("the initiator got no Terminate")
    };
    assert_eq!(terminate.reason(), TerminateReason::TaggedBaseOrBounds);
}
