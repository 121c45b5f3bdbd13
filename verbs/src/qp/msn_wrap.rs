//! A connection that has lasted: its Message Sequence Numbers wrap, on every queue and through the whole engine.

use crate::cm::{self, CmChannel, CmEventKind, Listener};
use crate::{
    Access, ConnOptions, Cq, CqOptions, Device, DeviceOptions, Memory, Progress, Qp, QpCap, QpInit, RawMr,
    RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};
use llp::sim::{Link, Network};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

struct End {
    device: Device,
    qp: Qp,
    scq: Arc<Cq>,
    rcq: Arc<Cq>,
    channel: Arc<CmChannel>,
    mr: RawMr,
}

impl End {
    fn new(network: &Network, ip: IpAddr) -> Self {
        let options = DeviceOptions { progress: Progress::Manual, ..DeviceOptions::default() };
        let device = Device::with_stack(Box::new(network.stack(ip)), options).unwrap();
        let pd = device.alloc_pd().unwrap();
        let scq = device.create_cq(64, CqOptions::default()).unwrap();
        let rcq = device.create_cq(64, CqOptions::default()).unwrap();
        let (send_cq, recv_cq) = (Arc::clone(&scq), Arc::clone(&rcq));
        let init = QpInit { send_cq, recv_cq, srq: None, cap: QpCap::default(), signal_all: true, num: None };
        let qp = pd.create_qp(init).unwrap();
        let memory = Memory::owned(4096).unwrap();
        let base = memory.as_ptr() as u64;
        let mr = pd.register_raw(memory, base, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        Self { device, qp, scq, rcq, channel: Arc::default(), mr }
    }

    fn sge(&self, offset: u64, length: u32) -> [Sge; 1] {
        [Sge { addr: self.mr.addr() + offset, length, lkey: self.mr.lkey() }]
    }

    fn post(&self, wr_id: u64, op: SendOp, offset: u64) {
        let (sges, flags) = (self.sge(offset, 8), SendFlags::SIGNALED);
        // SAFETY: the memory lives as long as the end.
        unsafe { self.qp.post_send([SendWr { wr_id, op, sges: &sges, flags }]) }.unwrap();
    }

    /// As after `msn` messages on each queue, each way.
    fn at_msn(&self, msn: u32) {
        let token = self.qp.0.conn().unwrap();
        let shard = self.qp.0.driver.shard(token);
        shard.call(move |core| core.with_conn(token, |conn, _| conn.stream.set_msn(msn))).unwrap();
    }
}

fn connected(network: &Network) -> [End; 2] {
    let ips = [1, 2].map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)));
    let ends = ips.map(|ip| End::new(network, ip));
    let options =
        Arc::new(ConnOptions { capabilities: crate::CapabilityExchange::Assume, ..ConnOptions::default() });
    let at = (ips[1], 7174).into();
    let _listener = Listener::bind(&ends[1].device, at, 4, &options, &ends[1].channel).unwrap();
    cm::connect(&ends[0].qp, None, at, &options, b"", &ends[0].channel).unwrap();
    let mut established = [false; 2];
    while established != [true; 2] {
        go(network, &ends);
        for (end, established) in ends.iter().zip(&mut established) {
            match end.channel.try_pop().map(|event| event.kind) {
                Some(CmEventKind::ConnectRequest(request)) => {
                    request.accept(&end.qp, None, b"", None).unwrap();
                }
                Some(CmEventKind::Established(_)) => *established = true,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }
    ends
}

fn go(network: &Network, ends: &[End; 2]) {
    for _ in 0..200 {
        for end in ends {
            end.device.pump();
        }
        network.step();
    }
}

// [test:RFC5041-4.3-10]
#[test]
fn message_sequence_numbers_wrap_on_every_queue() {
    let network = Network::new(1);
    network.set_default_link(Link::default());
    let ends = connected(&network);
    ends.iter().for_each(|end| end.at_msn(u32::MAX - 1));
    for (n, end) in ends.iter().enumerate() {
        let peer = &ends[1 - n];
        let remote = Remote { addr: peer.mr.addr(), rkey: peer.mr.rkey() };
        for id in 0..5 {
            let sges = end.sge(1024 + id * 8, 8);
            // SAFETY: as in `post`.
            unsafe { end.qp.post_recv([RecvWr { wr_id: id, sges: &sges }]) }.unwrap();
        }
        for id in 0..5 {
            end.post(3 * id, SendOp::Send, 64);
            end.post(3 * id + 1, SendOp::Read { remote, invalidate: None }, 128);
            end.post(3 * id + 2, SendOp::FetchAdd { remote, add: 1, mask: 0 }, 192);
        }
    }
    go(&network, &ends);
    for end in &ends {
        let mut wcs: Vec<Wc> = Vec::new();
        end.scq.poll(&mut wcs, 64);
        assert!(
            wcs.iter().map(|wc| (wc.wr_id, wc.status)).eq((0..15).map(|id| (id, WcStatus::Success))),
            "{wcs:?}"
        );
        wcs.clear();
        end.rcq.poll(&mut wcs, 64);
        assert!(
            wcs.iter().map(|wc| (wc.wr_id, wc.status)).eq((0..5).map(|id| (id, WcStatus::Success))),
            "{wcs:?}"
        );
    }
}
