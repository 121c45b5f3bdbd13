//! Peers that do wrong, and what is held for them. The conformance kit (`tests/conformance`) has the rest.

use super::*;
use crate::fault::{FaultStack, Faults, Flip};
use crate::tcp::TcpStack;
use crate::{
    DatagramOptions, Interest, ListenOptions, Listener, PeerIdentity, Stack, Stream, StreamOptions, Token,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use uiw_mem::{IoVec, IoVecMut};

const LISTENER: Token = Token(1);
const CLIENT: Token = Token(2);
const SERVER: Token = Token(3);
const LONGEST: Duration = Duration::from_secs(30);

fn key() -> SecretKey {
    SecretKey::generate().unwrap()
}

fn pins(keys: &[&SecretKey]) -> PinnedKeys {
    let mut pinned = PinnedKeys::default();
    for (at, key) in keys.iter().enumerate() {
        pinned.add(key.public_key(), &format!("node{at}"));
    }
    pinned
}

fn raw(own: &SecretKey, peers: &[&SecretKey]) -> TlsConfig {
    TlsConfig::raw_keys(own, pins(peers)).unwrap()
}

/// A stack with a listener.
struct Server {
    stack: TlsStack,
    tls: Tls,
    listener: Box<dyn Listener>,
}

impl Server {
    fn new(config: TlsConfig) -> Self {
        Self::over(Box::new(TcpStack::new().unwrap()), config)
    }

    fn over(stack: Box<dyn Stack>, config: TlsConfig) -> Self {
        let tls = Tls::new(config).unwrap();
        let mut stack = TlsStack::new(stack, &tls).unwrap();
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let listener = stack.listen(at, &ListenOptions::default(), LISTENER).unwrap();
        Self { stack, tls, listener }
    }

    fn at(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    fn poll(&mut self) {
        self.stack.poll(&mut Vec::new()).unwrap();
    }

    /// Polls until `done`.
    fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = Instant::now() + LONGEST;
        loop {
            self.poll();
            if let Some(result) = done(self) {
                return result;
            }
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// A stack that connects.
struct Client {
    stack: TlsStack,
    stream: Box<dyn Stream>,
}

impl Client {
    fn new(to: SocketAddr, config: TlsConfig) -> Self {
        Self::with(Box::new(TcpStack::new().unwrap()), to, config, &StreamOptions::default())
    }

    fn with(stack: Box<dyn Stack>, to: SocketAddr, config: TlsConfig, options: &StreamOptions) -> Self {
        let mut stack = TlsStack::new(stack, &Tls::new(config).unwrap()).unwrap();
        let stream = stack.connect(None, to, options, CLIENT).unwrap();
        Self { stack, stream }
    }
}

fn recv(stream: &mut dyn Stream, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let count = stream.recv(&mut [IoVecMut::from(&mut bytes[..])])?;
    bytes.truncate(count);
    Ok(bytes)
}

fn send(stream: &mut dyn Stream, bytes: &[u8]) -> io::Result<usize> {
    stream.send(&[IoVec::from(bytes)])
}

/// Drives both ends until the connection stands at both.
fn connect(server: &mut Server, client: &mut Client) -> Box<dyn Stream> {
    let mut accepted = None;
    server.until("the connection", |server| {
        client.stack.poll(&mut Vec::new()).unwrap();
        if accepted.is_none() {
            accepted = server.listener.accept(SERVER).ok();
        }
        let made = client.stream.connect_result().unwrap();
        if made { accepted.take() } else { None }
    })
}

/// Drives both ends until the client fails, with its error. The server accepts nothing.
fn failure(server: &mut Server, client: &mut Client) -> TlsError {
    server.until("the client's failure", |server| {
        client.stack.poll(&mut Vec::new()).unwrap();
        assert_eq!(
            server.listener.accept(SERVER).err().map(|error| error.kind()),
            Some(ErrorKind::WouldBlock)
        );
        let error = match client.stream.connect_result() {
            Ok(false) => return None,
            Ok(true) => {
                recv(&mut *client.stream, 1).err().filter(|error| error.kind() != ErrorKind::WouldBlock)?
            }
            Err(error) => error,
        };
        Some(tls_error(&error))
    })
}

fn tls_error(error: &io::Error) -> TlsError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    inner.unwrap_or_else(|| panic!("{error:?} is not of TLS")).clone()
}

#[test]
fn both_ends_have_the_identity_of_the_other() {
    let (ours, theirs) = (key(), key());
    let mut server = Server::new(raw(&ours, &[&theirs]));
    let mut client = Client::new(server.at(), raw(&theirs, &[&ours]));
    assert!(client.stream.peer_identity().is_none());
    let accepted = connect(&mut server, &mut client);
    for (stream, key) in [(&accepted, &theirs), (&client.stream, &ours)] {
        let expected =
            PeerIdentity::PublicKey { name: "node0".into(), fingerprint: key.public_key().fingerprint() };
        assert_eq!(stream.peer_identity().as_deref(), Some(&expected));
    }
    assert_eq!(server.tls.counts().established, 1);
}

#[test]
fn an_unknown_key_is_refused_before_it_is_accepted() {
    let (ours, theirs, stranger) = (key(), key(), key());
    let mut server = Server::new(raw(&ours, &[&theirs]));
    let mut client = Client::new(server.at(), raw(&stranger, &[&ours]));
    let error = failure(&mut server, &mut client);
    assert_eq!(error, TlsError::Alert { alert: "CertificateUnknown".into() }, "{error}");
    assert_eq!(server.tls.counts().failed, 1);
    // And the client refuses a server.
    let mut client = Client::new(server.at(), raw(&theirs, &[&stranger]));
    let fingerprint = ours.public_key().fingerprint();
    let public_key = ours.public_key().to_string();
    assert_eq!(failure(&mut server, &mut client), TlsError::UnknownKey { fingerprint, public_key });
}

#[test]
fn the_access_list_decides_among_authentic_peers() {
    let (ours, one, other) = (key(), key(), key());
    let mut server = Server::new(raw(&ours, &[&one, &other]).allow("node1"));
    let mut client = Client::new(server.at(), raw(&other, &[&ours]));
    connect(&mut server, &mut client);
    let mut client = Client::new(server.at(), raw(&one, &[&ours]));
    assert!(matches!(failure(&mut server, &mut client), TlsError::Alert { .. }));
}

/// A certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key.
struct Issued {
    chain: Vec<CertificateDer<'static>>,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = format!("authority {:x}", getrandom::u64().unwrap());
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let chain = vec![params.signed_by(&key, &self.0).unwrap().der().clone()];
        Issued { chain, key }
    }

    fn config(&self, issued: &Issued) -> TlsConfig {
        let directory = Directory::new();
        let file = directory.0.join("key.pem");
        directory.write("key.pem", &issued.key.serialize_pem(), 0o600);
        let key = SecretKey::read(&file).unwrap();
        TlsConfig::x509(issued.chain.clone(), &key, vec![self.0.der().clone()]).unwrap()
    }
}

/// A directory for files of one test.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new() -> Self {
        let name = format!("uiw-tls-{}-{:x}", std::process::id(), getrandom::u64().unwrap());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> std::path::PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn localhost(params: &mut CertificateParams) {
    params.subject_alt_names.push(SanType::IpAddress(Ipv4Addr::LOCALHOST.into()));
}

fn long_ago(params: &mut CertificateParams) {
    localhost(params);
    params.not_before = rcgen::date_time_ymd(2001, 1, 1);
    params.not_after = rcgen::date_time_ymd(2002, 1, 1);
}

#[test]
fn certificates_of_an_authority() {
    let authority = Authority::new();
    let own = authority.config(&authority.issue("server.example", localhost));
    let mut server = Server::new(own.clone().allow("client*.example"));
    let theirs = authority.config(&authority.issue("client7.example", |_| ()));
    let mut client = Client::new(server.at(), theirs.clone());
    let accepted = connect(&mut server, &mut client);
    let names = |stream: &dyn Stream| match stream.peer_identity().as_deref() {
        Some(PeerIdentity::Certificate { names, .. }) => names.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (names(&*accepted), names(&*client.stream)),
        (vec!["client7.example".into()], vec!["server.example".into()])
    );
    // Authentic, but not on the list.
    let other = authority.config(&authority.issue("other.example", |_| ()));
    let mut client = Client::new(server.at(), other);
    assert!(matches!(failure(&mut server, &mut client), TlsError::Alert { .. }));
    // By name instead of by address.
    let named = |name: &str| StreamOptions { peer_name: Some(name.into()), ..StreamOptions::default() };
    let tcp = || Box::new(TcpStack::new().unwrap());
    let mut client = Client::with(tcp(), server.at(), theirs.clone(), &named("server.example"));
    connect(&mut server, &mut client);
    let mut client = Client::with(tcp(), server.at(), theirs, &named("another.example"));
    assert!(
        matches!(failure(&mut server, &mut client), TlsError::Certificate(why) if why.contains("another.example"))
    );
}

#[test]
fn certificates_that_are_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let good = authority.config(&authority.issue("one.example", localhost));
    let mut server = Server::new(good.clone());
    // A client's: expired, of another authority, for another use.
    let expired = authority.config(&authority.issue("one.example", long_ago));
    let foreign = {
        let issued = other.issue("one.example", localhost);
        let directory = Directory::new();
        let key = SecretKey::read(&directory.write("key.pem", &issued.key.serialize_pem(), 0o600)).unwrap();
        TlsConfig::x509(issued.chain, &key, vec![authority.0.der().clone()]).unwrap()
    };
    let servers_only = authority.config(&authority.issue("one.example", |params| {
        localhost(params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    }));
    for (config, alert) in [
        (expired.clone(), "CertificateExpired"),
        (foreign, "UnknownCA"),
        (servers_only, "UnsupportedCertificate"),
    ] {
        let mut client = Client::new(server.at(), config);
        assert_eq!(failure(&mut server, &mut client), TlsError::Alert { alert: alert.into() });
    }
    // A server's: expired, and not for its address.
    let mut server = Server::new(expired);
    let mut client = Client::new(server.at(), good.clone());
    assert!(
        matches!(failure(&mut server, &mut client), TlsError::Certificate(why) if why.contains("expired"))
    );
    let mut server = Server::new(authority.config(&authority.issue("one.example", |_| ())));
    let mut client = Client::new(server.at(), good);
    assert!(
        matches!(failure(&mut server, &mut client), TlsError::Certificate(why) if why.contains("127.0.0.1"))
    );
}

#[test]
fn one_kind_of_identity_at_a_listener() {
    let authority = Authority::new();
    let certificates = authority.config(&authority.issue("one.example", localhost));
    let (ours, theirs) = (key(), key());
    let mut server = Server::new(raw(&ours, &[&theirs]));
    let mut client = Client::new(server.at(), certificates.clone());
    failure(&mut server, &mut client);
    let mut server = Server::new(certificates);
    let mut client = Client::new(server.at(), raw(&theirs, &[&ours]));
    failure(&mut server, &mut client);
}

/// A client of rustls with a blocking socket, run by a thread.
fn plain_client(
    to: SocketAddr,
    config: rustls::ClientConfig,
    run: impl FnOnce(&mut rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream>) + Send + 'static,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let name = ServerName::IpAddress(to.ip().into());
        let conn = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = std::net::TcpStream::connect(to).unwrap();
        run(&mut rustls::StreamOwned::new(conn, socket));
    })
}

