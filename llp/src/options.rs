//! Options of streams and listeners, and what a stream reports about itself.

use std::{fmt, io, time::Duration};

/// Options of a stream. What a stack has no means for, it ignores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Congestion control by the system's name, such as `cubic` or `bbr`, or
    /// [`TransportConfig::AUTO`]; `None` = the system's default, or the route's.
    pub congestion: Option<String>,
    /// Time without any acknowledgement after which the peer counts as dead; `None` is the system's
    /// default. A peer whose window is closed acknowledges probes, so it is not dead. A stack gives
    /// up an idle connection by itself; for one on which bytes wait for an acknowledgement, it
    /// either does so too or reports [`StreamInfo::last_ack`], and the caller ends the connection.
    pub dead_after: Option<Duration>,
    /// Bytes of a segment at most (RFC 9293 section 3.7.1); `None` = what the interface and the
    /// path give. For paths that lose larger packets without a word (RFC 4821).
    pub max_segment: Option<u16>,
    /// Bytes of the send buffer; `None` = the system grows it as needed.
    pub send_buffer: Option<usize>,
    /// Bytes of the receive buffer; `None` = the system grows it as needed.
    pub recv_buffer: Option<usize>,
    /// Name of the only interface to use.
    pub interface: Option<String>,
    /// Type of service or traffic class of every packet (RFC 2474); `None` = the system's default.
    pub tos: Option<u8>,
    /// The name that the peer's certificate must be valid for, where the stack verifies
    /// certificates; `None` = what the stack is configured with.
    pub peer_name: Option<String>,
    /// Several listeners on one port share its connections (SO_REUSEPORT).
    pub reuse_port: bool,
    /// A listener on `[::]` takes no IPv4 connections.
    pub v6_only: bool,
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            congestion: None,
            dead_after: Some(Self::DEAD_AFTER),
            max_segment: None,
            send_buffer: None,
            recv_buffer: None,
            interface: None,
            tos: None,
            peer_name: None,
            reuse_port: false,
            v6_only: false,
        }
    }
}

impl TransportConfig {
    /// A [`TransportConfig::congestion`]: `bbr` where the round trip exceeds 5 ms when the
    /// connection is made and the system has it, else the system's default. A stack that has no
    /// `bbr` takes its own default.
    pub const AUTO: &str = "auto";
    /// The default of [`TransportConfig::dead_after`]: 15 minutes, for how long the kernel's TCP
    /// retransmits by default.
    pub const DEAD_AFTER: Duration = Duration::from_secs(15 * 60);
}

/// Options of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// Options of the accepted streams.
    pub stream: TransportConfig,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { backlog: 1024, stream: TransportConfig::default() }
    }
}

/// An option that the system does not take; inside of an `io::Error` of kind `InvalidInput`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The segment size is out of range.
    #[error("segments of {bytes} bytes are too short; the system requires at least 88")]
    Segment {
        /// Asked for.
        bytes: u16,
    },
    /// The kernel's MPTCP does not support the option.
    #[error("the kernel's MPTCP does not support {what}: use a newer kernel, or the stack `tcp`")]
    Multipath {
        /// Requested value.
        what: &'static str,
    },
    /// No such congestion control, or not for this user.
    #[error("congestion control `{name}` is not available here; available: {available}")]
    Congestion {
        /// Requested name.
        name: String,
        /// Names that the system offers.
        available: String,
    },
    /// No such interface, or not for this user.
    #[error("cannot bind to interface `{name}`: {reason}")]
    Interface {
        /// Requested name.
        name: String,
        /// The system's words.
        reason: String,
    },
}

impl From<OptionError> for io::Error {
    fn from(error: OptionError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// The state of a connection, as far as the stack has it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StreamInfo {
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: Option<u32>,
    /// Mean deviation in microseconds.
    pub rtt_var_us: Option<u32>,
    /// Least round-trip time seen, in microseconds.
    pub min_rtt_us: Option<u32>,
    /// Congestion window in segments.
    pub cwnd: Option<u32>,
    /// Segments sent again since the beginning.
    pub retransmits: Option<u32>,
    /// Segments in flight.
    pub unacked: Option<u32>,
    /// Time since the peer acknowledged last, be it only a probe.
    pub last_ack: Option<Duration>,
    /// Probes of an idle connection or a closed window to which no answer has come.
    pub probes: Option<u32>,
    /// Bytes taken by `send` that were not sent even once.
    pub not_sent: Option<u32>,
    /// Bytes of a segment that we send.
    pub emss: Option<u32>,
    /// Bytes of a packet on this path.
    pub path_mtu: Option<u32>,
    /// Bytes the peer acknowledged.
    pub bytes_acked: Option<u64>,
    /// Bytes that came.
    pub bytes_received: Option<u64>,
    /// Recent throughput in bytes per second.
    pub delivery_rate: Option<u64>,
    /// Congestion control.
    pub congestion: Option<String>,
    /// State of a connection of an MPTCP stack; `None` for any other stack.
    pub multipath: Option<Multipath>,
    /// True if the TCP is the kernel's, which reports more about the connection by its addresses
    /// (`crate::sock_diag`).
    pub of_kernel: bool,
}

/// Settings of a connection that change while it exists ([`crate::StreamExtensions::configure`]).
/// `None` keeps the present value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamChange<'a> {
    /// The congestion control, named as in [`TransportConfig::congestion`].
    pub congestion: Option<&'a str>,
    /// The new [`TransportConfig::dead_after`].
    pub dead_after: Option<Option<Duration>>,
}

/// State of a connection of an MPTCP stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multipath {
    /// It is an MPTCP connection, with so many subflows now.
    Subflows(u32),
    /// It is a TCP connection: the peer, or something on the path, has no MPTCP.
    Fallback,
}

impl fmt::Display for Multipath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subflows(1) => write!(f, "MPTCP with 1 subflow"),
            Self::Subflows(count) => write!(f, "MPTCP with {count} subflows"),
            Self::Fallback => write!(f, "TCP, as the peer or the path has no MPTCP"),
        }
    }
}

impl fmt::Display for StreamInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: Option<u32>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
        write!(
            f,
            "rtt {} us, cwnd {}, unacked {}, retransmits {}, EMSS {}, {}",
            number(self.rtt_us),
            number(self.cwnd),
            number(self.unacked),
            number(self.retransmits),
            number(self.emss),
            self.congestion.as_deref().unwrap_or("?"),
        )
    }
}
