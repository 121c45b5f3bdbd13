//! Queue pairs connected by hand: programs that swap GID, QPN and PSN by ways of their own and call `ibv_modify_qp` with INIT,
//! RTR, RTS.
//!
//! A queue pair number is a TCP port and a slot, a GID is an address; so both ends know where the other one is. The end with the
//! smaller number connects (the smaller GID, where numbers are equal); the other one listens and, if nobody came within a second,
//! connects as well, for networks that let through one direction only. Each says in its MPA private data who it is and whom it
//! means ([`hello`]); a connection is taken only when both agree. Nothing here blocks: a thread of its own ([`worker`]) does it.

mod hello;
mod lid;
mod ports;
mod target;
mod worker;

pub(crate) use target::Target;

use crate::boundary::Result;
use crate::context::Context;
use crate::process;
use ports::Ports;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use worker::Worker;

/// What a process has of this.
#[derive(Default)]
pub(crate) struct Pairs {
    ports: Ports,
    worker: Option<Arc<Worker>>,
}

/// A number for a queue pair that may be connected by hand, with its place at the device's addresses. Given back on drop.
pub(crate) struct Place {
    number: u32,
    /// The process's generation: a child of a fork leaves its parent's places alone.
    generation: u32,
}

impl Place {
    /// A place on the context's device. The port is reserved, and nobody listens yet.
    pub(crate) fn reserve(context: &Context) -> Result<Self> {
        let netdev = context.device.netdev()?;
        process::with(|process| {
            let number = process.pairs.ports.take(&netdev)?;
            Ok(Self { number, generation: process::generation() })
        })
    }

    /// The queue pair number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// From INIT on peers may call.
    pub(crate) fn listen(&self, context: &Context) -> Result<()> {
        let netdev = context.device.netdev()?;
        process::with(|process| {
            let worker = process.pairs.worker(&context.engine)?;
            process.pairs.ports.listen(self.number, &netdev, &context.engine, &worker)
        })
    }

    /// From RTR on the queue pair looks for its peer.
    pub(crate) fn connect(
        &self,
        context: &Context,
        qp: &Arc<verbs::Qp>,
        calling: &Arc<AtomicBool>,
        target: Target,
    ) -> Result<()> {
        let worker = process::with(|process| process.pairs.worker(&context.engine))?;
        worker.want(self.number, qp, calling, target);
        Ok(())
    }

    /// In RTS more is known of the pair.
    pub(crate) fn ready(&self, psn: Option<u32>, patience: Patience) {
        if let Some(worker) = process::with(|process| process.pairs.worker.clone()) {
            worker.ready(self.number, psn, patience);
        }
    }

    /// Something was posted: while no connection stands, time runs from now on. False when one stands, or nobody makes one.
    pub(crate) fn posted(&self) -> bool {
        process::with(|process| process.pairs.worker.clone()).is_some_and(|worker| worker.posted(self.number))
    }

    /// RESET, ERR and the end: the queue pair looks for nobody. When this has returned, the worker has no hold of it.
    pub(crate) fn forget(&self) {
        if let Some(worker) = process::with(|process| process.pairs.worker.clone()) {
            worker.forget(self.number);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.generation != process::generation() {
            return;
        }
        self.forget();
        // Listeners are closed without the process's lock: that runs wakers.
        drop(process::with(|process| process.pairs.ports.give_back(self.number)));
    }
}

impl Pairs {
    fn worker(&mut self, engine: &verbs::Device) -> Result<Arc<Worker>> {
        match &self.worker {
            Some(worker) => Ok(Arc::clone(worker)),
            None => Ok(Arc::clone(self.worker.insert(Worker::start(engine)?))),
        }
    }
}

/// How long a queue pair waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// For the connection, once something is posted; `None` = for ever.
    pub(crate) connection: Option<Duration>,
    /// An inbound Send for a receive.
    pub(crate) receive: Duration,
}

impl Patience {
    /// Connecting needs more time than a lost packet on InfiniBand: TCP's own, and the second that the other end waits.
    const LEAST: Duration = Duration::from_secs(3);

    /// From the attributes of InfiniBand: local ACK time-out, retries, and the same for receivers that are not ready.
    pub(crate) fn of(timeout: u8, retry_cnt: u8, min_rnr_timer: u8, rnr_retry: u8) -> Self {
        let connection = (timeout != 0).then(|| {
            let once = Duration::from_nanos(4096 << (timeout & 31).min(40));
            (once * (u32::from(retry_cnt & 7) + 1)).max(Self::LEAST)
        });
        let receive = match rnr_retry & 7 {
            7 => Duration::MAX,
            times => rnr_delay(min_rnr_timer) * (u32::from(times) + 1),
        };
        Self { connection, receive }
    }
}

/// The delay behind a value of `min_rnr_timer`, in steps of ten microseconds (InfiniBand Architecture, table "RNR NAK timer").
fn rnr_delay(value: u8) -> Duration {
    const STEPS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(STEPS[usize::from(value & 31)] * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_the_attributes() {
        let patience = Patience::of(18, 7, 12, 7);
        assert_eq!(patience.connection, Some(Duration::from_nanos(4096 << 18) * 8));
        assert_eq!(patience.receive, Duration::MAX);
        assert_eq!(Patience::of(14, 0, 12, 7).connection, Some(Patience::LEAST));
        assert_eq!(Patience::of(0, 7, 12, 7).connection, None);
        // 12 stands for 0.64 ms, tried once and twice again.
        assert_eq!(Patience::of(0, 0, 12, 2).receive, Duration::from_micros(640 * 3));
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
    }
}
