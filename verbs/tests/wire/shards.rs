//! Tests a device with several shards: connections between shards, control calls while another
//! thread makes progress, and the destruction of a device.

use crate::common::{End, Make, pair_of, peek, plain, responder_opt};
use crate::peer::{Peer, TIMEOUT, read_request, tagged};
use crate::simulation;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use uiw_llp::tcp::TcpStack;
use uiw_llp::wrap::{Origin, StackHooks, StreamHooks, WrappedStack, WrappedStream};
use uiw_llp::{Event, Readable, Token, TransportStack, TransportStream};
use uiw_mem::{IoVec, IoVecMut};
use uiw_rdmap::Opcode;
use uiw_stream::{MAX_BUFFER, USUAL_BUFFER};
use uiw_verbs::{
    ConnConfig, CqConfig, Device, DeviceConfig, Limits, Progress, QpState, Remote, SendOp,
    StableTx, WcStatus,
};

fn device(stack: impl TransportStack + 'static, shards: usize, limits: Limits) -> Device {
    let options = DeviceConfig::default().shards(shards).limits(limits);
    Device::with_stack(Box::new(stack), options).unwrap()
}

/// Hooks that record the shards whose stack adopts a stream.
#[derive(Clone, Default)]
struct AdoptionHooks {
    /// Shard of this stack.
    shard: usize,
    shards: Arc<AtomicUsize>,
    by: Arc<Mutex<Vec<usize>>>,
}

impl StackHooks for AdoptionHooks {
    type Stream = ();

    fn stream(&self, _: &dyn TransportStream, _: Origin, _: Token) {}

    fn shard(&self, _: &dyn TransportStack) -> Self {
        Self { shard: self.shards.fetch_add(1, Ordering::SeqCst) + 1, ..self.clone() }
    }

    fn adopt(
        &mut self,
        inner: &mut dyn TransportStack,
        stream: &mut Box<dyn TransportStream>,
        token: Token,
    ) -> io::Result<()> {
        self.by.lock().unwrap().push(self.shard);
        inner.adopt(&mut WrappedStream::<()>::of(&mut **stream)?.inner, token)
    }
}

/// The ends of a connection are on shards of the same device, and an accepted connection moves to
/// the shard of its queue pair.
#[test]
fn queue_pairs_connect_across_shards() {
    let hooks = AdoptionHooks::default();
    let adopted_by = Arc::clone(&hooks.by);
    let stack = WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks };
    let device = device(stack, 3, Limits::default());
    // Listeners are assigned to the shards in turn, so those of three consecutive connections are
    // on three shards.
    for [a, b] in [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1], [0, 2], [1, 2], [2, 2]] {
        let ends = [a, b].map(|shard| {
            let pd = device.alloc_pd().unwrap();
            let end = End::make(&device, &pd, Make { shard: Some(shard), ..Make::default() });
            assert_eq!(end.rcq.shard(), shard);
            end
        });
        let [a, b] = ends;
        let (a, b) = pair_of(a, b, &plain());
        for id in 0..50 {
            b.recv(id, 0, 4096);
            a.send(id, 0, 4096);
            a.sent_ok(id);
            b.received_ok(id);
            a.recv(id, 0, 64);
            b.send(id, 0, 64);
            b.sent_ok(id);
            a.received_ok(id);
        }
        a.qp.disconnect().unwrap();
        assert!(a.ended().orderly && b.ended().orderly);
    }
    assert_eq!(
        *adopted_by.lock().unwrap(),
        [0, 0, 1, 1, 2, 2],
        "one of three was accepted on its shard"
    );
}

#[test]
fn unknown_shard_refused() {
    let device = device(TcpStack::new().unwrap(), 2, Limits::default());
    assert_eq!(device.shards(), 2);
    assert!(device.create_cq(8, CqConfig { shard: Some(1), ..CqConfig::default() }).is_ok());
    assert!(device.create_cq(8, CqConfig { shard: Some(2), ..CqConfig::default() }).is_err());
    for shards in [0, 65] {
        let options = DeviceConfig::default().shards(shards);
        assert!(Device::with_stack(Box::new(TcpStack::new().unwrap()), options).is_err());
    }
}

/// Hooks whose `poll` can be blocked, like a long system call blocks the driving thread.
#[derive(Clone)]
struct HeldStack {
    hold: Arc<AtomicBool>,
    held: mpsc::Sender<()>,
    _alive: Arc<()>,
}

