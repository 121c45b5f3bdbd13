//! `sendmmsg` and `recvmmsg` with their control messages. This module contains all unsafe code for
//! the kernel's UDP. Like those of TCP, the calls are no cancellation points.

use crate::{Incoming, InterfaceAddresses};
use socket2::{SockAddr, Socket};
use std::ffi::{c_int, c_long};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU8;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Maximum number of messages in one call.
pub(super) const MAX_MESSAGES: usize = 64;
/// Maximum number of buffers in one call that receives.
const MAX_BUFFERS: usize = 32;

/// Constants from linux/udp.h and linux/in.h.
const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;

/// Message to one peer: one datagram (`segment` is 0), or `count` datagrams of `segment` bytes
/// each, the last of which may be shorter. Its bytes are `len` bytes of the buffer, from offset
/// `at` on.
pub(super) struct OutgoingMessage {
    pub(super) peer: SocketAddr,
    pub(super) hop_limit: Option<NonZeroU8>,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) segment: u16,
    pub(super) count: usize,
}

/// Buffer for two control messages with one number each, aligned as the kernel requires.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct ControlBuffer([u8; 48]);

impl OutgoingMessage {
    /// Returns the control messages for the datagrams: level, type and value.
    fn controls(&self) -> impl Iterator<Item = (c_int, c_int, ControlNumber)> {
        let segment = (self.segment != 0).then_some((
            libc::IPPROTO_UDP,
            UDP_SEGMENT,
            ControlNumber::Short(self.segment),
        ));
        let (level, name) = match self.peer {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT),
        };
        let hops = self.hop_limit.map(|hops| (level, name, ControlNumber::Int(hops.get().into())));
        segment.into_iter().chain(hops)
    }
}

/// Value of a control message, of the size that the kernel requires.
enum ControlNumber {
    Short(u16),
    Int(c_int),
}

fn set_int(socket: &Socket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the call reads one integer at the address of `value`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets DF on every datagram. ICMP messages, which anyone can send, do not change this.
pub(super) fn set_unfragmented(socket: &Socket, v6: bool) -> io::Result<()> {
    if v6 {
        set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)
    } else {
        set_int(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
    }
}

/// Restricts reception to one interface; 0 means all interfaces.
pub(super) fn bind_to_interface(socket: &Socket, index: u32) -> io::Result<()> {
    const SO_BINDTOIFINDEX: c_int = 62;
    set_int(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, c_int::try_from(index).unwrap_or(0))
}

/// Permits the kernel to deliver several datagrams of one sender in one buffer.
pub(super) fn set_gro(socket: &Socket) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_UDP, UDP_GRO, 1)
}

/// Returns the index of the interface that has `address`, or 0 if there is none.
pub(super) fn interface_of(address: Ipv6Addr, scope: u32) -> u32 {
    if scope != 0 {
        return scope;
    }
    let is_its = |interface: &InterfaceAddresses| {
        interface.addresses.iter().any(|(own, _)| *own == IpAddr::V6(address))
    };
    let all = InterfaceAddresses::all().unwrap_or_default();
    all.iter().find(|interface| is_its(interface)).map_or(0, |interface| interface.index)
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: null pointers and zero lengths are a valid header without an address, bytes or
    // control messages.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Sends up to [`MAX_MESSAGES`] messages, whose bytes are in `bytes`. Returns the number of
/// messages sent.
pub(super) fn send(
    fd: BorrowedFd<'_>,
    bytes: &[u8],
    messages: &[OutgoingMessage],
) -> io::Result<usize> {
    let count = messages.len().min(MAX_MESSAGES);
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
    let mut elements = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_MESSAGES];
    let mut addresses = [const { MaybeUninit::<SockAddr>::uninit() }; MAX_MESSAGES];
    let mut controls = [const { MaybeUninit::<ControlBuffer>::uninit() }; MAX_MESSAGES];
    for (index, message) in messages[..count].iter().enumerate() {
        let part = &bytes[message.at..message.at + message.len];
        let element = elements[index]
            .write(libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        let address = addresses[index].write(SockAddr::from(message.peer));
        let header = headers[index].write(empty_header());
        header.msg_hdr.msg_name = address.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_namelen = address.len();
        header.msg_hdr.msg_iov = element;
        header.msg_hdr.msg_iovlen = 1;
        if message.segment != 0 || message.hop_limit.is_some() {
            let control = controls[index].write(ControlBuffer([0; 48]));
            header.msg_hdr.msg_control = (&raw mut *control).cast();
            let mut used = 0;
            for (level, name, value) in message.controls() {
                let len = match value {
                    ControlNumber::Short(_) => size_of::<u16>(),
                    ControlNumber::Int(_) => size_of::<c_int>(),
                } as libc::c_uint;
                // SAFETY: the macros compute lengths. There are at most two control messages with
                // at most one integer each, so they end within `control`. Each begins at a multiple
                // of the alignment of its header, as `control` does.
                unsafe {
                    let at = control.0.as_mut_ptr().add(used).cast::<libc::cmsghdr>();
                    used += libc::CMSG_SPACE(len) as usize;
                    (*at).cmsg_level = level;
                    (*at).cmsg_type = name;
                    (*at).cmsg_len = libc::CMSG_LEN(len) as _;
                    match value {
                        ControlNumber::Short(value) => {
                            libc::CMSG_DATA(at).cast::<u16>().write_unaligned(value);
                        }
                        ControlNumber::Int(value) => {
                            libc::CMSG_DATA(at).cast::<c_int>().write_unaligned(value);
                        }
                    }
                }
            }
            header.msg_hdr.msg_controllen = used as _;
        }
    }
    loop {
        // SAFETY: the first `count` headers are filled. They refer to elements, addresses and
        // control messages of this frame and to bytes of `bytes`, which the call only reads.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendmmsg,
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_NOSIGNAL,
            )
        };
        if let Some(error) = failed(sent) {
            if error.raw_os_error() == Some(libc::EINTR) {
                continue;
            }
            return Err(error);
        }
        return Ok(sent as usize);
    }
}

