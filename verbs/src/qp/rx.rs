//! The receiving half of the data path: octets to FPDUs (`mpa`), segments (`ddp`), messages (`rdmap`), memory (`mem`) and
//! completions. Read from top to bottom, it is the way of one FPDU.
//!
//! CRC before placement (RFC 5044 section 6): every function below `consume` is given a [`Verified`] or works on what one
//! vouched for.

use crate::cq::Cqe;
use crate::driver::{Env, TimerKind};
use crate::pd::Pd;
use crate::qp::conn::HELLO_PATIENCE;
use crate::qp::look::Looked;
use crate::qp::read_queue::{Owed, OwedKind, QuotedSegment};
use crate::qp::teardown::{fpdu_fault, write_fault};
use crate::qp::{Conn, Down, QpInner, RecvWqe};
use crate::wc::{Wc, WcOpcode, WcStatus};
use crate::wr::Sge;
use ddp::{Header, Tagged, TaggedError, Untagged, UntaggedError, UntaggedRx};
use mem::{Access, IoVecMut, Recent, Right};
use mpa::rx::{FpduRx, Step, Verified};
use rdmap::{
    AtomicRequest, AtomicResponse, Fault, Inbound, Operation, Protection, ReadRequest, StreamRx, Terminate,
};
use std::io;
use std::time::Duration;

/// Reads of the socket in one pump, each of up to the staging's size: the stream's budget.
const READS_PER_PUMP: usize = 4;
/// Longest message on the engine's own queues: a Terminate or an Atomic Request of 52 octets, with room to see a longer one.
const CONTROL_LEN: u32 = 52;

/// What a stream remembers between FPDUs it receives.
pub(crate) struct Rx {
    pub(crate) fpdu: FpduRx,
    pub(crate) rdmap: StreamRx,
    /// Untagged queues: Send, Read Request, Terminate, Atomic Response.
    queues: [UntaggedRx; 4],
    /// The message that each of these queues is receiving, as far as it is here; of queue 0, Immediate Data only.
    control: [[u8; CONTROL_LEN as usize]; 4],
    /// The receive that the present Send fills.
    recv: RecvWqe,
    /// Whether there is one.
    receiving: bool,
    /// A verified segment that waits for a receive.
    parked: Option<Vec<u8>>,
    /// Octets of the present Write so far, and of the last one that was whole.
    write_len: u32,
    last_write_len: u32,
    /// The peer's first FPDU was received and found valid.
    pub(crate) first_seen: bool,
    /// Nothing but RTR messages came so far: a hello may still come.
    only_rtr: bool,
    /// Octets counted against the driver's pool.
    pub(crate) counted: usize,
    /// The stream is not read until others let go of octets they hold; a timer looks again.
    starved: bool,
    /// Octets of the FPDU that is not whole, as far as its front tells; 0 while none was begun.
    pub(super) wanted: usize,
}

impl Rx {
    pub(crate) fn new(crc: bool, markers: bool) -> Self {
        Self {
            fpdu: FpduRx::new(crc, markers),
            rdmap: StreamRx::new(rdmap::Extensions::default()),
            // RFC 5041 section 5.1: the first message on each queue has MSN 1.
            queues: [UntaggedRx::new(1), UntaggedRx::new(1), UntaggedRx::new(1), UntaggedRx::new(1)],
            control: [[0; CONTROL_LEN as usize]; 4],
            recv: RecvWqe::default(),
            receiving: false,
            parked: None,
            write_len: 0,
            last_write_len: 0,
            first_seen: false,
            only_rtr: true,
            counted: 0,
            starved: false,
            wanted: 0,
        }
    }

    /// Whether news of the stream can be used. To ask for it otherwise would wake whoever drives again and again.
    pub(crate) fn is_read(&self) -> bool {
        self.parked.is_none() && !self.starved
    }

    /// Whether the stream is not read because a Send waits for a receive.
    pub(crate) fn is_stalled(&self) -> bool {
        self.parked.is_some()
    }

    pub(crate) fn drop_parked(&mut self) {
        self.parked = None;
    }

