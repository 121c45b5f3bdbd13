//! Stacks that break one promise each: the checks that are about it fail.

use llp::conformance::{self, Outcome, Peers};
use llp::sim::Network;
use llp::tcp::TcpStack;
use llp::{Event, Interest, ListenOptions, Listener, Stack, Stream, StreamInfo, StreamOptions, Token};
use mem::{IoVec, IoVecMut};
use rustix::event::{EventfdFlags, eventfd};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// What a poll reported the next one does not report.
    EdgeTriggered,
    /// Events report both directions.
    AllInterests,
    /// Events name the next token.
    WrongToken,
    /// `poll` empties the list that it is given.
    EventsReplaced,
    /// A listener is reported with every poll.
    ListenerAlwaysReady,
    /// The descriptor is never readable.
    NoWakeUp,
    /// The descriptor is always readable.
    AlwaysAwake,
    /// An idle stack has a deadline at once.
    AlwaysDue,
    /// The last byte of each `send` is lost.
    LosesBytes,
    /// Only the first buffer is filled, but all are counted.
    FirstBufferOnly,
    /// `recv` of nothing says 0.
    NothingIsFin,
    /// `send` of no bytes says 0.
    NoBytesAreSent,
    /// A FIN is reported as `WouldBlock`.
    NoFin,
    /// `shutdown` does nothing.
    NoShutdown,
    /// `abort` is a FIN.
    AbortIsFin,
    /// A dropped stream is reset.
    DropIsReset,
    /// What failed is undecided again when it is asked a second time.
    ErrorOnce,
    /// `detach` leaves the stream in its set.
    StaysAttached,
    /// An adopted stream is known by the token that it had.
    KeepsItsToken,
    /// An adopted stream has no interest.
    LosesItsInterest,
    /// Whatever is given is adopted.
    AdoptsAnything,
}

use Defect::*;

/// Found on the simulated stack.
const OF_ANY_STACK: &[(Defect, &[&str])] = &[
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

/// Found on the kernel's TCP, which has a descriptor and shards.
const OF_DESCRIPTORS_AND_SHARDS: &[(Defect, &[&str])] = &[
    (
        NoWakeUp,
        &["woken_by_connection", "woken_by_bytes", "woken_by_fin", "woken_by_reset", "woken_by_interest"],
    ),
    (AlwaysAwake, &["idle_descriptor"]),
    (StaysAttached, &["move_accepted", "move_back"]),
    (KeepsItsToken, &["move_accepted", "move_wakes", "move_connecting"]),
    (LosesItsInterest, &["move_wakes", "move_keeps_interest"]),
    (AdoptsAnything, &["refused_adoption"]),
];

/// The checks that fail, of those that are expected to.
fn failing(defect: Defect, expected: &[&'static str], mut peers: impl FnMut() -> Peers) {
    for name in expected {
        let check = conformance::checks().find(|check| check.name() == *name).expect("such a check");
        let outcome = check.run(peers());
        assert!(matches!(outcome, Outcome::Failed(_)), "{defect:?} is not found by {name}: {outcome:?}");
    }
}

#[test]
fn defects_are_found() {
    let ip = Ipv4Addr::LOCALHOST;
    for (defect, expected) in OF_ANY_STACK {
        failing(*defect, expected, || {
            let network = Network::new(1);
            let stack = || Defective {
                inner: Box::new(network.stack(ip)),
                defect: *defect,
                told: Vec::new(),
                listening: None,
            };
            let peers = Peers::new((stack(), ip), (stack(), ip));
            peers.with_clock(move |_| _ = network.step())
        });
    }
}

#[test]
fn defects_of_descriptors_and_shards_are_found() {
    let ip = Ipv4Addr::LOCALHOST;
    for (defect, expected) in OF_DESCRIPTORS_AND_SHARDS {
        let stack = || Defective {
            inner: Box::new(TcpStack::new().unwrap()),
            defect: *defect,
            told: Vec::new(),
            listening: None,
        };
        failing(*defect, expected, || {
            Peers::new((stack(), ip), (stack(), ip)).with_timeout(Duration::from_millis(200))
        });
    }
}

struct Defective {
    inner: Box<dyn Stack>,
    defect: Defect,
    told: Vec<Event>,
    listening: Option<Token>,
}

impl Defective {
    fn wrap(&self, inner: Box<dyn Stream>, token: Token) -> Box<dyn Stream> {
        Box::new(DefectiveStream { inner, defect: self.defect, token, has_failed: false })
    }
}

impl Stack for Defective {
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenOptions,
        token: Token,
    ) -> io::Result<Box<dyn Listener>> {
        self.listening = Some(token);
        let inner = self.inner.listen(local, options, token)?;
        Ok(Box::new(DefectiveListener { inner, defect: self.defect }))
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &StreamOptions,
        token: Token,
    ) -> io::Result<Box<dyn Stream>> {
        let inner = self.inner.connect(local, peer, options, token)?;
        Ok(self.wrap(inner, token))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let mut found = Vec::new();
        self.inner.poll(&mut found)?;
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
            WrongToken => found.iter_mut().for_each(|event| event.token.0 = event.token.0.wrapping_add(1)),
            EventsReplaced => events.clear(),
            ListenerAlwaysReady => {
                found.extend(self.listening.map(|token| Event { token, readable: true, writable: false }));
            }
            _ => {}
        }
        events.append(&mut found);
        Ok(())
    }

    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        let count = match self.defect {
            NoWakeUp => 0,
            AlwaysAwake => 1,
            _ => return self.inner.wait_fd(),
        };
        Some(Arc::new(eventfd(count, EventfdFlags::CLOEXEC).expect("a descriptor")))
    }

    fn deadline(&self) -> Option<Instant> {
        if self.defect == AlwaysDue { Some(self.now()) } else { self.inner.deadline() }
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn shard(&self) -> io::Result<Option<Box<dyn Stack>>> {
        let Some(inner) = self.inner.shard()? else { return Ok(None) };
        Ok(Some(Box::new(Self { inner, defect: self.defect, told: Vec::new(), listening: None })))
    }

    fn adopt(&mut self, stream: &mut Box<dyn Stream>, token: Token) -> io::Result<()> {
        let Some(stream) = stream.downcast_mut::<DefectiveStream>() else {
            return if self.defect == AdoptsAnything { Ok(()) } else { Err(ErrorKind::InvalidInput.into()) };
        };
        let token = if self.defect == KeepsItsToken { stream.token } else { token };
        if self.defect == LosesItsInterest {
            self.inner.adopt(&mut stream.inner, token)?;
            return stream.inner.set_interest(Interest::NONE);
        }
        self.inner.adopt(&mut stream.inner, token)
    }
}

