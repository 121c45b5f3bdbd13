//! Operations on a connection that the connection manager and the queue pair request: accept,
//! reject, close, abort, pause and others.

use super::Conn;
use crate::cm::{CmEventKind, connect_error};
use crate::driver::Services;
use crate::error::{Error, Result};
use crate::options::ConnConfig;
use crate::qp::{PathInfo, QpInner, QpState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use uiw_counters::Refusal;
use uiw_llp::StreamChange;
use uiw_stream::{LocalError, PeerKind};

/// Delay before the first retry of a refused TCP connection; each further delay is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

impl Conn {
    /// Handles an event of the socket while TCP connects.
    pub(super) fn on_connect_event(&mut self, services: &mut Services) {
        let connected = match self.socket.connect_result() {
            // A TCP self-connection (simultaneous open): no listener has the peer's port, and the
            // kernel chose the same port as the local one. It counts as refused.
            Ok(true)
                if !self.stream.is_loopback()
                    && self.socket.local_addr() == self.socket.peer_addr() =>
            {
                Err(io::ErrorKind::ConnectionRefused.into())
            }
            result => result,
        };
        match connected {
            Ok(false) => {}
            Ok(true) => {
                self.register_addresses(&services.shared);
                if let Some(note) = self.connected_note.take() {
                    self.cm.report(CmEventKind::Posted(note), &mut services.wakes);
                }
                self.stream.handle_connected(services.now);
                self.take_events(services);
                if self.stream.is_open() {
                    self.on_readable(services);
                } else {
                    self.transmit(services);
                }
            }
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused
                    && self.schedule_retry(services) => {}
            Err(error) => {
                let peer = self.socket.peer_addr();
                self.fail_startup(connect_error(peer, error), services);
            }
        }
    }

    /// Schedules another TCP connection attempt after a refusal.
    ///
    /// Returns `false` if the time for retries ([`ConnConfig::refused_retry_time`]) is over.
    fn schedule_retry(&mut self, services: &mut Services) -> bool {
        let (since, pause) = self.refused.unwrap_or((services.now, FIRST_PAUSE));
        let limit = since.after(self.options.refused_retry_time);
        if self.stream.is_loopback() || services.now.after(pause) > limit {
            return false;
        }
        self.refused = Some((since, pause * 2));
        // Otherwise the event set would report the hang-up of the refused socket with every poll.
        self.socket.abort();
        self.retry = services.now.after(pause);
        true
    }

    /// Returns the local address for the next TCP connection attempt.
    ///
    /// It is the address that the application asked for if that includes a port. Otherwise it is
    /// the current local address with port 0, because the previous attempt still occupies its port.
    pub(crate) fn reconnect_addr(&mut self) -> SocketAddr {
        if let Some(asked) = self.asked_local
            && asked.port() != 0
        {
            // Frees the port.
            self.socket.abort();
            return asked;
        }
        let mut local = self.socket.local_addr();
        local.set_port(0);
        local
    }

    /// Replaces the socket by that of a new TCP connection attempt.
    pub(crate) fn replace_socket(&mut self, socket: Box<dyn uiw_llp::TransportStream>) {
        self.socket = socket;
        self.address_entry = None;
        self.has_peek = true;
        self.stream.reconnected();
        self.partial.clear();
        self.interest = uiw_llp::Interest { read: true, write: true };
    }

    /// Accepts the peer's connection request with the queue pair `qp`.
    pub(crate) fn accept(
        &mut self,
        qp: &Arc<QpInner>,
        options: &Arc<ConnConfig>,
        private_data: &[u8],
        services: &mut Services,
    ) -> Result<()> {
        let (new, current) = (&options.stream, &self.options.stream);
        let congestion =
            new.congestion.as_deref().filter(|name| Some(*name) != current.congestion.as_deref());
        self.configure(congestion, new.dead_after)?;
        let accepted = self.stream.accept(options.stream_config(), private_data, services.now)?;
        let negotiated = accepted.ok_or(Error::NotConnected)?;
        self.options = Arc::clone(options);
        self.set_qp(qp);
        self.enter_rts(&negotiated, services);
        self.take_events(services);
        self.on_readable(services);
        Ok(())
    }

    /// Rejects the peer's connection request: sends a Reply that says so, then closes TCP.
    pub(crate) fn reject(&mut self, private_data: &[u8], services: &mut Services) -> Result<()> {
        if !self.stream.reject(private_data, services.now)? {
            return Err(Error::NotConnected);
        }
        services.counters.refused(Refusal::Program);
        self.cm.forget();
        self.transmit(services);
        Ok(())
    }

    /// Hands the socket to the application instead of answering the peer's Request. This connection
    /// object ends without a sign to the peer.
    ///
    /// # Errors
    /// Fails if no Request is pending, or if the peer has sent bytes after it, which would be lost.
    pub(crate) fn take_socket(&mut self) -> Result<OwnedFd> {
        const CALL: &str = "taking the socket";
        if self.stream.request().is_none() {
            return Err(Error::NotConnected);
        }
        if !self.partial.is_empty() {
            let extra = io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer has sent bytes behind its Request",
            );
            return Err(Error::io(CALL)(extra));
        }
        let socket = self.socket.take_socket().map_err(Error::io(CALL))?;
        self.cm.forget();
        self.stream.abandon_startup();
        // The application needs no event: the hand-over is not a failure.
        while self.stream.poll_event().is_some() {}
        Ok(socket)
    }

    /// Ends the start-up of a peer that has not sent its Request, because its listener was closed.
    pub(crate) fn listener_closed(&mut self, services: &mut Services) {
        if self.stream.awaits_request() {
            self.fail_startup(Error::NotConnected, services);
        }
    }

    /// Returns the error to report when the transport is lost during start-up.
    pub(super) fn startup_lost_error(&self, error: &io::Error) -> Error {
        // A copy, because the caller keeps the error.
        #[cfg(feature = "tls")]
        if let Some(error) =
            error.get_ref().and_then(|cause| cause.downcast_ref::<uiw_tls::TlsError>())
        {
            return Error::Lost { peer: self.socket.peer_addr(), source: error.clone().into() };
        }
        let source = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        Error::Lost { peer: self.socket.peer_addr(), source }
    }

    /// Ends a connection during start-up, and reports `error`.
    pub(crate) fn fail_startup(&mut self, error: Error, services: &mut Services) {
        self.stream.abandon_startup();
        // The stream's own event is discarded, because `on_startup_failed` reports `error` instead.
        while self.stream.poll_event().is_some() {}
        self.on_startup_failed(error, services);
    }

    /// Ends the connection at the application's request, and notifies the peer with a Terminate.
    pub(crate) fn abort(&mut self, services: &mut Services) {
        self.with_stream(services, |stream, host, now| stream.abort(host, now));
        self.transmit(services);
    }

    /// Like [`Conn::abort`], but for an error that the engine has detected on this side.
    pub(crate) fn fail(&mut self, error: LocalError, services: &mut Services) {
        self.with_stream(services, |stream, host, now| stream.fail_locally(host, error, now));
        self.transmit(services);
    }

    /// Begins the orderly close: requests posted before it are still sent, later ones wait.
    pub(crate) fn close(&mut self, services: &mut Services) {
        if !self.stream.close(services.now) {
            return;
        }
        if let Some(qp) = &self.qp {
            qp.set_state(QpState::Sqd);
            qp.sq.lock().stop_at_end();
        }
        self.transmit(services);
    }

    /// Allows an initiator that waits for this call to send its first FPDU and the requests posted
    /// so far.
    pub(crate) fn establish(&mut self, services: &mut Services) {
        self.stream.establish(services.now);
        self.transmit(services);
    }

    /// Detaches the connection from its queue pair, which is being destroyed. No request or receive
    /// completes after this.
    pub(crate) fn detach(&mut self, services: &mut Services) {
        self.discards_requests = true;
        self.with_stream(services, |stream, host, now| stream.detach(host, now));
        self.state.held.clear();
        self.qp = None;
        self.transmit(services);
    }

    /// Aborts the connection and detaches it from its queue pair, which is being reset.
    pub(crate) fn forget_qp(&mut self, services: &mut Services) {
        self.discards_requests = true;
        self.state.held.clear();
        self.abort(services);
        self.qp = None;
    }

    /// Enters the state SQD: requests that have not begun wait. [`crate::AsyncEvent::SqDrained`]
    /// reports when no request is in progress.
    pub(crate) fn pause(&mut self, services: &mut Services) {
        if let Some(qp) = &self.qp
            && !self.stream.is_closing()
        {
            // Not during an orderly close, which still sends the requests posted before it.
            qp.sq.lock().stop_after(self.stream.is_inside_request());
        }
        self.stream.pause();
        self.serve_sends(services);
    }

    /// Returns from SQD to RTS. Returns `false` if the connection is still being established, or is
    /// closing.
    pub(crate) fn resume(&mut self, services: &mut Services) -> bool {
        if !self.stream.is_open() || self.stream.is_closing() {
            return false;
        }
        if let Some(qp) = &self.qp {
            qp.sq.lock().resume();
            qp.set_state(QpState::Rts);
        }
        self.stream.resume();
        self.serve_sends(services);
        true
    }

    /// Sets [`uiw_llp::TransportConfig::dead_after`] of the established connection.
    pub(crate) fn set_dead_after(&mut self, time: Option<Duration>) -> Result<()> {
        self.configure(None, time)
    }

    /// Changes options of the transport; makes no system call if nothing differs. `congestion` of
    /// `None` keeps the algorithm.
    fn configure(&mut self, congestion: Option<&str>, dead_after: Option<Duration>) -> Result<()> {
        let change = StreamChange {
            congestion,
            dead_after: (dead_after != self.dead_after).then_some(dead_after),
        };
        if change != StreamChange::default() {
            let peer = self.socket.peer_addr();
            let changed = self.socket.configure(&change);
            changed.map_err(|source| connect_error(peer, source))?;
            self.dead_after = dead_after;
        }
        Ok(())
    }

    /// Resets an open connection that has not ended within `timeout`, after the application has
    /// dropped its last handle. A connection that is already closing keeps its own deadline.
    pub(crate) fn limit_lifetime(&mut self, timeout: Duration, services: &mut Services) {
        self.stream.limit_lifetime(timeout, services.now);
        self.is_limited = true;
    }

    /// Restarts the time limit of a close that has begun.
    pub(crate) fn renew_close_deadline(&mut self, services: &mut Services) {
        self.stream.renew_close_deadline(services.now);
    }

    /// Returns the segment sizes, TCP state and peer kind of the connection.
    pub(crate) fn path(&self) -> PathInfo {
        PathInfo {
            emss: self.socket.emss(),
            max_ulpdu: self.stream.max_ulpdu(),
            uiw_peer: matches!(self.stream.peer(), PeerKind::Capable(_)),
            stream: self.socket.info(),
        }
    }
}
