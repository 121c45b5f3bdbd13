//! Tests that damaged captures do not cause panics.

use proptest::prelude::*;
use uiw_decode::{self as decode, DecodeConfig};

use crate::packets::{Link, capture_of, decode as findings, file_of, segments_of};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn corrupted_captures_do_not_panic(
        file in prop::sample::select(vec![
            "vectors/vectors.pcap", "vectors/quirks.pcap", "siw/tool-oobwrite-crc.pcap", "siw/write-bw-64k.pcapng",
        ]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        let mut bytes = file_of(file);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = decode::decode(bytes.as_slice(), &mut |_| {});
    }

    /// The TCP headers stay intact, so that the damage reaches MPA, DDP and RDMAP.
    #[test]
    fn corrupted_streams_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..30),
        drops in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let mut segments = segments_of("vectors/vectors.pcap");
        for (which, at, byte) in changes {
            let payload = &mut which.get_mut(&mut segments).payload;
            if !payload.is_empty() {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
        }
        for which in drops {
            segments.remove(which.index(segments.len()));
        }
        let _ = findings(&capture_of(&segments, Link::Ethernet));
    }
}

#[test]
fn non_capture_reported_in_one_line() {
    let file = std::env::temp_dir().join(format!("uiw-no-capture-{}", std::process::id()));
    std::fs::write(&file, "text").unwrap();
    let args = DecodeConfig { files: vec![file.clone()], ..DecodeConfig::default() };
    let error = decode::decode_to(&args, &mut Vec::new()).unwrap_err().1.to_string();
    std::fs::remove_file(&file).unwrap();
    assert!(error.starts_with("not a packet capture"), "{error}");
    assert_eq!(error.lines().count(), 1);
    let error = decode::decode_to(&args, &mut Vec::new()).unwrap_err().1.to_string();
    assert!(error.contains("No such file"), "{error}");
}

#[test]
fn truncated_capture_decoded_to_end() {
    let bytes = file_of("siw/rping-crc-on.pcap");
    let (_, summary) = findings(&bytes[..bytes.len() - 10]);
    assert!(summary.capture_error.is_some() && !summary.followed());
    assert_eq!(summary.fpdus, 21);
}
