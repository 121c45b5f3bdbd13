//! Carries out the lines of a case.

use super::judge::Judgement;
use super::session::{Item, PROBE, Session, Stop, Target, shown};
use super::values::{Value, Values};
use std::time::Duration;
use uiw_cases::{Action, Case, ExpectedFrame, Field, FrameKind, SentFrame};

/// Time for which a Terminate is awaited before it is tested whether the listener continues.
const GRACE: Duration = Duration::from_millis(300);

/// Result of a case.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) judged: Vec<Judgement>,
    pub(super) transcript: Vec<String>,
    /// Reason why it did not reach its end.
    pub(super) stopped: Option<String>,
}

/// Runs a case on a connection of its own.
pub(super) fn run(target: &Target, case: &Case) -> Outcome {
    let mut session = Session::new(target);
    let mut stopped = None;
    for step in &case.steps {
        (target.network.pause)(step.delay);
        if let Err(Stop(why)) = session.step(&step.action) {
            stopped = Some(format!("{}:{}: {why}", case.file, step.line));
            session.transcript.line(&format!("  stopped at line {}: {why}", step.line));
            break;
        }
    }
    session.finish(stopped.is_none());
    Outcome { judged: session.judged.0, transcript: session.transcript.finish(), stopped }
}

fn lacking(what: String) -> Stop {
    Stop(what)
}

