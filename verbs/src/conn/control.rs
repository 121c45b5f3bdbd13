//! What the connection manager and the queue pair ask of a connection.

use super::Conn;
use crate::cm::{CmEventKind, connect_error};
use crate::driver::Services;
use crate::error::{Error, Result};
use crate::options::ConnConfig;
use crate::qp::{Path, QpInner, QpState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use uiw_counters::Refusal;
use uiw_llp::StreamChange;
use uiw_stream::{LocalError, PeerKind};

/// Pause after the first refusal; every further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

impl Conn {
    /// The stack has news of a connection attempt.
    pub(super) fn on_connect_event(&mut self, services: &mut Services) {
        // Log lines of the transport name the peer and the queue pair, which the span has.
        let connected = match self.span.in_scope(|| self.socket.connect_result()) {
            // The system chose the port of the peer, which has no listener, as the local one: a simultaneous open with itself.
            Ok(true) if !self.stream.is_loopback() && self.socket.local_addr() == self.socket.peer_addr() => {
                Err(io::ErrorKind::ConnectionRefused.into())
            }
            result => result,
        };
        match connected {
            Ok(false) => {}
            Ok(true) => {
                self.note_ends(&services.shared);
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
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && self.retries(services) => {}
            Err(error) => {
                let peer = self.socket.peer_addr();
                self.fail_startup(connect_error(peer, error), services);
            }
        }
    }

    /// Returns whether TCP will be tried once more after a refusal.
    fn retries(&mut self, services: &mut Services) -> bool {
        let (since, pause) = self.refused.unwrap_or((services.now, FIRST_PAUSE));
        let limit = since.after(self.options.refused_retry_time);
        if self.stream.is_loopback() || services.now.after(pause) > limit {
            return false;
        }
        self.refused = Some((since, pause * 2));
        // Its hang-up would be reported repeatedly.
        self.socket.abort();
        self.retry = services.now.after(pause);
        true
    }

    /// The local address of one more connection of TCP: as the application asked for it, else as the system chose it, without the
    /// port, which the connection before still has.
    pub(crate) fn local_again(&mut self) -> SocketAddr {
        if let Some(asked) = self.asked_local
            && asked.port() != 0
        {
            self.socket.abort();
            return asked;
        }
        let mut local = self.socket.local_addr();
        local.set_port(0);
        local
    }

    /// Another connection of TCP takes the place of the one before.
    pub(crate) fn reconnected(&mut self, socket: Box<dyn uiw_llp::TransportStream>) {
        self.socket = socket;
        self.has_peek = true;
        self.stream.reconnected();
        self.partial.clear();
        self.interest = uiw_llp::Interest { read: true, write: true };
    }

    /// The application accepts.
    pub(crate) fn accept(
        &mut self,
        qp: &Arc<QpInner>,
        options: &Arc<ConnConfig>,
        private_data: &[u8],
        services: &mut Services,
    ) -> Result<()> {
        let (own, theirs) = (&options.stream, &self.options.stream);
        let congestion = own.congestion.as_deref().filter(|name| Some(*name) != theirs.congestion.as_deref());
        self.configure(congestion, own.dead_after)?;
        let accepted = self.stream.accept(options.stream_config(), private_data, services.now)?;
        let negotiated = accepted.ok_or(Error::NotConnected)?;
        self.options = Arc::clone(options);
        self.set_qp(qp);
        self.enter_rts(&negotiated, services);
        self.take_events(services);
        self.on_readable(services);
        Ok(())
    }

    /// The application rejects: the Reply says so, then TCP is closed.
    pub(crate) fn reject(&mut self, private_data: &[u8], services: &mut Services) -> Result<()> {
        if !self.stream.reject(private_data, services.now)? {
            return Err(Error::NotConnected);
        }
        services.counters.refused(Refusal::Program);
        self.cm.forget();
        self.transmit(services);
        Ok(())
    }

    /// The application takes the socket in place of an answer: the connection ends here, and the peer notices nothing.
    pub(crate) fn take_socket(&mut self) -> Result<OwnedFd> {
        const WHAT: &str = "taking the socket";
        if self.stream.request().is_none() {
            return Err(Error::NotConnected);
        }
        if !self.partial.is_empty() {
            let behind =
                io::Error::new(io::ErrorKind::InvalidData, "the peer has sent bytes behind its Request");
            return Err(Error::io(WHAT)(behind));
        }
        let socket = self.socket.take_socket().map_err(Error::io(WHAT))?;
        self.cm.forget();
        self.stream.abandon_startup();
        // Nothing has failed.
        while self.stream.poll_event().is_some() {}
        Ok(socket)
    }

    /// The listener is gone: a peer that has sent no Request is not answered any more.
    pub(crate) fn listener_closed(&mut self, services: &mut Services) {
        if self.stream.awaits_request() {
            self.fail_startup(Error::NotConnected, services);
        }
    }

    /// The error of a transport that was lost during start-up.
    pub(super) fn startup_lost(&self, error: &io::Error) -> Error {
        let source = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        Error::Lost { peer: self.socket.peer_addr(), source }
    }

    /// Ends a connection that was not established.
    pub(crate) fn fail_startup(&mut self, error: Error, services: &mut Services) {
        self.stream.abandon_startup();
        // In the place of the stream's own event.
        while self.stream.poll_event().is_some() {}
        self.on_startup_failed(error, services);
    }

    /// Ends the connection for the application: a Terminate notifies the peer.
    pub(crate) fn abort(&mut self, services: &mut Services) {
        self.with_stream(services, |stream, host, now| stream.abort(host, now));
        self.transmit(services);
    }

    /// Like [`Conn::abort`], because the application gives up the peer.
    pub(crate) fn give_up(&mut self, services: &mut Services) {
        self.fail(LocalError::GivenUp, services);
    }

    /// Like [`Conn::abort`], for a reason of the engine's own.
    pub(crate) fn fail(&mut self, error: LocalError, services: &mut Services) {
        self.with_stream(services, |stream, host, now| stream.fail_locally(host, error, now));
        self.transmit(services);
    }

    /// The application disconnects.
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

    /// The first FPDU may be sent, and what was posted.
    pub(crate) fn establish(&mut self, services: &mut Services) {
        self.stream.establish(services.now);
        self.transmit(services);
    }

    /// The queue pair is destroyed: nothing completes any more.
    pub(crate) fn detach(&mut self, services: &mut Services) {
        self.with_stream(services, |stream, host, now| stream.detach(host, now));
        self.state.held.clear();
        self.qp = None;
        self.transmit(services);
    }

    /// The queue pair is reset: it forgets this connection.
    pub(crate) fn forget_qp(&mut self, services: &mut Services) {
        self.abort(services);
        self.qp = None;
    }

    /// SQD: requests that were not begun wait; [`crate::AsyncEvent::SqDrained`] reports that no request is under way.
    pub(crate) fn pause(&mut self, services: &mut Services) {
        if let Some(qp) = &self.qp
            && !self.stream.is_closing()
        {
            // An orderly close sends what was posted before it.
            qp.sq.lock().stop_after(self.stream.is_inside_request());
        }
        self.stream.pause();
        self.serve_sends(services);
    }

    /// RTS again. False for a connection that is being established or closed.
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

    pub(crate) fn set_no_receive_timeout(&mut self, timeout: Duration, services: &mut Services) {
        self.stream.set_no_receive_timeout(timeout, services.now);
    }

    pub(crate) fn set_dead_after(&mut self, time: Option<Duration>) -> Result<()> {
        self.configure(None, time)
    }

    fn configure(&mut self, congestion: Option<&str>, dead_after: Option<Duration>) -> Result<()> {
        let change =
            StreamChange { congestion, dead_after: (dead_after != self.dead_after).then_some(dead_after) };
        if change != StreamChange::default() {
            let peer = self.socket.peer_addr();
            let changed = self.span.in_scope(|| self.socket.configure(&change));
            changed.map_err(|source| connect_error(peer, source))?;
            self.dead_after = dead_after;
        }
        Ok(())
    }

    pub(crate) fn limit_lifetime(&mut self, timeout: Duration, services: &mut Services) {
        self.stream.limit_lifetime(timeout, services.now);
    }

    /// Returns the properties of the path.
    pub(crate) fn path(&self) -> Path {
        Path {
            emss: self.socket.emss(),
            max_ulpdu: self.stream.max_ulpdu(),
            uiw_peer: matches!(self.stream.peer(), PeerKind::Capable(_)),
            stream: self.socket.info(),
        }
    }
}