/// As [`TlsConfig`] makes it, without the certificate if that is asked for.
fn plain_config(config: &TlsConfig, anonymous: bool) -> rustls::ClientConfig {
    let (own, _) = config.to_rustls().unwrap();
    let mut own = (*own).clone();
    if anonymous {
        own.client_auth_cert_resolver = rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth()
            .client_auth_cert_resolver;
    }
    own
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let authority = Authority::new();
    let config = authority.config(&authority.issue("one.example", localhost));
    let mut server = Server::new(config.clone());
    let client = plain_client(server.at(), plain_config(&config, true), |stream| {
        let error = stream.read(&mut [0; 9]).unwrap_err();
        assert!(error.to_string().contains("CertificateRequired"), "{error}");
    });
    server.until("the refusal", |server| (server.tls.counts().failed == 1).then_some(()));
    assert!(server.listener.accept(SERVER).is_err());
    client.join().unwrap();
}

/// A server with one connection of [`plain_client`].
fn accept_plain(server: &mut Server) -> Box<dyn Stream> {
    server.until("a connection", |server| server.listener.accept(SERVER).ok())
}

fn pair_of_configs() -> (TlsConfig, TlsConfig) {
    let (ours, theirs) = (key(), key());
    (raw(&ours, &[&theirs]), raw(&theirs, &[&ours]))
}

