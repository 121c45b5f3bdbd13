//! Reception in DDP and RDMAP: a receiver gets valid and invalid ULPDUs, and places them in its own
//! buffers. It knows what a correct sender would send next, so valid segments must be accepted and
//! invalid ones refused.

use uiw_ddp::{Header, STag, Tagged, Untagged, UntaggedRx};
use uiw_mpa::MAX_ULPDU;
use uiw_rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Control, Extensions, Fault, HeaderCopy, ImmediateData,
    Opcode, QuotedHeaders, ReadRequest, StreamRx, Terminate, TerminateReason, send_imm_header,
    tagged_header, untagged_header,
};

use crate::input::Input;

/// Length in bytes of the message buffer of each untagged queue.
const BUFFERS: [u32; 4] = [300, 52, 52, 52];

struct SegmentReceiver {
    stream: StreamRx,
    extensions: Extensions,
    /// True after a Terminate.
    ended: bool,
    queues: [UntaggedRx; 4],
    /// Placed bytes of each queue.
    buffers: [Vec<u8>; 4],
    /// Expected bytes of each queue.
    sent: [Vec<u8>; 4],
}

/// Runs an input, which consists of extensions, initial MSNs, and segments.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    // These bytes are unused. The corpus has them.
    input.take(4);
    let bits = input.u8();
    let extensions =
        Extensions { immediate: bits & 1 != 0, atomic: bits & 2 != 0, send_imm: bits & 4 != 0 };
    // Half of the inputs start near the wrap of the MSN.
    let first = if bits & 8 == 0 { 1 } else { u32::MAX - u32::from(input.u8() % 4) };
    let mut receiver = SegmentReceiver {
        stream: StreamRx::new(Extensions::default()),
        extensions,
        ended: false,
        queues: [0; 4].map(|_| UntaggedRx::new(first)),
        buffers: BUFFERS.map(|len| vec![0xEE; len as usize]),
        sent: [const { Vec::new() }; 4],
    };
    receiver.stream.set_extensions(extensions);
    for _ in 0..input.below(24) {
        let (ulpdu, right) = receiver.make_segment(&mut input);
        if let Err(fault) = receiver.take(&ulpdu, &mut input) {
            assert!(!right, "{fault}: {ulpdu:02x?}");
            report(&fault, &ulpdu);
            return;
        }
    }
}

impl SegmentReceiver {
    /// Creates a ULPDU. Returns it, and true if it is certainly valid.
    fn make_segment(&self, input: &mut Input<'_>) -> (Vec<u8>, bool) {
        let kind = input.u8();
        if kind >= 250 {
            return (input.take(80).to_vec(), false);
        }
        let raw = match kind {
            240.. => input.u8() & 15,
            other => other % 12,
        };
        let opcode = Opcode::from_raw(raw);
        let queue = opcode.and_then(Opcode::queue);
        let qn = queue.unwrap_or(0);
        let spec = &self.queues[qn as usize];
        let len = message_len(opcode, input);
        let mut header = match opcode.zip(queue) {
            None => {
                let (last, stag, to) = (input.bool(), STag(input.u32()), input.u64());
                let no_opcode = Tagged {
                    last,
                    rsvd_ulp: Control { version: 1, rsv: 0, opcode: raw }.emit(),
                    stag,
                    to,
                };
                Header::Tagged(
                    opcode.map_or(no_opcode, |opcode| tagged_header(opcode, stag, to, last)),
                )
            }
            Some((opcode, qn)) => {
                let (word, msn, mo) = (input.u32(), spec.expected_msn(), spec.received());
                Header::Untagged(match opcode {
                    // A message in progress continues as a Send.
                    _ if spec.in_progress() => {
                        untagged_header(Opcode::Send, qn, msn, mo, true, word)
                    }
                    Opcode::SendImm => send_imm_header(msn, mo, true, word, word & 1 != 0),
                    _ => untagged_header(opcode, qn, msn, mo, true, word),
                })
            }
        };
        let bent = input.u8() >= 170;
        if bent {
            corrupt_field(&mut header, input);
        }
        let mut ulpdu = vec![0; header.len()];
        header.emit(&mut ulpdu);
        if bent && input.bool() {
            // Errors in reserved bits and versions, which `emit` cannot create.
            ulpdu[0] ^= input.u8();
        }
        for n in 0..len {
            ulpdu.push(input.u8() ^ n as u8);
        }
        if bent && input.bool() {
            ulpdu.truncate(input.below(24));
        }
        ulpdu.truncate(MAX_ULPDU);
        // Only an unchanged tagged segment is certainly valid. An untagged one may conflict with a
        // message in progress or need an extension that was not negotiated, so only the receiver
        // can decide.
        (ulpdu, !bent && queue.is_none() && opcode.is_some() && !self.ended)
    }

