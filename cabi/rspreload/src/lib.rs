//! `librspreload.so`: a program that has it in LD_PRELOAD has rsockets where it makes TCP sockets.
//!
//! Each function of the C library that takes a descriptor is replaced by one that looks at the
//! descriptor's bit. Where it is not set, which is the case for everything but TCP sockets and
//! epoll sets with TCP sockets, the C library's function is called. Otherwise `libibverbs.so.1`
//! says what the descriptor is: `uiw_cabi_rsocket::preload` there has the sockets.
//!
//! * Functions of the C library at which a thread may be cancelled unwind from there through the
//!   functions here, which therefore hold nothing with a destructor and are `extern "C-unwind"`.
//! * A wait for an epoll set is counted, as the first rsocket that enters the set makes the wait
//!   another one.
//! * Nothing is allocated and no lock is taken for a descriptor whose bit is not set, so signal
//!   handlers may call what they may call of the C library's. The C library's functions are looked
//!   up when this library is loaded.

mod argument;
mod bits;
mod close;
mod connect;
mod next;
mod options;
mod sockets;
mod transfer;
mod wait;
mod waiting;

use std::ffi::c_int;

/// Called when the library is loaded.
extern "C" fn load() {
    next::find_all();
    bits::find();
    waiting::find();
    sockets::uiw_sockets_loaded();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

fn errno() -> c_int {
    // SAFETY: the C library gives every thread its own `errno`, whose address is aligned and valid
    // as long as the thread lives. It is initialized, only this thread accesses it, and no
    // reference to it exists.
    unsafe { *libc::__errno_location() }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: the C library gives every thread its own `errno`, whose address is aligned and valid
    // as long as the thread lives. Only this thread accesses it, and no reference to it exists.
    unsafe { *libc::__errno_location() = errno };
    -1
}
