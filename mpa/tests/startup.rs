//! Tests of the startup with all combinations of the settings of both ends, and with invalid
//! frames.

use proptest::prelude::*;
use uiw_mpa::startup::*;
use uiw_mpa::wire::startup::{Enhanced, Frame, FrameError, FrameKind, KEY_REPLY, KEY_REQUEST};

/// Returns a configuration of revision 1, for tests of the other settings.
fn plain() -> StartupConfig {
    StartupConfig { revision: Revision::One, ..StartupConfig::default() }
}

/// Results of one startup at its two ends.
struct StartupDialogue {
    request: Frame,
    reply: Frame,
    responder: Negotiated,
    initiator: Negotiated,
    terminate: Option<StartupRefusal>,
}

/// Performs a startup in which `responder` accepts the Request of `initiator`.
fn dialogue(initiator: &StartupConfig, responder: &StartupConfig) -> StartupDialogue {
    let active = Initiator::new(initiator.clone(), b"ping").unwrap();
    let mut passive = Responder::new(responder.clone());
    let (consumed, request) = passive.request(&active.request()).unwrap().unwrap();
    assert_eq!(consumed, active.request().len());
    assert_eq!(request.private_data(), b"ping");
    let (bytes, negotiated) = passive.accept(&request, responder, b"pong").unwrap();
    let (consumed, outcome) = active.reply(&bytes).unwrap().unwrap();
    assert_eq!(consumed, bytes.len());
    let (reply, _) = Frame::parse(&bytes).unwrap().unwrap();
    let Outcome::Accepted { negotiated: initiator, enhanced, private_data, terminate } = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_eq!((enhanced, &private_data[..]), (reply.enhanced, &b"pong"[..]));
    StartupDialogue { request: request.frame, reply, responder: negotiated, initiator, terminate }
}

/// Interprets a constructed Reply as an initiator with `config` does.
fn answered(config: &StartupConfig, reply: &Frame) -> Result<Outcome, StartupError> {
    let initiator = Initiator::new(config.clone(), b"").unwrap();
    initiator.reply(&reply.emit()).map(|outcome| outcome.expect("a whole Reply").1)
}

/// Like `answered`, for a Reply that accepts the connection.
fn accepted(config: &StartupConfig, reply: &Frame) -> (Negotiated, Option<StartupRefusal>) {
    match answered(config, reply) {
        Ok(Outcome::Accepted { negotiated, terminate, .. }) => (negotiated, terminate),
        other => panic!("{other:?}"),
    }
}

/// Returns a Reply that accepts the connection, without flags and data.
fn bare_reply(revision: u8, enhanced: Option<Enhanced>) -> Frame {
    Frame {
        kind: FrameKind::Reply,
        markers: false,
        crc: true,
        reject: false,
        enhanced,
        reserved: 0,
        revision,
        private_data: Vec::new(),
    }
}

// ---------------------------------------------------------------- bytes

// [test:RFC5044-7.1.1-01] [test:RFC5044-7.1.1-17] [test:RFC5044-7.1.2-01] [test:RFC6581-6-02]
// [test:RFC6581-6-05] [test:RFC6581-9-01] [test:RFC6581-9.2-01] [test:RFC6581-9.2-02]
// [test:RFC5044-4.4-04]
#[test]
fn default_request() {
    let expected =
        [&b"MPA ID Req Frame"[..], &[0x50, 2, 0, 7], &[0xC0, 0x80, 0xC0, 0x80], b"abc"].concat();
    assert_eq!(Initiator::new(StartupConfig::default(), b"abc").unwrap().request(), expected);
}

// [test:RFC5044-7.1.1-14] [test:RFC5044-7.1.1-13] [test:RFC6581-6-03] [test:RFC6581-10-03]
#[test]
fn request_of_revision_1() {
    let expected = [&b"MPA ID Req Frame"[..], &[0x40, 1, 0, 3], b"abc"].concat();
    assert_eq!(Initiator::new(plain(), b"abc").unwrap().request(), expected);
    let config = StartupConfig { crc: false, want_markers: true, ..plain() };
    assert_eq!(Initiator::new(config, b"").unwrap().request()[16..], [0x80, 1, 0, 0]);
}

// [test:RFC5044-7.1.1-03] [test:RFC6581-10-01] [test:RFC6581-10-05] [test:RFC6581-9.2-04]
#[test]
fn default_reply() {
    let request = Initiator::new(StartupConfig::default(), b"").unwrap().request();
    let mut responder = Responder::new(StartupConfig::default());
    let (_, request) = responder.request(&request).unwrap().unwrap();
    let (reply, _) = responder.accept(&request, &StartupConfig::default(), b"abc").unwrap();
    let expected =
        [&b"MPA ID Rep Frame"[..], &[0x50, 2, 0, 7], &[0xC0, 0x80, 0xC0, 0x80], b"abc"].concat();
    assert_eq!(reply, expected);
}

