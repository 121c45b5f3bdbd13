//! Peer that sends valid or invalid MPA, DDP and RDMAP messages according to the input, and checks
//! all bytes of the answers.

use std::collections::VecDeque;

use uiw_ddp::{Header, STag, Tagged, Untagged};
use uiw_llp::TransportStream;
use uiw_mem::{IoVec, IoVecMut};
use uiw_mpa::crc32c;
use uiw_mpa::rx::{FpduRx, Step};
use uiw_mpa::tx::FpduTx;
use uiw_mpa::wire::startup::{Enhanced, Frame, FrameKind};
use uiw_rdmap::{AtomicOp, AtomicRequest, AtomicResponse, Control, Opcode, ReadRequest, Terminate};
use uiw_verbs::{Access, ConnConfig};

use super::application::Application;
use super::memory::{Arena, Part, SWAP};
use crate::input::Input;

/// STag with which our side accesses the peer's memory.
pub(crate) const STAG_OF_PEER: u32 = 0x7701;

pub(crate) struct Peer {
    stream: Option<Box<dyn TransportStream>>,
    initiator: bool,
    tx: FpduTx,
    rx: Option<FpduRx>,
    inbox: Vec<u8>,
    frame: Option<Frame>,
    sent_frame: Option<Frame>,
    msn: [u32; 4],
    mo: [u32; 4],
    /// Requests of our side that are not answered yet.
    asked: VecDeque<AskedRequest>,
    ended: bool,
    terminates: u32,
}

enum AskedRequest {
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

impl Peer {
    pub(crate) fn new(stream: Box<dyn TransportStream>, initiator: bool) -> Self {
        Self {
            stream: Some(stream),
            initiator,
            tx: FpduTx::new(true, false),
            rx: None,
            inbox: Vec::new(),
            frame: None,
            sent_frame: None,
            msn: [1; 4],
            mo: [0; 4],
            asked: VecDeque::new(),
            ended: false,
            terminates: 0,
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        if let Some(stream) = &mut self.stream {
            let mut rest = bytes;
            // Bytes for which there is no room are lost, as with a peer that ignores the result of
            // `send`.
            while !rest.is_empty() {
                match stream.send(&[IoVec::from(rest)]) {
                    Ok(sent) => rest = &rest[sent..],
                    Err(_) => break,
                }
            }
        }
    }

    pub(crate) fn start(&mut self, options: &ConnConfig, input: &mut Input<'_>) {
        let bits = input.u8();
        let mut revision = options.revision as u8;
        if input.u8() > 240 {
            revision = input.u8() % 4;
        }
        let enhanced = (revision >= 2 && bits & 1 == 0).then(|| Enhanced {
            peer_to_peer: bits & 2 == 0,
            rtr_send: bits & 4 == 0,
            rtr_write: bits & 8 == 0,
            rtr_read: bits & 16 == 0,
            ird: input.pick(&[4, 0, 1, 0x3FFF, 100]),
            ord: input.pick(&[4, 0, 1, 0x3FFF, 100]),
        });
        let frame = Frame {
            kind: if self.initiator { FrameKind::Request } else { FrameKind::Reply },
            markers: bits & 32 != 0,
            crc: bits & 64 == 0,
            reject: !self.initiator && input.u8() > 250,
            enhanced,
            reserved: 0,
            revision,
            private_data: vec![b'p'; input.below(20)],
        };
        let mut bytes = frame.emit();
        if input.u8() > 250 {
            let at = input.below(bytes.len());
            bytes[at] ^= input.u8();
        }
        self.raw(&bytes);
        // The frame as our side decodes it.
        self.sent_frame = Frame::parse(&bytes).ok().flatten().map(|(frame, _)| frame);
    }

    /// Enters Full Operation with the negotiated properties, if the startup was successful.
    pub(crate) fn enter_full_operation(&mut self, input: &mut Input<'_>) {
        let (Some(theirs), Some(ours)) = (&self.frame, &self.sent_frame) else { return };
        let crc = theirs.crc || ours.crc;
        // M in a frame asks for Markers in the stream that its sender receives.
        let (markers_tx, markers_rx) = (theirs.markers, ours.markers);
        self.tx = FpduTx::new(crc, markers_tx);
        self.rx = Some(FpduRx::new(crc, markers_rx));
        // The RTR messages of RFC 6581 section 9.2, or none.
        match (self.initiator, input.u8()) {
            (true, 0..=149) => {
                let write = Tagged { last: true, rsvd_ulp: 0x40, stag: STag(1), to: 0 };
                self.fpdu(&write.emit(), &[]);
            }
            (true, 150..=179) => self.message(Opcode::Send, &[], 0, &mut Input::new(&[])),
            (true, 180..=209) => {
                let (sink_stag, source_stag) = (STag(1), STag(1));
                let request =
                    ReadRequest { sink_stag, sink_to: 0, len: 0, source_stag, source_to: 0 };
                self.message(Opcode::ReadRequest, &request.emit(), 0, &mut Input::new(&[]));
            }
            _ => {}
        }
    }

    fn fpdu(&mut self, header: &[u8], payload: &[u8]) {
        let mut bytes = [&[0, 0], header, payload].concat();
        self.tx.seal(&mut bytes, 0);
        self.raw(&bytes);
    }

    /// Receives the bytes from our side and checks them. `rights` are all rights that our queue
    /// pair had at any time.
    pub(crate) fn receive(&mut self, rights: Access) {
        let mut bytes = [0; 8192];
        while let Some(stream) = &mut self.stream {
            match stream.recv(&mut [IoVecMut::from(&mut bytes[..])]) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(got) => self.inbox.extend_from_slice(&bytes[..got]),
                Err(_) => break,
            }
        }
        if self.frame.is_none() {
            let Ok(Some((frame, used))) = Frame::parse(&self.inbox) else { return };
            self.inbox.drain(..used);
            self.frame = Some(frame);
        }
        while let Some(rx) = &mut self.rx {
            match rx.next(&mut self.inbox).expect("our own framing is right") {
                Step::NeedMore { .. } => break,
                Step::Fpdu(fpdu) => {
                    let (ulpdu, consumed) = (fpdu.ulpdu.to_vec(), fpdu.consumed);
                    self.inbox.drain(..consumed);
                    self.look(&ulpdu, rights);
                }
            }
        }
    }