struct DefectiveListener {
    inner: Box<dyn Listener>,
    defect: Defect,
}

impl Listener for DefectiveListener {
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn Stream>> {
        let inner = self.inner.accept(token)?;
        Ok(Box::new(DefectiveStream { inner, defect: self.defect, token, has_failed: false }))
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }
}

struct DefectiveStream {
    inner: Box<dyn Stream>,
    defect: Defect,
    token: Token,
    has_failed: bool,
}

impl Stream for DefectiveStream {
    fn send(&mut self, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        let total = IoVec::total(bufs);
        match self.defect {
            NoBytesAreSent if total == 0 => Ok(0),
            LosesBytes if total > 1 => {
                let mut bytes = vec![0; bufs[0].len()];
                bufs[0].copy_to(&mut bytes);
                let kept = bytes.len().max(2) - 1;
                Ok(self.inner.send(&[IoVec::from(&bytes[..kept])])? + usize::from(kept < bytes.len()))
            }
            _ => self.inner.send(bufs),
        }
    }

    fn recv(&mut self, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        if self.defect == FirstBufferOnly && bufs.len() > 1 {
            let mut bytes = vec![0; IoVecMut::total(bufs)];
            let count = self.inner.recv(&mut [IoVecMut::from(&mut bytes[..])])?;
            let first = count.min(bufs[1].len());
            bufs[1].copy_from(&bytes[..first]);
            return Ok(count);
        }
        match (self.defect, self.inner.recv(bufs)) {
            (NothingIsFin, Err(error)) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            (NoFin, Ok(0)) => Err(ErrorKind::WouldBlock.into()),
            (_, result) => result,
        }
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.inner.set_interest(interest)
    }

    fn connect_result(&mut self) -> io::Result<bool> {
        match self.inner.connect_result() {
            Err(_) if self.defect == ErrorOnce && std::mem::replace(&mut self.has_failed, true) => Ok(false),
            result => result,
        }
    }

    fn shutdown(&mut self) -> io::Result<()> {
        if self.defect == NoShutdown { Ok(()) } else { self.inner.shutdown() }
    }

    fn abort(&mut self) {
        if self.defect == AbortIsFin {
            let _ = self.inner.shutdown();
        } else {
            self.inner.abort();
        }
    }

    fn emss(&self) -> usize {
        self.inner.emss()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    fn info(&self) -> StreamInfo {
        self.inner.info()
    }

    fn detach(&mut self) -> io::Result<()> {
        if self.defect == StaysAttached { Ok(()) } else { self.inner.detach() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }
}

impl Drop for DefectiveStream {
    fn drop(&mut self) {
        if self.defect == DropIsReset {
            self.inner.abort();
        }
    }
}
