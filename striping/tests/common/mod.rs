//! Two ends, the streams between them, and what one connection would allow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use uiw_striping::wire::{Header, Kind};
use uiw_striping::{Action, Config, Endpoint, Finish, JoinFailure, Op, Outcome, Received, Role};

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((z ^ z >> 31) as u128 * bound as u128) >> 64) as usize
    }
}

/// What travels on a stream.
enum Item {
    Write(u64),
    Read(u64),
    /// A Send; the number of its request, if it has one.
    Send(Header, Option<u64>),
    /// It is proven that a request was placed.
    Proof(u64),
}

/// One connection of a stripe.
#[derive(Default)]
struct Stream {
    /// Whether each end's queue pair is not in the error state.
    lives: [bool; 2],
    /// From each end.
    items: [VecDeque<Item>; 2],
}

/// What the responder of one end's requests has seen.
#[derive(Default)]
struct Responder {
    placed: BTreeMap<u64, u32>,
    /// The request of the last message that was delivered.
    last_message: u64,
}

pub(crate) struct EndState {
    pub(crate) endpoint: Endpoint<()>,
    pub(crate) completed: Vec<Outcome<()>>,
    ops: BTreeMap<u64, Op>,
    /// Requests whose placement was reported to this end.
    proven: BTreeSet<u64>,
    /// The connection of each stripe that is the present one here.
    generation: Vec<u32>,
    under_way: Vec<Vec<u64>>,
    /// Stripes whose queue pairs are in the error state, but not drained.
    dying: BTreeSet<u8>,
    /// Peers' counts of Requests that wait for their answer, by stripe.
    offers: BTreeMap<u8, (u32, u64)>,
    next_done: u64,
}

impl EndState {
    fn new(role: Role, stripes: u8) -> Self {
        let config = Config { stripes, depth: 8, recovery_timeout: Duration::from_secs(30) };
        Self {
            endpoint: Endpoint::new(role, config),
            completed: Vec::new(),
            ops: BTreeMap::new(),
            proven: BTreeSet::new(),
            generation: vec![0; stripes.into()],
            under_way: vec![Vec::new(); stripes.into()],
            dying: BTreeSet::new(),
            offers: BTreeMap::new(),
            next_done: 1,
        }
    }

    /// Requests that were posted, without the Close.
    pub(crate) fn posted(&self) -> usize {
        self.ops.len()
    }
}

/// An attempt to join, or the answer to it.
enum Join {
    Request { index: u8, generation: u32, delivered: u64 },
    Reply { index: u8, generation: u32, delivered: u64 },
}

pub(crate) struct World {
    random: Random,
    now: Duration,
    stripes: u8,
    pub(crate) ends: [EndState; 2],
    responders: [Responder; 2],
    streams: BTreeMap<(u8, u32), Stream>,
    joins: Vec<Join>,
    is_separated: bool,
}

impl World {
    pub(crate) fn new(seed: u64, stripes: u8) -> Self {
        let stream = |index| ((index, 0), Stream { lives: [true; 2], ..Stream::default() });
        Self {
            random: Random(!seed),
            now: Duration::ZERO,
            stripes,
            ends: [EndState::new(Role::Initiator, stripes), EndState::new(Role::Acceptor, stripes)],
            responders: Default::default(),
            streams: (0..stripes).map(stream).collect(),
            joins: Vec::new(),
            is_separated: false,
        }
    }

    pub(crate) fn post(&mut self, end: usize, op: Op, bytes: u64) {
        if let Ok(number) = self.ends[end].endpoint.post(op, bytes) {
            self.ends[end].ops.insert(number, op);
        }
    }

    pub(crate) fn close(&mut self, end: usize) {
        self.ends[end].endpoint.close();
    }

    /// One end's connection of a stripe breaks; the other end may not notice.
    pub(crate) fn kill(&mut self, end: usize, index: u8) {
        self.ends[end].endpoint.died(index, self.now);
    }

    /// Nothing passes between the ends any more.
    pub(crate) fn separate(&mut self) {
        self.is_separated = true;
        self.joins.clear();
        for index in 0..self.stripes {
            self.kill(0, index);
            self.kill(1, index);
        }
    }

    fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.endpoint.is_over()) && self.ends.iter().all(|end| end.dying.is_empty())
    }

    pub(crate) fn run_to_the_end(&mut self) {
        for _ in 0..200_000 {
            if self.is_over() {
                break;
            }
            self.step();
        }
        assert!(self.is_over(), "stuck: {:?}", self.ends.each_ref().map(|end| end.endpoint.ended()));
        self.completions();
    }

    /// One thing happens.
    pub(crate) fn step(&mut self) {
        let end = self.random.below(2);
        match self.random.below(10) {
            0 => {
                self.now += Duration::from_millis(self.random.below(200) as u64);
                self.ends[end].endpoint.handle_timeout(self.now);
            }
            1 | 2 => self.act(end),
            3 | 4 => self.start(end),
            5 => self.drain(end),
            6 => self.join(),
            7 => self.notice(end),
            _ => self.deliver(end),
        }
        self.completions();
    }

    fn start(&mut self, end: usize) {
        let this = &mut self.ends[end];
        let Some(start) = this.endpoint.poll_start() else { return };
        let (index, number) = (start.index, start.number);
        this.under_way[usize::from(index)].push(number);
        let item = match this.ops.get(&number) {
            Some(Op::Write { .. }) => Item::Write(number),
            Some(Op::Read) => Item::Read(number),
            message => {
                let kind = if message.is_some() { Kind::Send } else { Kind::Close };
                Item::Send(Header { kind, number: start.message.unwrap() }, Some(number))
            }
        };
        self.push(end, index, item);
    }

    fn push(&mut self, end: usize, index: u8, item: Item) {
        let generation = self.ends[end].generation[usize::from(index)];
        if let Some(stream) = self.streams.get_mut(&(index, generation)) {
            stream.items[end].push_back(item);
        }
    }

    /// Something that `from` has sent arrives, on any stream whose receiving end lives: also on old ones.
    fn deliver(&mut self, from: usize) {
        let to = 1 - from;
        if self.is_separated {
            return;
        }
        let ready: Vec<_> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.lives[to] && !stream.items[from].is_empty())
            .map(|(key, _)| *key)
            .collect();
        if ready.is_empty() {
            return;
        }
        let key = ready[self.random.below(ready.len())];
        let stream = self.streams.get_mut(&key).unwrap();
        let Some(item) = stream.items[from].pop_front() else { return };
        if let Some(number) = self.execute(from, key, item) {
            self.streams.get_mut(&key).unwrap().items[to].push_back(Item::Proof(number));
        }
    }

    /// Executes an item that `from` has sent, at the other end. Returns the request whose placement it proves.
    fn execute(&mut self, from: usize, (index, generation): (u8, u32), item: Item) -> Option<u64> {
        let to = 1 - from;
        let requester = &self.ends[from];
        let responder = &mut self.responders[from];
        match item {
            Item::Write(number) => {
                assert!(number > responder.last_message, "a Write is placed after a later message");
                let times = responder.placed.entry(number).or_default();
                *times += 1;
                let idempotent = requester.ops[&number] == Op::Write { idempotent: true };
                assert!(idempotent || *times == 1, "a Write that is not idempotent is placed twice");
                Some(number)
            }
            Item::Read(number) => {
                let before = requester.ops.range(..number).filter(|(_, op)| **op != Op::Read);
                for (earlier, _) in before {
                    assert!(
                        responder.placed.contains_key(earlier),
                        "a Read before {earlier}, which is earlier"
                    );
                }
                assert!(number > responder.last_message, "a Read after a later message");
                Some(number)
            }
            Item::Send(header, number) => {
                if let Some(number) = number {
                    for (earlier, op) in requester.ops.range(..number) {
                        let is_done = match op {
                            Op::Read => requester.proven.contains(earlier),
                            _ => responder.placed.contains_key(earlier),
                        };
                        assert!(is_done, "message {number} before {earlier}, which is earlier");
                    }
                    assert_eq!(responder.placed.insert(number, 1), None, "delivered twice");
                    responder.last_message = number;
                }
                let endpoint = &mut self.ends[to].endpoint;
                match endpoint.received(index, &header) {
                    Ok(Received::Message) => assert_eq!(header.kind, Kind::Send),
                    Ok(Received::Control) => {}
                    Ok(Received::Dead { index, generation }) => {
                        endpoint.peer_died(index, generation, self.now);
                    }
                    Err(violation) => panic!("{violation}"),
                }
                number
            }
            Item::Proof(number) => {
                let this = &mut self.ends[to];
                assert_eq!(this.generation[usize::from(index)], generation);
                this.under_way[usize::from(index)].retain(|other| *other != number);
                this.proven.insert(number);
                this.endpoint.finished(index, number, Finish::Placed);
                None
            }
        }
    }

    /// An end notices that the other end of a stream is gone.
    fn notice(&mut self, end: usize) {
        let index = self.random.below(self.stripes.into()) as u8;
        let generation = self.ends[end].generation[usize::from(index)];
        let peer_lives = self.streams.get(&(index, generation)).is_some_and(|stream| stream.lives[1 - end]);
        if !peer_lives {
            self.kill(end, index);
        }
    }

    fn act(&mut self, end: usize) {
        let this = &mut self.ends[end];
        let Some(action) = this.endpoint.poll_action(self.now) else { return };
        match action {
            Action::Kill { index }
            | Action::Disconnect { index }
            | Action::Abort { on: index }
            | Action::Confirm { on: index } => {
                let kind = match action {
                    Action::Abort { .. } => Some(Kind::Abort),
                    Action::Confirm { .. } => Some(Kind::Closed),
                    _ => None,
                };
                if let Some(kind) = kind {
                    self.push(end, index, Item::Send(Header { kind, number: 0 }, None));
                }
                let generation = self.ends[end].generation[usize::from(index)];
                if let Some(stream) = self.streams.get_mut(&(index, generation)) {
                    stream.lives[end] = false;
                }
                self.ends[end].dying.insert(index);
            }
            Action::Report { on, index, generation } => {
                self.push(
                    end,
                    on,
                    Item::Send(Header { kind: Kind::Dead { index, generation }, number: 0 }, None),
                );
            }
            Action::Join { index, generation, delivered } => {
                if self.is_separated {
                    this.endpoint.join_failed(index, JoinFailure::Retry, self.now);
                } else {
                    self.joins.push(Join::Request { index, generation, delivered });
                }
            }
            Action::Accept { index, generation, delivered } => {
                let Some((offered, count)) = this.offers.remove(&index) else { panic!("no Request waits") };
                assert_eq!(offered, generation);
                let drained = self.streams.range((index, 0)..(index, generation));
                assert!(
                    drained.clone().all(|(_, stream)| !stream.lives[end]),
                    "an old queue pair is not in ERROR"
                );
                this.generation[usize::from(index)] = generation;
                self.streams.insert((index, generation), Stream { lives: [true; 2], ..Stream::default() });
                self.joins.push(Join::Reply { index, generation, delivered });
                this.endpoint.joined(index, count, self.now);
            }
        }
    }

    fn drain(&mut self, end: usize) {
        let Some(index) = self.ends[end].dying.pop_first() else { return };
        let this = &mut self.ends[end];
        for number in std::mem::take(&mut this.under_way[usize::from(index)]) {
            this.endpoint.finished(index, number, Finish::Unknown);
        }
        this.endpoint.drained(index, self.now);
    }

    /// A Request or Reply arrives, in any order, or is lost.
    fn join(&mut self) {
        if self.joins.is_empty() {
            return;
        }
        let at = self.random.below(self.joins.len());
        let is_lost = self.random.below(5) == 0;
        let join = self.joins.swap_remove(at);
        let [initiator, acceptor] = &mut self.ends;
        match join {
            Join::Request { index, generation, delivered } => {
                if is_lost {
                    initiator.endpoint.join_failed(index, JoinFailure::Retry, self.now);
                    return;
                }
                match acceptor.endpoint.offer(self.stripes, index, generation, self.now) {
                    Ok(()) => {
                        // The initiator has given up the one that was waiting.
                        acceptor.offers.insert(index, (generation, delivered));
                    }
                    Err(reason) => {
                        initiator.endpoint.join_failed(index, JoinFailure::Rejected(reason), self.now);
                    }
                }
            }
            Join::Reply { index, generation, delivered } => {
                let stream = self.streams.get_mut(&(index, generation)).unwrap();
                initiator.generation[usize::from(index)] = generation;
                if is_lost || initiator.endpoint.is_over() {
                    stream.lives[0] = false;
                    initiator.endpoint.join_failed(index, JoinFailure::Retry, self.now);
                } else if initiator.dying.contains(&index) {
                    // The attempt was given up.
                    stream.lives[0] = false;
                } else {
                    initiator.endpoint.joined(index, delivered, self.now);
                }
            }
        }
    }

    fn completions(&mut self) {
        for end in &mut self.ends {
            while let Some(done) = end.endpoint.poll_done() {
                assert_eq!(done.number, end.next_done, "completions are in order");
                end.next_done += 1;
                if end.ops.contains_key(&done.number) {
                    end.completed.push(done.outcome);
                }
            }
        }
        for (requester, responder) in self.ends.iter().zip(&self.responders) {
            let placed = requester.completed.iter().zip(requester.ops.iter());
            for (outcome, (number, op)) in placed {
                let is_there = *op == Op::Read || responder.placed.contains_key(number);
                assert!(is_there || *outcome != Outcome::Placed, "{number} completed, and is not placed");
            }
        }
    }
}
