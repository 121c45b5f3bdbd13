//! Startup of MPA: valid and invalid frames for both roles, and startups between two of our ends.

use uiw_mpa::startup::{
    Initiator, Negotiated, Outcome, Responder, Revision, RtrKinds, StartupConfig, StartupError,
    StartupRefusal,
};
use uiw_mpa::wire::startup::{
    Enhanced, Frame, FrameKind, HEADER_LEN, MAX_PRIVATE_DATA, NOT_NEGOTIATED,
};

use crate::input::Input;

/// Runs an input, which consists of two configurations and either a frame or a startup of two ends.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (ours, theirs) = (config(&mut input), config(&mut input));
    match input.u8() % 4 {
        0 => dialogue(&ours, &theirs, &mut input),
        1 => request(&ours, &theirs, &mut input),
        2 => reply(&ours, &mut input),
        _ => {
            let bytes = input.take(600);
            check_frame(bytes);
            let _ = Responder::new(ours).request(bytes);
        }
    }
}

fn config(input: &mut Input<'_>) -> StartupConfig {
    let bits = input.u8();
    let kinds = input.u8();
    let mut depth = || match input.u8() {
        255 => NOT_NEGOTIATED,
        254 => NOT_NEGOTIATED - 1,
        253 => 0x4000,
        other => other.into(),
    };
    StartupConfig {
        revision: if bits & 1 == 0 { Revision::Two } else { Revision::One },
        crc: bits & 2 == 0,
        want_markers: bits & 4 != 0,
        peer_to_peer: bits & 8 == 0,
        rtr: RtrKinds { write: kinds & 1 == 0, read: kinds & 2 == 0, send: kinds & 4 == 0 },
        ird: depth(),
        ord: depth(),
        siw_gso: bits & 16 != 0,
    }
}

/// Creates the bytes of a frame, which is usually well-formed.
fn bytes(kind: FrameKind, input: &mut Input<'_>) -> Vec<u8> {
    let bits = input.u8();
    let enhanced = (bits & 8 == 0).then(|| Enhanced::parse(input.u32().to_be_bytes()));
    let len = match input.u8() {
        0..=199 => input.below(40),
        200..=239 => input.below(MAX_PRIVATE_DATA - Enhanced::LEN + 1),
        _ => input.below(1000),
    };
    let frame = Frame {
        kind,
        markers: bits & 1 != 0,
        crc: bits & 2 == 0,
        reject: bits & 4 != 0,
        enhanced,
        reserved: if bits & 16 != 0 { input.u8() & 0x0F } else { 0 },
        revision: match input.u8() {
            0..=159 => 2,
            160..=219 => 1,
            220..=239 => 0,
            _ => input.u8(),
        },
        private_data: vec![input.u8(); len],
    };
    let mut bytes = frame.emit();
    for _ in 0..input.below(4) {
        let at = input.below(bytes.len().min(HEADER_LEN + 8));
        bytes[at] ^= input.u8();
    }
    if input.u8() >= 200 {
        bytes.truncate(input.below(bytes.len()));
    }
    // Bytes of Full Operation follow immediately.
    bytes.extend_from_slice(input.take(40));
    bytes
}

/// Returns the length of the frame if it is well-formed, by an independent implementation of RFC
/// 5044 section 7.1.1 and RFC 6581 section 9.
fn well_formed(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..HEADER_LEN)?;
    let key = header.starts_with(b"MPA ID Req Frame") || header.starts_with(b"MPA ID Rep Frame");
    let announced = usize::from(u16::from_be_bytes([header[18], header[19]]));
    let room_for_depths = header[17] < 2 || header[16] & 0x10 == 0 || announced >= 4;
    let whole = key && announced <= 512 && room_for_depths && bytes.len() >= HEADER_LEN + announced;
    whole.then_some(HEADER_LEN + announced)
}

