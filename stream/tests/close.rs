//! Tests how streams end: orderly, by the host or by the transport, and what happens to requests
//! and to partly sent FPDUs.

mod common;

use common::{Pair, at, config_with, pattern, send_header};
use std::time::Duration;
use uiw_ddp::Header;
use uiw_rdmap::{Opcode, TerminateReason};
use uiw_stream::{
    AffectedRequest, CapabilityExchange, ConnError, FpduSize, Op, RdmapConfig, RdmapStream,
};

fn pair() -> Pair {
    Pair::open(RdmapConfig::default(), RdmapConfig::default())
}

/// Opens two streams with FPDUs as large as MPA allows, which are sent directly from memory.
fn large_pair() -> Pair {
    let config = config_with(|config| config.fpdu = FpduSize::Large);
    Pair::open(config.clone(), config)
}

/// Like [`large_pair`]; payloads are sent from their memory.
fn gathering_pair() -> Pair {
    let mut pair = large_pair();
    pair.ends.iter_mut().for_each(|end| end.host.copies_with_crc = false);
    pair
}

#[test]
fn orderly_close_finishes_requests_and_answers() {
    let mut pair = pair();
    pair.receives(1, 1, 100);
    for n in 0..2 {
        pair.ends[n].post(Op::Write { remote: at(0) }, &pattern(50_000, 1));
        pair.ends[n].post(Op::Read { remote: at(0), invalidate: None }, &[0; 20_000]);
    }
    pair.ends[0].post(Op::Send, b"last");
    assert!(pair.call(0, |stream, _, now| stream.close(now)), "was open");
    assert!(!pair.call(0, |stream, _, now| stream.close(now)), "closes already");
    pair.assert_over();
    for end in &pair.ends {
        end.host.assert_all_completed();
        assert!(matches!(end.error(), ConnError::Closed));
        assert!(end.fin_sent && !end.stream.is_reset());
        assert!(end.ended.as_ref().is_some_and(
            |ended| ended.terminate.is_none() && ended.named == AffectedRequest::Nothing
        ));
    }
    // The close interrupted nothing at the end that did not initiate it.
    assert!(pair.ends[1].ended.as_ref().is_some_and(|ended| ended.idle));
    assert_eq!(pair.ends[1].host.received[0].1, b"last");
}

#[test]
fn unanswered_close_times_out() {
    let mut pair = pair();
    pair.call(0, |stream, _, now| stream.close(now));
    // The FIN is sent, and no answer arrives.
    assert!(pair.transmit(0).1);
    pair.now = pair.now.after(Duration::from_millis(4_999));
    pair.call(0, RdmapStream::handle_timeout);
    assert!(!pair.ends[0].stream.is_over());
    pair.now = pair.now.after(Duration::from_millis(1));
    pair.call(0, RdmapStream::handle_timeout);
    assert!(pair.ends[0].stream.is_over() && pair.ends[0].stream.is_reset());
    assert!(matches!(pair.ends[0].error(), ConnError::Lost));
}

#[test]
fn abort_does_not_blame_peer() {
    let mut pair = pair();
    let done = pair.ends[0].post(Op::Write { remote: at(0) }, b"done");
    pair.run();
    let open = pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &[0; 4]);
    pair.transmit(0);
    pair.ends[0].post(Op::Send, b"never built");
    pair.call(0, RdmapStream::abort);
    assert_eq!(pair.ends[0].terminated(), TerminateReason::LocalCatastrophic);
    assert!(pair.ends[0].ended.as_ref().is_some_and(|ended| !ended.idle));
    pair.assert_over();
    let host = &mut pair.ends[0].host;
    assert_eq!((host.get(done).completions, host.get(open).completions, host.built), (1, 0, 2));
}

