//! Two ends on a simulated link with a virtual clock: every operation, however the link cuts the octets up.

mod cuts;
mod drops;
mod every_octet;
mod link;
mod paths;
mod segments;
mod splits;
mod timers;
