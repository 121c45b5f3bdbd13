//! Tests every operation in both directions at once, with all kinds of framing. The result must not
//! depend on how the wire splits the bytes.

mod common;

use common::{MEMORY, Pair, at, config_with, pattern};
use proptest::prelude::*;
use std::time::Duration;
use uiw_ddp::STag;
use uiw_stream::{
    BatchLength, CapabilityExchange, FpduSize, MAX_BUFFER, Op, PeerKind, RdmapConfig, ReceivedKind,
    ReceivedMessage, RequestRefusal, StableTx, USUAL_BUFFER,
};

/// Offset of the bytes written by the peer, in the memory of each end.
const WRITTEN: u64 = 0;
const SOURCE: u64 = 128 << 10;
const ATOMIC: u64 = 250 << 10;

/// Results of everything posted by one end.
#[derive(Debug, PartialEq)]
struct PostedResults {
    memory: Vec<u8>,
    received: Vec<(ReceivedMessage, Vec<u8>)>,
    answers: Vec<Vec<u8>>,
}

/// Posts every operation at end `n`, with payloads of `large` bytes where possible; the other end
/// posts the receives.
fn post_everything(pair: &mut Pair, n: usize, large: usize) {
    let seed = 1 + n as u8;
    let atomic = ATOMIC as usize;
    let peer = &mut pair.ends[1 - n].host;
    peer.memory[SOURCE as usize..][..large].copy_from_slice(&pattern(large, seed + 64));
    peer.memory[atomic..atomic + 8].copy_from_slice(&40u64.to_ne_bytes());
    peer.memory[atomic + 8..atomic + 16].copy_from_slice(&0xAABBu64.to_ne_bytes());
    peer.may_invalidate = vec![STag(77)];
    pair.receives(1 - n, 9, large as u32);
    let end = &mut pair.ends[n];
    let big = pattern(large, seed);
    end.post(Op::Write { remote: at(WRITTEN) }, &big);
    end.post(Op::Read { remote: at(SOURCE), invalidate: None }, &vec![0; large]);
    end.post(Op::Send, b"");
    end.post(Op::Send, &big);
    end.post(Op::SendInvalidate { stag: STag(77) }, b"take it back");
    end.post(Op::SendImm { imm: 0x0102_0304 }, &big[..large / 2]);
    end.post(Op::WriteImm { remote: at(WRITTEN + 100), imm: 5 }, &big[..large / 3]);
    end.post(Op::WriteImm { remote: at(WRITTEN), imm: 6 }, b"");
    end.post(Op::AtomicWrite { remote: at(ATOMIC + 16) }, &7u64.to_ne_bytes());
    end.post(Op::FetchAdd { remote: at(ATOMIC), add: 2, mask: 0 }, &[0; 8]);
    let (compare, compare_mask) = (0xBB, 0xFF);
    let swap =
        Op::CmpSwap { remote: at(ATOMIC + 8), compare, compare_mask, swap: 0xCC, swap_mask: 0xFF };
    end.post(swap, &[0; 8]);
    end.post(Op::Read { remote: at(SOURCE), invalidate: Some(STag(3)) }, b"");
    end.host.post(Op::Local, b"");
    end.host.post_with(Op::Send, b"behind the Reads", |request| request.fence = true);
    end.host.post_with(Op::Send, b"inline and solicited", |request| {
        request.inline = true;
        request.solicited = true;
    });
    end.post(Op::Read { remote: at(SOURCE + 1), invalidate: None }, &vec![0; large / 4]);
    end.host.post_with(Op::Write { remote: at(WRITTEN + 7) }, b"fenced", |request| {
        request.fence = true;
    });
    end.stream.doorbell();
}

