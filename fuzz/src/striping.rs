//! Striped connections: their formats, and one end whose stripes die at will and whose peer says what it likes. Every request completes once and in
//! order; nothing starts on a stripe that is not up, or behind a failure; what a peer may not say ends the connection.

use crate::input::Input;
use std::collections::BTreeSet;
use std::time::Duration;
use uiw_striping::wire::{Header, Join, Kind, Reason};
use uiw_striping::{
    Action, Config, Done, End as Over, Endpoint, Finish, JoinFailure, Op, Outcome, Received, Role,
};

/// Steps of an input.
const STEPS: usize = 600;

/// Runs an input.
pub fn run(bytes: &[u8]) {
    formats(bytes);
    End::new(&mut Input::new(bytes)).run();
}

/// What is parsed is emitted as it was, with the bytes as they are and with a front that is right.
fn formats(bytes: &[u8]) {
    let kind = bytes.first().map_or(1, |byte| byte % 4);
    let join = [&[0x75, 0x69, 0x77, 0x53, 1, kind][..], bytes].concat();
    for bytes in [bytes, &join] {
        if let Ok((join, rest)) = Join::parse(bytes) {
            let again = join.emit(rest);
            assert_eq!(Join::parse(&again), Ok((join, rest)));
            // A Reply has no token, and a Rejection no fields.
            assert!(!matches!(join, Join::Request(_)) || again == bytes);
        }
    }
    let message = [&[bytes.first().map_or(1, |byte| byte % 9), 0, 0, 0][..], bytes].concat();
    for bytes in [bytes, &message] {
        if let Ok((header, payload)) = Header::parse(bytes) {
            assert_eq!([&header.emit(), payload].concat(), bytes);
        }
    }
}

/// One end, and what is known of it.
struct End<'a, 'b> {
    input: &'a mut Input<'b>,
    endpoint: Endpoint<u8>,
    stripes: u8,
    now: Duration,
    /// Requests on each stripe.
    under_way: Vec<Vec<u64>>,
    /// Stripes whose queue pair the program still has to take apart.
    dying: BTreeSet<u8>,
    joining: BTreeSet<u8>,
    posted: u64,
    done: u64,
    /// A request was reported as failed.
    has_failed: bool,
    /// The number of the next message, if the peer keeps the rules.
    next_message: u64,
}

impl<'a, 'b> End<'a, 'b> {
    fn new(input: &'a mut Input<'b>) -> Self {
        let role = if input.bool() { Role::Initiator } else { Role::Acceptor };
        let stripes = 1 + input.u8() % 4;
        let depth = 1 + u32::from(input.u8() % 8);
        let config = Config { stripes, depth, recovery_timeout: Duration::from_secs(30) };
        Self {
            endpoint: Endpoint::new(role, config),
            stripes,
            now: Duration::ZERO,
            under_way: vec![Vec::new(); stripes.into()],
            dying: BTreeSet::new(),
            joining: BTreeSet::new(),
            posted: 0,
            done: 0,
            has_failed: false,
            next_message: 1,
            input,
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            if self.input.is_empty() {
                break;
            }
            self.step();
            self.completions();
        }
        self.finish();
    }

    fn step(&mut self) {
        let index = self.input.u8() % self.stripes;
        match self.input.below(16) {
            0..=2 => self.post(),
            3..=5 => self.start(),
            6 | 7 => self.give_back(index),
            8 | 9 => self.receive(index),
            10 => self.endpoint.died(index, self.now),
            11 => self.drain(index),
            12 => self.join(index),
            13 => self.offer(index),
            14 => {
                self.now += Duration::from_millis(u64::from(self.input.u16()));
                self.endpoint.handle_timeout(self.now);
            }
            _ if self.input.u8() < 8 => self.endpoint.abort(),
            _ => self.act(),
        }
        if self.input.u8() & 3 != 0 {
            self.act();
        }
    }

    fn post(&mut self) {
        let bytes = u64::from(self.input.u16()) << self.input.below(48);
        let idempotent = self.input.bool();
        let number = match self.input.below(8) {
            0..=2 => self.endpoint.post(Op::Write { idempotent }, bytes).ok(),
            3 => self.endpoint.post(Op::Read, bytes).ok(),
            4 | 5 => self.endpoint.post(Op::Message, bytes).ok(),
            6 => self.endpoint.post_write_notice(idempotent, bytes).ok().inspect(|_| self.posted += 1),
            _ if self.input.u8() < 16 => self.endpoint.close(),
            _ => None,
        };
        if let Some(number) = number {
            self.posted += 1;
            assert!(number == self.posted || number + 1 == self.posted, "{number} of {}", self.posted);
        }
    }

    fn start(&mut self) {
        let Some(start) = self.endpoint.poll_start() else { return };
        assert!(self.endpoint.ended().is_none() && !self.has_failed, "{start:?} behind the end");
        assert!(!self.dying.contains(&start.index) && !self.joining.contains(&start.index), "{start:?}");
        assert!(start.message.is_none() || start.index == 0, "{start:?}");
        assert!(start.number > self.done, "{start:?} is over");
        let on_other = self.under_way.iter().flatten().any(|number| *number == start.number);
        assert!(!on_other, "{start:?} is under way already");
        self.under_way[usize::from(start.index)].push(start.number);
    }

    /// A stripe gives back the first of its requests.
    fn give_back(&mut self, index: u8) {
        let requests = &mut self.under_way[usize::from(index)];
        if requests.is_empty() {
            return;
        }
        let number = requests.remove(0);
        let finish = match self.input.u8() {
            0..=12 => Finish::Failed(3),
            13..=40 => Finish::Unknown,
            _ => Finish::Placed,
        };
        self.endpoint.finished(index, number, finish);
    }