fn failed(result: c_long) -> Option<io::Error> {
    (result < 0).then(io::Error::last_os_error)
}

/// Receives into parts of `buffer` with `size` bytes each.
pub(super) fn recv(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    size: usize,
    datagrams: &mut Vec<Incoming>,
) -> io::Result<()> {
    let count = (buffer.len() / size).min(MAX_BUFFERS);
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_BUFFERS];
    let mut elements = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_BUFFERS];
    let mut addresses = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; MAX_BUFFERS];
    let mut controls = [const { MaybeUninit::<ControlBuffer>::uninit() }; MAX_BUFFERS];
    for (index, part) in buffer.chunks_exact_mut(size).take(count).enumerate() {
        let element = elements[index]
            .write(libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: size });
        let header = headers[index].write(empty_header());
        header.msg_hdr.msg_name = addresses[index].as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_hdr.msg_iov = element;
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = controls[index].as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = size_of::<ControlBuffer>() as _;
    }
    let received = loop {
        // SAFETY: the first `count` headers are filled. They refer to elements, addresses and
        // control messages of this frame and to parts of `buffer` that do not overlap.
        let received = unsafe {
            libc::syscall(
                libc::SYS_recvmmsg,
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut::<libc::timespec>(),
            )
        };
        match failed(received) {
            None => break received as usize,
            Some(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Some(error) => return Err(error),
        }
    };
    for (index, header) in headers[..received].iter().enumerate() {
        // SAFETY: the header was filled above and changed by the call.
        let header = unsafe { header.assume_init_ref() };
        // SAFETY: the call has written the sender's address, which has the length of its family.
        let Some(peer) = (unsafe { sender_address(&header.msg_hdr) }) else { continue };
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            continue;
        }
        let (first, len) = (index * size, header.msg_len as usize);
        // SAFETY: the call has written the control messages.
        let each = unsafe { segment_size(&header.msg_hdr) }.unwrap_or(len);
        datagrams.push(Incoming { peer, bytes: first..first + len, len: each });
    }
    Ok(())
}

/// Returns the sender.
///
/// # Safety
/// A call that receives has filled `header`.
unsafe fn sender_address(header: &libc::msghdr) -> Option<SocketAddr> {
    // SAFETY: the caller ensures that the storage, which is large enough for any address, was
    // filled by the call. The length excludes the case that the kernel wrote no address.
    unsafe {
        if (header.msg_namelen as usize) < size_of::<libc::sa_family_t>() {
            return None;
        }
        match c_int::from(header.msg_name.cast::<libc::sa_family_t>().read()) {
            libc::AF_INET => {
                let address = header.msg_name.cast::<libc::sockaddr_in>().read();
                let ip = u32::from_be(address.sin_addr.s_addr).to_be_bytes();
                Some(SocketAddr::from((ip, u16::from_be(address.sin_port))))
            }
            libc::AF_INET6 => {
                let address = header.msg_name.cast::<libc::sockaddr_in6>().read();
                let (ip, port) =
                    (Ipv6Addr::from(address.sin6_addr.s6_addr), u16::from_be(address.sin6_port));
                Some(std::net::SocketAddrV6::new(ip, port, 0, address.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Returns the size of each datagram in bytes, if the buffer contains several.
///
/// # Safety
/// A call that receives has filled `header`.
unsafe fn segment_size(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the caller ensures that the call has filled `header`.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: the macros stay within the control messages that the kernel wrote, and UDP_GRO
        // contains an integer.
        unsafe {
            if (*at).cmsg_level == libc::IPPROTO_UDP && (*at).cmsg_type == UDP_GRO {
                return usize::try_from(libc::CMSG_DATA(at).cast::<c_int>().read_unaligned()).ok();
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    None
}