/// An end sends only complete FPDUs, however much of a gathered FPDU has been sent when the stream
/// ends.
#[test]
fn partial_fpdu_finished_before_terminate() {
    for taken in
        [1, 2, 15, 16, 17, 18, 4_000, 64_000, 64_772, 64_775, 64_776, 64_777, 70_000, 129_553]
    {
        for (stable, one_pass) in [(false, false), (true, false), (true, true)] {
            let mut pair = large_pair();
            pair.ends[0].host.stable = stable;
            pair.ends[0].host.copies_with_crc = one_pass;
            let id = pair.ends[0].post(Op::Write { remote: at(0) }, &pattern(200_000, 9));
            let mut budget = vec![0, taken];
            pair.send_cuts = Box::new(move || budget.pop().unwrap_or(0));
            pair.run();
            pair.call(0, RdmapStream::abort);
            pair.send_cuts = Box::new(|| usize::MAX);
            pair.run();
            assert_eq!(
                pair.ends[1].terminated_by_peer(),
                TerminateReason::LocalCatastrophic,
                "{taken} {stable} {one_pass}"
            );
            let whole = taken.div_ceil(64_776) * (64_768 - 14);
            let placed = pair.ends[1]
                .host
                .memory
                .iter()
                .zip(pattern(200_000, 9))
                .take_while(|(a, b)| **a == *b);
            assert_eq!(placed.count(), whole, "FPDUs that were begun, and no more: {taken}");
            assert_eq!(pair.ends[0].host.get(id).completions, 0);
            pair.assert_over();
        }
    }
}

/// Markers are placed every 512 bytes of the data sent (RFC 5044 section 4.3); discarded data does
/// not count.
#[test]
fn terminate_markers_follow_sent_bytes() {
    let config = config_with(|config| {
        config.fpdu = FpduSize::Large;
        config.startup.want_markers = true;
    });
    // The Terminate begins at every position between two Markers, in steps shorter than itself.
    for len in (0..512).step_by(24) {
        let mut pair = Pair::open(config.clone(), config.clone());
        pair.ends[0].post(Op::Write { remote: at(0) }, &pattern(len, 9));
        pair.run();
        pair.ends[0].post(Op::Write { remote: at(0) }, &pattern(1_300, 9));
        assert!(pair.ends[0].transmit(0, pair.now).0.is_empty(), "built, and dropped");
        pair.call(0, RdmapStream::abort);
        pair.assert_over();
        assert_eq!(pair.ends[1].terminated_by_peer(), TerminateReason::LocalCatastrophic, "{len}");
    }
}

/// Returns a pair whose first end has sent `taken` bytes of a Write, and has lost its memory.
fn pair_without_memory(taken: usize) -> Pair {
    let mut pair = gathering_pair();
    pair.ends[0].post(Op::Write { remote: at(0) }, &pattern(60_000, 9));
    let mut budget = vec![0, taken];
    pair.send_cuts = Box::new(move || budget.pop().unwrap_or(0));
    pair.run();
    pair.ends[0].host.gone = true;
    pair
}

#[test]
fn partial_fpdu_without_memory_resets() {
    for taken in [1, 16, 40_000] {
        let mut pair = pair_without_memory(taken);
        pair.call(0, RdmapStream::abort);
        assert!(pair.ends[0].stream.is_over() && pair.ends[0].stream.is_reset());
        assert!(pair.ends[0].ended.as_ref().is_some_and(|ended| ended.terminate.is_none()));
    }
    // The FPDUs have not been started, so the missing memory does not matter.
    let mut pair = gathering_pair();
    pair.ends[0].post(Op::Write { remote: at(0) }, &pattern(60_000, 9));
    pair.send_cuts = Box::new(|| 0);
    pair.run();
    pair.ends[0].host.gone = true;
    pair.call(0, RdmapStream::abort);
    pair.send_cuts = Box::new(|| usize::MAX);
    pair.run();
    assert_eq!(pair.ends[1].terminated_by_peer(), TerminateReason::LocalCatastrophic);
}

