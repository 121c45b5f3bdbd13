//! Runs the steps of a case.

use super::judge::Judgements;
use super::session::{Item, PROBE_STAG, Session, Stop, Target, describe_bytes};
use super::values::{Value, Values};
use std::time::Duration;
use uiw_cases::{Action, Case, ExpectedFrame, Field, FrameKind, SentFrame};

/// Time to wait for a Terminate before testing whether the listener continues.
const TERMINATE_WAIT: Duration = Duration::from_millis(300);

/// Result of running a case.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) judged: Judgements,
    pub(super) transcript: Vec<String>,
    /// Reason why the case stopped before its end.
    pub(super) stopped: Option<String>,
}

/// Runs a case on its own connection.
pub(super) fn run(target: &Target, case: &Case) -> Outcome {
    let mut session = Session::new(target);
    let mut stopped = None;
    for step in &case.steps {
        (target.network.pause)(step.delay);
        if let Err(Stop(why)) = session.run_action(&step.action) {
            stopped = Some(format!("{}:{}: {why}", case.file, step.line));
            session.transcript.line(&format!("  stopped at line {}: {why}", step.line));
            break;
        }
    }
    session.end_connection(stopped.is_none());
    Outcome { judged: session.judged, transcript: session.transcript.finish(), stopped }
}

