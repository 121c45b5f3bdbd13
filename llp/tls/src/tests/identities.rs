//! Accepted and refused peers: pinned keys, certificates, access lists, and changes of the
//! configuration.

use super::*;
use uiw_llp::StackExtensions;

#[test]
fn ends_have_identity_of_peer() {
    let (ours, theirs) = (key(), key());
    let mut server = ServerStack::new(raw(&ours, &[&theirs]));
    let mut client = ClientStack::new(server.at(), raw(&theirs, &[&ours]));
    assert!(client.stream.peer_identity().is_none());
    let accepted = connect(&mut server, &mut client);
    for (stream, key) in [(&accepted, &theirs), (&client.stream, &ours)] {
        let expected = PeerIdentity::PublicKey {
            name: "node0".into(),
            fingerprint: key.public_key().fingerprint(),
            options: String::new(),
        };
        assert_eq!(stream.peer_identity().as_deref(), Some(&expected));
    }
    assert_eq!(server.tls.counts().established, 1);
}

#[test]
fn unknown_key_refused() {
    let (ours, theirs, stranger) = (key(), key(), key());
    let mut server = ServerStack::new(raw(&ours, &[&theirs]));
    let mut client = ClientStack::new(server.at(), raw(&stranger, &[&ours]));
    let error = failure(&mut server, &mut client);
    assert_eq!(error, TlsError::Alert { alert: "CertificateUnknown".into() }, "{error}");
    assert_eq!(server.tls.counts().failed, 1);
    // The client also refuses a server.
    let mut client = ClientStack::new(server.at(), raw(&theirs, &[&stranger]));
    let fingerprint = ours.public_key().fingerprint();
    let public_key = ours.public_key().to_string();
    assert_eq!(failure(&mut server, &mut client), TlsError::UnknownKey { fingerprint, public_key });
}

#[test]
fn access_list_restricts_authentic_peers() {
    let (ours, one, other) = (key(), key(), key());
    let mut server = ServerStack::new(raw(&ours, &[&one, &other]).allow("node1"));
    let mut client = ClientStack::new(server.at(), raw(&other, &[&ours]));
    connect(&mut server, &mut client);
    let mut client = ClientStack::new(server.at(), raw(&one, &[&ours]));
    assert!(matches!(failure(&mut server, &mut client), TlsError::Alert { .. }));
}

/// A certificate authority.
struct TestAuthority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key.
struct IssuedCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: KeyPair,
}

impl TestAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = format!("authority {:x}", getrandom::u64().unwrap());
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> IssuedCertificate {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let chain = vec![params.signed_by(&key, &self.0).unwrap().der().clone()];
        IssuedCertificate { chain, key }
    }

    fn config(&self, issued: &IssuedCertificate) -> TlsConfig {
        let directory = TestDirectory::new();
        let file = directory.0.join("key.pem");
        directory.write("key.pem", &issued.key.serialize_pem(), 0o600);
        let key = SecretKey::read(&file).unwrap();
        TlsConfig::x509(issued.chain.clone(), &key, vec![self.0.der().clone()]).unwrap()
    }
}

/// A directory for files of one test.
struct TestDirectory(std::path::PathBuf);

