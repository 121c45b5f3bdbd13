//! Ready events of a stream rsocket, as in poll(2).

use crate::is_exiting;
use crate::socket::{Phase, Socket, State};
use crate::watchers::WakerPolicy;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM};
use std::ffi::c_short;
use std::task::{Context, Poll};

/// Event that reports that TCP has to be tried with the original socket. It is not passed to
/// programs, and the system does not report an event with this number.
pub(crate) const FALL_BACK: c_short = 0x4000;
/// Events that are reported even if they were not requested.
const ALWAYS: c_short = POLLERR | POLLHUP | FALL_BACK;
pub(super) const READ: c_short = POLLIN | POLLRDNORM;
pub(super) const WRITE: c_short = POLLOUT | POLLWRNORM;

/// Returns all ready events of a socket.
fn ready(state: &State) -> c_short {
    match &state.phase {
        // The error is that of an attempt which the program has given up.
        Phase::New(_) => WRITE | POLLHUP | if state.error.is_some() { POLLERR } else { 0 },
        Phase::Listening(acceptor) => {
            if acceptor.is_ready() {
                READ
            } else {
                0
            }
        }
        Phase::Connecting(..) | Phase::Accepting(_) | Phase::Requested(..) => {
            let readable = if state.is_read_shut_early() { READ | POLLRDHUP } else { 0 };
            readable | if state.has_early_room() { WRITE } else { 0 }
        }
        Phase::Refused => FALL_BACK,
        Phase::Gone => READ | WRITE | POLLHUP | POLLRDHUP,
        Phase::Failed(_) => READ | WRITE | POLLERR | POLLHUP,
        Phase::Closed if is_exiting() => 0,
        Phase::Closed => POLLERR | POLLHUP,
        Phase::Connected(stream, _) => {
            let mut ready = 0;
            if stream.is_readable() {
                ready |= READ;
            }
            if stream.is_write_closed() || stream.sender.has_room() && !state.has_early_data() {
                ready |= WRITE;
            }
            if stream.at_end() {
                ready |= POLLRDHUP;
            }
            // Data that the peer sent before it closed the connection is read first, as with TCP.
            if stream.is_over() && stream.receiver.readable() == 0 {
                ready |= POLLHUP;
            }
            if stream.failure().is_some() {
                ready |= POLLERR;
            }
            ready
        }
    }
}

/// Returns those of the requested `events` that are ready.
pub(super) fn ready_events(socket: &Socket, events: c_short) -> c_short {
    socket.update_then(None, |state| ready(state) & (events | ALWAYS))
}

/// Like [`ready_events`], but also registers the task under the condition `registers`. The next
/// change wakes a registered task.
pub(super) fn poll(
    socket: &Socket,
    events: c_short,
    registers: WakerPolicy,
    cx: &mut Context<'_>,
) -> Poll<c_short> {
    socket.poll_as(registers, cx, |state| match ready(state) & (events | ALWAYS) {
        0 => Poll::Pending,
        revents => Poll::Ready(revents),
    })
}
