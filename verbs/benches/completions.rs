//! A completion queue: receives that a queue pair in error flushes at once are pushed and polled.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use uiw_verbs::{Access, CqConfig, Device, Memory, QpCap, QpInit, QpState, RecvWr, Sge};

fn main() {
    divan::main();
}

#[divan::bench(args = [1, 16, 256])]
fn push_and_poll(bencher: Bencher<'_, '_>, batch: usize) {
    let device = Device::open().expect("a device");
    let pd = device.alloc_pd().expect("a protection domain");
    let cq = device.create_cq(1024, CqConfig::default()).expect("a completion queue");
    let init =
        QpInit::new(&cq, &cq).cap(QpCap { max_recv_wr: 512, ..QpCap::default() }).signal_all(false);
    let qp = pd.create_qp(init).expect("a queue pair");
    let memory = Memory::owned(64).expect("memory");
    let base = memory.as_ptr() as u64;
    let mr = pd.register_raw(memory, base, Access::LOCAL_WRITE).expect("a region");
    qp.modify(QpState::Init).expect("INIT");
    qp.modify(QpState::Err).expect("ERROR");
    let sges = [Sge { addr: mr.addr(), length: 64, lkey: mr.lkey() }];
    bencher.counter(ItemsCount::new(batch)).bench_local(|| {
        let wrs = (0..batch as u64).map(|wr_id| RecvWr { wr_id, sges: &sges });
        // SAFETY: the region is the engine's own memory, and nothing arrives.
        unsafe { qp.post_recv(wrs) }.expect("flushed at once");
        let mut taken = 0;
        while taken < batch {
            taken += cq.poll_with(16, |wc| assert_eq!(black_box(wc.byte_len), 0));
        }
    });
}
