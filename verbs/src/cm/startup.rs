//! Start-up of a connection: TCP, then MPA Request and Reply (RFC 5044 section 7.1, RFC 6581).

use crate::cm::{ConnInfo, ConnRequest};
use crate::driver::{Env, TimerKind};
use crate::error::Error;
use crate::qp::{Conn, Down, Peer, Phase, QpState, SqMode};
use mem::IoVecMut;
use mpa::startup::{Initiator, Negotiated, Outcome, Revision, RtrKinds, StartupRefusal};
use rdmap::Fault;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Octets of start-up read at most before a frame must be whole: header, private data, and some of what follows.
const STARTUP_OCTETS: usize = 4096;

/// After the first refusal; every further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// How a failed TCP connect is reported.
pub(super) fn connect_error(peer: SocketAddr, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => Error::Refused { peer },
        _ => Error::Lost { peer, source },
    }
}

impl Conn {
    pub(crate) fn on_connect_event(&mut self, env: &mut Env<'_>) {
        match self.stream.connect_result() {
            Ok(false) => {}
            Ok(true) if self.to_itself => self.open_to_itself(env),
            Ok(true) => self.send_request(env),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && self.asks_again(env) => {}
            Err(error) => {
                let peer = self.stream.peer_addr();
                self.give_up_startup(connect_error(peer, error), env);
            }
        }
    }

    /// After a refusal: whether TCP will be tried once more.
    fn asks_again(&mut self, env: &mut Env<'_>) -> bool {
        let (since, pause) = self.refused.unwrap_or((env.now, FIRST_PAUSE));
        if self.to_itself || env.now + pause > since + self.options.refused_patience {
            return false;
        }
        self.refused = Some((since, pause * 2));
        // Its hang-up would be told again and again.
        self.stream.abort();
        self.set_timer(TimerKind::Retry, pause, env);
        true
    }

    fn send_request(&mut self, env: &mut Env<'_>) {
        let mut config = self.options.mpa();
        if self.fell_back {
            config.revision = Revision::One;
        }
        let initiator = match Initiator::new(config, &self.private_data) {
            Ok(initiator) => initiator,
            Err(error) => return self.give_up_startup(Error::Startup(error), env),
        };
        let request = initiator.request();
        self.phase = Phase::AwaitReply(Box::new(initiator));
        self.send_startup(&request, env);
    }

    /// A stream to itself has nobody to agree with: Full Operation begins at once, with our own settings on both ends.
    fn open_to_itself(&mut self, env: &mut Env<'_>) {
        let options = &self.options;
        // What it asks of itself is what it owes itself.
        let depth = options.ird.min(options.ord).min(env.driver.limits().max_rd_atomic);
        let negotiated = Negotiated {
            revision: 2,
            enhanced: true,
            crc: options.crc,
            markers_tx: options.markers,
            markers_rx: options.markers,
            ird: depth,
            ord: depth,
            peer_to_peer: false,
            rtr: None,
            rtr_kinds: RtrKinds::NONE,
        };
        self.peer = Peer::itself();
        let info = self.info(negotiated, None, Vec::new());
        self.enter_rts(negotiated, env);
        self.cm.established(info, env.wakes);
        self.on_readable(env);
    }

    /// Queues a startup frame and sends what TCP takes.
    fn send_startup(&mut self, frame: &[u8], env: &mut Env<'_>) {
        let start = self.out.staging.len();
        self.out.staging.extend_from_slice(frame);
        self.out.push_staged(start);
        self.out.end_fpdu();
        self.flush_startup(env);
    }

    fn flush_startup(&mut self, env: &mut Env<'_>) {
        let sent = self.out.send(&mut *self.stream);
        let result = match sent {
            Ok(all) => self.want(true, !all),
            Err(crate::qp::SendError::Io(error)) => Err(Down::Lost(error)),
            Err(crate::qp::SendError::Gone) => Err(Down::Cut),
        };
        if let Err(Down::Lost(source)) = result {
            self.startup_lost(source, env);
        }
    }

    pub(crate) fn on_startup_event(&mut self, env: &mut Env<'_>) {
        if !self.out.is_empty() {
            self.flush_startup(env);
        }
        match self.read_startup() {
            Ok(0) => self.on_startup_fin(env),
            Ok(_) => self.on_startup_octets(env),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.startup_lost(error, env),
        }
    }

