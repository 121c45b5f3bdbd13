use proptest::prelude::*;

use super::*;

/// The byte order of the host that captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteOrder {
    Big,
    Little,
}

fn packets(file: &[u8]) -> Result<Vec<Packet>, Error> {
    let mut reader = Reader::new(file)?;
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet()? {
        packets.push(packet);
    }
    Ok(packets)
}

fn classic(order: ByteOrder, magic: u32, bytes: &[u8]) -> Vec<u8> {
    let u32 = |n: u32| match order {
        ByteOrder::Big => n.to_be_bytes(),
        ByteOrder::Little => n.to_le_bytes(),
    };
    let length = u32::try_from(bytes.len()).unwrap();
    let fields = [magic, 0, 0, 0, 65_535, 1, 7, 5, length, length];
    let mut file: Vec<u8> = fields.into_iter().flat_map(u32).collect();
    file.extend(bytes);
    file
}

/// A block in either byte order.
fn block(order: ByteOrder, kind: u32, body: &[u8]) -> Vec<u8> {
    let u32 = |n: u32| match order {
        ByteOrder::Big => n.to_be_bytes(),
        ByteOrder::Little => n.to_le_bytes(),
    };
    let padded = body.len().next_multiple_of(4);
    let total = u32::try_from(padded + 12).unwrap();
    let mut out = [u32(kind), u32(total)].concat();
    out.extend(body);
    out.resize(8 + padded, 0);
    out.extend(u32(total));
    out
}

fn numbers(order: ByteOrder, numbers: &[u32]) -> Vec<u8> {
    let number = |n: &u32| match order {
        ByteOrder::Big => n.to_be_bytes(),
        ByteOrder::Little => n.to_le_bytes(),
    };
    numbers.iter().flat_map(number).collect()
}

fn section(order: ByteOrder) -> Vec<u8> {
    block(order, 0x0a0d_0d0a, &numbers(order, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]))
}

fn interface(order: ByteOrder, link: u16, options: &[u8]) -> Vec<u8> {
    let mut body = match order {
        ByteOrder::Big => link.to_be_bytes(),
        ByteOrder::Little => link.to_le_bytes(),
    }
    .to_vec();
    body.extend([0; 6]);
    body.extend(options);
    block(order, 1, &body)
}

#[test]
fn classic_in_all_four_forms() {
    for order in [ByteOrder::Big, ByteOrder::Little] {
        for (magic, fraction) in [(0xa1b2_c3d4, 5000), (0xa1b2_3c4d, 5)] {
            let packets = packets(&classic(order, magic, b"abc")).unwrap();
            let time = Some(7_000_000_000 + fraction);
            let bytes = b"abc".to_vec();
            assert_eq!(
                packets,
                [Packet { time, link: LinkType::ETHERNET, bytes, original_length: 3 }]
            );
        }
    }
}

#[test]
fn classic_in_the_modified_form() {
    let mut file = classic(ByteOrder::Little, 0xa1b2_cd34, b"abc");
    // Interface 2, protocol 8, packet type 4.
    file.splice(40..40, [2, 0, 0, 0, 0, 8, 4, 0]);
    let packets = packets(&file).unwrap();
    let (time, bytes) = (Some(7_000_005_000), b"abc".to_vec());
    assert_eq!(packets, [Packet { time, link: LinkType::ETHERNET, bytes, original_length: 3 }]);
}

#[test]
fn pcapng_with_two_interfaces_and_two_sections() {
    for order in [ByteOrder::Big, ByteOrder::Little] {
        let mut file = section(order);
        file.extend(interface(order, 1, &[]));
        // if_tsresol 10^-9, and if_tsoffset of one second.
        let option = match order {
            ByteOrder::Big => [0, 9, 0, 1, 9, 0, 0, 0, 0, 14, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1],
            ByteOrder::Little => [9, 0, 1, 0, 9, 0, 0, 0, 14, 0, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        };
        file.extend(interface(order, 101, &option));
        let packet =
            |interface, time| [&numbers(order, &[interface, 0, time, 2, 2])[..], b"xy"].concat();
        file.extend(block(order, 6, &packet(0, 3)));
        file.extend(block(order, 0x0bad, b"unknown block"));
        file.extend(block(order, 6, &packet(1, 3)));
        file.extend(block(order, 3, &[&numbers(order, &[3])[..], b"zzz"].concat()));
        let other = if order == ByteOrder::Big { ByteOrder::Little } else { ByteOrder::Big };
        file.extend(section(other));
        file.extend(interface(other, 113, &[]));
        file.extend(block(other, 3, &[&numbers(other, &[1])[..], b"q"].concat()));
        let seen: Vec<_> =
            packets(&file).unwrap().into_iter().map(|p| (p.time, p.link.0, p.bytes)).collect();
        let expected = [
            (Some(3000), 1, b"xy".to_vec()),
            (Some(1_000_000_003), 101, b"xy".to_vec()),
            (None, 1, b"zzz".to_vec()),
            (None, 113, b"q".to_vec()),
        ];
        assert_eq!(seen, expected);
    }
}

#[test]
fn cut_file_reports_position() {
    let file = classic(ByteOrder::Little, 0xa1b2_c3d4, b"abcdef");
    let error = packets(&file[..file.len() - 1]).unwrap_err();
    assert_eq!(error.to_string(), "the file ends inside the packet that begins at byte 24");
}

#[test]
fn non_captures_rejected() {
    assert!(matches!(packets(b""), Err(Error::NotACapture(_))));
    assert!(matches!(packets(b"#!/bin/sh\n"), Err(Error::NotACapture(_))));
    assert!(matches!(packets(b"\x1f\x8b\x08\x00"), Err(Error::Compressed("gzip"))));
}

#[test]
fn missing_interface_description_rejected() {
    let mut file = section(ByteOrder::Big);
    file.extend(block(ByteOrder::Big, 6, &numbers(ByteOrder::Big, &[0, 0, 0, 0, 0])));
    assert!(matches!(packets(&file), Err(Error::Interface { interface: 0, .. })));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400), magic in 0..6_usize) {
        let magic: &[u8] = [
            &[][..], &[0xa1, 0xb2, 0xc3, 0xd4], &[0x4d, 0x3c, 0xb2, 0xa1], &[0x0a, 0x0d, 0x0d, 0x0a],
            &[0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d],
            &[0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a],
        ][magic];
        let _ = packets(&[magic, &bytes].concat());
    }
}
