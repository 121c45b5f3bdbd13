//! Addresses and ports.

use super::session::{ACCEPTED, CLIENT, CONNECTED, LISTENER, Pair, SERVER, Session, expect_kind};
use super::{Verdict, define_checks, ensure, unexpected};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use uiw_llp::{ListenConfig, Token, TransportConfig};

define_checks! {
    any_port: "listeners on port 0 get different ports",
    address_in_use: "two listeners cannot have the same address",
    port_is_free_again: "a port is free when its listener is dropped",
    foreign_address: "using an address of another host fails with AddrNotAvailable",
    addresses_of_a_connection: "both ends agree on their addresses",
    given_local_address: "a connection uses the requested local address",
    given_local_port: "a connection uses the requested local port",
}

fn any_port(s: &mut Session) -> Verdict {
    let at = s.at(SERVER);
    let options = ListenConfig::default();
    let one = s.stack(SERVER).listen(at, &options, LISTENER).map_err(unexpected("listen"))?;
    let other =
        s.stack(SERVER).listen(at, &options, ACCEPTED).map_err(unexpected("a second listen"))?;
    for listener in [&one, &other] {
        let local = listener.local_addr();
        ensure!(local.ip() == at.ip() && local.port() != 0, "listening at {local}");
    }
    ensure!(one.local_addr() != other.local_addr(), "both listen at {}", one.local_addr());
    Ok(())
}

fn address_in_use(s: &mut Session) -> Verdict {
    let listener = s.listen()?;
    let options = ListenConfig::default();
    let again = s.stack(SERVER).listen(listener.local_addr(), &options, ACCEPTED);
    expect_kind("listening a second time", again, ErrorKind::AddrInUse)
}

fn port_is_free_again(s: &mut Session) -> Verdict {
    let listener = s.listen()?;
    let at = listener.local_addr();
    drop(listener);
    s.wait_idle()?;
    let again = s.stack(SERVER).listen(at, &ListenConfig::default(), LISTENER);
    again.map(drop).map_err(unexpected("listening where a listener was dropped"))
}

/// Returns an address that no host has (RFC 5737 and RFC 3849).
fn unassigned(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    }
}

fn foreign_address(s: &mut Session) -> Verdict {
    let foreign = SocketAddr::new(unassigned(s.ips[SERVER]), 0);
    let options = ListenConfig::default();
    let listening = s.stack(SERVER).listen(foreign, &options, LISTENER);
    expect_kind("listening at an address of no interface", listening, ErrorKind::AddrNotAvailable)?;
    let listener = s.listen()?;
    let connecting =
        s.stack(CLIENT).connect(Some(foreign), listener.local_addr(), &options.stream, CONNECTED);
    expect_kind(
        "connecting from an address of no interface",
        connecting,
        ErrorKind::AddrNotAvailable,
    )
}

fn addresses_of_a_connection(s: &mut Session) -> Verdict {
    let Pair { client, server, listener } = s.pair()?;
    ensure!(
        client.peer_addr() == listener.local_addr(),
        "the client's peer is {}",
        client.peer_addr()
    );
    ensure!(
        server.local_addr() == listener.local_addr(),
        "the server is at {}",
        server.local_addr()
    );
    let local = client.local_addr();
    ensure!(local.ip() == s.ips[CLIENT] && local.port() != 0, "the client is at {local}");
    ensure!(
        server.peer_addr() == local,
        "the server's peer is {}, and not {local}",
        server.peer_addr()
    );
    Ok(())
}

fn given_local_address(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    let (from, to) = (s.at(CLIENT), listener.local_addr());
    let client = s.stack(CLIENT).connect(Some(from), to, &TransportConfig::default(), CONNECTED);
    let mut client = client.map_err(unexpected("connect"))?;
    let server = s.accept(&mut *listener, ACCEPTED)?;
    s.wait_connected(&mut *client, CONNECTED)?;
    let local = client.local_addr();
    ensure!(local.ip() == from.ip() && local.port() != 0, "the client is at {local}");
    ensure!(
        server.peer_addr() == local,
        "the server's peer is {}, and not {local}",
        server.peer_addr()
    );
    Ok(())
}

fn given_local_port(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    let to = listener.local_addr();
    // Another process may take the port meanwhile, so several ports are tried.
    for _ in 0..16 {
        let at = s.at(CLIENT);
        let probe = s.stack(CLIENT).listen(at, &ListenConfig::default(), Token(7));
        let from = probe.map_err(unexpected("listen"))?.local_addr();
        let client =
            s.stack(CLIENT).connect(Some(from), to, &TransportConfig::default(), CONNECTED);
        let mut client = match client {
            Err(error) if error.kind() == ErrorKind::AddrInUse => continue,
            client => client.map_err(unexpected("connect"))?,
        };
        let server = s.accept(&mut *listener, ACCEPTED)?;
        s.wait_connected(&mut *client, CONNECTED)?;
        let ends = (client.local_addr(), server.peer_addr());
        ensure!(ends == (from, from), "{ends:?} instead of {from}");
        // A second connection between the same two ends is impossible.
        let again = s.stack(CLIENT).connect(Some(from), to, &TransportConfig::default(), Token(8));
        return match again {
            Err(error)
                if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) =>
            {
                Ok(())
            }
            Err(error) => Err(unexpected("connecting the same two ends again")(error)),
            Ok(_) => Err(super::CheckStop::Failed("two connections have the same two ends".into())),
        };
    }
    Err(super::CheckStop::Failed("no port could be connected from".into()))
}