#[test]
fn memory_gone_during_send_ends_stream() {
    // TCP has a part of the FPDU, or nothing of it.
    for taken in [30_000, 0] {
        let mut pair = pair_without_memory(taken);
        pair.call(0, RdmapStream::handle_source_gone);
        assert!(matches!(pair.ends[0].error(), ConnError::SourceGone));
        assert_eq!(
            pair.ends[0].ended.as_ref().map(|ended| ended.named),
            Some(AffectedRequest::Oldest)
        );
        assert_eq!(pair.ends[0].stream.is_reset(), taken > 0);
        if taken > 0 {
            assert!(pair.ends[0].stream.is_over());
            pair.call(1, RdmapStream::handle_lost);
            assert!(matches!(pair.ends[1].error(), ConnError::Lost));
        } else {
            pair.send_cuts = Box::new(|| usize::MAX);
            pair.assert_over();
            assert_eq!(pair.ends[1].terminated_by_peer(), TerminateReason::LocalCatastrophic);
        }
        assert_eq!(
            pair.ends[1].host.memory,
            vec![0; 1 << 18],
            "nothing of a part of an FPDU is placed"
        );
    }
}

#[test]
fn end_inside_fpdu_is_fault() {
    let mut pair = pair();
    pair.ends[0].post(Op::Write { remote: at(0) }, &[7; 100]);
    let mut budget = vec![0, 50];
    pair.send_cuts = Box::new(move || budget.pop().unwrap_or(0));
    pair.run();
    pair.ends[1].incoming_fin = true;
    pair.run();
    assert!(
        matches!(pair.ends[1].error(), ConnError::FinInsideFpdu { bytes: 50 }),
        "{:?}",
        pair.ends[1].ended
    );
    assert_eq!(pair.ends[1].terminated(), TerminateReason::LlpClosed);
}

#[test]
fn close_inside_message_not_idle() {
    let read = Header::Untagged(uiw_rdmap::untagged_header(Opcode::ReadRequest, 1, 1, 0, false, 0));
    let write =
        |last| Header::Tagged(uiw_rdmap::tagged_header(Opcode::Write, common::MEMORY, 0, last));
    let headers = [
        (send_header(1, 0, false), false),
        (read, false),
        (write(false), false),
        (write(true), true),
    ];
    for (header, idle) in headers {
        let mut pair = pair();
        pair.receives(1, 1, 64);
        pair.inject(1, &header, b"part");
        pair.ends[1].incoming_fin = true;
        pair.run();
        assert!(matches!(pair.ends[1].error(), ConnError::Closed));
        assert_eq!(pair.ends[1].ended.as_ref().map(|ended| ended.idle), Some(idle), "{header:?}");
    }
}

#[test]
fn answers_sent_after_peer_close() {
    let mut pair = pair();
    pair.ends[1].host.memory[..3].copy_from_slice(b"abc");
    pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &[0; 3]);
    assert!(pair.forward(0), "no Read Request");
    pair.ends[1].incoming_fin = true;
    pair.run();
    assert_eq!(pair.ends[0].host.requests[0].bytes, b"abc");
    assert!(matches!(pair.ends[1].error(), ConnError::Closed));
}

#[test]
fn lost_transport_flushes_requests() {
    for closing in [false, true] {
        let mut pair = pair();
        let done = pair.ends[0].post(Op::Write { remote: at(0) }, b"done");
        pair.run();
        let open = pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &[0; 4]);
        pair.transmit(0);
        if closing {
            pair.call(0, |stream, _, now| stream.close(now));
            assert_eq!(pair.transmit(0), (vec![], false), "no FIN while a Read is open");
        }
        pair.call(0, RdmapStream::handle_lost);
        let end = &mut pair.ends[0];
        assert!(matches!(end.error(), ConnError::Lost));
        assert_eq!(end.ended.as_ref().map(|ended| ended.named), Some(AffectedRequest::Oldest));
        assert!(end.stream.is_over() && end.stream.is_reset());
        assert_eq!((end.host.get(done).completions, end.host.get(open).completions), (1, 0));
    }
    // After the end, nothing is reported again.
    let mut pair = pair();
    pair.call(0, RdmapStream::abort);
    pair.call(0, RdmapStream::handle_lost);
    assert!(matches!(pair.ends[0].error(), ConnError::Aborted) && pair.ends[0].stream.is_over());
}

