//! System calls that uiw makes, and which of them a seccomp filter refuses. Each call is tried in a
//! process of its own, with arguments that the kernel rejects, so that it has no effect.

use crate::split::{Outcome, in_child};
use std::ffi::{c_int, c_long};
use std::io;

/// Feature that needs a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// All features.
    Everything,
    /// Datagrams of UD queue pairs.
    Datagrams,
    /// The file of counters, which `uiw stat` and `uiw run --require` read.
    Counters,
    /// Copies of files.
    Copies,
    /// rsockets in place of the TCP sockets of programs, and reports of runs.
    Pairs,
    /// Short delays where every processor is busy.
    Scheduling,
}

/// A system call.
#[derive(Debug)]
pub struct Call {
    /// Name.
    pub name: &'static str,
    /// Purpose of the call.
    pub purpose: Purpose,
    number: c_long,
    arguments: [c_long; 4],
}

/// Way in which a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It fails with this error number.
    Error(c_int),
    /// It ends the process.
    Kills,
}

const fn call(
    purpose: Purpose,
    name: &'static str,
    number: c_long,
    arguments: [c_long; 4],
) -> Call {
    Call { name, purpose, number, arguments }
}

/// Arguments with an invalid descriptor.
const NONE: [c_long; 4] = [-1, 0, 0, 0];
/// Arguments with an address that is not aligned to a page.
const UNALIGNED: [c_long; 4] = [1, 0, 0, 0];

/// System calls to check. The list contains neither the calls that every program needs to start,
/// nor those with separate checks (threads, namespaces).
pub const CALLS: &[Call] = {
    use Purpose::{Copies, Counters, Datagrams, Everything, Pairs, Scheduling};
    &[
        call(Everything, "socket", libc::SYS_socket, [libc::AF_INET as c_long, -1, 0, 0]),
        call(Everything, "bind", libc::SYS_bind, NONE),
        call(Everything, "listen", libc::SYS_listen, NONE),
        call(Everything, "accept4", libc::SYS_accept4, NONE),
        call(Everything, "connect", libc::SYS_connect, NONE),
        call(Everything, "sendto", libc::SYS_sendto, NONE),
        call(Everything, "recvfrom", libc::SYS_recvfrom, NONE),
        call(Everything, "sendmsg", libc::SYS_sendmsg, NONE),
        call(Everything, "recvmsg", libc::SYS_recvmsg, NONE),
        call(Everything, "setsockopt", libc::SYS_setsockopt, NONE),
        call(Everything, "getsockopt", libc::SYS_getsockopt, NONE),
        call(Everything, "getsockname", libc::SYS_getsockname, NONE),
        call(Everything, "getpeername", libc::SYS_getpeername, NONE),
        call(Everything, "shutdown", libc::SYS_shutdown, NONE),
        call(Everything, "ioctl", libc::SYS_ioctl, NONE),
        call(Everything, "epoll_create1", libc::SYS_epoll_create1, NONE),
        call(Everything, "epoll_ctl", libc::SYS_epoll_ctl, NONE),
        #[cfg(target_arch = "x86_64")]
        call(Everything, "epoll_wait", libc::SYS_epoll_wait, NONE),
        call(Everything, "epoll_pwait", libc::SYS_epoll_pwait, NONE),
        call(Everything, "eventfd2", libc::SYS_eventfd2, [0, -1, 0, 0]),
        #[cfg(target_arch = "x86_64")]
        call(Everything, "poll", libc::SYS_poll, [0, -1, 0, 0]),
        call(Everything, "ppoll", libc::SYS_ppoll, [0, -1, 0, 0]),
        call(Everything, "fcntl", libc::SYS_fcntl, NONE),
        call(Everything, "madvise", libc::SYS_madvise, UNALIGNED),
        call(Everything, "mremap", libc::SYS_mremap, UNALIGNED),
        call(Everything, "rt_sigaction", libc::SYS_rt_sigaction, NONE),
        call(Everything, "rt_sigprocmask", libc::SYS_rt_sigprocmask, NONE),
        call(Everything, "sched_yield", libc::SYS_sched_yield, [0; 4]),
        call(Datagrams, "sendmmsg", libc::SYS_sendmmsg, NONE),
        call(Datagrams, "recvmmsg", libc::SYS_recvmmsg, NONE),
        call(Counters, "fallocate", libc::SYS_fallocate, NONE),
        call(Counters, "ftruncate", libc::SYS_ftruncate, NONE),
        call(Counters, "renameat", libc::SYS_renameat, NONE),
        call(Counters, "unlinkat", libc::SYS_unlinkat, NONE),
        call(Copies, "openat2", libc::SYS_openat2, NONE),
        call(Pairs, "socketpair", libc::SYS_socketpair, [libc::AF_UNIX as c_long, -1, 0, 0]),
        call(Scheduling, "clock_gettime", libc::SYS_clock_gettime, NONE),
        call(Scheduling, "sched_getattr", libc::SYS_sched_getattr, NONE),
        call(Scheduling, "sched_setattr", libc::SYS_sched_setattr, NONE),
    ]
};

/// Returns the calls that are refused. The process must have one thread.
///
/// # Errors
/// Returns the errors of [`split`](crate::split::split).
pub fn refused() -> io::Result<Vec<(&'static Call, Refusal)>> {
    let mut refused = Vec::new();
    for call in CALLS {
        if let Some(refusal) = call.refusal()? {
            refused.push((call, refusal));
        }
    }
    Ok(refused)
}

/// Returns whether bpf(2), which AF_XDP needs, ends the process. The process must have one thread.
///
/// # Errors
/// Returns the errors of [`refused`].
pub fn is_bpf_fatal() -> io::Result<bool> {
    let bpf = call(Purpose::Everything, "bpf", libc::SYS_bpf, NONE);
    Ok(bpf.refusal()? == Some(Refusal::Kills))
}

impl Call {
    fn refusal(&self) -> io::Result<Option<Refusal>> {
        let outcome = in_child(|| {
            // SAFETY: the kernel rejects the arguments before it uses them, because they are
            // invalid descriptors, addresses or flags. sched_yield(2) has no arguments.
            let answer = unsafe {
                libc::syscall(
                    self.number,
                    self.arguments[0],
                    self.arguments[1],
                    self.arguments[2],
                    self.arguments[3],
                )
            };
            let error = io::Error::last_os_error().raw_os_error().unwrap_or(0);
            // The kernel itself never returns these errors for such arguments.
            if answer == -1 && matches!(error, libc::EPERM | libc::EACCES | libc::ENOSYS) {
                error
            } else {
                0
            }
        })?;
        Ok(match outcome {
            Outcome::Exit(0) => None,
            Outcome::Exit(error) => Some(Refusal::Error(error)),
            Outcome::Signal(_) => Some(Refusal::Kills),
        })
    }
}
