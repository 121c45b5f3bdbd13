//! Handle of a datagram port.

use super::address::socket_addr;
use super::counts::PortCounters;
use super::slot::{INDICES, Membership};
use super::{DatagramCounts, UdState, binding};
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::faults::Call;
use crate::pd::Pd;
use crate::qp::{Qp, QpInit, QpInner};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use uiw_datagram::{MAX_PAYLOAD, Qpn};
use uiw_llp::Token;

/// UDP port at every address of a network device, with the 256 queue pair numbers that contain it.
/// It is closed when it and its queue pairs have been dropped.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let end = End::new()?;
/// use uiw::raw::{DatagramPort, QpInit, QpState};
/// let port = DatagramPort::bind(&end.device, &["127.0.0.1:0".parse()?], end.cq.shard(), 1024)?;
/// let qp = end.pd.create_ud_qp(QpInit::new(&end.cq, &end.cq), &port)?;
/// qp.set_qkey(0x1111)?;
/// for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
///     qp.modify(state)?;
/// }
/// assert_eq!(qp.num() >> 8, port.number().into());
/// # Ok(())
/// # }
/// ```
pub struct DatagramPort {
    driver: Arc<Driver>,
    token: Token,
    number: u16,
    max_payload: usize,
    counts: Arc<PortCounters>,
}

impl std::fmt::Debug for DatagramPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatagramPort").field("number", &self.number).finish_non_exhaustive()
    }
}

impl DatagramPort {
    /// Binds a port at `addresses`. If they have port 0, the OS chooses one port for all of them.
    ///
    /// The port belongs to `shard`, less than [`Device::shards`], on which the receives of its
    /// queue pairs must complete ([`crate::Cq::shard`]). `max_payload` is the length of the longest
    /// message, as returned by [`uiw_datagram::max_payload`].
    ///
    /// # Errors
    /// [`Error::Io`] if a port cannot be bound or the stack does not support datagrams;
    /// [`Error::Zero`] without an address; [`Error::Limit`] if `shard` or `max_payload` is too
    /// large.
    pub fn bind(
        device: &Device,
        addresses: &[SocketAddr],
        shard: usize,
        max_payload: usize,
    ) -> Result<Arc<Self>> {
        if addresses.is_empty() {
            return Err(Error::Zero { what: "number of addresses" });
        }
        for (what, asked, limit) in [
            ("payload of a datagram", max_payload, MAX_PAYLOAD),
            ("shard", shard, device.shards().saturating_sub(1)),
        ] {
            if asked > limit {
                return Err(Error::Limit { what, asked: asked as u64, limit: limit as u64 });
            }
        }
        let driver = Arc::clone(device.driver());
        let counts = Arc::<PortCounters>::default();
        let (of_slot, addresses) = (Arc::clone(&counts), addresses.to_vec());
        let bind = move |core: &mut _| binding::bind(core, &addresses, &of_slot);
        let (token, number) = driver.shard_at(shard).call(bind)?;
        Ok(Arc::new(Self { driver, token, number, max_payload, counts }))
    }

    /// Returns the port number, which is a part of each of its queue pair numbers.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns the maximum length of a message in bytes.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        self.max_payload
    }

    /// Returns the counters of datagrams since the port was bound.
    #[must_use]
    pub fn counts(&self) -> DatagramCounts {
        self.counts.get()
    }

    /// Binds the port at another address as well, for example one that was added to the network
    /// device later. Has no effect if the port is bound at this address already.
    ///
    /// # Errors
    /// [`Error::Io`] if the address cannot be bound.
    pub fn add_address(&self, address: IpAddr, scope: u32) -> Result<()> {
        let (token, number) = (self.token, self.number);
        let local = socket_addr(address, number, scope);
        self.driver.shard(token).call(move |core| {
            if core.datagram_port(token).is_some_and(|slot| slot.socket_at(address).is_some()) {
                return Ok(());
            }
            binding::add_socket(core, token, local, uiw_llp::DatagramConfig::default(), None)
                .map(drop)
        })
    }
}

impl Drop for DatagramPort {
    fn drop(&mut self) {
        let token = self.token;
        self.driver.shard(token).call(move |core| binding::unbind(core, token));
    }
}

