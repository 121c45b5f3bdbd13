//! Stacks that violate one guarantee each. The checks for this guarantee must fail.

use rustix::event::{EventfdFlags, eventfd};
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uiw_llp::tcp::TcpStack;
use uiw_llp::wrap::{Origin, StackHooks, StreamHooks, WrappedStack, WrappedStream};
use uiw_llp::{Event, Interest, Token, TransportStack, TransportStream};
use uiw_mem::{IoVec, IoVecMut};
use uiw_testkit::conformance::{self, Outcome, Peers};
use uiw_testkit::sim::Network;

/// Defect of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DefectKind {
    /// A poll does not repeat the events of the previous one.
    EdgeTriggered,
    /// Events report both directions.
    AllInterests,
    /// Events have the next token.
    WrongToken,
    /// `poll` clears the list that it is given.
    EventsReplaced,
    /// A listener is reported with every poll.
    ListenerAlwaysReady,
    /// The descriptor is never readable.
    NoWakeUp,
    /// The descriptor is always readable.
    AlwaysAwake,
    /// An idle stack has a deadline that is already due.
    AlwaysDue,
    /// The last byte of each `send` is lost.
    LosesBytes,
    /// Only the first buffer is filled, but all are counted.
    FirstBufferOnly,
    /// `recv` returns 0 if nothing has arrived.
    NothingIsFin,
    /// `send` of no bytes returns 0.
    NoBytesAreSent,
    /// A FIN is reported as `WouldBlock`.
    NoFin,
    /// `shutdown` does nothing.
    NoShutdown,
    /// `abort` sends a FIN.
    AbortIsFin,
    /// A dropped stream is reset.
    DropIsReset,
    /// A failed connection is undecided again when it is queried a second time.
    ErrorOnce,
    /// `detach` leaves the stream in its set.
    StaysAttached,
    /// An adopted stream keeps its previous token.
    KeepsItsToken,
    /// An adopted stream has no interest.
    LosesItsInterest,
    /// Every stream is adopted.
    AdoptsAnything,
}

use DefectKind::*;

/// Defects that are tested with the simulated stack.
const OF_ANY_STACK: &[(DefectKind, &[&str])] = &[
    (EdgeTriggered, &["level_triggered", "fin"]),
    (AllInterests, &["first_interest", "only_what_was_asked"]),
    (WrongToken, &["connect_and_accept", "several_waiting"]),
    (EventsReplaced, &["events_are_appended"]),
    (ListenerAlwaysReady, &["accept_would_block"]),
    (AlwaysDue, &["clock"]),
    (LosesBytes, &["bytes_in_order", "both_ways_at_once", "drop_delivers"]),
    (FirstBufferOnly, &["scattered"]),
    (NothingIsFin, &["recv_would_block"]),
    (NoBytesAreSent, &["no_bytes"]),
    (NoFin, &["fin", "fin_both_ways", "peer_closed_while_queued"]),
    (NoShutdown, &["fin", "send_after_fin"]),
    (AbortIsFin, &["reset", "errors_without_interest", "aborted"]),
    (DropIsReset, &["drop_delivers", "peer_closed_while_queued"]),
    (ErrorOnce, &["refused"]),
];

/// Defects that are tested with the kernel's TCP, which has a descriptor and shards.
const OF_DESCRIPTORS_AND_SHARDS: &[(DefectKind, &[&str])] = &[
    (
        NoWakeUp,
        &[
            "woken_by_connection",
            "woken_by_bytes",
            "woken_by_fin",
            "woken_by_reset",
            "woken_by_interest",
        ],
    ),
    (AlwaysAwake, &["idle_descriptor"]),
    (StaysAttached, &["move_accepted", "move_back"]),
    (KeepsItsToken, &["move_accepted", "move_wakes", "move_connecting"]),
    (LosesItsInterest, &["move_wakes", "move_keeps_interest"]),
    (AdoptsAnything, &["refused_adoption"]),
];

