//! Peers that violate the protocol, and limits of the memory for them. The conformance kit
//! (`llp/testkit/tests/conformance`) covers the rest.

mod clear;
mod handshakes;
mod identities;
mod sessions;

use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use uiw_impair::fault::{FaultHooks, Faults, Flip};
use uiw_llp::tcp::TcpStack;
use uiw_llp::{
    DatagramConfig, Interest, ListenConfig, PeerIdentity, Token, TransportConfig,
    TransportListener, TransportStack, TransportStream,
};
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
struct ServerStack {
    stack: TlsStack,
    tls: Tls,
    listener: Box<dyn TransportListener>,
}

impl ServerStack {
    fn new(config: TlsConfig) -> Self {
        Self::over(Box::new(TcpStack::new().unwrap()), config)
    }

    fn over(stack: Box<dyn TransportStack>, config: TlsConfig) -> Self {
        let tls = Tls::new(config).unwrap();
        let mut stack = TlsStack::new(stack, &tls).unwrap();
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let listener = stack.listen(at, &ListenConfig::default(), LISTENER).unwrap();
        Self { stack, tls, listener }
    }

    fn at(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    fn poll(&mut self) {
        self.stack.poll(&mut Vec::new()).unwrap();
    }

    /// Polls until `done` returns a value.
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
struct ClientStack {
    stack: TlsStack,
    stream: Box<dyn TransportStream>,
}

impl ClientStack {
    fn new(to: SocketAddr, config: TlsConfig) -> Self {
        Self::with(Box::new(TcpStack::new().unwrap()), to, config, &TransportConfig::default())
    }

    fn with(
        stack: Box<dyn TransportStack>,
        to: SocketAddr,
        config: TlsConfig,
        options: &TransportConfig,
    ) -> Self {
        let mut stack = TlsStack::new(stack, &Tls::new(config).unwrap()).unwrap();
        let stream = stack.connect(None, to, options, CLIENT).unwrap();
        Self { stack, stream }
    }

    /// Returns the error that ends the connection before it is established.
    fn failure(&mut self) -> io::Error {
        let end = Instant::now() + LONGEST;
        loop {
            self.stack.poll(&mut Vec::new()).unwrap();
            match self.stream.connect_result() {
                Err(error) => return error,
                Ok(made) => assert!(!made && Instant::now() < end),
            }
        }
    }
}

fn recv(stream: &mut dyn TransportStream, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let count = stream.recv(&mut [IoVecMut::from(&mut bytes[..])])?;
    bytes.truncate(count);
    Ok(bytes)
}

fn send(stream: &mut dyn TransportStream, bytes: &[u8]) -> io::Result<usize> {
    stream.send(&[IoVec::from(bytes)])
}

/// Drives both ends until the connection is established at both.
fn connect(server: &mut ServerStack, client: &mut ClientStack) -> Box<dyn TransportStream> {
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

/// Drives both ends until the client fails, and returns its error. The server accepts no
/// connection.
fn failure(server: &mut ServerStack, client: &mut ClientStack) -> TlsError {
    server.until("the client's failure", |server| {
        client.stack.poll(&mut Vec::new()).unwrap();
        assert_eq!(
            server.listener.accept(SERVER).err().map(|error| error.kind()),
            Some(ErrorKind::WouldBlock)
        );
        let error = match client.stream.connect_result() {
            Ok(false) => return None,
            Ok(true) => recv(&mut *client.stream, 1)
                .err()
                .filter(|error| error.kind() != ErrorKind::WouldBlock)?,
            Err(error) => error,
        };
        Some(tls_error(&error))
    })
}

fn tls_error(error: &io::Error) -> TlsError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    inner.unwrap_or_else(|| panic!("{error:?} is not of TLS")).clone()
}

/// Runs a rustls client with a blocking socket on another thread.
fn plain_client(
    to: SocketAddr,
    config: rustls::ClientConfig,
    run: impl FnOnce(&mut rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream>)
    + Send
    + 'static,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let name = ServerName::IpAddress(to.ip().into());
        let conn = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = std::net::TcpStream::connect(to).unwrap();
        run(&mut rustls::StreamOwned::new(conn, socket));
    })
}

/// Builds the configuration that [`TlsConfig`] describes, without the certificate if `anonymous`.
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

/// Accepts one connection of [`plain_client`].
fn accept_plain(server: &mut ServerStack) -> Box<dyn TransportStream> {
    server.until("a connection", |server| server.listener.accept(SERVER).ok())
}

fn pair_of_configs() -> (TlsConfig, TlsConfig) {
    let (ours, theirs) = (key(), key());
    (raw(&ours, &[&theirs]), raw(&theirs, &[&ours]))
}
