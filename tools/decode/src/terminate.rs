//! Descriptions of Terminates, including those of siw.

use uiw_rdmap::{HeaderCopy, TerminateEncoding};

use super::event::{Event, Terminate};

/// Reserved bits of the Terminate Control: third byte, fourth byte (RFC 5040 section 4.8, Figure
/// 8).
const RESERVED: [u8; 2] = [0x1f, 0xff];

/// Decodes the bytes of a Terminate after the DDP header. Returns a description, and the numbers in
/// the Terminate.
pub(super) fn describe(bytes: &[u8], out: &mut Vec<Event>) -> (String, Option<Terminate>) {
    let (terminate, encoding) = match uiw_rdmap::Terminate::parse_any(bytes) {
        Ok(found) => found,
        Err(error) => {
            out.push(Event::departure("RFC 5040 4.8", error.to_string()));
            return ("not whole".into(), None);
        }
    };
    judge(bytes, &terminate, encoding, out);
    let (layer, etype, code) = (terminate.layer, terminate.etype, terminate.code);
    let reason = terminate.reason().to_string();
    let mut text = reason.clone();
    if encoding == TerminateEncoding::Ambiguous
        && let Ok(other) = uiw_rdmap::Terminate::parse_siw(bytes)
    {
        text += &format!(" (if siw sent it: {})", other.reason());
    }
    text += &terminate
        .segment_len
        .map(|length| format!(", segment of {length} bytes"))
        .unwrap_or_default();
    text += &terminate.ddp_header.as_ref().map(quoted).unwrap_or_default();
    if let Some(read) = &terminate.read_request {
        text += &format!(
            ", Read Request of {} bytes from STag {} TO {:#x}",
            read.len, read.source_stag, read.source_to
        );
    }
    let layout = match encoding {
        TerminateEncoding::Rfc => "rfc",
        TerminateEncoding::Siw => "siw",
        TerminateEncoding::Ambiguous => "ambiguous",
    };
    (text, Some(Terminate { layer, etype, code, reason, layout }))
}

fn judge(
    bytes: &[u8],
    terminate: &uiw_rdmap::Terminate,
    encoding: TerminateEncoding,
    out: &mut Vec<Event>,
) {
    let control = bytes.first_chunk::<4>().copied().unwrap_or_default();
    if encoding == TerminateEncoding::Siw {
        let what =
            "a Terminate as siw writes it: Layer and EType swapped, M, D and R in the low bits";
        out.push(Event::departure("RFC 5040 4.8", what));
    } else if control[2] & RESERVED[0] != 0 || control[3] & RESERVED[1] != 0 {
        let what = format!("reserved bits {:02x?} of the Terminate Control are set", &control[2..]);
        out.push(Event::departure("RFC 5040 4.8", what));
    }
    if !terminate.reason().is_known() {
        let (layer, etype, code) = (terminate.layer, terminate.etype, terminate.code);
        let what = format!("a Terminate with a reason no RFC has: {layer}/{etype}/{code:#04x}");
        out.push(Event::departure("RFC 5040 4.8", what));
    }
    judge_parts(control[2], terminate, encoding, out);
    judge_quoted(terminate, encoding, out);
}

/// Reports known errors of siw in the quoted segment: siw omits its length, and writes the length
/// of a Read instead of its MSN.
fn judge_quoted(
    terminate: &uiw_rdmap::Terminate,
    encoding: TerminateEncoding,
    out: &mut Vec<Event>,
) {
    if terminate.segment_len == Some(0) {
        let what = "M is set, and the DDP Segment Length is 0: siw leaves it out";
        out.push(Event::departure("RFC 5040 4.8", what));
    }
    let quoted = terminate.ddp_header.as_ref().and_then(|header| header.header().ok());
    if let Some(uiw_ddp::Header::Untagged(quoted)) = quoted
        && let Some(read) = &terminate.read_request
        && encoding == TerminateEncoding::Siw
        && quoted.msn == read.len
        && read.len > 1
    {
        let what =
            format!("the quoted MSN {} is the Read's length: siw writes it there", quoted.msn);
        out.push(Event::departure("RFC 5040 4.8", what));
    }
}

/// Checks that the parts announced by M, D and R are present.
fn judge_parts(
    bits: u8,
    terminate: &uiw_rdmap::Terminate,
    encoding: TerminateEncoding,
    out: &mut Vec<Event>,
) {
    let [m, d, r] =
        if encoding == TerminateEncoding::Siw { [0x01, 0x02, 0x04] } else { [0x80, 0x40, 0x20] };
    for (bit, name, there) in [
        (m, "M without a DDP Segment Length", terminate.segment_len.is_some()),
        (d, "D without a Terminated DDP Header", terminate.ddp_header.is_some()),
        (r, "R without a Terminated RDMA Header", terminate.read_request.is_some()),
    ] {
        if bits & bit != 0 && !there {
            out.push(Event::departure("RFC 5040 4.8", name));
        }
    }
}

fn quoted(header: &HeaderCopy) -> String {
    match header.header() {
        Ok(uiw_ddp::Header::Tagged(header)) => {
            format!(", of STag {} TO {:#x}", header.stag, header.to)
        }
        Ok(uiw_ddp::Header::Untagged(header)) => {
            format!(", of QN {} MSN {} MO {}", header.qn, header.msn, header.mo)
        }
        Err(error) => format!(", of a {error}"),
    }
}
