//! Options of streams and listeners, and information about a stream.

use std::{fmt, io, time::Duration};

/// Options of a stream. A stack ignores those that it does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Name of a congestion control of the system, such as `cubic` or `bbr`, or
    /// [`TransportConfig::AUTO`]. `None` means the default of the system or of the route.
    pub congestion: Option<String>,
    /// Time without any acknowledgement after which the peer is considered dead; `None` means the
    /// system's default.
    ///
    /// A peer whose window is closed acknowledges probes, so it is not dead. A stack ends an idle
    /// connection by itself. For a connection with unacknowledged data, it either does the same or
    /// reports [`StreamInfo::last_ack`], and the caller ends the connection.
    pub dead_after: Option<Duration>,
    /// Maximum segment size in bytes (RFC 9293 section 3.7.1); `None` means the size that the
    /// interface and the path permit. The option is for paths that silently drop larger packets
    /// (RFC 4821).
    pub max_segment: Option<u16>,
    /// Size of the send buffer in bytes; `None` means the default of the stack. The kernel's TCP
    /// then grows the buffer as needed.
    pub send_buffer: Option<usize>,
    /// Size of the receive buffer in bytes; `None` means the default of the stack. The kernel's TCP
    /// then grows the buffer as needed.
    pub recv_buffer: Option<usize>,
    /// Name of the only interface to use.
    pub interface: Option<String>,
    /// Type of service or traffic class of every packet (RFC 2474); `None` means the system's
    /// default.
    pub tos: Option<u8>,
    /// Name for which the peer's certificate must be valid, if the stack verifies certificates;
    /// `None` means the name with which the stack is configured, or else the peer's address.
    pub peer_name: Option<String>,
    /// True if several listeners on one port share its connections (SO_REUSEPORT).
    pub reuse_port: bool,
    /// True if a listener on `[::]` refuses IPv4 connections.
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
    /// Value of [`TransportConfig::congestion`] that selects `bbr` if the round-trip time exceeds 5
    /// ms when the connection is established and the system has `bbr`, and otherwise the system's
    /// default. A stack without `bbr` uses its own default.
    pub const AUTO: &str = "auto";
    /// Default of [`TransportConfig::dead_after`]: 15 minutes, the time for which the kernel's TCP
    /// retransmits by default.
    pub const DEAD_AFTER: Duration = Duration::from_secs(15 * 60);
}

/// Options of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    /// Maximum number of connections that wait to be accepted.
    pub backlog: u32,
    /// Options of the accepted streams.
    pub stream: TransportConfig,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { backlog: 1024, stream: TransportConfig::default() }
    }
}

/// Invalid option, contained in an `io::Error` of kind `InvalidInput`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The segment size is out of range.
    #[error("segments of {bytes} bytes: the system allows 88 to 32,767")]
    Segment {
        /// Requested size in bytes.
        bytes: u16,
    },
    /// The kernel's MPTCP does not support the option.
    #[error("the kernel's MPTCP does not support {what}: use a newer kernel, or the stack `tcp`")]
    Multipath {
        /// Name of the option.
        what: &'static str,
    },
    /// The congestion control does not exist, or is not available to this user.
    #[error("congestion control `{name}` is not available here; available: {available}")]
    Congestion {
        /// Requested name.
        name: String,
        /// Names that the system offers.
        available: String,
    },
    /// The interface does not exist, or is not available to this user.
    #[error("cannot bind to interface `{name}`: {reason}")]
    Interface {
        /// Requested name.
        name: String,
        /// Text of the OS error.
        reason: String,
    },
}

impl From<OptionError> for io::Error {
    fn from(error: OptionError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// State of a connection, as far as the stack knows it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StreamInfo {
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: Option<u32>,
    /// Mean deviation of the round-trip time in microseconds.
    pub rtt_var_us: Option<u32>,
    /// Minimum round-trip time so far, in microseconds.
    pub min_rtt_us: Option<u32>,
    /// Congestion window in segments.
    pub cwnd: Option<u32>,
    /// Number of segments retransmitted since the connection began.
    pub retransmits: Option<u32>,
    /// Number of segments in flight.
    pub unacked: Option<u32>,
    /// Time since the last acknowledgement of the peer, including those of probes.
    pub last_ack: Option<Duration>,
    /// Number of unanswered probes of an idle connection or a closed window.
    pub probes: Option<u32>,
    /// Number of bytes accepted by `send` that were not transmitted yet.
    pub not_sent: Option<u32>,
    /// Effective maximum size of the segments that we send, in bytes.
    pub emss: Option<u32>,
    /// Maximum packet size on this path, in bytes.
    pub path_mtu: Option<u32>,
    /// Number of bytes that the peer has acknowledged.
    pub bytes_acked: Option<u64>,
    /// Number of bytes received.
    pub bytes_received: Option<u64>,
    /// Recent throughput in bytes per second.
    pub delivery_rate: Option<u64>,
    /// Name of the congestion control.
    pub congestion: Option<String>,
    /// State of a connection of an MPTCP stack; `None` for any other stack.
    pub multipath: Option<Multipath>,
    /// True if the connection belongs to the kernel's TCP, which reports more about it by its
    /// addresses (`crate::sock_diag`).
    pub of_kernel: bool,
}

/// Changes of settings of an existing connection ([`crate::StreamExtensions::configure`]). `None`
/// keeps the current value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamChange<'a> {
    /// New congestion control, named as in [`TransportConfig::congestion`].
    pub congestion: Option<&'a str>,
    /// New [`TransportConfig::dead_after`].
    pub dead_after: Option<Option<Duration>>,
}

/// State of a connection of an MPTCP stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multipath {
    /// The connection uses MPTCP, with this number of subflows.
    Subflows(u32),
    /// The connection uses TCP, because the peer or a middlebox on the path does not support MPTCP,
    /// or because the program passed a TCP socket to the stack.
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
