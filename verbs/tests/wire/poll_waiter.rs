//! Tests threads that sleep in their own poll(2): [`PollWaiter`].

use crate::common::{End, Make, pair_of};
use std::os::fd::{AsFd, AsRawFd};
use std::task::Context;
use std::time::Duration;
use uiw_verbs::{ConnConfig, Device, PollWaiter, WcStatus};

/// Sleeps as a program does, and returns whether the waiter becomes readable within `timeout`.
fn sleep(waiter: &PollWaiter, timeout: Duration) -> bool {
    let mut polled =
        libc::pollfd { fd: waiter.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `polled` is a single descriptor that can be written to.
    let ready = unsafe { libc::poll(&raw mut polled, 1, timeout.as_millis() as i32) };
    ready == 1
}

/// Creates an end whose connections are on `shard` of `device`.
fn end_on(device: &Device, shard: usize) -> End {
    End::make(device, &device.alloc_pd().unwrap(), Make { shard: Some(shard), ..Make::default() })
}

/// Receives a message, and sleeps until it arrives.
fn receive(end: &End, waiter: &mut PollWaiter) {
    let waker = waiter.waker();
    loop {
        waiter.arm(end.rcq.shards());
        if end.rcq.take_with(1, |wc| assert_eq!(wc.status, WcStatus::Success)) == 1 {
            return;
        }
        let ready = end.rcq.poll_ready(&mut Context::from_waker(&waker)).is_ready();
        if !ready && waiter.begin_sleep() {
            let readable = sleep(waiter, Duration::from_secs(20));
            assert!(readable, "nothing within 20 s");
            waiter.end_sleep(readable);
        }
    }
}

/// Runs a ping-pong of `rounds` between two threads, each with a waiter. A single lost wake-up
/// makes it hang.
fn ping_pong(client: &End, server: &End, rounds: u64) {
    std::thread::scope(|scope| {
        let play = |end: &End, begins: bool| {
            let mut waiter = PollWaiter::new(&end.device).unwrap();
            if begins {
                end.send(0, 100, 8);
            }
            for i in 0..rounds {
                end.recv(i, 0, 64);
                receive(end, &mut waiter);
                end.send(i, 100, 8);
                end.scq.take_with(16, |wc| assert_eq!(wc.status, WcStatus::Success));
            }
        };
        // There is one receive more than messages in flight.
        [client, server].iter().for_each(|end| end.recv(u64::MAX, 0, 64));
        scope.spawn(move || play(client, true));
        scope.spawn(move || play(server, false));
    });
}

#[test]
fn wake_ups_of_waiter_not_lost() {
    let devices = [(); 2].map(|()| Device::open().unwrap());
    let (a, b) = pair_of(end_on(&devices[0], 0), end_on(&devices[1], 0), &ConnConfig::default());
    ping_pong(&a, &b, 5_000);
}

/// Two threads sleep until data arrives on the same shard. Each gets its own data, although the
/// shard itself can wake only one of them.
#[test]
fn waiters_sharing_shard_served_separately() {
    let devices = [(); 2].map(|()| Device::open().unwrap());
    let pair = || pair_of(end_on(&devices[0], 0), end_on(&devices[1], 0), &ConnConfig::default());
    let pairs = [pair(), pair()];
    std::thread::scope(|scope| {
        for (a, b) in &pairs {
            scope.spawn(move || ping_pong(a, b, 1_000));
        }
    });
}

/// The arrival itself ends the sleep, and no other thread makes progress before the woken thread.
#[test]
fn arrival_wakes_driving_thread() {
    let device = Device::open().unwrap();
    let (sender, target) = pair_of(End::tcp(), end_on(&device, 0), &ConnConfig::default());
    let mut waiter = PollWaiter::new(&device).unwrap();
    // The background thread may be faster in some of the attempts.
    let by_itself = (0..200).any(|i| {
        target.recv(i, 0, 64);
        waiter.arm(target.rcq.shards());
        assert!(waiter.begin_sleep(), "no waker is registered");
        sender.send(i, 0, 8);
        assert!(sleep(&waiter, Duration::from_secs(20)), "nothing within 20 s");
        let before = target.rcq.len();
        waiter.end_sleep(true);
        let after = target.rcq.len();
        sender.sent_ok(i);
        while target.rcq.poll_with(1, |_| ()) == 0 {}
        (before, after) == (0, 1)
    });
    assert!(by_itself, "another thread drove each time");
}

#[test]
fn waker_ends_or_prevents_sleep() {
    let device = Device::open().unwrap();
    let mut waiter = PollWaiter::new(&device).unwrap();
    let waker = waiter.waker();
    waiter.arm(Default::default());
    waker.wake_by_ref();
    assert!(!waiter.begin_sleep(), "a waker was called after arming");
    waiter.arm(Default::default());
    assert!(waiter.begin_sleep());
    waker.wake_by_ref();
    assert!(sleep(&waiter, Duration::ZERO), "the descriptor is readable");
    waiter.end_sleep(true);
    waiter.arm(Default::default());
    assert!(waiter.begin_sleep(), "the wake-up is over");
    assert!(!sleep(&waiter, Duration::ZERO), "the descriptor was read");
    waiter.end_sleep(false);
    waker.wake_by_ref();
    assert!(!sleep(&waiter, Duration::ZERO), "the descriptor is written for a sleeper alone");
    // Another descriptor has ended the sleep, and the wake-up came afterwards.
    waiter.arm(Default::default());
    assert!(waiter.begin_sleep());
    waker.wake_by_ref();
    waiter.end_sleep(false);
    waiter.arm(Default::default());
    assert!(waiter.begin_sleep() && sleep(&waiter, Duration::ZERO), "one needless wake-up");
    waiter.end_sleep(true);
    waiter.arm(Default::default());
    assert!(waiter.begin_sleep() && !sleep(&waiter, Duration::ZERO), "and no second one");
}

#[test]
fn descriptors_have_requested_minimum() {
    let device = Device::open().unwrap();
    let waiter = PollWaiter::new_above(&device, 300).unwrap();
    assert!(waiter.as_fd().as_raw_fd() >= 300);
    // The process may not have descriptors with such a number, so any descriptor is accepted.
    assert!(PollWaiter::new_above(&device, i32::MAX).is_ok());
}