    fn look(&mut self, ulpdu: &[u8], rights: Access) {
        let (header, len) = Header::parse(ulpdu).expect("our own headers are right");
        assert_eq!(self.terminates, 0, "an FPDU behind our Terminate: {ulpdu:02x?}");
        let payload = &ulpdu[len..];
        let opcode = Opcode::from_raw(Control::parse(header.rsvd_ulp()).opcode).expect("an opcode");
        match opcode {
            Opcode::ReadResponse => {
                assert!(
                    payload.is_empty() || rights.contains(Access::REMOTE_READ),
                    "no right to read here"
                );
                Arena::assert_no_secret(payload);
            }
            Opcode::Write
            | Opcode::Send
            | Opcode::SendSe
            | Opcode::SendImm
            | Opcode::SendInvalidate => {
                Arena::assert_no_secret(payload);
            }
            Opcode::ReadRequest => {
                let request = ReadRequest::parse(payload).expect("our own Read Request");
                self.asked.push_back(AskedRequest::Read(request));
            }
            Opcode::AtomicRequest => {
                let request = AtomicRequest::parse(payload).expect("our own Atomic Request");
                self.asked.push_back(AskedRequest::Atomic(request));
            }
            Opcode::Terminate => {
                self.terminates += 1;
                let terminate = Terminate::parse(payload).expect("our own Terminate");
                assert!(terminate.reason().is_known(), "{terminate:?}");
            }
            Opcode::AtomicResponse => {
                assert!(rights.contains(Access::REMOTE_ATOMIC), "no right to atomics here");
            }
            _ => {}
        }
    }

    /// Performs one action of the input.
    pub(crate) fn act(&mut self, arena: &Arena, application: &Application, input: &mut Input<'_>) {
        match input.u8() {
            0..=59 => self.write(arena, application, input),
            60..=119 => self.untagged(arena, application, input),
            120..=189 => self.answer(input),
            190..=199 => self.wrong_fpdu(input),
            200..=203 => {
                let bytes = input.take(40).to_vec();
                self.raw(&bytes);
            }
            204..=206 => {
                if let Some(stream) = &mut self.stream {
                    let _ = stream.shutdown();
                }
            }
            207 => {
                if let Some(stream) = &mut self.stream {
                    stream.abort();
                }
            }
            _ => self.untagged(arena, application, input),
        }
    }

