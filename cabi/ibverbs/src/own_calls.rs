//! Functions of the C library that this library has for its own calls alone: a library that is
//! loaded in front of it may replace them.
//!
//! librspreload.so turns every `socket` of a process into an rsocket. The engine's own TCP sockets
//! would be made of rsockets, which are made of TCP sockets. The name is local to this library: the
//! linker binds the library's calls to it, and programs do not see it.

use std::ffi::c_int;

core::arch::global_asm!(
    ".pushsection .text.uiw_own_calls,\"ax\",@progbits",
    ".p2align 4",
    ".globl socket",
    ".hidden socket",
    ".type socket,@function",
    "socket:",
    crate::export::jump!(),
    ".size socket, . - socket",
    ".popsection",
    f = sym socket,
);

/// socket(2).
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: socket(2) takes three integers and accesses no memory. The result is -1 or a
    // descriptor, which fits into a `c_int`.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}
