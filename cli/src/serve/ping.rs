//! Server of `uiw ping`: echoes every message, and exposes memory for Writes and Reads.

use super::Server;
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::msg_conn::{ConnEvent, MsgConn};
use crate::shared::qp_setup::{PendingQp, QueueDepths, WaitLimits, WaitMode, post};
use crate::shared::service::PingOrder;
use crate::shared::text;
use uiw::raw::cm::ConnRequest;
use uiw::raw::{Access, ConnConfig, SendFlags, SendOp};

/// Number of receives that are kept posted.
const SLOTS: u32 = 16;
/// Maximum size of a message, in bytes.
pub(crate) const MAX_SIZE: u32 = 16 << 20;

/// Returns the bytes of memory for messages of `size` bytes: the exposed memory and the receives.
pub(super) fn required_memory(size: u32) -> u64 {
    u64::from(size) * u64::from(SLOTS + 1)
}

pub(super) fn serve(server: &Server, request: ConnRequest, order: &PingOrder) -> Result<()> {
    let peer = text::canonical(request.peer_addr());
    if order.size > MAX_SIZE {
        let _ = request.reject(b"message too long");
        return Err(Failure::lost(peer, format!("asks for messages of {} bytes", order.size)));
    }
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let exposed = Buffer::shared(&server.pd, order.size.max(1) as usize, access)?;
    let reply = exposed.remote().to_bytes();
    let options = order.peer_options.at(&server.peer_options.own).options();
    let conn = accept(server, request, order.size, &options, &reply)?;
    echo(server, conn)
}

/// Accepts a connection with receives of `size` bytes.
pub(super) fn accept(
    server: &Server,
    request: ConnRequest,
    size: u32,
    options: &ConnConfig,
    reply: &[u8],
) -> Result<MsgConn> {
    let pending = PendingQp::new(&server.device, &server.pd, &QueueDepths::new(SLOTS * 2, SLOTS))?;
    let conn = MsgConn::accept(
        pending,
        (SLOTS, size),
        request,
        options,
        reply,
        WaitLimits::stop(&server.stop),
    )?;
    server.watch(&conn.link);
    Ok(conn)
}

/// Echoes messages until the peer closes.
pub(super) fn echo(server: &Server, conn: MsgConn) -> Result<()> {
    while let Some(event) = conn.next(WaitMode::Sleep, WaitLimits::stop(&server.stop))? {
        match event {
            // The echo was sent, so its slot can be used again.
            ConnEvent::Sent(slot) => conn.repost(slot)?,
            ConnEvent::Message { slot, len } => send_back(&conn, slot, len)?,
        }
    }
    conn.link.close();
    Ok(())
}

/// Sends a message back from its receive memory. The number of the request is the slot.
pub(super) fn send_back(conn: &MsgConn, slot: u64, len: usize) -> Result<()> {
    post(&conn.link.qp, slot, SendOp::Send, &[conn.sge(slot, len)], SendFlags::SIGNALED)
}
