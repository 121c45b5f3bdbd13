//! Runs random schedules of more threads.
#![cfg(feature = "shuttle")]

use std::time::Duration;
use uiw_models::{Post, Shard, check, set_tick};

const SCHEDULES: usize = 20_000;

/// Runs threads that post, coalesce, command and set deadlines, arrivals, two threads that wait and
/// one that polls, in addition to the background thread. Everything must complete, and every wait
/// must end.
fn everything(schedules: usize) {
    check(schedules, || {
        set_tick(Duration::from_millis(1));
        Shard::with_background(|shard| {
            let threads = [
                shard.spawn(|shard| shard.post(Post::Send)),
                shard.spawn(|shard| shard.post_coalesced(Post::Send)),
                shard.spawn(|shard| shard.post(Post::Timer)),
                shard.spawn(Shard::command),
                shard.spawn(|shard| shard.arrive()),
                shard.spawn(|shard| shard.wait(2)),
                shard.spawn(|shard| shard.wait(5)),
            ];
            shard.wait(5);
            for thread in threads {
                thread.join();
            }
            assert_eq!(shard.queue().pop(), 5);
            shard.arm();
            shard.arrive();
            shard.wait_for_event();
        });
    });
}

#[test]
fn everything_is_served() {
    everything(SCHEDULES);
}
