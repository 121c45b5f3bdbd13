//! Runs two processes on the crate `sideway`, connected by rdma_cm: the client writes to the
//! server's memory, the server compares and inverts the data, and the client reads it back and
//! compares it. Atomic operations on a counter of the server follow.
//!
//!     uiw-sideway-peer server PORT KIND
//!     uiw-sideway-peer client ADDRESS PORT KIND
//!
//! KIND is `basic` (ibv_post_send, ibv_poll_cq) or `extended` (ibv_wr_*, ibv_start_poll). The queue
//! pairs are created without rdma_cm, which is only told their numbers.

#[path = "../../pattern.rs"]
mod pattern;

use pattern::{inverted, pattern};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairState, SendOperationFlags, SetInlineData,
    SetScatterGatherEntry, WorkRequestFlags,
};
use sideway::rdmacm::communication_manager::{
    ConnectionParameter, Event, EventChannel, EventType, Identifier, PortSpace,
};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Number of bytes that are written and read in a round.
const SIZE: usize = 1 << 20;
/// Offset of the counter in the memory of an end.
const COUNTER: usize = SIZE;
/// Offset of the value that an atomic operation returned.
const FOUND: usize = SIZE + 8;
/// Offset of the slot for messages.
const MAIL: usize = SIZE + 16;
/// Length of a message in bytes: an address and a key.
const MESSAGE: usize = 16;
const ROUNDS: u64 = 8;
/// Request number of every receive; the numbers of other requests start at 0.
const RECEIVE: u64 = u64::MAX;

/// Contents of a completion.
#[derive(Clone, Copy)]
struct CompletedRequest {
    request: u64,
    len: u32,
    immediate: u32,
}

struct ConnectedEnd {
    queue: GenericQueuePair,
    completions: GenericCompletionQueue,
    region: Arc<MemoryRegion>,
    memory: *mut u8,
    done: VecDeque<CompletedRequest>,
    /// Number of the next request.
    next: u64,
}

impl ConnectedEnd {
    fn new(id: &Identifier, is_extended: bool) -> Self {
        let context = id.get_device_context().expect("the id has a device");
        let domain = context.alloc_pd().expect("a protection domain");
        // Peers write to the memory, so it is never borrowed, and it stays allocated until the
        // process ends.
        let memory = Vec::leak(vec![0u8; MAIL + MESSAGE]).as_mut_ptr();
        let access = AccessFlags::LocalWrite
            | AccessFlags::RemoteWrite
            | AccessFlags::RemoteRead
            | AccessFlags::RemoteAtomic;
        // SAFETY: the memory is never freed.
        let region =
            unsafe { domain.reg_mr(memory as usize, MAIL + MESSAGE, access) }.expect("a memory region");
        let mut builder = context.create_cq_builder();
        builder.setup_cqe(64);
        let completions: GenericCompletionQueue = if is_extended {
            builder.build_ex().expect("an extended completion queue").into()
        } else {
            builder.build().expect("a completion queue").into()
        };
        let mut builder = domain.create_qp_builder();
        builder
            .setup_max_inline_data(64)
            .setup_max_send_wr(16)
            .setup_max_send_sge(2)
            .setup_max_recv_wr(16)
            .setup_send_cq(completions.clone())
            .setup_recv_cq(completions.clone())
            .setup_send_ops_flags(
                SendOperationFlags::Send
                    | SendOperationFlags::SendWithImmediate
                    | SendOperationFlags::Write
                    | SendOperationFlags::WriteWithImmediate
                    | SendOperationFlags::Read
                    | SendOperationFlags::AtomicCompareAndSwap
                    | SendOperationFlags::AtomicFetchAndAdd,
            );
        let queue = if is_extended {
            builder.build_ex().expect("an extended queue pair").into()
        } else {
            builder.build().expect("a queue pair").into()
        };
        Self { queue, completions, region, memory, done: VecDeque::new(), next: 0 }
    }

    /// Modifies the queue pair through the states with the attributes from rdma_cm.
    fn modify(&mut self, id: &Identifier, states: &[QueuePairState]) {
        for &state in states {
            let attributes = id.get_qp_attr(state).expect("the attributes of a state");
            self.queue.modify(&attributes).expect("a transition");
        }
    }

