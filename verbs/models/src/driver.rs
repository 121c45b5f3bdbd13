//! Source files of the engine, and replacements for the rest of the crate.
#![allow(dead_code, reason = "the models do not use all of the engine")]

#[path = "../driver/epoll_waiter.rs"]
mod epoll_waiter;
#[path = "../driver/handoff.rs"]
mod handoff;
#[path = "../driver/park.rs"]
mod park;
#[path = "../driver/progress/mod.rs"]
mod progress;

#[path = "../driver/watch.rs"]
mod watch;

#[path = "os.rs"]
mod os;
#[path = "shard.rs"]
mod shard;
#[path = "sync.rs"]
mod sync;
#[path = "time.rs"]
mod time;

pub use os::set_tick;
pub use shard::{Post, Queue, Shard};
pub(crate) use time::begin;
pub use time::{JoinHandle, pass};
