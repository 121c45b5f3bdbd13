//! Thread that waits for packets over UDP, for all sockets. It is started by the first socket.

use crate::datagram::Datagram;
use crate::sys;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::fork::{ForkSafe, ForkState};
use uiw_cabi_core::inherited::close_copy;
use uiw_verbs::integration::spawn_thread;

struct DatagramWatch {
    /// Epoll set with the UDP sockets.
    set: Option<Arc<OwnedFd>>,
    sockets: BTreeMap<u64, Weak<Datagram>>,
    next: u64,
}

impl ForkState for DatagramWatch {
    const NEW: Self = Self { set: None, sockets: BTreeMap::new(), next: 0 };

    fn in_child(&mut self) {
        if let Some(set) = self.set.take() {
            // Closes the child's copy, which nothing else in the child uses. The thread belongs to
            // the parent.
            close_copy(set.as_raw_fd());
            std::mem::forget(set);
        }
        std::mem::forget(std::mem::replace(self, Self::NEW));
    }
}

static WATCH: ForkSafe<DatagramWatch> = ForkSafe::new();

/// Returns the set, and starts the thread that waits for it if necessary.
fn set() -> Result<Arc<OwnedFd>> {
    if let Some(set) = &WATCH.read().set {
        return Ok(Arc::clone(set));
    }
    let mut watch = WATCH.write();
    if let Some(set) = &watch.set {
        return Ok(Arc::clone(set));
    }
    let made = sys::epoll_create(0)?;
    // Low descriptor numbers are left to the program.
    let set = Arc::new(sys::duplicate(made.as_raw_fd())?);
    let own = Arc::clone(&set);
    spawn_thread("uiw-datagrams", move || run(&own))?;
    watch.set = Some(Arc::clone(&set));
    Ok(set)
}

/// Watches a socket, whose UDP socket is `udp`. Returns the number of the registration.
///
/// # Errors
/// EMFILE; EAGAIN if the thread cannot be started.
pub(super) fn add(socket: &Weak<Datagram>, udp: RawFd) -> Result<u64> {
    let set = set()?;
    let number = {
        let mut watch = WATCH.write();
        watch.next += 1;
        let number = watch.next;
        watch.sockets.insert(number, Weak::clone(socket));
        number
    };
    let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
    sys::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, udp, Some(event)).inspect_err(|_| {
        WATCH.write().sockets.remove(&number);
    })?;
    Ok(number)
}

/// Stops watching a socket.
pub(super) fn remove(number: u64, udp: RawFd) {
    let set = {
        let mut watch = WATCH.write();
        watch.sockets.remove(&number);
        watch.set.clone()
    };
    if let Some(set) = set
        && let Err(error) = sys::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_DEL, udp, None)
    {
        tracing::warn!(%error, "a UDP socket stays in its set");
    }
}

fn run(set: &OwnedFd) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
    loop {
        let found = match sys::epoll_wait(set.as_raw_fd(), &mut events, -1) {
            Ok(found) => found,
            Err(Errno::INTR) => continue,
            Err(error) => {
                tracing::error!(%error, "datagram rsockets receive nothing over UDP any more");
                return;
            }
        };
        for event in &events[..found] {
            let number = event.u64;
            let socket = WATCH.read().sockets.get(&number).and_then(Weak::upgrade);
            if let Some(socket) = socket {
                if event.events & libc::EPOLLERR as u32 != 0 {
                    socket.discard_reports();
                }
                socket.process_udp();
            }
        }
    }
}