    fn take(&mut self, ulpdu: &[u8], input: &mut Input<'_>) -> Result<(), Fault> {
        let (header, header_len) = Header::parse(ulpdu)?;
        let mut again = vec![0; header_len];
        assert_eq!(header.emit(&mut again), header_len);
        // Decoding and encoding a header loses only the reserved bits.
        assert_eq!((again[0], &again[1..]), (ulpdu[0] & 0xC3, &ulpdu[1..header_len]));
        let opcode = self.stream.admit(&header)?;
        assert!(!self.ended, "nothing comes after a Terminate");
        self.ended = opcode == Opcode::Terminate && header.last();
        let payload = &ulpdu[header_len..];
        assert_eq!(
            matches!(header, Header::Tagged(_)),
            matches!(opcode, Opcode::Write | Opcode::ReadResponse)
        );
        self.allowed(header.rsvd_ulp());
        let Header::Untagged(untagged) = header else { return Ok(()) };
        let qn = untagged.qn as usize;
        let room = (input.u8() < 250).then_some(BUFFERS[qn]);
        let len = payload.len() as u32;
        let before = (self.queues[qn].expected_msn(), self.queues[qn].received());
        let place = self.queues[qn].check(&untagged, len, room)? as usize;
        // These checks are an independent implementation of RFC 5041 section 7.1.
        assert_eq!((untagged.msn, untagged.mo), before);
        assert!(room.is_some_and(|room| untagged.mo + len <= room));
        self.buffers[qn][place..place + payload.len()].copy_from_slice(payload);
        self.sent[qn].extend_from_slice(payload);
        let Some(delivered) = self.queues[qn].placed(&untagged, len) else {
            assert!(!untagged.last && self.queues[qn].in_progress());
            return Ok(());
        };
        assert_eq!((delivered.msn, untagged.last), (before.0, true));
        assert_eq!(self.queues[qn].expected_msn(), before.0.wrapping_add(1), "MSNs wrap");
        let message = &self.buffers[qn][..delivered.len as usize];
        assert!(message == &*self.sent[qn], "a message is what was sent");
        self.sent[qn].clear();
        let message = message.to_vec();
        check_message(opcode, &message)
    }

    /// Checks version, opcode and extension independently, from the control byte.
    fn allowed(&self, control: u8) {
        let extensions = self.extensions;
        let agreed = match control & 15 {
            0..=7 => true,
            8 | 9 => extensions.immediate,
            10 | 11 => extensions.atomic,
            15 => extensions.send_imm,
            _ => false,
        };
        assert!(control >> 6 == 1 && agreed, "{control:#04x}");
    }
}

/// Returns the length of a message, which is usually valid for its opcode.
fn message_len(opcode: Option<Opcode>, input: &mut Input<'_>) -> usize {
    let choice = input.u8();
    let fixed = match opcode {
        Some(Opcode::ReadRequest) => ReadRequest::LEN,
        Some(Opcode::AtomicRequest) => AtomicRequest::LEN,
        Some(Opcode::AtomicResponse) => AtomicResponse::LEN,
        Some(Opcode::Immediate | Opcode::ImmediateSe) => ImmediateData::LEN,
        Some(Opcode::Terminate) => usize::from(choice % 60),
        _ => usize::from(choice),
    };
    if choice < 200 { fixed } else { input.below(320) }
}

