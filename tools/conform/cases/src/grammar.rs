//! The grammar of one line, in `nom`.

use super::syntax::{
    Action, Atom, CaseCondition, ExpectedFrame, Field, FrameKind, Operation, Relation, SentFrame,
    Step, Test,
};
use nom::branch::alt;
use nom::bytes::complete::{tag, take_while, take_while1};
use nom::character::complete::{char, digit1, hex_digit1, space0, space1};
use nom::combinator::{cut, opt, recognize};
use nom::error::ErrorKind;
use nom::multi::{many0, separated_list1};
use nom::sequence::{delimited, pair, preceded, terminated};
use nom::{IResult, Parser};
use std::time::Duration;

/// Maximum number of repetitions of a line.
const MAX_REPETITIONS: u64 = 10_000;
/// Maximum length of a payload in bytes.
const MAX_PAYLOAD: u64 = 1 << 20;
/// Maximum wait of a line in seconds.
const MAX_WAIT_SECONDS: f64 = 600.0;

/// Position of an error in a line, and the expected text.
#[derive(Clone, Debug)]
pub(super) struct SyntaxError<'a> {
    pub(super) at: &'a str,
    pub(super) what: String,
}

impl<'a> nom::error::ParseError<&'a str> for SyntaxError<'a> {
    fn from_error_kind(at: &'a str, _: ErrorKind) -> Self {
        Self { at, what: String::new() }
    }

    fn append(_: &'a str, _: ErrorKind, other: Self) -> Self {
        other
    }

    fn or(self, other: Self) -> Self {
        // The parser that got further has the more helpful error.
        if self.at.len() < other.at.len() || other.what.is_empty() { self } else { other }
    }
}

type Parsed<'a, T> = IResult<&'a str, T, SyntaxError<'a>>;

fn fail<T>(at: &str, what: impl Into<String>) -> Parsed<'_, T> {
    Err(nom::Err::Failure(SyntaxError { at, what: what.into() }))
}

/// Wraps `parser` so that its failure is final: no alternative is tried.
fn required<'a, T>(
    what: &'static str,
    mut parser: impl Parser<&'a str, Output = T, Error = SyntaxError<'a>>,
) -> impl FnMut(&'a str) -> Parsed<'a, T> {
    move |input| match parser.parse(input) {
        Err(nom::Err::Error(_)) => fail(input, format!("expected {what}")),
        result => result,
    }
}

fn word(input: &str) -> Parsed<'_, &str> {
    take_while1(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_').parse(input)
}

/// Parses a word and the blanks after it.
fn lexeme(input: &str) -> Parsed<'_, &str> {
    terminated(word, space0).parse(input)
}

fn keyword<'a>(name: &'static str) -> impl FnMut(&'a str) -> Parsed<'a, ()> {
    move |input| match lexeme(input)? {
        (rest, found) if found == name => Ok((rest, ())),
        _ => Err(nom::Err::Error(SyntaxError { at: input, what: String::new() })),
    }
}

pub(super) fn number(input: &str) -> Parsed<'_, u64> {
    let (rest, (digits, radix)) = alt((
        preceded(tag("0x"), hex_digit1).map(|digits| (digits, 16)),
        digit1.map(|digits| (digits, 10)),
    ))
    .parse(input)?;
    match u64::from_str_radix(digits, radix) {
        Ok(number) => Ok((rest, number)),
        Err(_) => fail(input, "a number has at most 64 bits"),
    }
}

fn number_up_to<'a>(most: u64) -> impl FnMut(&'a str) -> Parsed<'a, u64> {
    move |input| match required("a number", number)(input)? {
        (rest, number) if number <= most => Ok((rest, number)),
        _ => fail(input, format!("at most {most}")),
    }
}

fn seconds(input: &str) -> Parsed<'_, Duration> {
    let (rest, text) = recognize(pair(digit1, opt(pair(char('.'), digit1)))).parse(input)?;
    match text.parse::<f64>() {
        Ok(seconds) if seconds <= MAX_WAIT_SECONDS => Ok((rest, Duration::from_secs_f64(seconds))),
        _ => fail(input, format!("at most {MAX_WAIT_SECONDS} seconds")),
    }
}

pub(super) fn string(input: &str) -> Parsed<'_, String> {
    let text = take_while(|c| c != '"');
    delimited(char('"'), text, required("a closing \"", char('"'))).map(str::to_owned).parse(input)
}