impl Session<'_> {
    fn run_action(&mut self, action: &Action) -> Result<(), Stop> {
        match action {
            Action::Connect => self.connect(),
            Action::Start(fields) => {
                let fields = self.resolve_fields(fields)?;
                self.start(fields)
            }
            Action::Send(sent) => (0..sent.times).try_for_each(|_| self.send(sent)),
            Action::Reads { count, fields, judges } => self.send_reads(*count, fields, judges),
            Action::Fin => self.fin(),
            Action::Reset => self.reset(),
            Action::Expect { times, one_of } => (0..*times).try_for_each(|_| self.expect(one_of)),
            Action::Silence { time, judges } => self.expect_silence(*time, judges),
            Action::Refusal { judges, terminate, fields } => {
                self.expect_refusal(judges, terminate, fields)
            }
            Action::Order { operation, fields } => {
                let fields = self.resolve_fields(fields)?;
                self.give_order(*operation, &fields)
            }
            Action::Done { judges } => self.finish_order(judges),
            Action::Message { expected } => self.expect_message(expected),
        }
    }

    fn resolve_fields(&mut self, fields: &[Field]) -> Result<Values, Stop> {
        Values::from_fields(fields, &mut self.variables).map_err(Stop)
    }

    fn send(&mut self, sent: &SentFrame) -> Result<(), Stop> {
        let fields = self.resolve_fields(&sent.fields)?;
        let cut = sent.cut as usize;
        match sent.kind {
            kind if kind.is_startup() => self.send_startup(kind, fields, cut),
            FrameKind::Bytes => {
                let bytes = fields.bytes("payload").unwrap_or_default().to_vec();
                self.record_raw_bytes(&bytes);
                self.send_bytes("bytes", &bytes, cut, sent.hold)
            }
            kind => self.send_segment(kind, &fields, cut, sent.hold),
        }
    }

    /// Sends zero-length Reads one after another, and expects a response to each.
    fn send_reads(&mut self, count: u64, fields: &[Field], judges: &[String]) -> Result<(), Stop> {
        let answer = ExpectedFrame {
            kind: FrameKind::ReadResponse,
            judges: judges.to_vec(),
            fields: Vec::new(),
        };
        let answer = [answer];
        for number in 0..count {
            let mut fields = self.resolve_fields(fields)?;
            fields.set_default("sink-stag", 0x1000 + number);
            self.send_segment(FrameKind::ReadRequest, &fields, 0, false)?;
            self.expect(&answer)?;
        }
        Ok(())
    }

    /// Expects one of the frames `one_of`.
    fn expect(&mut self, one_of: &[ExpectedFrame]) -> Result<(), Stop> {
        let limit = self.stall();
        loop {
            let item = self.next_item(limit)?;
            if let Item::Broken(what) = item {
                return Err(Stop(what));
            }
            let Some(expected) = one_of.iter().find(|expected| matches_kind(&item, expected.kind))
            else {
                if is_unsolicited(&item) {
                    continue;
                }
                let names: Vec<_> = one_of.iter().map(|expected| expected.kind.name()).collect();
                let what = format!("{} instead of {}", item.describe(limit), names.join(" or "));
                for expected in one_of {
                    self.judged.add_broken(&expected.judges, what.clone());
                }
                return Err(Stop(what));
            };
            self.judged.add_kept(&expected.judges);
            return match item {
                Item::Reply(reply) => {
                    self.check_fields(&expected.fields, "Reply", |name| reply.field(name))
                }
                Item::Segment(segment, _) => {
                    let quoted = self.checker.quoted_position(&segment);
                    let field = |name: &str| match name {
                        "quotes" => Some(Value::Number(quoted)),
                        name => segment.field(name),
                    };
                    self.check_fields(&expected.fields, expected.kind.name(), field)
                }
                _ => Ok(()),
            };
        }
    }

    /// Tests the fields of a received frame. A wrong field ends the case only if it judges no
    /// requirement.
    fn check_fields(
        &mut self,
        fields: &[Field],
        of: &str,
        value: impl Fn(&str) -> Option<Value>,
    ) -> Result<(), Stop> {
        for field in fields {
            let Some(found) = value(&field.name) else {
                self.judged.add_broken(&field.judges, format!("the {of} has no {}", field.name));
                continue;
            };
            let result = self.variables.test(&field.test, &found).map_err(Stop)?;
            self.judged.check(result.is_ok(), &field.judges, || {
                let due = result.as_ref().err().cloned().unwrap_or_default();
                format!("{} of the {of} is {found}, {due} is due", field.name)
            });
            if let Err(due) = result
                && field.judges.is_empty()
            {
                return Err(Stop(format!("{} of the {of} is {found}, {due} is due", field.name)));
            }
        }
        Ok(())
    }

    fn expect_silence(&mut self, time: Duration, judges: &[String]) -> Result<(), Stop> {
        const LENGTH: &str = "RFC5044-7.1.1-17";
        let Some(bytes) = self.receive_unexpected(time)? else {
            self.judged.add_kept(judges);
            return Ok(());
        };
        let what = format!("{} where nothing may come", describe_bytes(&bytes));
        // After a Reply, the bytes are an early FPDU, or private data beyond PD_Length.
        let fpdu = self.begins_fpdu(&bytes);
        let broken: Vec<_> = if judges.iter().any(|id| id == LENGTH) {
            judges.iter().filter(|id| (*id == LENGTH) != fpdu).collect()
        } else {
            judges.iter().collect()
        };
        self.judged.add_broken(&broken, what.clone());
        Err(Stop(what))
    }

    /// Expects that the preceding segment is refused: a Terminate and the end of the stream arrive,
    /// and no response shows that the segment was carried out.
    fn expect_refusal(
        &mut self,
        judges: &[String],
        terminate: &[String],
        fields: &[Field],
    ) -> Result<(), Stop> {
        let mut asked = false;
        loop {
            let limit =
                if asked { self.stall() } else { TERMINATE_WAIT.max(self.round_trip() * 10) };
            let item = self.next_item(limit)?;
            match item {
                Item::Segment(segment, _) if segment.kind() == Some(FrameKind::Terminate) => {
                    self.judged.add_kept(judges);
                    self.judged.add_kept(terminate);
                    let quoted = self.checker.quoted_position(&segment);
                    let field = |name: &str| match name {
                        "quotes" => Some(Value::Number(quoted)),
                        name => segment.field(name),
                    };
                    self.check_fields(fields, "terminate", field)?;
                    return self.expect_end();
                }
                Item::Segment(segment, _) if segment.kind() == Some(FrameKind::ReadResponse) => {
                    let what = format!("carried out, or passed over: {}", segment.describe());
                    self.judged.add_broken(judges, what.clone());
                    return Err(Stop(what));
                }
                Item::Segment(..) => {}
                Item::End(_) => {
                    self.judged.add_kept(judges);
                    let what = "the stream ends without a Terminate";
                    self.judged.add_broken(terminate, what);
                    return Ok(());
                }
                Item::Late if !asked && self.allows_reads() => {
                    asked = true;
                    self.send_empty_read(PROBE_STAG)?;
                }
                Item::Broken(what) => return Err(Stop(what)),
                other => {
                    let what =
                        format!("{}: neither refused nor carried out", other.describe(limit));
                    self.judged.add_broken(judges, what.clone());
                    self.judged.add_broken(terminate, what.clone());
                    return Err(Stop(what));
                }
            }
        }
    }

    /// Sends a FIN, and expects that the stream ends after a Terminate, without further segments.
    fn expect_end(&mut self) -> Result<(), Stop> {
        const IDS: [&str; 2] = ["RFC5040-7-02", "RFC5041-3-12"];
        self.fin()?;
        loop {
            match self.next_item(self.stall())? {
                Item::End(_) => {
                    self.judged.add_kept(&IDS);
                    self.judged.add_kept(&["RFC5040-5.4-08"]);
                    return Ok(());
                }
                // The checker judges segments after a Terminate.
                Item::Segment(..) => {}
                other => {
                    let what = format!("{} behind a Terminate", other.describe(self.stall()));
                    self.judged.add_broken(&IDS, what.clone());
                    return Err(Stop(what));
                }
            }
        }
    }

    /// Expects a whole message, in any number of segments.
    fn expect_message(&mut self, expected: &ExpectedFrame) -> Result<(), Stop> {
        let limit = self.stall();
        loop {
            let item = self.next_item(limit)?;
            match item {
                Item::Segment(_, Some(message)) if message.first.kind() == Some(expected.kind) => {
                    self.judged.add_kept(&expected.judges);
                    return self.check_fields(&expected.fields, expected.kind.name(), |name| {
                        message.field(name)
                    });
                }
                Item::Segment(segment, None) if segment.kind() == Some(expected.kind) => {}
                Item::Broken(what) => return Err(Stop(what)),
                item if is_unsolicited(&item) => {}
                other => {
                    let what =
                        format!("{} instead of a {}", other.describe(limit), expected.kind.name());
                    // A stream that ends or stalls says nothing about the message.
                    if matches!(other, Item::Segment(..)) {
                        self.judged.add_broken(&expected.judges, what.clone());
                    }
                    return Err(Stop(what));
                }
            }
        }
    }
}

fn matches_kind(item: &Item, kind: FrameKind) -> bool {
    match item {
        Item::Reply(_) => kind == FrameKind::Reply,
        Item::Segment(segment, _) => segment.kind() == Some(kind) || kind == FrameKind::Segment,
        Item::End(_) => kind == FrameKind::End,
        Item::Broken(_) | Item::Late => false,
    }
}

/// Returns whether a listener may send this on its own at any time, as empty Writes and zero-length
/// Reads.
fn is_unsolicited(item: &Item) -> bool {
    let Item::Segment(segment, _) = item else { return false };
    match segment.kind() {
        Some(FrameKind::Write) => segment.payload().is_empty(),
        Some(FrameKind::ReadRequest) => segment.field("size") == Some(Value::Number(0)),
        _ => false,
    }
}