#[test]
fn detached_idle_stream_closes_orderly() {
    let mut pair = pair();
    pair.detach(0);
    pair.assert_over();
    assert!(pair.ends.iter().all(|end| matches!(end.error(), ConnError::Closed)));
}

#[test]
fn detached_stream_with_requests_aborts() {
    let mut pair = pair();
    pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &[0; 4]);
    pair.transmit(0);
    pair.detach(0);
    assert!(matches!(pair.ends[0].error(), ConnError::Aborted));
    pair.assert_over();
}

fn acknowledged() -> RdmapConfig {
    config_with(|config| config.acknowledged = true)
}

/// Settings for acknowledged completion with a peer that is not uiw: zero-length Reads follow the
/// requests.
fn acknowledged_by_reads() -> RdmapConfig {
    config_with(|config| {
        config.acknowledged = true;
        config.capabilities = CapabilityExchange::Off;
    })
}

#[test]
fn acknowledged_requests_complete_when_placed() {
    for config in [acknowledged(), acknowledged_by_reads()] {
        requests_complete_when_placed(&config);
    }
}

fn requests_complete_when_placed(config: &RdmapConfig) {
    let mut pair = Pair::open(config.clone(), config.clone());
    pair.receives(1, 40, 64);
    let ids: Vec<u32> = (0..40)
        .map(|n| {
            let op = if n % 2 == 0 { Op::Write { remote: at(n * 8) } } else { Op::Send };
            pair.ends[0].post(op, b"acked")
        })
        .collect();
    while pair.forward(0) {}
    assert!(
        pair.ends[0].host.completed.is_empty(),
        "TCP has them all, and the peer has not looked"
    );
    pair.run();
    assert_eq!(pair.ends[0].host.completed, ids);
    assert!(pair.ends[0].stream.awaits_doorbell(), "no acknowledgement is open");
    // A request that the peer refuses never completes, and neither do the requests after it.
    pair.ends[0].post(Op::Write { remote: at(0) }, b"placed");
    let bad = pair.ends[0].post(Op::Write { remote: at(1 << 40) }, b"refused");
    pair.ends[0].post(Op::Write { remote: at(0) }, b"behind");
    pair.run();
    assert_eq!(pair.ends[0].terminated_by_peer(), TerminateReason::TaggedBaseOrBounds);
    let ended = pair.ends[0].ended.as_ref().expect("ended");
    assert!(ended.acknowledged);
    assert_eq!(ended.named, AffectedRequest::Write { stag: common::MEMORY, to: 1 << 40 });
    assert_eq!(pair.ends[0].host.get(bad).completions, 0);
    assert_eq!(pair.ends[0].host.get(bad + 1).completions, 0);
    pair.assert_over();
}

#[test]
fn detached_stream_sends_last_acks() {
    for config in [acknowledged(), acknowledged_by_reads()] {
        let mut pair = Pair::open(config.clone(), config.clone());
        pair.receives(1, 8, 64);
        let ids: Vec<u32> = (0..8).map(|_| pair.ends[0].post(Op::Send, b"acked")).collect();
        while pair.forward(0) {}
        // Everything but an acknowledging Read has arrived.
        pair.receive(1, 8 * (2 + 18 + 5 + 3 + 4));
        assert_eq!(pair.ends[1].host.received.len(), 8);
        pair.detach(1);
        assert!(pair.ends[1].stream.is_draining());
        pair.assert_over();
        assert_eq!(pair.ends[0].host.completed, ids);
        assert!(pair.ends.iter().all(|end| matches!(end.error(), ConnError::Closed)));
    }
}

/// Both ends discard a message of the other one, and still do not wait for the time limit.
#[test]
fn both_ends_detached_close_orderly() {
    let mut pair = Pair::open(acknowledged(), acknowledged());
    for n in 0..2 {
        pair.ends[n].post(Op::Write { remote: at(0) }, b"discarded");
        pair.forward(n);
    }
    (0..2).for_each(|n| pair.detach(n));
    pair.assert_over();
    assert!(
        pair.ends
            .iter()
            .all(|end| matches!(end.error(), ConnError::Closed) && !end.stream.is_reset())
    );
}

