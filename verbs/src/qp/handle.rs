//! The application's handle of a queue pair.

use crate::conn::Conn;
use crate::driver::{Driver, Services};
use crate::error::{Error, PostError, Result};
use crate::faults::Call;
use crate::pd::Pd;
use crate::qp::inner::ConnAttrs;
use crate::qp::send_queue::{SendQueue, SqLimits};
use crate::qp::{
    LogLimit, LongMessages, PathInfo, QpAttr, QpInit, QpInner, QpState, RecvQueue, RecvSource,
};
use crate::ud::UdState;
use crate::wr::{RecvWr, SendWr};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::time::Duration;
use uiw_mem::Access;

/// Largest queue pair number (24 bits).
const MAX_NUM: u32 = 0x00FF_FFFF;

/// Queue pair. Dropping it closes its connection and discards the posted requests. The connection
/// is closed in order if no request is in progress, and with a Terminate otherwise.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let end = End::new()?;
/// use uiw::raw::QpState;
/// assert_eq!(end.qp.state(), QpState::Init);
/// assert!(end.qp.num() <= 0xFF_FFFF);
/// # Ok(())
/// # }
/// ```
pub struct Qp(pub(crate) Arc<QpInner>);

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp")
            .field("num", &self.num())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Qp {
    pub(crate) fn create(pd: &Pd, init: QpInit, ud: Option<UdState>) -> Result<Self> {
        let driver = Arc::clone(pd.driver());
        let limits = driver.limits();
        let cap = init.cap;
        for (what, asked, limit) in [
            ("send queue depth", cap.max_send_wr, limits.max_qp_wr),
            ("receive queue depth", cap.max_recv_wr, limits.max_qp_wr),
            ("send elements", cap.max_send_sge, limits.max_sge),
            ("receive elements", cap.max_recv_sge, limits.max_sge),
            ("inline bytes", cap.max_inline, limits.max_inline),
        ] {
            limits.check(what, asked.max(1).into(), limit.into())?;
        }
        for cq in [&init.send_cq, &init.recv_cq] {
            if !Arc::ptr_eq(cq.driver(), &driver) {
                return Err(Error::Foreign { what: "completion queue", of: "device" });
            }
        }
        if let Some(srq) = &init.srq
            && !Arc::ptr_eq(srq.pd().driver(), &driver)
        {
            return Err(Error::Foreign { what: "shared receive queue", of: "device" });
        }
        let count = &driver.shared.counts.qp;
        count.take("number of queue pairs", limits.max_qp)?;
        let num = take_num(&driver, init.num).inspect_err(|_| count.release())?;
        let sq_limits = SqLimits {
            depth: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline,
            signal_all: init.signal_all,
        };
        init.send_cq.add_user();
        init.recv_cq.add_user();
        let rq = match init.srq {
            Some(srq) => {
                srq.add_user();
                RecvSource::Shared(srq)
            }
            None => {
                let mut queue = RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge);
                queue.newest_first = init.newest_receive_first;
                RecvSource::Own(Mutex::new(queue))
            }
        };
        let max_rd_atomic = limits.max_rd_atomic;
        let stream = driver.shared.next_stream();
        let inner = Arc::new(QpInner {
            num,
            pd: pd.clone(),
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            sq: Mutex::new(SendQueue::new(sq_limits, num, max_rd_atomic)),
            burst_end: AtomicU64::new(0),
            rq,
            control: Mutex::new(()),
            state: AtomicU8::new(QpState::Init as u8),
            cap,
            conn: Arc::default(),
            access: AtomicU32::new(
                (Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC).bits(),
            ),
            ud,
            attrs: Mutex::new(ConnAttrs { ird: max_rd_atomic, stream }),
            has_raised: AtomicBool::new(false),
            reports_drained: AtomicBool::new(true),
            faults: driver.shared.faults.clone(),
            long: init.max_message.map(LongMessages::new),
            log_limit: LogLimit::default(),
            local_error: Mutex::default(),
            unreliable: init.unreliable,
            driver,
        });
        inner.driver.shared.counters.queue_pair_created();
        Ok(Self(inner))
    }

    /// Returns the number, which has 24 bits and is unique on the device. It is random unless
    /// [`QpInit::num`] has set it.
    #[must_use]
    pub fn num(&self) -> u32 {
        self.0.num
    }

    /// Returns the protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Returns the current state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.0.state()
    }

    /// Posts send requests in order, with one doorbell for all of them.
    ///
    /// # Safety
    /// For every accepted request, until its completion was polled or the queue pair was dropped:
    /// * The memory of its elements stays registered.
    /// * Sources are not written, and targets of Reads and atomics are neither read nor written.
    ///   Regions with remote access rights may be accessed at any time; only the data that is
    ///   transferred is then unspecified.
    /// * Memory named by a [`crate::FastRegister`] stays valid until its STag is invalidated or
    ///   freed.
    ///
    /// With [`crate::SendFlags::INLINE`], the addresses of the elements are readable during the
    /// call.
    ///
    /// # Errors
    /// [`PostError`] names the first refused request; those before it are posted.
    pub unsafe fn post_send<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> std::result::Result<(), PostError> {
        let (posted, doorbell) = self.0.queue_send(wrs, false);
        doorbell.ring(&self.0);
        posted
    }

    /// Like [`Qp::post_send`], but posts nothing if one of the requests is refused.
    ///
    /// # Safety
    /// The requirements of [`Qp::post_send`] apply.
    ///
    /// # Errors
    /// [`PostError`] names the first refused request.
    pub unsafe fn post_send_all<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> std::result::Result<(), PostError> {
        let (posted, doorbell) = self.0.queue_send(wrs, true);
        doorbell.ring(&self.0);
        posted
    }

    /// Posts receives in order.
    ///
    /// # Safety
    /// The memory of an accepted receive is not accessed by anything else until its completion was
    /// polled or the queue pair was dropped.
    ///
    /// # Errors
    /// [`PostError`] names the first refused receive; those before it are posted.
    pub unsafe fn post_recv<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> std::result::Result<(), PostError> {
        self.0.post_recv(wrs)
    }

    /// Returns the current state and attributes. IRD and ORD are the negotiated ones once a
    /// connection was established.
    #[must_use]
    pub fn query(&self) -> QpAttr {
        let ord = self.0.sq.lock().ord;
        let ird = self.0.attrs.lock().ird;
        QpAttr { state: self.0.state(), access: self.0.access(), ord, ird, cap: self.0.cap }
    }

    /// Returns whether this is an unreliable queue pair ([`QpInit::unreliable`]).
    #[must_use]
    pub fn is_unreliable(&self) -> bool {
        self.0.unreliable
    }

    /// Sets the maximum time for which incoming Sends wait for a receive
    /// (`ConnConfig::no_receive_timeout`). [`Duration::MAX`] means no limit.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if there is no connection.
    pub fn set_no_receive_timeout(&self, timeout: Duration) -> Result<()> {
        self.with_conn(move |conn, services| {
            conn.stream.set_no_receive_timeout(timeout, services.now);
        })
        .ok_or(Error::NotConnected)
    }

    /// Changes `ConnConfig::dead_after` of the connection.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if there is no connection; [`Error::Lost`] if the system refuses the
    /// value.
    pub fn set_dead_after(&self, time: Option<Duration>) -> Result<()> {
        self.with_conn(move |conn, _| conn.set_dead_after(time)).ok_or(Error::NotConnected)?
    }

    /// Returns the properties of the connection's path, or `None` without a connection.
    #[must_use]
    pub fn path(&self) -> Option<PathInfo> {
        self.with_conn(|conn, _| conn.path())
    }

    /// Runs `serve` on the connection, on its shard. Returns `None` without a connection.
    fn with_conn<R: Send + 'static>(
        &self,
        serve: impl FnOnce(&mut Conn, &mut Services) -> R + Send + 'static,
    ) -> Option<R> {
        self.0.driver.with_conn_at(&self.0.conn, serve)
    }

    /// Makes one round on the shard of the connection, unless another thread drives it.
    pub fn progress(&self) {
        if let Some(shard) = self.0.shard() {
            shard.try_pump();
        }
    }
}

