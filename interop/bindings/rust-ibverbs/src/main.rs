//! Runs two processes on the crate `ibverbs`: the client sends messages, the server returns each
//! with every bit inverted, and both compare the received data.
//!
//!     uiw-rust-ibverbs-peer server PORT
//!     uiw-rust-ibverbs-peer client ADDRESS PORT
//!
//! The endpoints of the queue pairs are exchanged over one TCP connection.

#[path = "../../pattern.rs"]
mod pattern;

use ibverbs::{CompletionQueue, MemoryRegion, QueuePair, QueuePairEndpoint};
use pattern::{inverted, pattern};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;

/// Lengths of the messages in a round, in bytes.
const LENGTHS: [usize; 8] = [1, 8, 1500, 4096, 16_387, 65_535, 65_536, 65_536];
const SLOT: usize = 65_536;
const ROUNDS: u64 = 32;
/// Offset of the request numbers of Sends. The request number of a Send is this offset plus the
/// number of its slot; that of a receive is the number of its slot.
const SENDS: u64 = 1000;

/// Completions that must arrive before an end continues.
#[derive(Default)]
struct DueCompletion {
    sends: usize,
    receives: usize,
}

struct ConnectedEnd<'a> {
    queue: QueuePair<'a>,
    completions: &'a CompletionQueue<'a>,
    received: MemoryRegion<u8>,
    sent: MemoryRegion<u8>,
}

fn slot(number: usize, len: usize) -> Range<usize> {
    number * SLOT..number * SLOT + len
}

fn seed(round: u64, number: usize) -> u64 {
    round * LENGTHS.len() as u64 + number as u64
}

impl ConnectedEnd<'_> {
    fn receive(&mut self) {
        for number in 0..LENGTHS.len() {
            // SAFETY: both regions live as long as the queue pair, and a slot is read only after
            // its completion.
            unsafe { self.queue.post_receive(&mut self.received, slot(number, SLOT), number as u64) }
                .expect("a receive");
        }
    }

    fn send(&mut self, number: usize, bytes: &[u8]) {
        let range = slot(number, bytes.len());
        self.sent[range.clone()].copy_from_slice(bytes);
        // SAFETY: as above; a slot is overwritten only after its Send has completed.
        unsafe { self.queue.post_send(&mut self.sent, range, SENDS + number as u64) }.expect("a send");
    }

    fn wait(&self, mut due: DueCompletion) {
        let mut entries = [ibverbs::ibv_wc::default(); 16];
        while due.sends + due.receives > 0 {
            for entry in self.completions.poll(&mut entries).expect("a poll") {
                assert!(entry.is_valid(), "request {}: {:?}", entry.wr_id(), entry.error());
                if entry.wr_id() >= SENDS {
                    due.sends -= 1;
                } else {
                    let number = entry.wr_id() as usize;
                    assert_eq!(entry.len(), LENGTHS[number], "the length of message {number}");
                    due.receives -= 1;
                }
            }
        }
    }

    /// Returns the message in a slot.
    fn message(&self, number: usize) -> &[u8] {
        &self.received[slot(number, LENGTHS[number])]
    }
}

fn client(end: &mut ConnectedEnd<'_>) {
    for round in 0..ROUNDS {
        for (number, len) in LENGTHS.into_iter().enumerate() {
            end.send(number, &pattern(seed(round, number), len));
        }
        end.wait(DueCompletion { sends: LENGTHS.len(), receives: LENGTHS.len() });
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let expected = inverted(&pattern(seed(round, number), len));
            assert!(end.message(number) == expected, "round {round}: message {number} differs");
        }
        end.receive();
    }
}

fn server(end: &mut ConnectedEnd<'_>) {
    let mut due = DueCompletion { sends: 0, receives: LENGTHS.len() };
    for round in 0..ROUNDS {
        end.wait(due);
        let messages: Vec<_> = (0..LENGTHS.len()).map(|number| end.message(number).to_vec()).collect();
        end.receive();
        for (number, message) in messages.iter().enumerate() {
            let expected = pattern(seed(round, number), LENGTHS[number]);
            assert!(*message == expected, "round {round}: message {number} differs");
            end.send(number, &inverted(message));
        }
        due = DueCompletion { sends: LENGTHS.len(), receives: LENGTHS.len() };
    }
    end.wait(DueCompletion { receives: 0, ..due });
}

fn run(mut peer: TcpStream, role: fn(&mut ConnectedEnd<'_>)) {
    let devices = ibverbs::devices().expect("the devices");
    let device = devices.iter().next().expect("a device");
    let context = device.open().expect("the device opens");
    let completions = context.create_cq(64, 0).expect("a completion queue");
    let domain = context.alloc_pd().expect("a protection domain");
    let allocate = || domain.allocate::<u8>(LENGTHS.len() * SLOT).expect("memory");
    let (received, sent) = (allocate(), allocate());
    // Use an IPv4 address if the device has one among its GIDs.
    let is_ipv4 = |gid: &ibverbs::Gid| (gid.subnet_prefix(), gid.interface_id() >> 32) == (0, 0xFFFF);
    let gid = context.gid_table().iter().position(|entry| is_ipv4(&entry.gid)).unwrap_or(0);
    let prepared = domain
        .create_qp(&completions, &completions, ibverbs::ibv_qp_type::IBV_QPT_RC)
        .set_gid_index(gid as u32)
        .set_max_send_wr(16)
        .set_max_recv_wr(16)
        .build()
        .expect("a queue pair");
    bincode::serialize_into(&mut peer, &prepared.endpoint()).expect("our endpoint is sent");
    let endpoint: QueuePairEndpoint = bincode::deserialize_from(&mut peer).expect("the peer's endpoint");
    let queue = prepared.handshake(endpoint).expect("the handshake");
    let mut end = ConnectedEnd { queue, completions: &completions, received, sent };
    end.receive();
    // Each end posts its receives before the other end sends.
    peer.write_all(&[1]).expect("ready");
    peer.read_exact(&mut [0]).expect("the peer is ready");
    role(&mut end);
    // Neither end destroys its queue pair before both are done.
    peer.write_all(&[2]).expect("done");
    peer.read_exact(&mut [0]).expect("the peer is done");
    let (messages, bytes) = (LENGTHS.len() as u64 * ROUNDS, LENGTHS.iter().sum::<usize>() as u64 * ROUNDS);
    let name = device.name().expect("its name").to_string_lossy();
    println!("{name}: {messages} messages of {bytes} bytes in each direction are equal");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", port] => {
            let listener = TcpListener::bind(format!("0.0.0.0:{port}")).expect("the port is free");
            run(listener.accept().expect("a client").0, server);
        }
        ["client", address, port] => {
            run(TcpStream::connect(format!("{address}:{port}")).expect("the server listens"), client);
        }
        _ => panic!("usage: server PORT | client ADDRESS PORT"),
    }
}