    fn read(&self, from: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: callers name a part of the memory that no request of either end uses at this
        // time.
        unsafe { self.memory.add(from).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    fn read_number(&self, from: usize) -> u64 {
        u64::from_ne_bytes(self.read(from, 8).try_into().expect("eight bytes"))
    }

    fn write(&self, to: usize, bytes: &[u8]) {
        // SAFETY: as above.
        unsafe { self.memory.add(to).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn address(&self, of: usize) -> u64 {
        self.memory as u64 + of as u64
    }

    fn receive(&mut self) {
        let (key, address) = (self.region.lkey(), self.address(MAIL));
        let mut guard = self.queue.start_post_recv();
        // SAFETY: the memory belongs to the region.
        unsafe { guard.construct_wr(RECEIVE).setup_sge(key, address, MESSAGE as u32) };
        guard.post().expect("a receive");
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Sends a message from ordinary memory of the program.
    fn send_inline(&mut self, bytes: &[u8], immediate: Option<u32>) {
        let number = self.number();
        let mut guard = self.queue.start_post_send();
        let request = guard.construct_wr(number, WorkRequestFlags::Signaled | WorkRequestFlags::Inline);
        match immediate {
            Some(immediate) => request.setup_send_imm(immediate).setup_inline_data(bytes),
            None => request.setup_send().setup_inline_data(bytes),
        }
        guard.post().expect("a Send");
        self.wait(number);
    }

    /// Posts two Writes of half the memory each, the second one with immediate data.
    fn write_remote(&mut self, place: RemotePlace, immediate: u32) {
        let half = SIZE as u32 / 2;
        let (key, middle) = (self.region.lkey(), self.address(SIZE / 2));
        let start = self.address(0);
        let (first, second) = (self.number(), self.number());
        let mut guard = self.queue.start_post_send();
        let request = guard.construct_wr(first, WorkRequestFlags::Signaled);
        // SAFETY: the memory belongs to the region and does not change until the completion.
        unsafe { request.setup_write(place.key, place.address).setup_sge(key, start, half) };
        let request = guard.construct_wr(second, WorkRequestFlags::Signaled);
        let request = request.setup_write_imm(place.key, place.address + u64::from(half), immediate);
        // SAFETY: as above.
        unsafe { request.setup_sge(key, middle, half) };
        guard.post().expect("two Writes");
        self.wait(first);
        self.wait(second);
    }

    fn read_remote(&mut self, place: RemotePlace) {
        let number = self.number();
        let (key, start) = (self.region.lkey(), self.address(0));
        let mut guard = self.queue.start_post_send();
        let request = guard.construct_wr(number, WorkRequestFlags::Signaled);
        // SAFETY: the memory belongs to the region and is not read before the completion.
        unsafe { request.setup_read(place.key, place.address).setup_sge(key, start, SIZE as u32) };
        guard.post().expect("a Read");
        self.wait(number);
    }

    /// Performs an atomic operation on the peer's counter and returns the previous value.
    fn atomic(&mut self, place: RemotePlace, operation: AtomicKind) -> u64 {
        let number = self.number();
        let (key, found, counter) = (self.region.lkey(), self.address(FOUND), place.address + COUNTER as u64);
        let mut guard = self.queue.start_post_send();
        let request = guard.construct_wr(number, WorkRequestFlags::Signaled);
        let request = match operation {
            AtomicKind::Add(what) => request.setup_atomic_fetch_add(place.key, counter, what),
            AtomicKind::Swap { from, to } => request.setup_atomic_compare_swap(place.key, counter, from, to),
        };
        // SAFETY: as above.
        unsafe { request.setup_sge(key, found, 8) };
        guard.post().expect("an atomic operation");
        self.wait(number);
        self.read_number(FOUND)
    }

    fn wait(&mut self, request: u64) -> CompletedRequest {
        loop {
            if let Some(at) = self.done.iter().position(|done| done.request == request) {
                return self.done.remove(at).expect("it was found");
            }
            let Ok(poller) = self.completions.start_poll() else { continue };
            for entry in poller {
                assert_eq!(entry.status(), 0, "request {} failed", entry.wr_id());
                let done =
                    CompletedRequest { request: entry.wr_id(), len: entry.byte_len(), immediate: entry.imm_data() };
                self.done.push_back(done);
            }
        }
    }
}

/// Location of the peer's memory.
#[derive(Clone, Copy)]
struct RemotePlace {
    address: u64,
    key: u32,
}

enum AtomicKind {
    Add(u64),
    Swap { from: u64, to: u64 },
}

fn next(channel: &Arc<EventChannel>) -> Event {
    channel.get_cm_event().expect("an event")
}

fn expect(channel: &Arc<EventChannel>, expected: EventType) {
    let event = next(channel);
    assert_eq!((event.event_type(), event.status()), (expected, 0));
    event.ack().expect("acknowledged");
}

fn client(address: SocketAddr, is_extended: bool) {
    let channel = EventChannel::new().expect("an event channel");
    let id = channel.create_id(PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, address, Duration::from_secs(5)).expect("the address is resolved");
    expect(&channel, EventType::AddressResolved);
    id.resolve_route(Duration::from_secs(5)).expect("the route is resolved");
    expect(&channel, EventType::RouteResolved);
    let mut end = ConnectedEnd::new(&id, is_extended);
    let mut parameters = ConnectionParameter::default();
    parameters.setup_qp_number(end.queue.qp_number());
    id.connect(parameters).expect("the connection is asked for");
    let answer = next(&channel);
    match answer.event_type() {
        // The id has no queue pair, so the program modifies its own one; on iWARP the connection
        // does that.
        EventType::ConnectResponse => {
            let states = [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend];
            end.modify(&id, &states);
            id.establish().expect("established");
        }
        EventType::Established => {}
        other => panic!("{other:?}: {}", answer.status()),
    }
    answer.ack().expect("acknowledged");

    end.receive();
    end.send_inline(b"ready", None);
    assert_eq!(end.wait(RECEIVE).len as usize, MESSAGE, "the length of the server's message");
    let message = end.read(MAIL, MESSAGE);
    let place = RemotePlace {
        address: u64::from_le_bytes(message[..8].try_into().expect("eight bytes")),
        key: u32::from_le_bytes(message[8..12].try_into().expect("four bytes")),
    };
    for round in 0..ROUNDS {
        end.receive();
        end.write(0, &pattern(round, SIZE));
        end.write_remote(place, round as u32 + 1);
        let answer = end.wait(RECEIVE);
        assert_eq!((answer.immediate, answer.len), (round as u32 + 1, 1), "the server's answer");
        end.write(0, &vec![0; SIZE]);
        end.read_remote(place);
        assert!(end.read(0, SIZE) == inverted(&pattern(round, SIZE)), "round {round}: what was read differs");
    }
    let mut counter = 0;
    for round in 0..ROUNDS {
        assert_eq!(end.atomic(place, AtomicKind::Add(round + 7)), counter, "what was there before the addition");
        counter += round + 7;
        let wrong = AtomicKind::Swap { from: counter + 1, to: 1 };
        assert_eq!(end.atomic(place, wrong), counter, "what a swap found that changes nothing");
        let right = AtomicKind::Swap { from: counter, to: counter << 4 };
        assert_eq!(end.atomic(place, right), counter, "what was there before the swap");
        counter <<= 4;
    }
    end.send_inline(&counter.to_le_bytes(), None);
    // The server disconnects after it has compared the counter.
    loop {
        let event = next(&channel);
        let kind = event.event_type();
        event.ack().expect("acknowledged");
        match kind {
            EventType::Established => {}
            EventType::Disconnected => break,
            other => panic!("{other:?} where the server disconnects"),
        }
    }
    println!("{ROUNDS} writes and reads of {SIZE} bytes and {} atomic operations are equal", 3 * ROUNDS);
}

fn server(port: u16, is_extended: bool) {
    let channel = EventChannel::new().expect("an event channel");
    let listener = channel.create_id(PortSpace::Tcp).expect("an id");
    listener.bind_addr(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)).expect("the port is free");
    listener.listen(1).expect("it listens");
    let request = next(&channel);
    assert_eq!(request.event_type(), EventType::ConnectRequest);
    let id = request.cm_id().expect("the id of the connection");
    let mut end = ConnectedEnd::new(&id, is_extended);
    let states = [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend];
    end.modify(&id, &states[..1]);
    end.receive();
    end.modify(&id, &states[1..]);
    let mut parameters = ConnectionParameter::default();
    parameters.setup_qp_number(end.queue.qp_number());
    id.accept(parameters).expect("accepted");
    request.ack().expect("acknowledged");
    expect(&channel, EventType::Established);

    assert_eq!(end.wait(RECEIVE).len, 5, "the length of the client's message");
    assert_eq!(end.read(MAIL, 5), b"ready");
    end.receive();
    let mut message = end.address(0).to_le_bytes().to_vec();
    message.extend_from_slice(&end.region.rkey().to_le_bytes());
    message.resize(MESSAGE, 0);
    end.send_inline(&message, None);
    for round in 0..ROUNDS {
        let written = end.wait(RECEIVE);
        assert_eq!(
            (written.immediate, written.len as usize),
            (round as u32 + 1, SIZE / 2),
            "the Write with immediate"
        );
        let bytes = end.read(0, SIZE);
        assert!(bytes == pattern(round, SIZE), "round {round}: what was written differs");
        end.write(0, &inverted(&bytes));
        end.receive();
        end.send_inline(&[1], Some(round as u32 + 1));
    }
    assert_eq!(end.wait(RECEIVE).len, 8, "the length of the counter");
    assert_eq!(end.read_number(MAIL), end.read_number(COUNTER), "the counter differs");
    id.disconnect().expect("disconnected");
    expect(&channel, EventType::Disconnected);
    println!("{ROUNDS} writes of {SIZE} bytes and a counter are equal");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |port: &str| port.parse::<u16>().expect("a port");
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", port, kind] => server(number(port), kind == "extended"),
        ["client", address, port, kind] => {
            let address: IpAddr = address.parse().expect("an address");
            client(SocketAddr::new(address, number(port)), kind == "extended");
        }
        _ => panic!("usage: server PORT KIND | client ADDRESS PORT KIND"),
    }
}
