//! The connection manager's exported functions as a program in C calls them, where no stock program does.

use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;
use uiw_cabi::abi::{rdma_cm_event, rdma_event_channel};
use uiw_cabi::cm;
use uiw_cabi::errno::Errno;

/// A channel that goes from thread to thread, as C's pointers do.
#[derive(Clone, Copy)]
struct Channel(*mut rdma_event_channel);

// SAFETY: the functions may be called from any thread.
unsafe impl Send for Channel {}

impl Channel {
    fn new() -> Self {
        let channel = cm::rdma_create_event_channel();
        assert!(!channel.is_null());
        Self(channel)
    }

    /// What `rdma_get_cm_event` ends with when it gets none.
    fn get_none(self) -> Errno {
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the event has room.
        assert_eq!(unsafe { cm::rdma_get_cm_event(self.0, &raw mut event) }, -1);
        Errno::last()
    }

    fn set_nonblocking(self, nonblocking: bool) {
        // SAFETY: a channel that was not destroyed, and numbers.
        unsafe {
            let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
            assert_eq!(libc::fcntl((*self.0).fd, libc::F_SETFL, flags), 0);
        }
    }

    fn destroy(self) {
        // SAFETY: any pointer may be given.
        unsafe { cm::rdma_destroy_event_channel(self.0) };
    }
}

extern "C" fn nothing(_: libc::c_int) {}

/// Signals end a sleep with EINTR, and nothing else.
fn handle_signals() {
    // SAFETY: the handler does nothing at all; the structure is one of zeros and what is set here.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()), 0);
    }
}

/// Signals `sleeper` until it ends: a signal that comes before the sleep is not seen by it.
fn interrupt<T>(sleeper: thread::JoinHandle<T>) -> T {
    while !sleeper.is_finished() {
        // SAFETY: it is not joined yet.
        unsafe { libc::pthread_kill(sleeper.as_pthread_t(), libc::SIGUSR1) };
        thread::sleep(Duration::from_millis(1));
    }
    sleeper.join().unwrap()
}

/// Held by every test: a channel's address may be given to the next channel at once, of whichever test.
static ADDRESSES: Mutex<()> = Mutex::new(());

/// Reads a channel once in a thread, destroys it here, and reads it in that thread again.
fn read_destroy_read(blocking: bool) -> Errno {
    let channel = Channel::new();
    let ((read, is_read), (destroyed, is_destroyed)) = (mpsc::channel(), mpsc::channel());
    let reader = thread::spawn(move || {
        channel.set_nonblocking(true);
        assert_eq!(channel.get_none(), Errno::AGAIN);
        channel.set_nonblocking(!blocking);
        read.send(()).unwrap();
        is_destroyed.recv().unwrap();
        channel.get_none()
    });
    is_read.recv().unwrap();
    channel.destroy();
    assert_eq!(channel.get_none(), Errno::INVAL, "only the reader sleeps");
    destroyed.send(()).unwrap();
    interrupt(reader)
}

#[test]
fn a_reader_keeps_sleeping_when_its_channel_is_destroyed_between_two_reads() {
    let _alone = ADDRESSES.lock();
    handle_signals();
    assert_eq!(read_destroy_read(true), Errno::INTR);
}

#[test]
fn a_nonblocking_reader_gets_an_error_when_the_channel_is_gone() {
    let _alone = ADDRESSES.lock();
    handle_signals();
    assert_eq!(read_destroy_read(false), Errno::INVAL);
}

#[test]
fn a_destroyed_channel_is_an_error_for_every_thread() {
    let _alone = ADDRESSES.lock();
    let channel = Channel::new();
    channel.set_nonblocking(true);
    assert_eq!(channel.get_none(), Errno::AGAIN);
    channel.set_nonblocking(false);
    channel.destroy();
    assert_eq!(channel.get_none(), Errno::INVAL);
    assert_eq!(thread::spawn(move || channel.get_none()).join().unwrap(), Errno::INVAL);
    channel.destroy();
}
