//! Floods a smoltcp listener with SYNs that are never followed up: other clients still connect in
//! time, and memory use stays bounded.

use crate::pairings::{Stack, at, network_of};
use etherparse::PacketBuilder;
use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use uiw_interop::stock::{Network, Running, free_port, uiw};
use uiw_smol::packet::PacketLink;
use uiw_smol::{Link, SmolConfig};

/// SYNs sent per millisecond.
const RATE: u32 = 2;
/// Time within which a client must be served. On a busy machine, some of its SYNs are lost as well,
/// and Linux repeats them after 1, 3 and 7 seconds.
const CONNECTS: Duration = Duration::from_secs(10);
/// Limit for the growth of the server's memory in KiB.
const GROWS: u64 = 16 << 10;

/// Source addresses used for the SYNs.
#[derive(Clone, Copy, Debug)]
enum SourceAddresses {
    /// Addresses beyond the gateway.
    Far,
    /// Addresses in the server's network that no host has.
    Absent,
    /// Address of the client's host, which answers with a reset.
    Own,
}

impl SourceAddresses {
    fn address(self, v6: bool, number: u32) -> IpAddr {
        let [.., a, b] = number.to_be_bytes();
        match (self, v6) {
            (Self::Far, false) => [198, 18, a, b].into(),
            (Self::Far, true) => format!("2001:db8::{number:x}").parse().unwrap(),
            (Self::Absent, false) => [10, 77, 0, 100 + b % 150].into(),
            (Self::Absent, true) => format!("fd77::ab:{number:x}").parse().unwrap(),
            (Self::Own, false) => [10, 77, 0, 2].into(),
            (Self::Own, true) => "fd77::2".parse().unwrap(),
        }
    }
}

fn syn(
    from: IpAddr,
    to: IpAddr,
    ports: (u16, u16),
    number: u32,
    macs: ([u8; 6], [u8; 6]),
) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(macs.0, macs.1);
    let ip = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
        _ => unreachable!("of one version"),
    };
    let mut frame = Vec::new();
    ip.tcp(ports.0, ports.1, number, 1000).syn().write(&mut frame, &[]).unwrap();
    frame
}

/// Returns the resident memory of the server in KiB.
fn resident(server: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the MAC address that the client's kernel has resolved for an address.
fn mac_of(network: &Network, address: &str) -> [u8; 6] {
    let said = at(network, false, "ip", &["neighbour", "show", address]);
    let text = said.split_whitespace().skip_while(|word| *word != "lladdr").nth(1);
    let text = text.unwrap_or_else(|| panic!("no neighbour in {said:?}"));
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

fn flooded_listener_serves_others(stack: Stack) {
    let Some(network) = network_of(1500, true) else { return };
    let port = free_port();
    let [v4, v6] = stack.addresses();
    let spec = format!("{},gw=10.77.0.2,gw=fd77::2", stack.spec(11));
    let mut command = Command::new(uiw());
    command.args(["--llp", &spec, "serve", "--listen", &format!("{v4}:{port}")]);
    command.args(["--listen", &format!("[{v6}]:{port}")]);
    let mut server = Running::start(network.server(command));
    server.wait_saying(&format!("[{v6}]:{port}"));
    let ping = |address: &str| {
        let mut command = Command::new(uiw());
        command.args(["ping", address, "--count", "1"]);
        let begun = Instant::now();
        let ended = Running::start(network.client(command)).end();
        assert_eq!(ended.code, 0, "{}{}", ended.said, server.said());
        begun.elapsed()
    };
    for (host, address) in [(v4, format!("{v4}:{port}")), (v6, format!("[{v6}]:{port}"))] {
        ping(&address);
        let before = resident(&server);
        let (to, mac): (IpAddr, _) = (host.parse().unwrap(), mac_of(&network, host));
        for source in [SourceAddresses::Far, SourceAddresses::Absent, SourceAddresses::Own] {
            let is_over = AtomicBool::new(false);
            let took = thread::scope(|scope| {
                scope.spawn(|| {
                    network.inside_client(|| {
                        // The link needs an own address, which is not used here.
                        let config = SmolConfig::new([10, 77, 0, 99].into(), 24);
                        let mut link = PacketLink::open("veth0", &config).unwrap();
                        let mut number = 0;
                        while !is_over.load(Ordering::Relaxed) {
                            for _ in 0..RATE {
                                number += 1;
                                let from = source.address(to.is_ipv6(), number);
                                let ports = (1024 + (number % 60_000) as u16, port);
                                let frame = syn(from, to, ports, number, (config.mac, mac));
                                link.transmit(frame.len(), &mut |bytes| {
                                    bytes.copy_from_slice(&frame);
                                    None
                                });
                            }
                            link.flush();
                            thread::sleep(Duration::from_millis(1));
                        }
                    });
                });
                // In this time more SYNs arrive than the limit of connections in set-up.
                thread::sleep(Duration::from_secs(1));
                let took = ping(&address);
                is_over.store(true, Ordering::Relaxed);
                took
            });
            assert!(took <= CONNECTS, "{source:?} {address}: {took:?}");
            let grown = resident(&server).saturating_sub(before);
            println!("{stack:?} {source:?} {address}: {took:?}, {grown} KiB more");
            assert!(grown < GROWS, "{source:?} {address}: {grown} KiB more");
        }
    }
    let _ = server.stop();
}

#[test]
fn flooded_af_packet_listener_serves_others() {
    flooded_listener_serves_others(Stack::Packet);
}

#[test]
fn flooded_af_xdp_listener_serves_others() {
    flooded_listener_serves_others(Stack::Xdp);
}
