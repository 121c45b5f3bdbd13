//! TLS with other implementations: OpenSSL with certificates and GnuTLS with raw public keys (RFC
//! 7250), each as client and as server.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType,
};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use uiw_llp::tcp::TcpStack;
use uiw_llp::{
    Interest, ListenConfig, PeerIdentity, Token, TransportConfig, TransportStack, TransportStream,
};
use uiw_mem::{IoVec, IoVecMut};
use uiw_tls::{CertificateDer, PinnedKeys, PublicKey, SecretKey, Tls, TlsConfig, TlsStack};

const LONGEST: Duration = Duration::from_secs(60);
/// Priority string of GnuTLS that permits only TLS 1.3 and raw public keys.
const RAW: &str = "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CTYPE-ALL:+CTYPE-RAWPK";

/// Directory of one test, with the files that a peer needs.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new() -> Self {
        let number = getrandom::u64().expect("a number");
        let path =
            std::env::temp_dir().join(format!("uiw-peers-{}-{number:x}", std::process::id()));
        fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        path
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Creates certificates of one authority for the two ends. The files `ca.pem`, `cert.pem` and
/// `key.pem` are those of the peer.
fn certificates(directory: &TestDirectory) -> TlsConfig {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
        .expect("an authority");
    directory.write("ca.pem", &authority.pem());
    let mut chains = Vec::new();
    for name in ["ours.example", "peer.example"] {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        params.subject_alt_names.push(SanType::IpAddress(Ipv4Addr::LOCALHOST.into()));
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &authority).expect("a certificate");
        directory.write("cert.pem", &certificate.pem());
        let file = directory.write("key.pem", &key.serialize_pem());
        chains.push((certificate.der().clone(), SecretKey::read(&file).expect("the key")));
    }
    let (certificate, key) = chains.swap_remove(0);
    let authority = CertificateDer::from(authority.der().to_vec());
    TlsConfig::x509(vec![certificate], &key, vec![authority]).expect("a configuration")
}

/// Creates raw keys of both ends. Those of the peer are in `key.pem` and `pub.pem`.
fn raw_keys(directory: &TestDirectory) -> (TlsConfig, PublicKey) {
    let (ours, theirs) =
        (SecretKey::generate().expect("a key"), SecretKey::generate().expect("a key"));
    theirs.write(&directory.0.join("key.pem")).expect("its file");
    directory.write("pub.pem", &theirs.public_key().to_pem());
    let mut pinned = PinnedKeys::default();
    pinned.add(theirs.public_key(), "peer");
    (TlsConfig::raw_keys(&ours, pinned).expect("a configuration"), theirs.public_key())
}

/// Program that is the peer.
struct PeerProgram(Child);

impl PeerProgram {
    fn start(directory: &TestDirectory, program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&directory.0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().expect("the peer"))
    }

    fn write(&mut self, bytes: &[u8]) {
        let input = self.0.stdin.as_mut().expect("its input");
        input.write_all(bytes).and_then(|()| input.flush()).expect("it reads");
    }

    /// Reads the program's output until a line contains `text`.
    fn wait_saying(&mut self, text: &str) {
        let mut lines = BufReader::new(self.0.stdout.as_mut().expect("its output"));
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(lines.read_line(&mut line).expect("text"), 0, "it ended before `{text}`");
            if line.contains(text) {
                return;
            }
        }
    }
}

impl Drop for PeerProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Our end of a connection.
struct OwnEnd {
    stack: TlsStack,
    stream: Box<dyn TransportStream>,
}

