//! Checks of a Terminate, from RFC 5040 section 4.8.

use super::judge::Judgements;
use uiw_rdmap::wire::TerminateEncoding;
use uiw_rdmap::{Control, Opcode, ReadRequest, Terminate};

const CONTROL: usize = 4;
const LENGTH: usize = 2;
const READ_REQUEST: usize = 28;
/// Bits M, D and R in the third byte of the control field, RFC 5040 section 4.8.
const M: u8 = 0x80;
const D: u8 = 0x40;
const R: u8 = 0x20;

/// Parses a Terminate in the layout that fits. The flag is true if it is the layout of the RFC.
fn parse(payload: &[u8]) -> Option<(Terminate, bool)> {
    // The Terminate of a listener never refuses a Reply.
    let (terminate, encoding) = Terminate::parse_at(payload, false).ok()?;
    Some((terminate, encoding != TerminateEncoding::Siw))
}

/// Returns layer, type and code.
pub(super) fn codes(payload: &[u8]) -> Option<[u8; 3]> {
    parse(payload).map(|(terminate, _)| [terminate.layer, terminate.etype, terminate.code])
}

/// Returns the DDP Segment Length, if M is set.
pub(super) fn segment_length(payload: &[u8]) -> Option<u16> {
    parse(payload)?.0.segment_len
}

/// Returns the DDP header that it quotes.
pub(super) fn quoted_header(payload: &[u8]) -> Option<Vec<u8>> {
    parse(payload)?.0.ddp_header.map(|header| header.as_slice().to_vec())
}

/// Returns whether the codes are defined in RFC 5040 Figure 9, RFC 5041 section 7.2, RFC 5044
/// section 8 or RFC 6581 section 8.
fn is_valid([layer, etype, code]: [u8; 3]) -> bool {
    match (layer, etype) {
        (0, 0) => true,
        (0, 1) => matches!(code, 0..=4 | 9 | 0xFF),
        (0, 2) => matches!(code, 5..=9 | 0xFF),
        (1, 0) => code == 0,
        (1, 1) => code <= 4,
        (1, 2) => (1..=6).contains(&code),
        (1, 3) => true,
        (2, 0) => (1..=7).contains(&code),
        _ => false,
    }
}

/// Checks a received Terminate. `sent` are the segments that it may quote.
pub(super) fn judge(payload: &[u8], sent: &[Vec<u8>], judged: &mut Judgements) {
    let Some((terminate, is_rfc)) = parse(payload) else {
        judged.add_broken(
            &["RFC5040-4.8-01"],
            format!("a Terminate of {} bytes has no whole control field", payload.len()),
        );
        return;
    };
    let codes = [terminate.layer, terminate.etype, terminate.code];
    judged.check(is_rfc, &["RFC5040-4.8-02"], || {
        "layer and type, and M, D and R, stand where the Linux siw driver has them".to_owned()
    });
    judged.check(is_valid(codes), &["RFC5040-4.8-03"], || {
        format!("no RFC has {:x}/{:x}/{:#04x}", codes[0], codes[1], codes[2])
    });
    if terminate.layer == 1 {
        judged.check(is_valid(codes), &["RFC5041-7.2-01"], || {
            format!("DDP has no error {:x}/{:#04x}", codes[1], codes[2])
        });
    }
    if !is_rfc {
        judge_segment_length(&terminate, sent, judged);
        return;
    }
    let (bits, low) = (payload[2], payload[3]);
    judged.check(bits & !(M | D | R) == 0 && low == 0, &["RFC5040-4.8-07"], || {
        format!("the reserved bits of the control field are {:02x?}", [bits & !(M | D | R), low])
    });
    judge_parts(payload, bits, judged);
    judge_segment_length(&terminate, sent, judged);
    let of = |header: &[u8]| sent.iter().find(|sent| sent.starts_with(header));
    if let Some(header) = &terminate.ddp_header {
        judged.check(of(header.as_slice()).is_some(), &["RFC5040-4.8-10"], || {
            format!("it quotes a DDP header that was never sent: {:02x?}", header.as_slice())
        });
        if let Some(request) = &terminate.read_request {
            let sent = of(header.as_slice()).filter(|sent| is_read_request(sent));
            let sent = sent.and_then(|sent| ReadRequest::parse(sent.get(18..)?).ok());
            let fits = sent.is_some_and(|sent| is_part(request, &sent));
            judged.check(fits, &["RFC5040-4.8-11"], || {
                "it quotes a Read Request that was never sent".to_owned()
            });
        }
    }
}

/// Returns whether a segment is untagged and has the opcode of a Read Request.
fn is_read_request(segment: &[u8]) -> bool {
    matches!(segment, [first, control, ..]
        if first & 0x80 == 0 && Control::parse(*control).opcode == Opcode::ReadRequest.raw())
}

/// Returns whether `rest` is the Read Request `sent`, or that part of it that was not answered.
fn is_part(rest: &ReadRequest, sent: &ReadRequest) -> bool {
    let answered = sent.len.wrapping_sub(rest.len);
    let expected = ReadRequest {
        len: rest.len,
        sink_to: sent.sink_to.wrapping_add(answered.into()),
        source_to: sent.source_to.wrapping_add(answered.into()),
        ..*sent
    };
    answered <= sent.len && *rest == expected
}