impl HeldStack {
    fn stack(alive: &Arc<()>) -> (WrappedStack<Self>, Arc<AtomicBool>, mpsc::Receiver<()>) {
        let (held, holds) = mpsc::channel();
        let hold = Arc::new(AtomicBool::new(false));
        let hooks = Self { hold: Arc::clone(&hold), held, _alive: Arc::clone(alive) };
        (WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks }, hold, holds)
    }
}

impl StackHooks for HeldStack {
    type Stream = ();

    fn stream(&self, _: &dyn TransportStream, _: Origin, _: Token) {}

    fn poll(&mut self, inner: &mut dyn TransportStack, events: &mut Vec<Event>) -> io::Result<()> {
        if self.hold.load(Ordering::SeqCst) {
            self.held.send(()).unwrap();
            while self.hold.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        inner.poll(events)
    }
}

/// Queue pairs without a connection can be created, modified, queried and destroyed while a thread
/// drives the shard and does not return.
#[test]
fn unconnected_queue_pair_does_not_wait() {
    let (stack, hold, holds) = HeldStack::stack(&Arc::default());
    let options = DeviceConfig::default().progress(Progress::Manual).shards(1);
    let device = Device::with_stack(Box::new(stack), options).unwrap();
    std::thread::scope(|scope| {
        hold.store(true, Ordering::SeqCst);
        scope.spawn(|| device.pump());
        holds.recv().unwrap();
        let end = End::on(&device);
        for state in [
            QpState::Rtr,
            QpState::Rts,
            QpState::Reset,
            QpState::Init,
            QpState::Err,
            QpState::Reset,
        ] {
            end.qp.modify(state).unwrap();
            assert_eq!(end.qp.query().state, state);
        }
        drop(end);
        hold.store(false, Ordering::SeqCst);
    });
}

/// The thread that is driving carries out calls that need the shard, and does not have to release
/// the shard for them.
#[test]
fn calls_served_while_thread_drives() {
    let device = device(TcpStack::new().unwrap(), 1, Limits::default());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                device.pump();
            }
        });
        for _ in 0..100 {
            let (a, b) = (End::on(&device), End::on(&device));
            let listener = b.listen(&plain());
            a.connect(listener.local_addr(), &plain());
            b.accept(b.request());
            a.established();
            b.established();
            a.qp.modify(QpState::Err).unwrap();
            assert_eq!(a.qp.state(), QpState::Err);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The stack, with its sockets and addresses, is dropped together with the last handle of a device,
/// whatever the background thread is doing.
#[test]
fn dropped_device_releases_stack() {
    for _ in 0..200 {
        let alive = Arc::new(());
        let (stack, _, _) = HeldStack::stack(&alive);
        let device = Device::with_stack(Box::new(stack), DeviceConfig::default()).unwrap();
        let end = End::on(&device);
        let listener = end.listen(&plain());
        // The connection wakes up the background thread.
        let peer = std::net::TcpStream::connect(listener.local_addr()).unwrap();
        drop((listener, end, device));
        assert_eq!(Arc::strong_count(&alive), 1, "something keeps the stack");
        drop(peer);
    }
}

/// Limit of receive memory that is sufficient for the incomplete FPDUs of only a few [`silent`]
/// peers.
const SHORT_MEMORY: usize = 1 << 20;

/// Creates peers that begin an FPDU and then send nothing, enough of them to exhaust the receive
/// memory.
fn silent(device: &Device) -> Vec<(End, Peer)> {
    let begun = |_| {
        let end = End::on(device);
        let mut peer = responder_opt(&end, &plain());
        let fpdu = peer.seal(&tagged(Opcode::Write, 1, 0, true, &vec![0; 60_000]));
        peer.raw(&fpdu[..59_000]);
        (end, peer)
    };
    (0..40).map(begun).collect()
}

fn ended(silent: &[(End, Peer)]) -> usize {
    silent.iter().filter(|(end, _)| end.qp.state() == QpState::Err).count()
}

/// A connection keeps the buffer into which the beginning of a long FPDU was read, or a copy if there
/// is little receive memory. Other connections receive meanwhile.
#[test]
fn long_fpdu_received_in_pieces() {
    for memory in [SHORT_MEMORY, 16 << 20] {
        let reports = ReportHooks::default();
        let stack =
            WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks: reports.clone() };
        let limits = Limits::default().max_held_bytes(memory);
        let options = DeviceConfig::default().progress(Progress::Manual).shards(1).limits(limits);
        let device = Device::with_stack(Box::new(stack), options).unwrap();
        let mut pairs = [(); 3].map(|()| {
            let end = End::on(&device);
            let peer = responder_opt(&end, &plain());
            (end, peer)
        });
        let message = |n: usize| (0..60_000).map(|at| (at * (n + 3) / 7) as u8).collect::<Vec<_>>();
        for round in 0..3 {
            let mut fpdus = Vec::new();
            for (n, (end, peer)) in pairs.iter_mut().enumerate() {
                let (key, to) = (end.mr.rkey().0, end.mr.addr());
                fpdus.push(peer.seal(&tagged(Opcode::Write, key, to, true, &message(round + n))));
            }
            let mut sent = 0;
            for until in [5_000, 17_000, 40_000, fpdus[0].len()] {
                for ((_, peer), fpdu) in pairs.iter_mut().zip(&fpdus) {
                    let before = reports.received.load(Ordering::SeqCst);
                    peer.raw(&fpdu[sent..until]);
                    while reports.received.load(Ordering::SeqCst) < before + until - sent {
                        device.pump();
                    }
                }
                sent = until;
                let held = if sent == fpdus[0].len() { 0 } else { 3 * sent };
                assert_eq!(device.counters().total().held_bytes, held as u64);
            }
            for (n, (end, _)) in pairs.iter().enumerate() {
                assert!(peek(&end.mr, 0, 60_000) == message(round + n), "{memory} {round} {n}");
            }
        }
    }
}

