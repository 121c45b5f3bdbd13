//! Scripted peers that start a connection as adapters do, in both roles, and refuse the same things
//! as their drivers and hardware. The behaviour is **derived from driver source** (Linux 6.x,
//! `drivers/infiniband/hw`) and from reports about the hardware (docs/nics.md); it was not tested
//! with real adapters.

use crate::common::{End, initiator_with, plain, responder_with};
use crate::peer::{Peer, Port, enhanced, reply, request, tagged, terminate, untagged, with};
use uiw_ddp::TaggedError;
use uiw_mpa::startup::{Rtr, RtrKinds};
use uiw_mpa::wire::startup::{Enhanced, Frame};
use uiw_rdmap::{Fault, Opcode, QuotedHeaders, ReadRequest};
use uiw_verbs::{
    CapabilityExchange, ConnConfig, Error, QpState, Remote, Revision, STag, SendOp, Suspect,
};

const WRITE: RtrKinds = RtrKinds { write: true, ..RtrKinds::NONE };
const READ: RtrKinds = RtrKinds { read: true, ..RtrKinds::NONE };
const SEND: RtrKinds = RtrKinds { send: true, ..RtrKinds::NONE };

fn kinds_of(enhanced: Enhanced) -> RtrKinds {
    RtrKinds { write: enhanced.rtr_write, read: enhanced.rtr_read, send: enhanced.rtr_send }
}

fn data(peer_to_peer: bool, kinds: RtrKinds, ird: u16, ord: u16) -> Enhanced {
    Enhanced {
        peer_to_peer,
        rtr_send: kinds.send,
        rtr_write: kinds.write,
        rtr_read: kinds.read,
        ..enhanced(ird, ord)
    }
}

/// Options of users that change no settings.
fn default() -> ConnConfig {
    ConnConfig::default()
}

// ---------------------------------------------------------------- FPDUs of all adapters

/// Adapter in Full Operation.
struct AdapterModel {
    peer: Peer,
    /// Whether the hardware terminates the stream for STag 0 in a tagged segment or a Read Request
    /// of any length (softiwarp issue 21).
    refuses_stag_0: bool,
    /// The only kind of first FPDU that the hardware accepts.
    first: Option<Rtr>,
}

impl AdapterModel {
    /// Receives an FPDU of ours and returns its opcode and payload. Returns `None` if the adapter
    /// has refused the FPDU and terminated the stream.
    fn take(&mut self) -> Option<(Opcode, Vec<u8>)> {
        let segment = self.peer.next().expect("an FPDU, not the end");
        let (opcode, payload) = (segment.opcode(), segment.payload().to_vec());
        let read = (opcode == Opcode::ReadRequest).then(|| segment.read_request());
        let first =
            self.first.take().is_none_or(|kind| is_rtr(kind, opcode, read.as_ref(), &payload));
        let zero = match (&read, opcode) {
            (Some(read), _) => read.source_stag.0 == 0 || read.sink_stag.0 == 0,
            (None, Opcode::Write) => segment.tagged().stag.0 == 0,
            _ => false,
        };
        if !first || self.refuses_stag_0 && zero {
            // The Terminate is the one in the trace of softiwarp issue 20.
            self.peer.fpdu(&terminate(0, 0, 0));
            return None;
        }
        if let Some(read) = read {
            assert_eq!(read.len, 0, "these tests read nothing");
            self.peer.fpdu(&tagged(
                Opcode::ReadResponse,
                read.sink_stag.0,
                read.sink_to,
                true,
                b"",
            ));
        }
        Some((opcode, payload))
    }

    /// Returns the payload of our next Send, and answers the Reads before it.
    fn next_send(&mut self) -> Vec<u8> {
        loop {
            match self.take().expect("nothing that the adapter refuses") {
                (Opcode::Send, payload) => return payload,
                (Opcode::ReadRequest, _) => {}
                (Opcode::Write, payload) => assert!(payload.is_empty(), "the capability exchange"),
                (opcode, _) => panic!("{opcode:?}"),
            }
        }
    }

    /// Exchanges a Send in each direction and checks the completions.
    fn talks(&mut self, end: &End) {
        end.send(1, 0, 9);
        assert_eq!(self.next_send().len(), 9);
        while end.device.pump() > 0 {}
        // The completion may depend on a Read after the Send.
        if end.scq.is_empty() {
            assert!(matches!(self.take(), Some((Opcode::ReadRequest, _))));
        }
        end.sent_ok(1);
        end.recv(2, 64, 64);
        self.peer.send(b"an adapter's");
        assert_eq!(end.received_ok(2).byte_len, 12);
    }
}

