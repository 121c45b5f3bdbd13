//! Tests memory and objects that are released while peers use them.

use crate::common::{ALL, End, Make, peek, plain, responder, responder_opt, tcp_pair};
use crate::peer::{Peer, TIMEOUT, tagged, terminate};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use uiw_llp::tcp::TcpStack;
use uiw_rdmap::Opcode;
use uiw_verbs::{
    Access, AsyncEvent, ConnConfig, Device, DeviceConfig, Memory, Progress, RawMr, Remote,
    SendFlags, SendOp, WcStatus,
};

/// Bytes that the test owns and registers for peers.
struct LentBuffer {
    bytes: *mut [u8],
    mr: Option<RawMr>,
}

const LEN: usize = 1 << 20;

impl LentBuffer {
    fn new(end: &End, access: Access) -> Self {
        let bytes = Box::into_raw(vec![0; LEN].into_boxed_slice());
        // SAFETY: the bytes outlive the region, and in the meantime they are only accessed through
        // the region.
        let memory = unsafe { Memory::borrowed(bytes.cast(), LEN) };
        let base = memory.as_ptr() as u64;
        Self { bytes, mr: Some(end.pd.register_raw(memory.shared(), base, access).unwrap()) }
    }

    fn mr_mut(&mut self) -> &mut RawMr {
        self.mr.as_mut().unwrap()
    }

    fn mr(&self) -> &RawMr {
        self.mr.as_ref().unwrap()
    }

    fn take_back(&mut self) {
        self.mr.take().unwrap().deregister().unwrap();
    }

    /// Returns the bytes, which the test owns exclusively again.
    fn bytes(&mut self) -> &mut [u8] {
        assert!(self.mr.is_none());
        // SAFETY: the bytes are not registered any more, so this is the only access to them.
        unsafe { &mut *self.bytes }
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        drop(self.mr.take());
        // SAFETY: the pointer is from `Box::into_raw`, and the bytes are not registered any more.
        drop(unsafe { Box::from_raw(self.bytes) });
    }
}

/// Writes to the whole region of `len` bytes repeatedly until the stream has ended.
fn write_on(peer: &mut Peer, stag: u32, at: u64, len: usize, stop: &AtomicBool) -> u64 {
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        let offset = written * 4096 % (len as u64 - 4096);
        let bytes = peer.seal(&tagged(Opcode::Write, stag, at + offset, true, &[0xAB; 4096]));
        if peer.stream.write_all(&bytes).is_err() {
            break;
        }
        written += 1;
    }
    written
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        std::thread::yield_now();
    }
}

/// After `deregister` has returned no byte is placed, and the peer gets an error.
// [test:RFC5040-8.1.1-07]
#[test]
fn deregistration_during_a_peers_writes() {
    for _ in 0..5 {
        let end = End::tcp();
        let mut lent = LentBuffer::new(&end, ALL);
        let mut peer = responder(&end);
        let (stag, at) = (lent.mr().rkey(), lent.mr().addr());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let written = write_on(&mut peer, stag.0, at, LEN, &stop);
                (written, peer)
            });
            until("nothing is written", || peek(lent.mr(), 5 * 4096, 1) == [0xAB]);
            lent.take_back();
            lent.bytes().fill(0x11);
            let reason = end.ended().reason.unwrap();
            assert_eq!(
                (reason.from_peer, reason.layer, reason.etype, reason.code),
                (false, 1, 1, 0)
            );
            assert!(lent.bytes().iter().all(|byte| *byte == 0x11), "placed behind the end");
            stop.store(true, Ordering::Relaxed);
            let (written, mut peer) = writer.join().unwrap();
            assert!(written > 5);
            // TCP may have discarded the Terminate because of a reset, as the peer continued to
            // write.
            if let Some(segment) =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| peer.next()))
                    .ok()
                    .flatten()
            {
                let terminate = crate::peer::terminate_of(&segment);
                assert_eq!((terminate.layer, terminate.etype, terminate.code), (1, 1, 0));
            }
            assert!(matches!(end.async_event(), AsyncEvent::QpAccessError { .. }));
        });
    }
}

