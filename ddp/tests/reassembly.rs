//! Tests in which one end splits messages into segments and the other end reassembles them from the
//! bytes.

use proptest::prelude::*;
use uiw_ddp::{Header, STag, Tagged, Untagged, UntaggedError, UntaggedRx};

/// Part of a message that one segment carries.
struct Cut {
    offset: u32,
    len: u32,
    last: bool,
}

fn segments(total: u32, max_payload: u32) -> impl Iterator<Item = Cut> {
    (0..total.div_ceil(max_payload).max(1)).map(move |n| {
        let offset = n * max_payload;
        let len = max_payload.min(total - offset);
        Cut { offset, len, last: offset + len == total }
    })
}

/// Returns the segments of `message` as they are passed to the layer below.
fn untagged_segments(message: &[u8], msn: u32, max_payload: u32) -> Vec<Vec<u8>> {
    segments(message.len() as u32, max_payload)
        .map(|cut| {
            let header = Header::Untagged(Untagged {
                last: cut.last,
                rsvd_ulp: 0x43,
                rsvd_ulp32: 0,
                qn: 0,
                msn,
                mo: cut.offset,
            });
            let mut segment = vec![0; header.len()];
            header.emit(&mut segment);
            segment.extend_from_slice(&message[cut.offset as usize..][..cut.len as usize]);
            segment
        })
        .collect()
}

fn untagged(segment: &[u8]) -> (Untagged, &[u8]) {
    match Header::parse(segment).unwrap() {
        (Header::Untagged(header), len) => (header, &segment[len..]),
        (header, _) => panic!("{header:?}"),
    }
}

proptest! {
    // [test:RFC5041-4.3-08] [test:RFC5041-4.3-10] [test:RFC5041-5.3-07] [test:RFC5041-5.4-01]
    // [test:RFC5041-5.4-03]
    #[test]
    fn untagged_messages(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 1..8),
        max_payload in 1..200u32,
        first_msn in prop_oneof![Just(1), Just(u32::MAX - 2), any::<u32>()],
    ) {
        let mut queue = UntaggedRx::new(first_msn);
        for (n, message) in messages.iter().enumerate() {
            let msn = first_msn.wrapping_add(n as u32);
            let mut buffer = vec![0; message.len() + 3];
            let mut delivered = None;
            for segment in untagged_segments(message, msn, max_payload) {
                prop_assert!(delivered.is_none());
                let (header, payload) = untagged(&segment);
                let len = payload.len() as u32;
                let offset = queue.check(&header, len, Some(buffer.len() as u32)).unwrap();
                buffer[offset as usize..][..payload.len()].copy_from_slice(payload);
                delivered = queue.placed(&header, len);
            }
            let delivered = delivered.unwrap();
            prop_assert_eq!((delivered.msn, delivered.len as usize), (msn, message.len()));
            prop_assert_eq!(&buffer[..message.len()], &message[..]);
        }
    }

    /// If a segment is missing, sent twice or swapped with the next one, no wrong segment is
    /// placed.
    // [test:RFC5041-7.1-08] [test:RFC5041-7.1-10] [test:RFC5041-5.3-06]
    #[test]
    fn disorder_detected(count in 3..20u32, at in 0..19u32, how in 0..3) {
        let at = at % (count - 1);
        let mut stream: Vec<_> = (0..count).flat_map(|n| untagged_segments(&[7; 25], n + 1, 10)).collect();
        let at = at as usize;
        match how {
            0 => drop(stream.remove(at)),
            1 => stream.insert(at, stream[at].clone()),
            _ => stream.swap(at, at + 1),
        }
        let mut queue = UntaggedRx::new(1);
        let error = stream.iter().find_map(|segment| {
            let (header, payload) = untagged(segment);
            let len = payload.len() as u32;
            let checked = queue.check(&header, len, Some(25));
            queue.placed(&header, len);
            checked.err()
        });
        let found = matches!(error, Some(UntaggedError::MsnRange { .. } | UntaggedError::Mo { .. }));
        prop_assert!(found, "{error:?}");
    }

    /// The TO of each segment is the TO of the first one plus the length of the segments before it.
    /// STag and RsvdULP are the same in all segments.
    #[test]
    fn tagged_messages(message in prop::collection::vec(any::<u8>(), 0..400), max_payload in 1..100u32, base in 0..u64::MAX - 400) {
        let mut buffer = vec![0; message.len()];
        for cut in segments(message.len() as u32, max_payload) {
            let to = base + u64::from(cut.offset);
            let header = Tagged { last: cut.last, rsvd_ulp: 0x40, stag: STag(0xA5), to };
            let (parsed, len) = Header::parse(&header.emit()).unwrap();
            prop_assert_eq!((parsed, len), (Header::Tagged(header), Tagged::LEN));
            let at = (to - base) as usize;
            buffer[at..at + cut.len as usize].copy_from_slice(&message[cut.offset as usize..][..cut.len as usize]);
        }
        prop_assert_eq!(buffer, message);
    }

    #[test]
    fn garbage(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok((header, len)) = Header::parse(&bytes) {
            let mut out = [0; Header::MAX_LEN];
            prop_assert_eq!(header.emit(&mut out), len);
            // All bits except the reserved ones survive the round trip.
            prop_assert_eq!(out[0], bytes[0] & !0x3C);
            prop_assert_eq!(&out[1..len], &bytes[1..len]);
            if let Header::Untagged(header) = header {
                let _ = UntaggedRx::new(1).check(&header, 5, Some(64));
            }
        }
    }
}
