//! Two ends on a simulated link with a virtual clock: every operation, however the link cuts the octets up.

mod cuts;
mod drops;
mod every_octet;
mod link;
mod paths;
mod raw;
mod segments;
mod slow;
mod splits;
mod timers;
