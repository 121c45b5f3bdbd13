//! Tests of peers that stop reading, or send one byte per minute. No rule of an established stream
//! ends them, so operations in progress wait for as long as the application does, with bounded
//! memory. An orderly close has a time-out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use uiw::{BufferOp, Connection, ErrorKind, Mr, RemoteMr, STag, WcStatus};
use uiw_ddp::Header;
use uiw_mem::IoVec;
use uiw_mpa::tx::FpduTx;
use uiw_rdmap::{Opcode, QN_READ, ReadRequest, tagged_header};
use uiw_testkit::sim::Link;

use crate::link::Simulation;
use crate::raw::{Reader, poll, reader, settings};

/// Allocator that counts the allocations of this thread, which runs the whole simulation.
struct CountingAllocator;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: all calls are forwarded to the system's allocator. The counter has no destructor and
// allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get() + layout.size() as isize);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - layout.size() as isize);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

const MINUTE: Duration = Duration::from_secs(60);

/// Maximum memory in bytes that the engine may use for one stream: a batch of FPDUs, staging, and
/// the bytes of one incomplete FPDU.
const BOUND: isize = 1 << 20;

/// Advances the clock by `time` while both ends run.
fn pass(simulation: &Simulation, time: Duration) {
    simulation.network().advance(time);
    for _ in 0..4 {
        simulation.client.pump();
        simulation.network().step();
    }
}

fn is_over(connection: &Connection) -> bool {
    pin!(connection.ended()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Closes the connection in order. It must be cut after the time-out for that, but not earlier. The
/// oldest request in progress fails with the reason, all others are flushed, and each returns its
/// buffer.
fn closes_in_its_time(
    simulation: &Simulation,
    connection: &Connection,
    under_way: Vec<BufferOp<Vec<u8>>>,
) {
    let start = simulation.now();
    let ending = {
        let mut closing = pin!(connection.disconnect());
        loop {
            if let Poll::Ready(ending) =
                closing.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                break ending.unwrap();
            }
            pass(simulation, Duration::from_millis(100));
            assert!(simulation.now() - start < MINUTE, "the close takes for ever");
        }
    };
    let took = simulation.now() - start;
    assert!(
        !ending.orderly && took >= settings().options.close_timeout,
        "{ending:?} after {took:?}"
    );
    for (n, mut op) in under_way.into_iter().enumerate() {
        let Poll::Ready(outcome) = poll(&mut op) else { panic!("a request that does not end") };
        let (result, buffer) = match outcome {
            Ok(buffer) => (Ok(()), buffer),
            Err(failed) => (Err(failed.error), failed.buffer),
        };
        assert!(!buffer.is_empty(), "the buffer comes back");
        match result.unwrap_err().kind() {
            ErrorKind::Completed { status: WcStatus::RetryExceeded, .. } if n == 0 => {}
            ErrorKind::Ended { .. } if n > 0 => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn stalled_peer_delays_only_itself() {
    const LEN: usize = 60_000;
    let simulation = Simulation::new(1, Link { capacity: 20_000, ..Link::default() });
    let (pd, connection, mut peer) = reader(&simulation, &settings());
    let buffers: Vec<Mr<Vec<u8>>> =
        (0..200u8).map(|n| pd.register(vec![n; LEN]).unwrap()).collect();
    let before = LIVE.get();
    let mut ops: Vec<BufferOp<Vec<u8>>> = Vec::new();
    for (n, buffer) in buffers.into_iter().enumerate() {
        let remote = RemoteMr { addr: 0, rkey: STag(1), len: LEN };
        ops.push(if n % 2 == 0 {
            connection.send(buffer)
        } else {
            connection.write(buffer, remote)
        });
    }
    for minute in 0..24 * 60 {
        pass(&simulation, MINUTE);
        assert!(!is_over(&connection), "ended after {minute} minutes");
        let held = LIVE.get() - before;
        assert!(held < BOUND, "{held} bytes held after {minute} minutes");
    }
    assert!(
        ops.iter_mut().all(|op| poll(op).is_pending()),
        "TCP cannot have taken the first message"
    );
    assert_eq!(peer.read, 0);
    // The operations complete as soon as the peer reads again.
    let mut first = ops.remove(0);
    while poll(&mut first).is_pending() {
        peer.read();
        pass(&simulation, Duration::from_millis(1));
    }
    closes_in_its_time(&simulation, &connection, ops);
}

/// Returns the bytes on the wire that answer the Read with `payload`.
fn answer(peer: &Reader, payload: &[u8]) -> Vec<u8> {
    let request = peer.ulpdus.iter().find_map(|ulpdu| match Header::parse(ulpdu).unwrap() {
        (Header::Untagged(header), len) if header.qn == QN_READ => {
            Some(ReadRequest::parse(&ulpdu[len..]).unwrap())
        }
        _ => None,
    });
    let request = request.expect("a Read Request");
    let header = Header::Tagged(tagged_header(
        Opcode::ReadResponse,
        request.sink_stag,
        request.sink_to,
        true,
    ));
    let mut fpdu = vec![0; 2 + header.len()];
    header.emit(&mut fpdu[2..]);
    fpdu.extend_from_slice(payload);
    FpduTx::new(true, false).seal(&mut fpdu, 0);
    fpdu
}

#[test]
fn slow_answer_is_received() {
    const LEN: usize = 300;
    for whole in [true, false] {
        let simulation = Simulation::new(1, Link::default());
        let (pd, connection, mut peer) = reader(&simulation, &settings());
        let before = LIVE.get();
        let remote = RemoteMr { addr: 0, rkey: STag(1), len: LEN };
        let mut read = connection.read(pd.register(vec![0; LEN]).unwrap(), remote);
        let mut send = connection.send(pd.register(vec![1; LEN]).unwrap());
        // Requests complete in order, so this one completes after the Read.
        let payload: Vec<u8> = (0..LEN).map(|n| n as u8).collect();
        for _ in 0..4 {
            pass(&simulation, Duration::from_millis(1));
            peer.read();
        }
        let bytes = answer(&peer, &payload);
        let (last, front) = bytes.split_last().unwrap();
        for byte in front {
            assert_eq!(peer.stream.send(&[IoVec::from(&[*byte][..])]).unwrap(), 1);
            pass(&simulation, MINUTE);
            assert!(
                !is_over(&connection)
                    && poll(&mut read).is_pending()
                    && poll(&mut send).is_pending()
            );
            let held = LIVE.get() - before;
            assert!(held < BOUND, "{held} bytes held");
        }
        if !whole {
            closes_in_its_time(&simulation, &connection, vec![read, send]);
            continue;
        }
        assert_eq!(peer.stream.send(&[IoVec::from(&[*last][..])]).unwrap(), 1);
        pass(&simulation, MINUTE);
        let Poll::Ready(outcome) = poll(&mut read) else { panic!("the Read is answered") };
        let buffer = outcome.unwrap();
        assert_eq!(buffer.bytes(), payload);
        assert!(matches!(poll(&mut send), Poll::Ready(Ok(_))));
    }
}
