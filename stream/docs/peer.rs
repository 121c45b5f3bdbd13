use std::collections::VecDeque;
use uiw_ddp::STag;
use uiw_mpa::Verified;
use uiw_stream::{
    AccessError, ResponsePart, RdmapConfig, Event, StreamHost, LocalError, Op, ReceiveError, ReceivedMessage, Request, RdmapStream, Time, Transmit,
};

/// STag of the memory that the peer can access.
const MEMORY: STag = STag(0x1234);

/// Memory, receives and requests of one end.
#[derive(Default)]
struct Peer {
    memory: Vec<u8>,
    /// Lengths of posted receives.
    receives: VecDeque<u32>,
    message: Vec<u8>,
    received: Vec<(ReceivedMessage, Vec<u8>)>,
    failed: Vec<ReceiveError>,
    /// Requests, with their payload or the buffer for their answer.
    requests: Vec<(Request, Vec<u8>)>,
    /// Number of requests that were built.
    built: usize,
    completed: Vec<u32>,
}

impl Peer {
    fn post(&mut self, op: Op, payload: &[u8]) {
        let (id, len) = (self.requests.len() as u32, payload.len() as u32);
        let request = Request { id, op, len, fence: false, solicited: false, inline: false };
        self.requests.push((request, payload.to_vec()));
    }

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
    fn begin_receive(&mut self) -> Option<u32> {
        self.receives.pop_front()
    }
    fn place(&mut self, _: u32, bytes: Verified<'_>) -> Result<(), LocalError> {
        self.message.extend_from_slice(&bytes);
        Ok(())
    }
    fn receive(&mut self, received: ReceivedMessage) -> Result<(), LocalError> {
        self.received.push((received, std::mem::take(&mut self.message)));
        Ok(())
    }
    fn fail_receive(&mut self, error: ReceiveError) {
        self.failed.push(error);
    }
    fn next_request(&mut self) -> Option<Request> {
        self.requests.get(self.built).map(|(request, _)| *request)
    }
    fn built(&mut self, _: u32, _: u32) {
        self.built += 1;
    }
    fn request_payload(&mut self, id: u32, offset: u32, len: u32) -> Result<&[u8], LocalError> {
        Ok(&self.requests[id as usize].1[offset as usize..][..len as usize])
    }
    fn place_answer(&mut self, id: u32, offset: u32, answer: ResponsePart<'_>) -> Result<(), LocalError> {
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

/// A stream, its host, and the events that it has reported.
struct End {
    stream: RdmapStream<Vec<u8>>,
    host: Peer,
    events: Vec<Event>,
}

impl End {
    fn new(stream: RdmapStream<Vec<u8>>) -> Self {
        Self { stream, host: Peer { memory: vec![0; 4096], ..Peer::default() }, events: Vec::new() }
    }

    /// Accepts every Request, and keeps all other events.
    fn take_events(&mut self, now: Time) {
        while let Some(event) = self.stream.poll_event() {
            match event {
                Event::Requested(_) => {
                    let accepted = self.stream.accept(RdmapConfig::default(), b"", now);
                    assert!(accepted.is_ok_and(|negotiated| negotiated.is_some()));
                }
                event => self.events.push(event),
            }
        }
    }
}

/// Returns an initiator and a responder in Full Operation.
fn established(now: Time) -> [End; 2] {
    let connect = RdmapStream::connect(RdmapConfig::default(), b"", STag(0x5100), 0x1234_5678, now).unwrap();
    let mut ends = [connect, RdmapStream::listen(RdmapConfig::default(), STag(0x5200), now)].map(End::new);
    ends[0].stream.handle_connected(now);
    carry(&mut ends, now);
    assert!(ends.iter().all(|end| end.stream.is_open()));
    ends
}

/// Carries the output of each end to the other one, as TCP does, until neither has any.
fn carry(ends: &mut [End; 2], now: Time) {
    let mut idle = 0;
    while idle < 2 {
        ends.reverse();
        let [to, from] = ends;
        let mut bytes = Vec::new();
        let mut fin = false;
        match from.stream.poll_transmit(&mut from.host, now) {
            Some(Transmit::Bytes(batch)) => batch.append_to(&mut bytes),
            Some(Transmit::Fin) => fin = true,
            None => {
                from.take_events(now);
                idle += 1;
                continue;
            }
        }
        idle = 0;
        from.stream.handle_sent(&mut from.host, bytes.len(), now);
        let mut at = 0;
        while at < bytes.len() {
            let used = to.stream.handle_bytes(&mut to.host, &mut bytes[at..], now);
            assert!(used > 0, "a receive is posted");
            at += used;
            to.take_events(now);
        }
        if fin {
            to.stream.handle_eof(&mut to.host, 0, now);
        }
        from.take_events(now);
        to.take_events(now);
    }
    // Restore the order: the initiator comes first.
    if !ends[0].stream.is_initiator() {
        ends.reverse();
    }
}
