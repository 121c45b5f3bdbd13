//! Queries to the kernel by netlink (RFC 3549), and the message format. The answers concern the
//! network namespace of the calling thread.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto,
    socket_with,
};
use std::io;
use std::os::fd::OwnedFd;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST: u16 = 1;
/// `NLM_F_DUMP`: query of all objects.
const DUMP: u16 = 0x300;
/// Size in bytes of a buffer for any datagram of the kernel. The datagrams of a dump have the size
/// of the reader's buffer, up to this size.
pub(crate) const BUFFER: usize = 32 << 10;
/// Size of the message header in bytes.
const HEADER: usize = 16;

/// Converts text that the kernel ends with a zero.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Makes one query of type `kind`, with the header that its family requires (a multiple of four
/// bytes) and an optional attribute. Returns the part of the answer after the message header and
/// the first `skip` bytes.
///
/// # Errors
/// Returns OS errors.
pub fn query(
    protocol: Option<Protocol>,
    kind: u16,
    header: &[u8],
    attribute: Option<(u16, &[u8])>,
    skip: usize,
) -> io::Result<Vec<u8>> {
    let socket = send(protocol, kind, REQUEST, header, attribute)?;
    let mut answer = vec![0; 16 << 10];
    let (_, len) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(len);
    if let Some(message) = messages(&answer).next() {
        message.check()?;
    }
    Ok(answer.split_off((HEADER + skip).min(answer.len())))
}

/// Queries all objects from rtnetlink, with a query of type `kind` and the header that it requires,
/// and passes each message of the answer to `take`.
///
/// # Errors
/// Returns OS errors.
pub(crate) fn dump(
    kind: u16,
    header: &[u8],
    mut take: impl FnMut(&NetlinkMessage<'_>),
) -> io::Result<()> {
    let socket = send(None, kind, REQUEST | DUMP, header, None)?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let (_, len) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        for message in messages(buffer.get(..len).unwrap_or_default()) {
            message.check()?;
            if message.kind == NLMSG_DONE {
                return Ok(());
            }
            take(&message);
        }
    }
}

/// Creates a socket and sends a query.
fn send(
    protocol: Option<Protocol>,
    kind: u16,
    flags: u16,
    header: &[u8],
    attribute: Option<(u16, &[u8])>,
) -> io::Result<OwnedFd> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
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
    // Sequence number and port stay 0, because there is only one query at a time.
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

/// Message of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetlinkMessage<'a> {
    /// Message type.
    pub(crate) kind: u16,
    /// Payload after the header.
    pub(crate) body: &'a [u8],
}

impl NetlinkMessage<'_> {
    /// Returns the 32-bit number at an offset of the body.
    pub(crate) fn number(&self, at: usize) -> Option<u32> {
        self.body.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    }

    /// Returns an error if the message reports one.
    fn check(&self) -> io::Result<()> {
        match self.number(0) {
            Some(code) if self.kind == NLMSG_ERROR && code != 0 => {
                Err(io::Error::from_raw_os_error(code.cast_signed().wrapping_neg()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the messages in a datagram.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<HEADER>()?;
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let body = bytes.get(HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkMessage { kind: u16::from_ne_bytes([header[4], header[5]]), body })
    })
}

/// Returns the value of an attribute in a list of attributes.
pub fn attribute(mut bytes: &[u8], name: u16) -> Option<&[u8]> {
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
