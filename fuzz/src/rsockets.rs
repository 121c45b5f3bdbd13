//! rsockets: private data, the headers of datagrams, and the receiving half of a connection whose
//! peer follows or violates the protocol. The bytes that are read must be those that the peer may
//! have written, in order and inside of the buffer.

use crate::input::Input;
use std::collections::VecDeque;
use uiw_cabi_rsocket::datagram::wire::{ExchangeHeader, MessageHeader};
use uiw_cabi_rsocket::receiver::{Receiver, Violation};
use uiw_cabi_rsocket::wire::{ConnData, Mapping, Message, Order, Target};

/// Maximum number of steps of an input.
const STEPS: usize = 400;

/// Expected rights of the peer.
struct ExpectedRights {
    /// Offsets in the ring of bytes that were published and not read, in their order. The bytes of
    /// the first `readable` ones have been written.
    published: VecDeque<u32>,
    /// Number of bytes that were published and not written.
    granted: u64,
    /// Number of bytes that were written and not read.
    readable: u64,
    /// Number of unread bytes of each message that was not read completely.
    messages: VecDeque<u64>,
    /// Number of data messages that the peer may send.
    credits: u64,
}

impl ExpectedRights {
    fn may_arrive(&self, len: u32) -> bool {
        self.credits > 0 && len > 0 && u64::from(len) <= self.granted
    }

    fn arrive(&mut self, len: u32) {
        self.granted -= u64::from(len);
        self.readable += u64::from(len);
        self.credits -= 1;
        self.messages.push_back(len.into());
    }

    /// Consumes bytes, and returns the number of messages that were read completely.
    fn consume(&mut self, len: u64) -> u64 {
        self.readable -= len;
        self.published.drain(..len as usize);
        let (mut left, mut ended) = (len, 0);
        while let Some(first) = self.messages.front_mut() {
            if *first > left {
                *first -= left;
                break;
            }
            left -= *first;
            self.messages.pop_front();
            ended += 1;
        }
        ended
    }
}

fn formats(input: &mut Input<'_>) {
    let mut bytes = [0; ConnData::LEN];
    bytes.fill_with(|| input.u8());
    if input.bool() {
        // Otherwise nearly all inputs would be refused because of their version.
        bytes[0] = 1;
    }
    if let Ok(data) = ConnData::from_bytes(&bytes) {
        assert!(data.credits > 0 && data.targets.len >= 2);
        assert_eq!(ConnData::from_bytes(&data.to_bytes()), Ok(data));
    }
    let word = input.u32();
    if let Ok(message) = Message::from_word(word) {
        assert_eq!(Message::from_word(message.to_word()), Ok(message));
    }
    let target = Target { addr: input.u32().into(), key: input.u32(), len: input.u32() };
    let mapping = Mapping { offset: input.u32().into(), target };
    for order in [Order::Little, Order::Big] {
        assert_eq!(Mapping::from_bytes(mapping.to_bytes(order), order), mapping);
    }
}

/// Checks the headers of datagrams: of the bytes as they are, and of the bytes after a valid
/// beginning. Decoded headers must be encoded to the same bytes, except for reserved fields.
fn datagram_headers(bytes: &[u8]) {
    let mut fronts = vec![bytes.to_vec()];
    for (version, exchange, message) in [(4, 16, 8), (6, 28, 24)] {
        let operation = bytes.first().map_or(0, |first| first % 8);
        fronts
            .push([&[0x55, 0x55, 0x55, 0x55, version, operation, exchange, 0, 0], bytes].concat());
        fronts.push([&[version, message], bytes].concat());
    }
    for packet in fronts {
        if let Ok((header, message)) = ExchangeHeader::parse(&packet) {
            let len = ExchangeHeader::len_for(&header.address);
            assert!(header.qpn <= 0xFF_FFFF && packet.len() - len == message.len());
            let mut expected = packet[..len].to_vec();
            // Byte 7 is reserved, and byte 8 is above the 24 bits of the queue pair number.
            (expected[7], expected[8]) = (0, 0);
            assert_eq!(header.emit().as_slice(), expected);
        }
        if let Ok((header, message)) = MessageHeader::parse(&packet) {
            let len = MessageHeader::len_for(&header.from.ip());
            assert_eq!(packet.len() - len, message.len());
            let mut expected = packet[..len].to_vec();
            if len == 24 {
                // The flow label is not kept.
                expected[4..8].fill(0);
            }
            assert_eq!(header.emit().as_slice(), expected);
        }
    }
}

/// Runs an input.
///
/// # Panics
/// Panics if a guarantee is violated.
pub fn run(bytes: &[u8]) {
    datagram_headers(bytes);
    let mut input = Input::new(bytes);
    formats(&mut input);
    let half = 1 + input.u32() % 5000;
    let depth = 1 + (input.u32() % 40) as u16;
    let mut len = 1 + input.u32() % half;
    let mut receiver = Receiver::new(half, len, depth);
    let mut expected = ExpectedRights {
        published: (0..len).collect(),
        granted: len.into(),
        readable: 0,
        messages: VecDeque::new(),
        credits: depth.into(),
    };
    let (mut next, mut ended) = (half, 0);
    for _ in 0..STEPS {
        match input.u8() % 5 {
            0 | 1 => {
                let len = input.u32() % (2 * half + 2);
                let allowed = expected.may_arrive(len);
                match receiver.arrive(len) {
                    Ok(()) => {
                        assert!(allowed, "{len} bytes beyond what was granted");
                        expected.arrive(len);
                    }
                    Err(Violation::Credits) => assert_eq!(expected.credits, 0),
                    Err(Violation::Length { .. }) => assert!(!allowed),
                }
            }
            2 => {
                let skip = u64::from(input.u32()) % (expected.readable + 1);
                let most = input.u32() as usize % 9000;
                let chunk = receiver.chunk(skip, most);
                assert!(chunk.end <= 2 * half);
                let len = chunk.len() as u64;
                assert!(len <= expected.readable - skip && len <= most as u64);
                assert!(
                    len > 0 || most == 0 || skip == expected.readable,
                    "bytes that are readable are found"
                );
                let published = expected.published.range(skip as usize..).copied();
                assert!(chunk.clone().eq(published.take(chunk.len())));
                if skip == 0 {
                    receiver.consume(len as u32);
                    ended += expected.consume(len);
                }
            }
            3 => {
                receiver.grow();
                len = (2 * len).min(half);
            }
            _ => {
                if let Some(grant) = receiver.due() {
                    receiver.given(grant.clone());
                    expected.credits += std::mem::take(&mut ended);
                    if let Some(target) = grant.target {
                        assert_eq!(target, next..next + len);
                        let old = expected.published.iter();
                        assert!(old.clone().all(|byte| !target.contains(byte)), "published twice");
                        next = if next == 0 { half } else { 0 };
                        expected.granted += u64::from(len);
                        expected.published.extend(target);
                    }
                }
            }
        }
        assert_eq!(receiver.readable(), expected.readable);
        let published = expected.published.len() as u64;
        assert_eq!(expected.granted + expected.readable, published, "no byte is lost or doubled");
    }
}
