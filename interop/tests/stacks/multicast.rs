//! Tests multicast groups with members on the kernel's stack and on a user-space stack.

use crate::datagram_peer::End;
use crate::pairings::{Stack, at, network_of, open};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use uiw::raw::{AddressHandle, SendFlags};
use uiw_interop::stock::Network;

/// Returns the interface index of veth0 at one end.
fn index(network: &Network, server: bool) -> u32 {
    let shown = at(network, server, "ip", &["-o", "link", "show", "dev", "veth0"]);
    shown.split(':').next().expect("an index").trim().parse().expect("a number")
}

/// Group member that can wait until the other end has reached the same point.
struct GroupMember {
    end: End,
    way: AddressHandle,
    there: Sender<()>,
    here: Receiver<()>,
}

impl GroupMember {
    fn join(
        (stack, own): (Stack, IpAddr),
        (group, index): (IpAddr, u32),
        (there, here): (Sender<()>, Receiver<()>),
    ) -> Self {
        let host = if stack == Stack::Kernel { 1 } else { 12 };
        let end = End::on(open(&stack.spec(host)).0, own, 1024);
        end.qp.attach_multicast(group, own, index).expect("the group is joined");
        // If the address of a group does not name its interface, the kernel's sockets need the
        // interface index as the scope.
        let scope = if stack == Stack::Kernel && group.is_ipv6() { index } else { 0 };
        Self { end, way: AddressHandle::new(own, group, scope), there, here }
    }

    fn meet(&self) {
        self.there.send(()).expect("the other end");
        self.here.recv().expect("the other end");
    }

    /// One of the two members sends; both receive the message.
    fn one_message(&self, sends: bool, text: &[u8]) {
        self.end.receive();
        self.meet();
        if sends {
            self.end.send_to(self.way, 0xFF_FFFF, text, None, SendFlags::empty());
        }
        assert_eq!(self.end.message().1, text);
    }
}

#[test]
fn members_on_all_stacks_exchange_messages() {
    for stack in [Stack::Packet, Stack::Xdp] {
        exchange(stack);
    }
}

fn exchange(stack: Stack) {
    let Some(network) = network_of(1500, true) else { return };
    let indices = [index(&network, true), index(&network, false)];
    for (group, own) in
        [("239.77.0.9", ["10.77.0.1", "10.77.0.12"]), ("ff15::77:9", ["fd77::1", "fd77::12"])]
    {
        let group: IpAddr = group.parse().expect("a group");
        let own = own.map(|own| own.parse::<IpAddr>().expect("an address"));
        let ((to_client, at_client), (to_server, at_server)) = (channel(), channel());
        let (of_server, of_client) = ((to_client, at_server), (to_server, at_client));
        thread::scope(|scope| {
            let network = &network;
            scope.spawn(move || {
                network.inside_server(move || {
                    let member =
                        GroupMember::join((Stack::Kernel, own[0]), (group, indices[0]), of_server);
                    member.one_message(false, b"from our own stack");
                    member.one_message(true, b"from the kernel");
                });
            });
            network.inside_client(move || {
                let member = GroupMember::join((stack, own[1]), (group, indices[1]), of_client);
                member.one_message(true, b"from our own stack");
                member.one_message(false, b"from the kernel");
            });
        });
    }
}

/// The XDP program passes multicast frames on to the kernel, so a member there receives them
/// together with the AF_XDP member: before that member joins, while it is a member, and after it
/// has left.
#[test]
fn xdp_member_leaves_kernel_members_intact() {
    let Some(network) = network_of(1500, true) else { return };
    let indices = [index(&network, true), index(&network, false)];
    for (group, own) in [
        ("239.77.0.9", ["10.77.0.1", "10.77.0.2", "10.77.0.12"]),
        ("ff15::77:9", ["fd77::1", "fd77::2", "fd77::12"]),
    ] {
        let group: IpAddr = group.parse().expect("a group");
        let own = own.map(|own| own.parse::<IpAddr>().expect("an address"));
        let sender = network.inside_server(|| End::on(open("tcp").0, own[0], 1024));
        let scope = if group.is_ipv6() { indices[0] } else { 0 };
        let way = AddressHandle::new(own[0], group, scope);
        let [kernel, xdp] = network.inside_client(|| {
            let kernel = End::on(open("tcp").0, own[1], 1024);
            kernel.qp.attach_multicast(group, own[1], indices[1]).expect("the group is joined");
            [kernel, End::on(open(&Stack::Xdp.spec(12)).0, own[2], 1024)]
        });
        let send = |text: &[u8], receivers: &[&End]| {
            for end in receivers {
                end.receive();
            }
            sender.send_to(way, 0xFF_FFFF, text, None, SendFlags::empty());
            for end in receivers {
                assert_eq!(end.message().1, text, "{group}");
            }
        };
        send(b"to the kernel's", &[&kernel]);
        for _ in 0..2 {
            xdp.qp.attach_multicast(group, own[2], indices[1]).expect("the group is joined");
            send(b"to both", &[&kernel, &xdp]);
            xdp.qp.detach_multicast(group, own[2], indices[1]).expect("it is left");
            send(b"to the kernel's again", &[&kernel]);
        }
        let received = |end: &End| end.qp.datagram_port().expect("it is UD").counts().received;
        assert_eq!((received(&kernel), received(&xdp)), (5, 2), "{group}");
    }
}