// ---------------------------------------------------------------- pieces and their ends

// [test:RFC5044-7.1.2-03] [test:RFC5044-7.1.2-07] [test:RFC5044-7.1.2-17]
#[test]
fn frame_parsed_from_pieces() {
    let initiator = Initiator::new(StartupConfig::default(), b"hello").unwrap();
    let mut responder = Responder::new(StartupConfig::default());
    let mut bytes = initiator.request();
    let len = bytes.len();
    for cut in 0..len {
        assert_eq!(responder.request(&bytes[..cut]), Ok(None), "{cut} bytes");
    }
    bytes.extend_from_slice(b"MPA ID Req Frame behind it");
    let (consumed, request) = responder.request(&bytes).unwrap().unwrap();
    assert_eq!(consumed, len);

    let (mut bytes, _) = responder.accept(&request, &StartupConfig::default(), b"world").unwrap();
    let len = bytes.len();
    for cut in 0..len {
        assert_eq!(initiator.reply(&bytes[..cut]), Ok(None), "{cut} bytes");
    }
    bytes.extend_from_slice(&[0xFF; 99]);
    assert_eq!(
        initiator.reply(&bytes).unwrap().unwrap().0,
        len,
        "FPDUs behind the Reply are left alone"
    );
}

// [test:RFC5044-7.1.1-02] [test:RFC5044-7.1.1-04] [test:RFC5044-7.1.2-12] [test:RFC5044-8-08]
#[test]
fn wrong_key_rejected_at_first_byte() {
    let initiator = Initiator::new(StartupConfig::default(), b"").unwrap();
    let mut responder = Responder::new(StartupConfig::default());
    for offset in 0..16 {
        for (key, reply) in [(KEY_REQUEST, false), (KEY_REPLY, true)] {
            let mut key = key;
            key[offset] ^= 0x80;
            let error = Err(FrameError::BadKey { offset, byte: key[offset] }.into());
            let bytes = &key[..=offset];
            if reply {
                assert_eq!(initiator.reply(bytes), error);
            } else {
                assert_eq!(responder.request(bytes).map(|_| None), error);
            }
        }
    }
}

// [test:RFC5044-7.1.2-15]
#[test]
fn other_frame_kind_rejected_by_key() {
    let initiator = Initiator::new(StartupConfig::default(), b"").unwrap();
    let mut responder = Responder::new(StartupConfig::default());
    assert_eq!(initiator.reply(&KEY_REQUEST[..9]), Ok(None));
    assert_eq!(initiator.reply(&KEY_REQUEST[..10]), Err(StartupError::RequestWhereReplyDue));
    assert_eq!(initiator.reply(&initiator.request()), Err(StartupError::RequestWhereReplyDue));
    assert_eq!(responder.request(&KEY_REPLY[..10]), Err(StartupError::ReplyWhereRequestDue));
}

// ---------------------------------------------------------------- Private Data

// [test:RFC5044-7.1.1-19] [test:RFC5044-7.1.2-02] [test:RFC5044-7.1.2-18a] [test:RFC5044-7.1.2-18b]
#[test]
fn private_data_of_every_size() {
    for (revision, max) in [(Revision::One, 512), (Revision::Two, 508)] {
        let config = StartupConfig { revision, ..StartupConfig::default() };
        let mut responder = Responder::new(config.clone());
        for len in
            [0, 1, 3, 4, 5, 252, 253, 254, 255, 256, 257, 507, 508, 509, 510, 511, 512, 513, 65_536]
        {
            let data = vec![0xA5; len];
            let too_long = ConfigError::PrivateDataTooLong { len, max };
            let Ok(initiator) = Initiator::new(config.clone(), &data) else {
                assert!(len > max);
                assert_eq!(Initiator::new(config.clone(), &data).unwrap_err(), too_long);
                let small = Initiator::new(config.clone(), b"").unwrap().request();
                let (_, request) = responder.request(&small).unwrap().unwrap();
                assert_eq!(responder.accept(&request, &config, &data).unwrap_err(), too_long);
                assert_eq!(responder.reject(&request, &data).unwrap_err(), too_long);
                continue;
            };
            assert!(len <= max);
            let (_, request) = responder.request(&initiator.request()).unwrap().unwrap();
            assert_eq!(request.private_data(), data);
            assert_eq!(request.max_reply_private_data(), max);
            let (reply, _) = responder.accept(&request, &config, &data).unwrap();
            let (_, outcome) = initiator.reply(&reply).unwrap().unwrap();
            assert!(
                matches!(outcome, Outcome::Accepted { private_data, .. } if private_data == data)
            );
        }
    }
}