    /// A message, mostly one that the peer may send.
    fn receive(&mut self, index: u8) {
        let number = self.next_message;
        let message = |kind| Header { kind, number };
        let control = |kind| Header { kind, number: 0 };
        let imm = self.input.u32();
        let header = match self.input.below(12) {
            0..=4 => message(Kind::Send),
            5 => message(Kind::SendImm(imm)),
            6 => message(Kind::WriteNotice { imm, len: imm }),
            7 => message(Kind::Close),
            8 => control(Kind::Dead { index: (imm >> 8) as u8 % 6, generation: imm % 4 }),
            9 => control(Kind::Closed),
            10 if self.input.u8() < 32 => control(Kind::Abort),
            _ => {
                let bytes = self.input.take(20);
                match Header::parse(bytes) {
                    Ok((header, _)) => header,
                    Err(_) => return,
                }
            }
        };
        let on = if self.input.u8() < 16 { index } else { 0 };
        let (was_over, was_closed) =
            (self.endpoint.ended().is_some(), self.endpoint.close_number().is_some());
        match self.endpoint.received(on, &header) {
            Ok(Received::Message) => {
                assert_eq!((header.number, on), (self.next_message, 0));
                self.next_message += 1;
            }
            Ok(Received::Control) => self.next_message += u64::from(header.kind == Kind::Close),
            Ok(Received::Dead { index, generation }) => {
                self.endpoint.peer_died(index, generation, self.now);
            }
            Err(_) => assert!(was_over || self.endpoint.ended().is_some(), "a violation has no consequence"),
        }
        // An end that receives a Close posts its own.
        self.posted += u64::from(!was_closed && self.endpoint.close_number().is_some());
    }

    /// Takes apart what is left of a stripe.
    fn drain(&mut self, index: u8) {
        if !self.dying.contains(&index) {
            return;
        }
        while !self.under_way[usize::from(index)].is_empty() {
            self.give_back(index);
        }
        self.dying.remove(&index);
        self.endpoint.drained(index, self.now);
    }

    fn join(&mut self, index: u8) {
        if !self.joining.remove(&index) {
            return;
        }
        match self.input.below(4) {
            0 => self.endpoint.join_failed(index, JoinFailure::Retry, self.now),
            1 if self.input.u8() < 64 => {
                let reason = self.input.pick(&[Reason::Busy, Reason::Closed, Reason::Unknown, Reason::Stale]);
                self.endpoint.join_failed(index, JoinFailure::Rejected(reason), self.now);
            }
            _ => {
                let delivered = match self.input.u8() {
                    0..=15 => self.input.u64(),
                    count => u64::from(count % 8),
                };
                self.endpoint.joined(index, delivered, self.now);
            }
        }
    }

    fn offer(&mut self, index: u8) {
        let stripes = if self.input.u8() < 16 { self.input.u8() } else { self.stripes };
        let generation = if self.input.u8() < 8 { self.input.u32() } else { u32::from(self.input.u8()) };
        let index = if self.input.u8() < 8 { self.input.u8() } else { index };
        let _ = self.endpoint.offer(stripes, index, generation, self.now);
        // A set-up of an earlier generation is given up at once.
        self.act();
    }

    fn act(&mut self) {
        while let Some(action) = self.endpoint.poll_action(self.now) {
            match action {
                Action::Kill { index } | Action::Disconnect { index } => self.take_down(index),
                Action::Abort { on } | Action::Confirm { on } => self.take_down(on),
                Action::Join { index, .. } | Action::Accept { index, .. } => {
                    assert!(!self.dying.contains(&index), "stripe {index} is not drained");
                    assert!(self.under_way[usize::from(index)].is_empty(), "requests on stripe {index}");
                    assert!(self.joining.insert(index), "stripe {index} joins twice");
                }
                Action::Report { on, .. } => assert!(on < self.stripes),
            }
        }
    }

    /// A connection, or its set-up, is given up: the program reports when nothing of it is left.
    fn take_down(&mut self, index: u8) {
        assert!(index < self.stripes);
        self.joining.remove(&index);
        self.dying.insert(index);
    }

    fn completions(&mut self) {
        while let Some(Done { number, outcome, .. }) = self.endpoint.poll_done() {
            assert_eq!(number, self.done + 1, "completions are not in order");
            self.done = number;
            match outcome {
                Outcome::Placed => assert!(!self.has_failed, "{number} is placed behind a failure"),
                Outcome::Failed(_) | Outcome::Lost => {
                    assert!(!self.has_failed, "{number} fails behind a failure");
                    self.has_failed = true;
                }
                Outcome::Flushed => assert!(self.has_failed || self.endpoint.ended().is_some()),
            }
        }
    }

    /// The program gives up: everything that was posted completes, and no stripe is left.
    fn finish(mut self) {
        self.endpoint.abort();
        for _ in 0..3 {
            self.act();
            for index in 0..self.stripes {
                self.drain(index);
                self.joining.remove(&index);
            }
            self.completions();
        }
        // An end that lacks only the proof for its Close is over without it: no program waits for that one.
        let is_close_left = self.endpoint.ended() == Some(Over::Closed)
            && self.endpoint.close_number() == Some(self.done + 1);
        let all = self.posted - u64::from(is_close_left);
        assert_eq!(self.done, all, "requests that are posted and not over: {:?}", self.endpoint.ended());
        assert!(self.endpoint.is_over(), "a stripe is left");
        assert_eq!(self.endpoint.poll_start(), None);
    }
}
