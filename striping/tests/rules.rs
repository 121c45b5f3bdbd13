//! The rules of docs/striping.md, one by one.

use std::time::Duration;
use uiw_striping::wire::{Header, Kind, Reason};
use uiw_striping::{
    Action, Closed, Config, End, Endpoint, Finish, JoinFailure, Op, Outcome, Received, Role, Violation,
};

type TestEnd = Endpoint<&'static str>;

const IDEMPOTENT: Op = Op::Write { idempotent: true };
const ONCE: Op = Op::Write { idempotent: false };
const LARGE: u64 = 1 << 20;

fn config(stripes: u8) -> Config {
    Config { stripes, depth: 4, recovery_timeout: Duration::from_secs(60) }
}

fn initiator(stripes: u8) -> TestEnd {
    Endpoint::new(Role::Initiator, config(stripes))
}

fn acceptor(stripes: u8) -> TestEnd {
    Endpoint::new(Role::Acceptor, config(stripes))
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The stripes and numbers of all requests that start now.
fn starts(end: &mut TestEnd) -> Vec<(u8, u64)> {
    std::iter::from_fn(|| end.poll_start()).map(|start| (start.index, start.number)).collect()
}

fn outcomes(end: &mut TestEnd) -> Vec<Outcome<&'static str>> {
    std::iter::from_fn(|| end.poll_done()).map(|done| done.outcome).collect()
}

/// A stripe dies and gives its requests back; the queue pair is drained.
fn die(end: &mut TestEnd, index: u8, under_way: &[u64], now: Duration) {
    end.died(index, now);
    assert_eq!(end.poll_action(now), Some(Action::Kill { index }));
    for number in under_way {
        end.finished(index, *number, Finish::Unknown);
    }
    end.drained(index, now);
}

fn message(number: u64) -> Header {
    Header { kind: Kind::Send, number }
}

#[test]
fn small_requests_stay_on_stripe_0_and_large_ones_are_spread() {
    let mut end = initiator(3);
    for bytes in [1000, 1000, 1000] {
        end.post(IDEMPOTENT, bytes).unwrap();
    }
    assert_eq!(starts(&mut end), [(0, 1), (0, 2), (0, 3)]);
    for _ in 0..3 {
        end.post(IDEMPOTENT, LARGE).unwrap();
    }
    assert_eq!(starts(&mut end), [(0, 4), (1, 5), (2, 6)]);
}

#[test]
fn a_stripe_has_no_more_requests_than_its_depth() {
    let mut end = initiator(1);
    for _ in 0..6 {
        end.post(IDEMPOTENT, 1).unwrap();
    }
    assert_eq!(starts(&mut end), [(0, 1), (0, 2), (0, 3), (0, 4)]);
    end.finished(0, 3, Finish::Placed);
    assert_eq!(starts(&mut end), [(0, 5)]);
}

#[test]
fn a_message_waits_for_writes_of_other_stripes_and_for_reads_and_later_writes_do_not() {
    let mut end = initiator(2);
    end.post(ONCE, LARGE).unwrap();
    end.post(ONCE, LARGE).unwrap();
    end.post(Op::Message, 1).unwrap();
    end.post(ONCE, 1).unwrap();
    assert_eq!(starts(&mut end), [(0, 1), (1, 2), (0, 4)]);
    end.finished(0, 1, Finish::Placed);
    assert_eq!(starts(&mut end), []);
    end.finished(1, 2, Finish::Placed);
    assert_eq!(starts(&mut end), [(0, 3)]);
    // In the stream behind the first one.
    end.post(Op::Message, 1).unwrap();
    assert_eq!(starts(&mut end), [(0, 5)]);
    end.finished(0, 3, Finish::Placed);
    end.finished(0, 4, Finish::Placed);
    end.finished(0, 5, Finish::Placed);
    end.post(Op::Read, 1).unwrap();
    end.post(Op::Message, 1).unwrap();
    assert_eq!(starts(&mut end), [(0, 6)]);
    end.finished(0, 6, Finish::Placed);
    assert_eq!(starts(&mut end), [(0, 7)]);
}

