//! Peers that do not name a service: stock `rping` and echo clients. A first message that is
//! rping's description of a buffer makes this rping's server; anything else is echoed.

use super::{Server, ping};
use crate::ping::rping::{Info, MAX_SIZE};
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::msg_conn::{Event, MsgConn};
use crate::shared::qp_setup::{Wait, WaitLimits, post, send_copy};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{SendFlags, SendOp};

/// Bytes of a message that is echoed, at most.
const ECHO_SIZE: u32 = 64 << 10;
/// Bytes of memory that a peer takes.
pub(super) const MEMORY: u64 = ECHO_SIZE as u64 * 16 + MAX_SIZE as u64;
const READ: u64 = 1 << 32;
const GO_AHEAD: u64 = 2 << 32;
const WRITE: u64 = 3 << 32;

pub(super) fn serve(server: &Server, request: ConnRequest) -> Result<()> {
    let conn = ping::accept(server, request, ECHO_SIZE, &server.peer_options.options(), &[])?;
    let until = WaitLimits::stop(&server.stop);
    let Some(Event::Message { slot, len }) = conn.next(Wait::Sleep, until)? else {
        conn.link.close();
        return Ok(());
    };
    match Info::from_bytes(&conn.bytes(slot, len)?).filter(Info::is_plausible) {
        Some(source) => {
            conn.repost(slot)?;
            let rping = RpingServer { server, data: Buffer::untouched(&server.pd, MAX_SIZE as usize)?, conn };
            rping.rounds(source)?;
            rping.conn.link.close();
            Ok(())
        }
        None => {
            ping::send_back(&conn, slot, len)?;
            ping::echo(server, conn)
        }
    }
}

/// rping's server: reads the client's source and says so, writes it to the client's sink and says
/// so.
struct RpingServer<'a> {
    server: &'a Server,
    conn: MsgConn,
    data: Buffer,
}

impl RpingServer<'_> {
    fn rounds(&self, mut source: Info) -> Result<()> {
        loop {
            let remote = source.remote();
            let op = SendOp::Read { remote, invalidate: None };
            if !self.step(READ, op, source)? {
                return Ok(());
            }
            let Some(sink) = self.info()? else { return Ok(()) };
            if !self.step(WRITE, SendOp::Write { remote: sink.remote() }, sink)? {
                return Ok(());
            }
            source = match self.info()? {
                Some(info) => info,
                None => return Ok(()),
            };
        }
    }

    /// One transfer, and the message that lets the client continue: rping looks at its length only.
    fn step(&self, wr_id: u64, op: SendOp, info: Info) -> Result<bool> {
        if info.size > MAX_SIZE {
            let why = format!("describes a buffer of {} bytes; rping's limit is {MAX_SIZE}", info.size);
            return Err(Failure::lost(self.conn.link.peer(), why));
        }
        let until = WaitLimits::stop(&self.server.stop);
        let qp = &self.conn.link.qp;
        post(qp, wr_id, op, &[self.data.sge(0..info.size as usize)], SendFlags::SIGNALED)?;
        if !self.conn.sent(wr_id, Wait::Sleep, until)? {
            return Ok(false);
        }
        send_copy(qp, GO_AHEAD, &Info::default().to_bytes())?;
        Ok(true)
    }

    /// The client's next description; `None` when it has closed.
    fn info(&self) -> Result<Option<Info>> {
        let until = WaitLimits::stop(&self.server.stop);
        let Some(message) = self.conn.message(Wait::Sleep, until)? else { return Ok(None) };
        match Info::from_bytes(&message) {
            Some(info) => Ok(Some(info)),
            None => {
                let why = format!("sent {} bytes where rping sends {}", message.len(), Info::LEN);
                Err(Failure::lost(self.conn.link.peer(), why))
            }
        }
    }
}
