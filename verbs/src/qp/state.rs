//! Queue pair states and the transitions between them.

use std::fmt;

/// State of a queue pair; the values of `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// The queue pair was reset, or is a new UD queue pair. Nothing may be posted.
    Reset = 0,
    /// Receives may be posted. A new queue pair for connections is in this state.
    Init = 1,
    /// Ready to receive. The queue pair waits for its connection.
    Rtr = 2,
    /// Ready to send. If the connection is not established yet, requests wait for it.
    Rts = 3,
    /// The send queue is drained or being drained, and requests posted later wait. Also the state
    /// during an orderly close.
    Sqd = 4,
    /// Send queue error. Only UD queue pairs enter it; they can return to RTS.
    Sqe = 5,
    /// Error: everything posted is flushed.
    Err = 6,
}

impl QpState {
    pub(crate) const fn from_raw(raw: u8) -> Self {
        match raw {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            _ => Self::Err,
        }
    }

    /// Returns whether an application may request the transition to `to` (verbs state diagram).
    #[must_use]
    pub const fn may_become(self, to: Self) -> bool {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        matches!(
            (self, to),
            (_, Reset | Err)
                | (Reset | Init, Init)
                | (Init, Rtr)
                | (Rtr | Rts | Sqd | Sqe, Rts)
                | (Rts | Sqd, Sqd)
        )
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::QpState::{self, Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

    #[test]
    fn transitions_follow_verbs_diagram() {
        let all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
        let legal: [&[QpState]; 7] = [
            &[Reset, Init, Err],
            &[Reset, Init, Rtr, Err],
            &[Reset, Rts, Err],
            &[Reset, Rts, Sqd, Err],
            &[Reset, Rts, Sqd, Err],
            &[Reset, Rts, Err],
            &[Reset, Err],
        ];
        for (from, legal) in all.into_iter().zip(legal) {
            for to in all {
                assert_eq!(from.may_become(to), legal.contains(&to), "{from} -> {to}");
            }
        }
    }
}