/// Checks that exactly the parts are present that M, D and R announce.
fn judge_parts(payload: &[u8], bits: u8, judged: &mut Judgements) {
    let (mut due, length) = (CONTROL, payload.len());
    if bits & (M | D) != 0 {
        due += LENGTH;
        let ids: &[&str] = if bits & D != 0 { &["RFC5040-4.8-09"] } else { &[] };
        judged.check(length >= due, ids, || "its DDP Segment Length is lacking".to_owned());
    }
    if bits & D != 0 {
        let tagged = payload.get(due).is_some_and(|first| first & 0x80 != 0);
        due += if tagged { 14 } else { 18 };
        judged.check(length >= due, &["RFC5040-4.8-10"], || {
            "D is set, and the DDP header is lacking".to_owned()
        });
    }
    if bits & R != 0 {
        due += READ_REQUEST;
        judged.check(length >= due, &["RFC5040-4.8-11"], || {
            "R is set, and the RDMAP header is lacking".to_owned()
        });
    }
    judged.check(length == due, &["RFC5040-4.8-01"], || {
        format!("a Terminate of {length} bytes, its M, D and R announce {due}")
    });
}

/// Checks the quoted segment length. It may be the length of the ULPDU or of the payload alone,
/// because the RFC does not define which.
fn judge_segment_length(terminate: &Terminate, sent: &[Vec<u8>], judged: &mut Judgements) {
    let Some(length) = terminate.segment_len else { return };
    let header = terminate.ddp_header.as_ref().map(uiw_rdmap::wire::HeaderCopy::as_slice);
    let fits = |sent: &&Vec<u8>| header.is_none_or(|header| sent.starts_with(header));
    let mut lengths = sent.iter().filter(fits).flat_map(|sent| {
        let header = if sent.first().is_some_and(|first| first & 0x80 != 0) { 14 } else { 18 };
        [sent.len(), sent.len().saturating_sub(header)]
    });
    judged.check(lengths.any(|due| due == usize::from(length)), &["RFC5040-4.8-08"], || {
        format!("DDP Segment Length is {length}, which no segment of this end had")
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Read Request of MSN 3 that was sent.
    fn sent() -> Vec<u8> {
        let mut ulpdu = vec![0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0];
        ulpdu.extend(1..29);
        ulpdu
    }

    fn broken(payload: &[u8]) -> Vec<String> {
        broken_for(payload, &sent())
    }

    fn broken_for(payload: &[u8], sent: &[u8]) -> Vec<String> {
        let mut judged = Judgements::default();
        judge(payload, &[sent.to_vec()], &mut judged);
        judged.broken()
    }

    /// Codes 0/1/0, with M, D and R.
    fn legal() -> Vec<u8> {
        [&[0x01, 0, 0xE0, 0, 0, 46][..], &sent()].concat()
    }

    #[test]
    fn each_part_has_its_sentence() {
        assert_eq!(broken(&legal()), [""; 0]);
        let changed = |at: usize, to: u8| {
            let mut payload = legal();
            payload[at] = to;
            broken(&payload)
        };
        assert_eq!(changed(1, 0x77), ["RFC5040-4.8-03"]);
        assert_eq!(changed(3, 1), ["RFC5040-4.8-07"]);
        assert_eq!(changed(5, 47), ["RFC5040-4.8-08"]);
        assert_eq!(changed(5, 28), [""; 0], "the payload's length");
        assert_eq!(
            changed(19, 9),
            ["RFC5040-4.8-08", "RFC5040-4.8-10", "RFC5040-4.8-11"],
            "another MSN"
        );
        assert_eq!(changed(40, 9), ["RFC5040-4.8-11"]);
        assert_eq!(broken(&legal()[..40]), ["RFC5040-4.8-01", "RFC5040-4.8-11"]);
        assert_eq!(
            broken(&[0x01, 0, 0x40, 0]),
            ["RFC5040-4.8-01", "RFC5040-4.8-09", "RFC5040-4.8-10"]
        );
        assert_eq!(broken(&[0x12, 0x0E, 0, 0]), ["RFC5040-4.8-03", "RFC5041-7.2-01"]);
        assert_eq!(broken(&[0]), ["RFC5040-4.8-01"]);
        // Codes 0/1/0 in the layout of the Linux siw driver.
        assert_eq!(
            broken(&[[0x10, 0, 0x07, 0, 0, 46].as_slice(), &sent()].concat()),
            ["RFC5040-4.8-02"]
        );
    }

    #[test]
    fn partly_answered_read_quoted() {
        let quoted = |answered: u32, len_off: u32| {
            let mut request = ReadRequest::parse(&sent()[18..]).unwrap();
            request.sink_to += u64::from(answered);
            request.source_to += u64::from(answered);
            request.len = request.len - answered + len_off;
            broken(&[&legal()[..24], &request.emit()].concat())
        };
        assert_eq!((quoted(9, 0), quoted(9, 1)), (vec![], vec!["RFC5040-4.8-11".to_owned()]));
    }

    #[test]
    fn quoted_send_is_no_read_request() {
        let mut send = sent();
        send[1] = 0x43;
        let quoted = |bits| [&[0x01, 9, bits, 0, 0, 46][..], &send].concat();
        assert_eq!(broken_for(&quoted(M | D | R), &send), ["RFC5040-4.8-11"]);
        assert_eq!(broken_for(&quoted(M | D)[..24], &send), [""; 0]);
    }
}