impl Session<'_> {
    fn step(&mut self, action: &Action) -> Result<(), Stop> {
        match action {
            Action::Connect => self.connect(),
            Action::Start(fields) => {
                let fields = self.values(fields)?;
                self.start(fields)
            }
            Action::Send(sent) => (0..sent.times).try_for_each(|_| self.send(sent)),
            Action::Reads { count, fields, judges } => self.reads(*count, fields, judges),
            Action::Fin => self.fin(),
            Action::Reset => self.reset(),
            Action::Expect { times, one_of } => (0..*times).try_for_each(|_| self.expect(one_of)),
            Action::Silence { time, judges } => self.expect_silence(*time, judges),
            Action::Refusal { judges, terminate, fields } => self.refusal(judges, terminate, fields),
            Action::Order { operation, fields } => {
                let fields = self.values(fields)?;
                self.order(*operation, &fields)
            }
            Action::Done { judges } => self.done(judges),
            Action::Message { expected } => self.message(expected),
        }
    }

    fn values(&mut self, fields: &[Field]) -> Result<Values, Stop> {
        Values::of(fields, &mut self.variables).map_err(lacking)
    }

    fn send(&mut self, sent: &SentFrame) -> Result<(), Stop> {
        let fields = self.values(&sent.fields)?;
        let cut = sent.cut as usize;
        match sent.kind {
            kind if kind.is_startup() => self.send_startup(kind, fields, cut),
            FrameKind::Bytes => {
                let bytes = fields.bytes("payload").unwrap_or_default().to_vec();
                self.notice(&bytes);
                self.send_bytes("bytes", &bytes, cut, sent.hold)
            }
            kind => self.send_segment(kind, &fields, cut, sent.hold),
        }
    }

    /// Reads of no bytes, each of which is answered.
    fn reads(&mut self, count: u64, fields: &[Field], judges: &[String]) -> Result<(), Stop> {
        let answer =
            ExpectedFrame { kind: FrameKind::ReadResponse, judges: judges.to_vec(), fields: Vec::new() };
        let answer = [answer];
        for number in 0..count {
            let mut fields = self.values(fields)?;
            fields.set_default("sink-stag", 0x1000 + number);
            self.send_segment(FrameKind::ReadRequest, &fields, 0, false)?;
            self.expect(&answer)?;
        }
        Ok(())
    }

    /// One of `one_of` comes next.
    fn expect(&mut self, one_of: &[ExpectedFrame]) -> Result<(), Stop> {
        let limit = self.stall();
        loop {
            let item = self.item(limit)?;
            if let Item::Broken(what) = item {
                return Err(Stop(what));
            }
            let Some(expected) = one_of.iter().find(|expected| is_kind(&item, expected.kind)) else {
                if is_aside(&item) {
                    continue;
                }
                let names: Vec<_> = one_of.iter().map(|expected| expected.kind.name()).collect();
                let what = format!("{} instead of {}", item.describe(limit), names.join(" or "));
                for expected in one_of {
                    self.judged.broken(&expected.judges, what.clone());
                }
                return Err(Stop(what));
            };
            self.judged.keep(&expected.judges);
            return match item {
                Item::Reply(reply) => self.fields(&expected.fields, "Reply", |name| reply.field(name)),
                Item::Segment(segment, _) => {
                    let quoted = self.checker.quoted(&segment);
                    let field = |name: &str| match name {
                        "quotes" => Some(Value::Number(quoted)),
                        name => segment.field(name),
                    };
                    self.fields(&expected.fields, expected.kind.name(), field)
                }
                _ => Ok(()),
            };
        }
    }

    /// Judges the fields of what came. One that is wrong does not end the case.
    fn fields(
        &mut self,
        fields: &[Field],
        of: &str,
        value: impl Fn(&str) -> Option<Value>,
    ) -> Result<(), Stop> {
        for field in fields {
            let Some(found) = value(&field.name) else {
                self.judged.broken(&field.judges, format!("the {of} has no {}", field.name));
                continue;
            };
            let result = self.variables.test(&field.test, &found).map_err(lacking)?;
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
        let Some(bytes) = self.silence(time)? else {
            self.judged.keep(judges);
            return Ok(());
        };
        let what = format!("{} where nothing may come", shown(&bytes));
        // Behind a Reply: an FPDU too early, or Private Data that PD_Length does not count.
        let fpdu = self.begins_fpdu(&bytes);
        let broken: Vec<_> = if judges.iter().any(|id| id == LENGTH) {
            judges.iter().filter(|id| (*id == LENGTH) != fpdu).collect()
        } else {
            judges.iter().collect()
        };
        self.judged.broken(&broken, what.clone());
        Err(Stop(what))
    }

    /// Expects that the preceding bytes are refused: a Terminate comes, then the end; and no sign
    /// that they were carried out.
    fn refusal(&mut self, judges: &[String], terminate: &[String], fields: &[Field]) -> Result<(), Stop> {
        let mut asked = false;
        loop {
            let limit = if asked { self.stall() } else { GRACE.max(self.round_trip() * 10) };
            let item = self.item(limit)?;
            match item {
                Item::Segment(segment, _) if segment.kind() == Some(FrameKind::Terminate) => {
                    self.judged.keep(judges);
                    self.judged.keep(terminate);
                    let quoted = self.checker.quoted(&segment);
                    let field = |name: &str| match name {
                        "quotes" => Some(Value::Number(quoted)),
                        name => segment.field(name),
                    };
                    self.fields(fields, "terminate", field)?;
                    return self.torn_down();
                }
                Item::Segment(segment, _) if segment.kind() == Some(FrameKind::ReadResponse) => {
                    let what = format!("carried out, or passed over: {}", segment.describe());
                    self.judged.broken(judges, what.clone());
                    return Err(Stop(what));
                }
                Item::Segment(..) => {}
                Item::End(_) => {
                    self.judged.keep(judges);
                    let what = "the stream ends without a Terminate";
                    self.judged.broken(terminate, what);
                    return Ok(());
                }
                Item::Late if !asked && self.takes_reads() => {
                    asked = true;
                    self.send_empty_read(PROBE)?;
                }
                Item::Broken(what) => return Err(Stop(what)),
                other => {
                    let what = format!("{}: neither refused nor carried out", other.describe(limit));
                    self.judged.broken(judges, what.clone());
                    self.judged.broken(terminate, what.clone());
                    return Err(Stop(what));
                }
            }
        }
    }

    /// Expects that the stream ends after a Terminate, and that nothing else comes.
    fn torn_down(&mut self) -> Result<(), Stop> {
        const IDS: [&str; 2] = ["RFC5040-7-02", "RFC5041-3-12"];
        self.fin()?;
        loop {
            match self.item(self.stall())? {
                Item::End(_) => {
                    self.judged.keep(&IDS);
                    self.judged.keep(&["RFC5040-5.4-08"]);
                    return Ok(());
                }
                // Judged by the checker.
                Item::Segment(..) => {}
                other => {
                    let what = format!("{} behind a Terminate", other.describe(self.stall()));
                    self.judged.broken(&IDS, what.clone());
                    return Err(Stop(what));
                }
            }
        }
    }

    /// A whole message comes, in however many segments.
    fn message(&mut self, expected: &ExpectedFrame) -> Result<(), Stop> {
        let limit = self.stall();
        loop {
            let item = self.item(limit)?;
            match item {
                Item::Segment(_, Some(message)) if message.first.kind() == Some(expected.kind) => {
                    self.judged.keep(&expected.judges);
                    return self.fields(&expected.fields, expected.kind.name(), |name| message.field(name));
                }
                Item::Segment(segment, None) if segment.kind() == Some(expected.kind) => {}
                Item::Broken(what) => return Err(Stop(what)),
                item if is_aside(&item) => {}
                other => {
                    let what = format!("{} instead of a {}", other.describe(limit), expected.kind.name());
                    // A stream that ends, or stands still, shows nothing of the message.
                    if matches!(other, Item::Segment(..)) {
                        self.judged.broken(&expected.judges, what.clone());
                    }
                    return Err(Stop(what));
                }
            }
        }
    }
}

fn is_kind(item: &Item, kind: FrameKind) -> bool {
    match item {
        Item::Reply(_) => kind == FrameKind::Reply,
        Item::Segment(segment, _) => segment.kind() == Some(kind) || kind == FrameKind::Segment,
        Item::End(_) => kind == FrameKind::End,
        Item::Broken(_) | Item::Late => false,
    }
}

/// Returns whether a listener may send this on its own at any time: empty Writes and Reads of no
/// bytes.
fn is_aside(item: &Item) -> bool {
    let Item::Segment(segment, _) = item else { return false };
    match segment.kind() {
        Some(FrameKind::Write) => segment.payload().is_empty(),
        Some(FrameKind::ReadRequest) => segment.field("size") == Some(Value::Number(0)),
        _ => false,
    }
}