fn hex_bytes(input: &str) -> Parsed<'_, Vec<u8>> {
    let (rest, digits) = preceded(tag("x\""), take_while(|c| c != '"')).parse(input)?;
    let (rest, _) = required("a closing \"", char('"'))(rest)?;
    let digits: String = digits.chars().filter(|c| !c.is_whitespace()).collect();
    let byte =
        |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    match (0..digits.len()).step_by(2).map(byte).collect() {
        Some(bytes) => Ok((rest, bytes)),
        None => fail(input, "expected pairs of hexadecimal digits"),
    }
}

fn variable(input: &str) -> Parsed<'_, Atom> {
    let (rest, name) =
        preceded(char('$'), required("the name of a variable", variable_name)).parse(input)?;
    let (rest, add) =
        opt(pair(alt((char('+'), char('-'))), required("a number", number))).parse(rest)?;
    let add = match add {
        Some(('-', number)) => (number as i64).wrapping_neg(),
        Some((_, number)) => number as i64,
        None => 0,
    };
    Ok((rest, Atom::Variable(name.to_owned(), add)))
}

/// Parses the name of a variable. It contains no `-`, because `$to-4` subtracts.
fn variable_name(input: &str) -> Parsed<'_, &str> {
    take_while1(|c: char| c.is_ascii_alphanumeric() || c == '_').parse(input)
}

fn codes(input: &str) -> Parsed<'_, Atom> {
    let (rest, (layer, etype)) =
        (terminated(number, char('/')), terminated(number, char('/'))).parse(input)?;
    let (rest, code) = required("the code of a Terminate", number)(rest)?;
    match (layer, etype, u8::try_from(code)) {
        (0..16, 0..16, Ok(code)) => Ok((rest, Atom::Codes([layer as u8, etype as u8, code]))),
        _ => fail(input, "layer and type have four bits, the code has eight"),
    }
}

fn byte_count<'a>(name: &'static str) -> impl FnMut(&'a str) -> Parsed<'a, u64> {
    move |input| {
        let open = preceded(tag(name), char('('));
        delimited(open, number_up_to(MAX_PAYLOAD), required("a closing )", char(')'))).parse(input)
    }
}

fn atom(input: &str) -> Parsed<'_, Atom> {
    alt((
        codes,
        number.map(Atom::Number),
        variable,
        hex_bytes.map(Atom::Bytes),
        string.map(|text| Atom::Bytes(text.into_bytes())),
        byte_count("pattern").map(Atom::Pattern),
        byte_count("zeros").map(Atom::Zeros),
    ))
    .parse(input)
}

fn comparison(input: &str) -> Parsed<'_, (Relation, Atom)> {
    let sign = alt((tag("<=").map(|_| Relation::AtMost), tag(">=").map(|_| Relation::AtLeast)));
    let (rest, relation) = opt(sign).parse(input)?;
    let relation = relation.unwrap_or(Relation::Equal);
    required("a value", atom).map(|atom| (relation, atom)).parse(rest)
}

fn test(input: &str) -> Parsed<'_, Test> {
    alt((
        keyword("any").map(|()| Test::Any),
        preceded(char('?'), required("the name of a variable", variable_name))
            .map(|name| Test::Bind(name.to_owned())),
        separated_list1(char('|'), comparison).map(Test::OneOf),
    ))
    .parse(input)
}

/// Parses an optional list of requirements, such as `[RFC5041-7.1-02 RFC5041-6.2.2-04]`.
fn requirement_ids(input: &str) -> Parsed<'_, Vec<String>> {
    let id = take_while1(|c: char| c.is_ascii_alphanumeric() || "-.".contains(c));
    let ids = many0(terminated(id, space0));
    let list = delimited(pair(char('['), space0), ids, required("a requirement or ]", char(']')));
    let (rest, ids) = opt(terminated(list, space0)).parse(input)?;
    Ok((rest, ids.unwrap_or_default().into_iter().map(str::to_owned).collect()))
}