#[test]
fn discarded_messages_not_acknowledged() {
    // An acknowledging Read covers both messages.
    for (config, completed) in [(acknowledged(), &[0][..]), (acknowledged_by_reads(), &[])] {
        for op in [Op::Send, Op::Write { remote: at(0) }] {
            let mut pair = Pair::open(config.clone(), config.clone());
            pair.receives(1, 1, 64);
            pair.ends[0].post(Op::Send, b"placed");
            pair.ends[0].post(op, b"discarded");
            while pair.forward(0) {}
            pair.receive(1, 2 + 18 + 6 + 2 + 4);
            assert_eq!(pair.ends[1].host.received.len(), 1);
            pair.detach(1);
            pair.assert_over();
            assert_eq!(pair.ends[0].host.completed, completed, "{op:?}");
            let idle = pair.ends[0].ended.as_ref().map(|ended| ended.idle);
            assert_eq!(idle, Some(false), "the request fails");
            assert!(pair.ends.iter().all(|end| matches!(end.error(), ConnError::Closed)));
        }
    }
}

/// The acknowledging Read of the last Send waits for the ORD that another Read uses, and the peer
/// closes as soon as it has received the Send.
#[test]
fn orderly_close_answers_last_acknowledgements() {
    for (closes_both, capabilities) in [false, true]
        .into_iter()
        .flat_map(|both| [CapabilityExchange::On, CapabilityExchange::Off].map(|mode| (both, mode)))
    {
        let config = config_with(|config| {
            config.acknowledged = true;
            config.capabilities = capabilities;
            (config.startup.ird, config.startup.ord) = (1, 1);
        });
        let mut pair = Pair::open(config.clone(), config);
        pair.receives(1, 1, 64);
        let ids = [
            pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &[0; 8]),
            pair.ends[0].post(Op::Send, b"last"),
        ];
        while pair.forward(0) {}
        pair.receive(1, usize::MAX);
        assert_eq!(pair.ends[1].host.received.len(), 1, "the peer has it all");
        pair.call(1, |stream, _, now| stream.close(now));
        // The peer sends everything at once, before the other end receives any of it.
        while pair.forward(1) {}
        if closes_both {
            pair.call(0, |stream, _, now| stream.close(now));
        }
        pair.assert_over();
        assert_eq!(pair.ends[0].host.completed, ids);
        for end in &pair.ends {
            assert!(matches!(end.error(), ConnError::Closed), "{:?}", end.ended);
            assert!(end.fin_sent && !end.stream.is_reset());
        }
    }
}

/// If the host detaches a stream during the close, the stream completes the close itself.
#[test]
fn detach_during_close_stays_orderly() {
    let mut pair = Pair::open(acknowledged_by_reads(), acknowledged_by_reads());
    pair.receives(1, 1, 64);
    let id = pair.ends[0].post(Op::Send, b"last");
    while pair.forward(0) {}
    pair.receive(1, usize::MAX);
    pair.call(1, |stream, _, now| stream.close(now));
    // The acknowledgement is sent first, then the drain Read.
    for is_draining in [false, true] {
        assert!(pair.forward(1) && !pair.ends[1].fin_sent);
        assert_eq!(pair.ends[1].stream.is_draining(), is_draining);
    }
    pair.detach(1);
    pair.assert_over();
    assert_eq!(pair.ends[0].host.completed, [id]);
    assert!(
        pair.ends.iter().all(|end| matches!(end.error(), ConnError::Closed)),
        "{:?}",
        pair.ends[0].ended
    );
}

