//! Peers that do not name a service: stock `rping` and echo clients. If the first message is
//! rping's description of a buffer, this end acts as an rping server; otherwise it echoes the
//! messages.

use super::{Server, ping};
use crate::ping::rping::{MAX_SIZE, RpingBuffer};
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::msg_conn::{ConnEvent, MsgConn};
use crate::shared::qp_setup::{WaitLimits, WaitMode, post, send_copy};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{SendFlags, SendOp};

/// Maximum size of an echoed message, in bytes.
const ECHO_SIZE: u32 = 64 << 10;
/// Bytes of memory for a peer.
pub(super) const MEMORY: u64 = ECHO_SIZE as u64 * 16 + MAX_SIZE as u64;
const READ: u64 = 1 << 32;
const GO_AHEAD: u64 = 2 << 32;
const WRITE: u64 = 3 << 32;

pub(super) fn serve(server: &Server, request: ConnRequest) -> Result<()> {
    let conn = ping::accept(server, request, ECHO_SIZE, &server.peer_options.options(), &[])?;
    let until = WaitLimits::stop(&server.stop);
    let Some(ConnEvent::Message { slot, len }) = conn.next(WaitMode::Sleep, until)? else {
        conn.link.close();
        return Ok(());
    };
    match RpingBuffer::from_bytes(&conn.bytes(slot, len)?).filter(RpingBuffer::is_plausible) {
        Some(source) => {
            conn.repost(slot)?;
            let rping = RpingServer {
                server,
                data: Buffer::untouched(&server.pd, MAX_SIZE as usize)?,
                conn,
            };
            rping.serve_rounds(source)?;
            rping.conn.link.close();
            Ok(())
        }
        None => {
            ping::send_back(&conn, slot, len)?;
            ping::echo(server, conn)
        }
    }
}

/// Server side of rping. In each round it reads the client's source and sends a message, then
/// writes the bytes to the client's sink and sends another message.
struct RpingServer<'a> {
    server: &'a Server,
    conn: MsgConn,
    data: Buffer,
}

impl RpingServer<'_> {
    fn serve_rounds(&self, mut source: RpingBuffer) -> Result<()> {
        loop {
            let remote = source.remote();
            let op = SendOp::Read { remote, invalidate: None };
            if !self.transfer(READ, op, source)? {
                return Ok(());
            }
            let Some(sink) = self.next_buffer()? else { return Ok(()) };
            if !self.transfer(WRITE, SendOp::Write { remote: sink.remote() }, sink)? {
                return Ok(());
            }
            source = match self.next_buffer()? {
                Some(info) => info,
                None => return Ok(()),
            };
        }
    }

    /// Makes one transfer, and sends the message that lets the client continue. rping checks only
    /// the length of this message. Returns false if the client has closed.
    fn transfer(&self, wr_id: u64, op: SendOp, info: RpingBuffer) -> Result<bool> {
        if info.size > MAX_SIZE {
            let why =
                format!("describes a buffer of {} bytes; rping's limit is {MAX_SIZE}", info.size);
            return Err(Failure::lost(self.conn.link.peer(), why));
        }
        let until = WaitLimits::stop(&self.server.stop);
        let qp = &self.conn.link.qp;
        post(qp, wr_id, op, &[self.data.sge(0..info.size as usize)], SendFlags::SIGNALED)?;
        if !self.conn.wait_sent(wr_id, WaitMode::Sleep, until)? {
            return Ok(false);
        }
        send_copy(qp, GO_AHEAD, &RpingBuffer::default().to_bytes())?;
        Ok(true)
    }

    /// Returns the next buffer that the client describes, or `None` if it has closed.
    fn next_buffer(&self) -> Result<Option<RpingBuffer>> {
        let until = WaitLimits::stop(&self.server.stop);
        let Some(message) = self.conn.message(WaitMode::Sleep, until)? else { return Ok(None) };
        match RpingBuffer::from_bytes(&message) {
            Some(info) => Ok(Some(info)),
            None => {
                let why =
                    format!("sent {} bytes where rping sends {}", message.len(), RpingBuffer::LEN);
                Err(Failure::lost(self.conn.link.peer(), why))
            }
        }
    }
}
