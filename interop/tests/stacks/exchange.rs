//! Performs every operation of the safe API in both directions at once on many connections, and
//! verifies every byte at both ends.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use uiw::{
    Access, BoundWindow, ConnConfig, Connection, ConnectionConfig, Device, Listener, Mr, Pd,
    RemoteMr, SharedMr,
};

/// Time after which the test fails if no connection has made progress.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Message lengths in bytes, from zero to several segments at any tested MTU.
const MESSAGES: [usize; 5] = [0, 1, 1441, 9001, 20_000];
const LARGEST: usize = MESSAGES[MESSAGES.len() - 1];
/// Lengths of Writes and Reads in bytes; each of them has its own place in memory.
const PLACES: [usize; 6] = [0, 1, 1459, 8961, 20_000, 60_001];
/// Lengths in bytes of Writes with immediate; their places follow the others.
const WITH_IMMEDIATE: [usize; 2] = [5000, 3];
const IMMEDIATE: u32 = 0xC0FF_EE00;
const ADDEND: u64 = 0x1_0000_0001;
const ADDS: u64 = 5;
const SWAPPED: u64 = 0x0123_4567_89AB_CDEF;
/// Offsets of the destination of the peer's Writes, the source of its Reads and the operands of its
/// atomics.
const TARGET: usize = 0;
const SOURCE: usize = 128 << 10;
const WORDS: usize = 256 << 10;
const LEN: usize = WORDS + 16;

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed))
        .collect()
}

/// Returns the offset and length of each place; the last ones belong to the Writes with immediate.
fn places() -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    PLACES.into_iter().chain(WITH_IMMEDIATE).map(move |len| {
        let offset = at;
        at += (len + 1).next_multiple_of(8);
        (offset, len)
    })
}

/// Returns the settings used by both ends and by the listener.
pub(crate) fn settings() -> ConnectionConfig {
    // On a busy machine, messages of many connections may wait long for a receive, and connections
    // may wait long for their start-up.
    let options = ConnConfig::default().no_receive_timeout(TIMEOUT).startup_timeout(TIMEOUT);
    ConnectionConfig::default()
        .options(options)
        .recv_size(LARGEST as u32)
        .recv_depth(8)
        .send_depth(16)
}

/// Waker of one future among many: wakes the common task and records which future was woken, so
/// that only woken futures are polled.
struct OneOfMany {
    has_rung: AtomicBool,
    all: Waker,
}

impl Wake for OneOfMany {
    fn wake(self: Arc<Self>) {
        self.has_rung.store(true, Ordering::SeqCst);
        self.all.wake_by_ref();
    }
}

