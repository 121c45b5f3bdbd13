//! What both ends do at the same time: requests at random, and checks of what one connection would guarantee.
//!
//! Each end has memory for the other one, in slots that are written once. A message that an end receives says how far its peer is: all
//! slots of earlier Writes are then there, whole. The receiver overwrites them, so that a Write that is placed again, or late, shows.

use std::cell::RefCell;

use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;
use uiw_llp::sim::Random;
use uiw_verbs::{Access, Mr, Pd, RemoteMr, SharedMr, Striped, WcError, WcStatus};

/// Bytes of a slot.
pub(super) const SLOT: usize = 4096;
/// What a receiver leaves in a slot.
const USED: u8 = 0xEE;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read { slot: usize },
}

/// The requests of one end, which its peer can compute as well.
pub(super) struct Plan {
    requests: Vec<(Request, usize)>,
}

impl Plan {
    pub(super) fn new(seed: u64, len: usize) -> Self {
        let mut random = Random::new(seed);
        let mut requests: Vec<(Request, usize)> = Vec::new();
        for at in 0..len {
            let bytes = 1 + random.below(SLOT);
            let request = match random.below(10) {
                0 => Request::Send,
                1 => Request::SendImm,
                2 => Request::WriteImm,
                // One that was written, and that no message has passed on to the peer's program.
                3 | 4 => match requests.last() {
                    Some((Request::Write, _)) => Request::Read { slot: at - 1 },
                    _ => Request::Write,
                },
                _ => Request::Write,
            };
            requests.push((request, bytes));
        }
        // The last message passes everything on.
        requests.push((Request::Send, 1));
        Self { requests }
    }

    fn memory_len(&self) -> usize {
        self.requests.len() * SLOT
    }

    /// The requests that are messages, by index.
    fn messages(&self) -> impl Iterator<Item = usize> + '_ {
        let is_message = |request| matches!(request, Request::Send | Request::SendImm | Request::WriteImm);
        (0..self.requests.len()).filter(move |at| is_message(self.requests[*at].0))
    }
}

/// The bytes that request `at` sends.
fn content(at: usize, len: usize) -> Vec<u8> {
    // Never what is left in a used slot, and never zero.
    (0..len).map(|byte| 1 + ((at * 31 + byte * 7) % 200) as u8).collect()
}

/// How one end's requests completed, in the order of completion.
pub(super) type Statuses = Vec<WcStatus>;

/// What one end does with `own`, while its peer does `theirs`. Returns the statuses of its requests and how many messages came.
pub(super) async fn exchange(
    connection: &Striped,
    pd: &Pd,
    own: &Plan,
    theirs: &Plan,
    idempotent: bool,
) -> (Statuses, usize) {
    let memory = pd.share(theirs.memory_len(), Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
    let greeting = memory.remote(0..memory.len()).unwrap().to_bytes();
    let remote = RefCell::new(None);
    let (sent, received) = join(connection.send_copy(&greeting), connection.recv()).await;
    if let Ok(Some(message)) = received {
        *remote.borrow_mut() = RemoteMr::from_bytes(&message);
    }
    let remote = *remote.borrow();
    let (Ok(_), Some(remote)) = (sent, remote) else { return (Vec::new(), 0) };
    join(post_all(connection, pd, own, remote, idempotent), receive_all(connection, theirs, &memory)).await
}

async fn post_all(
    connection: &Striped,
    pd: &Pd,
    plan: &Plan,
    remote: RemoteMr,
    idempotent: bool,
) -> Statuses {
    let mut under_way = FuturesUnordered::new();
    for (at, (request, len)) in plan.requests.iter().enumerate() {
        let (request, len) = (*request, *len);
        let buffer = |len| pd.register(content(at, len)).unwrap();
        let slot = |slot: usize| remote.slice((slot * SLOT) as u64..((slot + 1) * SLOT) as u64).unwrap();
        let imm = at as u32;
        let op = match request {
            Request::Send => connection.send(buffer(len)),
            Request::SendImm => connection.send_imm(buffer(len), imm),
            Request::Write if idempotent => connection.write_idempotent(buffer(len), slot(at)),
            Request::Write => connection.write(buffer(len), slot(at)),
            Request::WriteImm if idempotent => connection.write_imm_idempotent(buffer(len), slot(at), imm),
            Request::WriteImm => connection.write_imm(buffer(len), slot(at), imm),
            Request::Read { slot: from } => {
                let len = plan.requests[from].1;
                connection.read(pd.register(vec![0; len]).unwrap(), slot(from))
            }
        };
        under_way.push(async move { (at, op.await) });
    }
    let mut statuses = Vec::new();
    while let Some((at, result)) = under_way.next().await {
        assert_eq!(at, statuses.len(), "completions are in the order of posting");
        let (status, buffer): (_, Mr<Vec<u8>>) = match result {
            Ok((wc, buffer)) => (wc.status, buffer),
            Err(failed) => match failed.error {
                WcError::Completed { status, .. } => (status, failed.buffer),
                // It was posted when the connection had ended.
                WcError::Refused(_) => (WcStatus::Flushed, failed.buffer),
                other => panic!("{other}"),
            },
        };
        let bytes = buffer.into_inner();
        match plan.requests[at].0 {
            Request::Read { slot } if status == WcStatus::Success => {
                assert_eq!(
                    bytes,
                    content(slot, plan.requests[slot].1),
                    "a Read gets what was written before it"
                );
            }
            Request::Read { .. } => {}
            _ => assert_eq!(bytes, content(at, plan.requests[at].1), "the buffer came back"),
        }
        statuses.push(status);
    }
    statuses
}

/// Takes the messages of the peer's plan. Returns how many came.
async fn receive_all(connection: &Striped, plan: &Plan, memory: &SharedMr) -> usize {
    let (mut count, mut used) = (0, 0);
    for at in plan.messages() {
        let Ok(Some(message)) = connection.recv().await else { break };
        let (request, len) = plan.requests[at];
        let expected = if request == Request::WriteImm { Vec::new() } else { content(at, len) };
        assert_eq!(*message, *expected, "message {count}");
        assert_eq!(message.imm(), (request != Request::Send).then_some(at as u32));
        assert_eq!(message.write_len(), (request == Request::WriteImm).then_some(len as u32));
        // Everything in front of it is here.
        for slot in used..=at {
            let (request, len) = plan.requests[slot];
            if matches!(request, Request::Write | Request::WriteImm) {
                let range = (slot * SLOT) as u64..(slot * SLOT + len) as u64;
                let written = memory.to_vec(range.clone()).unwrap();
                assert!(written == content(slot, len), "slot {slot} is whole when message {at} comes");
                memory.write(range.start, &vec![USED; len]).unwrap();
            }
        }
        used = at + 1;
        count += 1;
    }
    // Nothing was written since, neither again nor late.
    for slot in 0..used {
        let (request, len) = plan.requests[slot];
        if matches!(request, Request::Write | Request::WriteImm) {
            let left = memory.to_vec((slot * SLOT) as u64..(slot * SLOT + len) as u64).unwrap();
            assert!(left.iter().all(|byte| *byte == USED), "slot {slot} was written behind message {used}");
        }
    }
    count
}

/// How many messages a plan has.
pub(super) fn message_count(plan: &Plan) -> usize {
    plan.messages().count()
}
