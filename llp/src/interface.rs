//! Network interfaces. They are queried with system calls, because a mounted `/sys` may belong to
//! another network namespace.

mod addresses;
mod monitor;

pub use addresses::InterfaceAddresses;
pub use monitor::{InterfaceChange, InterfaceMonitor};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Interface index of the kernel.
    pub index: u32,
    /// Size of the longest IP packet in bytes.
    pub mtu: usize,
    /// True if the interface is up.
    pub is_up: bool,
    /// True if it is the loopback interface.
    pub is_loopback: bool,
}

impl Interface {
    /// Returns all interfaces of this network namespace.
    ///
    /// # Errors
    /// Returns OS errors.
    pub fn all() -> io::Result<Vec<Self>> {
        // SAFETY: the call returns a list that is freed below, or null.
        let list = unsafe { libc::if_nameindex() };
        let found =
            |names: &[String]| names.iter().filter_map(|name| Self::find(name).ok()).collect();
        if list.is_null() {
            // `if_nameindex` uses netlink, which the system may refuse.
            return Ok(found(&addresses::names()?));
        }
        let mut names = Vec::new();
        let mut at = list;
        // SAFETY: the list ends with an element whose index is 0; each name before it ends with a
        // zero.
        unsafe {
            while (*at).if_index != 0 {
                names.push(std::ffi::CStr::from_ptr((*at).if_name).to_string_lossy().into_owned());
                at = at.add(1);
            }
            libc::if_freenameindex(list);
        }
        // Interfaces that have disappeared since then are left out.
        Ok(found(&names))
    }

    /// Returns the interface with this name.
    ///
    /// # Errors
    /// `NotFound` if there is none, `InvalidInput` if the name contains a zero byte; errors of the
    /// system.
    pub fn find(name: &str) -> io::Result<Self> {
        Self::find_by(socket()?, name)
    }

    /// Returns the interface with this name in the network namespace of `socket`, which may differ
    /// from that of the calling thread.
    ///
    /// # Errors
    /// The same as for [`Interface::find`].
    pub fn find_by(socket: impl AsFd, name: &str) -> io::Result<Self> {
        let index = index_by(&socket, name)?;
        let fd = socket.as_fd().as_raw_fd();
        let mut request = request(name);
        // SAFETY: the request is readable and writable, and its name ends with a zero.
        check(unsafe { libc::ioctl(fd, libc::SIOCGIFFLAGS, &raw mut request) })?;
        // SAFETY: SIOCGIFFLAGS fills this member.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        Ok(Self {
            name: name.to_owned(),
            index,
            mtu: mtu_by(&socket, name)?,
            is_up: flags & libc::IFF_UP != 0,
            is_loopback: flags & libc::IFF_LOOPBACK != 0,
        })
    }
}

/// Returns the index of the interface with this name.
///
/// # Errors
/// `NotFound` if there is none, `InvalidInput` if the name contains a zero byte; errors of the
/// system.
pub fn index_of(name: &str) -> io::Result<u32> {
    index_by(socket()?, name)
}

fn index_by(socket: impl AsFd, name: &str) -> io::Result<u32> {
    if name.bytes().any(|byte| byte == 0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let none =
        || io::Error::new(io::ErrorKind::NotFound, format!("there is no interface `{name}`"));
    // `request` would cut the name.
    if name.len() >= libc::IFNAMSIZ {
        return Err(none());
    }
    let mut request = request(name);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the request is readable and writable, and its name ends with a zero.
    match check(unsafe { libc::ioctl(fd, libc::SIOCGIFINDEX, &raw mut request) }) {
        // SAFETY: SIOCGIFINDEX fills this member.
        Ok(_) => Ok(unsafe { request.ifr_ifru.ifru_ifindex }.cast_unsigned()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {
            Err(none())
        }
        Err(error) => Err(error),
    }
}

/// Returns the size in bytes of the longest IP packet that the interface with this name can send.
/// The query is made on `socket`.
///
/// # Errors
/// Returns OS errors.
pub fn mtu_by(socket: impl AsFd, name: &str) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    let mut request = request(name);
    // SAFETY: the request is readable and writable, and its name ends with a zero.
    check(unsafe { libc::ioctl(fd, libc::SIOCGIFMTU, &raw mut request) })?;
    // SAFETY: SIOCGIFMTU fills this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Creates a socket for queries about interfaces. Any kind of socket is suitable for them.
///
/// # Errors
/// Returns OS errors.
pub fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// Returns an ioctl(2) request for the interface with this name. All other fields are zero, and the
/// name ends with a zero.
pub fn request(name: &str) -> libc::ifreq {
    // SAFETY: an `ifreq` may consist of zeros.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    request
}

/// Converts the result of a system call. If it is negative, the error is in `errno`.
///
/// # Errors
/// Returns OS errors.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_interface_found() {
        let lo =
            Interface::all().unwrap().into_iter().find(|interface| interface.is_loopback).unwrap();
        assert_eq!(Interface::find(&lo.name).unwrap(), lo);
        assert!(lo.index > 0 && lo.mtu >= 1280);
        // Such names are at most 15 bytes long.
        for none in ["uiw-none", &format!("{:\0<15}", lo.name).replace('\0', "x"), &"x".repeat(16)]
        {
            assert_eq!(Interface::find(none).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        assert_eq!(Interface::find("a\0").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