    /// Returns a valid or invalid key, and the part that it is meant for.
    fn stag(arena: &Arena, application: &Application, input: &mut Input<'_>) -> (u32, Part) {
        let own = |part| (arena.rkey(part), part);
        match input.u8() {
            0..=95 => own(Part::Shared),
            96..=119 => own(Part::ReadOnly),
            120..=135 => own(Part::WriteOnly),
            136..=147 => own(Part::AtomicOnly),
            148..=159 => own(Part::Granted),
            160..=219 => {
                (application.window_stag.map_or(1, |stag| stag.0), application.window_part)
            }
            220..=229 => (arena.sink_key, Part::Sink),
            230..=239 => (arena.lkey, Part::Shared),
            240..=247 => (arena.rkey(Part::Shared) ^ 1 << (input.u8() % 32), Part::Shared),
            _ => (input.u32(), Part::Shared),
        }
    }

    /// Returns an address inside of a part, at its borders, or anywhere.
    fn to(arena: &Arena, part: Part, len: usize, input: &mut Input<'_>) -> u64 {
        let base = arena.address(part);
        match input.u8() {
            0..=139 => base + input.below(4096usize.saturating_sub(len).max(1)) as u64,
            140..=169 => base + 4096 - len as u64,
            170..=189 => base + 4097 - len as u64,
            190..=199 => base,
            200..=209 => base - 1,
            210..=219 => arena.address(Part::Sink),
            220..=229 => u64::MAX - input.below(64) as u64,
            230..=239 => base.wrapping_add(input.u16().into()),
            240..=247 => input.u16().into(),
            _ => input.u64(),
        }
    }

    fn bytes(len: usize, input: &mut Input<'_>) -> Vec<u8> {
        let seed = input.u8();
        (0..len).map(|n| (n as u8).wrapping_mul(13).wrapping_add(seed) & 0x7F).collect()
    }

    fn len(input: &mut Input<'_>) -> usize {
        match input.u8() {
            0..=99 => input.below(64),
            100..=199 => input.below(1400),
            200..=219 => 0,
            220..=239 => input.below(4200),
            _ => 8,
        }
    }

    fn write(&mut self, arena: &Arena, application: &Application, input: &mut Input<'_>) {
        let len = Self::len(input);
        let last = input.u8() < 200;
        let opcode = if input.u8() < 240 { Opcode::Write } else { Opcode::ReadResponse };
        let (stag, part) = Self::stag(arena, application, input);
        let to = Self::to(arena, part, len, input);
        let header = Tagged { last, rsvd_ulp: Control::new(opcode).emit(), stag: STag(stag), to };
        self.fpdu(&header.emit(), &Self::bytes(len, input));
    }

    fn untagged(&mut self, arena: &Arena, application: &Application, input: &mut Input<'_>) {
        let opcode = input.pick(&[
            Opcode::Send,
            Opcode::ReadRequest,
            Opcode::ReadRequest,
            Opcode::Send,
            Opcode::SendSe,
            Opcode::SendInvalidate,
            Opcode::SendSeInvalidate,
            Opcode::Immediate,
            Opcode::ImmediateSe,
            Opcode::AtomicRequest,
            Opcode::AtomicRequest,
            Opcode::SendImm,
            Opcode::Terminate,
            Opcode::AtomicResponse,
        ]);
        let message = match opcode {
            Opcode::ReadRequest => {
                let len = Self::len(input);
                let (stag, part) = Self::stag(arena, application, input);
                let to = Self::to(arena, part, len, input);
                let len = if input.u8() > 245 { input.u32() } else { len as u32 };
                let (sink_stag, source_stag) = (STag(9), STag(stag));
                ReadRequest { sink_stag, sink_to: 0x90, len, source_stag, source_to: to }
                    .emit()
                    .to_vec()
            }
            Opcode::AtomicRequest => {
                let (stag, part) = Self::stag(arena, application, input);
                let to = if input.u8() < 200 {
                    arena.address(part).next_multiple_of(8) + 8 * input.below(512) as u64
                } else {
                    Self::to(arena, part, 8, input)
                };
                // The result contains no byte that looks like a secret one.
                let swap = AtomicRequest {
                    op: AtomicOp::CmpSwap,
                    compare: 0x1111_1111_1111_1111,
                    ..AtomicRequest::fetch_add(input.u32(), STag(stag), to, SWAP, u64::MAX)
                };
                swap.emit().to_vec()
            }
            Opcode::AtomicResponse => {
                AtomicResponse { request_id: input.u32(), original: 5 }.emit().to_vec()
            }
            Opcode::Terminate => {
                // This ends the connection, so it is rare.
                if input.u8() < 200 {
                    return;
                }
                [&[input.u8(), input.u8(), input.u8(), 0][..], input.take(30)].concat()
            }
            Opcode::Immediate | Opcode::ImmediateSe if input.u8() < 220 => vec![1; 8],
            _ => {
                let len = Self::len(input);
                Self::bytes(len, input)
            }
        };
        let (invalidate, _) = Self::stag(arena, application, input);
        self.message(opcode, &message, invalidate, input);
    }