fn is_rtr(kind: Rtr, opcode: Opcode, read: Option<&ReadRequest>, payload: &[u8]) -> bool {
    match kind {
        Rtr::Write => opcode == Opcode::Write && payload.is_empty(),
        Rtr::Read => read.is_some_and(|read| read.len == 0),
        Rtr::Send => opcode == Opcode::Send && payload.is_empty(),
    }
}

/// Sends the zero-length Read of an adapter that initiates a connection, and checks our answer.
fn rtr_read(peer: &mut Peer, stag: u32, to: u64) {
    let read = ReadRequest {
        sink_stag: STag(stag),
        sink_to: to,
        len: 0,
        source_stag: STag(stag),
        source_to: to,
    };
    peer.msn[1] = 2;
    peer.fpdu(&untagged(Opcode::ReadRequest, 1, 1, 0, true, 0, &read.emit()));
    let answer = peer.next().expect("an answer");
    assert_eq!((answer.opcode(), answer.payload().len()), (Opcode::ReadResponse, 0));
}

// ---------------------------------------------------------------- cxgb4

/// Chelsio's T4 to T6: cxgb4/cm.c (`process_mpa_request`, `send_mpa_reply`, `send_mpa_req`,
/// `process_mpa_reply`, `peer_abort`), cxgb4/qp.c (`build_rtr_msg`), and its module parameters with
/// their defaults.
#[derive(Clone, Copy)]
struct Cxgb4 {
    mpa_rev: u8,
    peer2peer: bool,
    p2p_type: Rtr,
}

const CXGB4: Cxgb4 = Cxgb4 { mpa_rev: 2, peer2peer: true, p2p_type: Rtr::Read };

impl Cxgb4 {
    fn kinds(self) -> RtrKinds {
        if self.p2p_type == Rtr::Write { WRITE } else { READ }
    }

    fn adapter(self, mut peer: Peer, crc: bool, first: bool) -> AdapterModel {
        peer.full(crc, false, false);
        AdapterModel { peer, refuses_stag_0: true, first: first.then_some(self.p2p_type) }
    }

    /// Acts as the listener. Returns `None` if the adapter has reset the connection.
    fn answers(self, port: &Port) -> Option<AdapterModel> {
        let mut peer = port.accept();
        let asked = peer.startup_frame();
        if asked.revision > self.mpa_rev {
            peer.reset();
            return None;
        }
        let mut answer = reply(asked.revision);
        let mut first = self.peer2peer && asked.revision == 1;
        if let Some(enhanced) = asked.enhanced {
            // The adapter answers with its own kind, whatever was offered.
            first = self.peer2peer && enhanced.peer_to_peer;
            let kinds = if first { self.kinds() } else { RtrKinds::NONE };
            answer = with(answer, data(first, kinds, enhanced.ord.min(32), enhanced.ird.min(32)));
        }
        peer.raw(&answer.emit());
        Some(self.adapter(peer, true, first))
    }

    /// Returns the Request, which has revision 2.
    fn request(self) -> Frame {
        with(request(2), data(self.peer2peer, self.kinds(), 32, 32))
    }

    /// Interprets our Reply as the adapter does. Returns `None` if the adapter has sent a
    /// Terminate.
    fn begins(self, mut peer: Peer, answer: &Frame) -> Option<AdapterModel> {
        let enhanced = answer.enhanced.expect("an enhanced Reply");
        let said = kinds_of(enhanced);
        // If the Reply has both kinds, the adapter prefers a Write to a Read.
        let taken = match (enhanced.peer_to_peer, said.write, said.read) {
            (true, true, _) => Some(Rtr::Write),
            (true, false, true) => Some(Rtr::Read),
            _ => None,
        };
        if self.peer2peer && taken != Some(self.p2p_type) {
            peer.fpdu(&terminate(2, 0, 7));
            return None;
        }
        match taken {
            Some(Rtr::Read) => rtr_read(&mut peer, 1, 1),
            Some(_) => peer.write(1, 1, b""),
            None => {}
        }
        Some(AdapterModel { peer, refuses_stag_0: true, first: None })
    }
}

