//! Congestion control of a connection, selected by the system's name or by the round-trip time.

use super::syscall;
use crate::netlink::text;
use crate::{OptionError, TransportConfig};
use socket2::Socket;
use std::os::fd::AsFd;
use std::time::Duration;
use std::{fs, io};

/// Round-trip time above which [`TransportConfig::AUTO`] selects [`LONG_PATH`].
const LONG: Duration = Duration::from_millis(5);
/// Congestion control for long paths. Losses on the path do not reduce its rate.
const LONG_PATH: &str = "bbr";

/// Requested congestion control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Congestion {
    Named(String),
    /// [`TransportConfig::AUTO`].
    ByRoundTrip,
}

impl Congestion {
    pub(super) fn new(name: &str) -> Self {
        if name == TransportConfig::AUTO { Self::ByRoundTrip } else { Self::Named(name.to_owned()) }
    }

    /// Applies the setting to a socket that is not connected.
    ///
    /// # Errors
    /// [`OptionError::Congestion`] if the congestion control is not available.
    pub(super) fn prepare(&self, socket: &Socket) -> io::Result<()> {
        match self {
            Self::Named(name) => set(socket, name),
            Self::ByRoundTrip => Ok(()),
        }
    }

    /// Applies the setting to a connected socket. The kernel replaces the value set by
    /// [`Congestion::prepare`] when the connection is established, if the route has a congestion
    /// control (`ip route .. congctl`).
    ///
    /// # Errors
    /// The same as for [`Congestion::prepare`].
    pub(super) fn on_connected(&self, socket: &Socket) -> io::Result<()> {
        let name = match self {
            Self::Named(name) => name,
            Self::ByRoundTrip if is_long(socket) && is_offered(LONG_PATH) => LONG_PATH,
            Self::ByRoundTrip => return Ok(()),
        };
        let present = current(socket);
        if present.as_deref() == Some(name) {
            return Ok(());
        }
        set(socket, name)?;
        let now = current(socket);
        if now.as_deref() != Some(name) {
            // The reason is `congctl lock`, or a program that the kernel calls for its sockets.
            tracing::warn!(asked = name, ?now, "the system keeps another congestion control");
        }
        Ok(())
    }
}

fn set(socket: &Socket, name: &str) -> io::Result<()> {
    socket.set_tcp_congestion(name.as_bytes()).map_err(|_| {
        OptionError::Congestion { name: name.to_owned(), available: offered_names() }.into()
    })
}

/// Returns the congestion control of a socket.
pub(super) fn current(socket: &Socket) -> Option<String> {
    Some(text(&socket.tcp_congestion().ok()?))
}

fn is_long(socket: &Socket) -> bool {
    syscall::tcp_info(socket.as_fd())
        .is_ok_and(|info| Duration::from_micros(info.tcpi_rtt.into()) > LONG)
}

fn is_offered(name: &str) -> bool {
    offered_names().split_ascii_whitespace().any(|known| known == name)
}

/// Returns the names that the system offers to every user or, if that is unknown, all names.
fn offered_names() -> String {
    ["allowed", "available"]
        .iter()
        .find_map(|which| {
            fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control")).ok()
        })
        .map_or_else(|| "unknown".to_owned(), |names| names.trim().to_owned())
}
