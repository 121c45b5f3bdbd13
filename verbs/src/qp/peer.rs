//! Recognition of our own peers without a single illegal bit (`ARCHITECTURE.md`, "Our own peers").
//!
//! The initiator's first FPDU is a zero-length RDMA Write, which every receiver accepts without looking at its STag and TO
//! (RFC 5040 section 5.2.1: they are not checked). Ours carry a hello: STag = magic, TO = features and a nonce. A uiw responder
//! answers with another magic and a function of that nonce, so that a peer that echoes or zeroes what it gets passes for nobody.

use crate::options::Recognition;
use ddp::STag;
use rdmap::Extensions;

const HELLO: STag = STag(0x7569_7731);
const ANSWER: STag = STag(0x7569_7732);
const NONCE_BITS: u32 = 48;
const NONCE_MASK: u64 = (1 << NONCE_BITS) - 1;

/// Features, as bits in a hello's and an answer's TO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features(u16);

impl Features {
    const IMMEDIATE: u16 = 1;
    const ATOMIC: u16 = 2;
    const SEND_IMM: u16 = 4;
    const LARGE_FPDU: u16 = 8;
    const OURS: Self = Self(Self::IMMEDIATE | Self::ATOMIC | Self::SEND_IMM | Self::LARGE_FPDU);
    const NONE: Self = Self(0);
    const ASSUMED: Self = Self(Self::IMMEDIATE | Self::ATOMIC);

    pub(crate) const fn large_fpdu(self) -> bool {
        self.0 & Self::LARGE_FPDU != 0
    }

    pub(crate) const fn extensions(self) -> Extensions {
        Extensions {
            immediate: self.0 & Self::IMMEDIATE != 0,
            atomic: self.0 & Self::ATOMIC != 0,
            send_imm: self.0 & Self::SEND_IMM != 0,
        }
    }
}

/// What is known of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The answer to our hello is not here yet.
    NotYet,
    /// One of ours, with these features agreed.
    Ours(Features),
    /// Somebody else.
    Foreign,
}

/// Recognition on one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) known: Known,
    initiator: bool,
    on: bool,
    nonce: u64,
}

/// A zero-length Write to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) stag: STag,
    pub(crate) to: u64,
}

impl Peer {
    pub(crate) fn new(initiator: bool, mode: Recognition, nonce: u64) -> Self {
        let known = match mode {
            Recognition::On => Known::NotYet,
            Recognition::Off => Known::Foreign,
            Recognition::Assume => Known::Ours(Features::ASSUMED),
        };
        Self { known, initiator, on: mode == Recognition::On, nonce: nonce & NONCE_MASK }
    }

    /// A queue pair that is connected to itself: nothing needs to be said.
    pub(crate) fn itself() -> Self {
        Self { known: Known::Ours(Features::OURS), initiator: true, on: false, nonce: 0 }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.known == Known::NotYet
    }

    pub(crate) fn features(&self) -> Features {
        match self.known {
            Known::Ours(features) => features,
            Known::NotYet | Known::Foreign => Features::NONE,
        }
    }

    /// The initiator's hello; a plain zero-length Write where recognition is off.
    pub(crate) fn hello(&self) -> Greeting {
        if self.on {
            Greeting { stag: HELLO, to: u64::from(Features::OURS.0) << NONCE_BITS | self.nonce }
        } else {
            Greeting { stag: STag(1), to: 0 }
        }
    }

    /// An inbound zero-length Write. `first` = it is the peer's first FPDU. Returns the answer that is due.
    pub(crate) fn on_empty_write(&mut self, stag: STag, to: u64, first: bool) -> Option<Greeting> {
        if !self.on {
            return None;
        }
        let theirs = Features((to >> NONCE_BITS) as u16 & Features::OURS.0);
        let nonce = to & NONCE_MASK;
        if self.initiator {
            // A late answer still counts: nothing was sent meanwhile that it forbids.
            if stag == ANSWER && nonce == mix(self.nonce) {
                self.known = Known::Ours(theirs);
            }
            return None;
        }
        if !first || stag != HELLO {
            return None;
        }
        self.known = Known::Ours(theirs);
        Some(Greeting { stag: ANSWER, to: u64::from(theirs.0) << NONCE_BITS | mix(nonce) })
    }

    /// The peer's first FPDU was something else, or no answer came in time.
    pub(crate) fn give_up(&mut self) {
        if self.known == Known::NotYet {
            self.known = Known::Foreign;
        }
    }
}

/// A fixed permutation of 48 bits with no simple structure: the answer shows that its sender knows this protocol, not a secret.
fn mix(nonce: u64) -> u64 {
    let mut x = nonce;
    for _ in 0..3 {
        x = x.wrapping_mul(0x9E37_79B9_7F4A_7C15 | 1) & NONCE_MASK;
        x ^= x >> 23;
    }
    (x ^ 0x5549_5721_7569) & NONCE_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_ours_agree() {
        let mut initiator = Peer::new(true, Recognition::On, 0xFFFF_1234_5678_9ABC);
        let mut responder = Peer::new(false, Recognition::On, 7);
        let hello = initiator.hello();
        let answer = responder.on_empty_write(hello.stag, hello.to, true).unwrap();
        assert_eq!(responder.known, Known::Ours(Features::OURS));
        assert_eq!(initiator.on_empty_write(answer.stag, answer.to, true), None);
        assert_eq!(initiator.known, Known::Ours(Features::OURS));
    }

    #[test]
    fn an_echo_is_nobody() {
        let mut initiator = Peer::new(true, Recognition::On, 42);
        let hello = initiator.hello();
        initiator.on_empty_write(hello.stag, hello.to, true);
        assert_eq!(initiator.known, Known::NotYet);
        initiator.give_up();
        assert_eq!(initiator.known, Known::Foreign);
    }

    #[test]
    fn zeros_are_nobody() {
        for initiator in [true, false] {
            let mut peer = Peer::new(initiator, Recognition::On, 42);
            assert_eq!(peer.on_empty_write(STag(0), 0, true), None);
            assert_eq!(peer.known, Known::NotYet);
        }
    }

    #[test]
    fn an_answer_to_another_nonce_is_nobody() {
        let mut other = Peer::new(false, Recognition::On, 0);
        let answer = {
            let hello = Peer::new(true, Recognition::On, 1).hello();
            other.on_empty_write(hello.stag, hello.to, true).unwrap()
        };
        let mut initiator = Peer::new(true, Recognition::On, 2);
        initiator.on_empty_write(answer.stag, answer.to, true);
        assert_eq!(initiator.known, Known::NotYet);
    }

    #[test]
    fn a_hello_counts_only_as_the_first_fpdu() {
        let hello = Peer::new(true, Recognition::On, 3).hello();
        let mut responder = Peer::new(false, Recognition::On, 0);
        assert_eq!(responder.on_empty_write(hello.stag, hello.to, false), None);
    }

    #[test]
    fn siws_rtr_write_is_nobody() {
        // siw's RTR: a zero-length Write with STag 1, TO 0.
        let mut responder = Peer::new(false, Recognition::On, 0);
        assert_eq!(responder.on_empty_write(STag(1), 0, true), None);
        assert_eq!(responder.known, Known::NotYet);
    }

    #[test]
    fn switched_off_says_and_hears_nothing() {
        let hello = Peer::new(true, Recognition::On, 3).hello();
        let mut off = Peer::new(false, Recognition::Off, 0);
        assert_eq!(off.on_empty_write(hello.stag, hello.to, true), None);
        assert_ne!(Peer::new(true, Recognition::Off, 0).hello().stag, HELLO);
    }
}
