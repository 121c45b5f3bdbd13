//! Creation of connections and listeners, assignment of their addresses and ports, and acceptance
//! of connections.

use super::conn::{self, Conn, Owner};
use super::{ConnId, ListenerId, SmolInterface};
use crate::addr::endpoint;
use crate::flow::Flow;
use crate::link::Link;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use uiw_llp::{Interest, ListenConfig, Token, TransportConfig};

impl<L: Link> SmolInterface<L> {
    pub(crate) fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<(ConnId, SocketAddr)> {
        self.check_link()?;
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let local = self.source(local, peer)?;
        let flow = Flow { local, peer };
        let mut numbering = self.fresh_numbering()?;
        let mut conn =
            Conn::connecting(flow, token, options, (self.buffer, &self.time), numbering.context())?;
        let forwards = |gateway: &&IpAddr| {
            gateway.is_ipv4() == peer.is_ipv4() && !self.resolved.contains(*gateway)
        };
        if !self.is_near(peer.ip()) {
            conn.gateway = self.gateways.iter().find(forwards).copied();
        }
        let id = ConnId(self.conns.insert(conn));
        self.flows.insert(flow, id.0);
        self.egress_changed(id);
        Ok((id, local))
    }

    fn is_near(&self, peer: IpAddr) -> bool {
        self.iface.ip_addrs().iter().any(|cidr| cidr.contains_addr(&peer.into()))
    }

    pub(super) fn has_route(&self, peer: IpAddr) -> bool {
        self.is_near(peer)
            || self.gateways.iter().any(|gateway| gateway.is_ipv4() == peer.is_ipv4())
    }

    /// Returns the local address of a connection to `peer`.
    fn source(&self, asked: Option<SocketAddr>, peer: SocketAddr) -> io::Result<SocketAddr> {
        if peer.ip().is_unspecified() || peer.ip().is_multicast() {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        let ip = match asked.map(|asked| asked.ip().to_canonical()) {
            Some(ip) if !ip.is_unspecified() => {
                if !self.iface.has_ip_addr(smoltcp::wire::IpAddress::from(ip)) {
                    return Err(ErrorKind::AddrNotAvailable.into());
                }
                ip
            }
            _ => {
                let source = self.iface.get_source_address(&endpoint(peer).addr);
                source.map(IpAddr::from).ok_or(ErrorKind::AddrNotAvailable)?
            }
        };
        if ip.is_ipv4() != peer.is_ipv4() {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        // smoltcp would neither send anything nor report an error.
        if !self.has_route(peer.ip()) {
            let why =
                format!("no network of ours has {}, and there is no gateway (gw=)", peer.ip());
            return Err(io::Error::new(ErrorKind::NetworkUnreachable, why));
        }
        let taken =
            |port| self.flows.contains_key(&Flow { local: SocketAddr::new(ip, port), peer });
        let port = match asked.map(|asked| asked.port()).filter(|port| *port != 0) {
            Some(port) if taken(port) => return Err(ErrorKind::AddrInUse.into()),
            Some(port) => port,
            None => self.ports.ephemeral(taken)?,
        };
        Ok(SocketAddr::new(ip, port))
    }

    pub(crate) fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenConfig,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        self.check_link()?;
        let ip = local.ip().to_canonical();
        if !ip.is_unspecified() && !self.iface.has_ip_addr(smoltcp::wire::IpAddress::from(ip)) {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        conn::check(&options.stream)?;
        let (id, local) = self.ports.listen(SocketAddr::new(ip, local.port()), options, token)?;
        Ok((ListenerId(id), local))
    }

    pub(crate) fn accept(
        &mut self,
        listener: ListenerId,
        token: Token,
    ) -> io::Result<(ConnId, (SocketAddr, SocketAddr))> {
        let port = &mut self.ports.listeners[listener.0];
        if std::mem::take(&mut port.is_unreported)
            && let Some(gone) = &self.gone
        {
            return Err(gone.error());
        }
        let id = port.ready.pop_front().ok_or(ErrorKind::WouldBlock)?;
        let waiting = port.opening.iter().copied().find(|id| self.conns[*id].is_established());
        if let Some(waiting) = waiting {
            self.make_ready(waiting, listener.0);
        }
        let conn = &mut self.conns[id];
        conn.owner = Owner::TransportStream;
        conn.token = Some(token);
        conn.interest = Interest::READ;
        let Flow { local, peer } = conn.flow;
        self.wake_for(ConnId(id));
        Ok((ConnId(id), (local, peer)))
    }

    pub(crate) fn close_listener(&mut self, listener: ListenerId) {
        let of_it = |conn: &Conn| matches!(conn.owner, Owner::TransportListener { port, .. } if port == listener.0);
        let waiting: Vec<_> =
            self.conns.iter().filter(|(_, conn)| of_it(conn)).map(|(id, _)| id).collect();
        for id in waiting {
            self.abort(ConnId(id));
        }
        self.ports.listeners.remove(listener.0);
    }
}
