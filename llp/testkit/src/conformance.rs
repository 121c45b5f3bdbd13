//! Conformance checks for implementations of [`TransportStack`]: the guarantees in the
//! documentation of the traits, as named checks that run against any stack.
//!
//! A check gets [`Peers`] from the caller: two new stacks that can reach each other, with their
//! addresses. The kit creates listeners and streams on them, drives both in the same way as the
//! engine, and reports which guarantee is violated.
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
//!     // This stack has its own clock, which the waiting thread advances.
//!     // Stacks that use the system's clock do not need this.
//!     Ok(peers.with_clock(move |_deadline| _ = network.step()))
//! });
//! assert!(report.is_conforming(), "{report}");
//! ```
//!
//! Unless a clock was given, the kit sleeps like the engine: in
//! [`wait_fd`](uiw_llp::StackExtensions::wait_fd), until [`TransportStack::deadline`]. A stack that
//! misses a wake-up fails the check that waits for it, and the failure says that only a poll
//! without a wake-up reported the event.
//!
//! The kit assumes that a new connection has room for 4,096 unread bytes. Optional abilities (a
//! stream to itself, peeking, shards, datagrams, a descriptor) are checked if they are offered;
//! otherwise the check ends with [`Outcome::NotOffered`]. A test of a stack should compare
//! [`Report::not_offered`] with the expected list.
//!
//! [`checks`] lists the checks, for a test harness that runs and reports each of them separately.
//! There are no guarantees about speed, and no check measures time.

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

/// Two stacks that can reach each other. Most checks listen on the second one.
pub struct Peers {
    stacks: [Box<dyn TransportStack>; 2],
    ips: [IpAddr; 2],
    advance: Option<Advance>,
    timeout: Duration,
}

/// Function that advances a clock: see [`Peers::with_clock`].
type Advance = Box<dyn FnMut(Option<Instant>)>;

impl Peers {
    /// Returns two stacks, each with an address at which it listens and from which it connects. The
    /// addresses may be the same if the stacks share their ports, like two stacks of one kernel.
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

    /// Uses the stacks' own clock. Instead of sleeping, a check calls `advance` with the earliest
    /// deadline of its stacks, if there is one. The function advances the clock to that time, or to
    /// the next event between the stacks.
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

/// Check of one guarantee.
#[derive(Clone, Copy)]
pub struct Check {
    name: &'static str,
    promise: &'static str,
    run: fn(&mut Session) -> Verdict,
}

/// Defines `CHECKS` from functions, whose names are the names of the checks, and the guarantees
/// that they check.
macro_rules! define_checks {
    ($($name:ident: $promise:literal,)*) => {
        pub(super) const CHECKS: &[$crate::conformance::Check] =
            &[$($crate::conformance::Check { name: stringify!($name), promise: $promise, run: $name }),*];
    };
}
use define_checks;

impl Check {
    /// Returns the name of the check, such as `refused`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the checked property as a sentence.
    #[must_use]
    pub fn promise(&self) -> &'static str {
        self.promise
    }

    /// Runs the check on new stacks.
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
    /// The guarantee is kept.
    Passed,
    /// The check concerns an optional ability that the stack does not have.
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

/// Returns the failure for an unexpected error of the operation `what`.
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

/// Returns all checks. If several fail, the first one should be examined first.
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

/// Runs all checks. Each one gets new stacks from `peers`.
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
    /// Returns each check with its outcome.
    #[must_use]
    pub fn outcomes(&self) -> &[(&'static Check, Outcome)] {
        &self.outcomes
    }

    /// Returns whether no check failed.
    #[must_use]
    pub fn is_conforming(&self) -> bool {
        self.failed().next().is_none()
    }

    /// Returns the names of the checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &'static str> {
        self.names(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    /// Returns the names of the checks for abilities that the stack does not have.
    pub fn not_offered(&self) -> impl Iterator<Item = &'static str> {
        self.names(|outcome| matches!(outcome, Outcome::NotOffered(_)))
    }

    fn names(&self, which: impl Fn(&Outcome) -> bool) -> impl Iterator<Item = &'static str> {
        self.outcomes.iter().filter(move |(_, outcome)| which(outcome)).map(|(check, _)| check.name)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed =
            self.outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Passed).count();
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
