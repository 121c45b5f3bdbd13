//! Errors that end a command: the exit code, a line that says what failed and why, and a hint for
//! the user.

use std::process::ExitCode;
use std::{fmt, io};
use uiw::raw::{ConnConfig, Error, Suspect, Wc, WcStatus};
use uiw_cabi_core::denied;
use uiw_copy::names::is_unsafe;
use uiw_llp::OptionError;
use uiw_tls::TlsError;

/// Exit code of a failed command, as listed in [`EXIT_CODES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The run itself failed: bytes differ, or this machine lacks something.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// No connection: refused, unreachable, timed out, rejected, or the peer does not speak iWARP.
    Unreachable = 3,
    /// The peer misbehaved, or the connection was lost.
    Lost = 4,
}

/// Section on exit codes in the text of `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done, and everything verified
  1  the run failed: bytes differ, or this machine lacks something
  2  the command line is wrong
  3  no connection: refused, unreachable, timed out, rejected, or the peer does not speak iWARP
  4  the peer misbehaved, or the connection was lost

Environment:
  UIW_LOG  what to log on standard error, for instance `debug` or `uiw_verbs=trace`";

/// Error that ends a command. Printed as `error: what: why`, and `hint: fix` on a second line.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    what: String,
    why: String,
    fix: String,
    /// Set if the connection was refused for a reason that another attempt does not change.
    pub(crate) refusal: Option<Refusal>,
    /// True if the engine has already logged why the connection ended.
    pub(crate) is_logged: bool,
}

/// Reason why a connection was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The server's key is not pinned at this end.
    UnknownKey { key: Box<str> },
    /// The server does not accept the key or certificate of this end.
    Unaccepted,
    /// The server program rejected the connection.
    Rejected,
}

/// Hint if nothing listens at the address.
const START_SERVER: &str = "start `uiw serve --listen ADDR:PORT` there, or name its port";

