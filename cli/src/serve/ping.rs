//! The peer of `uiw ping`: every message comes back; memory stands open to Writes and Reads.

use super::Server;
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::msg_conn::{Event, MsgConn};
use crate::shared::qp_setup::{Depths, PendingQp, Wait, WaitLimits, post};
use crate::shared::service::PingOrder;
use crate::shared::text;
use uiw::raw::cm::ConnRequest;
use uiw::raw::{Access, ConnConfig, SendFlags, SendOp};

/// Receives kept posted.
const SLOTS: u32 = 16;
/// Bytes of a message at most.
pub(crate) const MAX_SIZE: u32 = 16 << 20;

/// Bytes of memory for messages of `size` bytes: those that stand open, and the receives.
pub(super) fn memory(size: u32) -> u64 {
    u64::from(size) * u64::from(SLOTS + 1)
}

pub(super) fn serve(server: &Server, request: ConnRequest, order: &PingOrder) -> Result<()> {
    let peer = text::canonical(request.peer_addr());
    if order.size > MAX_SIZE {
        let _ = request.reject(b"message too long");
        return Err(Failure::lost(peer, format!("asks for messages of {} bytes", order.size)));
    }
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let open = Buffer::shared(&server.pd, order.size.max(1) as usize, access)?;
    let reply = open.remote().to_bytes();
    let options = order.peer_options.at(&server.peer_options.own).options();
    let conn = accept(server, request, order.size, &options, &reply)?;
    echo(server, conn)
}

/// Accepts with receives of `size` bytes.
pub(super) fn accept(
    server: &Server,
    request: ConnRequest,
    size: u32,
    options: &ConnConfig,
    reply: &[u8],
) -> Result<MsgConn> {
    let half = PendingQp::new(&server.device, &server.pd, &Depths::new(SLOTS * 2, SLOTS))?;
    let conn = MsgConn::accept(half, (SLOTS, size), request, options, reply, WaitLimits::stop(&server.stop))?;
    server.watch(&conn.link);
    Ok(conn)
}

/// Sends back what comes, until the peer closes.
pub(super) fn echo(server: &Server, conn: MsgConn) -> Result<()> {
    while let Some(event) = conn.next(Wait::Sleep, WaitLimits::stop(&server.stop))? {
        match event {
            // The echo is out: its slot may be used again.
            Event::Sent(slot) => conn.repost(slot)?,
            Event::Message { slot, len } => send_back(&conn, slot, len)?,
        }
    }
    conn.link.close();
    Ok(())
}

/// Sends a message back from where it lies; its slot is the request's number.
pub(super) fn send_back(conn: &MsgConn, slot: u64, len: usize) -> Result<()> {
    post(&conn.link.qp, slot, SendOp::Send, &[conn.sge(slot, len)], SendFlags::SIGNALED)
}
