//! Every schedule of a few threads, with a bounded number of preemptions: see [`check`].
#![cfg(not(feature = "shuttle"))]

use std::sync::Arc;
use std::time::Duration;
use uiw_models::{Mutant, Post, Shard, check, finds, is_switched_on, pass, set_tick};

fn with_background(model: impl Fn(&Arc<Shard>) + Copy + Sync + Send + 'static) {
    // Longer than each time within which the engine takes one call for the sign of another.
    with_clock(Duration::from_millis(20), model);
}

fn with_clock(tick: Duration, model: impl Fn(&Arc<Shard>) + Copy + Sync + Send + 'static) {
    check(move || {
        set_tick(tick);
        Shard::with_background(model);
    });
}

/// Three threads that have work for the core at the same time, none of which comes back: all is
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

/// A thread that posts without polling: the background thread serves it.
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

/// A thread that waits while two others post and poll, beside the background thread.
#[test]
fn waiter_sees_completions_of_pollers() {
    with_background(|shard| {
        let pollers = [Post::Send, Post::Send].map(|post| shard.spawn(move |shard| shard.post(post)));
        shard.wait(2);
        for poller in pollers {
            poller.join();
        }
    });
}

/// An arrival while a thread waits and another one polls once.
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

/// A deadline that another thread sets while a thread begins to wait.
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

/// A defect of a program: it arms after its last poll.
const NO_POLL_AFTER_ARM: &str = "NoPollAfterArm";

/// A program that polls, arms, polls again and sleeps in a poll(2) of its own.
#[test]
fn armed_queue_raises_an_event() {
    with_background(move |shard| {
        let peer = shard.spawn(|shard| shard.arrive());
        take_by_events(shard, 1);
        peer.join();
    });
}

/// Polls, arms, polls again and sleeps, until `count` completions were taken. An event may be of an
/// empty queue.
fn take_by_events(shard: &Arc<Shard>, count: usize) {
    let mut taken = shard.poll();
    while taken < count {
        shard.arm();
        if !is_switched_on(NO_POLL_AFTER_ARM) {
            taken += shard.poll();
        }
        if taken < count {
            shard.wait_for_event();
            taken += shard.queue().pop();
        }
    }
    assert_eq!(taken, count);
}

/// A channel that is readable for an arrival has an event, whatever other threads find meanwhile.
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

/// A program that posts after it has armed, and sleeps without a poll: the token that its post
/// withholds is written.
#[test]
fn withheld_token_ends_the_sleep() {
    with_background(|shard| {
        shard.arm();
        shard.post(Post::Send);
        shard.wait_for_event();
        assert_eq!(shard.queue().pop(), 1);
    });
}

/// The same, while another thread reads an arrival, which the sleeping program is to see.
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

/// A wait, and then a sleep outside of the engine: the background thread serves what arrives then.
#[test]
fn armed_queue_raises_event_after_wait() {
    // So short that arming is taken for the prelude of another wait, and wakes no thread.
    with_clock(Duration::from_micros(100), |shard| {
        let other = shard.spawn(|shard| {
            // The background thread parks beside a thread that sleeps.
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

#[test]
fn defects_are_found() {
    let handoff = "posts_and_commands_not_lost";
    let arrival = "waiter_sees_an_arrival";
    let deadline = "waiter_sees_a_deadline";
    let found = [
        (Mutant::PendingBeforePost, handoff),
        (Mutant::TakenBeforePending, handoff),
        (Mutant::UnlockOmitsRead, handoff),
        (Mutant::NotifyOmitsWake, arrival),
        (Mutant::NotifiedBeforeAsleep, deadline),
        (Mutant::ReadBeforeClaim, deadline),
        (Mutant::WorkIsNotNoted, "readable_channel_has_an_event"),
        (Mutant::WithheldIsKept, "withheld_token_ends_the_sleep"),
        (Mutant::ParkedStaysAsleep, "armed_queue_raises_event_after_wait"),
    ];
    for (mutant, model) in found {
        assert!(finds(&format!("{mutant:?}"), model), "{mutant:?}");
    }
    assert!(finds(NO_POLL_AFTER_ARM, "armed_queue_raises_an_event"));
}