/// With twice the memory, some of the peers have a whole staging buffer kept.
#[test]
fn silent_peers_ended_when_memory_short() {
    for memory in [SHORT_MEMORY, 2 * SHORT_MEMORY] {
        silent_peers_ended(memory);
    }
}

fn silent_peers_ended(memory: usize) {
    let limits = Limits::default().max_held_bytes(memory);
    let device = device(TcpStack::new().unwrap(), 2, limits);
    let silent = silent(&device);
    let end = End::on(&device);
    let mut peer = responder_opt(&end, &plain());
    let mut id = 0;
    while ended(&silent) == 0 {
        end.recv(id, 0, 64);
        peer.send(b"well-behaved");
        end.received_ok(id);
        id += 1;
    }
    assert!(ended(&silent) < 40, "{} of 40 were ended", ended(&silent));
}

/// Such a budget is the smallest one of `uiw serve`.
#[test]
fn budget_of_one_read_serves_all_connections() {
    let device = simulation::device(Limits::default().max_held_bytes(256 << 10));
    let [silent, end] = [End::on(&device), End::on(&device)];
    let [mut silent_peer, mut peer] = [&silent, &end].map(|end| responder_opt(end, &plain()));
    let fpdu = silent_peer.seal(&tagged(Opcode::Write, 1, 0, true, &vec![0; 60_000]));
    silent_peer.raw(&fpdu[..59_000]);
    end.recv(1, 0, 64);
    peer.send(b"well-behaved");
    end.received_ok(1);
    assert_eq!(silent.qp.state(), QpState::Err);
}

/// Complete FPDUs of other connections are read at once, long before a silent peer is disconnected.
#[test]
fn silent_peers_delay_no_others() {
    for memory in [SHORT_MEMORY, 2 * SHORT_MEMORY] {
        others_not_delayed(memory);
    }
}

fn others_not_delayed(memory: usize) {
    let device = simulation::device(Limits::default().max_held_bytes(memory));
    let silent = silent(&device);
    let end = End::on(&device);
    let mut peer = responder_opt(&end, &plain());
    let begun = simulation::now();
    for id in 0..20 {
        end.recv(id, 0, 64);
        peer.send(b"well-behaved");
        end.received_ok(id);
        let large = vec![id as u8; 60_000];
        peer.write(end.mr.rkey().0, end.mr.addr(), &large);
    }
    end.recv(20, 0, 64);
    peer.send(b"behind the last Write");
    end.received_ok(20);
    assert!(peek(&end.mr, 64, 59_936) == [19; 59_936]);
    let took = simulation::now() - begun;
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert_eq!(ended(&silent), 0);
}