fn field<'a>(
    allowed: &'static [&'static str],
    of: &'static str,
) -> impl FnMut(&'a str) -> Parsed<'a, Field> {
    move |input| {
        let (rest, name) = lexeme(input)?;
        if name == "or" {
            return Err(nom::Err::Error(SyntaxError { at: input, what: String::new() }));
        }
        if !allowed.contains(&name) {
            return fail(
                input,
                format!("no field `{name}` of {of}: there are {}", allowed.join(", ")),
            );
        }
        let (rest, test) = required("a value", terminated(test, space0))(rest)?;
        let (rest, judges) = requirement_ids(rest)?;
        Ok((rest, Field { name: name.to_owned(), test, judges }))
    }
}

/// Parses a field as [`field`] does, and requires a single value.
fn single_value_field<'a>(
    allowed: &'static [&'static str],
    of: &'static str,
) -> impl FnMut(&'a str) -> Parsed<'a, Field> {
    move |input| {
        let (rest, field) = field(allowed, of)(input)?;
        match &field.test {
            Test::OneOf(values) if matches!(values.as_slice(), [(Relation::Equal, _)]) => {
                Ok((rest, field))
            }
            _ => fail(input, "a field that is sent has one value"),
        }
    }
}

fn frame_kind(input: &str) -> Parsed<'_, FrameKind> {
    let (rest, name) = required("a frame", lexeme)(input)?;
    match FrameKind::NAMES.iter().find(|(known, _)| *known == name) {
        Some((_, kind)) => Ok((rest, *kind)),
        None => {
            let names: Vec<_> = FrameKind::NAMES.iter().map(|(name, _)| *name).collect();
            fail(input, format!("no frame `{name}`: there are {}", names.join(", ")))
        }
    }
}

fn expected_frame(input: &str) -> Parsed<'_, ExpectedFrame> {
    let (rest, kind) = frame_kind(input)?;
    let (rest, judges) = requirement_ids(rest)?;
    let (rest, fields) = many0(field(kind.fields(), kind.name())).parse(rest)?;
    Ok((rest, ExpectedFrame { kind, judges, fields }))
}

fn times(input: &str) -> Parsed<'_, u64> {
    let (rest, times) =
        opt(preceded(keyword("times"), terminated(number_up_to(MAX_REPETITIONS), space0)))
            .parse(input)?;
    Ok((rest, times.unwrap_or(1)))
}

fn sent_frame(input: &str) -> Parsed<'_, Action> {
    let (rest, times) = times(input)?;
    let (rest, cut) =
        opt(preceded(keyword("cut"), terminated(number_up_to(65535), space0))).parse(rest)?;
    let (rest, hold) = opt(keyword("hold")).parse(rest)?;
    let end = alt((keyword("fin").map(|()| Action::Fin), keyword("reset").map(|()| Action::Reset)));
    if let (rest, Some(action)) = opt(end).parse(rest)? {
        return Ok((rest, action));
    }
    let (rest, kind) = frame_kind(rest)?;
    if kind == FrameKind::End {
        return fail(input, "an end is sent as fin or reset");
    }
    let (rest, fields) = many0(single_value_field(kind.fields(), kind.name())).parse(rest)?;
    let (cut, hold) = (cut.unwrap_or(0), hold.is_some());
    Ok((rest, Action::Send(SentFrame { kind, fields, times, cut, hold })))
}

fn silence(input: &str) -> Parsed<'_, Action> {
    let (rest, ()) = keyword("nothing")(input)?;
    let (rest, time) = required("seconds", terminated(seconds, space0))(rest)?;
    let (rest, judges) = requirement_ids(rest)?;
    Ok((rest, Action::Silence { time, judges }))
}

fn refusal(input: &str) -> Parsed<'_, Action> {
    let (rest, ()) = keyword("refusal")(input)?;
    let (rest, first) = requirement_ids(rest)?;
    let (rest, terminate) = opt(preceded(keyword("terminate"), requirement_ids)).parse(rest)?;
    let kind = FrameKind::Terminate;
    let (rest, fields) = many0(field(kind.fields(), kind.name())).parse(rest)?;
    Ok((rest, Action::Refusal { judges: first, terminate: terminate.unwrap_or_default(), fields }))
}

fn message(input: &str) -> Parsed<'_, Action> {
    preceded(keyword("message"), expected_frame)
        .map(|expected| Action::Message { expected })
        .parse(input)
}

fn expect(input: &str) -> Parsed<'_, Action> {
    let one_of = |input| {
        let (rest, times) = times(input)?;
        let (rest, one_of) = separated_list1(keyword("or"), expected_frame).parse(rest)?;
        Ok((rest, Action::Expect { times, one_of }))
    };
    alt((silence, refusal, message, one_of)).parse(input)
}