#[test]
fn a_read_follows_the_writes_of_one_stripe_and_waits_for_those_of_two() {
    let mut end = initiator(3);
    end.post(ONCE, LARGE).unwrap();
    end.post(Op::Read, LARGE).unwrap();
    assert_eq!(starts(&mut end), [(0, 1), (0, 2)], "behind it, though another stripe has less to do");
    end.post(ONCE, LARGE).unwrap();
    end.post(Op::Read, LARGE).unwrap();
    assert_eq!(starts(&mut end), [(1, 3)]);
    end.finished(1, 3, Finish::Placed);
    assert_eq!(starts(&mut end), [(0, 4)], "the one Write that is left is there");
    end.finished(0, 1, Finish::Placed);
    end.post(Op::Read, LARGE).unwrap();
    end.post(Op::Read, LARGE).unwrap();
    assert_eq!(starts(&mut end), [(1, 5), (2, 6)], "Reads do not wait for Reads");
}

#[test]
fn completions_are_in_order_and_a_failure_flushes_what_is_behind_it() {
    let mut end = initiator(2);
    for _ in 0..3 {
        end.post(ONCE, LARGE).unwrap();
    }
    assert_eq!(starts(&mut end), [(0, 1), (1, 2), (0, 3)]);
    end.finished(1, 2, Finish::Failed("access"));
    assert_eq!(outcomes(&mut end), [], "the first one is not over");
    assert_eq!(end.ended(), None);
    end.post(ONCE, 1).unwrap();
    assert_eq!(starts(&mut end), [], "nothing starts behind it");
    end.finished(0, 1, Finish::Placed);
    assert_eq!(outcomes(&mut end), [Outcome::Placed, Outcome::Failed("access")]);
    assert_eq!(end.ended(), Some(End::Request));
    end.finished(0, 3, Finish::Placed);
    assert_eq!(outcomes(&mut end), [Outcome::Flushed, Outcome::Flushed]);
    assert_eq!(end.post(ONCE, 1), Err(Closed));
}

#[test]
fn a_request_in_front_of_a_failure_is_still_repeated() {
    let mut end = initiator(2);
    end.post(IDEMPOTENT, LARGE).unwrap();
    end.post(IDEMPOTENT, LARGE).unwrap();
    starts(&mut end);
    end.finished(1, 2, Finish::Failed("access"));
    die(&mut end, 0, &[1], ms(1));
    assert_eq!(end.poll_action(ms(100)), Some(Action::Join { index: 0, generation: 1, delivered: 0 }));
    end.joined(0, 0, ms(110));
    assert_eq!(starts(&mut end), [(0, 1)]);
    end.finished(0, 1, Finish::Placed);
    assert_eq!(outcomes(&mut end), [Outcome::Placed, Outcome::Failed("access")]);
}

#[test]
fn nothing_is_repeated_before_the_peer_has_confirmed() {
    let mut end = initiator(2);
    end.post(IDEMPOTENT, LARGE).unwrap();
    end.post(IDEMPOTENT, LARGE).unwrap();
    starts(&mut end);
    die(&mut end, 1, &[2], ms(1));
    assert_eq!(starts(&mut end), []);
    assert_eq!(end.poll_action(ms(100)), Some(Action::Join { index: 1, generation: 1, delivered: 0 }));
    assert_eq!(starts(&mut end), []);
    end.joined(1, 0, ms(101));
    assert_eq!(starts(&mut end), [(1, 2)]);
    assert_eq!(end.counts().repeated, 1);
}

#[test]
fn the_count_of_delivered_messages_decides() {
    let mut end = initiator(1);
    end.post(ONCE, 1).unwrap();
    end.post(Op::Message, 1).unwrap();
    end.post(IDEMPOTENT, 1).unwrap();
    end.post(Op::Message, 1).unwrap();
    starts(&mut end);
    die(&mut end, 0, &[1, 2, 3, 4], ms(1));
    end.poll_action(ms(100)).unwrap();
    end.joined(0, 1, ms(101));
    // The Write in front of the delivered message is placed; the other two are repeated, with the same number.
    assert_eq!(outcomes(&mut end), [Outcome::Placed, Outcome::Placed]);
    let again: Vec<_> = std::iter::from_fn(|| end.poll_start()).map(|s| (s.number, s.message)).collect();
    assert_eq!(again, [(3, None), (4, Some(2))]);
}