impl Pd {
    /// Creates a queue pair in INIT.
    ///
    /// # Errors
    /// [`Error::Limit`]; [`Error::Foreign`] if a queue belongs to another device.
    pub fn create_qp(&self, init: QpInit) -> Result<Qp> {
        self.driver().shared.call(Call::CreateQp)?;
        Qp::create(self, init, None)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        crate::qp::control::destroy(&self.0);
    }
}

/// Returns the requested number, or an unused random one. Numbers are random so that messages for
/// an earlier queue pair do not match a new one.
fn take_num(driver: &Driver, asked: Option<u32>) -> Result<u32> {
    let mut qps = driver.shared.qps.lock();
    let num = match asked {
        Some(num) if num <= 1 || num > MAX_NUM => return Err(Error::QpNumber { num }),
        Some(num) if qps.contains(&num) => return Err(Error::QpNumberTaken { num }),
        Some(num) => num,
        None => loop {
            let num = getrandom::u32().unwrap_or_else(|_| driver.shared.next_num()) & MAX_NUM;
            // Verbs reserves 0 and 1 for special queue pairs.
            if num > 1 && !qps.contains(&num) {
                break num;
            }
        },
    };
    // The number is reserved from now on, also for concurrent calls.
    qps.insert(num);
    Ok(num)
}