    /// Sends a message, usually to the right place, and possibly in several segments.
    fn message(&mut self, opcode: Opcode, message: &[u8], word: u32, input: &mut Input<'_>) {
        let qn = opcode.queue().unwrap_or(0);
        let q = qn as usize;
        let bend = input.u8();
        let cut = if bend & 7 == 7 { input.below(message.len().max(1)) } else { message.len() };
        for (piece, last) in [(&message[..cut], cut == message.len()), (&message[cut..], true)] {
            let mut header = Untagged {
                last,
                rsvd_ulp: Control::new(opcode).emit(),
                rsvd_ulp32: word,
                qn,
                msn: self.msn[q],
                mo: self.mo[q],
            };
            match bend {
                240..=243 => header.msn = header.msn.wrapping_add(input.u8().into()),
                244..=247 => header.mo = header.mo.wrapping_add(input.u32()),
                248..=251 => header.qn = input.u8().into(),
                252..=253 => header.rsvd_ulp = input.u8(),
                254 => header.last = !header.last,
                _ => {}
            }
            let mut ulpdu = [&header.emit(), piece].concat();
            if bend == 255 {
                ulpdu[0] ^= input.u8();
                ulpdu.truncate(input.below(ulpdu.len()));
            }
            self.fpdu(&ulpdu, &[]);
            if header.last {
                self.msn[q] = self.msn[q].wrapping_add(1);
                self.mo[q] = 0;
                break;
            }
            self.mo[q] += piece.len() as u32;
        }
    }

    /// Answers the oldest request of our side, correctly or with an error.
    fn answer(&mut self, input: &mut Input<'_>) {
        match self.asked.pop_front() {
            None => {}
            Some(AskedRequest::Atomic(request)) => {
                let request_id = request.request_id.wrapping_add((input.u8() > 230).into());
                let message = AtomicResponse { request_id, original: 7 }.emit();
                self.message(Opcode::AtomicResponse, &message, 0, input);
            }
            Some(AskedRequest::Read(request)) => {
                let bend = input.u8();
                let (mut stag, mut to, mut len) =
                    (request.sink_stag, request.sink_to, request.len as usize);
                match bend {
                    240..=243 => stag = STag(input.u32()),
                    244..=247 => to = to.wrapping_add(input.u64()),
                    248..=249 => len += 1 + input.below(64),
                    250..=251 => len = input.below(len.max(1)),
                    _ => {}
                }
                let payload = Self::bytes(len, input);
                let piece = 1 + input.below(1400);
                let mut at = 0;
                for (n, bytes) in
                    payload.chunks(piece).chain(payload.is_empty().then_some(&[][..])).enumerate()
                {
                    let last = at + bytes.len() == len && bend != 252 || bend == 253 && n == 0;
                    let header =
                        Tagged { last, rsvd_ulp: 0x42, stag, to: to.wrapping_add(at as u64) };
                    self.fpdu(&header.emit(), bytes);
                    at += bytes.len();
                }
            }
        }
    }

    /// Sends an FPDU that was damaged, or an invalid one with a correct CRC.
    fn wrong_fpdu(&mut self, input: &mut Input<'_>) {
        let mut bytes = [&[0, 0], input.take(60)].concat();
        self.tx.seal(&mut bytes, 0);
        let at = input.below(bytes.len());
        bytes[at] ^= input.u8();
        if input.bool() {
            let covered = bytes.len() - 4;
            let crc = crc32c(&bytes[..covered]).to_le_bytes();
            bytes[covered..].copy_from_slice(&crc);
        }
        self.raw(&bytes);
    }

    pub(crate) fn close(&mut self) {
        self.stream = None;
    }
}
