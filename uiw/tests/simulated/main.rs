//! Two ends on a simulated link with a virtual clock: every operation, however the link cuts the
//! bytes up.

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