/// Hint if the peer cannot be reached.
const CHECK_ROUTE: &str = "check the address and the route to it";

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Creates an error. Line breaks in the parts become spaces.
    pub(crate) fn new(
        exit: Exit,
        what: impl fmt::Display,
        why: impl fmt::Display,
        fix: impl fmt::Display,
    ) -> Self {
        let line = |part: &dyn fmt::Display| {
            part.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        Self {
            exit,
            what: line(&what),
            why: line(&why),
            fix: line(&fix),
            refusal: None,
            is_logged: false,
        }
    }

    /// Creates an error for a wrong command line.
    pub(crate) fn usage(
        what: impl fmt::Display,
        why: impl fmt::Display,
        fix: impl fmt::Display,
    ) -> Self {
        Self::new(Exit::Usage, what, why, fix)
    }

    /// Replaces the hint.
    pub(crate) fn with_fix(self, fix: impl fmt::Display) -> Self {
        Self { fix: fix.to_string(), ..self }
    }

    /// Replaces the hint if a sandbox forbids what was tried.
    pub(crate) fn with_denied_fix(self, tried: &str, error: &io::Error) -> Self {
        denied::advice(tried, error).into_iter().fold(self, Self::with_fix)
    }

    /// Replaces the hint to start `uiw serve`, for commands whose peer is another program.
    pub(crate) fn with_start_hint(self, fix: &str) -> Self {
        if self.fix == START_SERVER { self.with_fix(fix) } else { self }
    }

    /// Marks the error as a refusal, which another attempt does not change.
    pub(crate) fn with_refusal(self, refusal: Refusal) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// Creates an error for a problem on this machine.
    pub(crate) fn local(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, what, why, "run with UIW_LOG=debug for the events before")
    }

    /// Creates an error for a peer that violated the protocol or went away.
    pub(crate) fn lost(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::new(
            Exit::Lost,
            what,
            why,
            "see the peer's messages, or `uiw decode` on the file of `--pcap FILE`",
        )
    }

    /// Creates an error for bytes that differ from the expected ones.
    pub(crate) fn differs(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::new(
            Exit::Failed,
            what,
            why,
            "keep the bytes of the run with `--pcap FILE` and report it",
        )
    }

    /// Creates an error for a connection that could not be set up with these options.
    pub(crate) fn connecting(to: impl fmt::Display, options: &ConnConfig, error: &Error) -> Self {
        let failure = Self { refusal: refusal(error), ..Self::unreachable(to, error) };
        match Suspect::of_connect(options, error) {
            Some(suspect) => failure.with_suspect(suspect),
            None => failure,
        }
    }

    /// Replaces the hint with the suspected kind of peer and the options to try.
    pub(crate) fn with_suspect(self, suspect: Suspect) -> Self {
        self.with_fix(suspicion(suspect))
    }

    fn unreachable(to: impl fmt::Display, error: &Error) -> Self {
        let what = format!("cannot connect to {to}");
        let no = |why: String, fix: &str| Self::new(Exit::Unreachable, &what, why, fix);
        match error {
            Error::Refused { .. } => no("connection refused".into(), START_SERVER),
            Error::TimedOut { after, awaits_reply: true, .. } => no(
                format!(
                    "TCP is connected, and the peer did not answer the MPA Request within {after:?}"
                ),
                "check that an iWARP program listens on that port, and whether it requires TLS (--tls)",
            ),
            Error::TimedOut { after, .. } => no(
                format!("no answer within {after:?}"),
                "check the address and firewalls on the way",
            ),
            Error::Rejected { private_data, .. } => {
                let text = printable(private_data);
                let said =
                    if text.is_empty() { String::new() } else { format!(", saying \"{text}\"") };
                no(format!("the peer rejected the connection{said}"), "see the peer's messages")
            }
            Error::ClosedInStartup { .. } => no(
                "the peer closed before its MPA Reply".into(),
                "check that an iWARP program listens on that port, and whether it requires TLS (--tls)",
            ),
            Error::PeerStartup { source, .. } => no(
                format!("illegal start-up frame: {source}"),
                "check that an iWARP program listens there",
            ),
            Error::Startup(error) => {
                Self::usage(what, error, "change the options of the connection")
            }
            Error::Io { source, .. } | Error::Lost { source, .. } => {
                let denied = || match error {
                    Error::Io { what: tried, .. } => denied::advice(tried, source),
                    _ => None,
                };
                let tls_hint = || tls_error(source).map(tls_fix);
                let fix = option_fix(source).or_else(tls_hint).or_else(denied);
                no(source.to_string(), fix.unwrap_or(CHECK_ROUTE))
            }
            error => no(error.to_string(), "see `uiw --help` and UIW_LOG=debug"),
        }
    }

    /// Creates an error for a peer that does not answer any more, or a path that fails.
    pub(crate) fn silent(peer: impl fmt::Display, ending: impl fmt::Display) -> Self {
        let fix = "check the path to the peer; where only small messages pass, it loses long packets: --mss 1220, or net.ipv4.tcp_mtu_probing=1; \
                   --dead-after or UIW_DEAD_AFTER sets the time";
        Self::new(Exit::Lost, peer, ending, fix)
    }

    /// Creates an error from a completion with an error status.
    pub(crate) fn completion(peer: impl fmt::Display, wc: &Wc) -> Self {
        let why = match (wc.reason, wc.status) {
            (Some(reason), _) => reason.to_string(),
            (None, WcStatus::Flushed) => "the connection ended before the work was done".to_owned(),
            (None, status) => status.to_string(),
        };
        Self::lost(peer, why)
    }
}

/// Returns the TLS error inside an I/O error, if there is one.
fn tls_error(error: &io::Error) -> Option<&TlsError> {
    error.get_ref()?.downcast_ref()
}

/// Returns the hint for a TLS error.
fn tls_fix(error: &TlsError) -> &'static str {
    match error {
        TlsError::UnknownKey { .. } => {
            "`uiw key show` prints this end's key and `uiw key pin` accepts the peer's: see docs/tls.md"
        }
        TlsError::NotAllowed { .. } | TlsError::Removed { .. } => {
            "add a line `allow` for the peer to the file of --tls, if it is the right one: see docs/tls.md"
        }
        TlsError::Certificate(_) | TlsError::NoCertificate => {
            "check `authority` and `server-name` in the file of --tls, and the names and dates of the peer's certificate"
        }
        TlsError::Alert { .. } => {
            "see the peer's log: it must pin this end's key, or trust the authority of its certificate, and have the same `mode`"
        }
        TlsError::NoAnswer | TlsError::Clear { .. } => {
            "use TLS at both ends (--tls) or at neither: see docs/tls.md; `uiw serve` without --share does not encrypt by default"
        }
        _ => {
            "check that an iWARP program with TLS 1.3 listens there, and use the same `mode` at both ends"
        }
    }
}