/// Returns the expected results of `post_everything` at the peer of end `n` and in the answers to
/// `n`.
fn expected(n: usize, large: usize) -> PostedResults {
    let seed = 1 + n as u8;
    let (big, source) = (pattern(large, seed), pattern(large, seed + 64));
    let mut memory = vec![0; 1 << 18];
    let mut put =
        |to: u64, bytes: &[u8]| memory[to as usize..][..bytes.len()].copy_from_slice(bytes);
    put(SOURCE, &source);
    put(WRITTEN, &big);
    put(WRITTEN + 100, &big[..large / 3]);
    put(WRITTEN + 7, b"fenced");
    put(ATOMIC, &42u64.to_ne_bytes());
    put(ATOMIC + 8, &0xAACCu64.to_ne_bytes());
    put(ATOMIC + 16, &7u64.to_ne_bytes());
    let plain = |bytes: &[u8]| {
        let kind = ReceivedKind::Send { len: bytes.len() as u32, imm: None };
        (
            ReceivedMessage { kind, solicited: false, invalidated: None, awaits_ack: false },
            bytes.to_vec(),
        )
    };
    let immediate = |imm, write_len| {
        let kind = ReceivedKind::Immediate { imm, write_len };
        (
            ReceivedMessage { kind, solicited: false, invalidated: None, awaits_ack: false },
            Vec::new(),
        )
    };
    let mut received =
        vec![plain(b""), plain(&big), plain(b"take it back"), plain(&big[..large / 2])];
    received[2].0.invalidated = Some(STag(77));
    received[3].0.kind = ReceivedKind::Send { len: large as u32 / 2, imm: Some(0x0102_0304) };
    received.extend([immediate(5, large as u32 / 3), immediate(6, 0)]);
    received.extend([plain(b"behind the Reads"), plain(b"inline and solicited")]);
    received[7].0.solicited = true;
    let answers = vec![
        source.clone(),
        40u64.to_ne_bytes().to_vec(),
        0xAABBu64.to_ne_bytes().to_vec(),
        Vec::new(),
        source[1..][..large / 4].to_vec(),
    ];
    PostedResults { memory, received, answers }
}

fn outcome(pair: &Pair, n: usize) -> PostedResults {
    let (end, peer) = (&pair.ends[n].host, &pair.ends[1 - n].host);
    let answers = end.requests.iter().filter(|posted| posted.request.op.needs_ord());
    PostedResults {
        memory: peer.memory.clone(),
        received: peer.received.clone(),
        answers: answers.map(|posted| posted.bytes.clone()).collect(),
    }
}

/// Runs all operations in both directions and compares the results.
fn everything(mut pair: Pair, large: usize) {
    (0..2).for_each(|n| post_everything(&mut pair, n, large));
    pair.run();
    for n in 0..2 {
        pair.ends[n].host.assert_all_completed();
        let (got, mut wanted) = (outcome(&pair, n), expected(n, large));
        for (message, _) in &mut wanted.received {
            message.awaits_ack = pair.ends[n].stream.config().acknowledged;
        }
        assert!(got.memory == wanted.memory, "memory of the peer of {n}");
        assert_eq!((got.received, got.answers), (wanted.received, wanted.answers));
        let mut invalidated = pair.ends[n].host.invalidated.clone();
        invalidated.sort_unstable();
        assert_eq!(invalidated, [STag(3), STag(77)], "by a Read of its own, and by the peer");
        assert_eq!(pair.ends[n].host.receives.len(), 1, "one receive was not used");
    }
    assert!(pair.ends.iter().all(|end| end.stream.awaits_doorbell()));
    for n in 0..2 {
        pair.call(n, |stream, _, now| stream.close(now));
    }
    pair.assert_over();
}

/// The pool of a host keeps the buffer for the next batch.
#[test]
fn large_fpdu_buffer_has_promised_capacity() {
    let config = || {
        config_with(|config| {
            config.stable_tx = StableTx::On;
            config.fpdu = FpduSize::Large;
        })
    };
    let lengths = [BatchLength::Usual, BatchLength::Medium, BatchLength::Long];
    for (len, length) in [15_000, 40_000, 64_000, 100_000]
        .into_iter()
        .flat_map(|len| lengths.map(|length| (len, length)))
    {
        let mut pair = Pair::open(config(), config());
        pair.ends[0].stream.set_batch_length(length);
        for _ in 0..12 {
            pair.ends[0].post(Op::Write { remote: at(WRITTEN) }, &pattern(len, 1));
        }
        pair.ends[0].stream.doorbell();
        pair.run();
        pair.ends[0].host.assert_all_completed();
        let buffer = pair.ends[0].stream.take_buffer().expect("nothing is queued");
        let is_usual = length == BatchLength::Usual || 12 * len <= USUAL_BUFFER;
        let capacity = if is_usual { USUAL_BUFFER } else { MAX_BUFFER };
        assert_eq!(buffer.capacity(), capacity, "Writes of {len} bytes, {length:?}");
    }
}