#[test]
fn a_write_that_is_not_idempotent_is_lost() {
    let mut end = initiator(2);
    end.post(ONCE, LARGE).unwrap();
    end.post(ONCE, LARGE).unwrap();
    end.post(Op::Message, 1).unwrap();
    starts(&mut end);
    die(&mut end, 1, &[2], ms(1));
    end.poll_action(ms(100)).unwrap();
    end.joined(1, 0, ms(101));
    assert_eq!(starts(&mut end), []);
    end.finished(0, 1, Finish::Placed);
    assert_eq!(outcomes(&mut end), [Outcome::Placed, Outcome::Lost, Outcome::Flushed]);
}

#[test]
fn the_outcome_of_a_write_with_immediate_is_that_of_its_notice() {
    let mut end = initiator(1);
    assert_eq!(end.post_write_notice(true, LARGE), Ok(1));
    assert_eq!(starts(&mut end), [(0, 1), (0, 2)]);
    end.finished(0, 1, Finish::Failed("access"));
    let part = end.poll_done().unwrap();
    assert!(part.part && part.number == 1);
    assert_eq!(outcomes(&mut end), [], "the notice is still on the stripe");
    end.finished(0, 2, Finish::Unknown);
    assert_eq!(outcomes(&mut end), [Outcome::Failed("access")]);
}

#[test]
fn a_count_that_cannot_be_is_a_violation() {
    for delivered in [0, 3] {
        let mut end = initiator(1);
        end.post(Op::Message, 1).unwrap();
        end.post(Op::Message, 1).unwrap();
        starts(&mut end);
        end.finished(0, 1, Finish::Placed);
        die(&mut end, 0, &[2], ms(1));
        end.poll_action(ms(100)).unwrap();
        end.joined(0, delivered, ms(101));
        let violation = Violation::Delivered { delivered, proven: 1, sent: 2 };
        assert_eq!(end.ended(), Some(End::Violation(violation)));
    }
}

#[test]
fn an_offer_waits_until_the_old_queue_pair_is_drained() {
    let mut end = acceptor(2);
    end.post(IDEMPOTENT, 1).unwrap();
    starts(&mut end);
    assert_eq!(end.offer(2, 0, 1, ms(1)), Ok(()));
    assert_eq!(end.poll_action(ms(1)), Some(Action::Kill { index: 0 }));
    assert_eq!(end.poll_action(ms(1)), None);
    // A message that came before the queue pair was in the error state counts.
    assert_eq!(end.received(0, &message(1)), Ok(Received::Message));
    end.finished(0, 1, Finish::Unknown);
    end.drained(0, ms(2));
    assert_eq!(end.poll_action(ms(2)), Some(Action::Accept { index: 0, generation: 1, delivered: 1 }));
    end.joined(0, 0, ms(3));
    assert_eq!(starts(&mut end), [(0, 1)]);
}

#[test]
#[should_panic(expected = "requests are under way on stripe 0")]
fn a_stripe_with_requests_is_not_drained() {
    let mut end = acceptor(1);
    end.post(IDEMPOTENT, 1).unwrap();
    starts(&mut end);
    end.died(0, ms(1));
    end.drained(0, ms(1));
}

/// The program may report it of a stripe that ended for another reason meanwhile.
#[test]
fn only_a_dead_stripe_is_drained() {
    let mut end = initiator(1);
    end.drained(0, ms(1));
    assert_eq!(end.poll_action(ms(100)), None);
    end.post(IDEMPOTENT, 1).unwrap();
    assert_eq!(starts(&mut end), [(0, 1)]);
}

#[test]
fn offers_that_do_not_fit_are_rejected() {
    let mut end = acceptor(2);
    assert_eq!(end.offer(2, 0, 0, ms(1)), Err(Reason::Stale));
    assert_eq!(end.offer(3, 0, 1, ms(1)), Err(Reason::Mismatch));
    assert_eq!(end.offer(2, 2, 1, ms(1)), Err(Reason::Mismatch));
    assert_eq!(end.poll_action(ms(1)), None, "none of them has ended a stripe");
    assert_eq!(end.offer(2, 1, 5, ms(1)), Ok(()));
    assert_eq!(end.offer(2, 1, 4, ms(1)), Err(Reason::Stale), "a delayed one");
    end.abort();
    assert_eq!(end.offer(2, 1, 6, ms(1)), Err(Reason::Unknown));
}