/// A kernel socket receives datagrams of a group only from the interface at which it has joined
/// (IP_MULTICAST_ALL and IPV6_MULTICAST_ALL are off).
#[test]
fn group_received_at_joined_interface() {
    let Some(network) = network_of(1500, true) else { return };
    let at_client = index(&network, false);
    for (group, own) in [
        ("239.77.0.9", ["127.0.0.1", "10.77.0.1", "10.77.0.2"]),
        ("ff15::77:9", ["::1", "fd77::1", "fd77::2"]),
    ] {
        let group: IpAddr = group.parse().expect("a group");
        let own = own.map(|own| own.parse::<IpAddr>().expect("an address"));
        let kernel = |own, index| {
            let end = End::on(open("tcp").0, own, 1024);
            end.qp.attach_multicast(group, own, index).expect("the group is joined");
            end.receive();
            end
        };
        let at_server = index(&network, true);
        let (on_loopback, on_cable) =
            network.inside_server(|| (kernel(own[0], LOOPBACK), kernel(own[1], at_server)));
        let scope = if group.is_ipv6() { at_client } else { 0 };
        let way = AddressHandle::new(own[2], group, scope);
        // Every sender has its own port, because the kernel may choose among sockets by the source
        // port.
        for number in 0..8 {
            let sender = network.inside_client(|| End::on(open("tcp").0, own[2], 1024));
            sender.send_to(way, 0xFF_FFFF, &[number], None, SendFlags::empty());
            assert_eq!(on_cable.message().1, [number]);
            on_cable.receive();
        }
        let received = on_loopback.qp.datagram_port().expect("it is UD").counts().received;
        assert_eq!(received, 0, "{group}: received at another interface");
    }
}

/// Index of the loopback interface in every namespace.
const LOOPBACK: u32 = 1;

/// If the MTUs of two ends differ, a datagram that is too long for the other end is lost after the
/// send has completed, and a datagram that is too long for the own interface is counted as unsent.
/// The next message arrives in both cases.
#[test]
fn overlong_messages_dropped() {
    let Some(network) = network_of(1500, true) else { return };
    let set_mtu = |server, mtu| at(&network, server, "ip", &["link", "set", "veth0", "mtu", mtu]);
    set_mtu(false, "9000");
    let own = ["10.77.0.1", "10.77.0.2"].map(|own| own.parse::<IpAddr>().expect("an address"));
    let receiver = network.inside_server(|| End::on(open("tcp").0, own[0], 4096));
    let sender = network.inside_client(|| End::on(open("tcp").0, own[1], 4096));
    let counts = |end: &End| end.qp.datagram_port().expect("it is UD").counts();
    let way = AddressHandle::new(own[1], own[0], 0);
    let send = |payload: &[u8]| {
        sender.send_to(way, receiver.qp.num(), payload, None, SendFlags::empty());
    };
    // Sockets do not count frames that the interface drops, see `docs/datagrams.md`.
    let dropped = || {
        let count = at(&network, true, "cat", &["/sys/class/net/veth0/statistics/rx_dropped"]);
        count.trim().parse::<u64>().expect("a number")
    };
    let before = dropped();
    receiver.receive();
    send(&[7; 4096]);
    send(b"short");
    assert_eq!(receiver.message().1, b"short");
    assert_eq!(
        (counts(&sender).sent, counts(&sender).unsent, counts(&receiver).received),
        (2, 0, 1)
    );
    assert!(dropped() > before, "the interface counts it");
    set_mtu(false, "1500");
    receiver.receive();
    send(&[7; 4096]);
    send(b"short again");
    assert_eq!(receiver.message().1, b"short again");
    assert_eq!(
        (counts(&sender).sent, counts(&sender).unsent, counts(&receiver).received),
        (3, 1, 2)
    );
}
