//! What an interface's driver can do with AF_XDP, told by the kernel without touching the interface: the generic netlink family
//! `netdev` (Linux 6.3 and newer).

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::io;
use std::os::fd::OwnedFd;

const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GET_DEVICE: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_FEATURES: u16 = 3;
const NLMSG_ERROR: u16 = 2;
const REQUEST: u16 = 1;
/// Octets of the message's and of the family's header.
const HEADERS: usize = 20;

/// What a driver can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures {
    /// Mode `native`: it runs programs and redirects frames.
    pub native: bool,
    /// Mode `zerocopy`.
    pub zero_copy: bool,
    /// In these two modes, frames of several pieces: an MTU beyond some 3,500 octets.
    pub several_pieces: bool,
}

impl XdpFeatures {
    /// Asks for interface `index`. Mode `generic` is there for every interface.
    ///
    /// # Errors
    /// `Unsupported`: the kernel is older than Linux 6.3 and does not tell; the system's.
    pub fn of(index: u32) -> io::Result<Self> {
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(GENERIC))?;
        let answer = ask(&socket, CONTROLLER, GET_FAMILY, FAMILY_NAME, b"netdev\0").map_err(|error| {
            let unknown = error.raw_os_error() == Some(libc::ENOENT);
            if unknown { io::ErrorKind::Unsupported.into() } else { error }
        })?;
        let family = attribute(&answer, FAMILY_ID).and_then(|value| value.first_chunk::<2>());
        let family = u16::from_ne_bytes(*family.ok_or(io::ErrorKind::InvalidData)?);
        let answer = ask(&socket, family, GET_DEVICE, DEVICE_INDEX, &index.to_ne_bytes())?;
        let features = attribute(&answer, DEVICE_FEATURES).and_then(|value| value.first_chunk::<8>());
        let features = u64::from_ne_bytes(*features.ok_or(io::ErrorKind::InvalidData)?);
        let all = |bits: u64| features & bits == bits;
        // NETDEV_XDP_ACT_: BASIC 1, REDIRECT 2, XSK_ZEROCOPY 8, RX_SG 32.
        Ok(Self { native: all(1 | 2), zero_copy: all(1 | 2 | 8), several_pieces: all(1 | 2 | 32) })
    }
}

/// One question with one attribute; the attributes of the answer.
fn ask(socket: &OwnedFd, family: u16, command: u8, name: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    let padded = value.len().next_multiple_of(4);
    let mut message = Vec::with_capacity(HEADERS + 4 + padded);
    message.extend(((HEADERS + 4 + padded) as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    // Sequence number and port: one question at a time needs neither. Then command, version, nothing.
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(((4 + value.len()) as u16).to_ne_bytes());
    message.extend(name.to_ne_bytes());
    message.extend(value);
    message.resize(HEADERS + 4 + padded, 0);
    sendto(socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = vec![0; 16 << 10];
    let (_, len) = recv(socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(len);
    let half = |at: usize| answer.get(at..at + 2).map(|two| u16::from_ne_bytes([two[0], two[1]]));
    if half(4) == Some(NLMSG_ERROR) {
        let code = answer
            .get(16..)
            .and_then(|rest| rest.first_chunk::<4>())
            .map_or(0, |code| i32::from_ne_bytes(*code));
        return Err(Errno::from_raw_os_error(-code).into());
    }
    Ok(answer.split_off(HEADERS.min(answer.len())))
}

/// The value of an attribute among others.
fn attribute(mut octets: &[u8], name: u16) -> Option<&[u8]> {
    while let Some((head, _)) = octets.split_first_chunk::<4>() {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = octets.get(4..len)?;
        // The upper two bits are flags.
        if u16::from_ne_bytes([head[2], head[3]]) & 0x3FFF == name {
            return Some(value);
        }
        octets = octets.get(len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_among_others() {
        let octets = [6, 0, 1, 0, 9, 9, 0, 0, 8, 0, 2, 0, 1, 2, 3, 4];
        assert_eq!(attribute(&octets, 1), Some(&[9, 9][..]));
        assert_eq!(attribute(&octets, 2), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&octets, 3), None);
        assert_eq!(attribute(&octets[..9], 2), None);
        assert_eq!(attribute(&[0; 8], 1), None);
        assert_eq!(attribute(&[3, 0, 1, 0], 2), None);
    }

    #[test]
    fn the_loopback_interface_has_no_native_mode() {
        let lo = crate::interface::index_of("lo").unwrap();
        match XdpFeatures::of(lo) {
            Ok(features) => assert!(!features.zero_copy),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
        }
    }
}
