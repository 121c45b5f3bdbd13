//! Peer of a queue pair, from the attributes of RTR.

use super::lid;
use super::pair_info::{PairEnd, PairInfo};
use crate::device::{gid, netdev::NetDev};
use std::net::{IpAddr, SocketAddr};
use uiw_cabi_core::abi::ibv_ah_attr;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// Pair of queue pairs, from the point of view of one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(super) own: PairEnd,
    pub(super) peer: PairEnd,
    /// Local address. The port is 0, so a connection is made from any free port.
    pub(super) local: SocketAddr,
    /// Address of the peer, with the port on which it listens.
    pub(super) remote: SocketAddr,
    /// True if the queue pair is connected to itself.
    pub(super) is_self: bool,
    /// True for unreliable connections (UC).
    pub(super) unreliable: bool,
    /// PSN that this end expects.
    pub(super) expected_psn: u32,
    /// First PSN of this end, from RTS on.
    pub(super) first_psn: Option<u32>,
}

/// Returns our address and the address of the peer, or of a multicast group, in an address vector.
///
/// # Errors
/// EINVAL for an index without a GID, for a GID or LID without an address, and if the two addresses
/// belong to different families.
pub(crate) fn addresses(netdev: &NetDev, ah: &ibv_ah_attr) -> Result<(IpAddr, IpAddr)> {
    let global = ah.is_global != 0;
    let remote = if global {
        gid::to_address(ah.grh.dgid).or_else(|| gid::to_group(ah.grh.dgid)).ok_or_else(|| {
            Errno::INVAL.because("the GID of the peer is the address of neither a host nor a group")
        })?
    } else {
        lid::resolve(ah.dlid, netdev)?
    };
    let own = if global {
        netdev.address(ah.grh.sgid_index.into())
    } else {
        netdev
            .addresses
            .iter()
            .map(|(address, _)| *address)
            .find(|own| own.is_ipv4() == remote.is_ipv4())
    };
    let own = own
        .ok_or_else(|| Errno::INVAL.because("the interface has no address of the peer's family"))?;
    if own.is_ipv4() == remote.is_ipv4() {
        Ok((own, remote))
    } else {
        Err(Errno::INVAL.because("the address of the peer belongs to another family than ours"))
    }
}

impl Target {
    /// Creates the target from the attributes of RTR, with the current addresses of the device.
    ///
    /// # Errors
    /// The errors of [`addresses`]; EINVAL for the address of a multicast group, and for a queue
    /// pair number that contains no port or has more than 24 bits.
    pub(crate) fn new(
        netdev: &NetDev,
        (number, unreliable): (u32, bool),
        ah: &ibv_ah_attr,
        dest: u32,
        rq_psn: u32,
    ) -> Result<Self> {
        let (own, remote) = addresses(netdev, ah)?;
        if remote.is_multicast() || dest > 0xFF_FFFF || dest >> 8 == 0 {
            return Err(Errno::INVAL.because(
                "the peer's address is a multicast group, or its queue pair number is invalid",
            ));
        }
        // A queue pair number of this process is valid at every address of the device.
        let is_self =
            dest == number && netdev.addresses.iter().any(|(address, _)| *address == remote);
        Ok(Self {
            is_self,
            unreliable,
            own: PairEnd { qp_num: number, gid: gid::from_address(own) },
            peer: PairEnd { qp_num: dest, gid: gid::from_address(remote) },
            local: netdev.socket_address(own, 0),
            remote: netdev.socket_address(remote, (dest >> 8) as u16),
            expected_psn: rq_psn & 0xFF_FFFF,
            first_psn: None,
        })
    }

    /// Returns whether this end connects immediately. The other end first waits for that
    /// connection.
    pub(super) fn initiates(&self) -> bool {
        let key = |end: &PairEnd| (end.qp_num, end.gid.raw);
        self.is_self || key(&self.own) < key(&self.peer)
    }

    /// Returns the private data for the peer.
    pub(super) fn info(&self) -> PairInfo {
        PairInfo {
            from: self.own,
            to: self.peer,
            unreliable: self.unreliable,
            expected_psn: self.expected_psn,
            first_psn: self.first_psn,
        }
    }

