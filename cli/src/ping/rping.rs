//! rping's protocol (librdmacm's `rping`): the client describes its source, the server reads it;
//! the client describes its sink, the server writes the bytes back.

use super::RoundTrips;
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::msg_conn::{ConnEvent, MsgConn};
use crate::shared::open::Opener;
use crate::shared::qp_setup::{PendingQp, QueueDepths, WaitLimits, WaitMode, send_copy};
use std::net::SocketAddr;
use uiw::raw::{Access, ConnConfig, Remote, RemoteMr, STag};

/// Maximum size of rping's buffers, in bytes.
pub(crate) const MAX_SIZE: u32 = 64 << 10;

/// Description of a buffer that one end sends to the other (`struct rping_rdma_info`). All fields
/// are big-endian on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RpingBuffer {
    /// Tagged offset.
    pub(crate) buf: u64,
    /// STag.
    pub(crate) rkey: u32,
    /// Bytes.
    pub(crate) size: u32,
}

impl RpingBuffer {
    /// Length of the message in bytes.
    pub(crate) const LEN: usize = 16;

    pub(crate) fn from_bytes(message: &[u8]) -> Option<Self> {
        let message: &[u8; Self::LEN] = message.try_into().ok()?;
        let (buf, rest) = message.split_first_chunk::<8>()?;
        let (rkey, rest) = rest.split_first_chunk::<4>()?;
        let (size, _) = rest.split_first_chunk::<4>()?;
        Some(Self {
            buf: u64::from_be_bytes(*buf),
            rkey: u32::from_be_bytes(*rkey),
            size: u32::from_be_bytes(*size),
        })
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.buf.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        out[12..].copy_from_slice(&self.size.to_be_bytes());
        out
    }

    /// Returns whether this can be a buffer of rping, and not sixteen other bytes.
    pub(crate) fn is_plausible(&self) -> bool {
        self.rkey != 0
            && (1..=MAX_SIZE).contains(&self.size)
            && self.buf.checked_add(self.size.into()).is_some()
    }

    pub(crate) fn remote(&self) -> Remote {
        Remote { addr: self.buf, rkey: STag(self.rkey) }
    }
}

impl From<RemoteMr> for RpingBuffer {
    fn from(mr: RemoteMr) -> Self {
        Self { buf: mr.addr, rkey: mr.rkey.0, size: u32::try_from(mr.len).unwrap_or(u32::MAX) }
    }
}

/// Returns the bytes that rping sends in a round: "rdma-ping-N: ", then printable characters that
/// begin one later in every round, then NUL.
pub(crate) fn pattern(round: u64, size: usize) -> Vec<u8> {
    const FIRST: u8 = b'A';
    const LAST: u8 = b'z';
    let span = u64::from(LAST - FIRST) + 1;
    let head = format!("rdma-ping-{round}: ");
    let start = (round % span) as u8;
    let tail = (0..).map(|i: u64| FIRST + ((u64::from(start) + i) % span) as u8);
    let mut out: Vec<u8> = head.bytes().chain(tail.take(size)).take(size).collect();
    if let Some(last) = out.last_mut() {
        *last = 0;
    }
    out
}

/// Client side of rping.
pub(super) struct RpingClient<'a> {
    wait: WaitMode,
    until: WaitLimits<'a>,
    size: usize,
    conn: MsgConn,
    source: Buffer,
    sink: Buffer,
}

impl<'a> RpingClient<'a> {
    pub(super) fn connect(
        opener: &Opener,
        peer: SocketAddr,
        size: u32,
        wait: WaitMode,
        options: &ConnConfig,
        until: WaitLimits<'a>,
    ) -> Result<Self> {
        if size > MAX_SIZE {
            return Err(Failure::usage(
                format!("--size {size}"),
                format!("rping's limit is {MAX_SIZE} bytes"),
                "choose a smaller size, or ping without --rping",
            ));
        }
        let device = opener.device()?;
        let pd = device.alloc_pd()?;
        let source = Buffer::shared(&pd, size as usize, Access::REMOTE_READ)?;
        let sink = Buffer::shared(&pd, size as usize, Access::REMOTE_WRITE)?;
        let pending = PendingQp::new(&device, &pd, &QueueDepths::new(8, 4))?;
        let conn =
            MsgConn::connect(pending, (4, RpingBuffer::LEN as u32), peer, options, &[], until)?;
        Ok(Self { wait, until, size: size as usize, conn, source, sink })
    }

    /// Sends the description of a buffer, and waits until the server has read or written the
    /// buffer.
    fn hand_over(&self, buffer: &Buffer) -> Result<()> {
        send_copy(&self.conn.link.qp, 0, &RpingBuffer::from(buffer.remote()).to_bytes())?;
        loop {
            match self.conn.next(self.wait, self.until)? {
                None => return Err(Failure::lost(self.conn.link.peer(), "closed the connection")),
                Some(ConnEvent::Sent(_)) => {}
                Some(ConnEvent::Message { slot, len }) => {
                    self.conn.repost(slot)?;
                    if len == RpingBuffer::LEN {
                        return Ok(());
                    }
                    let why = format!(
                        "sent {len} bytes where an rping server sends {}",
                        RpingBuffer::LEN
                    );
                    return Err(Failure::lost(self.conn.link.peer(), why));
                }
            }
        }
    }
}

impl RoundTrips for RpingClient<'_> {
    fn round(&mut self, round: u64) -> Result<()> {
        let bytes = pattern(round, self.size);
        self.sink.clear()?;
        self.source.write(0, &bytes)?;
        self.hand_over(&self.source)?;
        self.hand_over(&self.sink)?;
        let mut back = vec![0; self.size];
        self.sink.read(0, &mut back)?;
        super::check(self.conn.link.peer(), round, &back, &bytes)
    }

    fn close(self: Box<Self>) {
        self.conn.link.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_rping() {
        assert_eq!(pattern(0, 24), b"rdma-ping-0: ABCDEFGHIJ\0");
        assert_eq!(pattern(2, 24), b"rdma-ping-2: CDEFGHIJKL\0");
        // The pattern repeats after the 58 characters from 'A' to 'z'.
        assert_eq!(pattern(57, 18), b"rdma-ping-57: zAB\0");
        assert_eq!(pattern(58, 18), b"rdma-ping-58: ABC\0");
        assert_eq!(pattern(1, 5), b"rdma\0");
    }

    #[test]
    fn info_in_network_order() {
        let info = RpingBuffer { buf: 0x0102_0304_0506_0708, rkey: 0x0A0B_0C0D, size: 64 };
        let bytes = info.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0, 0, 64]);
        assert_eq!(RpingBuffer::from_bytes(&bytes), Some(info));
        assert!(info.is_plausible());
        assert!(!RpingBuffer::default().is_plausible());
        assert_eq!(RpingBuffer::from_bytes(&bytes[1..]), None);
    }
}
