//! Runs every schedule of a few threads with a limited number of preemptions: see [`check`].
#![cfg(not(feature = "shuttle"))]

use std::sync::Arc;
use std::time::Duration;
use uiw_models::{Post, Shard, check, check_at_most, pass, set_tick};

/// Longer than every period in which the engine takes one call as a hint for another one.
const LONG_TICK: Duration = Duration::from_millis(20);

fn with_background(model: impl Fn(&Arc<Shard>) + Copy + Sync + Send + 'static) {
    with_clock(LONG_TICK, model);
}

fn with_clock(tick: Duration, model: impl Fn(&Arc<Shard>) + Copy + Sync + Send + 'static) {
    check(move || {
        set_tick(tick);
        Shard::with_background(model);
    });
}

/// Three threads have work for the core at the same time and make no further call; all work must be
/// served.
#[test]
fn posts_and_commands_not_lost() {
    check(|| {
        let shard = Shard::new();
        let posts = shard.spawn(|shard| shard.post(Post::Send));
        let commands = shard.spawn(Shard::command);
        shard.post(Post::Send);
        posts.join();
        commands.join();
        assert_eq!(shard.queue().pop(), 3);
    });
}

/// A thread posts without polling, so the background thread must serve the request.
#[test]
fn coalesced_posts_are_served() {
    with_background(|shard| {
        let poster = shard.spawn(|shard| {
            shard.post_coalesced(Post::Send);
            shard.post_coalesced(Post::Send);
        });
        shard.wait(2);
        poster.join();
    });
}

/// A thread waits while two others post and poll, in addition to the background thread.
#[test]
fn waiter_sees_completions_of_pollers() {
    check_at_most(2, || {
        set_tick(LONG_TICK);
        Shard::with_background(|shard| {
            let pollers =
                [Post::Send, Post::Send].map(|post| shard.spawn(move |shard| shard.post(post)));
            shard.wait(2);
            for poller in pollers {
                poller.join();
            }
        });
    });
}

/// Data arrives while a thread waits and another one polls once.
#[test]
fn waiter_sees_an_arrival() {
    with_background(|shard| {
        let other = shard.spawn(|shard| {
            shard.arrive();
            shard.post(Post::Send);
        });
        shard.wait(2);
        other.join();
    });
}

/// Data arrives while a thread waits and another one polls, so that the waiting thread gives up its
/// role. Then the polls end.
#[test]
fn waiter_leaves_arrivals_to_poller() {
    with_background(|shard| {
        let poller = shard.spawn(|shard| {
            shard.poll_other_queue();
            shard.arrive();
            shard.arrive();
        });
        shard.wait(2);
        poller.join();
    });
}

/// Another thread sets a deadline while a thread begins to wait.
#[test]
fn waiter_sees_a_deadline() {
    with_background(|shard| {
        let other = shard.spawn(|shard| {
            pass();
            shard.post(Post::Timer);
        });
        shard.wait(1);
        other.join();
    });
}

/// A program polls, arms, polls again and sleeps in its own poll(2).
#[test]
fn armed_queue_raises_an_event() {
    with_background(move |shard| {
        let peer = shard.spawn(|shard| shard.arrive());
        take_by_events(shard, 1);
        peer.join();
    });
}

/// Polls, arms, polls again and sleeps until `count` completions have been taken. The queue may be
/// empty after an event.
fn take_by_events(shard: &Arc<Shard>, count: usize) {
    let mut taken = shard.poll();
    while taken < count {
        shard.arm();
        taken += shard.poll();
        if taken < count {
            shard.wait_for_event();
            taken += shard.queue().pop();
        }
    }
    assert_eq!(taken, count);
}

/// A channel that is readable because of an arrival has an event, whatever other threads do in the
/// meantime.
#[test]
fn readable_channel_has_an_event() {
    with_background(|shard| {
        let other = shard.spawn(|shard| {
            shard.arrive();
            shard.post(Post::Send);
        });
        take_by_events(shard, 2);
        other.join();
    });
}

/// A program posts after it has armed the queue, and sleeps without polling. The token withheld by
/// its post must be written.
#[test]
fn withheld_token_ends_the_sleep() {
    with_background(|shard| {
        shard.arm();
        shard.post(Post::Send);
        shard.wait_for_event();
        assert_eq!(shard.queue().pop(), 1);
    });
}

/// Like the previous test, but another thread reads an arrival, of which the sleeping program must
/// be informed.
#[test]
fn arrival_read_elsewhere_ends_sleep() {
    with_background(|shard| {
        let other = shard.spawn(|shard| {
            shard.arrive();
            shard.command();
        });
        shard.arm();
        shard.post(Post::Send);
        let mut taken = shard.queue().pop();
        while taken < 3 {
            shard.wait_for_event();
            shard.arm();
            taken += shard.poll();
        }
        other.join();
    });
}

/// A thread waits in the engine and then sleeps outside of it. The background thread must serve
/// data that arrives during the sleep.
#[test]
fn armed_queue_raises_event_after_wait() {
    // The tick is so short that arming is taken as the beginning of another wait, and wakes no
    // thread.
    with_clock(Duration::from_micros(100), |shard| {
        let other = shard.spawn(|shard| {
            // The background thread parks while another thread sleeps.
            pass();
            shard.arrive();
        });
        shard.wait(1);
        assert_eq!(shard.queue().pop(), 1);
        other.join();
        shard.arm();
        shard.arrive();
        shard.wait_for_event();
    });
}
