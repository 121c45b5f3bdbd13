//! Tests with the wire vectors of `interop/data/vectors`, which were built by a generator that
//! shares no code with these crates, and dissected by Wireshark. All bytes are decoded and encoded
//! again by all three layers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use uiw_cases::{Action, Atom, Case, CaseCondition, FrameKind as Kind, Relation, SentFrame, Test};
use uiw_ddp::{Header, STag, Tagged, TaggedError, Untagged, UntaggedRx};
use uiw_mpa::startup::{Initiator, Outcome, Responder, Revision, StartupConfig};
use uiw_mpa::wire::startup::{Enhanced, Frame, FrameKind};
use uiw_mpa::{Fpdu, FpduError, FpduRx, FpduTx, Step};
use uiw_rdmap::*;

#[derive(Deserialize)]
struct VectorConversation {
    negotiated: Option<AgreedParameters>,
    frames: Vec<WireFrame>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct AgreedParameters {
    markers_initiator_to_responder: bool,
    markers_responder_to_initiator: bool,
    crc: Option<bool>,
}

#[derive(Deserialize)]
struct WireFrame {
    kind: String,
    dir: String,
    note: String,
    hex: String,
    rdma_message: Option<String>,
    stream_offset: Option<u64>,
    ulpdu_hex: Option<String>,
    crc: Option<WireCrc>,
    fields: Vec<FrameField>,
}

#[derive(Deserialize)]
struct WireCrc {
    wire_hex: String,
}

#[derive(Deserialize)]
struct FrameField {
    name: String,
    hex: String,
}

/// Frame that must be refused, as its case states.
struct NegativeCase {
    name: String,
    bytes: Vec<u8>,
    /// Codes of the Terminates that are allowed as the answer.
    terminates: Vec<[u8; 3]>,
    markers: bool,
    startup: bool,
}

impl NegativeCase {
    fn of(case: &Case) -> Self {
        let actions = || case.steps.iter().map(|step| &step.action);
        let is_bytes =
            |action: &&Action| matches!(action, Action::Send(sent) if sent.kind == Kind::Bytes);
        let frame = actions().rfind(is_bytes).expect("bytes");
        let Action::Send(SentFrame { fields, .. }) = frame else { unreachable!() };
        let Test::OneOf(values) = &fields[0].test else { panic!("{}", case.name) };
        let [(_, Atom::Bytes(bytes))] = values.as_slice() else { panic!("{}", case.name) };
        let Some(Action::Expect { one_of, .. }) = actions().next_back() else {
            panic!("{}", case.name)
        };
        let codes =
            one_of.iter().flat_map(|frame| &frame.fields).flat_map(|field| match &field.test {
                Test::OneOf(values) => values.as_slice(),
                other => panic!("{}: {other:?}", case.name),
            });
        let terminates = codes.map(|code| match code {
            (Relation::Equal, Atom::Codes(codes)) => *codes,
            other => panic!("{}: {other:?}", case.name),
        });
        Self {
            name: case.name.trim_start_matches("negative/").to_owned(),
            bytes: bytes.clone(),
            terminates: terminates.collect(),
            markers: case.needs.contains(&CaseCondition::MarkersAsked),
            startup: case.steps.len() == 3,
        }
    }
}

#[derive(Deserialize)]
struct FileSums {
    vectors: Vec<FileSum>,
}

#[derive(Deserialize)]
struct FileSum {
    name: String,
    data_hex: String,
    crc_wire_hex: String,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../interop/data/vectors")
}

fn read<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn conversations() -> Vec<(String, VectorConversation)> {
    let names = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter(|name| name.starts_with(|c: char| c.is_ascii_digit()) && name.ends_with(".json"))
        .collect();
    names.sort();
    assert_eq!(names.len(), 22);
    names.into_iter().map(|name| (name.clone(), read(&name))).collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Fields of a frame as numbers or bytes, from the list in the vector.
struct FrameFields<'a>(BTreeMap<&'a str, Vec<u8>>);

impl<'a> FrameFields<'a> {
    /// Collects the fields of a frame. The pieces of a field that Markers split are joined.
    fn of(frame: &'a WireFrame) -> Self {
        let mut fields: BTreeMap<_, Vec<u8>> = BTreeMap::new();
        for field in &frame.fields {
            fields.entry(field.name.as_str()).or_default().extend(unhex(&field.hex));
        }
        Self(fields)
    }