#[test]
fn key_updates_of_both_ends() {
    let (own, theirs) = pair_of_configs();
    let mut server = Server::new(own);
    let client = plain_client(server.at(), plain_config(&theirs, false), |stream| {
        stream.conn.complete_io(&mut stream.sock).unwrap();
        for round in 0..20u8 {
            // It asks the server for a new key as well (RFC 8446 section 4.6.3).
            stream.conn.refresh_traffic_keys().unwrap();
            stream.write_all(&[round; 1000]).unwrap();
            let mut back = [0; 1000];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, [round; 1000]);
        }
        stream.conn.send_close_notify();
        stream.flush().unwrap();
    });
    let mut accepted = accept_plain(&mut server);
    let mut echoed = 0;
    server.until("all rounds and the end", |_| match recv(&mut *accepted, 4000) {
        Ok(bytes) if bytes.is_empty() => Some(()),
        Ok(bytes) => {
            assert_eq!(send(&mut *accepted, &bytes).unwrap(), bytes.len());
            echoed += bytes.len();
            None
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            None
        }
    });
    assert_eq!(echoed, 20_000);
    client.join().unwrap();
}

#[test]
fn our_own_key_updates() {
    let (own, theirs) = pair_of_configs();
    let mut server = Server::new(own);
    let mut client = Client::new(server.at(), theirs);
    let mut accepted = connect(&mut server, &mut client);
    for round in 0..20u8 {
        stack::update_keys(&mut *client.stream);
        assert_eq!(send(&mut *client.stream, &[round; 50]).unwrap(), 50);
        let got = server.until("the bytes", |_| recv(&mut *accepted, 100).ok());
        assert_eq!(got, [round; 50]);
        assert_eq!(send(&mut *accepted, &got).unwrap(), 50);
        let back = server.until("the bytes back", |_| recv(&mut *client.stream, 100).ok());
        assert_eq!(back, [round; 50]);
    }
}

