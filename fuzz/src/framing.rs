//! FPDUs, with and without Markers and CRCs, from a sender that makes errors, to a receiver that
//! gets the stream in pieces of any size. The target knows the expected results.

use uiw_mpa::rx::{FpduError, FpduRx, Step};
use uiw_mpa::tx::FpduTx;
use uiw_mpa::{MAX_ULPDU, crc32c};

use crate::input::Input;

/// Expected result of an FPDU at the receiver.
#[derive(Debug)]
enum ExpectedFpdu {
    /// Exactly this ULPDU.
    Ulpdu(Vec<u8>),
    /// A CRC error.
    Crc,
    /// A Marker error.
    Marker,
    /// No ULPDU may be delivered any more. The receiver may also wait for bytes that never arrive.
    Nothing,
    /// Any result, because the error cannot be detected without CRCs.
    Anything,
}

/// Stream, and the expected results of its FPDUs.
struct FramedSender {
    crc: bool,
    markers: bool,
    tx: FpduTx,
    bytes: Vec<u8>,
    due: Vec<ExpectedFpdu>,
}

/// Runs an input, which consists of the negotiated properties, FPDUs, and the lengths of the
/// pieces.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let bits = input.u8();
    let (crc, markers) = (bits & 1 == 0, bits & 2 == 0);
    let mut sender = FramedSender {
        crc,
        markers,
        tx: FpduTx::new(crc, markers),
        bytes: Vec::new(),
        due: Vec::new(),
    };
    let fpdus = input.below(12);
    for _ in 0..fpdus {
        sender.item(&mut input);
        if sender.is_uncertain() {
            break;
        }
    }
    let whole = receive(&sender, &mut |left| left);
    let cut = receive(&sender, &mut |left| match input.u8() {
        0 | 255 => left,
        1..=99 => 1,
        other => usize::from(other) * 3,
    });
    assert_eq!(whole, cut, "how the bytes are cut makes no difference");
    check(&sender.due, &whole);
}

impl FramedSender {
    /// Returns whether the results of further FPDUs are not known.
    fn is_uncertain(&self) -> bool {
        self.due.last().is_some_and(|due| !matches!(due, ExpectedFpdu::Ulpdu(_)))
    }

    fn item(&mut self, input: &mut Input<'_>) {
        let start = self.bytes.len();
        if input.u8() >= 250 {
            // These bytes are usually invalid, but there are exceptions: four bytes of ones, four
            // of zeros and four of ones are an FPDU with a correct CRC.
            self.bytes.extend_from_slice(input.take(64));
            self.due.push(ExpectedFpdu::Anything);
            return;
        }
        let len = match input.u8() {
            0..=9 if self.bytes.len() < 4096 => MAX_ULPDU - input.below(8),
            10..=99 => input.below(2000),
            other => usize::from(other) % 64,
        };
        let seed = input.u8();
        let ulpdu: Vec<u8> =
            (0..len).map(|n| (n as u8).wrapping_mul(7).wrapping_add(seed)).collect();
        let mut fpdu = vec![0, 0];
        fpdu.extend_from_slice(&ulpdu);
        self.tx.seal(&mut fpdu, 0);
        let due = match input.u8() {
            0..=179 => ExpectedFpdu::Ulpdu(ulpdu),
            180..=209 => self.flip(&mut fpdu, input),
            _ => self.forge(start, &mut fpdu, ulpdu, input),
        };
        self.bytes.extend_from_slice(&fpdu);
        self.due.push(due);
    }

    /// Returns the offset of ULPDU_Length in an FPDU that starts at `start` in the stream.
    fn lead(&self, start: usize) -> usize {
        if self.markers && start.is_multiple_of(512) { 4 } else { 0 }
    }

    /// Changes one byte of an FPDU, which makes its CRC wrong. Returns the expected result.
    fn flip(&self, fpdu: &mut [u8], input: &mut Input<'_>) -> ExpectedFpdu {
        let at = input.below(fpdu.len());
        let by = input.u8().max(1);
        fpdu[at] ^= by;
        if !self.crc {
            return ExpectedFpdu::Anything;
        }
        let lead = self.lead(self.bytes.len());
        // With a different length, the receiver takes other bytes for the FPDU, possibly more than
        // the stream has.
        if (lead..lead + 2).contains(&at) { ExpectedFpdu::Nothing } else { ExpectedFpdu::Crc }
    }