// [test:RFC5044-7.1.1-18] [test:RFC5044-7.1.2-04] [test:RFC5044-7.1.2-08] [test:RFC5044-7.1.2-19]
#[test]
fn long_private_data_rejected_with_header() {
    for announced in [513, 514, 1024, 0x8000, 65_535] {
        for revision in [1, 2] {
            let [high, low] = u16::to_be_bytes(announced);
            let tail = [0x40, revision, high, low];
            let error = Err(FrameError::PrivateDataTooLong { announced }.into());
            let request = [&KEY_REQUEST[..], &tail].concat();
            assert_eq!(
                Responder::new(StartupConfig::default()).request(&request).map(|_| None),
                error
            );
            let reply = [&KEY_REPLY[..], &tail].concat();
            assert_eq!(Initiator::new(StartupConfig::default(), b"").unwrap().reply(&reply), error);
        }
    }
    let longest = [&KEY_REQUEST[..], &[0x40, 1, 2, 0], &[7; 512]].concat();
    assert_eq!(Responder::new(plain()).request(&longest).unwrap().unwrap().0, 532);
}

// [test:RFC6581-6-05]
#[test]
fn s_flag_needs_ird_and_ord() {
    for pd_length in 0..4u8 {
        let request = [&KEY_REQUEST[..], &[0x50, 2, 0, pd_length], b"abc"].concat();
        let error = FrameError::EnhancedHeaderMissing { pd_length: pd_length.into() };
        assert_eq!(Responder::new(StartupConfig::default()).request(&request), Err(error.into()));
    }
}

// ---------------------------------------------------------------- flags

// [test:RFC5044-7.1.1-13] [test:RFC6581-6-01a] [test:RFC6581-6-01b]
#[test]
fn reserved_bits_not_repeated() {
    // R has no meaning in a Request, and S has none before revision 2.
    for (flags, revision) in [(0x4F, 2), (0x6F, 2), (0x5F, 1), (0x7F, 1), (0x5F, 0)] {
        let request = [&KEY_REQUEST[..], &[flags, revision, 0, 2], b"hi"].concat();
        let mut responder = Responder::new(StartupConfig::default());
        let (_, request) = responder.request(&request).unwrap().unwrap();
        assert_eq!(
            (request.private_data(), request.ird(), request.peer_to_peer()),
            (&b"hi"[..], None, false)
        );
        let (reply, _) = responder.accept(&request, &StartupConfig::default(), b"").unwrap();
        assert_eq!(reply[16..18], [0x40, revision]);
    }
    let reply = Frame {
        reserved: 0x0F,
        ..bare_reply(2, Some(Enhanced { ird: 9, ord: 9, ..Enhanced::default() }))
    };
    let config = StartupConfig { peer_to_peer: false, ..StartupConfig::default() };
    assert_eq!(accepted(&config, &reply).1, None);
}

// [test:RFC5044-4.4-01a] [test:RFC5044-4.4-05] [test:RFC5044-4.4-08] [test:RFC5044-4.4-09]
// [test:RFC5044-7.1.1-10] [test:RFC5044-7.1.1-11]
#[test]
fn crcs_enabled_by_either_end() {
    for (active, passive) in [(false, false), (false, true), (true, false), (true, true)] {
        let with = |crc| StartupConfig { crc, ..StartupConfig::default() };
        let StartupDialogue { request, reply, initiator, responder, .. } =
            dialogue(&with(active), &with(passive));
        assert_eq!(request.crc, active);
        assert_eq!(reply.crc, active || passive, "siw as initiator goes by the Reply alone");
        assert_eq!((initiator.crc, responder.crc), (active || passive, active || passive));
    }
    // A responder of another implementation need not repeat our flag C.
    let reply = Frame { crc: false, ..bare_reply(1, None) };
    assert!(accepted(&plain(), &reply).0.crc);
}

// [test:RFC5044-7.1.1-05] [test:RFC5044-7.1.1-06] [test:RFC5044-7.1.1-07] [test:RFC5044-7.1.1-08]
// [test:RFC5044-7.1.1-09] [test:RFC5044-4.3-01]
#[test]
fn markers_sent_to_receiver_requiring_them() {
    for (active, passive) in [(false, false), (false, true), (true, false), (true, true)] {
        let with = |want_markers| StartupConfig { want_markers, ..StartupConfig::default() };
        let StartupDialogue { request, reply, initiator, responder, .. } =
            dialogue(&with(active), &with(passive));
        assert_eq!((request.markers, reply.markers), (active, passive));
        assert_eq!((initiator.markers_rx, responder.markers_tx), (active, active));
        assert_eq!((initiator.markers_tx, responder.markers_rx), (passive, passive));
    }
}

