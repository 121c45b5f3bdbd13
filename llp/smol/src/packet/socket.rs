//! The AF_PACKET socket, with all system calls of this link.

use super::filter;
use super::virtio::HEADER;
use crate::netdev::{ethernet_address, mtu_of};
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use uiw_llp::interface::{check, index_of};

/// Size of the socket's buffers in bytes. Frames arrive in bursts of whole windows.
const BUFFER: libc::c_int = 8 << 20;

/// Frames of the interface that a socket receives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FrameFilter {
    /// Frames for our MAC address and for groups.
    For([u8; 6]),
    /// No frames until [`PacketSocket::take_groups`] is called.
    Nothing,
    /// All frames.
    All,
}

pub(crate) struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Creates a socket without an interface.
    pub(crate) fn closed() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // With protocol 0 the socket receives nothing until the filter is set and it is bound.
        // SAFETY: no pointer is passed.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Opens a socket for an interface. Returns it with the maximum size of an IP packet.
    pub(crate) fn open(interface: &str, takes: FrameFilter) -> io::Result<(Self, usize)> {
        let index = index_of(interface)? as libc::c_int;
        let socket = Self::closed()?;
        ethernet_address(interface)?;
        let mtu = mtu_of(interface)?;
        socket.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)?;
        // Older kernels do not support this option, but smoltcp drops its own frames anyway.
        let _ = socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32);
        for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            let forced =
                if option == libc::SO_RCVBUF { libc::SO_RCVBUFFORCE } else { libc::SO_SNDBUFFORCE };
            if socket.set(libc::SOL_SOCKET, forced, &BUFFER).is_err() {
                socket.set(libc::SOL_SOCKET, option, &BUFFER)?;
            }
        }
        match takes {
            FrameFilter::For(mac) => {
                socket.attach(&mut filter::program(mac))?;
                socket.bind(index)?;
                socket.receive_for(index, mac)?;
            }
            FrameFilter::Nothing => {}
            FrameFilter::All => {
                socket.bind(index)?;
                socket.member(index, libc::PACKET_MR_PROMISC, libc::PACKET_ADD_MEMBERSHIP)?;
            }
        }
        Ok((socket, mtu))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn set<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        // SAFETY: `value` is readable for its size.
        check(unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                std::ptr::from_ref(value).cast(),
                len,
            )
        })?;
        Ok(())
    }

    fn attach(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
    }

    fn bind(&self, index: libc::c_int) -> io::Result<()> {
        // SAFETY: a `sockaddr_ll` may consist of zeros.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is readable for `len` bytes.
        check(unsafe {
            libc::bind(self.fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), len)
        })?;
        Ok(())
    }

    /// Makes the interface accept frames for our MAC address. If that is impossible, makes it
    /// accept all frames.
    fn receive_for(&self, index: libc::c_int, mac: [u8; 6]) -> io::Result<()> {
        let mut member = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_UNICAST as u16,
            mr_alen: 6,
            mr_address: [0; 8],
        };
        member.mr_address[..6].copy_from_slice(&mac);
        if self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member).is_ok() {
            // Frames to groups are accepted as well, because neighbour discovery uses them.
            member.mr_type = libc::PACKET_MR_ALLMULTI as u16;
            return self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member);
        }
        self.member(index, libc::PACKET_MR_PROMISC, libc::PACKET_ADD_MEMBERSHIP)
    }

    /// Adds or removes a membership: for all frames, or for all frames to groups.
    fn member(&self, index: libc::c_int, kind: libc::c_int, change: libc::c_int) -> io::Result<()> {
        let member = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: kind as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, change, &member)
    }

    /// Sets whether frames to multicast groups of IPv4 and IPv6 are received, for a socket that
    /// receives nothing else.
    pub(crate) fn take_groups(&self, index: libc::c_int, taken: bool) -> io::Result<()> {
        if taken {
            self.attach(&mut filter::groups())?;
            self.bind(index)?;
            self.member(index, libc::PACKET_MR_ALLMULTI, libc::PACKET_ADD_MEMBERSHIP)
        } else {
            self.attach(&mut filter::nothing())?;
            self.member(index, libc::PACKET_MR_ALLMULTI, libc::PACKET_DROP_MEMBERSHIP)
        }
    }

    /// Returns the number of frames for which the socket had no room since the last call.
    pub(crate) fn missed(&self) -> io::Result<u64> {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: `stats` is writable for `len` bytes.
        check(unsafe {
            let at = std::ptr::from_mut(&mut stats).cast();
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                at,
                &raw mut len,
            )
        })?;
        Ok(u64::from(stats.tp_drops))
    }

    /// Receives a header and a frame.
    pub(crate) fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        debug_assert!(into.len() > HEADER);
        Ok(net::recv(&self.fd, into, RecvFlags::empty())?.0)
    }

    /// Sends a header and a frame that are not contiguous.
    pub(crate) fn send_parts(&self, header: &[u8; HEADER], frame: &[u8]) -> io::Result<()> {
        let parts = [header.as_slice(), frame].map(IoSlice::new);
        let mut control = SendAncillaryBuffer::default();
        net::sendmsg(&self.fd, &parts, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Sends a header and a frame.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        net::send(&self.fd, bytes, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}
