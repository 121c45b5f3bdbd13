//! FPDUs of a stack in this process: verified where they lie in its receive buffer, then copied once, to their place. Only one that
//! wraps the buffer's end is staged.

use crate::driver::{Env, RX_STAGING};
use crate::qp::{Conn, Down};
use llp::Rest;
use std::io;

/// What became of a look at the stack's memory.
pub(super) enum Looked {
    /// The stack has none: the stream is read into staging.
    Elsewhere,
    /// The rest of an FPDU goes to staging, where its front is or will be: up to this many octets together.
    Staged {
        until: usize,
    },
    /// FPDUs were taken; perhaps there are `more`.
    Used {
        more: bool,
    },
    Nothing,
}

impl Conn {
    /// Makes FPDUs of what lies in the stack's memory, behind `have` octets of an FPDU that are in staging.
    pub(super) fn receive_in_place(&mut self, have: usize, env: &mut Env<'_>) -> Result<Looked, Down> {
        let mut look = match self.stream.look() {
            Ok(Some(look)) => look,
            Ok(None) => return Ok(Looked::Elsewhere),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Looked::Nothing),
            Err(error) => return Err(Down::Lost(error)),
        };
        if have > 0 {
            return Ok(Looked::Staged { until: self.rx.wanted.max(have + 1) });
        }
        let octets = look.octets();
        if octets.is_empty() {
            // The peer's FIN, which `recv` tells.
            return Ok(Looked::Elsewhere);
        }
        // In pieces, between which the peer is told of the room.
        let piece = octets.len().min(RX_STAGING);
        let limited = piece < octets.len();
        let used = self.consume(&mut octets[..piece], env)?;
        let more = limited || !look.can_grow(used);
        if used == piece || limited || self.rx.is_stalled() {
            look.consume(used, Rest::Useful);
            return Ok(Looked::Used { more });
        }
        if more {
            look.consume(used, Rest::Useful);
            return Ok(Looked::Staged { until: self.rx.wanted.max(1) });
        }
        look.consume(used, Rest::WaitForMore);
        Ok(Looked::Used { more })
    }
}