fn order(input: &str) -> Parsed<'_, Action> {
    let (rest, name) = required("an operation, or done", lexeme)(input)?;
    if name == "done" {
        return requirement_ids.map(|judges| Action::Done { judges }).parse(rest);
    }
    let Some((_, code)) = Operation::NAMES.iter().find(|(known, _)| *known == name) else {
        let names: Vec<_> = Operation::NAMES.iter().map(|(name, _)| *name).collect();
        return fail(input, format!("no operation `{name}`: there are {}", names.join(", ")));
    };
    let (rest, by_partner) = opt(keyword("by-partner")).parse(rest)?;
    let (rest, fields) = many0(single_value_field(&["size", "count"], "an order")).parse(rest)?;
    let operation = Operation { code: *code, by_partner: by_partner.is_some() };
    Ok((rest, Action::Order { operation, fields }))
}

/// Parses the rest of a line such as `reads 4 reserved 3 [RFC5040-4.1-10]`.
fn reads(input: &str) -> Parsed<'_, Action> {
    let kind = FrameKind::ReadRequest;
    let (rest, count) = terminated(number_up_to(MAX_REPETITIONS), space0).parse(input)?;
    let mut fields = Vec::new();
    let mut rest = rest;
    while !rest.is_empty() && !rest.starts_with('[') {
        let (behind, name) = lexeme(rest)?;
        if !kind.fields().contains(&name) {
            return fail(rest, format!("no field `{name}` of read-request"));
        }
        let (behind, atom) = required("a value", terminated(atom, space0))(behind)?;
        let test = Test::OneOf(vec![(Relation::Equal, atom)]);
        fields.push(Field { name: name.to_owned(), test, judges: Vec::new() });
        rest = behind;
    }
    let (rest, judges) = requirement_ids(rest)?;
    Ok((rest, Action::Reads { count, fields, judges }))
}

/// Parses a line of a case.
pub(super) fn step(input: &str) -> Parsed<'_, Step> {
    let (rest, delay) =
        opt(preceded(char('+'), terminated(required("seconds", seconds), space1))).parse(input)?;
    let action = alt((
        preceded(pair(char('>'), space0), cut(sent_frame)),
        preceded(pair(char('<'), space0), cut(expect)),
        keyword("connect").map(|()| Action::Connect),
        preceded(
            keyword("start"),
            many0(single_value_field(FrameKind::Request.fields(), "a request")),
        )
        .map(Action::Start),
        preceded(keyword("order"), cut(order)),
        preceded(keyword("reads"), cut(reads)),
    ));
    let (rest, action) = required("connect, start, reads, order, > or <", action)(rest)?;
    end_of_line(rest)?;
    Ok((rest, Step { line: 0, delay: delay.unwrap_or_default(), action }))
}

fn end_of_line(rest: &str) -> Parsed<'_, ()> {
    if rest.is_empty() { Ok((rest, ())) } else { fail(rest, "expected the end of the line") }
}

/// Parses the rest of a line `case NAME "TITLE"`.
pub(super) fn header(input: &str) -> Parsed<'_, (String, String)> {
    let name = take_while1(|c: char| c.is_ascii_alphanumeric() || "-_/.".contains(c));
    let (rest, name) = required("the name of the case", terminated(name, space0))(input)?;
    let (rest, title) = required("the title in quotes", terminated(string, space0))(rest)?;
    end_of_line(rest)?;
    Ok((rest, (name.to_owned(), title)))
}

/// Parses the rest of a line `needs WORD...`.
pub(super) fn needs(input: &str) -> Parsed<'_, Vec<CaseCondition>> {
    let mut needs = Vec::new();
    let mut rest = input;
    while !rest.is_empty() {
        let (behind, word) = required("what is needed", lexeme)(rest)?;
        if word == "ird" {
            let (behind, reads) = terminated(number_up_to(0x3FFF), space0).parse(behind)?;
            needs.push(CaseCondition::Ird(reads));
            rest = behind;
            continue;
        }
        match CaseCondition::NAMES.iter().find(|(known, _)| *known == word) {
            Some((_, need)) => needs.push(*need),
            None => {
                let names: Vec<_> = CaseCondition::NAMES.iter().map(|(name, _)| *name).collect();
                return fail(rest, format!("expected {} or ird N", names.join(", ")));
            }
        }
        rest = behind;
    }
    Ok((rest, needs))
}
