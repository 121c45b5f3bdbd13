//! Whom a queue pair is to be connected to, out of the attributes of RTR.

use super::hello::{End, Hello};
use super::{lid, ports};
use crate::abi::ibv_ah_attr;
use crate::boundary::Result;
use crate::device::{gid, netdev::NetDev};
use crate::errno::Errno;
use std::net::SocketAddr;

/// A pair, as one end knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(super) own: End,
    pub(super) peer: End,
    /// Our address, and the peer's with its port.
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The queue pair is its own peer.
    pub(super) itself: bool,
    /// The PSN that we expect.
    pub(super) expects: u32,
    /// The PSN that we begin with, from RTS on.
    pub(super) begins: Option<u32>,
}

impl Target {
    /// From the attributes of RTR, on a device as it is now.
    ///
    /// # Errors
    /// EINVAL for an index without a GID, a GID or LID that is nobody's address, a number that is nobody's.
    pub(crate) fn new(
        netdev: &NetDev,
        number: u32,
        ah: &ibv_ah_attr,
        dest: u32,
        rq_psn: u32,
    ) -> Result<Self> {
        let global = ah.is_global != 0;
        let remote = if global {
            gid::to_address(ah.grh.dgid).ok_or(Errno::INVAL)?
        } else {
            lid::address(ah.dlid, netdev)?
        };
        let own = if global {
            netdev.address(ah.grh.sgid_index.into())
        } else {
            netdev.addresses.iter().map(|(address, _)| *address).find(|own| own.is_ipv4() == remote.is_ipv4())
        };
        let own = own.ok_or(Errno::INVAL)?;
        if own.is_ipv4() != remote.is_ipv4() || dest > 0xFF_FFFF || dest >> 8 == 0 {
            return Err(Errno::INVAL);
        }
        // The port of a number is its process's at every address of the device.
        let itself = dest == number && netdev.addresses.iter().any(|(address, _)| *address == remote);
        Ok(Self {
            itself,
            own: End { qp_num: number, gid: gid::from_address(own) },
            peer: End { qp_num: dest, gid: gid::from_address(remote) },
            local: ports::socket_address(own, 0, netdev),
            remote: ports::socket_address(remote, (dest >> 8) as u16, netdev),
            expects: rq_psn & 0xFF_FFFF,
            begins: None,
        })
    }

    /// Whether this end connects at once.
    pub(super) fn leads(&self) -> bool {
        let key = |end: &End| (end.qp_num, end.gid.raw);
        self.itself || key(&self.own) < key(&self.peer)
    }

    /// What we say to the peer.
    pub(super) fn hello(&self) -> Hello {
        Hello { from: self.own, to: self.peer, expects: self.expects, begins: self.begins }
    }

    /// Whether a caller at `from` is the peer, and means us as we are now: two programs that start again have other PSNs.
    pub(super) fn fits(&self, hello: &Hello, from: SocketAddr) -> bool {
        let psn = |theirs: Option<u32>, ours: Option<u32>| match (theirs, ours) {
            (Some(theirs), Some(ours)) => theirs == ours,
            _ => true,
        };
        hello.from == self.peer
            && hello.to == self.own
            && from.ip() == self.remote.ip()
            && psn(hello.begins, Some(self.expects))
            && psn(Some(hello.expects), self.begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use std::net::IpAddr;

    fn netdev(address: &str) -> NetDev {
        NetDev {
            name: "x".to_owned(),
            index: 3,
            running: true,
            loopback: false,
            mac: None,
            mtu: 1500,
            addresses: vec![(address.parse().unwrap(), 24)],
        }
    }

    fn ah(peer: &str) -> ibv_ah_attr {
        // SAFETY: integers.
        let mut ah: ibv_ah_attr = unsafe { abi::zeroed() };
        ah.is_global = 1;
        ah.grh.dgid = gid::from_address(peer.parse::<IpAddr>().unwrap());
        ah
    }

    #[test]
    fn two_ends_fit_each_other_and_nobody_else() {
        let mut a = Target::new(&netdev("10.0.0.1"), 0x70_0001, &ah("10.0.0.2"), 0x71_0002, 5).unwrap();
        let mut b = Target::new(&netdev("10.0.0.2"), 0x71_0002, &ah("10.0.0.1"), 0x70_0001, 9).unwrap();
        assert!(a.leads() && !b.leads());
        assert_eq!(a.remote, "10.0.0.2:28928".parse().unwrap());
        let from = SocketAddr::new(a.local.ip(), 4711);
        assert!(b.fits(&a.hello(), from));
        assert!(!b.fits(&a.hello(), "10.0.0.3:4711".parse().unwrap()), "from another address");
        (a.begins, b.begins) = (Some(9), Some(5));
        assert!(b.fits(&a.hello(), from));
        a.begins = Some(8);
        assert!(!b.fits(&a.hello(), from), "another run of the program");
        let mut hello = b.hello();
        hello.to.qp_num += 1;
        assert!(!a.fits(&hello, SocketAddr::new(b.local.ip(), 1)), "for another queue pair");
    }

    #[test]
    fn nonsense_is_refused() {
        let here = netdev("10.0.0.1");
        assert!(Target::new(&here, 0x70_0001, &ah("0.0.0.0"), 0x71_0002, 0).is_err());
        assert!(Target::new(&here, 0x70_0001, &ah("10.0.0.2"), 5, 0).is_err(), "no port");
        assert!(Target::new(&here, 0x70_0001, &ah("10.0.0.2"), 0x100_0000, 0).is_err());
        assert!(Target::new(&here, 0x70_0001, &ah("2001:db8::1"), 0x71_0002, 0).is_err(), "another family");
        let mut nowhere = ah("10.0.0.2");
        nowhere.grh.sgid_index = 1;
        assert!(Target::new(&here, 0x70_0001, &nowhere, 0x71_0002, 0).is_err());
    }

    #[test]
    fn equal_numbers_are_led_by_the_smaller_gid() {
        let a = Target::new(&netdev("10.0.0.1"), 0x70_0001, &ah("10.0.0.2"), 0x70_0001, 0).unwrap();
        let b = Target::new(&netdev("10.0.0.2"), 0x70_0001, &ah("10.0.0.1"), 0x70_0001, 0).unwrap();
        assert!(a.leads() && !b.leads());
    }
}