/// Runs all futures on the current thread and returns their outputs in order.
async fn all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let all = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let waker = || Arc::new(OneOfMany { has_rung: AtomicBool::new(true), all: all.clone() });
    let mut waiting: Vec<_> =
        futures.into_iter().map(|future| (Box::pin(future), waker())).collect();
    let mut done: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for ((future, waker), done) in
            waiting.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none())
        {
            if !waker.all.will_wake(cx.waker()) {
                *waker = Arc::new(OneOfMany {
                    has_rung: AtomicBool::new(true),
                    all: cx.waker().clone(),
                });
            }
            if waker.has_rung.swap(false, Ordering::SeqCst)
                && let Poll::Ready(output) =
                    future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(waker))))
            {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

thread_local! {
    /// Number of steps completed by the connections of this thread.
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

fn step<T>(done: T) -> T {
    STEPS.set(STEPS.get() + 1);
    done
}

/// Runs `future` as long as connections make progress, because the total time depends on the
/// machine.
fn within<T>(device: &Device, what: &str, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        let before = STEPS.get();
        if let Some(output) = device.block_on_for(TIMEOUT, future.as_mut()) {
            return output;
        }
        assert!(STEPS.get() > before, "{what}: nothing in {TIMEOUT:?} after {before} steps");
    }
}

/// Accepts `count` connections, performs all operations on each, and waits until they have ended.
pub(crate) fn serve(device: &Device, pd: &Pd, listener: &Listener, count: usize) {
    within(device, "all connections are served", async {
        let mut incoming = Vec::new();
        for _ in 0..count {
            incoming.push(step(listener.incoming().await.expect("a peer")));
        }
        let settings = settings();
        all(incoming.into_iter().map(async |incoming| {
            let connection = step(incoming.accept(pd, &settings).await.expect("a connection"));
            converse(pd, &connection).await;
            assert!(step(connection.ended().await).orderly, "the client closes");
        }))
        .await;
    });
}

/// Opens `count` connections, performs all operations on each, and disconnects them.
pub(crate) fn call(device: &Device, pd: &Pd, to: SocketAddr, count: usize) {
    within(device, "all connections are made", async {
        let settings = settings();
        all((0..count).map(async |_| {
            let connection =
                step(Connection::connect(pd, to, &settings).await.expect("a connection"));
            converse(pd, &connection).await;
            assert!(connection.disconnect().await.expect("it stands").orderly);
        }))
        .await;
    });
}

/// Memory offered to the other end.
struct OfferedMemory {
    memory: SharedMr,
    /// One window for each of the two operations that invalidate.
    windows: [BoundWindow; 2],
}

/// Memory regions and windows that the other end offers.
#[derive(Clone, Copy)]
struct PeerOffer {
    memory: RemoteMr,
    windows: [RemoteMr; 2],
}

impl OfferedMemory {
    async fn new(pd: &Pd, connection: &Connection) -> Self {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let memory = pd.share(LEN, access).expect("memory");
        memory.write(SOURCE, &bytes(WORDS - SOURCE, 1)).expect("in range");
        let window = async || {
            connection.bind_window(&memory, 0..64, Access::REMOTE_WRITE).await.expect("a window")
        };
        let windows = [window().await, window().await];
        Self { memory, windows }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let all = self.memory.remote(0..LEN).expect("in range");
        [all, self.windows[0].remote(), self.windows[1].remote()]
            .into_iter()
            .flat_map(RemoteMr::to_bytes)
            .collect()
    }
}

impl PeerOffer {
    fn from_bytes(message: &[u8]) -> Self {
        let mut parts = message
            .chunks(message.len() / 3)
            .map(|part| RemoteMr::from_bytes(part).expect("memory"));
        let mut next = || parts.next().expect("three of them");
        Self { memory: next(), windows: [next(), next()] }
    }

    fn place(&self, at: usize, len: usize) -> RemoteMr {
        self.memory.slice(at..at + len).expect("in range")
    }
}

/// Performs all operations towards the peer, and checks the operations that the peer performs.
///
/// Both ends run this function.
async fn converse(pd: &Pd, connection: &Connection) {
    let ours = OfferedMemory::new(pd, connection).await;
    connection.send_copy(&ours.to_bytes()).await.expect("a Send");
    let theirs =
        PeerOffer::from_bytes(&connection.recv().await.expect("a message").expect("no end"));
    let asking: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(ask(pd, connection, theirs));
    all([asking, Box::pin(answer(connection, &ours))]).await;
    // An end must not close before the other end has received everything, because unread data is
    // lost when a connection ends.
    connection.send_copy(b"seen").await.expect("a Send");
    assert_eq!(*connection.recv().await.expect("a message").expect("no end"), *b"seen");
}

fn buffer(pd: &Pd, len: usize, seed: u8) -> Mr<Vec<u8>> {
    pd.register(bytes(len, seed)).expect("memory")
}

async fn ask(pd: &Pd, connection: &Connection, theirs: PeerOffer) {
    let places: Vec<_> = places().collect();
    let (plain, with_immediate) = places.split_at(PLACES.len());
    // All of these operations are outstanding at the same time.
    let writes = plain.iter().enumerate().map(|(n, (offset, len))| {
        connection.write(buffer(pd, *len, n as u8), theirs.place(TARGET + offset, *len))
    });
    let reads = plain.iter().map(|(offset, len)| {
        let from = theirs.place(SOURCE + offset, *len);
        connection.read(pd.register(vec![0; *len]).expect("memory"), from)
    });
    let (writes, reads): (Vec<_>, Vec<_>) = (writes.collect(), reads.collect());
    for write in writes {
        step(write.await.expect("a Write"));
    }
    let source = bytes(WORDS - SOURCE, 1);
    for (read, (offset, len)) in reads.into_iter().zip(plain) {
        let got = step(read.await.expect("a Read"));
        assert!(*got.bytes() == source[*offset..][..*len], "a Read of {len} bytes");
    }
    for (n, len) in MESSAGES.into_iter().enumerate() {
        connection.send(buffer(pd, len, n as u8)).await.expect("a Send");
        connection.send_solicited(buffer(pd, len, n as u8 + 10)).await.expect("a solicited Send");
        connection
            .send_imm(buffer(pd, len, n as u8 + 20), IMMEDIATE + n as u32)
            .await
            .expect("an immediate");
    }
    let [first, second] = theirs.windows.map(|window| window.rkey);
    connection.send_invalidate(buffer(pd, 700, 30), first).await.expect("Send with Invalidate");
    connection
        .send_solicited_invalidate(buffer(pd, 800, 31), second)
        .await
        .expect("the solicited one");
    let [a, b] = [0, 1].map(|n| {
        let (offset, len) = with_immediate[n];
        (buffer(pd, len, 40 + n as u8), theirs.place(TARGET + offset, len))
    });
    connection.write_imm(a.0, a.1, IMMEDIATE + 40).await.expect("Write with immediate");
    connection.write_imm_solicited(b.0, b.1, IMMEDIATE + 41).await.expect("the solicited one");
    let word = theirs.place(WORDS, 8);
    for n in 0..ADDS {
        assert_eq!(connection.fetch_add(word, ADDEND).await.expect("FetchAdd"), n * ADDEND);
    }
    let word = theirs.place(WORDS + 8, 8);
    assert_eq!(connection.compare_swap(word, 0, SWAPPED).await.expect("CmpSwap"), 0);
    assert_eq!(
        connection.compare_swap(word, 0, 1).await.expect("CmpSwap"),
        SWAPPED,
        "which differs"
    );
    connection.send_copy(b"that is all").await.expect("a Send");
}

async fn answer(connection: &Connection, ours: &OfferedMemory) {
    let next = async || step(connection.recv().await.expect("a message").expect("no end"));
    for (n, len) in MESSAGES.into_iter().enumerate() {
        for (seed, imm) in [(0, None), (10, None), (20, Some(IMMEDIATE + n as u32))] {
            let message = next().await;
            assert!(*message == bytes(len, n as u8 + seed), "message {n} of {len} bytes, {seed}");
            assert_eq!(
                (message.imm(), message.invalidated(), message.write_len()),
                (imm, None, None)
            );
        }
    }
    for (window, (len, seed)) in ours.windows.iter().zip([(700, 30), (800, 31)]) {
        let message = next().await;
        assert!(*message == bytes(len, seed), "Send with Invalidate of {len} bytes");
        assert_eq!(message.invalidated(), Some(window.remote().rkey));
    }
    for (n, len) in WITH_IMMEDIATE.into_iter().enumerate() {
        let message = next().await;
        assert_eq!(
            (message.imm(), message.write_len()),
            (Some(IMMEDIATE + 40 + n as u32), Some(len as u32))
        );
    }
    assert_eq!(*next().await, *b"that is all");
    for (n, (offset, len)) in places().enumerate() {
        let seed = if n < PLACES.len() { n } else { 40 + n - PLACES.len() };
        // Reading one more byte shows that nothing was written after the place.
        let came =
            ours.memory.to_vec(TARGET + offset..TARGET + offset + len + 1).expect("in range");
        assert!(came[..len] == bytes(len, seed as u8) && came[len] == 0, "a Write of {len} bytes");
    }
    let word = |at| ours.memory.load_u64(at).expect("a word");
    assert_eq!((word(WORDS), word(WORDS + 8)), (ADDS * ADDEND, SWAPPED));
    let source = ours.memory.to_vec(SOURCE..WORDS).expect("in range");
    assert!(source == bytes(WORDS - SOURCE, 1), "what is only read stays");
}
