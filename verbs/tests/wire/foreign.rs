//! Tests user code that runs inside the engine's calls: nested waits, closures that post requests,
//! and the fairness of the engine.

use crate::common::{End, initiator, initiator_opt, next_event, plain, tcp_pair};
use crate::peer::Port;
use std::future::poll_fn;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use uiw_verbs::cm::CmEventKind;
use uiw_verbs::{Device, DeviceConfig, Limits, WcStatus};

#[test]
fn nested_wait_keeps_outer_wake_up() {
    let device = Device::open().unwrap();
    let mut woken = false;
    let outer = poll_fn(|cx| {
        if std::mem::replace(&mut woken, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        device.block_on(async {});
        Poll::Pending
    });
    let start = Instant::now();
    assert_eq!(device.block_on_for(Duration::from_secs(5), outer), Some(()));
    assert!(start.elapsed() < Duration::from_secs(4), "it slept until its deadline");
}

/// Waker that starts a connection with a short timeout when it is dropped.
struct ConnectsWhenDropped(Arc<(End, Port)>);

impl Wake for ConnectsWhenDropped {
    fn wake(self: Arc<Self>) {}
}

impl Drop for ConnectsWhenDropped {
    fn drop(&mut self) {
        let (end, port) = &*self.0;
        end.connect(port.addr(), &plain().startup_timeout(Duration::from_millis(300)));
        // TCP has no more events for this connection, so only the deadline can wake a thread.
        std::thread::sleep(Duration::from_millis(50));
        end.device.pump();
    }
}

#[test]
fn deadline_during_forget_respected() {
    let mut old = End::tcp();
    let new = End::on(&old.device);
    let device = old.device.clone();
    let options = plain().close_timeout(Duration::from_secs(60));
    let peer = initiator_opt(&old, &options);
    old.qp.modify(uiw_verbs::QpState::Err).unwrap();
    old.ended();
    let channel = new.channel.clone();
    // This peer never answers.
    let silent = Port::tcp();
    let attempt = Arc::new((new, silent));
    let waker = Waker::from(Arc::new(ConnectsWhenDropped(Arc::clone(&attempt))));
    assert!(old.channel.poll_pop(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    // From now on only the connection holds its channel, so the waker is dropped with both.
    old.channel = Arc::default();
    std::thread::sleep(Duration::from_millis(20));
    let start = Instant::now();
    drop(peer);
    // No thread polls, so the background thread alone must keep the deadline.
    while channel.is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(4),
            "the connection attempt does not time out"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(next_event(&device, &channel), CmEventKind::Failed(_)));
}

#[test]
fn wakers_may_post() {
    let (done, over) = mpsc::channel();
    std::thread::spawn(move || {
        let (a, b) = tcp_pair();
        for i in 0..64 {
            b.recv(i, 0, 64);
        }
        a.send(0, 0, 8);
        let start = Instant::now();
        let mut next = 1;
        while next < 40 {
            a.scq.poll_with(4, |wc| {
                assert_eq!(wc.status, WcStatus::Success);
                a.send(next, 0, 8);
                next += 1;
            });
            assert!(start.elapsed() < Duration::from_secs(10));
        }
        done.send(()).unwrap();
    });
    over.recv_timeout(Duration::from_secs(20))
        .expect("the queue is not locked while completions are handed out");
}

fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a plain system call with a live buffer.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn unreadable_stream_does_not_spin() {
    let limits = Limits::default().max_held_bytes(0);
    let stack = Box::new(uiw_llp::tcp::TcpStack::new().unwrap());
    let options = DeviceConfig::default().limits(limits);
    let end = End::on(&Device::with_stack(stack, options).unwrap());
    let mut peer = initiator(&end);
    end.recv(1, 0, 64);
    peer.send(b"not read");
    std::thread::sleep(Duration::from_millis(50));
    let before = thread_cpu();
    end.device.block_on_for(Duration::from_millis(500), std::future::pending::<()>());
    let used = thread_cpu() - before;
    assert!(used < Duration::from_millis(150), "{used:?} of 500 ms");
}
