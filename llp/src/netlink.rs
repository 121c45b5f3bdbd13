//! Questions to the kernel by netlink (RFC 3549): one request, one answer. They are answered for the network namespace of the thread
//! that asks.

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::io;

const NLMSG_ERROR: u16 = 2;
const REQUEST: u16 = 1;
/// Bytes of the message's header.
const HEADER: usize = 16;

/// One question of type `kind`: the header that its family requires, of a multiple of four bytes, and perhaps an attribute. What
/// the answer has behind the message's header and the first `skip` bytes.
///
/// # Errors
/// The kernel's.
pub(crate) fn ask(
    protocol: Option<Protocol>,
    kind: u16,
    header: &[u8],
    attribute: Option<(u16, &[u8])>,
    skip: usize,
) -> io::Result<Vec<u8>> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    let mut message = vec![0; HEADER];
    message.extend(header);
    if let Some((name, value)) = attribute {
        message.extend(((4 + value.len()) as u16).to_ne_bytes());
        message.extend(name.to_ne_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    // Sequence number and port stay 0: one question at a time needs neither.
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = vec![0; 16 << 10];
    let (_, len) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(len);
    let half = |at: usize| answer.get(at..at + 2).map(|two| u16::from_ne_bytes([two[0], two[1]]));
    if half(4) == Some(NLMSG_ERROR) {
        let code = answer
            .get(HEADER..)
            .and_then(|rest| rest.first_chunk::<4>())
            .map_or(0, |code| i32::from_ne_bytes(*code));
        return Err(Errno::from_raw_os_error(-code).into());
    }
    Ok(answer.split_off((HEADER + skip).min(answer.len())))
}

/// The value of an attribute among others.
pub(crate) fn attribute(mut bytes: &[u8], name: u16) -> Option<&[u8]> {
    while let Some((head, _)) = bytes.split_first_chunk::<4>() {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = bytes.get(4..len)?;
        // The upper two bits are flags.
        if u16::from_ne_bytes([head[2], head[3]]) & 0x3FFF == name {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_among_others() {
        let bytes = [6, 0, 1, 0, 9, 9, 0, 0, 8, 0, 2, 0, 1, 2, 3, 4];
        assert_eq!(attribute(&bytes, 1), Some(&[9, 9][..]));
        assert_eq!(attribute(&bytes, 2), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&bytes, 3), None);
        assert_eq!(attribute(&bytes[..9], 2), None);
        assert_eq!(attribute(&[0; 8], 1), None);
        assert_eq!(attribute(&[3, 0, 1, 0], 2), None);
    }
}
