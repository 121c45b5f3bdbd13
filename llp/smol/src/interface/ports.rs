//! Ports in use.

use slab::Slab;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use uiw_llp::{ListenConfig, Token, TransportConfig};

/// Dynamic ports (RFC 6335 section 6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// Listener on a port.
pub(super) struct PortListener {
    local: SocketAddr,
    pub(super) token: Token,
    pub(super) backlog: usize,
    /// Connections that are being set up, oldest first, and established ones that found the backlog
    /// full.
    pub(super) opening: VecDeque<usize>,
    /// Established connections that wait to be accepted, oldest first.
    pub(super) ready: VecDeque<usize>,
    /// True if the link is gone and this was not reported to the listener's owner yet.
    pub(super) is_unreported: bool,
    pub(super) stream: TransportConfig,
}

impl PortListener {
    /// Returns whether `accept` would return something other than `WouldBlock`.
    pub(super) fn has_answer(&self) -> bool {
        self.is_unreported || !self.ready.is_empty()
    }
}

#[derive(Default)]
pub(super) struct Ports {
    pub(super) listeners: Slab<PortListener>,
}

impl Ports {
    pub(super) fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenConfig,
        token: Token,
    ) -> io::Result<(usize, SocketAddr)> {
        let new = (local.ip(), options.stream.v6_only);
        let taken = |port| {
            self.listeners.iter().any(|(_, other)| {
                other.local.port() == port && overlap((other.local.ip(), other.stream.v6_only), new)
            })
        };
        let port = match local.port() {
            0 => self.ephemeral(taken)?,
            port if taken(port) => return Err(ErrorKind::AddrInUse.into()),
            port => port,
        };
        let local = SocketAddr::new(local.ip(), port);
        let backlog = usize::try_from(options.backlog.max(1)).unwrap_or(usize::MAX);
        let stream = options.stream.clone();
        let (opening, ready) = (VecDeque::new(), VecDeque::new());
        let listener =
            PortListener { local, token, backlog, opening, ready, is_unreported: false, stream };
        Ok((self.listeners.insert(listener), local))
    }

    /// Returns the listener for `local`. A listener with this address has precedence over one with
    /// a wildcard.
    pub(super) fn find(&self, local: SocketAddr) -> Option<usize> {
        let at = |ip: IpAddr| {
            let found =
                self.listeners.iter().find(|(_, l)| l.local == SocketAddr::new(ip, local.port()));
            found.map(|(id, _)| id)
        };
        at(local.ip())
            .or_else(|| {
                local.is_ipv4().then(|| at(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))).flatten()
            })
            .or_else(|| {
                let id = at(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED))?;
                (local.is_ipv6() || !self.listeners[id].stream.v6_only).then_some(id)
            })
    }

    /// Returns a random free dynamic port (RFC 6056).
    pub(super) fn ephemeral(&self, taken: impl Fn(u16) -> bool) -> io::Result<u16> {
        let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let start = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))? % count;
        (0..count)
            .map(|step| EPHEMERAL.start() + ((start + step) % count) as u16)
            .find(|port| !taken(*port))
            .ok_or_else(|| ErrorKind::AddrInUse.into())
    }
}

/// Returns whether two listeners on one port, each with its address and
/// [`TransportConfig::v6_only`], would both accept connections to some address.
fn overlap(a: (IpAddr, bool), b: (IpAddr, bool)) -> bool {
    let covers = |(ip, v6_only): (IpAddr, bool), other: IpAddr| {
        ip.is_unspecified() && (ip.is_ipv4() == other.is_ipv4() || ip.is_ipv6() && !v6_only)
    };
    a.0 == b.0 || covers(a, b.0) || covers(b, a.0)
}