/// Returns the hint for a connection option that the system does not accept.
pub(crate) fn option_fix(error: &io::Error) -> Option<&'static str> {
    let option = error.get_ref()?.downcast_ref::<OptionError>()?;
    Some(match option {
        OptionError::Congestion { .. } => {
            "choose one of these with `--congestion`; as root, `modprobe tcp_NAME` and net.ipv4.tcp_allowed_congestion_control add others"
        }
        OptionError::Segment { .. } => "choose a larger `--mss`",
        _ => "leave the option out",
    })
}

pub(crate) use uiw_conform::suspicion;

/// Returns the printable characters of a peer's private data.
pub(crate) fn printable(private_data: &[u8]) -> String {
    String::from_utf8_lossy(private_data).chars().filter(|c| !is_unsafe(*c)).collect()
}

/// First word of the private data with which a server rejects a connection that it may accept a
/// little later.
pub(crate) const BUSY: &str = "busy";

/// Returns the refusal that an error stands for, if another attempt would fail in the same way.
fn refusal(error: &Error) -> Option<Refusal> {
    match error {
        Error::Rejected { private_data, .. } if !private_data.starts_with(BUSY.as_bytes()) => {
            Some(Refusal::Rejected)
        }
        Error::Lost { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            match tls_error(source) {
                Some(TlsError::UnknownKey { public_key, .. }) => {
                    Some(Refusal::UnknownKey { key: public_key.as_str().into() })
                }
                _ => Some(Refusal::Unaccepted),
            }
        }
        _ => None,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let failure = Self::local("cannot prepare the run", &error);
        match &error {
            Error::Io { what, source } => failure.with_denied_fix(what, source),
            _ => failure,
        }
    }
}

impl From<uiw::raw::PostError> for Failure {
    fn from(error: uiw::raw::PostError) -> Self {
        Self::local("cannot post a request", error)
    }
}

impl Failure {
    /// Returns the hint for the user.
    pub(crate) fn fix(&self) -> &str {
        &self.fix
    }

    /// Returns the reason for the error.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// Returns what failed and why, for a log.
    pub(crate) fn cause(&self) -> String {
        format!("{}: {}", self.what, self.why)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}: {}\nhint: {}", self.what, self.why, self.fix)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_has_error_and_hint() {
        let failure = Failure::usage("a\nb", " c \n d", "e");
        assert_eq!(failure.to_string(), "error: a b: c d\nhint: e");
    }

    #[test]
    fn suspect_named_with_options() {
        let peer = "192.0.2.1:9".parse().unwrap();
        let options = ConnConfig::default().peer_to_peer(false);
        let failure = Failure::connecting(peer, &options, &Error::ClosedInStartup { peer });
        assert!(
            failure.fix.contains("irdma")
                && failure.fix.contains("--peer-to-peer on --rtr write,read")
        );
        let rejected = Error::Rejected {
            peer,
            private_data: Vec::new(),
            peer_ird_ord: None,
            markers_asked: true,
        };
        let failure = Failure::connecting(peer, &ConnConfig::default(), &rejected);
        assert!(failure.fix.contains("try --markers off"), "{failure}");
    }

    #[test]
    fn refused_and_timed_out_are_3() {
        let peer = "192.0.2.1:9".parse().unwrap();
        for error in [
            Error::Refused { peer },
            Error::TimedOut { peer, awaits_reply: false, after: std::time::Duration::from_secs(1) },
        ] {
            let failure = Failure::connecting("192.0.2.1:9", &ConnConfig::default(), &error);
            assert_eq!(failure.exit, Exit::Unreachable);
        }
    }

    #[test]
    fn hints_of_tls_fit_the_error() {
        let fix = |error: TlsError| {
            let peer = "192.0.2.1:9".parse().unwrap();
            let error = Error::Lost { peer, source: error.into() };
            Failure::connecting(peer, &ConnConfig::default(), &error).fix
        };
        assert!(fix(TlsError::Certificate("expired".into())).contains("`authority`"));
        assert!(fix(TlsError::NotAllowed { identity: "x".into() }).contains("`allow`"));
        assert!(fix(TlsError::NoAnswer).contains("or at neither"));
        let key = TlsError::UnknownKey {
            fingerprint: uiw_llp::Fingerprint([0; 32]),
            public_key: "k".into(),
        };
        assert!(fix(key).contains("uiw key pin"));
    }
}
