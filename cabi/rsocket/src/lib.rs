//! Sockets over RDMA: the rsocket API of librdmacm, with rdma-core's wire protocol.
//!
//! ```text
//!   exports, transfer, poll, epoll     C's functions
//!   table ─► any                       descriptors: a stream or datagrams
//!   preload                            TCP sockets of a program that become rsockets
//!   socket                             one socket: state, lock, waiting threads ─► wait: driving and sleeping
//!   connect, acceptor ─► service       making connections; the thread that accepts
//!   stream                             a connection: sender, receiver, mappings (no I/O) over link (a queue pair and its memory)
//!   wire                               private data, messages, targets
//!   datagram                           datagrams: UD queue pairs, and a UDP socket
//! ```
//!
//! The program's data is copied to a ring (`sender`), written to the peer's ring (`receiver` at the
//! peer) and announced by a message. The peer gives credits and publishes room as its program
//! reads. docs/rsockets.md describes the differences to TCP.
//!
//! Nothing is exported from this crate. `cabi/ibverbs` is the shared library, whose table of
//! exports refers to these functions. Only the C libraries and the program `uiw` use this crate;
//! the latter reads the list of a program's connections ([`preload::connections`]).
//!
//! * No thread waits while it holds a socket's lock. A waiting thread registers wakers at the
//!   connection's events, at the completion queue, and at the socket, where threads that found
//!   something wake others. An rsocket therefore needs only two descriptors, its number and the TCP
//!   socket, and a set of `repoll_create` checks only sockets that were woken.
//! * `wait` drives the engine for 5 ms with signals blocked, and then sleeps in a read of the
//!   thread's eventfd, which signals interrupt or restart. With ordinary descriptors, or with a
//!   time-out, it sleeps in poll(2) with the thread's `PollWaiter`. The connections that one thread
//!   creates are on one shard (`link::shard_of_thread`), so the thread waits for one shard.
//! * `service` is one thread that accepts connections for listeners and waits until closed
//!   connections have ended. It sleeps in the standard library's condition variable. parking_lot
//!   would keep a process-wide list of sleeping threads, which a fork copies, and the child's
//!   threads would find entries in it whose memory is gone.
//! * Every message of the peer is checked against the granted credits and targets
//!   (`receiver::Violation`), and a wrong one ends the connection with a Terminate. The engine
//!   checks STags and bounds.

mod acceptor;
mod addresses;
mod any;
mod attempts;
mod buffer;
mod connect;
pub mod datagram;
mod early;
mod epoll;
pub mod exports;
mod link;
mod mappings;
mod numbers;
mod options;
mod poll;
pub mod preload;
mod ready;
pub mod receiver;
mod sender;
mod service;
mod settings;
mod socket;
mod stream;
mod sys;
mod table;
pub mod transfer;
mod wait;
mod watchers;
pub mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which the acknowledgements of closed connections are checked.
const PROGRESS_CHECK: Duration = Duration::from_millis(100);
/// Maximum duration of a close, even if the peer still acknowledges data.
const LONGEST_CLOSE: Duration = Duration::from_secs(600);
/// Maximum duration of the wait at the end of the process, even if peers still acknowledge data.
const LONGEST_EXIT: Duration = Duration::from_secs(60);

/// True while the process ends: see [`is_exiting`].
static EXITING: AtomicBool = AtomicBool::new(false);

/// Returns whether the process is ending. Its other threads continue until it has ended, and must
/// not find sockets closed in the calls that they are in.
fn is_exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}

/// Closes every connection at the end of the process, as the kernel would do, and waits until
/// `deadline` for the last bytes to be sent. While peers acknowledge data, the deadline is extended
/// by its initial time, because a slow path needs seconds for a buffer.
pub(crate) fn at_exit(mut deadline: Instant) {
    EXITING.store(true, Ordering::Release);
    for socket in table::all_sockets() {
        socket.close();
    }
    let begun = Instant::now();
    let (quiet, longest) = (deadline.saturating_duration_since(begun), begun + LONGEST_EXIT);
    let mut before = service::acknowledgement_count();
    while service::is_closing() && Instant::now() < deadline.min(longest) {
        thread::sleep(Duration::from_micros(50));
        if service::acknowledgement_count() != before {
            before = service::acknowledgement_count();
            deadline = Instant::now() + quiet;
        }
    }
}
