//! Queue pair states and the transitions between them.

use std::fmt;

/// State of a queue pair; the values of `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Just made by a caller that asked for it, or reset: nothing may be posted.
    Reset = 0,
    /// Receives may be posted. An iWARP queue pair starts here.
    Init = 1,
    /// Ready to receive: waits for its connection.
    Rtr = 2,
    /// Connected.
    Rts = 3,
    /// Send queue drained or draining: posted sends wait. Also an orderly close under way.
    Sqd = 4,
    /// Send queue error. A reliable connection never enters it; leaving it for RTS is legal.
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

    /// Returns whether an application may ask for the transition to `to`: the verbs state diagram.
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