#[test]
fn a_fin_without_close_notify_is_an_error_and_the_bytes_before_it_come() {
    let (own, theirs) = pair_of_configs();
    let mut server = Server::new(own);
    let client = plain_client(server.at(), plain_config(&theirs, false), |stream| {
        stream.write_all(b"last words").unwrap();
        stream.flush().unwrap();
        stream.sock.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = stream.sock.read(&mut [0; 9]);
    });
    let mut accepted = accept_plain(&mut server);
    let got = server.until("the bytes", |_| recv(&mut *accepted, 100).ok());
    assert_eq!(got, b"last words");
    let error = server.until("the end", |_| match recv(&mut *accepted, 100) {
        Ok(bytes) => panic!("{} bytes, or a FIN", bytes.len()),
        Err(error) => (error.kind() != ErrorKind::WouldBlock).then_some(error),
    });
    assert_eq!(tls_error(&error), TlsError::Truncated);
    assert_eq!(tls_error(&send(&mut *accepted, b"x").unwrap_err()), TlsError::Truncated);
    drop(accepted);
    client.join().unwrap();
}

#[test]
fn a_clear_peer_is_closed_without_an_answer() {
    let (own, _) = pair_of_configs();
    let mut server = Server::new(own);
    for first in [&b"MPA ID Req Frame"[..], b"\x15\x03\x03\0\x02", b"GET / HTTP/1.1\r\n", b"\0"] {
        let before = server.tls.counts().failed;
        let mut socket = std::net::TcpStream::connect(server.at()).unwrap();
        socket.write_all(first).unwrap();
        server.until("the end", |server| (server.tls.counts().failed > before).then_some(()));
        let mut got = Vec::new();
        assert_eq!(socket.read_to_end(&mut got).unwrap(), 0, "{first:x?} is answered with {got:x?}");
        assert!(server.listener.accept(SERVER).is_err());
    }
    assert_eq!(server.tls.counts().connections, 0);
}

#[test]
fn a_clear_listener_is_named() {
    let (_, theirs) = pair_of_configs();
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut client = Client::new(listener.local_addr().unwrap(), theirs);
    let (mut socket, _) = loop {
        client.stack.poll(&mut Vec::new()).unwrap();
        listener.set_nonblocking(true).unwrap();
        match listener.accept() {
            Ok(accepted) => break accepted,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    };
    let mut flight = [0; 2];
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(LONGEST)).unwrap();
    client.stack.poll(&mut Vec::new()).unwrap();
    socket.read_exact(&mut flight).unwrap();
    assert_eq!(flight, [0x16, 3]);
    drop(socket);
    let end = Instant::now() + LONGEST;
    let error = loop {
        client.stack.poll(&mut Vec::new()).unwrap();
        match client.stream.connect_result() {
            Err(error) => break error,
            Ok(made) => assert!(!made && Instant::now() < end),
        }
    };
    assert_eq!(tls_error(&error), TlsError::NoAnswer);
}