#[test]
fn cxgb4_accepts_default() {
    for p2p_type in [Rtr::Read, Rtr::Write] {
        for peer2peer in [true, false] {
            for acknowledged in [false, true] {
                let (end, port) = (End::new(), Port::new());
                end.connect(port.addr(), &default().acknowledged(acknowledged));
                let nic = Cxgb4 { p2p_type, peer2peer, ..CXGB4 };
                let mut adapter = nic.answers(&port).expect("revision 2");
                let negotiated = end.established().negotiated;
                assert_eq!((negotiated.rtr, negotiated.ord), (peer2peer.then_some(p2p_type), 32));
                adapter.talks(&end);
            }
        }
    }
}

/// Requests that this end sends on its own name STag 1 and TO 1, like `build_rtr_msg`.
#[test]
fn zero_length_requests_name_stag_1() {
    let (end, port) = (End::new(), Port::new());
    end.connect(port.addr(), &default().capabilities(CapabilityExchange::Off).acknowledged(true));
    let mut adapter = CXGB4.answers(&port).unwrap();
    end.established();
    adapter.first = None;
    let names_1 = |read: &ReadRequest| {
        (read.source_stag.0, read.source_to, read.sink_stag.0, read.sink_to, read.len)
            == (1, 1, 1, 1, 0)
    };
    let rtr = adapter.peer.next().unwrap().read_request();
    assert!(names_1(&rtr), "{rtr:?}");
    adapter.peer.fpdu(&tagged(Opcode::ReadResponse, 1, 1, true, b""));
    end.send(1, 0, 9);
    assert_eq!(adapter.peer.next().unwrap().opcode(), Opcode::Send);
    let acknowledgement = adapter.peer.next().unwrap().read_request();
    assert!(names_1(&acknowledgement), "{acknowledgement:?}");
    adapter.peer.fpdu(&tagged(Opcode::ReadResponse, 1, 1, true, b""));
    end.sent_ok(1);
    // When the queue pair is destroyed while the stream exists, the engine sends the drain Read.
    let End { qp, device, .. } = end;
    drop(qp);
    while device.pump() > 0 {}
    let drain = adapter.peer.next().unwrap().read_request();
    assert!(names_1(&drain), "{drain:?}");

    let (end, port) = (End::new(), Port::new());
    end.connect(port.addr(), &default().capabilities(CapabilityExchange::Off));
    let nic = Cxgb4 { p2p_type: Rtr::Write, ..CXGB4 };
    let mut adapter = nic.answers(&port).unwrap();
    let write = adapter.peer.next().unwrap().tagged();
    assert_eq!((write.stag.0, write.to), (1, 1));
}

#[test]
fn cxgb4_of_revision_1_accepts_default() {
    for acknowledged in [false, true] {
        let (end, port) = (End::new(), Port::new());
        end.connect(port.addr(), &default().acknowledged(acknowledged));
        let nic = Cxgb4 { mpa_rev: 1, ..CXGB4 };
        assert!(nic.answers(&port).is_none(), "reset on revision 2");
        let mut adapter = nic.answers(&port).expect("revision 1");
        let negotiated = end.established().negotiated;
        assert_eq!((negotiated.revision, negotiated.rtr), (1, Some(Rtr::Read)));
        adapter.talks(&end);
    }
}

#[test]
fn cxgb4_revision_1_write_refusal_named() {
    for options in [default().peer_to_peer(false), default().rtr(WRITE)] {
        let (end, port) = (End::new(), Port::new());
        end.connect(port.addr(), &options.revision(Revision::One));
        let mut adapter = CXGB4.answers(&port).unwrap();
        end.established();
        assert!(adapter.take().is_none(), "the Write of the capability exchange");
        let ending = end.ended();
        assert_eq!(ending.suspect, Some(Suspect::ReadRtrRequired));
        assert_eq!(
            ending.reason.map(|reason| (reason.layer, reason.etype, reason.code)),
            Some((0, 0, 0))
        );
    }
}

#[test]
fn cxgb4_revision_1_without_fallback_named() {
    let (end, port) = (End::new(), Port::new());
    let options = default().fallback(false);
    end.connect(port.addr(), &options);
    assert!(Cxgb4 { mpa_rev: 1, ..CXGB4 }.answers(&port).is_none());
    assert_eq!(Suspect::of_connect(&options, &end.failed()), Some(Suspect::RevisionOne));
}

