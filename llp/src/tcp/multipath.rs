//! Multipath TCP (RFC 8684). Its sockets have another protocol number, and its connections have one
//! subflow for each path. The kernel falls back to TCP with a peer that does not support it.

use super::syscall::Subflows;
use crate::{Multipath, StreamInfo};
use socket2::Protocol;
use std::io;
use std::time::Duration;

/// Protocol of a stack's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TcpVariant {
    #[default]
    Tcp,
    Multipath,
}

impl TcpVariant {
    pub(super) fn protocol(self) -> Protocol {
        match self {
            Self::Tcp => Protocol::TCP,
            Self::Multipath => Protocol::MPTCP,
        }
    }

    /// Adds the reason to the error of creating a socket of this kind.
    pub(super) fn refused(self, error: io::Error) -> io::Error {
        let why = match (self, error.raw_os_error()) {
            (Self::Multipath, Some(libc::EPROTONOSUPPORT | libc::EINVAL)) => {
                "this kernel has no MPTCP"
            }
            (Self::Multipath, Some(libc::ENOPROTOOPT)) => {
                "MPTCP is switched off (sysctl net.mptcp.enabled)"
            }
            _ => return error,
        };
        io::Error::new(io::ErrorKind::Unsupported, why)
    }
}

/// Combines the reports of a connection's subflows. Times are those of the best path, except for
/// the smoothed round-trip time and its deviation: these are those of the worst path, because
/// time-outs depend on them.
pub(super) fn combine_subflows(subflows: &Subflows, congestion: Option<String>) -> StreamInfo {
    let infos = subflows.infos();
    let sum =
        |of: fn(&libc::tcp_info) -> u32| Some(infos.iter().map(of).fold(0, u32::saturating_add));
    let sum64 =
        |of: fn(&libc::tcp_info) -> u64| Some(infos.iter().map(of).fold(0, u64::saturating_add));
    let least = |of: fn(&libc::tcp_info) -> u32| infos.iter().map(of).min();
    let most = |of: fn(&libc::tcp_info) -> u32| infos.iter().map(of).max();
    StreamInfo {
        rtt_us: most(|info| info.tcpi_rtt),
        rtt_var_us: most(|info| info.tcpi_rttvar),
        min_rtt_us: least(|info| info.tcpi_min_rtt),
        cwnd: sum(|info| info.tcpi_snd_cwnd),
        retransmits: sum(|info| info.tcpi_total_retrans),
        unacked: sum(|info| info.tcpi_unacked),
        last_ack: least(|info| info.tcpi_last_ack_recv).map(|ms| Duration::from_millis(ms.into())),
        // It is sufficient that one path answers.
        probes: least(|info| info.tcpi_probes.into()),
        not_sent: sum(|info| info.tcpi_notsent_bytes),
        emss: least(|info| info.tcpi_snd_mss),
        path_mtu: least(|info| info.tcpi_pmtu),
        bytes_acked: sum64(|info| info.tcpi_bytes_acked),
        bytes_received: sum64(|info| info.tcpi_bytes_received),
        delivery_rate: sum64(|info| info.tcpi_delivery_rate),
        congestion,
        multipath: Some(Multipath::Subflows(subflows.count())),
        of_kernel: true,
    }
}
