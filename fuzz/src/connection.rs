//! Complete connection over the simulated link, between our engine with an application that posts
//! requests and destroys objects in any order, and a peer that sends arbitrary messages.
//!
//! After each run, memory without access rights must be unchanged, no byte of it may have appeared
//! on the wire, and each request must have completed exactly once.

mod application;
mod memory;
mod peer;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use uiw_llp::{ListenConfig, Token, TransportConfig, TransportStack};
use uiw_testkit::sim::{Link, Network, Split};
use uiw_verbs::{
    CapabilityExchange, ConnConfig, Device, DeviceConfig, Limits, Progress, Revision, RtrKinds,
    StableTx,
};

use crate::input::Input;
use application::Application;
use memory::Arena;
use peer::Peer;

const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const THEIRS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const PORT: u16 = 4791;
/// Number of steps of a run.
const STEPS: usize = 96;

/// Runs an input, which consists of options, rights, and the actions of both ends in their order.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let network = Network::new(input.u8().into());
    network.set_default_link(link(&mut input));
    let limits = Limits::default().max_held_bytes(1 << 20);
    let options = DeviceConfig::default().progress(Progress::Manual).limits(limits);
    let device = Device::with_stack(Box::new(network.stack(OURS)), options).expect("a device");
    let mut stack = network.stack(THEIRS);
    let options = options_of(&mut input);
    let arena = Arena::new(&device, &mut input);
    let mut application = Application::new(&device, &arena, &mut input);
    let initiator = input.bool();
    let stream = if initiator {
        let mut listener = stack
            .listen((THEIRS, PORT).into(), &ListenConfig::default(), Token(1))
            .expect("a free port");
        application.connect((THEIRS, PORT).into(), &options);
        run_until_idle(&network, &device);
        let Ok(stream) = listener.accept(Token(2)) else { return };
        stream
    } else {
        if !application.listen((OURS, PORT).into(), &options) {
            return;
        }
        let stream = stack
            .connect(None, (OURS, PORT).into(), &TransportConfig::default(), Token(2))
            .expect("a way to our own port");
        run_until_idle(&network, &device);
        stream
    };
    let mut peer = Peer::new(stream, !initiator);
    converse(&network, &device, &mut application, &mut peer, &arena, &mut input);
    peer.close();
    // All time-outs expire.
    for _ in 0..40 {
        run_until_idle(&network, &device);
        application.poll();
        network.advance(Duration::from_millis(1500));
    }
    application.finish();
    run_until_idle(&network, &device);
    application.check();
    let rights = application.rights;
    drop(application);
    arena.check(rights);
}

fn converse(
    network: &Network,
    device: &Device,
    application: &mut Application,
    peer: &mut Peer,
    arena: &Arena,
    input: &mut Input<'_>,
) {
    peer.start(application.options(), input);
    run_until_idle(network, device);
    application.events();
    run_until_idle(network, device);
    peer.receive(application.rights);
    peer.enter_full_operation(input);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() {
            0..=139 => peer.act(arena, application, input),
            140..=229 => application.act(arena, input),
            230..=249 => {
                network.advance(Duration::from_millis(input.pick(&[0, 1, 60, 400, 3000])));
            }
            _ => network.stall(THEIRS, OURS, input.bool()),
        }
        if input.u8() & 1 == 0 {
            run_until_idle(network, device);
            application.poll();
            peer.receive(application.rights);
        }
    }
    network.stall(THEIRS, OURS, false);
    run_until_idle(network, device);
    peer.receive(application.rights);
}

/// Drives the engine until it waits only for the clock.
fn run_until_idle(network: &Network, device: &Device) {
    let mut idle = 0;
    for _ in 0..400 {
        let moved = device.pump() > 0
            || network.next_event().is_some_and(|at| at <= network.now()) && network.step();
        idle = if moved { 0 } else { idle + 1 };
        if idle > 2 {
            return;
        }
    }
}

fn link(input: &mut Input<'_>) -> Link {
    let split = match input.u8() {
        0..=127 => Split::Whole,
        128..=191 => Split::Random(1 + input.below(200)),
        _ => Split::Fixed(1 + input.below(40)),
    };
    let capacity = if input.u8() < 200 { 256 << 10 } else { 200 + input.below(4000) };
    Link { send_split: split, recv_split: split, capacity, ..Link::default() }
}

fn options_of(input: &mut Input<'_>) -> ConnConfig {
    let bits = input.u8();
    let kinds = input.u8();
    ConnConfig::default()
        .revision(if bits & 1 == 0 { Revision::Two } else { Revision::One })
        .crc(bits & 2 == 0)
        .markers(bits & 4 != 0)
        .peer_to_peer(bits & 8 == 0)
        .rtr(RtrKinds { write: kinds & 1 == 0, read: kinds & 2 == 0, send: true })
        .ird(input.pick(&[4, 1, 0, 16, 0x3FFF]))
        .ord(input.pick(&[4, 1, 0, 16, 0x3FFF]))
        .capabilities(input.pick(&[
            CapabilityExchange::Assume,
            CapabilityExchange::Off,
            CapabilityExchange::On,
        ]))
        .acknowledged(bits & 16 != 0)
        .copy_with_crc(bits & 32 == 0)
        .stable_tx(input.pick(&[StableTx::Off, StableTx::Writes, StableTx::On]))
        .no_receive_timeout(Duration::from_millis(input.pick(&[500, 0, 5000])))
}