    fn bytes(&self, name: &str) -> &[u8] {
        self.0.get(name).map_or(&[], |bytes| bytes)
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn number(&self, name: &str) -> u64 {
        let bytes = self.0.get(name).unwrap_or_else(|| panic!("{name}"));
        bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn word(&self, name: &str) -> u32 {
        self.number(name) as u32
    }

    fn stag(&self, name: &str) -> STag {
        STag(self.word(name))
    }
}

#[test]
fn crc32c_values() {
    let sums: FileSums = read("crc32c.json");
    for sum in sums.vectors {
        let crc = uiw_mpa::crc32c(&unhex(&sum.data_hex)).to_le_bytes();
        assert_eq!(crc[..], unhex(&sum.crc_wire_hex), "{}", sum.name);
    }
}

/// Encodes each startup frame from its fields, compares the bytes, and decodes them again.
#[test]
fn startup_frames() {
    let mut count = 0;
    for (name, conversation) in conversations() {
        for frame in conversation.frames.iter().filter(|frame| frame.kind != "fpdu") {
            let (fields, bytes) = (FrameFields::of(frame), unhex(&frame.hex));
            let flags = fields.word("mpa.flags");
            let expected = Frame {
                kind: if frame.kind == "mpa_request" {
                    FrameKind::Request
                } else {
                    FrameKind::Reply
                },
                markers: flags & 0x80 != 0,
                crc: flags & 0x40 != 0,
                reject: flags & 0x20 != 0,
                enhanced: fields.has("mpa.enh.ird").then(|| {
                    let (ird, ord) = (fields.word("mpa.enh.ird"), fields.word("mpa.enh.ord"));
                    Enhanced {
                        peer_to_peer: ird & 0x8000 != 0,
                        rtr_send: ird & 0x4000 != 0,
                        rtr_write: ord & 0x8000 != 0,
                        rtr_read: ord & 0x4000 != 0,
                        ird: ird as u16 & 0x3FFF,
                        ord: ord as u16 & 0x3FFF,
                    }
                }),
                reserved: (flags & 0x0F) as u8,
                revision: fields.word("mpa.rev") as u8,
                private_data: fields.bytes("mpa.private_data").to_vec(),
            };
            assert_eq!(Frame::parse(&bytes), Ok(Some((expected.clone(), bytes.len()))), "{name}");
            assert_eq!(expected.emit(), bytes, "{name}");
            count += 1;
        }
    }
    assert_eq!(count, 44);
}

/// The two ends negotiate the result that the vector states.
#[test]
fn negotiations() {
    for (name, conversation) in conversations() {
        let [request, reply] = [0, 1].map(|n| unhex(&conversation.frames[n].hex));
        let (sent, _) = Frame::parse(&request).unwrap().unwrap();
        let enhanced = sent.enhanced.unwrap_or_default();
        let config = StartupConfig {
            revision: if sent.enhanced.is_some() { Revision::Two } else { Revision::One },
            crc: sent.crc,
            want_markers: sent.markers,
            peer_to_peer: enhanced.peer_to_peer,
            rtr: enhanced.into(),
            ird: enhanced.ird,
            ord: enhanced.ord,
            siw_gso: false,
        };
        let initiator = Initiator::new(config, &sent.private_data).unwrap();
        // Revision 2 without S is legal but useless, and we do not send it.
        let unenhanced_two = sent.revision == 2 && sent.enhanced.is_none();
        assert_eq!(initiator.request() == request, !unenhanced_two, "{name}");
        let mut responder = Responder::new(StartupConfig::default());
        let (consumed, seen) = responder.request(&request).unwrap().unwrap();
        assert_eq!((consumed, seen.frame), (request.len(), sent));
        if unenhanced_two {
            continue;
        }
        let (consumed, outcome) = initiator.reply(&reply).unwrap().unwrap();
        assert_eq!(consumed, reply.len(), "{name}");
        match (outcome, conversation.negotiated.unwrap_or_default()) {
            (Outcome::Rejected { .. }, AgreedParameters { crc: None, .. }) => {}
            (Outcome::Accepted { negotiated, .. }, agreed) => {
                assert_eq!(Some(negotiated.crc), agreed.crc, "{name}");
                assert_eq!(negotiated.markers_tx, agreed.markers_initiator_to_responder, "{name}");
                assert_eq!(negotiated.markers_rx, agreed.markers_responder_to_initiator, "{name}");
            }
            (outcome, _) => panic!("{name}: {outcome:?}"),
        }
    }
}

/// Returns the DDP header that the fields of a frame describe.
fn header_of(fields: &FrameFields<'_>) -> Header {
    let control = fields.word("ddp.control");
    let (last, rsvd_ulp) = (control & 0x40 != 0, fields.word("rdmap.control") as u8);
    if control & 0x80 != 0 {
        Tagged { last, rsvd_ulp, stag: fields.stag("ddp.stag"), to: fields.number("ddp.to") }.into()
    } else {
        let [rsvd_ulp32, qn, msn, mo] =
            ["rdmap.inval_stag", "ddp.qn", "ddp.msn", "ddp.mo"].map(|name| fields.word(name));
        Untagged { last, rsvd_ulp, rsvd_ulp32, qn, msn, mo }.into()
    }
}

/// Builds the bytes after the DDP header from the fields, and checks that they parse.
fn body_of(fields: &FrameFields<'_>, opcode: Opcode) -> Vec<u8> {
    match opcode {
        Opcode::ReadRequest => {
            let request = ReadRequest {
                sink_stag: fields.stag("rdmap.rr.sink_stag"),
                sink_to: fields.number("rdmap.rr.sink_to"),
                len: fields.word("rdmap.rr.rdmardsz"),
                source_stag: fields.stag("rdmap.rr.src_stag"),
                source_to: fields.number("rdmap.rr.src_to"),
            };
            assert_eq!(ReadRequest::parse(&request.emit()), Ok(request));
            request.emit().to_vec()
        }
        Opcode::AtomicRequest => {
            let request = AtomicRequest {
                op: match fields.word("atomic.reserved_aopcode") {
                    0 => AtomicOp::FetchAdd,
                    2 => AtomicOp::CmpSwap,
                    other => panic!("{other}"),
                },
                request_id: fields.word("atomic.request_id"),
                stag: fields.stag("atomic.remote_stag"),
                to: fields.number("atomic.remote_to"),
                data: fields.number("atomic.add_or_swap_data"),
                mask: fields.number("atomic.add_or_swap_mask"),
                compare: fields.number("atomic.compare_data"),
                compare_mask: fields.number("atomic.compare_mask"),
            };
            assert_eq!(AtomicRequest::parse(&request.emit()), Ok(request));
            request.emit().to_vec()
        }
        Opcode::AtomicResponse => {
            let request_id = fields.word("atomic.original_request_id");
            let response =
                AtomicResponse { request_id, original: fields.number("atomic.original_value") };
            assert_eq!(AtomicResponse::parse(&response.emit()), Ok(response));
            response.emit().to_vec()
        }
        Opcode::Immediate | Opcode::ImmediateSe => {
            let data = ImmediateData::parse(fields.bytes("immediate.data")).unwrap();
            data.emit().to_vec()
        }
        Opcode::Terminate => {
            let types = fields.word("term.layer_etype") as u8;
            let terminate = Terminate {
                layer: types >> 4,
                etype: types & 0x0F,
                code: fields.word("term.error_code") as u8,
                segment_len: fields
                    .has("term.ddp_segment_length")
                    .then(|| fields.word("term.ddp_segment_length") as u16),
                ddp_header: HeaderCopy::new(fields.bytes("term.ddp_header")),
                read_request: ReadRequest::parse(fields.bytes("term.rdma_header")).ok(),
            };
            let bytes = terminate.emit();
            assert_eq!(Terminate::parse_any(&bytes).unwrap().0, terminate);
            assert!(terminate.reason().is_known());
            bytes
        }
        _ => fields.bytes("payload").to_vec(),
    }
}

/// Builds the FPDU of `ulpdu`. If CRCs are off, it gets the CRC field of the vector.
fn sealed(tx: &mut FpduTx, ulpdu: &[u8], frame: &WireFrame) -> Vec<u8> {
    let mut bytes = [&[0; 2], ulpdu].concat();
    tx.seal(&mut bytes, 0);
    if !tx.crc_on() {
        let end = bytes.len() - 4;
        bytes[end..].copy_from_slice(&unhex(&frame.crc.as_ref().unwrap().wire_hex));
    }
    bytes
}

/// Passes all FPDUs of all conversations through MPA, DDP and RDMAP, in both directions.
// [test:RFC5040-4.1-02] [test:RFC5040-4.2-01] [test:RFC5040-4.4-01] [test:RFC5040-4.8-01]
// [test:RFC5041-4.2-01] [test:RFC5041-4.3-01] [test:RFC5044-4.1-01] [test:RFC7306-4.1-01]
#[test]
fn fpdus() {
    let mut count = 0;
    for (name, conversation) in conversations() {
        let agreed = conversation.negotiated.unwrap_or_default();
        let crc = agreed.crc.unwrap_or(true);
        for (direction, markers) in [
            ("I>R", agreed.markers_initiator_to_responder),
            ("R>I", agreed.markers_responder_to_initiator),
        ] {
            let (mut tx, mut rx) = (FpduTx::new(crc, markers), FpduRx::new(crc, markers));
            let mut stream =
                StreamRx::new(Extensions { immediate: true, atomic: true, send_imm: false });
            for frame in conversation
                .frames
                .iter()
                .filter(|frame| frame.kind == "fpdu" && frame.dir == direction)
            {
                let what = format!("{name}: {}", frame.note);
                let mut bytes = unhex(&frame.hex);
                assert_eq!(Some(rx.position()), frame.stream_offset, "{what}");
                let total = bytes.len();
                let Ok(Step::Fpdu(Fpdu { consumed, ulpdu, .. })) = rx.next(&mut bytes) else {
                    panic!("{what}")
                };
                assert_eq!(consumed, total, "{what}");
                let ulpdu = ulpdu.as_bytes();
                assert_eq!(ulpdu, unhex(frame.ulpdu_hex.as_ref().unwrap()), "{what}");

                let fields = FrameFields::of(frame);
                let (header, len) = Header::parse(ulpdu).unwrap();
                assert_eq!(header, header_of(&fields), "{what}");
                let opcode = match stream.admit(&header) {
                    Ok(opcode) => opcode,
                    // Two conversations test a Terminate, which follows its cause.
                    Err(error) => {
                        let offending = ["reserved", "RDMA Read Response"];
                        assert!(
                            offending.contains(&frame.rdma_message.as_deref().unwrap()),
                            "{what}: {error}"
                        );
                        Opcode::Write
                    }
                };
                let mut built = vec![0; len];
                header.emit(&mut built);
                built.extend(body_of(&fields, opcode));
                assert_eq!(built, ulpdu, "{what}");
                assert_eq!(sealed(&mut tx, &built, frame), unhex(&frame.hex), "{what}");
                count += 1;
            }
        }
    }
    assert_eq!(count, 69);
}

// ---------------------------------------------------------------- what has to be refused

/// Receiver for the negative vectors. It has one receive buffer of 64 bytes, and one Tagged Buffer
/// of 64 bytes that may be read and written.
const BUFFER: u32 = 64;

/// Returns the fault that a receiver reports for a frame; `Err(None)` stands for closing at
/// startup.
fn verdict(vector: &NegativeCase) -> Result<(), Option<Fault>> {
    let mut bytes = vector.bytes.clone();
    if vector.startup {
        let answer = Responder::new(StartupConfig::default()).request(&bytes);
        return if answer.is_err() { Err(None) } else { Ok(()) };
    }
    let fpdu = match FpduRx::new(true, vector.markers).next(&mut bytes) {
        Ok(Step::Fpdu(fpdu)) => fpdu,
        Ok(more) => panic!("{}: {more:?}", vector.name),
        Err(FpduError::Crc { .. }) => return Err(Some(MpaFault::Crc.into())),
        Err(FpduError::Marker { .. }) => return Err(Some(MpaFault::Marker.into())),
    };
    dispatch(&vector.name, &fpdu.ulpdu).map_err(Some)
}

fn dispatch(name: &str, ulpdu: &[u8]) -> Result<(), Fault> {
    let (header, len) = Header::parse(ulpdu)?;
    let payload = &ulpdu[len..];
    let opcode = StreamRx::new(Extensions { immediate: true, atomic: true, send_imm: false })
        .admit(&header)?;
    match header {
        Header::Tagged(Tagged { stag, to, .. }) => {
            let len = payload.len() as u32;
            let end = to.checked_add(len.into()).ok_or(TaggedError::ToWrap { stag, to, len })?;
            if name == "tagged-invalid-stag" {
                return Err(TaggedError::InvalidStag { stag }.into());
            }
            if end > BUFFER.into() {
                return Err(TaggedError::BaseOrBounds { stag, to, len }.into());
            }
        }
        Header::Untagged(header) => {
            let buffer = match header.qn {
                QN_SEND => (name != "send-no-buffer").then_some(BUFFER),
                _ => Some(AtomicRequest::LEN as u32),
            };
            UntaggedRx::new(1).check(&header, payload.len() as u32, buffer)?;
        }
    }
    match opcode {
        Opcode::ReadRequest => {
            let ReadRequest { source_stag: stag, source_to: to, len, .. } =
                ReadRequest::parse(payload)?;
            let end =
                to.checked_add(len.into()).ok_or(ProtectionError::ToWrap { stag, to, len })?;
            if end > BUFFER.into() {
                return Err(ProtectionError::BaseOrBounds { stag, to, len }.into());
            }
        }
        Opcode::AtomicRequest => {
            let AtomicRequest { stag, to, .. } = AtomicRequest::parse(payload)?;
            if !to.is_multiple_of(8) {
                return Err(RdmapError::AtomicUnaligned { stag, to }.into());
            }
        }
        Opcode::SendInvalidate | Opcode::SendSeInvalidate => {
            let stag = STag(u32::from_be_bytes(ulpdu[2..6].try_into().unwrap()));
            return Err(ProtectionError::CannotInvalidate { stag }.into());
        }
        _ => {}
    }
    Ok(())
}

// [test:RFC5041-7.2-01] [test:RFC5040-4.8-03] [test:RFC5041-7.1-02] [test:RFC5041-7.1-03]
// [test:RFC5041-7.1-10]
#[test]
fn negatives() {
    let text = std::fs::read_to_string(folder().join("negative.case")).unwrap();
    let cases = uiw_cases::parse("negative.case", &text).unwrap();
    assert_eq!(cases.len(), 26);
    for vector in cases.iter().map(NegativeCase::of) {
        match verdict(&vector) {
            Ok(()) => panic!("{} was accepted", vector.name),
            Err(None) => assert!(vector.startup, "{}", vector.name),
            Err(Some(fault)) => {
                let (layer, etype, code) = fault.reason().codes();
                assert!(
                    vector.terminates.contains(&[layer, etype, code]),
                    "{}: {fault:?}",
                    vector.name
                );
            }
        }
    }
}

#[test]
fn request_is_no_reply() {
    let request = unhex("4d504120494420526571204672616d6540010000");
    assert!(Initiator::new(StartupConfig::default(), b"").unwrap().reply(&request).is_err());
    assert!(Responder::new(StartupConfig::default()).request(&request).is_ok());
}
