//! Start-up of a connection: the MPA Request and Reply (RFC 5044 section 7.1, RFC 6581), and the
//! beginning of Full Operation.

use crate::capabilities::PeerCaps;
use crate::error::{ConnError, StartupFailure};
use crate::host::StreamHost;
use crate::shared::Shared;
use crate::stream::{Phase, RdmapStream};
use crate::timers::Timer;
use crate::{EstablishedStream, Event, RdmapConfig, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;
use uiw_mpa::startup::{
    ConfigError, Initiator, Negotiated, Outcome, Request, Revision, Rtr, RtrKinds,
};

/// Number of repetitions of the capability request to a peer that has sent nothing: siw's responder
/// can miss the first FPDU.
pub(crate) const CAPABILITY_REPEATS: u8 = 5;
/// Time between two repetitions of the capability request.
const CAPABILITY_INTERVAL: Duration = Duration::from_millis(50);
/// Fixed part of the time to wait for the answer to the capability request, for a busy peer.
const CAPABILITY_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of round trips to wait in addition, for retransmissions of the request and the answer by
/// TCP. The first retransmission comes after about three round trips, the second after six more
/// (RFC 6298).
const CAPABILITY_ROUND_TRIPS: u32 = 12;
/// Maximum time to wait for the answer. It limits the effect of a wrong round trip: the round trip
/// is measured during start-up, which may include the time that the peer's application has taken to
/// accept.
const CAPABILITY_LONGEST: Duration = Duration::from_secs(40);

impl<M> RdmapStream<M> {
    /// Handles the establishment of TCP: an initiator sends its Request, and a stream to itself is
    /// established. Does nothing for a responder.
    pub fn handle_connected(&mut self, now: Time) {
        self.shared.now = now;
        match self.phase {
            Phase::Connecting if self.loopback => self.open_loopback(),
            Phase::Connecting => self.send_request(),
            _ => {}
        }
    }

    /// Restarts start-up on a new TCP connection, after [`Event::Reconnect`] or because the peer
    /// has refused. Has no effect on a stream past that point, whose time for start-up may be over.
    pub fn reconnected(&mut self) {
        if matches!(self.phase, Phase::Connecting | Phase::AwaitReply(_)) {
            self.phase = Phase::Connecting;
            self.sender.restart();
        }
    }

    fn send_request(&mut self) {
        let mut config = self.shared.config.startup.clone();
        if self.fell_back {
            config.revision = Revision::One;
        }
        match Initiator::new(config, &self.private_data) {
            Ok(initiator) => {
                self.sender.startup_frame(&initiator.request());
                self.shared.startup_sent = self.shared.now;
                self.phase = Phase::AwaitReply(Box::new(initiator));
            }
            Err(error) => self.fail_startup(error.into()),
        }
    }

    /// Establishes a stream to itself, which does not negotiate: both ends have the same settings.
    fn open_loopback(&mut self) {
        let config = &self.shared.config.startup;
        // Its outgoing Reads are also its incoming ones.
        let depth = config.ird.min(config.ord);
        let negotiated = Negotiated {
            revision: 2,
            enhanced: true,
            crc: config.crc,
            markers_tx: config.want_markers,
            markers_rx: config.want_markers,
            ird: depth,
            ord: depth,
            peer_to_peer: false,
            rtr: None,
            rtr_kinds: RtrKinds::NONE,
        };
        self.shared.caps = PeerCaps::loopback(self.shared.config.acknowledged);
        self.open(negotiated);
        self.report_established(negotiated, None, Vec::new());
    }

    /// Handles start-up frames. Returns the number of bytes used.
    pub(crate) fn handle_startup<H: StreamHost<Memory = M>>(
        &mut self,
        host: &mut H,
        bytes: &[u8],
    ) -> usize {
        match core::mem::replace(&mut self.phase, Phase::Over) {
            Phase::AwaitReply(initiator) => match initiator.reply(bytes) {
                Ok(None) => self.phase = Phase::AwaitReply(initiator),
                Ok(Some((used, outcome))) => {
                    self.on_reply(outcome, host);
                    return used;
                }
                Err(error) => self.fail_startup(error.into()),
            },
            Phase::AwaitRequest(mut responder) => match responder.request(bytes) {
                Ok(None) => self.phase = Phase::AwaitRequest(responder),
                Ok(Some((used, request))) => {
                    self.shared.events.push_back(Event::Requested(Box::new(request.clone())));
                    self.phase = Phase::Decision(Box::new((*responder, request)));
                    return used;
                }
                Err(error) => self.fail_startup(error.into()),
            },
            phase => self.phase = phase,
        }
        0
    }

    /// Handles the Reply at the initiator.
    fn on_reply<H: StreamHost<Memory = M>>(&mut self, outcome: Outcome, host: &mut H) {
        match outcome {
            Outcome::Rejected { enhanced, private_data, markers_asked, .. } => {
                let peer_ird_ord = enhanced.map(|said| (said.ird, said.ord));
                self.fail_startup(StartupFailure::Rejected {
                    private_data,
                    peer_ird_ord,
                    markers_asked,
                });
            }
            Outcome::Accepted { negotiated, enhanced, private_data, terminate } => {
                self.open(negotiated);
                match terminate {
                    None => {
                        let peer_ird_ord = enhanced.map(|said| (said.ird, said.ord));
                        self.report_established(negotiated, peer_ird_ord, private_data);
                    }
                    Some(refusal) => self.fail(ConnError::Refused(refusal), host),
                }
            }
        }
    }

    fn report_established(
        &mut self,
        negotiated: Negotiated,
        peer_ird_ord: Option<(u16, u16)>,
        private_data: Vec<u8>,
    ) {
        let established = Box::new(EstablishedStream { negotiated, peer_ird_ord, private_data });
        if !self.shared.initiator && negotiated.peer_to_peer {
            self.shared.established = Some(established);
        } else {
            self.shared.events.push_back(Event::Established(established));
        }
    }

    /// Returns the Request that waits for the decision of the host.
    #[must_use]
    pub fn request(&self) -> Option<&Request> {
        match &self.phase {
            Phase::Decision(decision) => Some(&decision.1),
            _ => None,
        }
    }

    /// Accepts the Request: the Reply is queued and Full Operation begins, with `config` instead of
    /// the listener's settings. [`Event::Established`] follows, in the peer-to-peer model with the
    /// first FPDU of the peer.
    ///
    /// Returns `None` if there is no undecided Request.
    ///
    /// # Errors
    /// A [`ConfigError`]; nothing has changed then.
    pub fn accept(
        &mut self,
        config: RdmapConfig,
        private_data: &[u8],
        now: Time,
    ) -> Result<Option<Negotiated>, ConfigError> {
        let Phase::Decision(decision) = &self.phase else { return Ok(None) };
        let (responder, request) = &**decision;
        let (reply, negotiated) = responder.accept(request, &config.startup, private_data)?;
        let (peer_ird_ord, theirs) =
            (request.ird().zip(request.ord()), request.private_data().to_vec());
        self.shared.now = now;
        self.shared.caps = PeerCaps::new(false, config.capabilities, config.acknowledged, 0);
        self.shared.config = config;
        self.sender.startup_frame(&reply);
        self.shared.startup_sent = now;
        self.open(negotiated);
        self.report_established(negotiated, peer_ird_ord, theirs);
        Ok(Some(negotiated))
    }

    /// Rejects the Request: the Reply is queued, and the stream closes.
    ///
    /// Returns false if there is no undecided Request.
    ///
    /// # Errors
    /// A [`ConfigError`]; nothing has changed then.
    pub fn reject(&mut self, private_data: &[u8], now: Time) -> Result<bool, ConfigError> {
        let Phase::Decision(decision) = &self.phase else { return Ok(false) };
        let (responder, request) = &**decision;
        let reply = responder.reject(request, private_data)?;
        self.shared.now = now;
        self.shared.timers.cancel(Timer::Startup);
        self.sender.startup_frame(&reply);
        self.begin_closing();
        Ok(true)
    }

    /// Begins Full Operation, to which the bytes after the start-up frame belong.
    fn open(&mut self, negotiated: Negotiated) {
        let shared = &mut self.shared;
        shared.caps.timeout = shared.capability_timeout();
        shared.reads.ird = negotiated.ird;
        shared.reads.ord = negotiated.ord;
        shared.reads.acks.on = shared.config.acknowledged && negotiated.ord > 0;
        self.sender.open(&negotiated, shared.initiator);
        self.receiver.open(&negotiated, shared);
        self.sender.choose_mulpdu(shared);
        if shared.initiator && (negotiated.rtr == Some(Rtr::Write) || shared.caps.is_undecided()) {
            // The first FPDU: the RTR message, if one was negotiated, and the capability request.
            shared.caps.due = Some(shared.caps.request());
        }
        shared.awaits_establish = shared.initiator && shared.config.awaits_establish;
        shared.sending_blocked = !shared.initiator || shared.awaits_establish;
        // A responder of the peer-to-peer model waits for the RTR message, within the same time
        // limit.
        if shared.initiator || !negotiated.peer_to_peer {
            shared.timers.cancel(Timer::Startup);
        }
        self.phase = Phase::Open;
        if self.shared.initiator && !self.shared.awaits_establish {
            self.begin_capability_repeats();
        }
    }

    /// Allows an initiator with [`RdmapConfig::awaits_establish`] to send its first FPDU, by which
    /// the responder of the peer-to-peer model sees the connection established. Other streams
    /// ignore the call.
    pub fn establish(&mut self, now: Time) {
        if !self.is_open() || !core::mem::take(&mut self.shared.awaits_establish) {
            return;
        }
        self.shared.now = now;
        self.shared.sending_blocked = self.shared.fin.sent;
        self.begin_capability_repeats();
        self.doorbell();
    }

    /// Starts the timer that repeats the capability request, if the exchange is in progress. An RTR
    /// message that is no capability request is not repeated.
    fn begin_capability_repeats(&mut self) {
        let shared = &mut self.shared;
        if shared.caps.is_undecided() {
            self.capability_repeats = CAPABILITY_REPEATS;
            shared.timers.set(Timer::Capabilities, shared.now, CAPABILITY_INTERVAL);
        }
    }

    /// Repeats the capability request, or gives up waiting for its answer.
    pub(crate) fn on_capability_timer(&mut self) {
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        let shared = &mut self.shared;
        if self.capability_repeats > 0 && !shared.first_fpdu && !shared.fin.sent {
            self.capability_repeats -= 1;
            shared.caps.due = Some(shared.caps.request());
            let repeats = CAPABILITY_INTERVAL * u32::from(CAPABILITY_REPEATS);
            let wait = match self.capability_repeats {
                0 => shared.caps.timeout.saturating_sub(repeats),
                _ => CAPABILITY_INTERVAL,
            };
            shared.timers.set(Timer::Capabilities, shared.now, wait);
        } else if shared.caps.is_undecided() {
            shared.caps.give_up();
            self.receiver.peer_decided(shared);
        }
    }

    /// Handles the close of the peer during start-up, after `unread` bytes of a frame.
    pub(crate) fn handle_startup_eof(&mut self, unread: usize) {
        if self.may_fall_back(unread) {
            // RFC 6581 section 10: a peer of revision 1 closes on revision 2. Only once, and within
            // the same time limit.
            self.fell_back = true;
            self.shared.events.push_back(Event::Reconnect);
            return;
        }
        self.fail_startup(StartupFailure::Closed);
    }

    /// Ends a stream that was not established.
    pub(crate) fn fail_startup(&mut self, failure: StartupFailure) {
        self.shared.events.push_back(Event::Failed(failure));
        self.reset();
    }
}

impl Shared {
    /// Returns the time limit of the capability exchange, once the peer has answered the start-up
    /// frame.
    pub(crate) fn capability_timeout(&self) -> Duration {
        let round_trip = self.now.as_nanos().saturating_sub(self.startup_sent.as_nanos());
        let wait = CAPABILITY_TIMEOUT
            + Duration::from_nanos(round_trip).saturating_mul(CAPABILITY_ROUND_TRIPS);
        wait.min(CAPABILITY_LONGEST)
    }
}