/// A message of at least 512 KiB is sent in several batches, and one of at least 64 KiB if no other
/// request follows.
#[test]
fn long_messages_divided_if_configured() {
    const WHOLE: &[usize] = &[];
    for (len, is_last, parts) in [
        (65_535, true, WHOLE),
        (65_536, false, WHOLE),
        (65_536, true, &[49_152, 16_384]),
        (98_304, true, &[49_152, 49_152]),
        (262_144, false, WHOLE),
        (262_144, true, &[147_456, 114_688]),
        (524_287, false, WHOLE),
        (524_288, false, &[5 * 64_750, 524_288 - 5 * 64_750]),
    ] {
        for divides in [false, true] {
            let config = || {
                config_with(|config| {
                    config.stable_tx = StableTx::On;
                    config.fpdu = FpduSize::Large;
                    config.divides_long_messages = divides;
                })
            };
            let mut pair = Pair::open(config(), config());
            pair.receives(1, 2, len as u32);
            let end = &mut pair.ends[0];
            end.stream.set_batch_length(BatchLength::Long);
            let message = pattern(len, 1);
            end.post(Op::Send, &message);
            if !is_last {
                end.post(Op::Send, &[]);
            }
            end.stream.doorbell();
            let mut batches = Vec::new();
            while !pair.ends[0].stream.awaits_doorbell() {
                let (bytes, _) = pair.transmit(0);
                batches.push(bytes.len());
                pair.ends[1].incoming.extend(bytes);
            }
            pair.run();
            pair.ends[0].host.assert_all_completed();
            assert!(pair.ends[1].host.received[0].1 == message, "{len}");
            let expected = if divides { parts } else { WHOLE };
            assert_eq!(batches.len(), expected.len().max(1), "{len}: {batches:?}");
            for (batch, part) in batches.iter().zip(expected) {
                let headers = batch - part;
                assert!(headers < 6 * 24, "{len}: {batches:?}");
            }
        }
    }
}

/// A buffer that was large enough for the last batch grows for many short requests.
#[test]
fn buffer_of_short_requests_is_limited() {
    for len in [100, 1_000, 1_300, 7_000] {
        let mut pair = Pair::open(setting(0), setting(0));
        pair.ends[0].stream.set_batch_length(BatchLength::Long);
        pair.ends[0].stream.give_buffer(|| Vec::with_capacity(USUAL_BUFFER));
        for _ in 0..1_000_000 / len {
            pair.ends[0].post(Op::Write { remote: at(0) }, &pattern(len, 1));
        }
        pair.ends[0].stream.doorbell();
        pair.run();
        let buffer = pair.ends[0].stream.take_buffer().expect("nothing is queued");
        assert!(buffer.capacity() <= MAX_BUFFER, "Writes of {len} bytes: {}", buffer.capacity());
    }
}

/// Returns one of the possible combinations of settings, selected by `bits`.
fn setting(bits: u32) -> RdmapConfig {
    config_with(|config| {
        config.startup.crc = bits & 1 == 0;
        config.startup.want_markers = bits & 2 != 0;
        config.stable_tx = if bits & 4 == 0 { StableTx::Off } else { StableTx::On };
        config.acknowledged = bits & 8 != 0;
        config.startup.ord = if bits & 16 == 0 { 4 } else { 1 };
        config.fpdu = match bits >> 5 & 3 {
            0 => FpduSize::Auto,
            1 => FpduSize::Segment,
            2 => FpduSize::Large,
            _ => FpduSize::Fixed(999),
        };
        if bits & 128 != 0 {
            config.startup.rtr =
                uiw_mpa::startup::RtrKinds { write: false, read: true, send: false };
        }
    })
}

fn pair(bits: u32) -> Pair {
    let mut pair = Pair::open(setting(bits), setting(bits >> 8));
    for end in &mut pair.ends {
        assert!(matches!(end.kind, Some(PeerKind::Capable(_))), "{:?}", end.kind);
        end.host.stable = bits & 1 << 16 == 0;
        end.host.copies_with_crc = bits & 1 << 18 == 0;
        end.host.element = if bits & 1 << 17 == 0 { usize::MAX } else { 3000 };
    }
    pair
}

#[test]
fn operations_over_all_framings() {
    for bits in 0..256u32 {
        for host in 0..8 {
            everything(pair(bits | bits.reverse_bits() >> 16 & 0xFF00 | host << 16), 3000);
        }
    }
}