/// Messages that wait for receives may use up the receive memory indefinitely. Complete FPDUs of
/// another connection are still received, each of them after a report by the kernel, also a short
/// one after a long one.
#[test]
fn fpdus_received_while_memory_short() {
    let device =
        device(TcpStack::new().unwrap(), 1, Limits::default().max_held_bytes(SHORT_MEMORY));
    let settings = plain().no_receive_timeout(Duration::MAX);
    // Keep as many messages as fit before memory is short; none of them uses the part reserved for
    // complete FPDUs.
    let holders: Vec<(End, Peer)> = (0..11)
        .map(|_| {
            let end = End::on(&device);
            let mut peer = responder_opt(&end, &settings);
            peer.send(&[7; 60_000]);
            (end, peer)
        })
        .collect();
    let end = End::on(&device);
    let mut peer = responder_opt(&end, &plain());
    for id in 0..20 {
        end.recv(id, 0, 64);
        peer.write(end.mr.rkey().0, end.mr.addr(), &vec![id as u8; 60_000]);
        // The background thread sleeps until the kernel reports the rest of the data.
        std::thread::sleep(Duration::from_millis(10));
        peer.send(b"behind a long one");
        end.received_ok(id);
    }
    assert_eq!(ended(&holders), 0);
}

/// Hooks that count the events reported by the stack and the bytes received by its streams, and
/// record the buffer space requested from the streams.
#[derive(Clone, Default)]
struct ReportHooks {
    events: Arc<AtomicUsize>,
    received: Arc<AtomicUsize>,
    wanted: Arc<Mutex<Vec<usize>>>,
}

impl StackHooks for ReportHooks {
    type Stream = Self;

    fn stream(&self, _: &dyn TransportStream, _: Origin, _: Token) -> Self {
        self.clone()
    }

    fn poll(&mut self, inner: &mut dyn TransportStack, events: &mut Vec<Event>) -> io::Result<()> {
        let before = events.len();
        inner.poll(events)?;
        self.events.fetch_add(events.len() - before, Ordering::SeqCst);
        Ok(())
    }
}

impl StreamHooks for ReportHooks {
    fn recv(
        &mut self,
        inner: &mut dyn TransportStream,
        bufs: &mut [IoVecMut<'_>],
    ) -> io::Result<usize> {
        inner.recv(bufs).inspect(|bytes| _ = self.received.fetch_add(*bytes, Ordering::SeqCst))
    }

    fn readable(
        &mut self,
        inner: &mut dyn TransportStream,
        wanted: usize,
    ) -> io::Result<Option<Readable>> {
        self.wanted.lock().unwrap().push(wanted);
        inner.readable(wanted)
    }
}

/// Hooks that record the lengths of what is sent, and accept all of it once `accepts` is set.
#[derive(Clone, Default)]
struct AcceptingHooks {
    accepts: Arc<AtomicBool>,
    offered: Arc<Mutex<Vec<usize>>>,
}

impl StackHooks for AcceptingHooks {
    type Stream = Self;

    fn stream(&self, _: &dyn TransportStream, _: Origin, _: Token) -> Self {
        self.clone()
    }
}

impl StreamHooks for AcceptingHooks {
    fn send(&mut self, inner: &mut dyn TransportStream, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        if !self.accepts.load(Ordering::SeqCst) {
            return inner.send(bufs);
        }
        let len = bufs.iter().map(IoVec::len).sum();
        self.offered.lock().unwrap().push(len);
        Ok(len)
    }
}

/// Returns the lengths of the batches of each turn in which `connections` connections send 8 MiB,
/// with Read Responses if `reads`.
fn batches_of_turns(connections: usize, options: &ConnConfig, reads: bool) -> Vec<Vec<usize>> {
    let hooks = AcceptingHooks::default();
    let stack = WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks: hooks.clone() };
    let device_options = DeviceConfig::default().progress(Progress::Manual).shards(1);
    let device = Device::with_stack(Box::new(stack), device_options).unwrap();
    let pd = device.alloc_pd().unwrap();
    let mut pairs: Vec<_> = (0..connections)
        .map(|_| {
            let end = End::make(&device, &pd, Make { memory: 8 << 20, ..Make::default() });
            let peer = responder_opt(&end, options);
            (end, peer)
        })
        .collect();
    hooks.accepts.store(true, Ordering::SeqCst);
    let (end, peer) = &mut pairs[0];
    if reads {
        for msn in 1..=2 {
            peer.fpdu(&read_request(msn, end.mr.rkey().0, end.mr.addr(), 4 << 20));
        }
    } else {
        end.op(1, SendOp::Write { remote: Remote::default() }, 0, 8 << 20);
    }
    let mut turns: Vec<Vec<usize>> = Vec::new();
    let until = Instant::now() + TIMEOUT;
    while turns.iter().flatten().sum::<usize>() < 8 << 20 {
        assert!(Instant::now() < until, "{turns:?}");
        device.pump();
        turns.push(std::mem::take(&mut *hooks.offered.lock().unwrap()));
    }
    turns.retain(|turn| !turn.is_empty());
    turns
}

