//! Striped connections over TLS: every stripe has the identity of the others.

use uiw_llp::tls::{PinnedKeys, SecretKey, Tls, TlsConfig};
use uiw_verbs::blocking::{Connection, Striped, StripedListener};
use uiw_verbs::striping::wire::{Join, Reason, Request};
use uiw_verbs::{ConnOptions, ConnSettings, Device, DeviceOptions, Error, Pd, StripedSettings};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Domains of a server and of two clients, whose keys the server has pinned.
fn domains() -> Result<[Pd; 3], AnyError> {
    let keys = [SecretKey::generate()?, SecretKey::generate()?, SecretKey::generate()?];
    let domain = |own: usize, others: &[usize]| {
        let mut pinned = PinnedKeys::default();
        for other in others {
            pinned.add(keys[*other].public_key(), &format!("key {other}"));
        }
        let tls = Tls::new(TlsConfig::raw_keys(&keys[own], pinned)?)?;
        Ok::<_, AnyError>(Device::open_with(DeviceOptions::default().tls(tls))?.alloc_pd()?)
    };
    Ok([domain(0, &[1, 2])?, domain(1, &[0])?, domain(2, &[0])?])
}

fn request(index: u8, generation: u32) -> Request {
    Request { stripes: 2, index, generation, token: *b"both have it....", delivered: 0 }
}

#[test]
fn a_stripe_with_another_identity_is_rejected() -> Result<(), AnyError> {
    let [server, one, other] = domains()?;
    let listener = StripedListener::bind(&server, "127.0.0.1:0".parse()?, &StripedSettings::default())?;
    let address = listener.local_addr();
    let connect = |pd: &Pd, request: Request| {
        let options = ConnOptions::default().acknowledged(true);
        let private_data = Join::Request(request).emit(b"");
        Connection::connect(pd, address, &ConnSettings::default().options(options).private_data(private_data))
    };
    let rejects = |pd: &Pd, request: Request| match connect(pd, request) {
        Err(Error::Rejected { private_data, .. }) => match Join::parse(&private_data) {
            Ok((Join::Rejection(reason), _)) => assert_eq!(reason, Reason::Identity),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    // While the connection is set up, and when it stands.
    let first = connect(&one, request(0, 0))?;
    rejects(&other, request(1, 0));
    let second = connect(&one, request(1, 0))?;
    let accepted = listener.accept()?;
    rejects(&other, request(1, 1));
    assert_eq!(accepted.as_async().counts().deaths, 0);
    let replaced = connect(&one, request(1, 1))?;
    let name = accepted.as_async().info().peer_identity.as_ref().map(ToString::to_string);
    assert!(name.is_some_and(|name| name.starts_with("key 1 (SHA256:")));
    drop((first, second, replaced));
    Ok(())
}

#[test]
fn a_striped_connection_is_encrypted_like_an_ordinary_one() -> Result<(), AnyError> {
    let [server, client, _] = domains()?;
    let settings = StripedSettings::default();
    let listener = StripedListener::bind(&server, "127.0.0.1:0".parse()?, &settings)?;
    let address = listener.local_addr();
    let accepted = std::thread::spawn(move || listener.accept());
    let client = Striped::connect(&client, address, &settings)?;
    let server = accepted.join().map_err(|_| "the server panicked")??;
    client.send_copy(b"good day")?;
    assert_eq!(server.recv()?.as_deref(), Some(&b"good day"[..]));
    let identity = client.as_async().info().peer_identity.as_ref().map(ToString::to_string);
    assert!(identity.is_some_and(|name| name.starts_with("key 0 (SHA256:")));
    client.disconnect()?;
    Ok(())
}
