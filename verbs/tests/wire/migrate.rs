//! Events follow their object from one channel to another, in order and without duplicates.

use crate::common::{End, device, next_event, next_request};
use crate::simulation::{any_port, until};
use std::sync::Arc;
use uiw_verbs::cm::{CmChannel, CmEvent, CmEventKind, ConnHandle, Listener};
use uiw_verbs::{ConnConfig, Device, Error};

fn listen(device: &Device, channel: &Arc<CmChannel>) -> Listener {
    Listener::bind(device, any_port(), 8, &Arc::new(ConnConfig::default()), channel).unwrap()
}

/// Drives the device until an event is pending, and leaves it in the channel.
fn let_it_come(channel: &CmChannel) {
    until("no event came", || !channel.is_empty());
}

#[test]
fn requests_migrate_with_listener() {
    let device = device();
    let (old, new) = (Arc::new(CmChannel::default()), Arc::new(CmChannel::default()));
    let listener = listen(&device, &old);
    let stays = listen(&device, &old);
    let (first, other, second) = (End::new(), End::new(), End::new());
    first.connect(listener.local_addr(), &ConnConfig::default());
    let_it_come(&old);
    other.connect(stays.local_addr(), &ConnConfig::default());
    until("one event came", || old.len() == 2);

    listener.migrate(&new);
    assert_eq!((old.len(), new.len()), (1, 1));
    let request = next_request(&device, &new);
    second.connect(listener.local_addr(), &ConnConfig::default());
    drop(next_request(&device, &new));

    // Further events of a migrated request arrive at the new channel without another call.
    let end = End::on(&device);
    request.accept(&end.qp, None, b"", None).unwrap();
    assert!(matches!(next_event(&device, &new), CmEventKind::Established(_)));
    first.established();
    assert_eq!(old.len(), 1, "the other listener's request");
}

#[test]
fn connection_takes_its_pending_events_along() {
    let device = device();
    let (old, new) = (Arc::new(CmChannel::default()), Arc::new(CmChannel::default()));
    let listener = listen(&device, &old);
    let client = End::new();
    client.connect(listener.local_addr(), &ConnConfig::default());
    let request = next_request(&device, &old);
    let server = End::on(&device);
    request.accept(&server.qp, None, b"", Some(&old)).unwrap();
    let_it_come(&old);
    old.post(CmEvent::posted(7));

    let handle = ConnHandle::of(&server.qp).unwrap();
    handle.migrate(&new).unwrap();
    assert!(
        matches!(old.try_pop().unwrap().kind, CmEventKind::Posted(7)),
        "it is about no connection"
    );
    assert!(matches!(new.try_pop().unwrap().kind, CmEventKind::Established(_)));
    client.established();
    client.qp.disconnect().unwrap();
    assert!(matches!(next_event(&device, &new), CmEventKind::Disconnected(_)));
    assert!(old.is_empty());
}

#[test]
fn connection_follows_handle() {
    let device = device();
    let channel = Arc::new(CmChannel::default());
    let listener = listen(&device, &channel);
    for abort in [false, true] {
        let client = End::new();
        assert!(matches!(ConnHandle::of(&client.qp), Err(Error::NotConnected)));
        client.connect(listener.local_addr(), &ConnConfig::default());
        let request = next_request(&device, &channel);
        assert_eq!(request.listener(), Some(listener.id()));
        let server = End::on(&device);
        request.accept(&server.qp, None, b"", Some(&server.channel)).unwrap();
        server.established();
        client.established();
        let handle = ConnHandle::of(&server.qp).unwrap();
        if abort { handle.abort() } else { handle.disconnect() }.unwrap();
        server.ended();
        client.ended();
        until("the connection is not over", || handle.disconnect().is_err());
        assert!(matches!(handle.abort(), Err(Error::NotConnected)));
    }
}

#[test]
fn forgotten_connection_ends_silently() {
    let device = device();
    let channel = Arc::new(CmChannel::default());
    let listener = listen(&device, &channel);
    let client = End::new();
    client.connect(listener.local_addr(), &ConnConfig::default());
    let server = End::on(&device);
    next_request(&device, &channel).accept(&server.qp, None, b"", Some(&server.channel)).unwrap();
    server.established();
    client.established();
    let handle = ConnHandle::of(&server.qp).unwrap();
    handle.forget();
    handle.abort().unwrap();
    client.ended();
    until("the connection is not over", || handle.disconnect().is_err());
    assert!(server.channel.is_empty());
}

#[test]
fn abandoned_setup_frees_queue_pair() {
    let device = device();
    let channel = Arc::new(CmChannel::default());
    let listener = listen(&device, &channel);
    let client = End::new();
    client.connect(listener.local_addr(), &ConnConfig::default());
    let request = next_request(&device, &channel);
    ConnHandle::of(&client.qp).unwrap().abort().unwrap();
    client.failed();
    assert!(matches!(ConnHandle::of(&client.qp), Err(Error::NotConnected)));
    drop(request);
    client.connect(listener.local_addr(), &ConnConfig::default());
    let server = End::on(&device);
    next_request(&device, &channel).accept(&server.qp, None, b"", Some(&server.channel)).unwrap();
    client.established();
}