/// Changes one field to a wrong value.
fn corrupt_field(header: &mut Header, input: &mut Input<'_>) {
    match header {
        Header::Tagged(header) => header.rsvd_ulp = input.u8(),
        Header::Untagged(header) => match input.u8() % 6 {
            0 => header.rsvd_ulp = input.u8(),
            1 => header.qn = input.pick(&[0, 1, 2, 3, 4, u32::MAX]),
            2 => header.msn = header.msn.wrapping_add(input.pick(&[1, 2, u32::MAX, 1 << 31])),
            3 => header.mo = header.mo.wrapping_add(input.pick(&[1, 4, u32::MAX, 1 << 31])),
            4 => (header.mo, header.msn) = (input.u32(), input.u32()),
            _ => header.last = false,
        },
    }
}

/// Decodes a complete message, and encodes it again.
fn check_message(opcode: Opcode, message: &[u8]) -> Result<(), Fault> {
    match opcode {
        Opcode::ReadRequest => assert_eq!(ReadRequest::parse(message)?.emit(), *message),
        Opcode::AtomicRequest => atomic(AtomicRequest::parse(message)?, message),
        Opcode::AtomicResponse => assert_eq!(AtomicResponse::parse(message)?.emit(), *message),
        Opcode::Immediate | Opcode::ImmediateSe => {
            assert_eq!(ImmediateData::parse(message)?.emit(), *message);
        }
        Opcode::Terminate => terminate(message),
        _ => {}
    }
    Ok(())
}

/// Checks an atomic operation bit by bit, as in RFC 7306 section 5.1.
fn atomic(request: AtomicRequest, bytes: &[u8]) {
    assert_eq!(request.emit()[..36], [&[0, 0, 0, request.op as u8], &bytes[4..36]].concat());
    let old = request.to ^ request.compare.rotate_left(7);
    let mut carry = false;
    let equal = (0..64).all(|bit| {
        let at = 1u64 << bit;
        request.compare_mask & at == 0 || request.compare & at == old & at
    });
    let mut new = 0;
    for bit in 0..64 {
        let at = 1u64 << bit;
        let (a, b, top) = (old & at != 0, request.data & at != 0, request.mask & at != 0);
        let set = match request.op {
            AtomicOp::FetchAdd => {
                let sum = u8::from(a) + u8::from(b) + u8::from(carry);
                // A set bit of the mask is the highest bit of its field, so it has no carry.
                carry = sum > 1 && !top;
                sum & 1 != 0
            }
            AtomicOp::CmpSwap if equal && top => b,
            AtomicOp::CmpSwap => a,
        };
        new |= if set { at } else { 0 };
    }
    assert_eq!(request.apply(old), new, "{request:?} on {old:#x}");
}

fn terminate(message: &[u8]) {
    for at_start in [false, true] {
        let Ok((terminate, encoding)) = Terminate::parse_at(message, at_start) else {
            assert!(message.len() < 4);
            return;
        };
        let _ = (terminate.to_string(), encoding);
        assert_eq!(
            Terminate::parse(&terminate.emit()),
            Ok(terminate),
            "what was understood can be said"
        );
        if let Some(header) = terminate.ddp_header {
            let _ = (header.header(), format!("{header:?}"));
        }
    }
}

/// Checks that the Terminate of a fault has known codes, and that it can be decoded.
fn report(fault: &Fault, ulpdu: &[u8]) {
    let _ = fault.to_string();
    let quoted = QuotedHeaders {
        segment_len: ulpdu.len() as u16,
        header: ulpdu,
        read_request: ulpdu.get(Untagged::LEN..),
    };
    let terminate = fault.terminate(Some(quoted));
    assert!(terminate.reason().is_known() && TerminateReason::ALL.contains(&terminate.reason()));
    assert_eq!((terminate.layer, terminate.etype, terminate.code), fault.reason().codes());
    let bytes = terminate.emit();
    assert!(bytes.len() <= Terminate::MAX_LEN);
    assert_eq!(Terminate::parse(&bytes), Ok(terminate));
    if let Some(copy) = terminate.ddp_header {
        assert_eq!(Some(copy), HeaderCopy::new(ulpdu));
        assert_eq!(terminate.segment_len, Some(ulpdu.len() as u16));
    }
    assert_eq!(fault.terminate(None).ddp_header, None);
}
