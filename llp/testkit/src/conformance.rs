//! Checks for implementers of [`TransportStack`]: everything that the documentation of the traits
//! promises to the engine, as named checks that run against any stack.
//!
//! A check gets [`Peers`] from the caller: two new stacks that reach each other, with their
//! addresses. The kit makes listeners and streams on them, drives both as the engine does, and says
//! which promise is broken.
//!
//! ```
//! use uiw_testkit::conformance::{self, Peers};
//! use uiw_testkit::sim::Network;
//! use std::net::Ipv4Addr;
//!
//! let report = conformance::run(|| {
//!     let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
//!     let network = Network::new(1);
//!     let peers = Peers::new((network.stack(a), a), (network.stack(b), b));
//!     // This stack has a clock of its own: the waiting thread moves it. Stacks on the system's clock need none of this.
//!     Ok(peers.with_clock(move |_deadline| _ = network.step()))
//! });
//! assert!(report.is_conforming(), "{report}");
//! ```
//!
//! Unless a clock was given, the kit sleeps as the engine does: in
//! [`wait_fd`](uiw_llp::StackExtensions::wait_fd), until [`TransportStack::deadline`]. A stack that
//! misses a wake-up fails the check that waits for it, and the failure says that a poll without any
//! news would have helped.
//!
//! The kit takes for granted that a new connection has room for 4,096 unread bytes. What is
//! optional (a stream to itself, peeking, shards, datagrams, a descriptor) is checked where it is
//! offered; otherwise the check ends as [`Outcome::NotOffered`]. Tests of a stack do well to
//! compare [`Report::not_offered`] with what they expect.
//!
//! [`checks`] lists the checks, for a test harness that runs and reports each one by itself.
//! Nothing is promised about speed, and no check measures time.

mod addresses;
mod datagrams;
mod endings;
mod optional;
mod readiness;
mod session;
mod set_up;
mod shards;
mod transfer;
mod wake_ups;

use session::Session;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use uiw_llp::TransportStack;

/// Two stacks that reach each other. The second one is listened on, mostly.
pub struct Peers {
    stacks: [Box<dyn TransportStack>; 2],
    ips: [IpAddr; 2],
    advance: Option<Advance>,
    timeout: Duration,
}

/// Moves a clock: [`Peers::with_clock`].
type Advance = Box<dyn FnMut(Option<Instant>)>;

impl Peers {
    /// Two stacks, each with an address that it listens on and connects from. The addresses may be
    /// the same, if the stacks share their ports as two stacks of one kernel do.
    pub fn new<A, B>(client: (A, impl Into<IpAddr>), server: (B, impl Into<IpAddr>)) -> Self
    where
        A: TransportStack + 'static,
        B: TransportStack + 'static,
    {
        Self {
            stacks: [Box::new(client.0), Box::new(server.0)],
            ips: [client.1.into(), server.1.into()],
            advance: None,
            timeout: Duration::from_secs(30),
        }
    }

    /// Uses a clock that the stacks have of their own: `advance` is called instead of sleeping,
    /// with the earlier deadline of the two stacks. It moves the clock to that time, or to whatever
    /// is next on the way between the stacks.
    #[must_use]
    pub fn with_clock(mut self, advance: impl FnMut(Option<Instant>) + 'static) -> Self {
        self.advance = Some(Box::new(advance));
        self
    }

    /// Sets the time that a check waits for a required event before it fails: 30 seconds if this is
    /// not called. With [`Peers::with_clock`] rounds are counted instead.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("ips", &self.ips).finish_non_exhaustive()
    }
}

/// One promise, and the function that checks it.
#[derive(Clone, Copy)]
pub struct Check {
    name: &'static str,
    promise: &'static str,
    run: fn(&mut Session) -> Verdict,
}