    /// Whether a message has begun to fill a receive.
    pub(crate) fn is_receiving(&self) -> bool {
        self.receiving
    }

    /// The number of the receive whose Send will not be finished.
    pub(crate) fn take_recv(&mut self) -> Option<u64> {
        std::mem::take(&mut self.receiving).then_some(self.recv.wr_id)
    }
}

impl Conn {
    /// Reads what the stream has, within its budget. True when octets came.
    pub(super) fn receive(&mut self, env: &mut Env<'_>) -> Result<bool, Down> {
        if self.fin.received {
            return Ok(false);
        }
        if let Some(parked) = self.rx.parked.take() {
            let placed = self.segment(&parked, env);
            self.recent.let_go();
            if !placed? {
                self.rx.parked = Some(parked);
                return Ok(false);
            }
            self.deadlines[TimerKind::NoReceive as usize] = None;
        }
        self.rx.starved = self.inbox.is_empty() && !env.pool.has_room(crate::driver::RX_STAGING);
        if self.rx.starved {
            self.set_timer(TimerKind::Retry, Duration::from_millis(1), env);
            return Ok(false);
        }
        let staging = std::mem::take(&mut env.staging);
        let result = self.receive_into(staging, env);
        env.staging = staging;
        result
    }

    fn receive_into(&mut self, staging: &mut [u8], env: &mut Env<'_>) -> Result<bool, Down> {
        let mut work = false;
        if !self.inbox.is_empty() {
            // Octets that came with the Reply, or behind a segment that was parked.
            let mut inbox = std::mem::take(&mut self.inbox);
            let used = self.consume(inbox.octets_mut(), env)?;
            work = used > 0;
            inbox.consume(used);
            self.inbox = inbox;
            if self.rx.is_stalled() {
                self.count_held(env);
                return Ok(work);
            }
        }
        let mut have = self.inbox.len();
        staging[..have].copy_from_slice(self.inbox.octets());
        self.inbox.clear();
        for _ in 0..READS_PER_PUMP {
            if self.rx.is_stalled() {
                break;
            }
            let mut end = staging.len();
            match self.receive_in_place(have, env)? {
                Looked::Elsewhere => {}
                Looked::Staged { until } => end = until,
                Looked::Used { more } => {
                    work = true;
                    if more { continue } else { break }
                }
                Looked::Nothing => break,
            }
            let room = end - have;
            let got = match self.stream.recv(&mut [IoVecMut::from(&mut staging[have..end])]) {
                Ok(0) => {
                    self.fin.received = true;
                    if have > 0 {
                        return Err(Down::FinInsideFpdu { octets: have });
                    }
                    break;
                }
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Down::Lost(error)),
            };
            work = true;
            have = self.consume_front(staging, have + got, env)?;
            if got < room {
                break;
            }
        }
        self.hold(&staging[..have], env);
        Ok(work)
    }

    /// Makes FPDUs of `staging[..have]` and moves the rest to the front. Returns the octets left.
    fn consume_front(&mut self, staging: &mut [u8], have: usize, env: &mut Env<'_>) -> Result<usize, Down> {
        let used = self.consume(&mut staging[..have], env)?;
        staging.copy_within(used..have, 0);
        Ok(have - used)
    }

    /// Keeps octets until the next pump.
    fn hold(&mut self, rest: &[u8], env: &mut Env<'_>) {
        if rest.is_empty() {
            if self.inbox.has_buffer() {
                env.pool.give(self.inbox.replace_buffer(Vec::new()));
            }
        } else {
            if !self.inbox.has_buffer() {
                self.inbox.replace_buffer(env.pool.take());
            }
            self.inbox.extend(rest);
        }
        self.count_held(env);
    }

    /// Tells the pool how many octets this stream keeps.
    fn count_held(&mut self, env: &mut Env<'_>) {
        let counted = self.inbox.len() + self.rx.parked.as_ref().map_or(0, Vec::len);
        env.pool.count(self.rx.counted, counted);
        self.rx.counted = counted;
    }

    pub(super) fn consume(&mut self, octets: &mut [u8], env: &mut Env<'_>) -> Result<usize, Down> {
        let used = self.consume_fpdus(octets, env);
        self.recent.let_go();
        used
    }

    fn consume_fpdus(&mut self, octets: &mut [u8], env: &mut Env<'_>) -> Result<usize, Down> {
        let mut at = 0;
        loop {
            let fpdu = match self.rx.fpdu.next(&mut octets[at..]) {
                Ok(Step::Fpdu(fpdu)) => fpdu,
                Ok(Step::NeedMore { at_least }) => {
                    self.rx.wanted = at_least;
                    return Ok(at);
                }
                Err(error) => return Err(self.fault(fpdu_fault(&error), None)),
            };
            let _: Verified = fpdu.proof;
            let ulpdu = &octets[at + fpdu.ulpdu.start..at + fpdu.ulpdu.end];
            at += fpdu.consumed;
            if !self.segment(ulpdu, env)? {
                self.park(ulpdu, env)?;
                return Ok(at);
            }
        }
    }

    /// One verified DDP segment. False when it must wait for a receive.
    fn segment(&mut self, ulpdu: &[u8], env: &mut Env<'_>) -> Result<bool, Down> {
        let (header, header_len) = match Header::parse(ulpdu) {
            Ok(parsed) => parsed,
            Err(error) => return Err(self.fault(Fault::from(error), Some(QuotedSegment::new(ulpdu, 18)))),
        };
        let quoted = || QuotedSegment::new(ulpdu, header_len);
        let inbound = match self.rx.rdmap.admit(&header) {
            Ok(inbound) => inbound,
            Err(error) => return Err(self.fault(Fault::from(error), Some(quoted()))),
        };
        let payload = &ulpdu[header_len..];
        let rtr_answered = self.tx.rtr_answered();
        match (header, inbound) {
            (Header::Tagged(tagged), Inbound::Write) => {
                self.write(&tagged, payload, env).map_err(|fault| self.fault(fault, Some(quoted())))?;
            }
            (Header::Tagged(tagged), _) => self.read_response(&tagged, payload, &quoted, env)?,
            (Header::Untagged(untagged), Inbound::Send { .. } | Inbound::Immediate { .. }) => {
                // Lent for the time: another count of it would cost.
                let qp = self.qp.take();
                let placed = self.send(qp.as_deref(), &untagged, inbound, payload, &quoted, env);
                self.qp = qp;
                if !placed? {
                    return Ok(false);
                }
            }
            (Header::Untagged(untagged), _) => self.control(&untagged, inbound, payload, &quoted, env)?,
        }
        self.valid_fpdu(rtr_answered == self.tx.rtr_answered(), env);
        Ok(true)
    }

    /// A valid FPDU was taken; `tells` unless it is the answer to our RTR Read, behind which the answer to the hello may come.
    fn valid_fpdu(&mut self, tells: bool, env: &mut Env<'_>) {
        if self.peer.is_open() {
            self.judge_peer(tells, env);
        }
        if self.rx.first_seen {
            return;
        }
        self.rx.first_seen = true;
        // RFC 5044 section 7.1.1: from now on the responder may send.
        self.tx.hold = false;
        self.deadlines[TimerKind::Startup as usize] = None;
        self.cm.first_fpdu(env.wakes);
    }

    /// What an FPDU without hello or answer says of the peer: anything but RTR messages makes it a foreign one.
    fn judge_peer(&mut self, tells: bool, env: &mut Env<'_>) {
        let foreign = if self.initiator { tells } else { !self.rx.only_rtr };
        if foreign {
            self.deadlines[TimerKind::Hello as usize] = None;
            self.peer.give_up();
            self.peer_known();
        } else if !self.rx.first_seen {
            self.set_timer(TimerKind::Hello, HELLO_PATIENCE, env);
        }
    }

    /// A segment of an RDMA Write (RFC 5041 section 5.2, RFC 5040 section 5.2.1).
    fn write(&mut self, header: &Tagged, payload: &[u8], env: &mut Env<'_>) -> Result<(), Fault> {
        if payload.is_empty() {
            // STag and TO of an empty Write are not checked; our own peers say hello there.
            let first = self.initiator || self.rx.only_rtr;
            let before = self.peer.known;
            if let Some(answer) = self.peer.on_empty_write(header.stag, header.to, first) {
                self.tx.greeting = Some(answer);
            }
            if self.peer.known != before {
                self.peer_known();
            } else if !self.initiator {
                // One of ours would have said hello in it.
                self.rx.only_rtr = false;
            }
        } else if let Some(qp) = &self.qp {
            self.rx.only_rtr = false;
            let len = payload.len() as u32;
            if !qp.access().contains(Access::REMOTE_WRITE) {
                return Err(TaggedError::AccessRights { stag: header.stag }.into());
            }
            let (from, range) = ((self.stream_id, qp.pd.id()), (header.to, len));
            env.driver
                .table
                .hold_remote(&mut self.recent, header.stag, from, range, Right::Write)
                .map_err(|error| write_fault(&error))?
                .copy_from(0, payload);
        }
        self.rx.write_len = self.rx.write_len.wrapping_add(payload.len() as u32);
        if header.last {
            self.rx.last_write_len = std::mem::take(&mut self.rx.write_len);
        }
        Ok(())
    }

    /// A segment of a Send or of Immediate Data on queue 0, for `qp` if it is not gone. False when no receive is posted.
    fn send(
        &mut self,
        qp: Option<&QpInner>,
        header: &Untagged,
        inbound: Inbound,
        payload: &[u8],
        quoted: &dyn Fn() -> QuotedSegment,
        env: &mut Env<'_>,
    ) -> Result<bool, Down> {
        let len = payload.len() as u32;
        let refuse = |conn: &Self, error: UntaggedError| conn.fault(Fault::from(error), Some(quoted()));
        // Order and offset first: a segment that may not be here must not take a receive.
        if let Err(error) = self.rx.queues[0].check(header, len, Some(u32::MAX)) {
            return Err(refuse(self, error));
        }
        if self.is_rtr_send(header, &inbound, payload) {
            self.rx.queues[0].placed(header, 0);
            return Ok(true);
        }
        let Some(qp) = qp else {
            // The queue pair is gone, and says farewell: what was on its way is taken as by a card whose program looks no more.
            self.rx.queues[0].placed(header, len);
            return Ok(true);
        };
        self.rx.receiving = self.rx.receiving || qp.take_recv(&mut self.rx.recv, self.token, env.wakes);
        if !self.rx.receiving {
            return Ok(false);
        }
        let recv = &self.rx.recv;
        self.rx.only_rtr = false;
        let immediate = matches!(inbound, Inbound::Immediate { .. });
        let room = if immediate { 8 } else { recv.len };
        let place = match self.rx.queues[0].check(header, len, Some(room)) {
            Ok(place) => place,
            Err(error) => {
                if matches!(error, UntaggedError::TooLong { .. }) && !immediate {
                    self.end_recv(qp, WcStatus::LocalLength, env);
                }
                return Err(refuse(self, error));
            }
        };
        if immediate {
            self.rx.control[0][place.offset as usize..place.offset as usize + payload.len()]
                .copy_from_slice(payload);
        } else if scatter((&qp.pd, &env.driver.table, &mut self.recent), &recv.sges, place.offset, payload)
            .is_err()
        {
            self.end_recv(qp, WcStatus::LocalProtection, env);
            return Err(self.fault(Fault::LocalCatastrophic, None));
        }
        if let Some(delivered) = self.rx.queues[0].placed(header, len) {
            self.deliver(qp, inbound, delivered.len, quoted, env)?;
        }
        Ok(true)
    }

    /// RFC 6581 section 9.2: a zero-length Send as the initiator's first FPDU is the RTR message, where our Reply offered that
    /// kind; the engine takes it.
    fn is_rtr_send(&self, header: &Untagged, inbound: &Inbound, payload: &[u8]) -> bool {
        let rtr = !self.initiator
            && !self.rx.first_seen
            && self.negotiated.as_ref().is_some_and(|n| n.peer_to_peer && n.rtr_kinds.send);
        rtr && payload.is_empty()
            && header.last
            && matches!(inbound, Inbound::Send { solicited: false, invalidate: None, imm: None })
    }

    fn end_recv(&mut self, qp: &QpInner, status: WcStatus, env: &mut Env<'_>) {
        if let Some(wr_id) = self.rx.take_recv() {
            qp.complete_recv(wr_id, status, None, env.wakes);
        }
    }

    /// A whole message on queue 0: its receive completes.
    fn deliver(
        &mut self,
        qp: &QpInner,
        inbound: Inbound,
        len: u32,
        quoted: &dyn Fn() -> QuotedSegment,
        env: &mut Env<'_>,
    ) -> Result<(), Down> {
        let (solicited, imm, invalidate, immediate) = match inbound {
            Inbound::Send { solicited, invalidate, imm } => (solicited, imm, invalidate, false),
            Inbound::Immediate { solicited } => {
                if len != 8 {
                    return Err(self.fault(Operation::Unspecified.into(), Some(quoted())));
                }
                let [a, b, c, d, ..] = self.rx.control[0];
                (solicited, Some(u32::from_be_bytes([a, b, c, d])), None, true)
            }
            _ => return Ok(()),
        };
        if invalidate.is_some() {
            // What ends a region holds none.
            self.recent.let_go();
        }
        if let Some(stag) = invalidate
            && env.driver.table.invalidate_remote(stag, qp.stream(), qp.pd.id()).is_err()
        {
            return Err(self.fault(Protection::CannotInvalidate { stag }.into(), Some(quoted())));
        }
        let Some(wr_id) = self.rx.take_recv() else { return Ok(()) };
        // An immediate counts the Write in front of it, not one that was followed by something else.
        let write_len = std::mem::take(&mut self.rx.last_write_len);
        let wc = Wc {
            wr_id,
            status: WcStatus::Success,
            opcode: if immediate { WcOpcode::RecvWriteImm } else { WcOpcode::Recv },
            byte_len: if immediate { write_len } else { len },
            imm,
            invalidated: invalidate.map(|stag| stag.0),
            qp_num: qp.num,
            reason: None,
            timestamp_ns: 0,
        };
        qp.recv_cq.push(Cqe { wc, solicited }, env.wakes).map(drop).ok_or(Down::CqOverflow)
    }

    /// A segment of the engine's own queues: Read Request, Atomic Request, Terminate, Atomic Response.
    fn control(
        &mut self,
        header: &Untagged,
        inbound: Inbound,
        payload: &[u8],
        quoted: &dyn Fn() -> QuotedSegment,
        env: &mut Env<'_>,
    ) -> Result<(), Down> {
        let len = payload.len() as u32;
        let qn = header.qn as usize & 3;
        let queue = &mut self.rx.queues[qn];
        let place = match queue.check(header, len, Some(CONTROL_LEN)) {
            Ok(place) => place.offset as usize,
            Err(error) => return Err(self.fault(Fault::from(error), Some(quoted()))),
        };
        self.rx.control[qn][place..place + payload.len()].copy_from_slice(payload);
        let Some(message) = queue.placed(header, len) else { return Ok(()) };
        let octets = self.rx.control[qn];
        let octets = &octets[..message.len as usize];
        let malformed = |conn: &Self| conn.fault(Operation::Unspecified.into(), Some(quoted()));
        match inbound {
            Inbound::ReadRequest => {
                let request = ReadRequest::parse(octets).map_err(|_| malformed(self))?;
                if request.len > 0 || self.rx.first_seen {
                    self.rx.only_rtr = false;
                }
                self.owe(OwedKind::Read(request), quoted())
            }
            Inbound::AtomicRequest => {
                self.rx.only_rtr = false;
                let request = AtomicRequest::parse(octets).map_err(|_| malformed(self))?;
                self.owe(OwedKind::Atomic(request), quoted())
            }
            Inbound::AtomicResponse => {
                let response = AtomicResponse::parse(octets).map_err(|_| malformed(self))?;
                self.atomic_response(&response, quoted, env)
            }
            _ => {
                let refuses_reply = !self.initiator && !self.rx.first_seen;
                let parsed = Terminate::parse_at(octets, refuses_reply);
                let (terminate, origin) = parsed.map_err(|_| malformed(self))?;
                Err(Down::Terminated(Box::new(terminate), origin))
            }
        }
    }

    /// A Read or atomic of the peer's joins the queue of what is owed; the sending half answers it.
    fn owe(&mut self, kind: OwedKind, segment: QuotedSegment) -> Result<(), Down> {
        if self.fin.sent {
            // Our half is closed; the peer learns from the FIN that no answer comes.
            return Ok(());
        }
        if !self.reads.may_owe(usize::from(self.tx.is_answering())) {
            // More than the IRD that was agreed: queue 1 has no buffer for it (RFC 5041 section 7.1).
            let msn = self.rx.queues[1].expected_msn().wrapping_sub(1);
            return Err(self.fault(Fault::from(UntaggedError::NoBuffer { msn }), Some(segment)));
        }
        self.reads.owed.push_back(Owed { kind, segment });
        Ok(())
    }

    /// Keeps a segment until a receive is posted, and the stream unread.
    fn park(&mut self, ulpdu: &[u8], env: &mut Env<'_>) -> Result<(), Down> {
        // It was received and found valid; that we have no receive must not keep our own half waiting.
        self.rx.only_rtr = false;
        self.valid_fpdu(true, env);
        if self.no_receive_timeout.is_zero() {
            self.rx.parked = Some(ulpdu.to_vec());
            return Err(self.no_receive_in_time());
        }
        self.rx.parked = Some(ulpdu.to_vec());
        self.set_timer(TimerKind::NoReceive, self.no_receive_timeout, env);
        Ok(())
    }

    /// Also for a Send that waits already: its time begins anew.
    pub(crate) fn set_no_receive_timeout(&mut self, timeout: Duration, env: &mut Env<'_>) {
        self.no_receive_timeout = timeout;
        if self.rx.is_stalled() {
            self.set_timer(TimerKind::NoReceive, timeout, env);
        }
    }

    /// No receive was posted for the parked segment in time (RFC 5041 section 7.1: 1/2/02).
    pub(super) fn no_receive_in_time(&mut self) -> Down {
        let parked = self.rx.parked.take().unwrap_or_default();
        let msn = self.rx.queues[0].expected_msn();
        self.fault(
            Fault::from(UntaggedError::NoBuffer { msn }),
            Some(QuotedSegment::new(&parked, Untagged::LEN)),
        )
    }

    /// Reads and forgets, while closing. True when octets came.
    pub(super) fn discard(&mut self) -> bool {
        let mut scratch = [0u8; 16 << 10];
        let mut work = false;
        for _ in 0..READS_PER_PUMP {
            match self.stream.recv(&mut [IoVecMut::from(&mut scratch[..])]) {
                Ok(0) => {
                    self.fin.received = true;
                    break;
                }
                Ok(_) => work = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.fin.received = true;
                    self.fin.sent = true;
                    break;
                }
            }
        }
        work
    }
}

/// Places `payload` at octet `offset` of a message whose memory is `sges`.
pub(super) fn scatter(
    (pd, table, recent): (&Pd, &mem::Table, &mut Recent),
    sges: &[Sge],
    offset: u32,
    payload: &[u8],
) -> Result<(), mem::LocalError> {
    let mut skip = u64::from(offset);
    let mut rest = payload;
    for sge in sges {
        if rest.is_empty() {
            break;
        }
        let room = u64::from(sge.length);
        if skip >= room {
            skip -= room;
            continue;
        }
        let take = (room - skip).min(rest.len() as u64) as usize;
        let (now, later) = rest.split_at(take);
        let range = (sge.addr.wrapping_add(skip), take as u32);
        table.hold_local(recent, sge.lkey, pd.id(), range, true)?.copy_from(0, now);
        rest = later;
        skip = 0;
    }
    Ok(())
}

#[cfg(test)]
impl Rx {
    /// As after so many messages on each queue but the Terminate's.
    pub(crate) fn at_msn(&mut self, msn: u32) {
        for qn in [0, 1, 3] {
            self.queues[qn] = UntaggedRx::new(msn);
        }
    }
}
