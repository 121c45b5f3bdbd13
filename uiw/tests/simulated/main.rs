//! Tests of two ends on a simulated link with a virtual clock: all operations, independently of how
//! the link splits the bytes.

mod byte_stream;
mod cuts;
mod dead_peers;
mod drops;
mod endings;
mod every_byte;
mod link;
mod messages;
mod paths;
mod posting;
mod raw;
mod segments;
mod slow;
mod splits;
mod timers;
