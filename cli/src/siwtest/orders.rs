//! Giving, taking and executing orders.

use super::ExtensionOrder;
use super::bytes::{MessageLayout, elements, fill, find_difference};
use super::end::ConnectionEnd;
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::text;
use serde_json::json;
use uiw::raw::{Remote, STag, SendFlags, SendOp, Sge};
use uiw_conform::partner::{Actor, MessageKind, Op, Order, PartnerMessage};

/// STag that does not exist.
const NO_STAG: u32 = 0xDEAD_BE00;
/// Offset beyond the end of every memory.
const FAR: u64 = 512 << 20;

/// Gives an order, at the end that connected.
pub(super) fn give_order(end: &mut ConnectionEnd, order: Order) -> Result<()> {
    let acts = order.actor == Actor::Initiator;
    if order.op == Op::About {
        end.expect_talk()?;
        end.send_message(MessageKind::Order, order)?;
        let verdict = end.expect_message(MessageKind::Verdict)?;
        text::line(format!("the partner is {}", verdict.wrong.unwrap_or_default()));
        return Ok(());
    }
    provide_memory(end, &order, acts)?;
    if acts {
        end.expect_talk()?;
        end.expect_talk()?;
        end.send_message(MessageKind::Order, order)?;
        let ready = end.expect_message(MessageKind::Ready)?;
        execute(end, &order, &ready)?;
        verify_read(end, &order)?;
        end.send_message(MessageKind::Done, order)?;
        let verdict = end.expect_message(MessageKind::Verdict)?;
        note_partner_error(end, verdict);
    } else {
        receive_order(end, order, MessageKind::Order)?;
    }
    Ok(())
}

/// Takes an order, at the end that accepted.
pub(super) fn take_order(end: &mut ConnectionEnd, talk: &PartnerMessage) -> Result<()> {
    let order = talk.order;
    let acts = order.actor == Actor::Responder;
    if order.op == Op::About {
        end.expect_talk()?;
        end.note(describe_self());
        end.send_message(MessageKind::Verdict, order)?;
        end.wrong = None;
        return Ok(());
    }
    provide_memory(end, &order, acts)?;
    if acts {
        execute(end, &order, talk)?;
        verify_read(end, &order)?;
        end.expect_talk()?;
        return end.send_message(MessageKind::Done, order);
    }
    receive_order(end, order, MessageKind::Ready)?;
    end.expect_talk()?;
    end.send_message(MessageKind::Verdict, order)
}

/// Lets the other end carry out an order, which a message of this kind begins, and verifies it.
fn receive_order(end: &mut ConnectionEnd, order: Order, begin: MessageKind) -> Result<()> {
    if order.op != Op::NoReceive {
        end.expect_talk()?;
    }
    end.send_message(begin, order)?;
    end.await_receives()?;
    let done = end.expect_message(MessageKind::Done)?;
    verify_received(end, &order)?;
    note_partner_error(end, done);
    Ok(())
}

/// Returns the device, driver, firmware and kernel of this end.
fn describe_self() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    format!("uiw; driver uiw {version}; firmware none; Linux {}", kernel.trim())
}

fn note_partner_error(end: &mut ConnectionEnd, talk: PartnerMessage) {
    if let Some(wrong) = talk.wrong {
        end.note(format!("the other end: {wrong}"));
    }
}

/// Provides the memory of an order. `acts` is true at the end that performs the operation; the
/// other end also posts the receives.
fn provide_memory(end: &mut ConnectionEnd, order: &Order, acts: bool) -> Result<()> {
    // One byte more than the messages have, for a Send that is too long.
    let (remote, local) = (MessageLayout::Whole.len(order), MessageLayout::Pieces.len(order) + 1);
    end.provide(order, if acts { 1 } else { remote }, local)?;
    let memory = end.memory()?;
    match (acts, order.op.is_read()) {
        (true, false) => fill(&memory.local, order, MessageLayout::Pieces)?,
        (false, true) => fill(&memory.remote, order, MessageLayout::Whole)?,
        _ => {}
    }
    if acts {
        return Ok(());
    }
    let receives = match order.op {
        op if op.is_send() => order.count,
        Op::LongSend | Op::UsedInvalidate => 1,
        _ => 0,
    };
    let receives: Vec<_> =
        (0..receives).map(|message| elements(&memory.local, order, message, 0)).collect();
    end.expect_test(receives.into_iter())
}

/// Executes an order. `theirs` describes the memory of the partner.
fn execute(end: &mut ConnectionEnd, order: &Order, theirs: &PartnerMessage) -> Result<()> {
    if order.op == Op::HangUp {
        end.link.qp.disconnect()?;
        return Ok(());
    }
    for message in 0..order.count {
        let offset = u64::from(message) * u64::from(order.size);
        let remote = Remote { addr: theirs.memory.addr + offset, rkey: theirs.memory.rkey };
        let longer = usize::from(order.op == Op::LongSend);
        let local = &end.memory()?.local;
        let sges = match order.op {
            Op::SendInline => inline(local, order, message),
            _ => elements(local, order, message, longer),
        };
        let last = message + 1 == order.count;
        let (op, flags) = build_request(order.op, remote, theirs.revocable, last);
        if order.op == Op::UsedInvalidate {
            end.request(
                SendOp::SendInvalidate { stag: STag(theirs.revocable) },
                &sges,
                SendFlags::empty(),
            )?;
        }
        end.request(op, &sges, flags)?;
        if order.op == Op::Fence {
            end.request(SendOp::Send, &sges, SendFlags::FENCE)?;
        }
    }
    end.await_requests()
}

