//! Selection of connections.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Filter that selects one connection, or all connections of an address or a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFilter {
    /// The connection with this number.
    Number(u32),
    /// Connections with this address at one end.
    Address(IpAddr),
    /// Connections with this address and port at one end.
    End(SocketAddr),
    /// Connections with this port at one end.
    Port(u16),
}

impl FromStr for ConnectionFilter {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = text.strip_prefix(':').and_then(|port| port.parse().ok()).map(Self::Port);
        let address =
            || text.trim_start_matches('[').trim_end_matches(']').parse().ok().map(Self::Address);
        port.or_else(|| text.parse().ok().map(Self::Number))
            .or_else(|| text.parse().ok().map(Self::End))
            .or_else(address)
            .ok_or("expected the number of a connection, ADDR, ADDR:PORT or :PORT")
    }
}

impl ConnectionFilter {
    /// Returns whether the filter selects findings with this connection number and these ends.
    pub(super) fn matches(&self, connection: u32, ends: [SocketAddr; 2]) -> bool {
        match *self {
            Self::Number(number) => connection == number,
            Self::Address(address) => ends.iter().any(|end| end.ip() == address),
            Self::End(socket) => ends.contains(&socket),
            Self::Port(port) => ends.iter().any(|end| end.port() == port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_names() {
        assert_eq!("7".parse(), Ok(ConnectionFilter::Number(7)));
        assert_eq!(":7174".parse(), Ok(ConnectionFilter::Port(7174)));
        assert_eq!("10.0.0.1".parse(), Ok(ConnectionFilter::Address([10, 0, 0, 1].into())));
        assert_eq!("10.0.0.1:5".parse(), Ok(ConnectionFilter::End(([10, 0, 0, 1], 5).into())));
        assert_eq!("[::1]".parse::<ConnectionFilter>(), "::1".parse());
        assert!(
            "".parse::<ConnectionFilter>().is_err() && "host".parse::<ConnectionFilter>().is_err()
        );
    }
}