/// A peer that closes in the meantime does not answer the drain Read. If this end waits for a
/// receive, it could not process the answer, so it sends the FIN at once.
#[test]
fn close_ends_without_drain_answer() {
    let mut pair = Pair::open(acknowledged_by_reads(), acknowledged_by_reads());
    pair.call(1, |stream, _, now| stream.close(now));
    assert!(!pair.transmit(1).0.is_empty(), "the drain Read, which is lost");
    pair.ends[1].incoming_fin = true;
    pair.receive(1, 0);
    assert!(pair.transmit(1).1, "FIN");
    pair.call(1, |_, _, _| ());
    assert!(matches!(pair.ends[1].error(), ConnError::Closed));

    let mut pair = Pair::open(acknowledged(), acknowledged());
    pair.ends[0].post(Op::Send, b"finds no receive");
    while pair.forward(0) {}
    pair.receive(1, usize::MAX);
    assert!(pair.ends[1].stream.is_stalled());
    pair.call(1, |stream, _, now| stream.close(now));
    assert!(pair.transmit(1).1, "FIN at once");
}

/// After a message has been placed, its acknowledgement is sent before anything else, and the host
/// is informed when TCP has accepted it.
#[test]
fn placement_acked_before_anything_else() {
    let mut pair = Pair::open(acknowledged(), acknowledged());
    pair.receives(1, 2, 64);
    let ids = [
        pair.ends[0].post(Op::Write { remote: at(0) }, b"written"),
        pair.ends[0].post(Op::Send, b"sent"),
        pair.ends[0].post(Op::WriteImm { remote: at(8), imm: 7 }, b"both"),
    ];
    while pair.forward(0) {}
    // The requests of this end are sent after the acknowledgement.
    pair.ends[1].post(Op::Write { remote: at(64) }, &[1; 4096]);
    pair.receive(1, usize::MAX);
    let acks: Vec<_> =
        pair.ends[1].host.received.iter().map(|(message, _)| message.awaits_ack).collect();
    assert_eq!(acks, [true, true]);
    assert_eq!(pair.ends[1].stream.take_acknowledged(), 0, "nothing was sent");
    let (sent, _) = pair.ends[1].transmit(ACK_LEN, pair.now);
    assert_eq!(sent.len(), ACK_LEN);
    assert_eq!(pair.ends[1].stream.take_acknowledged(), 2);
    pair.ends[0].incoming.extend(sent);
    pair.receive(0, usize::MAX);
    assert_eq!(pair.ends[0].host.completed, ids);
    assert_eq!(pair.ends[0].stream.peer(), pair.ends[1].stream.peer());
    assert!(pair.ends[0].stream.awaits_doorbell(), "no Read was sent");
}

/// Length of an FPDU without payload: length field, tagged header and CRC.
const ACK_LEN: usize = 2 + uiw_ddp::Tagged::LEN + 4;

/// The requests before the failed one are known to be placed, however the stream ends.
#[test]
fn placement_acked_before_stream_ends() {
    let mut pair = Pair::open(acknowledged(), acknowledged());
    pair.receives(1, 1, 64);
    let placed = pair.ends[0].post(Op::Send, b"placed");
    while pair.forward(0) {}
    pair.receive(1, usize::MAX);
    pair.call(1, RdmapStream::abort);
    pair.assert_over();
    assert_eq!(pair.ends[0].host.completed, [placed]);
    assert_eq!(pair.ends[0].terminated_by_peer(), TerminateReason::LocalCatastrophic);
}

#[test]
fn fin_follows_placement_ack() {
    let mut pair = Pair::open(acknowledged(), acknowledged());
    pair.receives(1, 1, 64);
    let id = pair.ends[0].post(Op::Send, b"last");
    while pair.forward(0) {}
    pair.receive(1, usize::MAX);
    pair.call(1, |stream, _, now| stream.close(now));
    let (ack, fin) = pair.transmit(1);
    assert_eq!((ack.len(), fin), (ACK_LEN, false));
    let (nothing, fin) = pair.transmit(1);
    assert_eq!((nothing.len(), fin), (0, true));
    pair.ends[0].incoming.extend(ack);
    pair.ends[0].incoming_fin = true;
    pair.assert_over();
    assert_eq!(pair.ends[0].host.completed, [id]);
}

