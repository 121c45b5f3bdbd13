//! Reservation of queue pair numbers, and the state of out-of-band connections in this process.

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

/// State of out-of-band connections in a process. A child of a fork begins with an empty state.
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

/// State of this process. It is locked only to copy or set one of the two references.
static SHARED: ForkSafe<ProcessState> = ForkSafe::new();

fn ports() -> Arc<Ports> {
    if let Some(ports) = &SHARED.read().ports {
        return Arc::clone(ports);
    }
    Arc::clone(SHARED.write().ports.get_or_insert_default())
}

/// Returns the worker, and starts its thread at the first call. The lock is held while the thread
/// is started: this happens once per process, and only queue pairs that need the thread wait for
/// it.
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

/// Reservation of a queue pair number, which stands for a TCP port and a UDP port of this process
/// at the addresses of the device. The number is released on drop.
pub struct QpnReservation {
    slot: Slot,
    /// Generation of the process that made the reservation. In the child of a fork the ports belong
    /// to the parent, so nothing is released.
    generation: u32,
}

impl QpnReservation {
    /// Reserves a number on a network device, on a port of the shard. The port is bound, but does
    /// not listen yet.
    pub fn new(netdev: &NetDev, engine: &uiw_verbs::Device, shard: usize) -> Result<Self> {
        let offers_ud = Settings::get()?.offers_ud();
        let bind = |addresses: &[SocketAddr]| match uiw_datagram::max_payload(netdev.mtu as usize) {
            Some(longest) if offers_ud => bind_datagrams(engine, addresses, shard, longest),
            _ => Ok(None),
        };
        Ok(Self { slot: ports().take(netdev, shard, &bind)?, generation: fork::generation() })
    }

    /// Returns the UDP port, or `None` if datagrams are not offered.
    pub fn datagrams(&self) -> Option<&Arc<DatagramPort>> {
        self.slot.datagrams()
    }

    /// Binds the UDP port at addresses that were added to the device since the reservation.
    pub(crate) fn bind_new_addresses(&self, netdev: &NetDev) {
        let Some(port) = self.datagrams() else { return };
        for (ip, _) in &netdev.addresses {
            if let Err(error) = port.add_address(*ip, netdev.scope_id(*ip)) {
                tracing::debug!(%error, address = %ip, "datagrams are not received at this address");
            }
        }
    }

    /// Returns the queue pair number.
    pub fn number(&self) -> u32 {
        self.slot.number()
    }

    /// Starts to accept connections of peers, from INIT on.
    pub(crate) fn listen(&self, context: &Context) -> Result<()> {
        let netdev = context.device.netdev()?;
        self.slot.listen(&netdev, &context.engine, &*worker(&context.engine)?)
    }

    /// Connects the queue pair to its peer, from RTR on. [`QpnReservation::listen`] has started the
    /// worker.
    pub(crate) fn connect(
        &self,
        qp: &Arc<uiw_verbs::Qp>,
        connecting: &Arc<AtomicBool>,
        target: Target,
    ) {
        if let Some(worker) = running_worker() {
            worker.connect(self.number(), qp, connecting, target);
        }
    }

    /// Sets the first PSN and the time-outs, which are known from RTS on.
    pub(crate) fn enter_rts(&self, psn: Option<u32>, policy: RetryPolicy) {
        if let Some(worker) = running_worker() {
            worker.enter_rts(self.number(), psn, policy);
        }
    }

    /// Starts the time-out of the connection after a post, unless it is already running.
    pub(crate) fn note_post(&self) {
        if let Some(worker) = running_worker() {
            worker.note_post(self.number());
        }
    }

    /// Prevents further connections, in RESET and ERR and before the queue pair is destroyed. When
    /// this function returns, the worker has no reference to the queue pair.
    pub(crate) fn forget(&self) {
        if let Some(worker) = running_worker() {
            worker.forget(self.number());
        }
    }
}

/// Binds the UDP port with the number of a TCP port. Returns `None` if the stack has no datagrams.
fn bind_datagrams(
    engine: &uiw_verbs::Device,
    addresses: &[SocketAddr],
    shard: usize,
    longest: usize,
) -> io::Result<Option<Arc<DatagramPort>>> {
    match DatagramPort::bind(engine, addresses, shard, longest) {
        Ok(port) => Ok(Some(port)),
        Err(uiw_verbs::Error::Io { source, .. }) if source.kind() == io::ErrorKind::Unsupported => {
            Ok(None)
        }
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