/// An acceptor of another process cannot say that it is in this one.
#[test]
fn a_forged_marker_of_the_same_process_is_refused() {
    let (_, theirs) = pair_of_configs();
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut client = Client::new(listener.local_addr().unwrap(), theirs);
    let (mut socket, _) = listener.accept().unwrap();
    socket.write_all(&[0, b'c', b'l', b'e', b'a', b'r']).unwrap();
    let end = Instant::now() + LONGEST;
    let error = loop {
        client.stack.poll(&mut Vec::new()).unwrap();
        match client.stream.connect_result() {
            Err(error) => break error,
            Ok(made) => assert!(!made && Instant::now() < end),
        }
    };
    assert!(matches!(tls_error(&error), TlsError::Protocol(_)), "{error}");
}

#[test]
fn both_ends_in_one_process_find_each_other() {
    let (own, _) = pair_of_configs();
    let mut server = Server::new(own);
    // Another shard of the same configuration, whose own key is not pinned: TLS would refuse it.
    let mut stack = TlsStack::new(Box::new(TcpStack::new().unwrap()), &server.tls).unwrap();
    let mut stream = stack.connect(None, server.at(), &StreamOptions::default(), CLIENT).unwrap();
    let mut accepted = None;
    server.until("the connection", |server| {
        stack.poll(&mut Vec::new()).unwrap();
        if accepted.is_none() {
            accepted = server.listener.accept(SERVER).ok();
        }
        (stream.connect_result().unwrap() && accepted.is_some()).then_some(())
    });
    let mut accepted = accepted.unwrap();
    for stream in [&stream, &accepted] {
        assert_eq!(stream.peer_identity().as_deref(), Some(&PeerIdentity::SameProcess));
    }
    assert_eq!(send(&mut *stream, b"there").unwrap(), 5);
    assert_eq!(server.until("the bytes", |_| recv(&mut *accepted, 9).ok()), b"there");
    assert_eq!((server.tls.counts().established, server.tls.counts().failed), (0, 0));
}

/// Every prefix of a client's first flight, then nothing or the end.
#[test]
fn truncated_handshakes_end_in_time_and_leave_nothing() {
    let (own, theirs) = pair_of_configs();
    let mut server = Server::new(own.handshake_timeout(Duration::from_millis(50)));
    let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    let mut conn = rustls::ClientConnection::new(Arc::new(plain_config(&theirs, false)), name).unwrap();
    let mut flight = Vec::new();
    conn.write_tls(&mut flight).unwrap();
    let mut sockets = Vec::new();
    let lengths: Vec<_> = (0..60).chain((60..flight.len()).step_by(97)).collect();
    for (at, len) in lengths.iter().enumerate() {
        let mut socket = std::net::TcpStream::connect(server.at()).unwrap();
        socket.write_all(&flight[..*len]).unwrap();
        if at % 2 == 0 {
            socket.shutdown(std::net::Shutdown::Write).unwrap();
        }
        sockets.push(socket);
    }
    let all = lengths.len() as u64;
    server.until("every one ends", |server| {
        assert!(server.listener.accept(SERVER).is_err());
        (server.tls.counts().failed == all).then_some(())
    });
    let counts = server.tls.counts();
    assert_eq!((counts.connections, counts.handshakes, counts.buffered), (0, 0, 0));
}

/// Bytes that are no ClientHello.
#[test]
fn noise_is_refused_with_an_alert() {
    let (own, _) = pair_of_configs();
    let mut server = Server::new(own);
    let mut socket = std::net::TcpStream::connect(server.at()).unwrap();
    socket.write_all(&[0x16, 3, 1, 0, 9, 1, 0, 0, 5, 9, 9, 9, 9, 9]).unwrap();
    server.until("the end", |server| (server.tls.counts().failed == 1).then_some(()));
    let mut got = Vec::new();
    socket.read_to_end(&mut got).unwrap();
    // A record with an alert, which is fatal (RFC 8446 section 6).
    assert_eq!((got.first(), got.get(5)), (Some(&0x15), Some(&2)), "{got:x?}");
}