/// An end that does not request acknowledgements gets none, but acknowledges the requests of a peer
/// that does.
#[test]
fn acks_sent_only_on_request() {
    let mut pair = Pair::open(acknowledged(), RdmapConfig::default());
    for end in 0..2 {
        pair.receives(end, 1, 64);
    }
    let id = pair.ends[0].post(Op::Send, b"to be acknowledged");
    pair.run();
    assert_eq!(pair.ends[0].host.completed, [id]);
    assert!(pair.ends[1].host.received[0].0.awaits_ack);
    pair.ends[1].post(Op::Send, b"not");
    pair.run();
    assert!(!pair.ends[0].host.received[0].0.awaits_ack);
}

#[test]
fn drain_limited_to_one_second() {
    let mut pair = Pair::open(acknowledged(), acknowledged());
    pair.detach(1);
    assert!(!pair.transmit(1).0.is_empty());
    pair.now = pair.now.after(Duration::from_secs(1));
    pair.call(1, RdmapStream::handle_timeout);
    assert!(pair.ends[1].stream.is_over() && pair.ends[1].stream.is_reset());
}

#[test]
fn pause_takes_effect_when_idle() {
    let mut pair = pair();
    let id = pair.ends[0].post(Op::Read { remote: at(0), invalidate: None }, &[0; 4]);
    assert!(pair.forward(0));
    pair.call(0, |stream, _, _| stream.pause());
    assert!(pair.transmit(0).0.is_empty());
    assert_eq!(pair.ends[0].drained, 0, "the Read is not answered");
    pair.run();
    assert_eq!((pair.ends[0].drained, pair.ends[0].host.get(id).completions), (1, 1));
    pair.call(0, |stream, _, _| stream.resume());
    pair.ends[0].post(Op::Write { remote: at(0) }, b"goes on");
    pair.run();
    pair.ends[0].host.assert_all_completed();
    assert_eq!(pair.ends[0].drained, 1);
}

#[test]
fn completion_queue_overflow_ends_stream() {
    let mut pair = pair();
    pair.ends[0].host.cq_full = true;
    pair.ends[0].post(Op::Write { remote: at(0) }, b"sent");
    pair.run();
    assert_eq!(pair.ends[1].terminated_by_peer(), TerminateReason::LocalCatastrophic);
    pair.assert_over();
}

#[test]
fn nothing_follows_a_fin() {
    // A request posted after the FIN stays with the host, and a Read of the peer is not answered.
    let mut pair = pair();
    pair.call(0, |stream, _, now| stream.close(now));
    assert!(pair.transmit(0).1, "FIN");
    let late = pair.ends[0].post(Op::Send, b"too late");
    pair.ends[1].post(Op::Read { remote: at(0), invalidate: None }, &[0; 8]);
    assert!(pair.forward(1));
    pair.receive(0, usize::MAX);
    assert!(
        pair.ends[0].stream.is_open() && pair.ends[0].incoming.is_empty(),
        "the peer has not closed"
    );
    assert!(pair.transmit(0).0.is_empty());
    assert_eq!((pair.ends[0].host.built, pair.ends[0].host.get(late).completions), (0, 0));
    // The peer's capability request is not answered either if it is the first FPDU after our FIN.
    let config = config_with(|config| config.startup.peer_to_peer = false);
    let mut pair = Pair::new(config.clone(), config.clone());
    pair.ends[1].decision = common::Decision::Wait;
    pair.run();
    pair.call(1, |stream, _, now| {
        assert!(stream.accept(config, b"", now).expect("legal").is_some());
        assert!(stream.close(now));
    });
    let (reply, _) = pair.transmit(1);
    assert!(pair.transmit(1).1, "FIN");
    pair.ends[0].incoming.extend(&reply);
    pair.run();
    assert_eq!(pair.ends[1].sent, reply);
    assert!(
        matches!(pair.ends[1].kind, Some(uiw_stream::PeerKind::Capable(_))),
        "its request has come"
    );
    assert!(pair.ends[1].stream.has_nothing_due());
}

