//! Single DDP segments: decoding the DDP header and RDMAP control byte, and checks that need no
//! other segment.

use uiw_ddp::{Header, HeaderError};
use uiw_rdmap::{Control, Opcode, ReadRequest};

use super::event::{Event, Segment};

/// Rsvd in the DDP control byte.
const DDP_RESERVED: u8 = 0x3c;
/// Rsv in the RDMAP control byte.
const RDMAP_RESERVED: u8 = 0x30;
/// RDMAP version of RFC 5040. Version 0 is that of the RDMA Consortium.
const RDMAP_VERSION: u8 = 1;
const OPCODE_EXPERIMENTAL: u8 = Opcode::SendImm.raw();

/// A decoded segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parsed<'a> {
    pub(super) header: Header,
    /// The OpCode as a number, which may be unassigned.
    pub(super) opcode: u8,
    pub(super) payload: &'a [u8],
}

impl Parsed<'_> {
    /// Returns the header for the record of the FPDU.
    pub(super) fn record(&self) -> Segment {
        let mut record = Segment {
            tagged: false,
            last: self.header.last(),
            opcode: self.opcode,
            name: name(self.opcode),
            stag: None,
            tagged_offset: None,
            qn: None,
            msn: None,
            mo: None,
            payload_length: self.payload.len(),
        };
        match &self.header {
            Header::Tagged(header) => {
                record.tagged = true;
                record.stag = Some(header.stag.0);
                record.tagged_offset = Some(header.to);
            }
            Header::Untagged(header) => {
                record.qn = Some(header.qn);
                record.msn = Some(header.msn);
                record.mo = Some(header.mo);
            }
        }
        record
    }

    /// Returns whether this is a message without bytes, or a Read of zero bytes.
    pub(super) fn is_zero_length(&self) -> bool {
        match (Opcode::from_raw(self.opcode), &self.header) {
            (Some(Opcode::ReadRequest), Header::Untagged(_)) => {
                ReadRequest::parse(self.payload).is_ok_and(|request| request.len == 0)
            }
            _ => self.header.last() && self.payload.is_empty(),
        }
    }

    /// Returns whether the payload is an RDMAP header, instead of payload of the ULP.
    pub(super) fn has_own_header(&self) -> bool {
        !matches!(
            Opcode::from_raw(self.opcode),
            Some(
                Opcode::Write
                    | Opcode::ReadResponse
                    | Opcode::Send
                    | Opcode::SendInvalidate
                    | Opcode::SendSe
                    | Opcode::SendSeInvalidate
                    | Opcode::SendImm
            )
        )
    }
}

/// Decodes a ULPDU. Departures that do not prevent decoding are added to `departures`.
///
/// # Errors
/// Returns the departure that prevents decoding.
pub(super) fn parse<'a>(ulpdu: &'a [u8], departures: &mut Vec<Event>) -> Result<Parsed<'a>, Event> {
    let (header, length) = Header::parse(ulpdu).map_err(|error| {
        let rule = match error {
            HeaderError::Version { .. } => "RFC 5041 4.1",
            _ => "RFC 5041 4.4",
        };
        Event::departure(rule, error.to_string())
    })?;
    let reserved = ulpdu.first().copied().unwrap_or_default() & DDP_RESERVED;
    if reserved != 0 {
        let what = format!("reserved bits {reserved:#04x} of the DDP control byte are set");
        departures.push(Event::departure("RFC 5041 4.1", what));
    }
    let payload = ulpdu.get(length..).unwrap_or_default();
    let parsed = Parsed { header, opcode: header.rsvd_ulp() & 0x0f, payload };
    judge_control(&parsed, departures);
    judge_queue(&parsed, departures);
    Ok(parsed)
}

fn judge_control(parsed: &Parsed<'_>, departures: &mut Vec<Event>) {
    let control = Control::parse(parsed.header.rsvd_ulp());
    let reserved = parsed.header.rsvd_ulp() & RDMAP_RESERVED;
    match control.version {
        RDMAP_VERSION => {}
        0 => departures
            .push(Event::departure("RFC 5040 4.1", "RDMAP version 0, the RDMA Consortium's")),
        other => departures
            .push(Event::departure("RFC 5040 4.1", format!("unknown RDMAP version {other}"))),
    }
    if reserved != 0 && parsed.opcode != OPCODE_EXPERIMENTAL {
        let what = format!("reserved bits {reserved:#04x} of the RDMAP control byte are set");
        departures.push(Event::departure("RFC 5040 4.1", what));
    }
    match parsed.opcode {
        OPCODE_EXPERIMENTAL => {
            departures.push(Event::departure(
                "RFC 6580 4",
                "OpCode 15 is for experiments (uiw: Send with immediate)",
            ));
        }
        opcode if Opcode::from_raw(opcode).is_none() => {
            departures.push(Event::departure("RFC 5040 4.1", format!("unknown OpCode {opcode}")));
        }
        _ => {}
    }
}

/// Checks whether the segment should be tagged, its queue, and the Invalidate STag field.
fn judge_queue(parsed: &Parsed<'_>, departures: &mut Vec<Event>) {
    let Some(opcode) = Opcode::from_raw(parsed.opcode) else { return };
    let name = opcode.name();
    match (opcode.queue(), &parsed.header) {
        (None, Header::Untagged(_)) => {
            departures
                .push(Event::departure("RFC 5040 4.1", format!("{name} in an untagged segment")));
        }
        (Some(_), Header::Tagged(_)) => {
            departures
                .push(Event::departure("RFC 5040 4.1", format!("{name} in a tagged segment")));
        }
        (Some(queue), Header::Untagged(header)) if header.qn != queue => {
            let what = format!("{name} on queue {}, it belongs on queue {queue}", header.qn);
            departures.push(Event::departure("RFC 5040 4.1", what));
        }
        _ => {}
    }
    if let Header::Untagged(header) = &parsed.header
        && header.rsvd_ulp32 != 0
        && !has_invalidate(parsed.opcode)
        && parsed.opcode != OPCODE_EXPERIMENTAL
    {
        let what = format!(
            "{name} has {:#010x} where an Invalidate STag would stand, not zero",
            header.rsvd_ulp32
        );
        departures.push(Event::departure("RFC 5040 4.1", what));
    }
}

/// Returns whether the OpCode is a Send with Invalidate, with or without Solicited Event.
pub(super) fn has_invalidate(opcode: u8) -> bool {
    matches!(Opcode::from_raw(opcode), Some(Opcode::SendInvalidate | Opcode::SendSeInvalidate))
}

/// Returns the name of the OpCode in the RFCs.
pub(super) fn name(opcode: u8) -> &'static str {
    Opcode::from_raw(opcode).map_or("unknown OpCode", Opcode::name)
}