#[test]
fn large_messages_gathered_or_copied() {
    for bits in
        [0, 2, 4, 8, 1 << 5, 2 << 5, 3 << 5, 1 << 16, 1 << 17, 2 << 5 | 1 << 17, 2 << 5 | 3 << 16]
    {
        for separate in [0, 1 << 18] {
            everything(pair(bits | bits << 8 | separate), 100_000);
        }
    }
}

/// The payload is copied if it may change before TCP has taken it, if the FPDU has Markers, or if a
/// copy in one pass with the CRC is faster.
#[test]
fn stable_payloads_gathered() {
    const NO_CRC: u32 = 1;
    const MARKERS: u32 = 2;
    const STABLE_SOURCE: u32 = 4;
    const UNSTABLE: u32 = 1 << 16;
    const SEPARATE: u32 = 1 << 18;
    for bits in [0, NO_CRC, SEPARATE, MARKERS, SEPARATE | STABLE_SOURCE, NO_CRC | UNSTABLE] {
        let mut pair = pair(bits | bits << 8);
        let len = 60_000;
        pair.ends[0].post(Op::Write { remote: at(0) }, &pattern(len, 1));
        // The source of a Read Response may always change.
        pair.ends[0].post(Op::Read { remote: at(SOURCE), invalidate: None }, &vec![0; len]);
        pair.run();
        let gathers = bits == NO_CRC || bits == SEPARATE;
        assert_eq!(pair.ends[0].from_memory, if gathers { len } else { 0 }, "{bits:#x}");
        assert_eq!(pair.ends[1].from_memory, 0, "{bits:#x}");
    }
}

#[test]
fn requests_copied_before_sending() {
    for (whose, sends, writes) in
        [(StableTx::Off, true, true), (StableTx::Writes, true, false), (StableTx::On, false, false)]
    {
        let config = config_with(|config| {
            config.stable_tx = whose;
            config.copy_with_crc = false;
        });
        let mut pair = Pair::open(config.clone(), config);
        pair.receives(1, 1, 60_000);
        let mut counted = 0;
        for (op, gathered) in [(Op::Send, sends), (Op::Write { remote: at(0) }, writes)] {
            pair.ends[0].post(op, &pattern(60_000, 1));
            pair.run();
            counted += if gathered { 60_000 } else { 0 };
            assert_eq!(pair.ends[0].from_memory, counted, "{whose:?}");
        }
    }
}

#[test]
fn fenced_request_waits_for_reads() {
    for op in [Op::Send, Op::Write { remote: at(0) }, Op::Read { remote: at(0), invalidate: None }]
    {
        let mut pair = pair(0);
        pair.receives(1, 1, 64);
        pair.ends[0].post(Op::Read { remote: at(SOURCE), invalidate: None }, &[0; 8]);
        let fenced = pair.ends[0].host.post_with(op, &[7; 8], |request| request.fence = true);
        pair.ends[0].stream.doorbell();
        assert!(pair.forward(0));
        assert_eq!((pair.ends[0].host.built, pair.transmit(0).0.len()), (1, 0), "{op:?}");
        pair.run();
        pair.ends[0].host.assert_all_completed();
        assert_eq!(pair.ends[0].host.completed, [fenced - 1, fenced]);
    }
}

#[test]
fn stream_cut_at_any_byte() {
    for bits in [0, 1, 2, 3, 2 | 512, 128] {
        let mut pair = pair(bits | bits << 8);
        pair.receive_cuts = Box::new(|| 1);
        everything(pair, 1200);
    }
}

#[test]
fn byte_wise_transport_gets_same_bytes() {
    for bits in [0, 2, 8, 1 << 5, 2 << 5 | 1 << 17] {
        let mut pair = pair(bits | bits << 8);
        pair.send_cuts = Box::new(|| 1);
        everything(pair, 1200);
    }
}