fn inline(local: &Buffer, order: &Order, message: u32) -> Vec<Sge> {
    let start = message as usize * order.size as usize;
    vec![local.address(start..start + order.size as usize)]
}

/// Returns the request for one message.
fn build_request(op: Op, remote: Remote, revocable: u32, last: bool) -> (SendOp, SendFlags) {
    let none = SendFlags::empty();
    let read = |remote| (SendOp::Read { remote, invalidate: None }, none);
    let write = |remote| (SendOp::Write { remote }, none);
    let nowhere = Remote { rkey: STag(NO_STAG), ..remote };
    let outside = Remote { addr: remote.addr + FAR, ..remote };
    let invalidate = SendOp::SendInvalidate { stag: STag(revocable) };
    match op {
        Op::Send | Op::LongSend | Op::NoReceive | Op::HangUp | Op::About => (SendOp::Send, none),
        Op::SendSolicited => (SendOp::Send, SendFlags::SOLICITED),
        Op::SendInvalidate if last => (invalidate, none),
        Op::SendSolicitedInvalidate if last => (invalidate, SendFlags::SOLICITED),
        Op::SendInvalidate | Op::SendSolicitedInvalidate => (SendOp::Send, none),
        Op::SendInline => (SendOp::Send, SendFlags::INLINE),
        Op::Read | Op::Fence | Op::WriteOnlyRead => read(remote),
        Op::BadRead => read(nowhere),
        Op::OutRead => read(outside),
        Op::Write | Op::ReadOnlyWrite => write(remote),
        Op::BadWrite => write(nowhere),
        Op::OutWrite => write(outside),
        Op::BadInvalidate => (SendOp::SendInvalidate { stag: STag(NO_STAG) }, none),
        Op::UsedInvalidate => write(Remote { rkey: STag(revocable), ..remote }),
    }
}

/// Posts an operation that the peer lacks, and checks that it completes in error at this end.
pub(super) fn check_refused(
    end: &mut ConnectionEnd,
    what: ExtensionOrder,
    json: bool,
) -> Result<()> {
    let order =
        Order { op: Op::Read, actor: Actor::Initiator, size: 8, count: 1, sges: 1, seed: 0 };
    end.provide(&order, 8, 8)?;
    let remote = Remote { addr: 0, rkey: STag(NO_STAG) };
    let op = match what {
        ExtensionOrder::Sendimm => SendOp::SendImm { imm: 7 },
        ExtensionOrder::Writeimm => SendOp::WriteImm { remote, imm: 7 },
        ExtensionOrder::Fetchadd => SendOp::FetchAdd { remote, add: 1, mask: 0 },
        ExtensionOrder::Cmpswap => SendOp::CmpSwap {
            remote,
            compare: 0,
            compare_mask: u64::MAX,
            swap: 1,
            swap_mask: u64::MAX,
        },
    };
    let sges = elements(&end.memory()?.local, &order, 0, 0);
    end.request(op, &sges, SendFlags::empty())?;
    if end.await_requests().is_ok() {
        return Err(Failure::lost(
            end.link.peer(),
            format!("{what:?} was executed, but must be refused"),
        ));
    }
    end.drain()?;
    let (why, (posted, done)) = (end.wrong.clone().unwrap_or_default(), end.totals);
    let details = json!({"why": why, "posted": posted, "done": done});
    super::report(json, "refused", &details, || {
        format!("refused {what:?}: {why}; {done} of {posted} requests and receives done")
    });
    Ok(())
}

/// Verifies the bytes that this end has read.
fn verify_read(end: &mut ConnectionEnd, order: &Order) -> Result<()> {
    if order.op.is_read()
        && let Some(wrong) = find_difference(&end.memory()?.local, order, MessageLayout::Pieces)?
    {
        end.note(wrong);
    }
    Ok(())
}

/// Verifies the messages and bytes that have arrived at this end.
fn verify_received(end: &mut ConnectionEnd, order: &Order) -> Result<()> {
    let memory = end.memory()?;
    let wrong = match order.op {
        op if op.is_send() && !end.all_received() => Some("not every message came".to_owned()),
        op if op.is_send() => find_difference(&memory.local, order, MessageLayout::Pieces)?,
        Op::Write => find_difference(&memory.remote, order, MessageLayout::Whole)?,
        _ => None,
    };
    let invalidates = matches!(order.op, Op::SendInvalidate | Op::SendSolicitedInvalidate);
    let wrong = wrong.or_else(|| {
        (invalidates && order.count > 0 && !memory.invalidated)
            .then(|| "the STag was not invalidated".to_owned())
    });
    if let Some(wrong) = wrong {
        end.note(wrong);
    }
    Ok(())
}
