//! Tests connections that move to the shard of the thread that polls their completion queue.

use crate::common::{End, Make, fill, pair_of, peek, plain};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uiw_llp::tcp::TcpStack;
use uiw_verbs::{Access, Cq, Device, DeviceConfig, QpState, ShardSet, Wc, WcStatus};

/// Number of contended polls that exceeds the threshold for moving connections.
const MANY_POLLS: usize = 100;

fn device(shards: usize) -> Device {
    let stack = TcpStack::new().unwrap();
    Device::with_stack(Box::new(stack), DeviceConfig::default().shards(shards)).unwrap()
}

fn pair_on(device: &Device, shard: Option<usize>) -> (End, End) {
    let make = || End::make(device, &device.alloc_pd().unwrap(), Make { shard, ..Make::default() });
    pair_of(make(), make(), &plain())
}

fn shards(end: &End) -> [ShardSet; 2] {
    [end.scq.shards(), end.rcq.shards()]
}

/// Polls the queues alternately until `done` returns true: `here` on the calling thread and `there`
/// on another one. Takes no completions.
fn poll_alternately(here: &[&Cq], there: &[&Cq], mut done: impl FnMut() -> bool) {
    let (turn, stop) = (Barrier::new(2), AtomicBool::new(false));
    let poll = |cqs: &[&Cq]| {
        for cq in cqs {
            assert_eq!(cq.poll(&mut Vec::new(), 0), 0);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                turn.wait();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                poll(there);
                turn.wait();
            }
        });
        while !done() {
            poll(here);
            turn.wait();
            turn.wait();
        }
        stop.store(true, Ordering::Relaxed);
        turn.wait();
    });
}

/// Returns a function that returns true after [`MANY_POLLS`] calls.
fn after_many_polls() -> impl FnMut() -> bool {
    let mut polls = 0;
    move || {
        polls += 1;
        polls > MANY_POLLS
    }
}

fn exchange(a: &End, b: &End) {
    for (from, to) in [(a, b), (b, a)] {
        to.recv(7, 0, 64);
        from.send(8, 0, 64);
        from.sent_ok(8);
        to.received_ok(7);
    }
}

#[test]
fn connections_follow_polling_threads() {
    let device = device(2);
    let [(a, b), (c, d)] = [pair_on(&device, None), pair_on(&device, None)];
    assert_eq!((a.rcq.shards(), b.rcq.shards()), (c.rcq.shards(), d.rcq.shards()));
    poll_alternately(&[&a.rcq, &b.rcq], &[&c.rcq, &d.rcq], after_many_polls());
    assert_eq!(shards(&a), shards(&b));
    assert_eq!(shards(&c), shards(&d));
    assert_ne!(shards(&a), shards(&c));
    exchange(&a, &b);
    exchange(&c, &d);
    assert!(a.qp.path().is_some());
    c.qp.disconnect().unwrap();
    assert!(c.ended().orderly && d.ended().orderly);
    a.qp.modify(QpState::Err).unwrap();
    b.ended();
}

#[test]
fn selected_shard_is_kept() {
    let device = device(2);
    let [(a, b), (c, d)] = [pair_on(&device, Some(1)), pair_on(&device, Some(1))];
    let before = shards(&a);
    poll_alternately(&[&a.rcq, &b.rcq], &[&c.rcq, &d.rcq], after_many_polls());
    assert_eq!([shards(&a), shards(&b), shards(&c), shards(&d)], [before; 4]);
}

/// Moves the connection of `end` to another shard by polling it from a new thread. The queues of
/// `noise` are on both shards and stay there.
fn move_to_other_shard(end: &End, noise: &[&Cq]) {
    let before = end.rcq.shards();
    let poll = || poll_alternately(&[&end.rcq], noise, || end.rcq.shards() != before);
    std::thread::scope(|scope| scope.spawn(poll).join().unwrap());
}

/// A message waits for a receive that is posted after the connection has moved.
#[test]
fn waiting_message_received_after_move() {
    let device = device(2);
    let (a, b) = pair_on(&device, None);
    let [(c, _c), (d, _d)] = [0, 1].map(|shard| pair_on(&device, Some(shard)));
    for round in 0..4 {
        a.send(round, 0, 64);
        a.sent_ok(round);
        move_to_other_shard(&b, &[&c.rcq, &d.rcq]);
        b.recv(round, 0, 64);
        b.received_ok(round);
    }
}

/// Messages are sent in both directions and control calls are made while threads take turns in
/// polling one end.
#[test]
fn messages_survive_repeated_moves() {
    let device = device(2);
    let (a, b) = pair_on(&device, None);
    let [(c, _c), (d, _d)] = [0, 1].map(|shard| pair_on(&device, Some(shard)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..20).for_each(|_| move_to_other_shard(&b, &[&c.rcq, &d.rcq]));
            stop.store(true, Ordering::Relaxed);
        });
        for round in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
            fill(&a.mr, 0, &u64::to_be_bytes(round));
            b.recv(round, 0, 64);
            a.send(round, 0, 64);
            take(&b.rcq, round);
            assert_eq!(peek(&b.mr, 0, 8), round.to_be_bytes());
            a.sent_ok(round);
            match round % 4 {
                0 => b.qp.set_access(Access::all()),
                1 => assert!(b.qp.path().is_some()),
                2 => b.qp.set_no_receive_timeout(Duration::MAX).unwrap(),
                _ => assert_eq!(b.qp.query().state, QpState::Rts),
            }
        }
    });
    exchange(&a, &b);
}

/// Waits for the completion of a receive without polling the queue, because a poll would make this
/// thread the one that polls the queue.
fn take(cq: &Cq, wr_id: u64) {
    let right = |wc: Wc| assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    while cq.take_with(1, right) == 0 {
        std::thread::yield_now();
    }
}
