//! Tests how messages are divided into segments (RFC 5041 sections 4 and 5.2) in each of the ways
//! in which the engine builds them: small messages in bursts, runs from one piece of memory,
//! several pieces, and memory that is sent in place.

use crate::common::{End, fill, pattern, plain, responder_opt};
use crate::peer::{Peer, untagged};
use uiw_ddp::{Header, STag};
use uiw_rdmap::{Opcode, ReadRequest};
use uiw_verbs::{Access, Error, FpduSize, Memory, Remote, SendFlags, SendOp, Sge};

/// Reads one message and checks the position in each of its segments. `first` is the TO or the MO
/// of the first byte.
fn check_message(peer: &mut Peer, opcode: Opcode, mulpdu: usize, first: u64, bytes: &[u8]) {
    let what = format!("{opcode} of {} bytes, MULPDU {mulpdu}", bytes.len());
    let mut at = 0;
    loop {
        let segment = peer.next().expect("a segment");
        assert_eq!(segment.opcode(), opcode, "{what}");
        assert!(segment.ulpdu.len() <= mulpdu, "{what}: a segment of {}", segment.ulpdu.len());
        let offset = match segment.header {
            Header::Tagged(header) => header.to,
            Header::Untagged(header) => header.mo.into(),
        };
        assert_eq!(offset, first + at as u64, "{what}");
        let payload = segment.payload();
        assert!(payload.len() <= bytes.len() - at, "{what}: more than was posted");
        assert!(payload == &bytes[at..at + payload.len()], "{what}: at {at}");
        assert!(!payload.is_empty() || bytes.is_empty(), "{what}: a segment without bytes");
        at += payload.len();
        assert_eq!(segment.header.last(), at == bytes.len(), "{what}: L at {at}");
        if segment.header.last() {
            return;
        }
    }
}

/// Returns lengths around multiples of the payload of a segment with a header of 14 or 18 bytes.
fn lengths(mulpdu: usize) -> Vec<usize> {
    let mut lengths = vec![0, 1, 7];
    for room in [mulpdu - uiw_ddp::Tagged::LEN, mulpdu - uiw_ddp::Untagged::LEN] {
        lengths.extend([
            room - 1,
            room,
            room + 1,
            2 * room - 1,
            2 * room,
            2 * room + 1,
            3 * room + 5,
        ]);
    }
    lengths
}

// [test:RFC5041-4.1-03] [test:RFC5041-4.1-04] [test:RFC5041-4.1-05] [test:RFC5041-4.1-06] [test:RFC5041-4.3-13]
// [test:RFC5041-5.2-01a] [test:RFC5041-5.2-01b] [test:RFC5041-5.2-03] [test:RFC5041-5.2-05] [test:RFC5041-5.2-07]
// [test:RFC5041-5.2-08] [test:RFC5041-5.3-03] [test:RFC5040-5.1-09] [test:RFC5040-5.3-09]
#[test]
fn segments_cover_message_in_order() {
    for (mulpdu, exclusive) in [(300, false), (300, true), (12_000, false), (12_000, true)] {
        let end = End::new();
        let len = 4 * mulpdu;
        let data = pattern(len);
        let memory = Memory::owned(len).unwrap();
        let base = memory.as_ptr() as u64;
        // SAFETY: the posted memory is only read, and nothing else writes to it in the meantime.
        let memory = if exclusive { unsafe { memory.exclusive() } } else { memory };
        let mr = end.pd.register_raw(memory, base, Access::LOCAL_WRITE).unwrap();
        fill(&mr, 0, &data);
        fill(&end.mr, 0, &data);
        let mut peer = responder_opt(&end, &plain().fpdu(FpduSize::Fixed(mulpdu as u16)));
        let mut asked = 0;
        for (id, len) in lengths(mulpdu).into_iter().enumerate() {
            let whole = [(0, len)];
            let pieces = [(0, len / 3), (len / 3, len / 2 - len / 3), (len / 2, len - len / 2)];
            for cut in [&whole[..], &pieces[..]] {
                let sges: Vec<Sge> = cut
                    .iter()
                    .map(|(at, len)| Sge {
                        addr: base + *at as u64,
                        length: *len as u32,
                        lkey: mr.lkey(),
                    })
                    .collect();
                let to = 0x1_0000_0003;
                let write = SendOp::Write { remote: Remote { addr: to, rkey: STag(9) } };
                end.post(id as u64, write, &sges, SendFlags::SIGNALED).unwrap();
                check_message(&mut peer, Opcode::Write, mulpdu, to, &data[..len]);
                end.sent_ok(id as u64);
                end.post(id as u64, SendOp::Send, &sges, SendFlags::SIGNALED).unwrap();
                check_message(&mut peer, Opcode::Send, mulpdu, 0, &data[..len]);
                end.sent_ok(id as u64);
            }
            asked += 1;
            let request = ReadRequest {
                sink_stag: STag(3),
                sink_to: 0xFFFF_0001,
                len: len as u32,
                source_stag: end.mr.rkey(),
                source_to: end.mr.addr(),
            };
            peer.fpdu(&untagged(Opcode::ReadRequest, 1, asked, 0, true, 0, &request.emit()));
            check_message(&mut peer, Opcode::ReadResponse, mulpdu, 0xFFFF_0001, &data[..len]);
        }
    }
}

// [test:RFC5041-5.2-02]
#[test]
fn message_of_4_gib_rejected() {
    let end = End::new();
    let mut peer = responder_opt(&end, &plain());
    let half = Sge { length: 1 << 31, ..end.sge(0, 0) };
    for op in [SendOp::Send, SendOp::Write { remote: Remote::default() }] {
        let error = end.post(1, op, &[half; 2], SendFlags::SIGNALED).unwrap_err().error;
        assert!(matches!(error, Error::MessageTooLong { given: 0x1_0000_0000 }), "{error:?}");
    }
    end.send(2, 0, 3);
    check_message(&mut peer, Opcode::Send, 2000, 0, &[0; 3]);
}