    /// Changes one byte of an FPDU and corrects its CRC. Returns the expected result.
    fn forge(
        &self,
        start: usize,
        fpdu: &mut [u8],
        mut ulpdu: Vec<u8>,
        input: &mut Input<'_>,
    ) -> ExpectedFpdu {
        let lead = self.lead(start);
        let markers: Vec<usize> =
            (0..fpdu.len()).filter(|at| self.markers && (start + at).is_multiple_of(512)).collect();
        if markers.is_empty() || input.bool() {
            // The byte is in the ULPDU, before any Marker that follows the length.
            let room = markers.iter().find(|at| **at > 0).copied().unwrap_or(fpdu.len()) - lead - 2;
            let at = input.below(room.min(ulpdu.len()));
            if let Some(byte) = ulpdu.get_mut(at) {
                *byte ^= 0x55;
                fpdu[lead + 2 + at] ^= 0x55;
            }
            self.vouch(fpdu);
            return ExpectedFpdu::Ulpdu(ulpdu);
        }
        let marker = input.pick(&markers);
        let (at, by) = (input.below(4), input.u8().max(1));
        fpdu[marker + at] ^= by;
        self.vouch(fpdu);
        // The reserved half is ignored, and the low two bits of FPDUPTR are taken as zero (RFC 5044
        // section 4.3).
        let said = match at {
            2 => true,
            3 => by & !0b11 != 0,
            _ => false,
        };
        if said { ExpectedFpdu::Marker } else { ExpectedFpdu::Ulpdu(ulpdu) }
    }

    fn vouch(&self, fpdu: &mut [u8]) {
        if self.crc {
            let covered = fpdu.len() - 4;
            let crc = crc32c(&fpdu[..covered]).to_le_bytes();
            fpdu[covered..].copy_from_slice(&crc);
        }
    }
}

/// Result of receiving a stream.
#[derive(Debug, PartialEq, Eq)]
struct ReceivedStream {
    ulpdus: Vec<Vec<u8>>,
    error: Option<FpduError>,
}

fn receive(sender: &FramedSender, cut: &mut dyn FnMut(usize) -> usize) -> ReceivedStream {
    let mut rx = FpduRx::new(sender.crc, sender.markers);
    let mut received = ReceivedStream { ulpdus: Vec::new(), error: None };
    let (mut buffer, mut rest) = (Vec::new(), &sender.bytes[..]);
    let mut wanted = 0;
    loop {
        let length = buffer.len();
        match rx.next(&mut buffer) {
            Ok(Step::Fpdu(fpdu)) => {
                assert!(length >= wanted, "an FPDU of fewer bytes than were said to be the least");
                assert!(fpdu.start + fpdu.ulpdu.len() <= fpdu.consumed);
                received.ulpdus.push(fpdu.ulpdu.to_vec());
                let consumed = fpdu.consumed;
                buffer.drain(..consumed);
                wanted = 0;
            }
            Ok(Step::NeedMore { at_least }) => {
                assert!(at_least > buffer.len(), "{at_least} bytes are there");
                wanted = wanted.max(at_least);
                if rest.is_empty() {
                    assert_eq!(rx.position() as usize + buffer.len(), sender.bytes.len());
                    break;
                }
                let (now, later) = rest.split_at(cut(rest.len()).min(rest.len()));
                buffer.extend_from_slice(now);
                rest = later;
            }
            Err(error) => {
                assert_eq!(rx.next(&mut [0; 64]), Err(error), "dead for good");
                received.error = Some(error);
                break;
            }
        }
    }
    received
}

fn check(due: &[ExpectedFpdu], received: &ReceivedStream) {
    let (mut ulpdus, error) = (received.ulpdus.iter(), received.error);
    for due in due {
        match due {
            ExpectedFpdu::Ulpdu(ulpdu) => {
                assert!(ulpdus.next() == Some(ulpdu), "a ULPDU of {} bytes", ulpdu.len());
            }
            ExpectedFpdu::Crc => {
                assert!(matches!(error, Some(FpduError::Crc { .. })), "{error:?}");
            }
            ExpectedFpdu::Marker => {
                assert!(matches!(error, Some(FpduError::Marker { .. })), "{error:?}");
            }
            ExpectedFpdu::Nothing => {
                assert!(!matches!(error, Some(FpduError::Marker { .. })));
            }
            ExpectedFpdu::Anything => return,
        }
    }
    assert_eq!(ulpdus.next(), None, "it was not sent");
    let error_due = matches!(
        due.last(),
        Some(ExpectedFpdu::Crc | ExpectedFpdu::Marker | ExpectedFpdu::Nothing)
    );
    assert!(error_due || error.is_none(), "{error:?}");
}