#[test]
fn many_half_handshakes_are_bounded_and_others_get_through() {
    const COUNT: usize = 10_000;
    const AT_ONCE: usize = 32;
    let (own, theirs) = pair_of_configs();
    let mut server = Server::new(own.max_handshakes(AT_ONCE));
    let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
    let mut flight = Vec::new();
    let config = Arc::new(plain_config(&theirs, false));
    rustls::ClientConnection::new(config, name).unwrap().write_tls(&mut flight).unwrap();
    let at = server.at();
    let mut sockets = std::collections::VecDeque::new();
    let mut most = 0;
    for number in 0..COUNT {
        let mut socket = std::net::TcpStream::connect(at).unwrap();
        // A whole one makes the server answer and wait; it costs a signature.
        let len = if number % 16 == 0 { flight.len() } else { number % flight.len() };
        // It may be cut already.
        let _ = socket.write_all(&flight[..len]);
        sockets.push_back(socket);
        if sockets.len() > 2 * AT_ONCE {
            sockets.pop_front();
        }
        server.poll();
        let counts = server.tls.counts();
        assert!(counts.handshakes <= AT_ONCE, "{counts:?}");
        most = most.max(counts.buffered);
    }
    assert!(most <= AT_ONCE * (64 << 10), "{most} bytes are buffered");
    let mut client = Client::new(at, theirs);
    let accepted = connect(&mut server, &mut client);
    drop((accepted, client, sockets));
    server.until("nothing is left", |server| {
        let counts = server.tls.counts();
        (counts.connections == 0 && counts.buffered == 0).then_some(())
    });
}