/// Runs the checks that are expected to fail, and checks that they do.
fn failing(defect: DefectKind, expected: &[&'static str], mut peers: impl FnMut() -> Peers) {
    for name in expected {
        let check =
            conformance::checks().find(|check| check.name() == *name).expect("such a check");
        let outcome = check.run(peers());
        assert!(
            matches!(outcome, Outcome::Failed(_)),
            "{defect:?} is not found by {name}: {outcome:?}"
        );
    }
}

#[test]
fn defects_are_found() {
    let ip = Ipv4Addr::LOCALHOST;
    for (defect, expected) in OF_ANY_STACK {
        failing(*defect, expected, || {
            let network = Network::new(1);
            let stack = || DefectiveStack::with(*defect, network.stack(ip));
            let peers = Peers::new((stack(), ip), (stack(), ip));
            peers.with_clock(move |_| _ = network.step())
        });
    }
}

#[test]
fn descriptor_and_shard_defects_found() {
    let ip = Ipv4Addr::LOCALHOST;
    for (defect, expected) in OF_DESCRIPTORS_AND_SHARDS {
        let stack = || DefectiveStack::with(*defect, TcpStack::new().unwrap());
        failing(*defect, expected, || {
            Peers::new((stack(), ip), (stack(), ip)).with_timeout(Duration::from_millis(200))
        });
    }
}

#[derive(Clone)]
struct DefectiveStack {
    defect: DefectKind,
    told: Vec<Event>,
    listening: Option<Token>,
}

impl DefectiveStack {
    fn with(defect: DefectKind, inner: impl TransportStack + 'static) -> WrappedStack<Self> {
        WrappedStack {
            inner: Box::new(inner),
            hooks: Self { defect, told: Vec::new(), listening: None },
        }
    }
}

impl StackHooks for DefectiveStack {
    type Stream = DefectiveStream;

    fn stream(
        &self,
        _inner: &dyn TransportStream,
        _origin: Origin,
        token: Token,
    ) -> DefectiveStream {
        DefectiveStream { defect: self.defect, token, has_failed: false }
    }

    fn before_listen(&mut self, token: Token) {
        self.listening = Some(token);
    }

    fn poll(&mut self, inner: &mut dyn TransportStack, events: &mut Vec<Event>) -> io::Result<()> {
        let mut found = Vec::new();
        inner.poll(&mut found)?;
        match self.defect {
            EdgeTriggered => {
                let before = std::mem::replace(&mut self.told, found.clone());
                found.retain(|event| !before.contains(event));
            }
            AllInterests => {
                for event in &mut found {
                    (event.readable, event.writable) = (true, true);
                }
            }
            WrongToken => {
                found.iter_mut().for_each(|event| event.token.0 = event.token.0.wrapping_add(1));
            }
            EventsReplaced => events.clear(),
            ListenerAlwaysReady => {
                found.extend(self.listening.map(|token| Event {
                    token,
                    readable: true,
                    writable: false,
                }));
            }
            _ => {}
        }
        events.append(&mut found);
        Ok(())
    }

    fn wait_fd(&self, inner: &dyn TransportStack) -> Option<Arc<OwnedFd>> {
        let count = match self.defect {
            NoWakeUp => 0,
            AlwaysAwake => 1,
            _ => return inner.wait_fd(),
        };
        Some(Arc::new(eventfd(count, EventfdFlags::CLOEXEC).expect("a descriptor")))
    }

    fn deadline(&self, inner: &dyn TransportStack) -> Option<Instant> {
        if self.defect == AlwaysDue { Some(inner.now()) } else { inner.deadline() }
    }

    fn adopt(
        &mut self,
        inner: &mut dyn TransportStack,
        stream: &mut Box<dyn TransportStream>,
        token: Token,
    ) -> io::Result<()> {
        let stream = match WrappedStream::<DefectiveStream>::of(&mut **stream) {
            Err(_) if self.defect == AdoptsAnything => return Ok(()),
            stream => stream?,
        };
        let token = if self.defect == KeepsItsToken { stream.hooks.token } else { token };
        inner.adopt(&mut stream.inner, token)?;
        if self.defect == LosesItsInterest {
            stream.inner.set_interest(Interest::NONE)
        } else {
            Ok(())
        }
    }
}

struct DefectiveStream {
    defect: DefectKind,
    token: Token,
    has_failed: bool,
}

impl StreamHooks for DefectiveStream {
    fn send(&mut self, inner: &mut dyn TransportStream, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        let total = IoVec::total(bufs);
        match self.defect {
            NoBytesAreSent if total == 0 => Ok(0),
            LosesBytes if total > 1 => {
                let mut bytes = vec![0; bufs[0].len()];
                bufs[0].copy_to(&mut bytes);
                let kept = bytes.len().max(2) - 1;
                Ok(inner.send(&[IoVec::from(&bytes[..kept])])? + usize::from(kept < bytes.len()))
            }
            _ => inner.send(bufs),
        }
    }

    fn recv(
        &mut self,
        inner: &mut dyn TransportStream,
        bufs: &mut [IoVecMut<'_>],
    ) -> io::Result<usize> {
        if self.defect == FirstBufferOnly && bufs.len() > 1 {
            let mut bytes = vec![0; IoVecMut::total(bufs)];
            let count = inner.recv(&mut [IoVecMut::from(&mut bytes[..])])?;
            let first = count.min(bufs[1].len());
            bufs[1].copy_from(&bytes[..first]);
            return Ok(count);
        }
        match (self.defect, inner.recv(bufs)) {
            (NothingIsFin, Err(error)) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            (NoFin, Ok(0)) => Err(ErrorKind::WouldBlock.into()),
            (_, result) => result,
        }
    }

    fn connect_result(&mut self, inner: &mut dyn TransportStream) -> io::Result<bool> {
        match inner.connect_result() {
            Err(_) if self.defect == ErrorOnce && std::mem::replace(&mut self.has_failed, true) => {
                Ok(false)
            }
            result => result,
        }
    }

    fn shutdown(&mut self, inner: &mut dyn TransportStream) -> io::Result<()> {
        if self.defect == NoShutdown { Ok(()) } else { inner.shutdown() }
    }

    fn abort(&mut self, inner: &mut dyn TransportStream) {
        if self.defect == AbortIsFin {
            let _ = inner.shutdown();
        } else {
            inner.abort();
        }
    }

    fn detach(&mut self, inner: &mut dyn TransportStream) -> io::Result<()> {
        if self.defect == StaysAttached { Ok(()) } else { inner.detach() }
    }

    fn before_drop(&mut self, inner: &mut dyn TransportStream) {
        if self.defect == DropIsReset {
            inner.abort();
        }
    }
}