    /// Reads into the inbox. Octets behind the frame belong to Full Operation and stay there.
    fn read_startup(&mut self) -> io::Result<usize> {
        let have = self.inbox.len();
        if have >= STARTUP_OCTETS {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut octets = [0u8; STARTUP_OCTETS];
        let got = self.stream.recv(&mut [IoVecMut::from(&mut octets[..STARTUP_OCTETS - have])])?;
        self.inbox.extend(&octets[..got]);
        Ok(got)
    }

    fn on_startup_octets(&mut self, env: &mut Env<'_>) {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::AwaitReply(initiator) => match initiator.reply(self.inbox.octets()) {
                Ok(None) => self.phase = Phase::AwaitReply(initiator),
                Ok(Some((used, outcome))) => {
                    self.inbox.consume(used);
                    self.on_reply(outcome, env);
                }
                Err(source) => {
                    let peer = self.stream.peer_addr();
                    self.give_up_startup(Error::PeerStartup { peer, source }, env);
                }
            },
            Phase::AwaitRequest(mut responder) => match responder.request(self.inbox.octets()) {
                Ok(None) => self.phase = Phase::AwaitRequest(responder),
                Ok(Some((used, request))) => {
                    self.inbox.consume(used);
                    self.phase = Phase::Decision(Box::new((*responder, request)));
                    self.on_request(env);
                }
                Err(source) => {
                    let peer = self.stream.peer_addr();
                    tracing::warn!(parent: &self.span, error = %source, "MPA Request refused");
                    self.give_up_startup(Error::PeerStartup { peer, source }, env);
                }
            },
            phase => self.phase = phase,
        }
    }

    /// The initiator has its Reply.
    fn on_reply(&mut self, outcome: Outcome, env: &mut Env<'_>) {
        let peer = self.stream.peer_addr();
        match outcome {
            Outcome::Rejected { enhanced, private_data, markers_refused: markers_asked, .. } => {
                let peer_ird_ord = enhanced.map(|said| (said.ird, said.ord));
                self.give_up_startup(
                    Error::Rejected { peer, private_data, peer_ird_ord, markers_asked },
                    env,
                );
            }
            Outcome::Accepted { negotiated, enhanced, private_data, terminate } => {
                let said = enhanced.map(|said| (said.ird, said.ord));
                let info = self.info(negotiated, said, private_data);
                self.enter_rts(negotiated, env);
                match terminate {
                    None => {
                        self.cm.established(info, env.wakes);
                        self.on_readable(env);
                    }
                    Some(refusal) => {
                        let fault = match refusal {
                            StartupRefusal::InsufficientIrd { .. } => Fault::InsufficientIrd,
                            StartupRefusal::NoMatchingRtr => Fault::NoMatchingRtr,
                        };
                        self.cm.failed(Error::PeerRefusal { peer, refusal }, env.wakes);
                        self.fall(Down::Refused(fault), env);
                    }
                }
            }
        }
    }

    fn info(
        &self,
        negotiated: Negotiated,
        peer_ird_ord: Option<(u16, u16)>,
        private_data: Vec<u8>,
    ) -> ConnInfo {
        let (local, peer) = (self.stream.local_addr(), self.stream.peer_addr());
        ConnInfo { local, peer, negotiated, peer_ird_ord, private_data }
    }

    fn enter_rts(&mut self, negotiated: Negotiated, env: &mut Env<'_>) {
        if let Some(qp) = &self.qp {
            qp.set_state(QpState::Rts);
            qp.sq.lock().mode = SqMode::Running;
        }
        self.open(negotiated, env);
    }

    /// The responder has its Request: the application decides.
    fn on_request(&mut self, env: &mut Env<'_>) {
        let Phase::Decision(decision) = &self.phase else { return };
        let request = ConnRequest::new(
            Arc::clone(env.driver),
            (self.token, self.half_open.as_ref()),
            self.cm.id,
            (self.stream.local_addr(), self.stream.peer_addr()),
            &decision.1,
            Arc::clone(&self.options),
        );
        self.cm.tell(crate::cm::CmEventKind::ConnectRequest(request), env.wakes);
        // Nothing may come before our Reply; a peer that hangs up is noticed all the same.
        let _ = self.want(false, false);
    }

    pub(crate) fn on_decision_event(&mut self, env: &mut Env<'_>) {
        // Readability was not asked for: the stack reports a hang-up.
        self.startup_lost(io::ErrorKind::ConnectionReset.into(), env);
    }

    /// The application accepts.
    pub(super) fn accept(
        &mut self,
        qp: &Arc<crate::qp::QpInner>,
        options: &Arc<crate::options::ConnOptions>,
        private_data: &[u8],
        env: &mut Env<'_>,
    ) -> Result<(), Error> {
        let Phase::Decision(decision) = &self.phase else { return Err(Error::NotConnected) };
        let (responder, request) = &**decision;
        let (reply, negotiated) = responder.accept(request, &options.mpa(), private_data)?;
        let info = self.info(negotiated, request.ird().zip(request.ord()), request.private_data().to_vec());
        match &options.stream.congestion {
            Some(name) if Some(name) != self.options.stream.congestion.as_ref() => {
                let peer = self.stream.peer_addr();
                self.stream.set_congestion(name).map_err(|source| connect_error(peer, source))?;
            }
            _ => {}
        }
        self.options = Arc::clone(options);
        self.no_receive_timeout = options.no_receive_timeout;
        self.peer = Peer::new(false, options.recognition, 0);
        self.qp = Some(Arc::clone(qp));
        let peer_to_peer = negotiated.peer_to_peer;
        self.send_startup(&reply, env);
        if matches!(self.phase, Phase::Over) {
            return Err(Error::NotConnected);
        }
        self.enter_rts(negotiated, env);
        if peer_to_peer {
            self.cm.established_with_first_fpdu(info);
        } else {
            self.cm.established(info, env.wakes);
        }
        self.on_readable(env);
        Ok(())
    }

    /// The application rejects: the Reply says so, then TCP is closed.
    pub(super) fn reject(&mut self, private_data: &[u8], env: &mut Env<'_>) -> Result<(), Error> {
        let Phase::Decision(decision) = &self.phase else { return Err(Error::NotConnected) };
        let (responder, request) = &**decision;
        let reply = responder.reject(request, private_data)?;
        self.deadlines[TimerKind::Startup as usize] = None;
        self.cm.forget();
        self.send_startup(&reply, env);
        if !matches!(self.phase, Phase::Over) {
            self.phase = Phase::Closing;
            self.finish(env);
        }
        Ok(())
    }

    /// The listener is gone: a peer that has not said what it wants is not asked any more.
    pub(super) fn listener_closed(&mut self, env: &mut Env<'_>) {
        if matches!(self.phase, Phase::AwaitRequest(_)) {
            self.give_up_startup(Error::NotConnected, env);
        }
    }

    /// The peer closed before the start-up was over.
    fn on_startup_fin(&mut self, env: &mut Env<'_>) {
        let peer = self.stream.peer_addr();
        let may_fall_back = matches!(self.phase, Phase::AwaitReply(_))
            && self.options.fallback
            && self.options.revision == Revision::Two
            && !self.fell_back
            && self.inbox.is_empty();
        if may_fall_back {
            // RFC 6581 section 10: a revision 1 peer closes on revision 2. Once, and inside the same time-out.
            self.fell_back = true;
            self.wants_reconnect = true;
            tracing::info!(parent: &self.span, "closed on revision 2: trying revision 1");
            return;
        }
        self.give_up_startup(Error::ClosedInStartup { peer }, env);
    }

    fn startup_lost(&mut self, source: io::Error, env: &mut Env<'_>) {
        let peer = self.stream.peer_addr();
        self.give_up_startup(Error::Lost { peer, source }, env);
    }

    pub(crate) fn startup_timed_out(&mut self, env: &mut Env<'_>) {
        let error = Error::TimedOut { peer: self.stream.peer_addr(), after: self.options.startup_timeout };
        match self.phase {
            Phase::Open => {
                // The RTR message did not come.
                self.cm.failed(error, env.wakes);
                self.fall(Down::Lost(io::ErrorKind::TimedOut.into()), env);
            }
            Phase::Closing | Phase::Over => {}
            _ => self.give_up_startup(error, env),
        }
    }

    /// Ends a connection that never stood.
    pub(crate) fn give_up_startup(&mut self, error: Error, env: &mut Env<'_>) {
        tracing::debug!(parent: &self.span, %error, "start-up failed");
        if self.initiator {
            self.cm.failed(error, env.wakes);
        }
        if let Some(qp) = self.qp.take() {
            // The queue pair keeps its state: the application may try again with it.
            qp.set_conn(None);
        }
        self.stream.abort();
        self.phase = Phase::Over;
    }
}
