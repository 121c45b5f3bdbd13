//! Orders to the partner program at the listener, in the messages of `uiw siwtest`.

use super::session::{Item, Session, Stop};
use super::values::{Pattern, Value, Values};
use crate::partner::{Actor, MessageKind, Op, Order, PartnerMessage};
use uiw::raw::{Remote, STag};
use uiw_cases::{FrameKind, Operation};

/// STag of the memory of this end in orders.
const OWN_STAG: u32 = 0x00C0_FF01;
/// Address of the memory of this end.
const OWN_TO: u64 = 0x0010_0000;
/// STag of this end that the partner may invalidate.
const OWN_REVOCABLE: u32 = 0x00C0_FF02;
/// Seed of the pattern in the data of an order.
const PATTERN_SEED: u32 = 41;

impl Session<'_> {
    /// Orders an operation of the partner, or announces one that this end is going to perform.
    /// After an announcement, waits until the partner has named its memory.
    pub(super) fn give_order(&mut self, operation: Operation, fields: &Values) -> Result<(), Stop> {
        let op = Op::from_wire(operation.code)
            .ok_or_else(|| Stop(format!("the partner has no operation {}", operation.code)))?;
        let (size, count) = (fields.number("size", 64) as u32, fields.number("count", 1) as u32);
        let actor = if operation.by_partner { Actor::Responder } else { Actor::Initiator };
        let order = Order { op, actor, size, count, sges: 1, seed: PATTERN_SEED };
        self.variables.pattern = Pattern::new(PATTERN_SEED, size);
        self.variables.set("own_stag", u64::from(OWN_STAG));
        self.variables.set("own_to", OWN_TO);
        self.variables.set("own_revocable", u64::from(OWN_REVOCABLE));
        self.send_message(MessageKind::Order, order)?;
        self.last_order = Some(order);
        if operation.by_partner {
            if !op.is_read() {
                self.checker.expected_sizes.extend((0..count).map(|_| u64::from(size)));
            }
            return Ok(());
        }
        let ready = self.receive_message(MessageKind::Ready)?;
        self.variables.set("stag", u64::from(ready.memory.rkey.0));
        self.variables.set("to", ready.memory.addr);
        self.variables.set("revocable", u64::from(ready.revocable));
        // A Terminate can only quote segments that are sent from now on.
        self.checker.forget_sent();
        Ok(())
    }

    /// Finishes the order, and judges the requirements by the verdict of the partner.
    pub(super) fn finish_order(&mut self, judges: &[String]) -> Result<(), Stop> {
        let order = self.last_order.take().ok_or_else(|| Stop("nothing was ordered".to_owned()))?;
        let kind = match order.actor {
            Actor::Initiator => {
                self.send_message(MessageKind::Done, order)?;
                MessageKind::Verdict
            }
            Actor::Responder => MessageKind::Done,
        };
        match self.receive_message(kind) {
            Ok(talk) => {
                self.judged.check(talk.wrong.is_none(), judges, || {
                    format!("the partner reports: {}", talk.wrong.unwrap_or_default())
                });
                Ok(())
            }
            Err(Stop(why)) => {
                if !self.is_overdue {
                    self.judged.add_broken(judges, why.clone());
                }
                Err(Stop(why))
            }
        }
    }

    /// Returns the description that the partner gives of its machine.
    pub(super) fn ask_about(&mut self) -> Result<String, Stop> {
        let order =
            Order { op: Op::About, actor: Actor::Initiator, size: 0, count: 0, sges: 1, seed: 0 };
        self.send_message(MessageKind::Order, order)?;
        Ok(self.receive_message(MessageKind::Verdict)?.wrong.unwrap_or_default())
    }

    fn send_message(&mut self, kind: MessageKind, order: Order) -> Result<(), Stop> {
        let memory = Remote { addr: OWN_TO, rkey: STag(OWN_STAG) };
        let talk = PartnerMessage { kind, order, memory, revocable: OWN_REVOCABLE, wrong: None };
        let mut fields = Values::default();
        fields.set_bytes("payload", talk.emit().to_vec());
        self.send_segment(FrameKind::Send, &fields, 0, false)
    }

    /// Waits for the next message of the partner, which must be of this kind.
    fn receive_message(&mut self, kind: MessageKind) -> Result<PartnerMessage, Stop> {
        let limit = self.stall();
        loop {
            let item = self.next_item(limit)?;
            match item {
                Item::Segment(segment, Some(message))
                    if matches!(
                        segment.kind(),
                        Some(FrameKind::Send | FrameKind::SendSolicited)
                    ) =>
                {
                    let Some(Value::Bytes(bytes)) = message.field("payload") else { continue };
                    return match PartnerMessage::parse(&bytes) {
                        Some(talk) if talk.kind == kind => Ok(talk),
                        _ => Err(Stop(format!(
                            "a Send of {} bytes where the partner's {kind:?} is due",
                            bytes.len()
                        ))),
                    };
                }
                Item::Segment(segment, _)
                    if segment.kind() != Some(FrameKind::Terminate)
                        && segment.kind() != Some(FrameKind::ReadResponse) => {}
                other => {
                    return Err(Stop(format!(
                        "{} instead of the partner's {kind:?}",
                        other.describe(limit)
                    )));
                }
            }
        }
    }
}