// ---------------------------------------------------------------- revisions

// [test:RFC5044-7.1.1-15] [test:RFC5044-7.1.1-16] [test:RFC6581-6-04] [test:RFC6581-10-02]
// [test:RFC6581-10-04] [test:RFC6581-10-06] [test:RFC6581-10-07] [test:RFC5044-3-13]
#[test]
fn requests_of_every_revision() {
    for revision in 0..=255 {
        for listener in [Revision::One, Revision::Two] {
            let config = StartupConfig { revision: listener, ..StartupConfig::default() };
            let mut responder = Responder::new(config.clone());
            let request = [&KEY_REQUEST[..], &[0x40, revision, 0, 0]].concat();
            let outcome = responder.request(&request);
            if revision > listener as u8 {
                assert_eq!(outcome, Err(StartupError::UnknownRevision { revision }));
                continue;
            }
            let (_, request) = outcome.unwrap().unwrap();
            assert_eq!(request.revision(), revision);
            let (reply, negotiated) = responder.accept(&request, &config, b"").unwrap();
            assert_eq!(reply, [&KEY_REPLY[..], &[0x40, revision, 0, 0]].concat());
            assert_eq!((negotiated.revision, negotiated.enhanced), (revision, false));
            assert_eq!(
                (negotiated.ird, negotiated.ord),
                (128, 128),
                "our own, as nothing was said"
            );
            assert_eq!((negotiated.peer_to_peer, negotiated.rtr), (false, None));
        }
    }
}

/// A Request with an unsupported revision is refused before its Private Data has arrived.
// [test:RFC5044-7.1.1-16]
#[test]
fn unknown_revision_rejected_early() {
    let request = [&KEY_REQUEST[..], &[0x50, 3]].concat();
    let error = Responder::new(StartupConfig::default()).request(&request);
    assert_eq!(error, Err(StartupError::UnknownRevision { revision: 3 }));
}

// [test:RFC5044-7.1.1-15] [test:RFC6581-10-05] [test:RFC6581-10-08]
#[test]
fn replies_of_another_revision() {
    let enhanced = Some(Enhanced { ird: 8, ord: 8, ..Enhanced::default() });
    for sent in [Revision::One, Revision::Two] {
        let config =
            StartupConfig { revision: sent, peer_to_peer: false, ..StartupConfig::default() };
        for got in (0..=255).filter(|got| *got != sent as u8) {
            let error = StartupError::ReplyRevision { sent: sent as u8, got };
            assert_eq!(answered(&config, &bare_reply(got, None)), Err(error));
        }
    }
    let config = StartupConfig { peer_to_peer: false, ..StartupConfig::default() };
    assert_eq!(answered(&config, &bare_reply(2, None)), Err(StartupError::ReplyNotEnhanced));
    assert!(answered(&config, &bare_reply(2, enhanced)).is_ok());
}

// ---------------------------------------------------------------- IRD and ORD

#[cfg(not(miri))]
const DEPTHS: [u16; 5] = [0, 1, 8, 300, 0x3FFF];
/// Fewer values for Miri, which is a thousand times slower.
#[cfg(miri)]
const DEPTHS: [u16; 3] = [0, 300, 0x3FFF];

// [test:RFC6581-9.1-02] [test:RFC6581-9.1-04] [test:RFC6581-9.1-07] [test:RFC6581-9.1-11]
// [test:RFC6581-9.1-12] [test:RFC6581-9.1-13] [test:RFC6581-9.1-14]
#[test]
fn ird_and_ord_of_both_ends() {
    let config =
        |ird, ord| StartupConfig { ird, ord, peer_to_peer: false, ..StartupConfig::default() };
    for active_ird in DEPTHS {
        for active_ord in DEPTHS {
            for passive_ird in DEPTHS {
                for passive_ord in DEPTHS {
                    let (active, passive) =
                        (config(active_ird, active_ord), config(passive_ird, passive_ord));
                    let StartupDialogue { request, reply, initiator, responder, terminate } =
                        dialogue(&active, &passive);
                    let (request, reply) = (request.enhanced.unwrap(), reply.enhanced.unwrap());
                    assert_eq!((request.ird, request.ord), (active_ird, active_ord));
                    assert_eq!(terminate, None);

                    // Each end keeps its IRD. "Not negotiated" is answered by the same value.
                    assert_eq!((initiator.ird, responder.ird), (active_ird, passive_ird));
                    let said = if active_ord == 0x3FFF { 0x3FFF } else { passive_ird };
                    assert_eq!(reply.ird, said);
                    let said = if active_ird == 0x3FFF { 0x3FFF } else { responder.ord };
                    assert_eq!(reply.ord, said);

                    // The ORD of each end is at most the other end's IRD, and unchanged if that is
                    // not negotiated.
                    let limited = |ord: u16, ird| {
                        if (ord, ird) == (0x3FFF, 0x3FFF) { 128 } else { ord.min(ird) }
                    };
                    assert_eq!(responder.ord, limited(passive_ord, active_ird));
                    assert_eq!(initiator.ord, limited(active_ord, reply.ird));
                }
            }
        }
    }
}