/// Removed rights and replaced memory take effect when `rereg` returns.
#[test]
fn reregistration_during_a_peers_writes() {
    let end = End::tcp();
    let mut old = LentBuffer::new(&end, ALL);
    let mut peer = responder(&end);
    let (stag, at) = (old.mr().rkey(), old.mr().addr());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&mut peer, stag.0, at, LEN, &stop));
        until("nothing is written", || peek(old.mr(), 5 * 4096, 1) == [0xAB]);
        // The region keeps its bytes, but peers may only read them.
        old.mr_mut().rereg(None, None, Some(Access::LOCAL_WRITE | Access::REMOTE_READ)).unwrap();
        let before = peek(old.mr(), 0, LEN);
        assert!(end.ended().reason.is_some_and(|reason| !reason.from_peer && reason.layer == 1));
        assert!(peek(old.mr(), 0, LEN) == before, "placed without the right");
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    old.take_back();
}

/// Bytes of the application that a peer may write to as long as this value exists. Dropping it
/// fills them with [`WatchedMemory::OURS`].
struct WatchedMemory<'a> {
    bytes: &'a [AtomicU8],
    mr: Option<RawMr>,
}

impl WatchedMemory<'_> {
    const OURS: u8 = 0x11;
}

impl Drop for WatchedMemory<'_> {
    fn drop(&mut self) {
        drop(self.mr.take());
        self.bytes.iter().for_each(|byte| byte.store(Self::OURS, Ordering::Relaxed));
    }
}

/// Returns the `n`th permutation of `things`; every permutation occurs once for `n` in
/// `0..things.len()!`.
fn ordered<T>(mut things: Vec<T>, mut n: usize) -> VecDeque<T> {
    let mut out = VecDeque::new();
    while !things.is_empty() {
        let len = things.len();
        out.push_back(things.remove(n % len));
        n /= len;
    }
    out
}

/// Two threads drop all objects in every possible order while the peer writes. The stream ends, and
/// no byte of the application changes after its region is gone.
#[test]
fn concurrent_teardown_in_any_order() {
    const SIZE: usize = 64 << 10;
    let bytes: Vec<AtomicU8> = (0..SIZE).map(|_| AtomicU8::new(0)).collect();
    for order in 0..720 {
        let device = Device::open().unwrap();
        let pd = device.alloc_pd().unwrap();
        let end = End::make(&device, &pd, Make::default());
        bytes[5 * 4096].store(0, Ordering::Relaxed);
        // SAFETY: `bytes` outlive the region and are accessed atomically.
        let memory = unsafe { Memory::borrowed(bytes.as_ptr().cast_mut().cast(), SIZE) };
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory.shared(), base, ALL).unwrap();
        let (stag, at) = (mr.rkey(), mr.addr());
        let target = WatchedMemory { bytes: &bytes, mr: Some(mr) };
        let mut peer = responder_opt(&end, &plain());
        for id in 0..8 {
            end.recv(id, id * 64, 64);
            end.op(id, SendOp::Write { remote: Remote::default() }, 0, 9000);
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_on(&mut peer, stag.0, at, SIZE, &stop));
            until("nothing is written", || bytes[5 * 4096].load(Ordering::Relaxed) == 0xAB);
            let End { qp, device: handle, pd: domain, scq, rcq, channel, mr } = end;
            let things: Vec<Box<dyn Send + '_>> = vec![
                Box::new(qp),
                Box::new(target),
                Box::new(mr),
                Box::new((scq, channel)),
                Box::new((rcq, domain)),
                Box::new((handle, device, pd)),
            ];
            let things = Mutex::new(ordered(things, order));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        // Objects are dropped in order, but a drop may overlap with the next one.
                        let next = || things.lock().unwrap().pop_front();
                        while let Some(thing) = next() {
                            drop(thing);
                        }
                    });
                }
            });
            until("the stream exists without an owner", || writer.is_finished());
        });
        let touched =
            bytes.iter().filter(|byte| byte.load(Ordering::Relaxed) != WatchedMemory::OURS).count();
        assert_eq!(touched, 0, "bytes of a region that was gone, in order {order}");
    }
}