/// The Reply was lost: the acceptor has a connection that the initiator never had.
#[test]
fn a_later_offer_replaces_one_that_is_being_accepted() {
    let mut end = acceptor(1);
    end.offer(1, 0, 1, ms(1)).unwrap();
    end.poll_action(ms(1)).unwrap();
    end.drained(0, ms(1));
    assert_eq!(end.poll_action(ms(1)), Some(Action::Accept { index: 0, generation: 1, delivered: 0 }));
    end.offer(1, 0, 2, ms(2)).unwrap();
    assert_eq!(end.poll_action(ms(2)), Some(Action::Kill { index: 0 }));
    end.join_failed(0, JoinFailure::Retry, ms(3));
    assert_eq!(end.poll_action(ms(3)), Some(Action::Accept { index: 0, generation: 2, delivered: 0 }));
}

#[test]
fn attempts_are_repeated_with_growing_pauses_until_the_timeout() {
    let mut end = initiator(2);
    end.finished_one(0);
    die(&mut end, 0, &[], ms(1000));
    let (mut now, mut generation) = (ms(1000), 0);
    for pause in [0, 50, 100, 200, 400, 800, 1600, 2000, 2000] {
        assert_eq!(end.next_timeout(), Some(now + ms(pause)));
        if pause > 0 {
            assert_eq!(end.poll_action(now + ms(pause - 1)), None);
        }
        now += ms(pause);
        generation += 1;
        assert_eq!(end.poll_action(now), Some(Action::Join { index: 0, generation, delivered: 0 }));
        end.join_failed(0, JoinFailure::Retry, now);
    }
    end.handle_timeout(ms(60_999));
    assert_eq!(end.ended(), None);
    end.handle_timeout(ms(61_000));
    assert_eq!(end.ended(), Some(End::TimedOut));
}

trait FinishOne {
    fn finished_one(&mut self, index: u8);
}

impl FinishOne for TestEnd {
    /// The stripe is of use.
    fn finished_one(&mut self, index: u8) {
        let number = self.post(IDEMPOTENT, 1).unwrap();
        assert_eq!(starts(self), [(index, number)]);
        self.finished(index, number, Finish::Placed);
        assert_eq!(outcomes(self), [Outcome::Placed]);
    }
}

#[test]
fn a_stripe_that_dies_without_being_of_use_keeps_its_deadline() {
    let mut end = initiator(2);
    for at in 0..59 {
        let now = Duration::from_secs(at + 1);
        die(&mut end, 1, &[], now);
        end.poll_action(now + ms(900)).or_else(|| end.poll_action(now + ms(2000))).unwrap();
        end.joined(1, 0, now + ms(950));
    }
    end.died(1, Duration::from_secs(60));
    end.handle_timeout(Duration::from_secs(61));
    assert_eq!(end.ended(), Some(End::Stalled { attempts: 59 }), "its first death was 60 s ago");
}

#[test]
fn a_dead_stripe_is_reported_to_the_initiator() {
    let mut end = acceptor(3);
    end.died(0, ms(1));
    assert_eq!(end.poll_action(ms(1)), Some(Action::Kill { index: 0 }));
    assert_eq!(end.poll_action(ms(1)), Some(Action::Report { on: 1, index: 0, generation: 0 }));
    let mut peer = initiator(3);
    let report = |generation| Header { kind: Kind::Dead { index: 0, generation }, number: 0 };
    assert_eq!(peer.received(1, &report(1)), Ok(Received::Dead { index: 0, generation: 1 }));
    peer.peer_died(0, 1, ms(2));
    assert_eq!(peer.poll_action(ms(2)), None, "of another generation");
    assert_eq!(peer.received(1, &report(0)), Ok(Received::Dead { index: 0, generation: 0 }));
    peer.peer_died(0, 0, ms(2));
    assert_eq!(peer.poll_action(ms(2)), Some(Action::Kill { index: 0 }));
}

#[test]
fn messages_come_on_stripe_0_in_order() {
    let mut end = acceptor(2);
    assert_eq!(end.received(0, &message(1)), Ok(Received::Message));
    let expected = Violation::Number { given: 1, expected: 2 };
    assert_eq!(end.received(0, &message(1)), Err(expected));
    assert_eq!(end.ended(), Some(End::Violation(expected)));
    let mut end = acceptor(2);
    assert_eq!(
        end.received(0, &message(2)),
        Err(Violation::Number { given: 2, expected: 1 }),
        "one is missing"
    );
    let mut end = acceptor(2);
    let expected = Violation::Stripe { number: 1, index: 1 };
    assert_eq!(end.received(1, &message(1)), Err(expected));
}