/// The headers quoted in a Terminate tell whether it refers to the Write of the capability exchange
/// or to a request of the program.
#[test]
fn exchange_suspected_for_own_write_only() {
    for (quotes_request, suspect) in [(false, Some(Suspect::CapabilityExchange)), (true, None)] {
        let end = End::new();
        let answer = |asked: &Frame| with(reply(2), asked.enhanced.unwrap());
        let (mut peer, _) = initiator_with(&end, &default(), answer);
        end.op(7, SendOp::Write { remote: Remote { addr: 4096, rkey: STag(0x55) } }, 0, 8);
        let first = peer.next().unwrap();
        let quoted = if quotes_request { peer.expect_fpdu() } else { first };
        let fault = Fault::from(TaggedError::InvalidStag { stag: quoted.tagged().stag });
        let segment_len = quoted.ulpdu.len() as u16;
        let terminate = fault.terminate(Some(QuotedHeaders {
            segment_len,
            header: &quoted.ulpdu,
            read_request: None,
        }));
        peer.fpdu(&untagged(Opcode::Terminate, 2, 1, 0, true, 0, &terminate.emit()));
        assert_eq!(end.ended().suspect, suspect);
    }
}

/// The engine sends the user's operations unchanged.
#[test]
fn cxgb4_refuses_a_users_stag_0() {
    let (end, port) = (End::new(), Port::new());
    end.connect(port.addr(), &default());
    let mut adapter = CXGB4.answers(&port).unwrap();
    end.established();
    adapter.talks(&end);
    end.op(7, SendOp::Write { remote: Remote::default() }, 0, 0);
    assert!(adapter.take().is_none());
    assert!(end.ended().suspect.is_none(), "it had sent data before");
}

#[test]
fn cxgb4_begins() {
    for p2p_type in [Rtr::Read, Rtr::Write] {
        for (peer2peer, acknowledged) in [(true, false), (true, true), (false, false)] {
            let nic = Cxgb4 { p2p_type, peer2peer, ..CXGB4 };
            let end = End::new();
            let (peer, answer) =
                responder_with(&end, &default().acknowledged(acknowledged), &nic.request());
            // We answer with exactly the adapter's kind, because it accepts no other.
            let said = answer.enhanced.unwrap();
            let expected = if peer2peer { nic.kinds() } else { RtrKinds::NONE };
            assert_eq!((said.peer_to_peer, kinds_of(said)), (peer2peer, expected));
            let mut adapter = nic.begins(peer, &answer).expect("no Terminate");
            if !peer2peer {
                // The adapter's application sends first.
                adapter.peer.send(b"first");
                end.recv(9, 128, 16);
            }
            end.established();
            if !peer2peer {
                end.received_ok(9);
            }
            adapter.talks(&end);
        }
    }
}

#[test]
fn cxgb4_begins_at_revision_1() {
    let end = End::new();
    let (mut peer, answer) = responder_with(&end, &default(), &request(1));
    assert_eq!((answer.revision, answer.enhanced), (1, None));
    rtr_read(&mut peer, 1, 1);
    end.established();
    AdapterModel { peer, refuses_stag_0: true, first: None }.talks(&end);
}

#[test]
fn cxgb4_refuses_reply_without_rtr_kind() {
    let end = End::new();
    let (peer, answer) = responder_with(&end, &default().rtr(WRITE), &CXGB4.request());
    assert!(CXGB4.begins(peer, &answer).is_none(), "its Terminate 2/0/7");
    assert!(matches!(end.failed(), Error::NotConnected));
    assert_eq!(end.qp.query().state, QpState::Err);
}

// ---------------------------------------------------------------- irdma, i40iw

/// Intel's E810, E823 and X722: irdma/cm.c (`irdma_parse_mpa`, `irdma_negotiate_mpa_v2_ird_ord`,
/// `irdma_build_mpa_v2`). The adapter requests Markers if the device orders segments itself
/// (`iw_ooo`). It answers a frame that it does not accept with a reset.
#[derive(Clone, Copy)]
struct Irdma {
    markers: bool,
    ird: u16,
    ord: u16,
}

/// STag of the adapter's zero-length Read and Write (`irdma_sc_send_rtt`).
const IRDMA_STAG: u32 = 0xABCD;