/// Checks that `Frame::parse` agrees with [`well_formed`] and consumes no byte of Full Operation,
/// and that the decoded frame is encoded to the same bytes.
fn check_frame(bytes: &[u8]) {
    let parsed = Frame::parse(bytes);
    assert_eq!(
        parsed.as_ref().ok().and_then(Option::as_ref).map(|(_, used)| *used),
        well_formed(bytes)
    );
    match parsed {
        Ok(Some((frame, used))) => {
            assert_eq!(frame.emit(), bytes[..used], "{frame}");
            // Logs contain the text of received frames.
            let words = frame.to_string();
            assert_eq!(words.contains("S=1"), frame.enhanced.is_some());
            assert!(words.ends_with(&format!(" {} bytes", frame.private_data.len())), "{words}");
        }
        Ok(None) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Result of parsing: the number of consumed bytes and the value, or `None` if bytes are missing.
type ParseResult<T> = Result<Option<(usize, T)>, StartupError>;

/// Checks that the result does not depend on how the bytes arrive.
fn check_prefixes<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    judge: &mut dyn FnMut(&[u8]) -> ParseResult<T>,
) -> Option<(usize, T)> {
    let whole = judge(bytes);
    for len in (0..bytes.len()).filter(|len| *len < 48 || len + 4 > bytes.len() || len % 97 == 0) {
        match judge(&bytes[..len]) {
            Ok(None) => {}
            Ok(Some((used, decoded))) => {
                assert!(used <= len);
                assert_eq!(whole.as_ref(), Ok(&Some((used, decoded))), "decided after {len} bytes");
            }
            // With all bytes, the error may be the same one or a different one.
            Err(error) => assert!(whole.is_err(), "{error} after {len} bytes, and then {whole:?}"),
        }
    }
    whole.ok().flatten()
}

fn request(limits: &StartupConfig, config: &StartupConfig, input: &mut Input<'_>) {
    let bytes = bytes(FrameKind::Request, input);
    check_frame(&bytes);
    let mut responder = Responder::new(limits.clone());
    let judged = check_prefixes(&bytes, &mut |bytes| responder.request(bytes));
    let Some((used, request)) = judged else { return };
    assert_eq!(well_formed(&bytes), Some(used));
    assert!(bytes[..16] == *b"MPA ID Req Frame" && bytes[17] <= limits.revision as u8);
    let private_data = vec![7; input.below(600)];
    let responder = Responder::new(limits.clone());
    if let Ok((reply, negotiated)) = responder.accept(&request, config, &private_data) {
        check_reply(&bytes, &reply);
        assert_eq!(negotiated.crc, config.crc || bytes[16] & 0x40 != 0, "on if either end asks");
        assert_eq!(negotiated.markers_tx, bytes[16] & 0x80 != 0, "Markers as the peer says");
        assert_eq!(negotiated.markers_rx, config.want_markers);
        assert!(negotiated.ord <= config.ord);
    }
    if let Ok(reply) = responder.reject(&request, &private_data) {
        check_reply(&bytes, &reply);
        assert!(reply[16] & 0x20 != 0);
    }
}

/// Checks that the Reply is well-formed, and that its revision and S are those of the Request.
fn check_reply(request: &[u8], reply: &[u8]) {
    assert_eq!(well_formed(reply), Some(reply.len()));
    assert!(reply.starts_with(b"MPA ID Rep Frame"));
    assert_eq!(reply[17], request[17]);
    let enhanced = request[17] >= 2 && request[16] & 0x10 != 0;
    assert_eq!(reply[16] & 0x10 != 0, enhanced);
}

fn reply(config: &StartupConfig, input: &mut Input<'_>) {
    let Ok(initiator) = Initiator::new(config.clone(), &vec![3; input.below(600)]) else { return };
    check_frame(&initiator.request());
    let kind = if input.u8() == 255 { FrameKind::Request } else { FrameKind::Reply };
    let bytes = bytes(kind, input);
    check_frame(&bytes);
    let Some((used, outcome)) = check_prefixes(&bytes, &mut |bytes| initiator.reply(bytes)) else {
        return;
    };
    assert_eq!(well_formed(&bytes), Some(used));
    match outcome {
        Outcome::Rejected { .. } => assert!(bytes[16] & 0x20 != 0),
        Outcome::Accepted { negotiated, .. } => {
            assert!(bytes[16] & 0x20 == 0);
            assert_eq!(negotiated.crc, config.crc || bytes[16] & 0x40 != 0);
            assert_eq!(
                (negotiated.markers_tx, negotiated.markers_rx),
                (bytes[16] & 0x80 != 0, config.want_markers)
            );
            assert!(negotiated.ord <= config.ord && negotiated.ird == config.ird);
        }
    }
}

/// Performs a startup of two of our ends, and checks that they negotiate the same properties.
fn dialogue(one: &StartupConfig, two: &StartupConfig, input: &mut Input<'_>) {
    let Ok(initiator) = Initiator::new(one.clone(), &vec![1; input.below(513)]) else { return };
    let bytes = initiator.request();
    let mut responder = Responder::new(two.clone());
    let Ok(Some((used, request))) = responder.request(&bytes) else { return };
    assert_eq!(used, bytes.len());
    let Ok((bytes, at_two)) = responder.accept(&request, two, b"reply") else { return };
    let Ok(Some((used, Outcome::Accepted { negotiated: at_one, private_data, terminate, .. }))) =
        initiator.reply(&bytes)
    else {
        panic!("our own Reply is refused");
    };
    assert_eq!((used, &*private_data), (bytes.len(), &b"reply"[..]));
    agree((&at_one, one.ord), (&at_two, two.ord), terminate);
}

/// Checks the results of two ends, each with the ORD that it was configured with.
fn agree(
    (one, one_ord): (&Negotiated, u16),
    (two, two_ord): (&Negotiated, u16),
    terminate: Option<StartupRefusal>,
) {
    assert_eq!((one.revision, one.enhanced, one.crc), (two.revision, two.enhanced, two.crc));
    assert_eq!((one.markers_tx, one.markers_rx), (two.markers_rx, two.markers_tx));
    assert_eq!(one.peer_to_peer, two.peer_to_peer);
    if !one.enhanced || terminate.is_some() {
        return;
    }
    // RFC 6581 section 9.1: the ORD of an end must not exceed the IRD of the other end, unless the
    // end leaves that to the ULP.
    for (configured, asks, takes) in [(one_ord, one.ord, two.ird), (two_ord, two.ord, one.ird)] {
        assert!(asks <= takes || configured == NOT_NEGOTIATED, "{one:?} {two:?}");
    }
    if let Some(rtr) = one.rtr {
        assert!(two.rtr_kinds.contains(rtr), "{one:?} {two:?}");
    }
}
