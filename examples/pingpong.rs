//! Round trips on the raw layer, with explicitly registered memory, queues and completions, and a
//! polling thread at each end.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use uiw::raw::cm::{self, CmChannel, CmEventKind};
use uiw::raw::{
    Access, ConnConfig, Cq, CqConfig, Device, Memory, Qp, QpCap, QpInit, RawMr, RecvWr, SendFlags,
    SendOp, SendWr, Sge,
};

const ROUNDS: u32 = 10_000;
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

struct End {
    device: Device,
    cq: Arc<Cq>,
    qp: Qp,
    memory: RawMr,
}

impl End {
    fn new() -> Result<Self> {
        let device = Device::open()?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(16, CqConfig::default())?;
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        let cap = QpCap::default();
        let qp = pd.create_qp(QpInit::new(&send_cq, &recv_cq).cap(cap))?;
        let memory = pd.register_raw(Memory::owned(128)?, 0, Access::LOCAL_WRITE)?;
        let end = Self { device, cq, qp, memory };
        end.post_recv()?;
        Ok(end)
    }

    fn sge(&self, addr: u64) -> [Sge; 1] {
        [Sge { addr, length: 64, lkey: self.memory.lkey() }]
    }

    fn post_recv(&self) -> Result<()> {
        // SAFETY: the engine owns the memory (`Memory::owned`), and `self.memory` outlives its use
        // by the queue pair.
        unsafe { self.qp.post_recv([RecvWr { wr_id: 1, sges: &self.sge(0) }])? };
        Ok(())
    }

    fn send(&self) -> Result<()> {
        let wr =
            SendWr { wr_id: 2, op: SendOp::Send, sges: &self.sge(64), flags: SendFlags::empty() };
        // SAFETY: as in `post_recv`; nothing writes the bytes.
        unsafe { self.qp.post_send([wr])? };
        Ok(())
    }

    /// Polls until a message has arrived.
    fn receive(&self) -> Result<()> {
        let mut received = false;
        while !received {
            let mut failed = None;
            self.cq.poll_with(4, |wc| {
                received |= wc.wr_id == 1;
                failed = failed.or((wc.status != uiw::WcStatus::Success).then_some(wc.status));
            });
            if let Some(status) = failed {
                return Err(status.words().into());
            }
        }
        self.post_recv()
    }
}

fn wait(end: &End, channel: &CmChannel) -> Result<CmEventKind> {
    let event = end.device.wait(None, |cx| channel.poll_pop(cx)).ok_or("no event")?;
    match event.kind {
        CmEventKind::Failed(error) => Err(error.into()),
        kind => Ok(kind),
    }
}

fn serve(end: &End, channel: &Arc<CmChannel>) -> Result<()> {
    let CmEventKind::ConnectRequest(request) = wait(end, channel)? else {
        return Err("no request".into());
    };
    request.accept(&end.qp, None, &[], None)?;
    wait(end, channel)?;
    for _ in 0..ROUNDS {
        end.receive()?;
        end.send()?;
    }
    wait(end, channel)?;
    Ok(())
}

fn main() -> Result<()> {
    let (server, options) = (End::new()?, Arc::new(ConnConfig::default()));
    let channel = Arc::new(CmChannel::default());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = cm::Listener::bind(&server.device, any, 16, &options, &channel)?;
    let address = listener.local_addr();
    let thread = std::thread::spawn(move || serve(&server, &channel));

    let client = End::new()?;
    let channel = Arc::new(CmChannel::default());
    cm::connect(&client.qp, None, address, &options, &[], &channel)?;
    wait(&client, &channel)?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        client.send()?;
        client.receive()?;
    }
    println!("{ROUNDS} round trips of 64 bytes, {:?} each", start.elapsed() / ROUNDS);
    client.qp.disconnect()?;
    wait(&client, &channel)?;
    thread.join().map_err(|_| "the server panicked")?
}