#[test]
fn both_ends_close() {
    let mut end = initiator(2);
    end.post(Op::Message, 1).unwrap();
    assert_eq!(end.close(), Some(2));
    assert_eq!(end.post(Op::Message, 1), Err(Closed));
    assert_eq!(starts(&mut end), [(0, 1), (0, 2)]);
    end.finished(0, 1, Finish::Placed);
    end.finished(0, 2, Finish::Placed);
    outcomes(&mut end);
    assert_eq!(end.ended(), None, "the peer has not closed");
    let close = Header { kind: Kind::Close, number: 1 };
    assert_eq!(end.received(0, &close), Ok(Received::Control));
    assert_eq!(end.ended(), Some(End::Closed));
    assert_eq!(end.poll_action(ms(1)), Some(Action::Confirm { on: 0 }));
    assert_eq!(end.poll_action(ms(1)), Some(Action::Disconnect { index: 1 }));
    assert!(!end.is_over());
    end.drained(0, ms(2));
    end.drained(1, ms(2));
    assert!(end.is_over());
}

#[test]
fn the_close_of_the_peer_is_answered() {
    let mut end = acceptor(1);
    end.post(Op::Message, 1).unwrap();
    let close = Header { kind: Kind::Close, number: 1 };
    end.received(0, &close).unwrap();
    assert_eq!(end.close_number(), Some(2));
    assert_eq!(end.received(0, &message(2)), Err(Violation::BehindClose { number: 2 }));
}

#[test]
fn that_the_peer_is_over_proves_that_it_has_everything() {
    for by_message in [false, true] {
        let mut end = initiator(1);
        end.post(ONCE, 1).unwrap();
        end.received(0, &Header { kind: Kind::Close, number: 1 }).unwrap();
        starts(&mut end);
        die(&mut end, 0, &[1, 2], ms(1));
        end.poll_action(ms(100)).unwrap();
        if by_message {
            end.received(0, &Header { kind: Kind::Closed, number: 0 }).unwrap();
        } else {
            end.join_failed(0, JoinFailure::Rejected(Reason::Closed), ms(101));
        }
        assert_eq!(end.ended(), Some(End::Closed));
        assert_eq!(outcomes(&mut end), [Outcome::Placed, Outcome::Placed]);
    }
    let closed = Header { kind: Kind::Closed, number: 0 };
    let mut end = initiator(1);
    assert_eq!(end.received(0, &closed), Err(Violation::Closed));
    // The acceptor has lost its Close with stripe 0, and reports its end on another one.
    let mut end = initiator(2);
    end.close();
    assert_eq!(starts(&mut end), [(0, 1)]);
    assert_eq!(end.received(1, &closed), Ok(Received::Control));
    assert_eq!(end.ended(), Some(End::Closed));
    // The initiator's Close is on stripe 0, and is taken later than what came on another stripe.
    let mut end = acceptor(2);
    end.close();
    assert_eq!(starts(&mut end), [(0, 1)]);
    assert_eq!(end.received(1, &closed), Ok(Received::Control));
    assert_eq!(end.ended(), None);
    assert_eq!(end.received(0, &Header { kind: Kind::Close, number: 1 }), Ok(Received::Control));
    assert_eq!(end.ended(), Some(End::Closed));
}

/// The stripe that had the proof is dead, and the initiator need not come back.
#[test]
fn an_acceptor_that_lacks_only_the_proof_for_its_close_does_not_wait() {
    let close = Header { kind: Kind::Close, number: 1 };
    for is_first_lost in [false, true] {
        let mut end = acceptor(2);
        end.post(ONCE, LARGE).unwrap();
        assert_eq!(starts(&mut end), [(0, 1)]);
        end.received(0, &close).unwrap();
        assert_eq!(starts(&mut end), [(0, 2)]);
        if !is_first_lost {
            end.finished(0, 1, Finish::Placed);
            outcomes(&mut end);
        }
        end.died(0, ms(1));
        for number in if is_first_lost { vec![1, 2] } else { vec![2] } {
            end.finished(0, number, Finish::Unknown);
        }
        end.drained(0, ms(1));
        assert_eq!(end.ended(), (!is_first_lost).then_some(End::Closed));
        let offer = end.offer(2, 0, 1, ms(2));
        assert_eq!(offer, if is_first_lost { Ok(()) } else { Err(Reason::Closed) });
    }
    // The initiator lacks the acceptor's Close; the reason has it.
    let mut end = initiator(1);
    end.post(ONCE, 1).unwrap();
    end.close();
    starts(&mut end);
    die(&mut end, 0, &[1, 2], ms(1));
    end.poll_action(ms(100)).unwrap();
    end.join_failed(0, JoinFailure::Rejected(Reason::Closed), ms(101));
    assert_eq!(end.ended(), Some(End::Closed));
    assert_eq!(outcomes(&mut end), [Outcome::Placed, Outcome::Placed]);
    // Without a Close it is of no use.
    let mut end = initiator(1);
    end.post(ONCE, 1).unwrap();
    starts(&mut end);
    die(&mut end, 0, &[1], ms(1));
    end.poll_action(ms(100)).unwrap();
    end.join_failed(0, JoinFailure::Rejected(Reason::Closed), ms(101));
    assert_eq!(end.ended(), Some(End::Rejected(Reason::Closed)));
    assert_eq!(outcomes(&mut end), [Outcome::Lost]);
}

