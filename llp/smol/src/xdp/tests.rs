//! All frames of the memory are in use, by the kernel or by uiw. Nothing hangs, and no frame is
//! lost forever.

use super::super::link::{Frame, Link};
use super::super::{SmolConfig, SmolStack};
use super::socket::RING;
use super::{Queues, XdpLink, XdpMode, is_virtual};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};
use uiw_interop::stock::Network;
use uiw_llp::{DatagramConfig, Interest, StackExtensions, Token, TransportStack as _};

const OURS: &str = "10.77.0.11";
/// Time-out for events that happen soon on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn config() -> SmolConfig {
    SmolConfig::new(OURS.parse::<IpAddr>().unwrap(), 24)
}

fn ip(network: &Network, server: bool, args: &[&str]) {
    let mut command = Command::new("ip");
    command.args(args);
    let mut command = if server { network.server(command) } else { network.client(command) };
    let output = command.output().expect("ip starts");
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TIMEOUT, "{what}: not in a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Fills in a frame that no receiver accepts: it has an experimental ethertype and an unused MAC
/// address.
fn frame(bytes: &mut [u8]) {
    bytes.fill(0);
    bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    bytes[12..14].copy_from_slice(&[0x88, 0xB5]);
}

/// Sends frames as long as there is room. Returns their number.
fn fill_up(link: &mut XdpLink, len: usize) -> usize {
    let mut sent = 0;
    while link.has_room() {
        link.transmit(len, &mut |bytes| {
            frame(bytes);
            None
        });
        sent += 1;
    }
    sent
}

fn all_back(link: &mut XdpLink, all: usize) {
    until("the frames come back", || {
        link.flush();
        link.sockets[0].reap() == all
    });
    assert!(link.next().is_none(), "nothing is left to be flushed");
}

/// The kernel is not notified of frames to send: the ring fills up, further frames are lost, and
/// afterwards everything works as before.
#[test]
fn transmit_frames_recycled() {
    for mtu in [1500, 9000] {
        let Some(network) = Network::veth() else { return };
        for server in [true, false] {
            ip(&network, server, &["link", "set", "veth0", "mtu", &mtu.to_string()]);
        }
        network.inside_server(|| {
            let mut link = XdpLink::open("veth0", XdpMode::Auto, &config()).expect("AF_XDP");
            let all = link.sockets[0].reap();
            let sent = fill_up(&mut link, mtu + 14);
            assert!(sent > 100, "{sent} frames had room");
            for _ in 0..3 {
                let mut filled = false;
                link.transmit(mtu + 14, &mut |_| {
                    filled = true;
                    None
                });
                assert!(!filled, "a frame without room is not built");
                all_back(&mut link, all);
                assert_eq!(fill_up(&mut link, mtu + 14), sent, "as many as before");
            }
            // Without a cable, frames are discarded and not kept.
            ip(&network, false, &["link", "set", "veth0", "down"]);
            all_back(&mut link, all);
            assert_eq!(fill_up(&mut link, mtu + 14), sent, "as many as before");
            all_back(&mut link, all);
            assert!(link.failure(Instant::now()).is_none(), "a cable may come back");
            ip(&network, false, &["link", "set", "veth0", "up"]);
            assert_eq!(fill_up(&mut link, mtu + 14), sent, "as many as before");
            all_back(&mut link, all);
            // An interface that is down is reported.
            ip(&network, true, &["link", "set", "veth0", "down"]);
            fill_up(&mut link, mtu + 14);
            link.flush();
            assert_eq!(
                link.failure(Instant::now()).map(|error| error.kind()),
                Some(io::ErrorKind::NetworkDown)
            );
        });
    }
}

/// Arriving frames are lost while all receive frames are in use, and are received again once some
/// are returned.
#[test]
fn receive_frames_recycled() {
    let Some(network) = Network::veth() else { return };
    let mac = config().mac.map(|byte| format!("{byte:02x}")).join(":");
    ip(
        &network,
        false,
        &["neighbour", "add", OURS, "lladdr", &mac, "dev", "veth0", "nud", "permanent"],
    );
    let socket = network.inside_client(|| UdpSocket::bind("10.77.0.2:0")).expect("a socket there");
    network.inside_server(|| {
        let mut link = XdpLink::open("veth0", XdpMode::Auto, &config()).expect("AF_XDP");
        for _ in 0..3 {
            let mut held = Vec::new();
            until("as many frames as there are", || {
                for _ in 0..64 {
                    socket.send_to(&[0x5A; 100], (OURS, 9)).expect("a datagram leaves");
                }
                held.extend(std::iter::from_fn(|| link.receive()));
                held.len() >= RING as usize
            });
            for _ in 0..64 {
                socket.send_to(&[0xA5; 100], (OURS, 9)).expect("a datagram leaves");
            }
            assert_eq!(held.len(), RING as usize, "no more than there are");
            assert!(link.receive().is_none(), "none is left for what came last");
            for mut frame in held {
                assert!(
                    frame.bytes().ends_with(&[0x5A; 100]),
                    "a frame that is ours was not written"
                );
                link.recycle(frame);
            }
            link.flush();
            assert!(link.failure(Instant::now()).is_none());
        }
    });
}

/// Frames to groups are not received while no group is joined, and none received earlier is left to
/// wake a thread.
#[test]
fn group_frames_received_while_joined() {
    let Some(network) = Network::veth() else { return };
    let socket = network.inside_client(|| UdpSocket::bind("10.77.0.2:0")).expect("a socket there");
    socket.set_multicast_ttl_v4(1).expect("the hop limit");
    ip(&network, false, &["route", "add", "239.0.0.0/8", "dev", "veth0"]);
    let send = |byte| _ = socket.send_to(&[byte; 100], "239.77.0.9:9").expect("a datagram leaves");
    let mut link =
        network.inside_server(|| XdpLink::open("veth0", XdpMode::Auto, &config()).expect("AF_XDP"));
    // Other frames to IPv6 groups are those of the kernel.
    let next = |link: &mut XdpLink| {
        let mut frame = link.receive()?;
        let bytes = frame.bytes().to_vec();
        link.recycle(frame);
        Some(bytes)
            .filter(|bytes| bytes[..2] == [1, 0] && bytes.len() == 142)
            .map(|bytes| bytes[141])
    };
    for round in 0..3 {
        send(0xEE);
        assert!(link.receive().is_none(), "no group is joined");
        let fd = link
            .start_groups()
            .expect("groups")
            .expect("a descriptor")
            .try_clone_to_owned()
            .unwrap();
        send(round);
        let mut came = None;
        until("a frame to the group", || {
            came = next(&mut link);
            came.is_some()
        });
        assert_eq!(came, Some(round), "what was sent before");
        send(0xEE);
        link.stop_groups();
        let mut ready = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut ready, Some(&none)), Ok(0), "a frame is left");
    }
}