// [test:RFC6581-9.1-08] [test:RFC6581-9.1-14] [test:RFC6581-9.1-07]
#[test]
fn responder_ord_above_our_ird() {
    for (ours, needed) in [(0, 1), (8, 9), (128, 0x3FFE)] {
        let config = StartupConfig { ird: ours, ..StartupConfig::default() };
        let enhanced = Enhanced {
            peer_to_peer: true,
            rtr_write: true,
            ird: 8,
            ord: needed,
            ..Enhanced::default()
        };
        let (_, terminate) = accepted(&config, &bare_reply(2, Some(enhanced)));
        assert_eq!(terminate, Some(StartupRefusal::InsufficientIrd { ours, needed }));
        for fine in [0, ours, 0x3FFF] {
            let reply = bare_reply(2, Some(Enhanced { ord: fine, ..enhanced }));
            assert_eq!(accepted(&config, &reply).1, None, "IRD {ours}, ORD {fine}");
        }
    }
}

#[test]
fn ird_ord_limited_to_14_bits() {
    for depth in [0x4000, 0xFFFF] {
        let (ird, ord) = (
            StartupConfig { ird: depth, ..StartupConfig::default() },
            StartupConfig { ord: depth, ..StartupConfig::default() },
        );
        assert_eq!(
            Initiator::new(ird.clone(), b"").unwrap_err(),
            ConfigError::IrdOutOfRange { ird: depth }
        );
        assert_eq!(
            Initiator::new(ord.clone(), b"").unwrap_err(),
            ConfigError::OrdOutOfRange { ord: depth }
        );
        let mut responder = Responder::new(StartupConfig::default());
        let request = Initiator::new(StartupConfig::default(), b"").unwrap().request();
        let (_, request) = responder.request(&request).unwrap().unwrap();
        assert_eq!(
            responder.accept(&request, &ird, b"").unwrap_err(),
            ConfigError::IrdOutOfRange { ird: depth }
        );
        assert_eq!(
            responder.accept(&request, &ord, b"").unwrap_err(),
            ConfigError::OrdOutOfRange { ord: depth }
        );
    }
}

// ---------------------------------------------------------------- peer-to-peer

fn kinds(bits: u8) -> RtrKinds {
    RtrKinds { write: bits & 1 != 0, read: bits & 2 != 0, send: bits & 4 != 0 }
}

// [test:RFC6581-9.2-02] [test:RFC6581-9.2-04] [test:RFC6581-9.2-05] [test:RFC6581-9.2-06]
// [test:RFC6581-9.2-08] [test:RFC6581-9.2-09] [test:RFC6581-9.2-10]
#[test]
fn every_set_of_rtr_kinds_at_both_ends() {
    for asked in (1..8).map(kinds) {
        for supported in (1..8).map(kinds) {
            let with = |rtr| StartupConfig { rtr, ..StartupConfig::default() };
            let StartupDialogue { request, reply, initiator, responder, terminate } =
                dialogue(&with(asked), &with(supported));
            let (request, reply) = (request.enhanced.unwrap(), reply.enhanced.unwrap());
            assert!(request.peer_to_peer && reply.peer_to_peer);
            assert_eq!(RtrKinds::from(request), asked);
            assert!(initiator.peer_to_peer && responder.peer_to_peer);
            assert_eq!(
                (initiator.rtr_kinds, responder.rtr_kinds),
                (RtrKinds::from(reply), RtrKinds::from(reply))
            );
            let common = asked.intersect(supported);
            if common.is_empty() {
                assert_eq!(RtrKinds::from(reply), supported, "it has to offer something");
                assert_eq!(terminate, Some(StartupRefusal::NoMatchingRtr));
                continue;
            }
            assert_eq!((RtrKinds::from(reply), terminate), (common, None));
            let rtr = initiator.rtr.unwrap();
            assert!(common.contains(rtr));
            let order = [Rtr::Write, Rtr::Read, Rtr::Send];
            assert_eq!(Some(rtr), order.into_iter().find(|rtr| common.contains(*rtr)));
            assert!(responder.rtr.is_none_or(|expected| expected == rtr));
        }
    }
}

