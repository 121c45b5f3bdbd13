//! Tests the engine against a scripted peer, byte by byte, and against itself. The tests use a
//! simulated network, or the kernel's TCP if TCP or threads are the subject.

mod access_rights;
mod acknowledged;
mod common;
mod counters;
mod data;
mod datagram_runs;
mod datagrams;
mod foreign;
mod idle_poll;
mod itself;
mod migrate;
mod moves;
mod nics;
mod peer;
mod poll_waiter;
mod progress;
mod request_order;
mod requirements;
mod segmentation;
mod semantics;
mod shard_stress;
mod shards;
mod simulation;
mod startup;
mod teardown;
mod transport;
mod unreliable;
mod waiting;
