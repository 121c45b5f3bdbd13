//! System calls of the program `uiw` that need unsafe code: copies of the process, mount namespaces
//! with a small sysfs for RDMA programs, and trials of calls that a sandbox may refuse. Only the
//! program uses this crate.

pub mod calls;
mod mounts;
pub mod split;
pub mod sysfs;
