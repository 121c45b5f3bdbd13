//! Stock RDMA programs on uiw's `libibverbs.so.1` and `librdmacm.so.1`: builds the two libraries,
//! and runs programs of Debian's packages and C programs of our own with them, in network
//! namespaces, as an ordinary user, with time limits.

mod hosts;
mod leftovers;
mod network;
mod noise;
mod process;
mod programs;
mod wait_limit;

pub use hosts::Hosts;
pub use leftovers::{is_left_over, sweep};
pub use network::{Network, free_port};
pub use noise::noise;
pub use process::{ProcessEnd, Running, binds, listens};
pub use programs::{BUILT, Libraries, PACKAGES, User, built, compile, ordinary, run_by, uiw};
pub use wait_limit::WaitLimit;
