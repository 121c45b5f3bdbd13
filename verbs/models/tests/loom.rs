//! Every schedule of a few threads: with at most [`QUICK`] preemptions, and in `cargo xtask models` with [`PREEMPTIONS`].
#![cfg(not(feature = "shuttle"))]

use std::sync::Arc;
use std::time::Duration;
use uiw_models::{Mutant, Post, Shard, check, finds, is_switched_on, pass, set_tick, spawn};

const PREEMPTIONS: usize = 3;
/// Of tests that `cargo test` runs.
const QUICK: usize = 1;

fn with_background(preemptions: usize, model: impl Fn(&Arc<Shard>) + Copy + Sync + Send + 'static) {
    // Longer than each time within which the engine takes one call for the sign of another.
    with_clock(Duration::from_millis(20), preemptions, model);
}

fn with_clock(
    tick: Duration,
    preemptions: usize,
    model: impl Fn(&Arc<Shard>) + Copy + Sync + Send + 'static,
) {
    check(preemptions, move || {
        set_tick(tick);
        Shard::with_background(model);
    });
}

/// Three threads that have work for the core at the same time, none of which comes back: all is served.
fn posts_and_a_command(preemptions: usize) {
    check(preemptions, || {
        let shard = Shard::new();
        let posts = {
            let shard = Arc::clone(&shard);
            spawn(move || shard.post(Post::Send))
        };
        let commands = {
            let shard = Arc::clone(&shard);
            spawn(move || shard.command())
        };
        shard.post(Post::Send);
        posts.join();
        commands.join();
        assert_eq!(shard.queue().pop(), 3);
    });
}

/// A thread that posts without polling: the background thread serves it.
fn coalesced_posts(preemptions: usize) {
    with_background(preemptions, |shard| {
        let poster = {
            let shard = Arc::clone(shard);
            spawn(move || {
                shard.post_coalesced(Post::Send);
                shard.post_coalesced(Post::Send);
            })
        };
        shard.wait(2);
        poster.join();
    });
}

/// A thread that waits while two others post and poll, beside the background thread.
fn two_pollers_and_a_waiter(preemptions: usize) {
    with_background(preemptions, |shard| {
        let pollers = [Post::Send, Post::Send].map(|post| {
            let shard = Arc::clone(shard);
            spawn(move || shard.post(post))
        });
        shard.wait(2);
        for poller in pollers {
            poller.join();
        }
    });
}

/// An arrival while a thread waits and another one polls once.
fn arrival(preemptions: usize) {
    with_background(preemptions, |shard| {
        let other = {
            let shard = Arc::clone(shard);
            spawn(move || {
                shard.arrive();
                shard.post(Post::Send);
            })
        };
        shard.wait(2);
        other.join();
    });
}

/// A deadline that another thread sets while a thread begins to wait.
fn timer(preemptions: usize) {
    with_background(preemptions, |shard| {
        let other = {
            let shard = Arc::clone(shard);
            spawn(move || {
                pass();
                shard.post(Post::Timer);
            })
        };
        shard.wait(1);
        other.join();
    });
}

/// A defect of a program: it arms after its last poll.
const NO_POLL_AFTER_ARM: &str = "NoPollAfterArm";

/// A program that polls, arms, polls again and sleeps in a poll(2) of its own.
fn armed(preemptions: usize) {
    with_background(preemptions, move |shard| {
        let peer = {
            let shard = Arc::clone(shard);
            spawn(move || shard.arrive())
        };
        if shard.poll() == 0 {
            shard.arm();
            if is_switched_on(NO_POLL_AFTER_ARM) || shard.poll() == 0 {
                shard.wait_for_event();
                assert_eq!(shard.queue().pop(), 1);
            }
        }
        peer.join();
    });
}

/// A wait, and then a sleep outside of the engine: the background thread serves what arrives then.
fn armed_after_a_wait(preemptions: usize) {
    // So short that arming is taken for the prelude of another wait, and wakes nobody.
    with_clock(Duration::from_micros(100), preemptions, |shard| {
        let other = {
            let shard = Arc::clone(shard);
            spawn(move || {
                // The background thread parks beside a thread that sleeps.
                pass();
                shard.arrive();
            })
        };
        shard.wait(1);
        assert_eq!(shard.queue().pop(), 1);
        other.join();
        shard.arm();
        shard.arrive();
        shard.wait_for_event();
    });
}

#[test]
fn no_post_and_no_command_is_left_behind() {
    posts_and_a_command(QUICK);
}

#[test]
fn coalesced_posts_are_served() {
    coalesced_posts(QUICK);
}

#[test]
fn waiter_sees_the_completions_of_two_pollers() {
    two_pollers_and_a_waiter(QUICK);
}

#[test]
fn waiter_sees_an_arrival() {
    arrival(QUICK);
}

#[test]
fn waiter_sees_a_deadline() {
    timer(QUICK);
}

#[test]
fn armed_queue_raises_an_event() {
    armed(QUICK);
}

#[test]
fn armed_queue_raises_an_event_after_a_wait() {
    armed_after_a_wait(QUICK);
}

#[test]
fn defects_are_found() {
    let handoff = "exhaustive::no_post_and_no_command_is_left_behind";
    let arrival = "exhaustive::waiter_sees_an_arrival";
    let deadline = "exhaustive::waiter_sees_a_deadline";
    let found = [
        (Mutant::PendingBeforePost, handoff),
        (Mutant::TakenBeforePending, handoff),
        (Mutant::UnlockOmitsRead, handoff),
        (Mutant::NotifyOmitsWake, arrival),
        (Mutant::NotifiedBeforeAsleep, deadline),
        (Mutant::ReadBeforeClaim, deadline),
        (Mutant::ParkedStaysAsleep, "exhaustive::armed_queue_raises_an_event_after_a_wait"),
    ];
    for (mutant, model) in found {
        assert!(finds(&format!("{mutant:?}"), model), "{mutant:?}");
    }
    assert!(finds(NO_POLL_AFTER_ARM, "exhaustive::armed_queue_raises_an_event"));
}

/// The same with more preemptions: minutes each.
mod exhaustive {
    use super::*;

    #[test]
    #[ignore = "minutes: cargo xtask models"]
    fn no_post_and_no_command_is_left_behind() {
        posts_and_a_command(PREEMPTIONS);
    }

    #[test]
    #[ignore = "minutes: cargo xtask models"]
    fn coalesced_posts_are_served() {
        coalesced_posts(PREEMPTIONS);
    }

    #[test]
    #[ignore = "minutes: cargo xtask models"]
    fn waiter_sees_the_completions_of_two_pollers() {
        two_pollers_and_a_waiter(PREEMPTIONS);
    }

    #[test]
    #[ignore = "minutes: cargo xtask models"]
    fn waiter_sees_an_arrival() {
        arrival(PREEMPTIONS);
    }

    #[test]
    #[ignore = "minutes: cargo xtask models"]
    fn waiter_sees_a_deadline() {
        timer(PREEMPTIONS);
    }

    #[test]
    #[ignore = "minutes: cargo xtask models"]
    fn armed_queue_raises_an_event() {
        armed(PREEMPTIONS);
    }

    #[test]
    #[ignore = "minutes: cargo xtask models"]
    fn armed_queue_raises_an_event_after_a_wait() {
        armed_after_a_wait(PREEMPTIONS);
    }
}
