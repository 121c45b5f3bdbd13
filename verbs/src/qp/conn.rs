//! One stream, from the TCP connect to the last FIN: everything the driver owns of a connection.

use crate::cm::{CmSide, HalfOpen};
use crate::driver::{Env, TimerKind};
use crate::options::{ConnOptions, FpduSize};
use crate::qp::inbox::Inbox;
use crate::qp::out_queue::OutQueue;
use crate::qp::peer::Known;
use crate::qp::read_queue::ReadQueues;
use crate::qp::rx::Rx;
use crate::qp::tx::Tx;
use crate::qp::{Down, Peer, QpInner};
use llp::{Event, Interest, Stream, Token};
use mem::{Recent, StreamId};
use mpa::startup::{Initiator, Negotiated, Request, Responder, Rtr};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Repetitions of the hello towards a peer that has not spoken, and their distance (siw's responder can miss the first FPDU).
const HELLO_REPEATS: u8 = 5;
const HELLO_EVERY: Duration = Duration::from_millis(50);
/// After this time without an answer a peer is foreign.
pub(super) const HELLO_PATIENCE: Duration = Duration::from_millis(1000);

/// How far a connection is.
pub(crate) enum Phase {
    /// TCP connects.
    Connecting,
    /// Our Request is out.
    AwaitReply(Box<Initiator>),
    /// Accepted by TCP; the Request is not here.
    AwaitRequest(Box<Responder>),
    /// The application decides.
    Decision(Box<(Responder, Request)>),
    /// Full Operation.
    Open,
    /// The queue pair is in error; what is left is to say so and to close.
    Closing,
    /// Nothing left.
    Over,
}

/// How an orderly close goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fin {
    /// The application disconnects: FIN when all is sent.
    pub(crate) wanted: bool,
    pub(crate) sent: bool,
    pub(crate) received: bool,
}

pub(crate) struct Conn {
    pub(crate) token: Token,
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) phase: Phase,
    pub(crate) initiator: bool,
    /// The other end is this one.
    pub(crate) to_itself: bool,
    pub(crate) options: Arc<ConnOptions>,
    pub(crate) no_receive_timeout: Duration,
    pub(crate) cm: CmSide,
    pub(crate) qp: Option<Arc<QpInner>>,
    /// What the STags bound to this stream alone are bound to.
    pub(super) stream_id: StreamId,
    /// Memory that was named last.
    pub(super) recent: Recent,
    pub(crate) inbox: Inbox,
    pub(crate) out: OutQueue,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    pub(crate) reads: ReadQueues,
    pub(crate) peer: Peer,
    pub(crate) fin: Fin,
    /// An SQD asked for by the application has not been reported as drained.
    pub(crate) draining: bool,
    pub(crate) negotiated: Option<Negotiated>,
    /// Private data of the user, kept for a fall-back to revision 1.
    pub(crate) private_data: Vec<u8>,
    /// The deadlines that count; to forget one is to cancel it.
    pub(crate) deadlines: [Option<Instant>; crate::driver::TIMER_KINDS],
    /// The driver's earliest entry for each: a deadline that moves later needs no entry of its own, so that the driver's heap
    /// does not grow with what a peer does.
    entries: [Option<Instant>; crate::driver::TIMER_KINDS],
    pub(crate) hello_left: u8,
    /// Counted by the listener while in set-up.
    pub(crate) half_open: Option<HalfOpen>,
    /// Revision 2 was tried and closed upon.
    pub(crate) fell_back: bool,
    /// A new TCP connection is wanted: for the fall-back, or after a refusal.
    pub(crate) wants_reconnect: bool,
    /// The local address that the application asked for.
    pub(crate) asked_local: Option<SocketAddr>,
    /// When TCP was refused first, and how long the next pause is.
    pub(crate) refused: Option<(Instant, Duration)>,
    pub(super) interest: Interest,
    pub(crate) span: tracing::Span,
}

impl Conn {
    pub(crate) fn new(
        token: Token,
        stream: Box<dyn Stream>,
        phase: Phase,
        options: Arc<ConnOptions>,
        cm: CmSide,
        sink: ddp::STag,
    ) -> Self {
        let initiator = matches!(phase, Phase::Connecting);
        let nonce = getrandom::u64().unwrap_or(token.0);
        let span = tracing::debug_span!("connection", id = cm.id.0, peer = %stream.peer_addr(), initiator);
        Self {
            token,
            phase,
            initiator,
            to_itself: false,
            peer: Peer::new(initiator, options.recognition, nonce),
            no_receive_timeout: options.no_receive_timeout,
            options,
            cm,
            qp: None,
            stream_id: StreamId(0),
            recent: Recent::default(),
            inbox: Inbox::default(),
            out: OutQueue::default(),
            tx: Tx::new(false, false),
            rx: Rx::new(false, false),
            reads: ReadQueues::new(sink),
            fin: Fin::default(),
            draining: false,
            negotiated: None,
            private_data: Vec::new(),
            deadlines: [None; crate::driver::TIMER_KINDS],
            entries: [None; crate::driver::TIMER_KINDS],
            hello_left: 0,
            half_open: None,
            fell_back: false,
            wants_reconnect: false,
            asked_local: None,
            refused: None,
            interest: Interest { read: true, write: initiator },
            span,
            stream,
        }
    }