#[test]
fn a_stripe_that_ends_behind_the_close_is_not_counted_as_a_death() {
    for role in [Role::Initiator, Role::Acceptor] {
        for is_closed in [false, true] {
            let mut end: TestEnd = Endpoint::new(role, config(3));
            if is_closed {
                end.close().unwrap();
                assert_eq!(starts(&mut end), [(0, 1)]);
            }
            end.died(1, ms(1));
            assert_eq!(end.counts().deaths, u64::from(!is_closed));
            assert_eq!(end.poll_action(ms(1)), Some(Action::Kill { index: 1 }));
        }
    }
}

#[test]
fn an_acceptor_that_lacks_only_the_proof_for_its_close_reports_no_death() {
    let close = Header { kind: Kind::Close, number: 1 };
    for lacks_a_write in [false, true] {
        let mut end = acceptor(3);
        end.post(ONCE, LARGE).unwrap();
        end.received(0, &close).unwrap();
        assert_eq!(starts(&mut end), [(0, 1), (0, 2)]);
        if !lacks_a_write {
            end.finished(0, 1, Finish::Placed);
            outcomes(&mut end);
        }
        end.died(1, ms(1));
        assert_eq!(end.poll_action(ms(1)), Some(Action::Kill { index: 1 }));
        let report = Action::Report { on: 0, index: 1, generation: 0 };
        assert_eq!(end.poll_action(ms(1)), lacks_a_write.then_some(report));
        end.received(0, &Header { kind: Kind::Closed, number: 0 }).unwrap();
        assert_eq!(end.ended(), Some(End::Closed));
    }
}

#[test]
fn a_rejection_ends_the_connection_and_every_request() {
    let mut end = initiator(2);
    end.post(IDEMPOTENT, LARGE).unwrap();
    end.post(IDEMPOTENT, LARGE).unwrap();
    end.post(Op::Message, 1).unwrap();
    starts(&mut end);
    die(&mut end, 1, &[2], ms(1));
    end.poll_action(ms(100)).unwrap();
    end.join_failed(1, JoinFailure::Rejected(Reason::Unknown), ms(101));
    assert_eq!(end.ended(), Some(End::Rejected(Reason::Unknown)));
    assert_eq!(end.poll_action(ms(101)), Some(Action::Abort { on: 0 }));
    assert_eq!(outcomes(&mut end), [], "the first one is still on its stripe");
    end.finished(0, 1, Finish::Unknown);
    end.drained(0, ms(102));
    assert_eq!(outcomes(&mut end), [Outcome::Lost, Outcome::Flushed, Outcome::Flushed]);
    assert!(end.is_over());
}

#[test]
fn a_request_is_not_repeated_for_ever() {
    let config = Config { recovery_timeout: Duration::from_secs(3600), ..config(1) };
    let mut end = TestEnd::new(Role::Initiator, config);
    end.post(IDEMPOTENT, 1).unwrap();
    let (mut now, mut repeats) = (ms(0), 0);
    while starts(&mut end) == [(0, 1)] {
        repeats += 1;
        now += Duration::from_secs(10);
        die(&mut end, 0, &[1], now);
        now += Duration::from_secs(2);
        end.poll_action(now).unwrap();
        end.joined(0, 0, now);
    }
    assert_eq!(repeats, 65);
    assert_eq!(outcomes(&mut end), [Outcome::Lost]);
    assert_eq!(end.ended(), Some(End::Stalled { attempts: 65 }));
    // From the first replacement to the last one.
    assert_eq!(end.lost_for(), Some(Duration::from_secs(64 * 12)));
}