impl Irdma {
    /// Returns the RTR kind that the adapter chooses, or `None` if it gives up.
    fn negotiate(self, said: Enhanced, initiator: bool) -> Option<Rtr> {
        let kinds = kinds_of(said);
        let no_read = said.ird == 0 && kinds.read;
        if !said.peer_to_peer || initiator && (no_read || self.ird < said.ord) {
            return None;
        }
        match (kinds.read, kinds.write) {
            (true, _) => Some(Rtr::Read),
            (false, true) => Some(Rtr::Write),
            (false, false) => None,
        }
    }

    fn answers(self, port: &Port) -> Option<AdapterModel> {
        let mut peer = port.accept();
        let asked = peer.startup_frame();
        let mut answer = reply(asked.revision);
        answer.markers = self.markers && asked.revision == 2;
        if let Some(said) = asked.enhanced {
            let Some(rtr) = self.negotiate(said, false) else {
                peer.reset();
                return None;
            };
            let kinds = if rtr == Rtr::Read { READ } else { WRITE };
            answer = with(answer, data(true, kinds, self.ird, self.ord.min(said.ird)));
        }
        peer.raw(&answer.emit());
        peer.full(true, asked.markers, answer.markers);
        Some(AdapterModel { peer, refuses_stag_0: false, first: None })
    }

    fn request(self) -> Frame {
        let mut frame = with(
            request(2),
            data(true, RtrKinds { send: false, ..RtrKinds::ALL }, self.ird, self.ord),
        );
        frame.markers = self.markers;
        frame
    }

    fn begins(self, mut peer: Peer, answer: &Frame) -> Option<AdapterModel> {
        match self.negotiate(answer.enhanced?, true) {
            None => {
                peer.reset();
                return None;
            }
            Some(Rtr::Read) => rtr_read(&mut peer, IRDMA_STAG, 0),
            Some(_) => peer.write(IRDMA_STAG, 0, b""),
        }
        Some(AdapterModel { peer, refuses_stag_0: false, first: None })
    }
}

/// IRD and ORD of the adapter; it rounds them to sizes of the hardware.
const IRDMA: Irdma = Irdma { markers: false, ird: 127, ord: 127 };

#[test]
fn irdma_takes_the_default() {
    for markers in [false, true] {
        for acknowledged in [false, true] {
            let (end, port) = (End::new(), Port::new());
            end.connect(port.addr(), &default().acknowledged(acknowledged));
            let mut adapter = Irdma { markers, ..IRDMA }.answers(&port).expect("no reset");
            let negotiated = end.established().negotiated;
            assert_eq!((negotiated.rtr, negotiated.markers_tx), (Some(Rtr::Read), markers));
            assert_eq!(negotiated.ord, 127);
            adapter.talks(&end);
        }
    }
}

#[test]
fn irdma_refusals_named() {
    for options in [default().peer_to_peer(false), default().rtr(SEND)] {
        let options = options.fallback(false);
        let (end, port) = (End::new(), Port::new());
        end.connect(port.addr(), &options);
        assert!(IRDMA.answers(&port).is_none());
        assert_eq!(Suspect::of_connect(&options, &end.failed()), Some(Suspect::PeerToPeerRequired));
    }
}

/// Revision 1 has no such rule.
#[test]
fn irdma_accepts_revision_1_after_reset() {
    let (end, port) = (End::new(), Port::new());
    end.connect(port.addr(), &default().peer_to_peer(false));
    assert!(IRDMA.answers(&port).is_none());
    let mut adapter = IRDMA.answers(&port).expect("revision 1");
    assert_eq!(end.established().negotiated.revision, 1);
    adapter.talks(&end);
}

#[test]
fn irdma_begins() {
    for markers in [false, true] {
        for (options, depth) in
            [(default(), 127), (default().ird(4).ord(4), 4), (default().rtr(WRITE), 127)]
        {
            let nic = Irdma { markers, ..IRDMA };
            let end = End::new();
            let (peer, answer) = responder_with(&end, &options, &nic.request());
            let mut adapter = nic.begins(peer, &answer).expect("no reset");
            let negotiated = end.established().negotiated;
            assert_eq!((negotiated.markers_tx, negotiated.ord), (markers, depth));
            adapter.talks(&end);
        }
    }
}

