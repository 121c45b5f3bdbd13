//! Tests the start-up in both roles: every revision, model and RTR kind, rejections, the fallback,
//! timeouts and invalid frames.

mod common;

use common::{Decision, Pair, at, config_with};
use std::time::Duration;
use uiw_mpa::startup::{Revision, Rtr, RtrKinds};
use uiw_rdmap::TerminateReason;
use uiw_stream::{
    CapabilityExchange, ConnError, Event, Op, PeerKind, RdmapConfig, RdmapStream, StartupFailure,
};

const RTR_KINDS: [Rtr; 3] = [Rtr::Write, Rtr::Read, Rtr::Send];

fn rtr(kind: Rtr) -> RtrKinds {
    RtrKinds { write: kind == Rtr::Write, read: kind == Rtr::Read, send: kind == Rtr::Send }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Performs one Send and one Read in each direction.
fn assert_works(pair: &mut Pair) {
    for n in 0..2 {
        pair.receives(n, 1, 64);
        pair.ends[n].post(Op::Send, b"works");
        if pair.ends[n].negotiated().ord > 0 {
            pair.ends[1 - n].host.memory[..4].copy_from_slice(b"read");
            pair.ends[n].post(Op::Read { remote: at(0), invalidate: None }, &[0; 4]);
        }
    }
    pair.run();
    for end in &pair.ends {
        end.host.assert_all_completed();
        assert_eq!(end.host.received[0].1, b"works", "{:?}", end.ended);
        let read = end.host.requests.get(1);
        assert!(read.is_none_or(|read| read.bytes == b"read"));
    }
}

#[test]
fn every_revision_model_and_rtr_kind() {
    for revision in [Revision::One, Revision::Two] {
        for peer_to_peer in [false, true] {
            for kind in RTR_KINDS {
                for capabilities in [CapabilityExchange::On, CapabilityExchange::Off] {
                    let config = config_with(|config| {
                        config.startup.revision = revision;
                        config.startup.peer_to_peer = peer_to_peer;
                        config.startup.rtr = rtr(kind);
                        config.capabilities = capabilities;
                    });
                    let mut pair = Pair::open(config.clone(), config);
                    let negotiated = pair.ends[0].negotiated();
                    let two = revision == Revision::Two;
                    assert_eq!(
                        (negotiated.enhanced, negotiated.peer_to_peer),
                        (two, two && peer_to_peer)
                    );
                    // Revision 1 cannot agree on a Send.
                    let sends_rtr = peer_to_peer && (two || kind != Rtr::Send);
                    assert_eq!(negotiated.rtr, sends_rtr.then_some(kind));
                    let capable = matches!(pair.ends[0].kind, Some(PeerKind::Capable(_)));
                    assert_eq!(capable, capabilities == CapabilityExchange::On);
                    assert_eq!(pair.ends[0].kind, pair.ends[1].kind, "{negotiated:?}");
                    assert_works(&mut pair);
                }
            }
        }
    }
}

#[test]
fn private_data_and_credits_reach_peer() {
    let initiator = config_with(|config| (config.startup.ird, config.startup.ord) = (3, 5));
    let responder = config_with(|config| (config.startup.ird, config.startup.ord) = (8, 2));
    let pair = Pair::open(initiator, responder);
    let [ours, theirs] = [0, 1].map(|n| pair.ends[n].established.clone().expect("established"));
    assert_eq!(
        (&ours.private_data[..], &theirs.private_data[..]),
        (&b"accepted"[..], &b"request"[..])
    );
    assert_eq!((ours.negotiated.ird, ours.negotiated.ord), (3, 5));
    assert_eq!((theirs.negotiated.ird, theirs.negotiated.ord), (8, 2));
    assert_eq!(theirs.peer_ird_ord, Some((3, 5)));
}

#[test]
fn responder_waits_for_first_fpdu() {
    // In the client-server model (RFC 5044 section 7.1.1) nothing is lost, and the responder
    // continues after the first FPDU.
    let config = config_with(|config| {
        config.startup.peer_to_peer = false;
        config.capabilities = CapabilityExchange::Off;
    });
    let mut pair = Pair::open(config.clone(), config);
    pair.receives(0, 1, 64);
    let reply = pair.ends[1].sent.len();
    let id = pair.ends[1].post(Op::Send, b"waits");
    pair.run();
    assert_eq!((pair.ends[1].sent.len(), pair.ends[1].host.get(id).completions), (reply, 0));
    pair.ends[0].post(Op::Write { remote: at(0) }, b"first");
    pair.run();
    assert_eq!(pair.ends[0].host.received[0].1, b"waits");
}

#[test]
fn initiator_waits_for_establish() {
    for kind in RTR_KINDS {
        for capabilities in [CapabilityExchange::On, CapabilityExchange::Off] {
            let responder = config_with(|config| {
                config.startup.rtr = rtr(kind);
                config.capabilities = capabilities;
            });
            let mut pair =
                Pair::new(RdmapConfig { awaits_establish: true, ..responder.clone() }, responder);
            pair.run();
            let request = pair.ends[0].sent.len();
            pair.ends[0].post(Op::Write { remote: at(0) }, b"waits");
            pair.run();
            assert!(
                pair.ends[0].established.is_some() && pair.ends[1].established.is_none(),
                "{kind:?}"
            );
            assert_eq!(pair.ends[0].sent.len(), request, "{kind:?}");
            pair.call(0, |stream, _, now| stream.establish(now));
            pair.run();
            assert_eq!(&pair.ends[1].host.memory[..5], b"waits");
            pair.assert_established();
            let capable = matches!(pair.ends[0].kind, Some(PeerKind::Capable(_)));
            assert_eq!(capable, capabilities == CapabilityExchange::On);
        }
    }
}

#[test]
fn unestablished_connection_ends_without_fpdu() {
    let initiator = config_with(|config| config.awaits_establish = true);
    let mut pair = Pair::new(initiator, RdmapConfig::default());
    pair.run();
    let request = pair.ends[0].sent.len();
    pair.call(0, RdmapStream::abort);
    pair.run();
    assert_eq!(pair.ends[0].sent.len(), request);
    assert!(pair.ends[1].established.is_none(), "{:?}", pair.ends[1].established);
    // An orderly close establishes the connection first.
    let initiator = config_with(|config| config.awaits_establish = true);
    let mut pair = Pair::new(initiator, RdmapConfig::default());
    pair.run();
    pair.call(0, |stream, _, now| assert!(stream.close(now)));
    pair.run();
    assert!(pair.ends[1].established.is_some());
    pair.assert_over();
}

#[test]
fn early_responder_ends_without_terminate() {
    let config = config_with(|config| {
        config.startup.peer_to_peer = false;
        config.capabilities = CapabilityExchange::Off;
    });
    let mut pair = Pair::open(config.clone(), config);
    let reply = pair.ends[1].sent.len();
    pair.call(1, RdmapStream::abort);
    pair.run();
    assert_eq!(pair.ends[1].sent.len(), reply);
    assert!(pair.ends[1].ended.as_ref().is_some_and(|ended| ended.terminate.is_none()));
    pair.assert_over();
}

#[test]
fn reject_carries_private_data() {
    for revision in [Revision::One, Revision::Two] {
        let config = config_with(|config| config.startup.revision = revision);
        let mut pair = Pair::new(config.clone(), config);
        pair.ends[1].decision = Decision::Reject;
        pair.run();
        let failure = pair.ends[0].failed.as_ref();
        let Some(StartupFailure::Rejected { private_data, markers_asked, peer_ird_ord }) = failure
        else {
            panic!("{failure:?}")
        };
        assert_eq!((&private_data[..], *markers_asked), (&b"rejected"[..], false));
        assert_eq!(peer_ird_ord.is_some(), revision == Revision::Two);
        assert!(pair.ends[0].stream.is_over() && pair.ends[1].fin_sent);
        // The transport of the initiator ends with a reset.
        pair.call(1, RdmapStream::handle_lost);
        assert!(pair.ends[1].stream.is_over());
        assert!(
            pair.ends[1].ended.is_none() && pair.ends[1].failed.is_none(),
            "the host rejected it"
        );
    }
}

#[test]
fn missing_decision_or_frame_times_out() {
    let mut pair = Pair::new(RdmapConfig::default(), RdmapConfig::default());
    pair.ends[1].decision = Decision::Wait;
    pair.run();
    assert!(pair.ends[1].stream.request().is_some() && !pair.ends[1].stream.accepts_bytes());
    pair.advance(ms(9_999));
    assert!(pair.ends.iter().all(|end| end.stream.is_starting()));
    pair.advance(ms(1));
    for end in &pair.ends {
        assert_eq!(end.failed, Some(StartupFailure::TimedOut));
        assert!(end.stream.is_over() && end.stream.is_reset());
    }
}

#[test]
fn late_rtr_message_times_out() {
    let mut pair = Pair::new(RdmapConfig::default(), RdmapConfig::default());
    // The Request arrives, but the Reply does not, so the initiator sends no FPDU.
    assert!(pair.forward(0));
    pair.ends[0].stream.abandon_startup();
    pair.run();
    assert!(pair.ends[1].stream.is_open() && pair.ends[1].established.is_none());
    pair.advance(Duration::from_secs(10));
    assert!(matches!(pair.ends[1].error(), ConnError::NoFirstFpdu));
    assert!(pair.ends[1].stream.is_over() && pair.ends[1].stream.is_reset());
    assert!(pair.ends[1].established.is_none());
}

#[test]
fn close_on_revision_2_falls_back() {
    let mut pair = Pair::new(
        RdmapConfig::default(),
        config_with(|config| config.startup.revision = Revision::One),
    );
    let request = pair.transmit(0).0;
    assert_eq!(request[17], 2, "revision");
    pair.call(0, |stream, host, now| stream.handle_eof(host, 0, now));
    assert_eq!((pair.ends[0].reconnects, pair.ends[0].failed.is_none()), (1, true));
    pair.call(0, |stream, _, now| {
        stream.reconnected();
        assert!(stream.is_connecting());
        stream.handle_connected(now);
    });
    pair.run();
    pair.assert_established();
    assert_eq!(pair.ends[0].negotiated().revision, 1);
    assert_works(&mut pair);
}

#[test]
fn fallback_only_before_first_byte() {
    for (unread, fallback, again) in [(3, true, false), (0, false, false), (0, true, true)] {
        let mut pair =
            Pair::new(config_with(|config| config.fallback = fallback), RdmapConfig::default());
        pair.transmit(0);
        pair.call(0, |stream, host, now| stream.handle_eof(host, unread, now));
        if again {
            pair.call(0, |stream, host, now| {
                stream.reconnected();
                stream.handle_connected(now);
                stream.handle_eof(host, 0, now);
            });
        }
        assert_eq!(pair.ends[0].failed, Some(StartupFailure::Closed));
        assert_eq!(pair.ends[0].reconnects, u32::from(again));
        assert!(pair.ends[0].stream.is_over());
    }
}

#[test]
fn startup_timeout_covers_both_revisions() {
    let mut pair = Pair::new(RdmapConfig::default(), RdmapConfig::default());
    pair.transmit(0);
    pair.ends[1].stream.abandon_startup();
    pair.advance(ms(6_000));
    pair.call(0, |stream, host, now| {
        stream.handle_eof(host, 0, now);
        stream.reconnected();
        stream.handle_connected(now);
    });
    pair.advance(ms(4_000));
    assert_eq!(pair.ends[0].failed, Some(StartupFailure::TimedOut));
}

/// The new TCP connection is established too late. A stream that has failed must not start again,
/// because it would have no deadline.
#[test]
fn no_reconnect_after_startup_timeout() {
    let mut pair = Pair::new(RdmapConfig::default(), RdmapConfig::default());
    pair.transmit(0);
    pair.call(0, |stream, host, now| stream.handle_eof(host, 0, now));
    assert_eq!(pair.ends[0].reconnects, 1);
    pair.now = pair.now.after(ms(10_000));
    pair.call(0, RdmapStream::handle_timeout);
    assert_eq!(pair.ends[0].failed, Some(StartupFailure::TimedOut));
    pair.call(0, |stream, _, now| {
        stream.reconnected();
        stream.handle_connected(now);
    });
    assert!(pair.ends[0].stream.is_over());
}

#[test]
fn transport_lost_during_startup() {
    let config = RdmapConfig::default();
    let mut connecting = RdmapStream::<Vec<u8>>::connect(
        config.clone(),
        b"",
        uiw_ddp::STag(9),
        1,
        uiw_stream::Time::default(),
    )
    .unwrap();
    let mut host = common::TestHost::new();
    connecting.handle_lost(&mut host, uiw_stream::Time::default());
    assert!(matches!(connecting.poll_event(), Some(Event::Failed(StartupFailure::Lost))));
    assert!(connecting.is_over() && connecting.poll_event().is_none());
    for decision in [Decision::Wait, Decision::Accept] {
        let mut pair = Pair::new(config.clone(), config.clone());
        pair.ends[1].decision = decision;
        assert!(pair.forward(0));
        if decision == Decision::Wait {
            pair.run();
            assert!(pair.ends[1].stream.request().is_some());
        } else {
            assert!(pair.ends[1].stream.awaits_request());
        }
        for n in 0..2 {
            pair.call(n, RdmapStream::handle_lost);
            assert_eq!(pair.ends[n].failed, Some(StartupFailure::Lost));
        }
        pair.assert_over();
    }
}

#[test]
fn invalid_frame_fails_startup() {
    for n in 0..2 {
        let mut pair = Pair::new(RdmapConfig::default(), RdmapConfig::default());
        pair.transmit(0);
        pair.ends[n].incoming.extend(*b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n");
        pair.run();
        assert!(
            matches!(pair.ends[n].failed, Some(StartupFailure::Frame(_))),
            "{:?}",
            pair.ends[n].failed
        );
        assert!(pair.ends[n].stream.is_over() && pair.ends[n].stream.is_reset());
    }
}

#[test]
fn insufficient_reply_refused_with_terminate() {
    // The Reply contains none of our RTR kinds (RFC 6581 section 9).
    let [read, send] =
        [Rtr::Read, Rtr::Send].map(|kind| config_with(|config| config.startup.rtr = rtr(kind)));
    for awaits_establish in [false, true] {
        let mut pair = Pair::new(RdmapConfig { awaits_establish, ..read.clone() }, send.clone());
        pair.run();
        assert!(matches!(pair.ends[0].error(), ConnError::Refused(_)), "{:?}", pair.ends[0].ended);
        assert_eq!(pair.ends[0].terminated(), TerminateReason::LlpNoMatchingRtr);
        assert_eq!(pair.ends[1].terminated_by_peer(), TerminateReason::LlpNoMatchingRtr);
        assert!(pair.ends.iter().all(|end| end.established.is_none()));
        pair.assert_over();
    }
}

#[test]
fn foreign_peer_detected_despite_pause() {
    // The responder's first FPDU is not an answer to the capability request.
    let off = config_with(|config| config.capabilities = CapabilityExchange::Off);
    let mut pair = Pair::open(RdmapConfig::default(), off.clone());
    pair.receives(0, 1, 64);
    assert_eq!(pair.ends[0].kind, None);
    pair.ends[1].post(Op::Send, b"no answer");
    pair.run();
    assert_eq!(pair.ends[0].kind, Some(PeerKind::Foreign));
    // Nothing arrives: the request is repeated five times, and the exchange is decided after a
    // second.
    let mut pair = Pair::open(RdmapConfig::default(), off);
    let mut lengths = vec![pair.ends[0].sent.len()];
    for _ in 0..5 {
        pair.advance(ms(50));
        lengths.push(pair.ends[0].sent.len());
    }
    assert!(lengths.windows(2).all(|pair| pair[0] < pair[1]), "{lengths:?}");
    pair.advance(ms(749));
    assert_eq!((pair.ends[0].kind, pair.ends[0].sent.len()), (None, lengths[5]));
    pair.advance(ms(1));
    assert_eq!(pair.ends[0].kind, Some(PeerKind::Foreign));
    assert_eq!(pair.ends[0].stream.poll_timeout(), uiw_stream::Time::NEVER);
    assert_works(&mut pair);
}

#[test]
fn rtr_not_repeated_without_exchange() {
    for capabilities in [CapabilityExchange::Off, CapabilityExchange::Assume] {
        let config = config_with(|config| {
            config.startup.rtr = rtr(Rtr::Write);
            config.capabilities = capabilities;
        });
        let mut pair = Pair::open(config.clone(), config);
        let sent = pair.ends[0].sent.len();
        assert_eq!(pair.ends[0].stream.poll_timeout(), uiw_stream::Time::NEVER);
        pair.advance(ms(1000));
        assert_eq!(pair.ends[0].sent.len(), sent);
        assert_works(&mut pair);
    }
}

#[test]
fn loopback_stream_needs_no_peer() {
    let now = uiw_stream::Time::default();
    let mut stream =
        RdmapStream::<Vec<u8>>::loopback(RdmapConfig::default(), uiw_ddp::STag(9), now);
    let mut host = common::TestHost::new();
    host.receives.push_back(64);
    stream.handle_connected(now);
    assert!(matches!(stream.poll_event(), Some(Event::Established(_))));
    host.post(Op::Send, b"to myself");
    let mut bytes = Vec::new();
    let Some(uiw_stream::Transmit::Bytes(batch)) = stream.poll_transmit(&mut host, now) else {
        panic!("nothing")
    };
    batch.append_to(&mut bytes);
    stream.handle_sent(&mut host, bytes.len(), now);
    assert_eq!(stream.handle_bytes(&mut host, &mut bytes, now), bytes.len());
    assert_eq!((&host.received[0].1[..], &host.completed[..]), (&b"to myself"[..], &[0][..]));
}
