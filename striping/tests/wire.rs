//! The formats of docs/striping.md.

use proptest::prelude::*;
use uiw_striping::wire::{
    Header, HeaderError, JOIN_LEN, Join, JoinError, Kind, MESSAGE_HEADER_LEN, Reason, Reply, Request,
};

const REQUEST: Request =
    Request { stripes: 5, index: 4, generation: 0x0102_0304, token: *b"sixteen secrets!", delivered: 0x0506 };

fn request() -> Vec<u8> {
    Join::Request(REQUEST).emit(b"program")
}

#[test]
fn the_fields_of_a_request_are_where_the_definition_has_them() {
    let bytes = request();
    assert_eq!(JOIN_LEN, 36);
    assert_eq!(bytes[..4], 0x7569_7753_u32.to_be_bytes());
    assert_eq!(bytes[4..8], [1, 1, 5, 4]);
    assert_eq!(bytes[8..12], [1, 2, 3, 4]);
    assert_eq!(bytes[12..28], *b"sixteen secrets!");
    assert_eq!(bytes[28..36], [0, 0, 0, 0, 0, 0, 5, 6]);
    assert_eq!(bytes[36..], *b"program");
    assert_eq!(Join::parse(&bytes), Ok((Join::Request(REQUEST), &b"program"[..])));
}

#[test]
fn a_reply_and_a_rejection_have_no_token() {
    let reply = Join::Reply(Reply { stripes: 5, index: 4, generation: 7, delivered: 9 }).emit(b"");
    assert_eq!(reply[4..8], [1, 2, 5, 4]);
    assert_eq!(reply[12..28], [0; 16]);
    let reasons = [
        Reason::Version,
        Reason::Unknown,
        Reason::Stale,
        Reason::Mismatch,
        Reason::Identity,
        Reason::Busy,
        Reason::Closed,
    ];
    for (reason, code) in reasons.into_iter().zip(1..) {
        let mut bytes = Join::Rejection(reason).emit(b"");
        assert_eq!(bytes[4..12], [1, 3, code, 0, 0, 0, 0, 0]);
        // That of a peer with another version is understood.
        bytes[4] = 2;
        assert_eq!(Join::parse(&bytes), Ok((Join::Rejection(reason), &b""[..])));
    }
}

#[test]
fn private_data_that_breaks_a_rule_is_refused() {
    let with = |at: usize, byte: u8| {
        let mut bytes = request();
        bytes[at] = byte;
        Join::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(Join::parse(&request()[..35]), Err(JoinError::Foreign));
    assert_eq!(with(0, 0), JoinError::Foreign);
    assert_eq!(with(4, 2), JoinError::Version(2));
    assert_eq!(with(5, 0), JoinError::Kind(0));
    assert_eq!(with(6, 0), JoinError::Stripes(0));
    assert_eq!(with(6, 65), JoinError::Stripes(65));
    assert_eq!(with(7, 5), JoinError::Index { index: 5, stripes: 5 });
}

#[test]
fn the_fields_of_a_message_are_where_the_definition_has_them() {
    let bytes = |kind, number| Header { kind, number }.emit();
    assert_eq!(bytes(Kind::Send, 2), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(bytes(Kind::SendImm(7), 2), [2, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2]);
    let notice = Kind::WriteNotice { imm: 7, len: 0x102 };
    assert_eq!(bytes(notice, 2), [3, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1, 2]);
    assert_eq!(bytes(Kind::Close, 2), [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(bytes(Kind::Abort, 0), [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let dead = Kind::Dead { index: 3, generation: 4 };
    assert_eq!(bytes(dead, 0), [6, 3, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes(Kind::Closed, 0), [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(MESSAGE_HEADER_LEN, 16);
}

#[test]
fn messages_that_break_a_rule_are_refused() {
    let parse = |bytes: &[u8]| Header::parse(bytes).map(|_| ()).unwrap_err();
    let send = Header { kind: Kind::Send, number: 1 }.emit();
    assert_eq!(parse(&send[..15]), HeaderError::Short(15));
    let with = |at: usize, byte: u8| {
        let mut bytes = send.clone();
        bytes[at] = byte;
        parse(&bytes)
    };
    assert_eq!(with(0, 0), HeaderError::Kind(0));
    assert_eq!(with(0, 8), HeaderError::Kind(8));
    for at in 1..8 {
        assert_eq!(with(at, 1), HeaderError::NotZero(1), "byte {at}");
    }
    assert_eq!(with(15, 0), HeaderError::Number { number: 0, kind: 1 });
    assert_eq!(with(0, 5), HeaderError::Number { number: 1, kind: 5 });
    assert_eq!(with(0, 3), HeaderError::Short(16));
    let mut close = Header { kind: Kind::Close, number: 1 }.emit();
    close.push(0);
    assert_eq!(parse(&close), HeaderError::Payload { len: 1, kind: 4 });
}

proptest! {
    #[test]
    fn what_was_parsed_is_emitted_alike(bytes in proptest::collection::vec(any::<u8>(), 0..64), kind in 0u8..9) {
        let mut join = request();
        let len = join.len().min(bytes.len());
        join[8..len.max(8)].copy_from_slice(&bytes[8.min(len)..len]);
        for bytes in [&bytes, &join] {
            if let Ok((parsed, rest)) = Join::parse(bytes)
                && !matches!(parsed, Join::Rejection(_))
            {
                let again = parsed.emit(rest);
                prop_assert_eq!(Join::parse(&again), Ok((parsed, rest)));
            }
        }
        let mut message = bytes;
        if let [first, a, b, c, ..] = &mut message[..] {
            (*first, *a, *b, *c) = (kind, if kind == 6 { *a } else { 0 }, 0, 0);
        }
        if let Ok((header, payload)) = Header::parse(&message) {
            let mut again = header.emit();
            again.extend_from_slice(payload);
            prop_assert_eq!(again, message);
        }
    }
}