/// One connection sends long batches if TCP accepts much at once, a few send medium ones, and even
/// then their turns end. The first batch of a later turn is longer than usual if TCP's segments are
/// as long as those within a host, and no Read Response is due. Long messages may be divided.
#[test]
fn batches_are_longer_with_few_connections() {
    const MEDIUM: usize = 578 << 10;
    const PART: usize = 192 << 10;
    const DIVIDED: usize = 322 << 10;
    let local = plain().stable_tx(StableTx::On).divides_long_messages(Some(false));
    let mut network = local.clone();
    network.stream.max_segment = Some(1448);
    let divided = local.clone().divides_long_messages(Some(true));
    for (connections, options, reads, expected, starts_long) in [
        (1, &divided, false, PART..DIVIDED, false),
        (2, &divided, false, PART..DIVIDED, false),
        (1, &divided, true, PART..DIVIDED, false),
        (1, &local, false, MEDIUM..MAX_BUFFER, true),
        (2, &local, false, USUAL_BUFFER..MEDIUM, true),
        (8, &local, false, USUAL_BUFFER..MEDIUM, true),
        (9, &local, false, 0..USUAL_BUFFER, false),
        (1, &network, false, MEDIUM..MAX_BUFFER, false),
        (2, &network, false, 0..USUAL_BUFFER, false),
        (1, &local, true, MEDIUM..MAX_BUFFER, false),
        (2, &local, true, USUAL_BUFFER..MEDIUM, false),
    ] {
        let turns = batches_of_turns(connections, options, reads);
        assert!(turns[0][0] <= USUAL_BUFFER, "{turns:?}");
        let longest = *turns.iter().flatten().max().unwrap();
        assert!(longest > expected.start && longest <= expected.end, "{expected:?}: {turns:?}");
        assert_eq!(turns[1][0] > USUAL_BUFFER, starts_long, "{turns:?}");
        // A turn ends with the batch that reaches 2 MiB.
        let before_last = |turn: &Vec<usize>| turn[..turn.len() - 1].iter().sum::<usize>();
        assert!(turns.iter().all(|turn| before_last(turn) < 2 << 20), "{turns:?}");
    }
}

/// A message that answers one of the peer is sent in two batches, so that the peer can handle the
/// first one while the second one is built.
#[test]
fn long_answer_is_divided() {
    const LEN: u32 = 64 << 10;
    let hooks = AcceptingHooks::default();
    let stack = WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks: hooks.clone() };
    let device_options = DeviceConfig::default().progress(Progress::Manual).shards(1);
    let device = Device::with_stack(Box::new(stack), device_options).unwrap();
    let pd = device.alloc_pd().unwrap();
    let end = End::make(&device, &pd, Make { memory: LEN as usize, ..Make::default() });
    let mut peer = responder_opt(&end, &plain().divides_long_messages(Some(true)));
    hooks.accepts.store(true, Ordering::SeqCst);
    for id in 0..3 {
        end.recv(id, 0, 4);
        peer.send(b"ping");
        end.received_ok(id);
        for batches in [2, 1] {
            end.send(id, 0, LEN);
            end.sent_ok(id);
            assert_eq!(std::mem::take(&mut *hooks.offered.lock().unwrap()).len(), batches);
        }
    }
}