/// A frame to a group wakes a thread that sleeps on the stack's descriptor.
#[test]
fn group_frame_wakes_stack() {
    let Some(network) = Network::veth() else { return };
    ip(&network, false, &["route", "add", "239.0.0.0/8", "dev", "veth0"]);
    let socket = network.inside_client(|| UdpSocket::bind("10.77.0.2:0")).expect("a socket there");
    let link =
        network.inside_server(|| XdpLink::open("veth0", XdpMode::Auto, &config()).expect("AF_XDP"));
    let mut stack = SmolStack::new(link, &config()).unwrap();
    let options = DatagramConfig { member: OURS.parse().ok(), ..DatagramConfig::default() };
    let bind = |stack: &mut SmolStack<XdpLink>, port| {
        stack
            .bind_datagrams(([239, 77, 0, 9], port).into(), &options, Token(1))
            .expect("the group is joined")
    };
    // The second time, the descriptor is already watched.
    for _ in 0..2 {
        let mut member = bind(&mut stack, 9);
        member.set_interest(Interest::READ).unwrap();
        let is_ready = |stack: &SmolStack<XdpLink>, tv_sec| {
            let fd = stack.wait_fd().expect("a descriptor");
            let mut ready = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let time = rustix::event::Timespec { tv_sec, tv_nsec: 0 };
            rustix::event::poll(&mut ready, Some(&time)).unwrap() == 1
        };
        while is_ready(&stack, 0) {
            stack.poll(&mut Vec::new()).unwrap();
        }
        socket.send_to(b"to the group", "239.77.0.9:9").expect("a datagram leaves");
        assert!(is_ready(&stack, TIMEOUT.as_secs() as i64), "nothing wakes it");
        let (mut buffer, mut datagrams) = (vec![0; uiw_llp::DATAGRAM_BUFFER], Vec::new());
        until("the datagram", || member.recv(&mut buffer, &mut datagrams).is_ok());
        assert_eq!(&buffer[datagrams[0].bytes.clone()], b"to the group");
    }
}

/// `/sys` belongs to the namespace in which it was mounted, but this thread is in another one.
#[test]
fn interface_queried_in_own_namespace() {
    let Some(network) = Network::veth_of(3) else { return };
    ip(&network, true, &["link", "add", "uiwbr0", "type", "bridge"]);
    // If there is a network card outside of the namespace, a veth inside gets its name.
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let card = entries
        .filter(|entry| entry.path().join("device").exists())
        .find_map(|e| e.file_name().into_string().ok());
    let name = card.as_deref().unwrap_or("card0");
    ip(&network, true, &["link", "add", name, "type", "veth", "peer", "name", "uiwpeer0"]);
    network.inside_server(|| {
        assert_eq!(Queues::query("veth0").unwrap(), Queues { rx: 3, tx: 3 });
        assert_eq!(
            Queues::query("uiwbr0").unwrap(),
            Queues { rx: 1, tx: 1 },
            "whose driver does not say"
        );
        assert!(
            is_virtual("veth0").unwrap()
                && is_virtual("uiwbr0").unwrap()
                && is_virtual("lo").unwrap()
        );
        let link = XdpLink::open("veth0", XdpMode::Auto, &config()).expect("AF_XDP");
        assert_eq!((link.sockets.len(), link.senders), (3, 3));
        assert!(is_virtual(name).unwrap(), "{name} is a veth here");
    });
    if let Some(card) = card {
        assert!(!is_virtual(&card).unwrap(), "{card} has a device below it");
    }
}