/// Stripe 0 is up for 20 s, dies with the requests, and is replaced at once.
fn live_and_die(end: &mut TestEnd, requests: &[u64], delivered: u64, now: &mut Duration) {
    *now += Duration::from_secs(20);
    die(end, 0, requests, *now);
    end.handle_timeout(*now);
    if end.ended().is_none() {
        let joining = end.poll_action(*now);
        assert!(matches!(joining, Some(Action::Join { .. })), "it was up for long: {joining:?}");
        end.joined(0, delivered, *now);
    }
}

/// A path that lets start-up through and nothing behind it: each stripe is up for longer than one that is of use.
#[test]
fn stripes_that_place_nothing_however_often_they_are_replaced_end_the_connection() {
    for is_given_back_first in [false, true] {
        let mut end = initiator(1);
        end.post(IDEMPOTENT, 1).unwrap();
        let mut now = ms(0);
        while end.ended().is_none() {
            assert_eq!(starts(&mut end), [(0, 1)]);
            if is_given_back_first {
                // Its connection completes the request before its end is reported.
                end.finished(0, 1, Finish::Unknown);
            }
            live_and_die(&mut end, if is_given_back_first { &[] } else { &[1] }, 0, &mut now);
        }
        // The first death is at 20 s; the timeout is 60 s.
        assert_eq!((now, end.ended()), (Duration::from_secs(80), Some(End::Stalled { attempts: 3 })));
        assert_eq!(end.lost_for(), Some(Duration::from_secs(60)));
        assert_eq!(outcomes(&mut end), [Outcome::Lost]);
    }
}

#[test]
fn a_request_that_is_placed_between_two_deaths_starts_the_time_anew() {
    for is_counted in [false, true] {
        let mut end = initiator(1);
        let mut now = ms(0);
        for number in 1..=10 {
            end.post(Op::Message, 1).unwrap();
            assert_eq!(starts(&mut end), [(0, number)]);
            live_and_die(&mut end, &[number], number - 1, &mut now);
            assert_eq!(starts(&mut end), [(0, number)]);
            if is_counted {
                // Its proof is lost, but the peer's count has it.
                now += Duration::from_secs(20);
                die(&mut end, 0, &[number], now);
                end.handle_timeout(now);
                assert!(matches!(end.poll_action(now), Some(Action::Join { .. })));
                end.joined(0, number, now);
            } else {
                end.finished(0, number, Finish::Placed);
            }
            assert_eq!((end.ended(), outcomes(&mut end)), (None, vec![Outcome::Placed]));
        }
    }
}

/// A long request that has died is under way again for longer than the timeout. Another stripe, without requests, dies meanwhile.
#[test]
fn a_long_request_that_is_repeated_is_not_lost_by_the_death_of_an_idle_stripe() {
    let mut end = initiator(2);
    end.post(IDEMPOTENT, 1).unwrap();
    let mut now = ms(0);
    assert_eq!(starts(&mut end), [(0, 1)]);
    live_and_die(&mut end, &[1], 0, &mut now);
    assert_eq!(starts(&mut end), [(0, 1)]);
    now += Duration::from_secs(90);
    end.died(1, now);
    end.handle_timeout(now);
    assert_eq!(end.ended(), None);
    end.finished(0, 1, Finish::Placed);
    assert_eq!(outcomes(&mut end), [Outcome::Placed]);
}

/// A Request that waits for the end of a stripe when the connection ends gets no stripe: nothing would close it, and the connection would never be over.
#[test]
fn a_request_that_waits_at_the_end_is_not_accepted() {
    let mut end = acceptor(2);
    end.offer(2, 1, 1, ms(1)).unwrap();
    assert_eq!(end.poll_action(ms(1)), Some(Action::Kill { index: 1 }));
    end.abort();
    assert_eq!(end.poll_action(ms(2)), Some(Action::Abort { on: 0 }));
    end.drained(1, ms(3));
    end.drained(0, ms(3));
    assert_eq!(end.poll_action(ms(3)), None);
    assert!(end.is_over());
    assert_eq!(end.offer(2, 1, 2, ms(4)), Err(Reason::Unknown));
}