    /// Returns whether private data from a connection of `from` names this pair, in this run of the
    /// two programs. After a restart the PSNs differ.
    pub(super) fn matches(&self, info: &PairInfo, from: SocketAddr) -> bool {
        let psn = |theirs: Option<u32>, ours: Option<u32>| match (theirs, ours) {
            (Some(theirs), Some(ours)) => theirs == ours,
            _ => true,
        };
        info.from == self.peer
            && info.to == self.own
            && info.unreliable == self.unreliable
            && from.ip() == self.remote.ip()
            && psn(info.first_psn, Some(self.expected_psn))
            && psn(Some(info.expected_psn), self.first_psn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_cabi_core::abi;

    fn netdev(address: &str) -> NetDev {
        NetDev {
            name: "x".to_owned(),
            index: 3,
            running: true,
            loopback: false,
            mac: None,
            mtu: 1500,
            mbps: None,
            addresses: vec![(address.parse().unwrap(), 24)],
        }
    }

    fn ah(peer: &str) -> ibv_ah_attr {
        let mut ah: ibv_ah_attr = abi::zeroed();
        ah.is_global = 1;
        ah.grh.dgid = gid::from_address(peer.parse::<IpAddr>().unwrap());
        ah
    }

    #[test]
    fn two_ends_match_each_other_alone() {
        let mut a =
            Target::new(&netdev("10.0.0.1"), (0x70_0001, false), &ah("10.0.0.2"), 0x71_0002, 5)
                .unwrap();
        let mut b =
            Target::new(&netdev("10.0.0.2"), (0x71_0002, false), &ah("10.0.0.1"), 0x70_0001, 9)
                .unwrap();
        assert!(a.initiates() && !b.initiates());
        assert_eq!(a.remote, "10.0.0.2:28928".parse().unwrap());
        let from = SocketAddr::new(a.local.ip(), 4711);
        assert!(b.matches(&a.info(), from));
        assert!(!b.matches(&a.info(), "10.0.0.3:4711".parse().unwrap()), "from another address");
        (a.first_psn, b.first_psn) = (Some(9), Some(5));
        assert!(b.matches(&a.info(), from));
        a.first_psn = Some(8);
        assert!(!b.matches(&a.info(), from), "another run of the program");
        let mut info = b.info();
        info.unreliable = true;
        assert!(!a.matches(&info, SocketAddr::new(b.local.ip(), 1)), "of another type");
        let mut info = b.info();
        info.to.qp_num += 1;
        assert!(!a.matches(&info, SocketAddr::new(b.local.ip(), 1)), "for another queue pair");
    }

    #[test]
    fn invalid_attributes_are_refused() {
        let here = netdev("10.0.0.1");
        assert!(Target::new(&here, (0x70_0001, false), &ah("0.0.0.0"), 0x71_0002, 0).is_err());
        assert!(Target::new(&here, (0x70_0001, false), &ah("10.0.0.2"), 5, 0).is_err(), "no port");
        assert!(Target::new(&here, (0x70_0001, false), &ah("10.0.0.2"), 0x100_0000, 0).is_err());
        assert!(
            Target::new(&here, (0x70_0001, false), &ah("2001:db8::1"), 0x71_0002, 0).is_err(),
            "another family"
        );
        let mut nowhere = ah("10.0.0.2");
        nowhere.grh.sgid_index = 1;
        assert!(Target::new(&here, (0x70_0001, false), &nowhere, 0x71_0002, 0).is_err());
    }

    #[test]
    fn smaller_gid_initiates_for_equal_numbers() {
        let a = Target::new(&netdev("10.0.0.1"), (0x70_0001, false), &ah("10.0.0.2"), 0x70_0001, 0)
            .unwrap();
        let b = Target::new(&netdev("10.0.0.2"), (0x70_0001, false), &ah("10.0.0.1"), 0x70_0001, 0)
            .unwrap();
        assert!(a.initiates() && !b.initiates());
    }
}
