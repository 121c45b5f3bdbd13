//! The number of a queue pair, and the state of out-of-band connections in this process.

use super::ports::{Ports, Slot};
use super::worker::Worker;
use super::{RetryPolicy, Target};
use crate::context::Context;
use crate::device::netdev::NetDev;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::fork::{self, ForkSafe, ForkState};
use uiw_cabi_core::settings::Settings;
use uiw_verbs::DatagramPort;

/// State of a process for out-of-band connections. A child of a fork begins without it.
struct ProcessState {
    ports: Option<Arc<Ports>>,
    worker: Option<Arc<Worker>>,
}

impl ForkState for ProcessState {
    const NEW: Self = Self { ports: None, worker: None };

    fn in_child(&mut self) {
        std::mem::forget(std::mem::replace(self, Self::NEW));
    }
}

/// Locked to get at the two references alone.
static SHARED: ForkSafe<ProcessState> = ForkSafe::new();

fn ports() -> Arc<Ports> {
    if let Some(ports) = &SHARED.read().ports {
        return Arc::clone(ports);
    }
    Arc::clone(SHARED.write().ports.get_or_insert_default())
}

/// The worker thread's handle; the thread is started at the first call. The lock is held meanwhile:
/// only queue pairs that are about to need the thread wait for it, once in a process.
fn worker(engine: &uiw_verbs::Device) -> Result<Arc<Worker>> {
    if let Some(worker) = running_worker() {
        return Ok(worker);
    }
    let mut shared = SHARED.write();
    match &shared.worker {
        Some(worker) => Ok(Arc::clone(worker)),
        None => Ok(Arc::clone(shared.worker.insert(Worker::start(engine)?))),
    }
}

fn running_worker() -> Option<Arc<Worker>> {
    SHARED.read().worker.clone()
}

/// The number of a queue pair, which names a TCP and UDP port of this process at the addresses of
/// the device. Given back on drop.
pub struct QpnReservation {
    slot: Slot,
    /// The generation of the process: in a child of a fork the ports are its parent's, and nothing
    /// is given back.
    generation: u32,
}

impl QpnReservation {
    /// A number on a network device, of the block of a shard. Its port is bound, and not listened
    /// on yet.
    pub fn new(netdev: &NetDev, engine: &uiw_verbs::Device, shard: usize) -> Result<Self> {
        let offers_ud = Settings::get()?.offers_ud();
        let bind = |addresses: &[SocketAddr]| match uiw_datagram::max_payload(netdev.mtu as usize) {
            Some(longest) if offers_ud => bind_datagrams(engine, addresses, shard, longest),
            _ => Ok(None),
        };
        Ok(Self { slot: ports().take(netdev, shard, &bind)?, generation: fork::generation() })
    }

    /// The UDP port; `None` where datagrams are not offered.
    pub fn datagrams(&self) -> Option<&Arc<DatagramPort>> {
        self.slot.datagrams()
    }

    /// Binds the UDP port at addresses that the device has been given since.
    pub(crate) fn bind_new_addresses(&self, netdev: &NetDev) {
        let Some(port) = self.datagrams() else { return };
        for (ip, _) in &netdev.addresses {
            let scope = match netdev.socket_address(*ip, 0) {
                SocketAddr::V6(v6) => v6.scope_id(),
                SocketAddr::V4(_) => 0,
            };
            if let Err(error) = port.add_address(*ip, scope) {
                tracing::debug!(%error, address = %ip, "no datagrams at this address");
            }
        }
    }

    /// The queue pair number.
    pub fn number(&self) -> u32 {
        self.slot.number()
    }

    /// Lets peers connect, from INIT on.
    pub(crate) fn listen(&self, context: &Context) -> Result<()> {
        let netdev = context.device.netdev()?;
        self.slot.listen(&netdev, &context.engine, &*worker(&context.engine)?)
    }

    /// Connects the queue pair to its peer, from RTR on.
    pub(crate) fn connect(
        &self,
        context: &Context,
        qp: &Arc<uiw_verbs::Qp>,
        connecting: &Arc<AtomicBool>,
        target: Target,
    ) -> Result<()> {
        worker(&context.engine)?.connect(self.number(), qp, connecting, target);
        Ok(())
    }

    /// Sets the first PSN and the time-outs, which are known from RTS on.
    pub(crate) fn enter_rts(&self, psn: Option<u32>, policy: RetryPolicy) {
        if let Some(worker) = running_worker() {
            worker.enter_rts(self.number(), psn, policy);
        }
    }

    /// Starts the time-out of the connection after a post, unless it is already running. Returns
    /// false if a connection is established, or none is being made.
    pub(crate) fn note_post(&self) -> bool {
        running_worker().is_some_and(|worker| worker.note_post(self.number()))
    }

    /// Prevents further connections, in RESET, in ERR and at the end. When this has returned, the
    /// worker holds no reference to the queue pair.
    pub(crate) fn forget(&self) {
        if let Some(worker) = running_worker() {
            worker.forget(self.number());
        }
    }
}

/// The UDP port with the number of a TCP port. `None`: the stack has no datagrams.
fn bind_datagrams(
    engine: &uiw_verbs::Device,
    addresses: &[SocketAddr],
    shard: usize,
    longest: usize,
) -> io::Result<Option<Arc<DatagramPort>>> {
    match DatagramPort::bind(engine, addresses, shard, longest) {
        Ok(port) => Ok(Some(port)),
        Err(uiw_verbs::Error::Io { source, .. }) if source.kind() == io::ErrorKind::Unsupported => Ok(None),
        Err(uiw_verbs::Error::Io { source, .. }) => Err(source),
        Err(error) => Err(io::Error::other(error)),
    }
}

impl Drop for QpnReservation {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            self.forget();
            ports().give_back(&self.slot);
        }
    }
}