/// A Read as RTR uses one of the initiator's ORD and one of the responder's IRD.
// [test:RFC6581-9.1-03]
#[test]
fn read_rtr_needs_credit() {
    let (read, read_or_send) = (kinds(2), kinds(6));
    let with = |rtr, ird, ord| StartupConfig { rtr, ird, ord, ..StartupConfig::default() };

    // With an ORD of 0, the Request does not contain Read, and Read must not be the only kind.
    assert_eq!(Initiator::new(with(read, 8, 0), b"").unwrap_err(), ConfigError::NoRtrKind);
    let StartupDialogue { request, initiator, .. } =
        dialogue(&with(read_or_send, 8, 0), &with(read_or_send, 8, 8));
    assert_eq!(RtrKinds::from(request.enhanced.unwrap()), kinds(4));
    assert_eq!(initiator.rtr, Some(Rtr::Send));

    // With an IRD of 0, the responder offers another kind, or allows the one Read.
    let StartupDialogue { reply, initiator, .. } =
        dialogue(&with(read_or_send, 8, 8), &with(read_or_send, 0, 8));
    assert_eq!(
        (RtrKinds::from(reply.enhanced.unwrap()), initiator.rtr),
        (kinds(4), Some(Rtr::Send))
    );
    let StartupDialogue { reply, initiator, responder, .. } =
        dialogue(&with(read, 8, 8), &with(read, 0, 8));
    assert_eq!((reply.enhanced.unwrap().ird, responder.ird, initiator.ord), (1, 1, 1));
    assert_eq!((initiator.rtr, responder.rtr), (Some(Rtr::Read), Some(Rtr::Read)));

    // The responder offers a Read although its IRD is 0.
    let enhanced =
        Enhanced { peer_to_peer: true, rtr_read: true, ird: 0, ord: 0, ..Enhanced::default() };
    let (_, terminate) = accepted(&StartupConfig::default(), &bare_reply(2, Some(enhanced)));
    assert_eq!(terminate, Some(StartupRefusal::NoMatchingRtr));
}

// [test:RFC6581-9.2-12] [test:RFC6581-9.2-13] [test:RFC6581-9.2-14] [test:RFC6581-9.2-15]
#[test]
fn client_server_model() {
    let config = StartupConfig { peer_to_peer: false, ..StartupConfig::default() };
    for passive in [
        StartupConfig::default(),
        config.clone(),
        StartupConfig { rtr: RtrKinds::NONE, ..config.clone() },
    ] {
        let StartupDialogue { request, reply, initiator, responder, terminate } =
            dialogue(&config, &passive);
        for frame in [request, reply] {
            let Enhanced { peer_to_peer, rtr_send, rtr_write, rtr_read, .. } =
                frame.enhanced.unwrap();
            assert_eq!([peer_to_peer, rtr_send, rtr_write, rtr_read], [false; 4]);
        }
        assert_eq!((initiator.rtr, responder.rtr, terminate), (None, None, None));
        assert!(!initiator.peer_to_peer && !responder.peer_to_peer);
    }
    // B, C and D have no meaning if A is 0, in a Request and in a Reply.
    let stray = Enhanced {
        rtr_send: true,
        rtr_write: true,
        rtr_read: true,
        ird: 8,
        ord: 8,
        peer_to_peer: false,
    };
    let mut responder = Responder::new(StartupConfig::default());
    let request = Frame { kind: FrameKind::Request, ..bare_reply(2, Some(stray)) }.emit();
    let (_, request) = responder.request(&request).unwrap().unwrap();
    let (reply, negotiated) = responder.accept(&request, &StartupConfig::default(), b"").unwrap();
    assert_eq!(reply[20..], [0, 128, 0, 8]);
    assert_eq!((negotiated.peer_to_peer, negotiated.rtr), (false, None));
    let (negotiated, terminate) = accepted(&StartupConfig::default(), &bare_reply(2, Some(stray)));
    assert_eq!((negotiated.peer_to_peer, negotiated.rtr, terminate), (false, None, None));
}

// [test:RFC6581-9.2-03]
#[test]
fn responder_supports_some_rtr() {
    let mut responder = Responder::new(StartupConfig::default());
    let request = Initiator::new(StartupConfig::default(), b"").unwrap().request();
    let (_, request) = responder.request(&request).unwrap().unwrap();
    let none = StartupConfig { rtr: RtrKinds::NONE, ..StartupConfig::default() };
    assert_eq!(responder.accept(&request, &none, b"").unwrap_err(), ConfigError::NoRtrKind);
    assert_eq!(Initiator::new(none, b"").unwrap_err(), ConfigError::NoRtrKind);
}

