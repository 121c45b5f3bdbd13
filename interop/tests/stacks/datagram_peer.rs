//! Exchanges messages in both directions with a Python peer written only from `docs/datagrams.md`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use uiw::raw::cm::{CmChannel, CmEventKind, SidrListener};
use uiw::raw::{
    Access, AddressHandle, Cq, CqConfig, DatagramPort, Destination, Device, Memory, Qp, QpInit,
    QpState, RawMr, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};
use uiw_interop::stock::Running;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const QKEY: u32 = 0x0123_4567;
const TIMEOUT: Duration = Duration::from_secs(60);

/// UD queue pair with its device and memory.
pub(crate) struct End {
    device: Device,
    cq: Arc<Cq>,
    pub(crate) qp: Qp,
    mr: RawMr,
}

impl End {
    fn new() -> Self {
        Self::on(uiw::Device::open().unwrap(), LOCALHOST, 4096)
    }

    pub(crate) fn on(device: uiw::Device, local: IpAddr, max_payload: usize) -> Self {
        let device = device.as_raw().clone();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(64, CqConfig::default()).unwrap();
        let local = SocketAddr::new(local, 0);
        let port = DatagramPort::bind(&device, &[local], cq.shard(), max_payload).unwrap();
        let init = QpInit::new(&cq, &cq).signal_all(true);
        let qp = pd.create_ud_qp(init, &port).unwrap();
        qp.set_qkey(QKEY).unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            qp.modify(state).unwrap();
        }
        let memory = Memory::owned(16384).unwrap();
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, Access::LOCAL_WRITE).unwrap();
        Self { device, cq, qp, mr }
    }

    fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.mr.addr() + at, length, lkey: self.mr.lkey() }
    }

    pub(crate) fn receive(&self) {
        // SAFETY: the region lives as long as the queue pair, and its contents are only read
        // through copies.
        unsafe { self.qp.post_recv([RecvWr { wr_id: 1, sges: &[self.sge(8192, 8192)] }]) }.unwrap();
    }

    fn send(&self, qpn: u32, payload: &[u8], imm: Option<u32>, flags: SendFlags) {
        self.send_to(AddressHandle::new(LOCALHOST, LOCALHOST, 0), qpn, payload, imm, flags);
    }

    pub(crate) fn send_to(
        &self,
        ah: AddressHandle,
        qpn: u32,
        payload: &[u8],
        imm: Option<u32>,
        flags: SendFlags,
    ) {
        self.mr
            .region()
            .span(0, payload.len())
            .unwrap()
            .pin()
            .unwrap()
            .copy_from(0, payload)
            .unwrap();
        let to = Destination { ah, qpn, qkey: QKEY };
        let sges = [self.sge(0, payload.len() as u32)];
        let wr = SendWr { wr_id: 2, op: SendOp::Datagram { to, imm }, sges: &sges, flags };
        // SAFETY: as in `receive`.
        unsafe { self.qp.post_send([wr]) }.unwrap();
        assert_eq!(self.next().wr_id, 2);
    }

    fn next(&self) -> Wc {
        let mut out = Vec::new();
        let polled = self.device.wait(Some(Instant::now() + TIMEOUT), |cx| {
            if self.cq.poll(&mut out, 1) == 1 {
                Poll::Ready(())
            } else {
                self.cq.poll_ready(cx).map(|()| ())
            }
        });
        polled.expect("a completion");
        if out.is_empty() {
            assert_eq!(self.cq.poll(&mut out, 1), 1);
        }
        assert_eq!(out[0].status, WcStatus::Success, "{:?}", out[0]);
        out[0]
    }

    /// Waits for the next received message and returns its completion and payload.
    pub(crate) fn message(&self) -> (Wc, Vec<u8>) {
        let wc = self.next();
        let mut bytes = vec![0; wc.byte_len as usize - 40];
        self.mr
            .region()
            .span(8192 + 40, bytes.len())
            .unwrap()
            .pin()
            .unwrap()
            .copy_to(0, &mut bytes)
            .unwrap();
        (wc, bytes)
    }
}

fn peer(args: &[&str]) -> Option<Command> {
    let mut command = Command::new(uiw_interop::require("python3")?);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/datagram_peer.py")).args(args);
    Some(command)
}

#[test]
fn peer_answers_messages() {
    let Some(command) = peer(&["serve", "127.0.0.1"]) else { return };
    let mut peer = Running::start(command);
    peer.wait_saying("\n");
    let qpn: u32 = peer.said().split(' ').next().unwrap().parse().unwrap();
    let end = End::new();
    let long: Vec<u8> = (0..4096u32).map(|i| ((i * 7) >> 3) as u8).collect();
    for (payload, imm, flags) in [
        (&b""[..], None, SendFlags::empty()),
        (b"hello", None, SendFlags::SOLICITED),
        (b"immediate", Some(41), SendFlags::SOLICITED),
        (&long, Some(0xFFFF_FFF0), SendFlags::empty()),
    ] {
        end.receive();
        end.send(qpn, payload, imm, flags);
        let (wc, mut answer) = end.message();
        answer.reverse();
        assert_eq!(answer, payload);
        assert_eq!((wc.imm, wc.datagram_from), (imm.map(|imm| imm + 1), Some(qpn)));
    }
    let _ = peer.stop();
}

#[test]
fn peer_resolves_queue_pair_and_sends() {
    let end = End::new();
    let channel = Arc::<CmChannel>::default();
    let listener =
        SidrListener::bind(&end.device, &[SocketAddr::new(LOCALHOST, 0)], &channel).unwrap();
    let port = listener.local_addr().port().to_string();
    end.receive();
    let Some(command) = peer(&["ask", "127.0.0.1", &port, "from Python"]) else { return };
    let peer = Running::start(command);
    let event = end
        .device
        .wait(Some(Instant::now() + TIMEOUT), |cx| channel.poll_pop(cx))
        .expect("a request");
    let CmEventKind::SidrRequest(request) = event.kind else { panic!("{event:?}") };
    assert_eq!(request.private_data(), b"from the peer");
    request.accept(end.qp.num(), QKEY, b"from the listener").unwrap();
    let (wc, message) = end.message();
    let (text, number) = message.split_at(message.len() - 3);
    assert_eq!(text, b"from Python");
    let qpn = u32::from_be_bytes([0, number[0], number[1], number[2]]);
    assert_eq!(wc.datagram_from, Some(qpn));
    end.send(qpn, b"to Python", None, SendFlags::empty());
    assert_eq!(peer.end().well().said, "from the listener\nto Python\n");
}