#[test]
fn irdma_refuses_reply_without_rtr() {
    let end = End::new();
    let (peer, answer) = responder_with(&end, &default().rtr(SEND), &IRDMA.request());
    assert!(IRDMA.begins(peer, &answer).is_none());
    assert!(matches!(end.failed(), Error::NotConnected));
}

// ---------------------------------------------------------------- qedr

/// Marvell's FastLinQ 41000 and 45000: qed/qed_iwarp.c (`qed_iwarp_mpa_v2_set_private`,
/// `qed_iwarp_parse_private_data`). Its Reply contains the RTR kinds that both ends support, or all
/// of its own kinds if there are none in common.
#[derive(Clone, Copy)]
struct Qedr {
    rtr: RtrKinds,
}

const QEDR: Qedr = Qedr { rtr: RtrKinds::ALL };

impl Qedr {
    fn answers(self, port: &Port) -> AdapterModel {
        let mut peer = port.accept();
        let asked = peer.startup_frame();
        let mut answer = reply(asked.revision);
        let mut first = None;
        if let Some(said) = asked.enhanced {
            let kinds = if said.peer_to_peer { kinds_of(said) } else { RtrKinds::NONE };
            let common = kinds.intersect(self.rtr);
            let kinds = if common.is_empty() && said.peer_to_peer { self.rtr } else { common };
            // The adapter accepts any of these kinds.
            first = kinds.preferred();
            answer =
                with(answer, data(said.peer_to_peer, kinds, said.ord.min(32), said.ird.min(32)));
        }
        peer.raw(&answer.emit());
        peer.full(true, false, false);
        AdapterModel { peer, refuses_stag_0: false, first }
    }

    fn request(self) -> Frame {
        with(request(2), data(true, self.rtr, 32, 32))
    }

    /// Acts on our Reply with the `kind` that the firmware chooses among those of the Reply. The
    /// firmware answers a Reply without any of its own kinds with a Terminate.
    fn begins(self, mut peer: Peer, answer: &Frame, kind: Rtr) -> Option<AdapterModel> {
        let said = kinds_of(answer.enhanced.expect("an enhanced Reply")).intersect(self.rtr);
        if !said.contains(kind) {
            peer.fpdu(&terminate(2, 0, 7));
            return None;
        }
        match kind {
            Rtr::Read => rtr_read(&mut peer, 0, 0),
            Rtr::Write => peer.write(0, 0, b""),
            Rtr::Send => peer.send(b""),
        }
        Some(AdapterModel { peer, refuses_stag_0: false, first: None })
    }
}

#[test]
fn qedr_accepts_default() {
    for rtr in [RtrKinds::ALL, READ, WRITE, RtrKinds { write: false, ..RtrKinds::ALL }] {
        for acknowledged in [false, true] {
            let (end, port) = (End::new(), Port::new());
            end.connect(port.addr(), &default().acknowledged(acknowledged));
            let mut adapter = Qedr { rtr }.answers(&port);
            assert_eq!(end.established().negotiated.rtr, rtr.preferred());
            adapter.talks(&end);
        }
    }
}

#[test]
fn qedr_begins_with_each_kind() {
    for kind in [Rtr::Write, Rtr::Read, Rtr::Send] {
        let end = End::new();
        end.recv(9, 256, 16);
        let (peer, answer) = responder_with(&end, &default(), &QEDR.request());
        let mut adapter = QEDR.begins(peer, &answer, kind).expect("no Terminate");
        assert!(end.established().negotiated.peer_to_peer);
        // An RTR Send is not delivered to the application.
        adapter.peer.send(b"first");
        assert_eq!(end.received_ok(9).byte_len, 5);
        adapter.talks(&end);
    }
}

#[test]
fn qedr_without_common_kind_refused() {
    let (end, port) = (End::new(), Port::new());
    let options = default().rtr(SEND);
    end.connect(port.addr(), &options);
    let mut adapter = Qedr { rtr: READ }.answers(&port);
    adapter.peer.expect_terminate(2, 0, 7);
    assert_eq!(Suspect::of_connect(&options, &end.failed()), Some(Suspect::RtrKinds));

    let end = End::new();
    let (peer, answer) = responder_with(&end, &plain().rtr(SEND), &Qedr { rtr: READ }.request());
    assert!(Qedr { rtr: READ }.begins(peer, &answer, Rtr::Read).is_none());
    assert!(matches!(end.failed(), Error::NotConnected));
}