/// The lifetime limit of an open stream does not change the deadline of a stream that is closing.
#[test]
fn limited_lifetime_resets_open_stream() {
    for closes in [false, true] {
        let mut pair = pair();
        if closes {
            pair.call(0, |stream, _, now| stream.close(now));
            assert!(pair.transmit(0).1);
        }
        pair.call(0, |stream, _, now| stream.limit_lifetime(Duration::from_secs(3), now));
        let wait = if closes { 5_000 } else { 3_000 };
        pair.now = pair.now.after(Duration::from_millis(wait - 1));
        pair.call(0, RdmapStream::handle_timeout);
        assert!(!pair.ends[0].stream.is_over());
        pair.now = pair.now.after(Duration::from_millis(1));
        pair.call(0, RdmapStream::handle_timeout);
        assert!(pair.ends[0].stream.is_over() && pair.ends[0].stream.is_reset());
    }
}

/// No receive will be posted for the waiting Send. A Terminate reports this to the peer at once,
/// and the Send is not acknowledged.
#[test]
fn detached_stream_refuses_waiting_send() {
    let mut pair = Pair::open(acknowledged(), acknowledged());
    pair.receives(1, 1, 100);
    let placed = pair.ends[0].post(Op::Send, b"placed");
    pair.ends[0].post(Op::Send, b"no receive");
    pair.run();
    assert!(pair.ends[1].stream.is_stalled());
    pair.detach(1);
    pair.assert_over();
    assert_eq!(pair.ends[0].terminated_by_peer(), TerminateReason::UntaggedNoBuffer);
    assert_eq!(
        pair.ends[0].ended.as_ref().map(|ended| ended.named),
        Some(AffectedRequest::Send { msn: 2 })
    );
    assert!(!pair.ends[0].host.completed.contains(&(placed + 1)));
}

/// The Send that waits for a receive arrived before the FIN, so it is delivered first.
#[test]
fn fin_after_waiting_send_ends_nothing() {
    let mut pair = pair();
    pair.ends[0].post(Op::Send, b"before the FIN");
    pair.run();
    assert!(pair.ends[1].stream.is_stalled());
    pair.call(1, |stream, host, now| stream.handle_eof(host, 0, now));
    assert_eq!(pair.transmit(1), (vec![], false));
    pair.receives(1, 1, 100);
    assert_eq!(pair.ends[1].host.received[0].1, b"before the FIN");
    pair.run();
    assert!(matches!(pair.ends[1].error(), ConnError::Closed));
}

/// If the peer has already closed, the stream is over after our FIN, and the host need not poll
/// again.
#[test]
fn stream_over_after_both_fins() {
    let mut pair = pair();
    pair.call(0, |stream, host, now| stream.handle_eof(host, 0, now));
    assert!(pair.transmit(0).1);
    assert!(pair.ends[0].stream.is_over() && !pair.ends[0].stream.is_reset());
}

#[test]
fn reset_stream_sends_nothing() {
    let mut pair = large_pair();
    pair.ends[0].post(Op::Write { remote: at(0) }, &pattern(60_000, 9));
    // TCP has a part of an FPDU, whose rest would be sent before a FIN.
    assert_eq!(pair.ends[0].transmit(100, pair.now).0.len(), 100);
    pair.call(0, RdmapStream::handle_lost);
    assert!(pair.ends[0].stream.is_over());
    assert_eq!(pair.transmit(0), (vec![], false));
}

/// The known length of a received FPDU does not apply to the next one.
#[test]
fn needed_bytes_unknown_after_waiting_send() {
    let mut pair = pair();
    pair.ends[0].post(Op::Send, &[7; 1000]);
    let (fpdu, _) = pair.transmit(0);
    pair.ends[1].incoming.extend(&fpdu);
    pair.receive(1, 500);
    assert_eq!(pair.ends[1].stream.needed(), fpdu.len());
    pair.receive(1, 600);
    assert!(pair.ends[1].stream.is_stalled());
    assert!(pair.ends[1].stream.needed() < fpdu.len(), "{}", pair.ends[1].stream.needed());
}