impl TestDirectory {
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

impl Drop for TestDirectory {
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
    let authority = TestAuthority::new();
    let own = authority.config(&authority.issue("server.example", localhost));
    let mut server = ServerStack::new(own.clone().allow("client*.example"));
    let theirs = authority.config(&authority.issue("client7.example", |_| ()));
    let mut client = ClientStack::new(server.at(), theirs.clone());
    let accepted = connect(&mut server, &mut client);
    let names = |stream: &dyn TransportStream| match stream.peer_identity().as_deref() {
        Some(PeerIdentity::Certificate { names, .. }) => names.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (names(&*accepted), names(&*client.stream)),
        (vec!["client7.example".into()], vec!["server.example".into()])
    );
    // The peer is authentic, but not on the list.
    let other = authority.config(&authority.issue("other.example", |_| ()));
    let mut client = ClientStack::new(server.at(), other);
    assert!(matches!(failure(&mut server, &mut client), TlsError::Alert { .. }));
    // The connection is made by name instead of by address.
    let named =
        |name: &str| TransportConfig { peer_name: Some(name.into()), ..TransportConfig::default() };
    let tcp = || Box::new(TcpStack::new().unwrap());
    let mut client =
        ClientStack::with(tcp(), server.at(), theirs.clone(), &named("server.example"));
    connect(&mut server, &mut client);
    let mut client = ClientStack::with(tcp(), server.at(), theirs, &named("another.example"));
    assert!(
        matches!(failure(&mut server, &mut client), TlsError::Certificate(why) if why.contains("another.example"))
    );
}

#[test]
fn certificates_that_are_refused() {
    let (authority, other) = (TestAuthority::new(), TestAuthority::new());
    let good = authority.config(&authority.issue("one.example", localhost));
    let mut server = ServerStack::new(good.clone());
    // Certificates of clients: expired, signed by another authority, for another use.
    let expired = authority.config(&authority.issue("one.example", long_ago));
    let foreign = {
        let issued = other.issue("one.example", localhost);
        let directory = TestDirectory::new();
        let key = SecretKey::read(&directory.write("key.pem", &issued.key.serialize_pem(), 0o600))
            .unwrap();
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
        let mut client = ClientStack::new(server.at(), config);
        assert_eq!(failure(&mut server, &mut client), TlsError::Alert { alert: alert.into() });
    }
    // Certificates of servers: expired, and not valid for the server's address.
    let mut server = ServerStack::new(expired);
    let mut client = ClientStack::new(server.at(), good.clone());
    assert!(
        matches!(failure(&mut server, &mut client), TlsError::Certificate(why) if why.contains("expired"))
    );
    let mut server = ServerStack::new(authority.config(&authority.issue("one.example", |_| ())));
    let mut client = ClientStack::new(server.at(), good);
    assert!(
        matches!(failure(&mut server, &mut client), TlsError::Certificate(why) if why.contains("127.0.0.1"))
    );
}

#[test]
fn listener_has_one_identity_kind() {
    let authority = TestAuthority::new();
    let certificates = authority.config(&authority.issue("one.example", localhost));
    let (ours, theirs) = (key(), key());
    let mut server = ServerStack::new(raw(&ours, &[&theirs]));
    let mut client = ClientStack::new(server.at(), certificates.clone());
    failure(&mut server, &mut client);
    let mut server = ServerStack::new(certificates);
    let mut client = ClientStack::new(server.at(), raw(&theirs, &[&ours]));
    failure(&mut server, &mut client);
}

#[test]
fn client_without_certificate_refused() {
    let authority = TestAuthority::new();
    let config = authority.config(&authority.issue("one.example", localhost));
    let mut server = ServerStack::new(config.clone());
    let client = plain_client(server.at(), plain_config(&config, true), |stream| {
        let error = stream.read(&mut [0; 9]).unwrap_err();
        assert!(error.to_string().contains("CertificateRequired"), "{error}");
    });
    server.until("the refusal", |server| (server.tls.counts().failed == 1).then_some(()));
    assert!(server.listener.accept(SERVER).is_err());
    client.join().unwrap();
}

#[test]
fn removed_keys_end_connections() {
    let (ours, gone, stays) = (key(), key(), key());
    let mut server = ServerStack::new(raw(&ours, &[&gone, &stays]));
    let mut clients = [&gone, &stays].map(|key| ClientStack::new(server.at(), raw(key, &[&ours])));
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
    assert!(
        matches!(tls_error(&error), TlsError::Removed { identity, .. } if identity.starts_with("node0"))
    );
    assert_eq!(recv(&mut *accepted[1], 1).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut client = ClientStack::new(server.at(), raw(&gone, &[&ours]));
    assert!(matches!(failure(&mut server, &mut client), TlsError::Alert { .. }));
    assert_eq!(send(&mut *clients[1].stream, b"still").unwrap(), 5);
    assert_eq!(server.until("the bytes", |_| recv(&mut *accepted[1], 9).ok()), b"still");
}

/// The server has sent its flight when the configuration changes.
#[test]
fn authority_removed_during_handshake_refused() {
    let (old, new) = (TestAuthority::new(), TestAuthority::new());
    let mut server = ServerStack::new(old.config(&old.issue("server.example", localhost)));
    let flight = {
        let theirs = plain_config(&old.config(&old.issue("client.example", |_| ())), false);
        let mut conn = rustls::ClientConnection::new(
            Arc::new(theirs),
            ServerName::IpAddress(Ipv4Addr::LOCALHOST.into()),
        )
        .unwrap();
        let mut socket = std::net::TcpStream::connect(server.at()).unwrap();
        conn.write_tls(&mut socket).unwrap();
        socket.set_nonblocking(true).unwrap();
        server.until("the server's flight", |_| {
            if conn.read_tls(&mut socket).is_ok() {
                conn.process_new_packets().unwrap();
            }
            (!conn.is_handshaking()).then_some(())
        });
        conn.writer().write_all(b"early").unwrap();
        let config = new.config(&new.issue("server.example", localhost));
        server.tls.replace(config).unwrap();
        conn.write_tls(&mut socket).unwrap();
        socket
    };
    server.until("the refusal", |server| {
        assert!(server.listener.accept(SERVER).is_err());
        (server.tls.counts().failed == 1).then_some(())
    });
    drop(flight);
}

/// The configuration changes while the connection is in no shard. The new shard has loaded it
/// before.
#[test]
fn connection_checked_when_it_changes_shards() {
    let (ours, gone, stays) = (key(), key(), key());
    let mut server = ServerStack::new(raw(&ours, &[&gone, &stays]));
    let mut clients = [&gone, &stays].map(|key| ClientStack::new(server.at(), raw(key, &[&ours])));
    let mut accepted = clients.each_mut().map(|client| connect(&mut server, client));
    let mut other = server.stack.shard().unwrap().unwrap();
    for stream in &mut accepted {
        stream.detach().unwrap();
    }
    server.tls.replace(raw(&ours, &[&stays])).unwrap();
    server.poll();
    other.poll(&mut Vec::new()).unwrap();
    for (token, stream) in (10..).zip(&mut accepted) {
        other.adopt(stream, Token(token)).unwrap();
    }
    let mut events = Vec::new();
    other.poll(&mut events).unwrap();
    assert!(events.iter().any(|event| event.token == Token(10) && event.readable), "{events:?}");
    let error = recv(&mut *accepted[0], 1).unwrap_err();
    assert!(matches!(tls_error(&error), TlsError::Removed { .. }), "{error}");
    assert_eq!(recv(&mut *accepted[1], 1).unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// Each of two threads tries to adopt a stream that belongs to the stack of the other one.
#[test]
fn crosswise_adoption_of_attached_streams_refused() {
    let (ours, theirs) = (key(), key());
    let mut server = ServerStack::new(raw(&ours, &[&theirs]));
    let mut ends = [(); 2].map(|()| ClientStack::new(server.at(), raw(&theirs, &[&ours])));
    let _accepted = ends.each_mut().map(|client| connect(&mut server, client));
    let [left, right] = &mut ends;
    std::mem::swap(&mut left.stream, &mut right.stream);
    std::thread::scope(|scope| {
        for ClientStack { stack, stream } in [left, right] {
            scope.spawn(move || {
                for _ in 0..20_000 {
                    let error = stack.adopt(stream, SERVER).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidInput);
                }
            });
        }
    });
}

#[test]
fn changed_key_options_end_connections() {
    let (ours, theirs) = (key(), key());
    let with_options = |options: &str, name: &str| {
        let line = format!("{options} {} {name}", theirs.public_key());
        TlsConfig::raw_keys(&ours, PinnedKeys::parse(line.trim()).unwrap()).unwrap()
    };
    let mut server = ServerStack::new(with_options("shares=a:rw", "node"));
    let mut client = ClientStack::new(server.at(), raw(&theirs, &[&ours]));
    let mut accepted = connect(&mut server, &mut client);
    server.tls.replace(with_options("shares=a:rw", "renamed")).unwrap();
    server.poll();
    assert_eq!(recv(&mut *accepted, 1).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.tls.replace(with_options("shares=a", "renamed")).unwrap();
    server.poll();
    let error = recv(&mut *accepted, 1).unwrap_err();
    assert!(
        matches!(tls_error(&error), TlsError::Removed { reason, .. } if reason.contains("options")),
        "{error}"
    );
}

#[test]
fn key_files() {
    let directory = TestDirectory::new();
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
    let wrong =
        PinnedKeys::read(&directory.write("wrong", &format!("{line}AAAA x"), 0o600)).unwrap_err();
    assert!(
        wrong.to_string().ends_with("wrong:4: not a public key: no SubjectPublicKeyInfo"),
        "{wrong}"
    );
    let twice =
        directory.write("twice", &format!("shares=a {} x\n{line}", made.public_key()), 0o600);
    let repeated = PinnedKeys::read(&twice).unwrap_err();
    assert!(repeated.to_string().ends_with("this key is in an earlier line as well"), "{repeated}");
    let config = |file: &std::path::Path| raw(&made, &[&made]).key_log(file).map(drop);
    assert!(matches!(config(&directory.write("log", "", 0o644)), Err(KeyError::Readable { .. })));
    assert!(config(&directory.0.join("new")).is_ok() && config(&directory.0.join("new")).is_ok());
    assert_eq!(made.public_key().to_pem().parse::<PublicKey>().unwrap(), made.public_key());
    let no_key = directory.write("none.pem", "no key", 0o600);
    assert!(matches!(SecretKey::read(&no_key), Err(KeyError::Content { .. })));
}