// ---------------------------------------------------------------- rejection

// [test:RFC5044-7.1.2-05a] [test:RFC5044-7.1.2-05b] [test:RFC5044-7.1.2-14] [test:RFC6581-9.1-05]
#[test]
fn rejection_has_private_data_and_depths() {
    for revision in [Revision::One, Revision::Two] {
        for want_markers in [false, true] {
            let config = StartupConfig {
                revision,
                want_markers,
                ird: 4,
                ord: 4,
                ..StartupConfig::default()
            };
            let initiator = Initiator::new(config, b"let me in").unwrap();
            let mut responder =
                Responder::new(StartupConfig { ird: 2, ord: 64, ..StartupConfig::default() });
            let (_, request) = responder.request(&initiator.request()).unwrap().unwrap();
            let reply = responder.reject(&request, b"go away").unwrap();
            let (consumed, outcome) = initiator.reply(&reply).unwrap().unwrap();
            assert_eq!(consumed, reply.len());
            assert_eq!(reply[16] & 0xA0, 0x20, "R, and no Markers");
            let Outcome::Rejected { enhanced, private_data, revision: got, markers_asked } =
                outcome
            else {
                panic!("{outcome:?}")
            };
            assert_eq!(
                (&private_data[..], got, markers_asked),
                (&b"go away"[..], revision as u8, want_markers)
            );
            let depths = enhanced.map(|enhanced| (enhanced.ird, enhanced.ord));
            assert_eq!(depths, (revision == Revision::Two).then_some((2, 64)));
        }
    }
}

/// The flag C of a rejection is the same as it would be in an acceptance.
#[test]
fn rejection_sets_crc_flag() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let initiator = Initiator::new(StartupConfig { crc: theirs, ..plain() }, b"").unwrap();
        let mut responder = Responder::new(StartupConfig { crc: ours, ..plain() });
        let (_, request) = responder.request(&initiator.request()).unwrap().unwrap();
        let reply = responder.reject(&request, b"").unwrap();
        assert_eq!(reply[16] & 0x40 != 0, ours || theirs);
    }
}

#[test]
fn request_options_reported_to_ulp() {
    let config = StartupConfig { ird: 7, ord: 300, ..StartupConfig::default() };
    let ask = |config: StartupConfig| {
        let bytes = Initiator::new(config, b"").unwrap().request();
        Responder::new(StartupConfig::default()).request(&bytes).unwrap().unwrap().1
    };
    let request = ask(config.clone());
    assert_eq!((request.ird(), request.ord(), request.revision()), (Some(7), Some(300), 2));
    let request = ask(StartupConfig { revision: Revision::One, ..config });
    assert_eq!((request.ird(), request.ord(), request.revision()), (None, None, 1));
}

/// The bit of S is reserved before revision 2.
#[test]
fn reserved_bits_by_revision() {
    for (revision, bits) in [(0, 0x1F), (1, 0x1F), (2, 0x0F)] {
        let frame = Frame { reserved: bits, ..bare_reply(revision, None) };
        let (parsed, _) = Frame::parse(&frame.emit()).unwrap().unwrap();
        assert_eq!(parsed, frame);
    }
}

/// An IRD of 0 is increased only if a Read is the only RTR kind.
// [test:RFC6581-9.1-03]
#[test]
fn zero_ird_kept_without_read_rtr() {
    for (asked, expected) in [
        (RtrKinds { write: true, ..RtrKinds::NONE }, 0),
        (RtrKinds { read: true, ..RtrKinds::NONE }, 1),
    ] {
        let initiator = StartupConfig { rtr: asked, ..StartupConfig::default() };
        let responder = StartupConfig { ird: 0, ..StartupConfig::default() };
        assert_eq!(dialogue(&initiator, &responder).responder.ird, expected, "{asked:?}");
    }
}

#[test]
fn descriptions_of_frames() {
    let frame = Frame {
        enhanced: Some(Enhanced {
            peer_to_peer: true,
            rtr_read: true,
            ird: 3,
            ord: 4,
            ..Enhanced::default()
        }),
        reserved: 8,
        ..bare_reply(2, None)
    };
    let words =
        "MPA Reply rev 2 M=0 C=1 R=0 S=1 A=1 B=0 C=0 D=1 IRD=3 ORD=4 Res=0x08 private data 0 bytes";
    assert_eq!(frame.to_string(), words);
    let plain = Frame { private_data: b"abc".to_vec(), ..bare_reply(1, None) };
    assert_eq!(plain.to_string(), "MPA Reply rev 1 M=0 C=1 R=0 private data 3 bytes");
}