/// A socket that is not read while the receive memory is used up must have room for the longest
/// FPDU, for which the kernel counts up to four times the bytes. The longest FPDU has 64 KiB; with
/// Markers and the data read after it, it is shorter than 128 KiB. The room is requested once;
/// later requests only ask for the needs of an FPDU.
#[test]
fn socket_has_room_for_longest_fpdu() {
    let reports = ReportHooks::default();
    let stack = WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks: reports.clone() };
    let limits = Limits::default().max_held_bytes(SHORT_MEMORY);
    let options = DeviceConfig::default().progress(Progress::Manual).shards(1).limits(limits);
    let device = Device::with_stack(Box::new(stack), options).unwrap();
    let settings = plain().no_receive_timeout(TIMEOUT);
    let other = End::on(&device);
    let mut peer = responder_opt(&other, &settings);
    for id in 0..6 {
        other.recv(id, 0, 64);
    }
    assert_eq!(*reports.wanted.lock().unwrap(), [], "there is memory");
    // Keep as many messages waiting for receives as fit before memory is short.
    let holders: Vec<(End, Peer)> = (0..11)
        .map(|_| {
            let end = End::on(&device);
            let mut holder = responder_opt(&end, &settings);
            let before = reports.received.load(Ordering::SeqCst);
            holder.send(&[7; 60_000]);
            while reports.received.load(Ordering::SeqCst) < before + 60_000 {
                device.pump();
            }
            (end, holder)
        })
        .collect();
    reports.wanted.lock().unwrap().clear();
    for id in 0..5 {
        peer.send(b"while memory is short");
        other.received_ok(id);
    }
    let wanted = std::mem::take(&mut *reports.wanted.lock().unwrap());
    let (first, later) = wanted.split_first().expect("it is asked");
    assert!(*first >= 4 * (128 << 10), "{first} bytes");
    assert!(later.iter().all(|wanted| *wanted < 128 << 10), "{later:?}");
    for (holder, _) in &holders {
        holder.recv(0, 0, 60_000);
        holder.received_ok(0);
    }
    peer.send(b"with memory");
    other.received_ok(5);
    assert_eq!(reports.wanted.lock().unwrap().last(), Some(&1), "any byte is reported again");
}

/// Another connection keeps the receive memory used up while both ends of this connection close.
/// The peer's bytes wait in the socket, and the stack must not report the hang-up with every poll.
#[test]
fn hangup_with_exhausted_memory_reported() {
    let reports = ReportHooks::default();
    let stack = WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks: reports.clone() };
    // There is room for one read; after a message has been kept, there is none, not even for a
    // complete FPDU.
    let limits = Limits::default().max_held_bytes(300 << 10);
    let options = DeviceConfig::default().progress(Progress::Manual).shards(1).limits(limits);
    let device = Device::with_stack(Box::new(stack), options).unwrap();
    let settings = plain().no_receive_timeout(TIMEOUT).close_timeout(TIMEOUT);
    let [holder, other] = [End::on(&device), End::on(&device)];
    let mut holder_peer = responder_opt(&holder, &settings);
    let mut peer = responder_opt(&other, &settings);
    // No receive is posted, so the message is kept.
    let before = reports.received.load(Ordering::SeqCst);
    holder_peer.send(&[7; 10_000]);
    while reports.received.load(Ordering::SeqCst) < before + 10_000 {
        device.pump();
    }
    let before = reports.received.load(Ordering::SeqCst);
    peer.send(b"first");
    peer.send(b"second");
    other.qp.disconnect().unwrap();
    peer.fin();
    peer.expect_close();
    device.pump();
    let events = reports.events.load(Ordering::SeqCst);
    // The engine polls the stack once in 32 rounds.
    for _ in 0..32 * 100 {
        device.pump();
    }
    let events = reports.events.load(Ordering::SeqCst) - events;
    assert!(events < 10, "the hang-up was reported {events} times in 100 polls");
    assert_eq!(reports.received.load(Ordering::SeqCst), before, "nothing is read without room");
    // After the message is received, there is room again.
    holder.recv(0, 0, 10_000);
    holder.received_ok(0);
    (0..2).for_each(|id| other.recv(id, 64 * id, 64));
    (0..2).for_each(|id| _ = other.received_ok(id));
    assert!(other.ended().orderly);
}

/// A Send waits for its receive while both ends close. The stack then reports a hang-up, and the
/// message must not be lost.
#[test]
fn hangup_after_parked_send_lossless() {
    let end = End::tcp();
    let options = plain().no_receive_timeout(TIMEOUT).close_timeout(TIMEOUT);
    let mut peer = responder_opt(&end, &options);
    peer.send(b"first");
    peer.send(b"second");
    // The Send is parked when the socket is no longer read. Our FIN is sent at once, because no
    // request is outstanding.
    end.qp.disconnect().unwrap();
    peer.fin();
    peer.expect_close();
    std::thread::sleep(Duration::from_millis(50));
    for id in 0..2 {
        end.recv(id, 64 * id, 64);
    }
    for id in 0..2 {
        let wc = end.received();
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success), "{wc:?}");
    }
    assert!(end.ended().orderly);
}