/// Defines `CHECKS`: functions, whose names are those of the checks, and their promises.
macro_rules! define_checks {
    ($($name:ident: $promise:literal,)*) => {
        pub(super) const CHECKS: &[$crate::conformance::Check] =
            &[$($crate::conformance::Check { name: stringify!($name), promise: $promise, run: $name }),*];
    };
}
use define_checks;

impl Check {
    /// Returns the name, such as `refused`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the checked property as a sentence.
    #[must_use]
    pub fn promise(&self) -> &'static str {
        self.promise
    }

    /// Runs it on new stacks.
    #[must_use]
    pub fn run(&self, peers: Peers) -> Outcome {
        let mut session = Session::new(peers);
        let verdict = (self.run)(&mut session);
        session.wind_down();
        match verdict {
            Ok(()) => Outcome::Passed,
            Err(CheckStop::NotOffered(what)) => Outcome::NotOffered(what),
            Err(CheckStop::Failed(why)) => Outcome::Failed(why),
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("name", &self.name)
            .field("promise", &self.promise)
            .finish_non_exhaustive()
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The promise is kept.
    Passed,
    /// It is about something optional that the stack does not have.
    NotOffered(&'static str),
    /// Description of the observed behaviour.
    Failed(String),
}

/// Reason why a check ends early.
#[derive(Debug)]
enum CheckStop {
    NotOffered(&'static str),
    Failed(String),
}

type Verdict<T = ()> = Result<T, CheckStop>;

/// An unexpected error, and what was done.
fn unexpected(what: &str) -> impl FnOnce(io::Error) -> CheckStop + '_ {
    move |error| CheckStop::Failed(format!("{what}: unexpected {:?}: {error}", error.kind()))
}

/// Ends the check as failed unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::conformance::CheckStop::Failed(format!($($message)+)));
        }
    };
}
use ensure;

/// Every check, in an order in which the first one that fails is the one to look at.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    [
        addresses::CHECKS,
        set_up::CHECKS,
        transfer::CHECKS,
        readiness::CHECKS,
        wake_ups::CHECKS,
        endings::CHECKS,
        optional::CHECKS,
        shards::CHECKS,
        datagrams::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// Runs every check, each on the stacks of another call of `peers`.
pub fn run(mut peers: impl FnMut() -> io::Result<Peers>) -> Report {
    let outcome = |check: &'static Check| match peers() {
        Ok(peers) => (check, check.run(peers)),
        Err(error) => (check, Outcome::Failed(format!("the stacks cannot be created: {error}"))),
    };
    Report { outcomes: checks().map(outcome).collect() }
}

/// Results of all checks. The displayed text names the checks that failed and those that are not
/// offered.
#[derive(Clone, Debug)]
pub struct Report {
    outcomes: Vec<(&'static Check, Outcome)>,
}

impl Report {
    /// Each check and how it ended.
    #[must_use]
    pub fn outcomes(&self) -> &[(&'static Check, Outcome)] {
        &self.outcomes
    }

    /// Returns whether no check failed.
    #[must_use]
    pub fn is_conforming(&self) -> bool {
        self.failed().next().is_none()
    }

    /// The names of the checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &'static str> {
        self.names(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    /// The names of the checks of what the stack does not have.
    pub fn not_offered(&self) -> impl Iterator<Item = &'static str> {
        self.names(|outcome| matches!(outcome, Outcome::NotOffered(_)))
    }

    fn names(&self, which: impl Fn(&Outcome) -> bool) -> impl Iterator<Item = &'static str> {
        self.outcomes.iter().filter(move |(_, outcome)| which(outcome)).map(|(check, _)| check.name)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed = self.outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Passed).count();
        for (check, outcome) in &self.outcomes {
            match outcome {
                Outcome::Passed => {}
                Outcome::NotOffered(what) => writeln!(f, "{}: not offered: {what}", check.name)?,
                Outcome::Failed(why) => {
                    writeln!(f, "{}: failed: {why}\n    promise: {}", check.name, check.promise)?;
                }
            }
        }
        write!(f, "{passed} of {} checks passed", self.outcomes.len())
    }
}