/// A peer that follows the RDMA Consortium's specifications always asks for CRCs. So they are on,
/// even if this end does not ask for them.
// [test:RFC5044-C.1-02]
#[test]
fn consortium_peer_gets_crcs() {
    let mut responder = Responder::new(StartupConfig { crc: false, ..StartupConfig::default() });
    let frame = Frame { kind: FrameKind::Request, ..bare_reply(0, None) };
    let (_, request) = responder.request(&frame.emit()).unwrap().unwrap();
    let (reply, negotiated) = responder
        .accept(&request, &StartupConfig { crc: false, ..StartupConfig::default() }, b"")
        .unwrap();
    assert!(negotiated.crc && reply[16] & 0x40 != 0);
    assert_eq!(reply[17], 0);
}

// [test:RFC5044-4.4-03]
#[test]
fn crcs_preferred_by_default() {
    for revision in [Revision::One, Revision::Two] {
        let request =
            |config: StartupConfig| Initiator::new(config, b"").unwrap().request()[16] & 0x40 != 0;
        assert!(request(StartupConfig { revision, ..StartupConfig::default() }));
        assert!(!request(StartupConfig { revision, crc: false, ..StartupConfig::default() }));
    }
}

/// The reason for the rejection may be the revision or the enhanced data.
#[test]
fn rejection_in_other_revision_accepted() {
    for revision in [0, 1, 2] {
        let reply = Frame { reject: true, ..bare_reply(revision, None) };
        let outcome = answered(&StartupConfig::default(), &reply);
        assert!(matches!(outcome, Ok(Outcome::Rejected { revision: got, .. }) if got == revision));
    }
}

// ---------------------------------------------------------------- whatever comes

proptest! {
    #[test]
    fn garbage_after_key(bytes in prop::collection::vec(any::<u8>(), 0..600), reply: bool, good_key: bool) {
        let key = if !good_key { &[][..] } else if reply { &KEY_REPLY[..] } else { &KEY_REQUEST[..] };
        let input = [key, &bytes].concat();
        if let Ok(Some((frame, consumed))) = Frame::parse(&input) {
            prop_assert!(consumed <= input.len());
            prop_assert_eq!(frame.emit(), &input[..consumed]);
        }
        let initiator = Initiator::new(StartupConfig::default(), b"").unwrap();
        if let Ok(Some((consumed, _))) = initiator.reply(&input) {
            prop_assert!(consumed <= input.len());
        }
        let mut responder = Responder::new(StartupConfig::default());
        if let Ok(Some((consumed, request))) = responder.request(&input) {
            prop_assert!(consumed <= input.len());
            let (reply, _) = responder.accept(&request, &StartupConfig::default(), b"").unwrap();
            prop_assert!(Frame::parse(&reply).unwrap().is_some());
        }
    }
}

/// Returns the flags byte of a startup frame.
fn flags(frame: &[u8]) -> u8 {
    frame[16]
}

#[test]
fn siw_flag_returned_on_request() {
    for (initiator_on, responder_on) in [(false, false), (true, false), (false, true), (true, true)]
    {
        let with = |siw_gso| StartupConfig { siw_gso, ..StartupConfig::default() };
        let request = Initiator::new(with(initiator_on), &[]).unwrap().request();
        assert_eq!(flags(&request) & 0x0F, if initiator_on { 0x08 } else { 0 });
        let mut responder = Responder::new(with(responder_on));
        let (_, asked) = responder.request(&request).unwrap().unwrap();
        let (reply, _) = responder.accept(&asked, &with(responder_on), &[]).unwrap();
        assert_eq!(flags(&reply) & 0x0F, if initiator_on && responder_on { 0x08 } else { 0 });
        // A rejection negotiates nothing.
        assert_eq!(flags(&responder.reject(&asked, &[]).unwrap()) & 0x0F, 0);
    }
}

#[test]
fn only_siw_reserved_bit_returned() {
    let mut request = Initiator::new(StartupConfig::default(), &[]).unwrap().request();
    request[16] |= 0x0F;
    let config = StartupConfig { siw_gso: true, ..StartupConfig::default() };
    let mut responder = Responder::new(config.clone());
    let (_, asked) = responder.request(&request).unwrap().unwrap();
    let (reply, _) = responder.accept(&asked, &config, &[]).unwrap();
    assert_eq!(flags(&reply) & 0x0F, 0x08);
}