impl Pd {
    /// Creates a UD queue pair on `port`, in RESET. Its number is `init.num`, or an unused one of
    /// the port.
    ///
    /// # Errors
    /// The errors of [`Pd::create_qp`]; [`Error::QpNumber`] for a number of another port and for
    /// 0xFFFFFF; [`Error::QpNumberTaken`] if the number, or every number of the port, is taken;
    /// [`Error::Foreign`] if the port belongs to another device, or the receives complete on
    /// another shard than that of the port.
    pub fn create_ud_qp(&self, init: QpInit, port: &Arc<DatagramPort>) -> Result<Qp> {
        if !Arc::ptr_eq(self.driver(), &port.driver) {
            return Err(Error::Foreign { what: "datagram port", of: "device" });
        }
        let shard = port.driver.shard(port.token);
        if init.recv_cq.shard() % self.driver().shards().len() != shard.index() {
            return Err(Error::Foreign { what: "datagram port", of: "shard" });
        }
        shard.start()?;
        if let Some(num) = init.num
            && (num >> 8 != u32::from(port.number) || num == Qpn::MULTICAST.raw())
        {
            return Err(Error::QpNumber { num });
        }
        port.driver.shared.call(Call::CreateQp)?;
        let numbers: Vec<u32> = match init.num {
            Some(num) => vec![num],
            None => {
                // Each queue pair gets another index, so that the number of an earlier one is not
                // reused soon.
                let first =
                    getrandom::u32().unwrap_or_else(|_| port.driver.shared.next_num()) as u8;
                let all = (0..INDICES).map(|i| Qpn::new(port.number, first.wrapping_add(i as u8)));
                all.filter(|qpn| *qpn != Qpn::MULTICAST).map(Qpn::raw).collect()
            }
        };
        let mut refused = Error::QpNumberTaken { num: u32::from(port.number) << 8 };
        for num in numbers {
            let ud = UdState { port: Arc::clone(port), qkey: AtomicU32::new(0) };
            match Qp::create(self, QpInit { num: Some(num), ..init.clone() }, Some(ud)) {
                Ok(qp) => {
                    add_endpoint(&qp.0, port)?;
                    return Ok(qp);
                }
                Err(error @ Error::QpNumberTaken { .. }) => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }
}

fn add_endpoint(qp: &Arc<QpInner>, port: &DatagramPort) -> Result<()> {
    let (of, at, index) = (Arc::clone(qp), port.token, Qpn::from_raw(qp.num).index());
    let token =
        port.driver.shard(at).call(move |core| binding::add_endpoint(core, &of, at, index))?;
    let _control = qp.control();
    if let crate::qp::RecvSource::Own(rq) = &qp.rq {
        rq.lock().closed = true;
    }
    qp.set_state(crate::qp::QpState::Reset);
    qp.set_conn(Some(token));
    port.driver.note_use(token);
    Ok(())
}

impl Qp {
    /// Returns the port of a UD queue pair, and `None` for other queue pairs.
    #[must_use]
    pub fn datagram_port(&self) -> Option<&Arc<DatagramPort>> {
        self.0.ud.as_ref().map(|ud| &ud.port)
    }

    /// Sets the Q_Key. A UD queue pair receives only datagrams with its Q_Key.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this is not a UD queue pair.
    pub fn set_qkey(&self, qkey: u32) -> Result<()> {
        self.ud()?.qkey.store(qkey, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the Q_Key, and `None` if this is not a UD queue pair.
    #[must_use]
    pub fn qkey(&self) -> Option<u32> {
        self.0.ud.as_ref().map(|ud| ud.qkey.load(Ordering::Relaxed))
    }

    fn ud(&self) -> Result<&UdState> {
        self.0
            .ud
            .as_ref()
            .ok_or(Error::Unsupported { what: "datagrams on a queue pair that is not UD" })
    }

    /// Attaches a UD queue pair to a multicast group, on the interface with the address `member`
    /// and the index `interface`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this is not a UD queue pair; [`Error::Misuse`] if the address is
    /// not that of a group; [`Error::Io`] if the group cannot be joined; [`Error::Limit`] if the
    /// port has joined too many groups.
    pub fn attach_multicast(&self, group: IpAddr, member: IpAddr, interface: u32) -> Result<()> {
        let port = &self.ud()?.port;
        let (token, index) = (port.token, Qpn::from_raw(self.num()).index());
        let membership = Membership { group, member, interface };
        port.driver.shard(token).call(move |core| binding::attach(core, token, index, membership))
    }

    /// Detaches a UD queue pair from a multicast group.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this is not a UD queue pair; [`Error::NotConnected`] if it is not
    /// attached.
    pub fn detach_multicast(&self, group: IpAddr, member: IpAddr, interface: u32) -> Result<()> {
        let port = &self.ud()?.port;
        let (token, index) = (port.token, Qpn::from_raw(self.num()).index());
        let membership = Membership { group, member, interface };
        let detached = port
            .driver
            .shard(token)
            .call(move |core| binding::detach(core, token, index, membership));
        if detached { Ok(()) } else { Err(Error::NotConnected) }
    }
}