/// Returns sizes from 1 on, derived from a seed; small sizes are more frequent.
fn cuts(seed: u64) -> common::Cuts {
    let mut state = seed | 1;
    Box::new(move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state >> 33) as u32;
        1 + (bits >> 8) as usize % [7, 90, 1500, 20_000][bits as usize & 3]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Gathered pieces are sent partly and arrive partly, with arbitrary sizes.
    #[test]
    fn any_cuts_give_the_same_result(
        bits in 0u32..1 << 18, large in 600usize..40_000, send in any::<u64>(), receive in any::<u64>(),
    ) {
        let mut pair = pair(bits);
        pair.send_cuts = cuts(send);
        pair.receive_cuts = cuts(receive);
        everything(pair, large);
    }

    /// Start-up frames are split as well.
    #[test]
    fn startup_independent_of_cuts(
        bits in 0u32..1 << 16, send in any::<u64>(), receive in any::<u64>(),
    ) {
        let whole = Pair::open(setting(bits), setting(bits >> 8));
        let mut pair = Pair::new(setting(bits), setting(bits >> 8));
        pair.send_cuts = cuts(send);
        pair.receive_cuts = cuts(receive);
        pair.run();
        pair.assert_established();
        for n in 0..2 {
            prop_assert_eq!(&pair.ends[n].established, &whole.ends[n].established);
            prop_assert_eq!(&pair.ends[n].kind, &whole.ends[n].kind);
        }
    }
}

/// Extensions of RFC 7306 are used separately, as some NICs support only a part of them. Without an
/// extension, a request fails and the error names the missing extension.
#[test]
fn extensions_used_if_peer_has_them() {
    let assume = || config_with(|config| config.capabilities = CapabilityExchange::Assume);
    let mut pair = Pair::open(assume(), assume());
    pair.receives(1, 1, 64);
    pair.ends[0].post(Op::WriteImm { remote: at(8), imm: 9 }, b"written");
    pair.ends[0].post(Op::FetchAdd { remote: at(64), add: 1, mask: 0 }, &[0; 8]);
    pair.run();
    pair.ends[0].host.assert_all_completed();
    let kind = ReceivedKind::Immediate { imm: 9, write_len: 7 };
    assert_eq!(pair.ends[1].host.received[0].0.kind, kind);
    let off = || config_with(|config| config.capabilities = CapabilityExchange::Off);
    let ops = [
        Op::WriteImm { remote: at(8), imm: 9 },
        Op::FetchAdd { remote: at(64), add: 1, mask: 0 },
        Op::AtomicWrite { remote: at(64) },
        Op::SendImm { imm: 1 },
    ];
    for op in ops {
        let mut pair = Pair::open(off(), off());
        let id = pair.ends[0].post(op, &[1; 8]);
        pair.run();
        let [(refused, RequestRefusal::MissingExtension(missing))] = pair.ends[0].host.refused[..]
        else {
            panic!("not refused")
        };
        assert_eq!(refused, id);
        assert!(!missing.is_empty());
        // No part of the request was sent, and the stream continues.
        pair.receives(1, 1, 64);
        pair.ends[0].post(Op::Send, b"behind it");
        pair.run();
        pair.ends[0].host.assert_all_completed();
        assert_eq!(pair.ends[1].host.received.len(), 1);
        pair.assert_established();
    }
}

#[test]
fn read_refused_if_ord_is_zero() {
    let config = || config_with(|config| config.startup.ord = 0);
    let mut pair = Pair::open(config(), config());
    let id = pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &[0; 8]);
    pair.run();
    assert_eq!(pair.ends[0].host.refused, [(id, RequestRefusal::NoOrd)]);
    assert!(RequestRefusal::NoOrd.to_string().contains("ORD was negotiated to 0"));
    pair.assert_established();
}

/// The completion of Immediate Data contains the length of the directly preceding Write, but not of
/// an earlier one.
#[test]
fn immediate_counts_preceding_write_only() {
    let mut pair = pair(0);
    pair.receives(1, 2, 64);
    pair.ends[0].post(Op::Write { remote: at(0) }, &[1; 100]);
    pair.ends[0].post(Op::Send, b"between");
    let header =
        uiw_rdmap::untagged_header(uiw_rdmap::Opcode::Immediate, uiw_rdmap::QN_SEND, 2, 0, true, 0);
    pair.inject(1, &uiw_ddp::Header::Untagged(header), &[0, 0, 0, 9, 0, 0, 0, 0]);
    let kind = ReceivedKind::Immediate { imm: 9, write_len: 0 };
    assert_eq!(pair.ends[1].host.received[1].0.kind, kind);
}