#[test]
fn removed_keys_end_their_connections_and_others_stay() {
    let (ours, gone, stays) = (key(), key(), key());
    let mut server = Server::new(raw(&ours, &[&gone, &stays]));
    let mut clients = [&gone, &stays].map(|key| Client::new(server.at(), raw(key, &[&ours])));
    let mut accepted = clients.each_mut().map(|client| connect(&mut server, client));
    let wait = server.stack.wait_fd().unwrap();
    server.poll();
    server.tls.replace(raw(&ours, &[&stays])).unwrap();
    let mut set = [rustix::event::PollFd::new(&*wait, rustix::event::PollFlags::IN)];
    let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(
        rustix::event::poll(&mut set, Some(&at_once)),
        Ok(1),
        "a thread that sleeps in the stack wakes"
    );
    server.poll();
    let error = recv(&mut *accepted[0], 1).unwrap_err();
    assert!(matches!(tls_error(&error), TlsError::Removed { identity, .. } if identity.starts_with("node0")));
    assert_eq!(recv(&mut *accepted[1], 1).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut client = Client::new(server.at(), raw(&gone, &[&ours]));
    assert!(matches!(failure(&mut server, &mut client), TlsError::Alert { .. }));
    assert_eq!(send(&mut *clients[1].stream, b"still").unwrap(), 5);
    assert_eq!(server.until("the bytes", |_| recv(&mut *accepted[1], 9).ok()), b"still");
}

#[test]
fn datagrams_are_refused_unless_they_may_be_clear() {
    let (own, _) = pair_of_configs();
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let bind = |config: TlsConfig| {
        let tcp = Box::new(TcpStack::new().unwrap());
        let mut stack = TlsStack::new(tcp, &Tls::new(config).unwrap()).unwrap();
        stack.bind_datagrams(at, &DatagramOptions::default(), Token(9)).map(|socket| (socket, stack))
    };
    assert_eq!(bind(own.clone()).err().map(|error| error.kind()), Some(ErrorKind::Unsupported));
    let (mut socket, mut stack) = bind(own.clear_datagrams(true)).unwrap();
    socket.set_interest(Interest::READ).unwrap();
    let sender = std::net::UdpSocket::bind(at).unwrap();
    sender.send_to(b"datagram", socket.local_addr()).unwrap();
    let mut events = Vec::new();
    let end = Instant::now() + LONGEST;
    while events.is_empty() {
        stack.poll(&mut events).unwrap();
        assert!(Instant::now() < end);
    }
    assert_eq!(events[0].token, Token(9));
}

/// No byte of a record can be changed on its way, and nothing hangs, wherever the stream is cut.
#[test]
fn faults_below_tls() {
    let (own, theirs) = pair_of_configs();
    let bytes: Vec<u8> = (0..40_000u32).map(|at| (at * 7) as u8).collect();
    // The handshake of the initiator is about 1.7 KiB.
    for at in (0..44_000u64).step_by(1777) {
        for kind in 0..3 {
            let faults = match kind {
                0 => Faults { flip_sent: vec![Flip { byte: at, mask: 0x10 }], ..Faults::default() },
                1 => Faults { cut_sent: Some(at), ..Faults::default() },
                _ => Faults { fin_sent: Some(at), ..Faults::default() },
            };
            let mut server = Server::new(own.clone().handshake_timeout(Duration::from_secs(2)));
            let stack = FaultStack::new(Box::new(TcpStack::new().unwrap()), at, faults);
            let mut client =
                Client::with(Box::new(stack), server.at(), theirs.clone(), &StreamOptions::default());
            let (mut sent, mut got, mut accepted) = (0, Vec::new(), None::<Box<dyn Stream>>);
            let ended = server.until("the transfer ends, one way or the other", |server| {
                client.stack.poll(&mut Vec::new()).unwrap();
                if accepted.is_none() {
                    accepted = server.listener.accept(SERVER).ok();
                }
                if sent < bytes.len() && client.stream.connect_result().is_ok_and(|made| made) {
                    sent +=
                        send(&mut *client.stream, &bytes[sent..bytes.len().min(sent + 3000)]).unwrap_or(0);
                }
                let failed = server.tls.counts().failed > 0 || client.stream.connect_result().is_err();
                let Some(stream) = &mut accepted else { return failed.then_some(true) };
                match recv(&mut **stream, 9000) {
                    Ok(part) if part.is_empty() => {
                        panic!("a FIN that was not sent, behind {} bytes", got.len())
                    }
                    Ok(part) => got.extend(part),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return Some(true),
                }
                (got.len() == bytes.len()).then_some(false)
            });
            assert_eq!(got, bytes[..got.len()], "fault {kind} at {at}");
            // The initiator sends more bytes than there are of plaintext.
            assert!(ended || at > 40_000, "fault {kind} at {at} was not noticed");
        }
    }
}

#[test]
fn key_files() {
    let directory = Directory::new();
    let file = directory.0.join("key.pem");
    let made = key();
    made.write(&file).unwrap();
    assert_eq!(SecretKey::read(&file).unwrap().public_key(), made.public_key());
    assert!(
        matches!(made.write(&file), Err(KeyError::File { source, .. }) if source.kind() == ErrorKind::AlreadyExists)
    );
    let open = directory.write("open.pem", &made.to_pem(), 0o640);
    assert!(matches!(SecretKey::read(&open), Err(KeyError::Readable { mode: 0o640, .. })));
    let line = format!("# comment\n\n{} node one\n", made.public_key());
    let pinned = PinnedKeys::read(&directory.write("pins", &line, 0o644)).unwrap();
    assert_eq!(pinned.name_of(&made.public_key()), Some("node one"));
    assert!(matches!(
        PinnedKeys::read(&directory.write("open", &line, 0o666)),
        Err(KeyError::Writable { .. })
    ));
    let wrong = PinnedKeys::read(&directory.write("wrong", &format!("{line}AAAA x"), 0o600)).unwrap_err();
    assert!(wrong.to_string().ends_with("wrong:4: not a public key: no SubjectPublicKeyInfo"), "{wrong}");
    assert_eq!(made.public_key().to_pem().parse::<PublicKey>().unwrap(), made.public_key());
    let no_key = directory.write("none.pem", "no key", 0o600);
    assert!(matches!(SecretKey::read(&no_key), Err(KeyError::Content { .. })));
}

#[test]
fn an_idle_connection_keeps_no_buffer() {
    let (own, theirs) = pair_of_configs();
    let mut server = Server::new(own);
    let mut client = Client::new(server.at(), theirs);
    let mut accepted = connect(&mut server, &mut client);
    let bytes = vec![7; 1 << 20];
    let (mut sent, mut got) = (0, 0);
    server.until("a megabyte", |_| {
        client.stack.poll(&mut Vec::new()).unwrap();
        if sent < bytes.len() {
            sent += send(&mut *client.stream, &bytes[sent..]).unwrap_or(0);
        }
        got += recv(&mut *accepted, 10_000).map_or(0, |part| part.len());
        (got == bytes.len()).then_some(())
    });
    assert_eq!(server.tls.counts().buffered, 0);
}