impl OwnEnd {
    fn connect(config: TlsConfig, to: SocketAddr) -> Self {
        let end = Instant::now() + LONGEST;
        loop {
            let mut stack = stack(config.clone());
            let mut stream =
                stack.connect(None, to, &TransportConfig::default(), Token(1)).expect("an attempt");
            let made = loop {
                stack.poll(&mut Vec::new()).expect("poll");
                match stream.connect_result() {
                    Ok(false) => std::thread::sleep(Duration::from_micros(100)),
                    made => break made,
                }
            };
            match made {
                Ok(_) => return Self { stack, stream },
                // The program does not listen yet.
                Err(error)
                    if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < end =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut dyn TransportStream) -> Option<T>,
    ) -> T {
        let end = Instant::now() + LONGEST;
        loop {
            self.stack.poll(&mut Vec::new()).expect("poll");
            if let Some(result) = done(&mut *self.stream) {
                return result;
            }
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.set_interest(Interest::BOTH).expect("interest");
        let mut sent = 0;
        self.until("all is sent", |stream| {
            match stream.send(&[IoVec::from(&bytes[sent..])]) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            (sent == bytes.len()).then_some(())
        });
    }

    /// Receives `len` bytes, or fewer if the peer closes the connection before.
    fn recv(&mut self, len: usize) -> Vec<u8> {
        self.stream.set_interest(Interest::BOTH).expect("interest");
        let mut got = Vec::new();
        let mut block = vec![0; 1 << 16];
        self.until("all bytes", |stream| {
            match stream.recv(&mut [IoVecMut::from(&mut block[..])]) {
                Ok(0) => return Some(()),
                Ok(count) => got.extend_from_slice(&block[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            (got.len() >= len).then_some(())
        });
        got
    }
}

fn stack(config: TlsConfig) -> TlsStack {
    let tls = Tls::new(config).expect("TLS");
    TlsStack::new(Box::new(TcpStack::new().expect("TCP")), &tls).expect("a stack")
}

/// Starts the peer with the port of a listener, and accepts its connection.
fn accept(config: TlsConfig, start: impl FnOnce(u16) -> PeerProgram) -> (OwnEnd, PeerProgram) {
    let mut stack = stack(config);
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let mut listener = stack.listen(at, &ListenConfig::default(), Token(0)).expect("a listener");
    let peer = start(listener.local_addr().port());
    let end = Instant::now() + LONGEST;
    let stream = loop {
        stack.poll(&mut Vec::new()).expect("poll");
        match listener.accept(Token(1)) {
            Ok(stream) => break stream,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert!(Instant::now() < end, "no connection");
        std::thread::sleep(Duration::from_micros(100));
    };
    (OwnEnd { stack, stream }, peer)
}

fn free_port() -> u16 {
    uiw_interop::stock::free_port()
}

fn names(end: &OwnEnd) -> Vec<String> {
    match end.stream.peer_identity().as_deref() {
        Some(PeerIdentity::Certificate { names, .. }) => names.clone(),
        other => panic!("{other:?}"),
    }
}

fn text(len: usize) -> String {
    let line = "abcdefghijklmnopqrstuvwxyz0123456789";
    line.chars().cycle().take(len).collect()
}

#[test]
fn openssl_as_client() {
    let Some(openssl) = uiw_interop::require("openssl") else { return };
    let directory = TestDirectory::new();
    let (mut end, mut peer) = accept(certificates(&directory), |port| {
        let to = format!("127.0.0.1:{port}");
        let arguments = [
            "s_client",
            "-connect",
            &to,
            "-tls1_3",
            "-quiet",
            "-verify_return_error",
            "-verify_ip",
            "127.0.0.1",
        ];
        let own = ["-CAfile", "ca.pem", "-cert", "cert.pem", "-key", "key.pem"];
        PeerProgram::start(&directory, &openssl, &[&arguments[..], &own].concat())
    });
    assert_eq!(names(&end), ["peer.example"]);
    let bytes = text(100_000);
    peer.write(bytes.as_bytes());
    assert_eq!(end.recv(bytes.len()), bytes.as_bytes());
    end.send(b"an answer\n");
    // Our FIN is a close_notify. The program then prints the received data and exits.
    end.stream.shutdown().expect("a FIN");
    let mut said = String::new();
    peer.0.stdout.as_mut().expect("its output").read_to_string(&mut said).expect("text");
    assert_eq!(said, "an answer\n");
    assert_eq!(end.recv(1), b"", "it closes in order");
}

/// OpenSSL writes a file for each session that it may resume.
#[test]
fn openssl_gets_no_session_to_resume() {
    let Some(openssl) = uiw_interop::require("openssl") else { return };
    let directory = TestDirectory::new();
    let (mut end, mut peer) = accept(certificates(&directory), |port| {
        let to = format!("127.0.0.1:{port}");
        let arguments =
            ["s_client", "-connect", &to, "-tls1_3", "-quiet", "-sess_out", "session.pem"];
        let own = ["-CAfile", "ca.pem", "-cert", "cert.pem", "-key", "key.pem"];
        PeerProgram::start(&directory, &openssl, &[&arguments[..], &own].concat())
    });
    peer.write(b"a word\n");
    assert_eq!(end.recv(7), b"a word\n");
    // A ticket would be sent before this.
    end.send(b"an answer\n");
    end.stream.shutdown().expect("a FIN");
    let mut said = String::new();
    peer.0.stdout.as_mut().expect("its output").read_to_string(&mut said).expect("text");
    assert_eq!(said, "an answer\n");
    assert!(!directory.0.join("session.pem").exists());
}

#[test]
fn openssl_as_server() {
    let Some(openssl) = uiw_interop::require("openssl") else { return };
    let directory = TestDirectory::new();
    let config = certificates(&directory);
    let port = free_port().to_string();
    let arguments =
        ["s_server", "-accept", &port, "-tls1_3", "-Verify", "1", "-verify_return_error", "-rev"];
    let own = ["-CAfile", "ca.pem", "-cert", "cert.pem", "-key", "key.pem"];
    let _peer = PeerProgram::start(&directory, &openssl, &[&arguments[..], &own].concat());
    let mut end = OwnEnd::connect(
        config,
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port.parse().expect("a port")),
    );
    assert_eq!(names(&end), ["peer.example"]);
    end.send(b"drow a\n");
    assert_eq!(end.recv(7), b"a word\n");
}

/// OpenSSL updates its keys, and requests the same from us ("K" on its input).
#[test]
fn openssl_updates_its_keys() {
    let Some(openssl) = uiw_interop::require("openssl") else { return };
    let directory = TestDirectory::new();
    let (mut end, mut peer) = accept(certificates(&directory), |port| {
        let to = format!("127.0.0.1:{port}");
        let arguments = [
            "s_client", "-connect", &to, "-tls1_3", "-CAfile", "ca.pem", "-cert", "cert.pem",
            "-key", "key.pem",
        ];
        PeerProgram::start(&directory, &openssl, &arguments)
    });
    for round in 0..5 {
        peer.write(b"K\n");
        // OpenSSL reports the update on its standard error. The following data uses the new key.
        std::thread::sleep(Duration::from_millis(20));
        let line = format!("round {round}\n");
        peer.write(line.as_bytes());
        assert_eq!(end.recv(line.len()), line.as_bytes());
        end.send(format!("back {round}\n").as_bytes());
        peer.wait_saying(&format!("back {round}"));
    }
}

#[test]
fn openssl_with_foreign_certificate_refused() {
    let Some(openssl) = uiw_interop::require("openssl") else { return };
    let (directory, other) = (TestDirectory::new(), TestDirectory::new());
    let config = certificates(&directory);
    drop(certificates(&other));
    let tls = Tls::new(config).expect("TLS");
    let mut stack = TlsStack::new(Box::new(TcpStack::new().expect("TCP")), &tls).expect("a stack");
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let mut listener = stack.listen(at, &ListenConfig::default(), Token(0)).expect("a listener");
    let to = listener.local_addr().to_string();
    let arguments =
        ["s_client", "-connect", &to, "-tls1_3", "-cert", "cert.pem", "-key", "key.pem"];
    let _peer = PeerProgram::start(&other, &openssl, &arguments);
    let end = Instant::now() + LONGEST;
    while tls.counts().failed == 0 {
        stack.poll(&mut Vec::new()).expect("poll");
        assert!(listener.accept(Token(1)).is_err() && Instant::now() < end);
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn gnutls_client_with_raw_key() {
    let Some(gnutls) = uiw_interop::require("gnutls-cli") else { return };
    let directory = TestDirectory::new();
    let (config, key) = raw_keys(&directory);
    let (mut end, mut peer) = accept(config, |port| {
        let port = port.to_string();
        let own = ["--rawpkkeyfile", "key.pem", "--rawpkfile", "pub.pem", "--priority", RAW];
        // This program cannot pin our key, so it checks nothing.
        let arguments = ["--insecure", "-p", &port, "127.0.0.1"];
        PeerProgram::start(&directory, &gnutls, &[&own[..], &arguments].concat())
    });
    let expected = PeerIdentity::PublicKey {
        name: "peer".into(),
        fingerprint: key.fingerprint(),
        options: String::new(),
    };
    assert_eq!(end.stream.peer_identity().as_deref(), Some(&expected));
    peer.wait_saying("Simple Client Mode");
    peer.write(b"a question\n");
    assert_eq!(end.recv(11), b"a question\n");
    end.send(b"an answer\n");
    peer.wait_saying("an answer");
}

#[test]
fn gnutls_server_with_raw_key() {
    let Some(gnutls) = uiw_interop::require("gnutls-serv") else { return };
    let directory = TestDirectory::new();
    let (config, key) = raw_keys(&directory);
    let port = free_port().to_string();
    let own = ["--rawpkkeyfile", "key.pem", "--rawpkfile", "pub.pem", "--priority", RAW];
    let arguments = ["--echo", "--quiet", "-r", "-p", &port];
    let _peer = PeerProgram::start(&directory, &gnutls, &[&own[..], &arguments].concat());
    let mut end = OwnEnd::connect(
        config,
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port.parse().expect("a port")),
    );
    let expected = PeerIdentity::PublicKey {
        name: "peer".into(),
        fingerprint: key.fingerprint(),
        options: String::new(),
    };
    assert_eq!(end.stream.peer_identity().as_deref(), Some(&expected));
    end.send(b"echo of a line\n");
    assert_eq!(end.recv(15), b"echo of a line\n");
}