    /// Whether the stream is past set-up: the driver may read it without asking the stack first.
    pub(crate) fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Closing)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Its queue pair is gone, and its peer is not done with it.
    pub(crate) fn is_let_go(&self) -> bool {
        self.qp.is_none() && matches!(self.phase, Phase::Open)
    }

    /// Full Operation begins; `octets` behind the startup frame stay in the inbox.
    pub(crate) fn open(&mut self, negotiated: Negotiated, env: &mut Env<'_>) {
        self.half_open = None;
        self.tx = Tx::new(negotiated.crc, negotiated.markers_tx);
        self.tx.starts_at(self.out.queued());
        self.rx = Rx::new(negotiated.crc, negotiated.markers_rx);
        self.reads.ird = negotiated.ird;
        self.reads.ord = negotiated.ord;
        self.rx.rdmap.set_extensions(self.peer.features().extensions());
        tracing::debug!(parent: &self.span, ?negotiated, "full operation");
        if let Some(qp) = &self.qp {
            let mut attrs = qp.attrs.lock();
            self.stream_id = attrs.stream;
            attrs.ird = negotiated.ird;
            attrs.ord = negotiated.ord;
        }
        if self.options.acknowledged && negotiated.ord > 0 {
            self.tx.acknowledge();
        } else if self.options.acknowledged {
            tracing::warn!(parent: &self.span, "completions are not acknowledged: ORD was negotiated to 0");
        }
        self.choose_mulpdu(negotiated.markers_tx);
        if self.initiator {
            self.greet(&negotiated, env);
        } else {
            // RFC 5044 section 7.1.1: nothing before the initiator's first FPDU was received and validated.
            self.tx.hold = true;
        }
        // A responder in peer-to-peer mode waits for the RTR message, inside the same time-out.
        if self.initiator || !negotiated.peer_to_peer {
            self.deadlines[TimerKind::Startup as usize] = None;
        }
        self.negotiated = Some(negotiated);
        self.phase = Phase::Open;
    }

    /// The initiator's first FPDU: the RTR message where one was negotiated, and the hello.
    fn greet(&mut self, negotiated: &Negotiated, env: &mut Env<'_>) {
        match negotiated.rtr {
            Some(Rtr::Write) => self.tx.greeting = Some(self.peer.hello()),
            Some(Rtr::Read) => self.tx.rtr = Some(Rtr::Read),
            Some(Rtr::Send) => self.tx.rtr = Some(Rtr::Send),
            None => {}
        }
        if self.peer.is_open() {
            self.tx.greeting = Some(self.peer.hello());
        }
        if self.tx.greeting.is_some() {
            self.hello_left = HELLO_REPEATS;
            self.set_timer(TimerKind::Hello, HELLO_EVERY, env);
        }
    }

    /// RFC 5044 section 5: an FPDU should fit one TCP segment; our own peers agreed to larger ones. The path may change at any
    /// time: what is queued stays as it was cut, what is built next fits (RFC 5041 section 3).
    pub(super) fn choose_mulpdu(&mut self, markers: bool) {
        let large = mpa::MAX_ULPDU;
        self.tx.mulpdu = match self.options.fpdu {
            FpduSize::Auto if self.peer.features().large_fpdu() => large,
            FpduSize::Auto | FpduSize::Segment => mpa::mulpdu(self.stream.emss(), markers),
            FpduSize::Large => large,
            FpduSize::Fixed(size) => usize::from(size).clamp(mpa::MIN_MULPDU, large),
        };
    }

    /// What is known of the peer has changed.
    pub(crate) fn peer_known(&mut self) {
        self.rx.rdmap.set_extensions(self.peer.features().extensions());
        let markers = self.negotiated.as_ref().is_some_and(|n| n.markers_tx);
        self.choose_mulpdu(markers);
        if let Known::Ours(features) = self.peer.known {
            tracing::debug!(parent: &self.span, ?features, "the peer is one of ours");
        }
    }

    pub(crate) fn set_timer(&mut self, kind: TimerKind, wait: Duration, env: &mut Env<'_>) {
        // A wait longer than the clock reaches is one for ever.
        let at = env.now.checked_add(wait);
        self.deadlines[kind as usize] = at;
        if let Some(at) = at {
            self.enter_timer(at, kind, env);
        }
    }

    fn enter_timer(&mut self, at: Instant, kind: TimerKind, env: &mut Env<'_>) {
        let entry = &mut self.entries[kind as usize];
        if entry.is_none_or(|entry| entry > at) {
            *entry = Some(at);
            env.timers.add(at, self.token, kind);
        }
    }

    pub(crate) fn on_timer(&mut self, kind: TimerKind, env: &mut Env<'_>) {
        self.entries[kind as usize] = None;
        match self.deadlines[kind as usize] {
            None => return,
            Some(later) if later > env.now => return self.enter_timer(later, kind, env),
            Some(_) => {}
        }
        self.deadlines[kind as usize] = None;
        match kind {
            TimerKind::Startup => self.startup_timed_out(env),
            TimerKind::NoReceive => {
                let down = self.no_receive_in_time();
                self.fall(down, env);
            }
            TimerKind::Close => self.cut(env),
            TimerKind::Hello => self.on_hello_timer(env),
            TimerKind::Retry if matches!(self.phase, Phase::Connecting) => self.wants_reconnect = true,
            TimerKind::Retry => {
                self.on_readable(env);
            }
        }
    }

    fn on_hello_timer(&mut self, env: &mut Env<'_>) {
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        if self.hello_left > 0 && !self.rx.first_seen {
            self.hello_left -= 1;
            self.tx.greeting = Some(self.peer.hello());
            let patience = HELLO_PATIENCE.saturating_sub(HELLO_EVERY * u32::from(HELLO_REPEATS));
            let wait = if self.hello_left > 0 { HELLO_EVERY } else { patience };
            self.set_timer(TimerKind::Hello, wait, env);
        } else {
            self.peer.give_up();
            self.peer_known();
        }
        self.serve_sends(env);
    }

    /// Somebody posted, or a receive for a stalled stream.
    pub(crate) fn on_doorbell(&mut self, env: &mut Env<'_>) {
        self.tx.rang();
        if self.rx.is_stalled() {
            self.on_readable(env);
        } else {
            self.serve_sends(env);
        }
    }

    pub(crate) fn serve_sends(&mut self, env: &mut Env<'_>) {
        if matches!(self.phase, Phase::Open | Phase::Closing)
            && let Err(down) = self.transmit(env)
        {
            self.fall(down, env);
        }
    }

    pub(crate) fn on_event(&mut self, event: Event, env: &mut Env<'_>) {
        match &self.phase {
            Phase::Connecting => self.on_connect_event(env),
            Phase::AwaitReply(_) | Phase::AwaitRequest(_) => self.on_startup_event(env),
            Phase::Decision(_) => self.on_decision_event(env),
            Phase::Open => {
                if event.readable && !self.interest.read {
                    // Nobody asked for readability: the stack reports a hang-up.
                    self.fall(Down::Lost(io::ErrorKind::ConnectionReset.into()), env);
                } else {
                    self.on_readable(env);
                }
            }
            Phase::Closing => {
                self.on_readable(env);
            }
            Phase::Over => {}
        }
    }

    /// Receives, then sends. True when octets moved.
    pub(crate) fn on_readable(&mut self, env: &mut Env<'_>) -> bool {
        let received = match &self.phase {
            Phase::Open => self.receive(env),
            Phase::Closing => Ok(self.discard()),
            _ => return false,
        };
        self.send_after(received, env)
    }

    /// Looks for octets though the stack told of none, and rang nobody: sends only if some came or some wait. True when octets moved.
    pub(crate) fn on_look(&mut self, env: &mut Env<'_>) -> bool {
        if !matches!(self.phase, Phase::Open) {
            return self.on_readable(env);
        }
        match self.receive(env) {
            Ok(false) if !self.fin.received && self.sends_nothing() => false,
            Ok(true) if !self.fin.received && self.waits_for_posts() => true,
            received => self.send_after(received, env),
        }
    }

    fn send_after(&mut self, received: Result<bool, Down>, env: &mut Env<'_>) -> bool {
        match received.and_then(|work| self.transmit(env).map(|()| work)) {
            Ok(work) => work,
            Err(down) => {
                self.fall(down, env);
                true
            }
        }
    }

    /// Tells the stack what news is wanted; a system call only on change.
    pub(crate) fn want(&mut self, read: bool, write: bool) -> Result<(), Down> {
        let interest = Interest { read, write };
        if interest != self.interest {
            self.stream.set_interest(interest).map_err(Down::Lost)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// The local address of one more TCP connection: as the application asked for it, else as the system chose it, without
    /// the port, which the connection before still has.
    pub(crate) fn local_again(&mut self) -> SocketAddr {
        if let Some(asked) = self.asked_local
            && asked.port() != 0
        {
            self.stream.abort();
            return asked;
        }
        let mut local = self.stream.local_addr();
        local.set_port(0);
        local
    }

    /// Another TCP connection takes the place of the one before.
    pub(crate) fn reconnected(&mut self, stream: Box<dyn Stream>) {
        self.stream = stream;
        self.phase = Phase::Connecting;
        self.out = OutQueue::default();
        self.inbox.clear();
        self.interest = Interest { read: true, write: true };
    }

    /// The connection is removed: what it held goes back.
    pub(crate) fn let_go(&mut self, env: &mut Env<'_>) {
        let held = self.held();
        env.pool.count(held, 0);
        env.pool.give(self.inbox.replace_buffer(Vec::new()));
        env.pool.give(std::mem::take(&mut self.out.staging));
        self.rx.drop_parked();
        env.driver.table.release(self.reads.sink);
    }

    /// Octets that count against the pool.
    pub(crate) fn held(&self) -> usize {
        self.rx.counted
    }
}