/// A host may keep locks and pins until the stream releases it, also within a long batch.
#[test]
fn host_released_within_batch() {
    let config = config_with(|config| (config.startup.ird, config.startup.ord) = (400, 400));
    let mut pair = Pair::open(config.clone(), config);
    pair.receives(1, 400, 8);
    for _ in 0..400 {
        pair.ends[0].host.post(Op::Send, b"8 bytes.");
        pair.ends[1].host.post(Op::Read { remote: at(SOURCE), invalidate: None }, &[0; 8]);
    }
    pair.ends.iter_mut().for_each(|end| end.stream.doorbell());
    pair.run();
    for end in &pair.ends {
        assert_eq!(end.host.completed.len(), 400);
        assert!(end.host.max_unreleased <= 64, "{}", end.host.max_unreleased);
        assert_eq!(end.host.unreleased, 0);
    }
}

/// The requester handles a batch of responses while the next one is built.
#[test]
fn responses_sent_in_several_batches() {
    /// Length of an FPDU with a tagged header and 8 bytes of payload.
    const RESPONSE: usize = 2 + 14 + 8 + 4;
    let config = config_with(|config| (config.startup.ird, config.startup.ord) = (400, 400));
    let mut pair = Pair::open(config.clone(), config);
    for (requests, batches) in [
        (200, [48, 48, 48, 48, 8]),
        (30, [15, 15, 0, 0, 0]),
        (10, [8, 2, 0, 0, 0]),
        (1, [1, 0, 0, 0, 0]),
    ] {
        for _ in 0..requests {
            pair.ends[0].host.post(Op::Read { remote: at(SOURCE), invalidate: None }, &[0; 8]);
        }
        pair.ends[0].stream.doorbell();
        pair.forward(0);
        pair.receive(1, usize::MAX);
        let sent = [(); 5].map(|()| {
            let (batch, _) = pair.transmit(1);
            pair.ends[0].incoming.extend(&batch);
            batch.len() / RESPONSE
        });
        assert_eq!(sent, batches);
        pair.run();
        pair.ends[0].host.assert_all_completed();
    }
}

#[test]
fn read_sink_names_no_memory() {
    let mut pair = pair(0);
    pair.ends[0].post(Op::Read { remote: at(SOURCE), invalidate: None }, &[0; 8]);
    let before = pair.ends[0].sent.len();
    pair.run();
    // The Read Request consists of the untagged header followed by the sink's STag.
    let request = &pair.ends[0].sent[before..];
    let sink = u32::from_be_bytes(request[2 + 18..][..4].try_into().unwrap());
    assert_eq!(STag(sink), pair.ends[0].stream.sink());
    assert_ne!(STag(sink), MEMORY);
}

/// On a path whose round trip takes longer than a second, the stream waits for the answer to the
/// capability request.
#[test]
fn capability_answer_awaited_for_round_trips() {
    for millis in [1, 600, 1500, 3000] {
        let one_way = Duration::from_millis(millis);
        let mut pair = Pair::new(RdmapConfig::default(), RdmapConfig::default());
        let id = pair.ends[0].post(Op::SendImm { imm: 7 }, b"early");
        pair.receives(1, 1, 64);
        // The legs are the Request, the Reply, the capability request, its answer and the Send.
        for leg in 0..5 {
            let from = leg % 2;
            pair.forward(from);
            pair.delay(one_way);
            pair.receive(1 - from, usize::MAX);
        }
        pair.assert_established();
        assert!(pair.ends[0].host.refused.is_empty(), "request {id} at {millis} ms");
        assert_eq!(pair.ends[1].host.received.len(), 1, "{millis} ms");
    }
}

/// The peer accepts the capability request but does not answer.
#[test]
fn silent_peer_fails_request_only() {
    let mut pair = Pair::new(
        RdmapConfig::default(),
        config_with(|config| config.capabilities = CapabilityExchange::Off),
    );
    let id = pair.ends[0].post(Op::SendImm { imm: 7 }, b"never");
    pair.ends[0].post(Op::Send, b"behind it");
    pair.receives(1, 1, 64);
    pair.run();
    assert!(pair.ends[0].host.refused.is_empty(), "too early");
    for _ in 0..20 {
        pair.advance(Duration::from_millis(100));
    }
    assert_eq!(pair.ends[0].host.refused.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id]);
    pair.ends[0].host.assert_all_completed();
    assert_eq!(pair.ends[1].host.received.len(), 1);
    pair.assert_established();
}
