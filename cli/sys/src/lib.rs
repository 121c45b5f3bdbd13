//! System calls of the program `uiw` that need unsafe code: copies of the process, mount namespaces
//! with a small sysfs for RDMA programs, trials of calls that a sandbox may refuse, and dispositions
//! of signals. Only the program uses this crate.

pub mod calls;
mod mounts;
pub mod signals;
pub mod split;
pub mod sysfs;