/// Like the previous test, but between two uiw ends whose programs poll and post at the same time.
#[test]
fn queue_pairs_destroyed_under_load() {
    for round in 0..8 {
        let (a, b) = tcp_pair();
        let done = AtomicBool::new(false);
        let remote = b.remote(0);
        std::thread::scope(|scope| {
            let (a, done) = (&a, &done);
            scope.spawn(move || {
                for id in 0.. {
                    let op = if id % 3 == 0 {
                        SendOp::Read { remote, invalidate: None }
                    } else {
                        SendOp::Write { remote }
                    };
                    let _ = a.post(id, op, &[a.sge(0, 30_000)], SendFlags::SIGNALED);
                    a.scq.poll(&mut Vec::new(), 16);
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(5 + round));
            let End { qp, mr, device, .. } = b;
            if round % 2 == 0 {
                drop((mr, qp));
            } else {
                drop((qp, mr));
            }
            a.ended();
            done.store(true, Ordering::Relaxed);
            drop(device);
        });
    }
}

/// If a buffer changes while it is sent, the CRC must match the bytes that are sent.
#[test]
fn changing_buffer_has_valid_crc() {
    let end = End::tcp_made(Make { memory: LEN, ..Make::default() });
    let mut peer = responder(&end);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = 0u8;
            while !done.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                crate::common::fill(&end.mr, 0, &[byte; 60_000]);
            }
        });
        for id in 0..60 {
            end.op(id, SendOp::Write { remote: Remote::default() }, 0, 60_000);
            if id % 3 == 0 {
                peer.read(end.mr.rkey().0, end.mr.addr(), 60_000);
            }
            // `next` panics if the CRC of an FPDU is wrong.
            let mut ended = 0;
            while ended < if id % 3 == 0 { 2 } else { 1 } {
                ended += usize::from(peer.expect_fpdu().header.last());
            }
            end.sent_ok(id);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Connects an end whose device reads only during calls of its program to a scripted peer, in Full
/// Operation.
fn manual() -> (End, Peer) {
    manual_with(&plain())
}

fn manual_with(config: &ConnConfig) -> (End, Peer) {
    let options = DeviceConfig::default().progress(Progress::Manual);
    let end = End::on(&Device::with_stack(Box::new(TcpStack::new().unwrap()), options).unwrap());
    let mut peer = responder_opt(&end, &config.clone().no_receive_timeout(TIMEOUT));
    // A responder sends nothing before it has received the first FPDU.
    end.recv(99, 0, 8);
    peer.send(b"begun");
    end.received_ok(99);
    (end, peer)
}

/// After a reset the socket accepts no more data, but the bytes that the peer sent before the reset
/// can still be read from it.
#[test]
fn data_before_reset_received_on_send() {
    let (end, mut peer) = manual();
    for id in 0..5 {
        end.recv(id, id * 8, 8);
    }
    // Send no more than TCP sends before the first acknowledgement; the rest would be lost with the
    // reset.
    for id in 0..5u64 {
        peer.send(&id.to_be_bytes());
    }
    peer.reset();
    end.send(5, 0, 8);
    for id in 0..5 {
        end.received_ok(id);
        assert_eq!(peek(&end.mr, id as usize * 8, 8), id.to_be_bytes());
    }
    assert_eq!(end.sent().status, WcStatus::RetryExceeded);
    assert!(!end.ended().orderly);
}

/// Like the previous test for a Send that waits for its receive, and for the message after it.
#[test]
fn data_before_reset_waits_for_receive() {
    let (end, mut peer) = manual();
    peer.send(b"first");
    peer.send(b"second");
    peer.reset();
    end.send(2, 0, 8);
    end.recv(0, 0, 8);
    end.received_ok(0);
    end.recv(1, 8, 8);
    end.received_ok(1);
    assert_eq!(peek(&end.mr, 8, 6), *b"second");
    assert_eq!(end.sent().status, WcStatus::RetryExceeded);
    assert!(!end.ended().orderly);
}

/// A program that takes no messages is informed of the reset as well.
#[test]
fn send_fails_despite_unread_data() {
    let (end, mut peer) = manual_with(&plain().close_timeout(Duration::from_millis(100)));
    peer.send(b"unread");
    peer.reset();
    end.send(2, 0, 8);
    assert_eq!(end.sent().status, WcStatus::RetryExceeded);
    assert!(!end.ended().orderly);
}

/// A peer reports an error and leaves at once; the reason can be read from the socket.
#[test]
fn terminate_before_reset_is_reason() {
    let (end, mut peer) = manual();
    peer.fpdu(&terminate(0, 0, 0));
    peer.reset();
    end.send(0, 0, 8);
    let wc = end.sent();
    assert!(wc.reason.is_some_and(|reason| reason.from_peer), "{wc:?}");
}
