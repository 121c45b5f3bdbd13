//! Parser of case files. It reads line by line, and errors have the line and the column.

use super::grammar::{self, SyntaxError};
use super::syntax::Case;

/// Error in a case file, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {what}")]
pub struct ParseError {
    /// Name of the file as given.
    pub file: String,
    /// Line number, starting at 1.
    pub line: u32,
    /// Column in characters, starting at 1.
    pub column: usize,
    /// Description of the error.
    pub what: String,
}

/// A line together with its continuation lines. A `\` at the end of a line continues it.
struct LogicalLine {
    number: u32,
    text: String,
    /// Start and indentation of each physical line in `text`.
    parts: Vec<(usize, usize)>,
}

/// Parses the cases of a file.
///
/// # Errors
/// Returns the error in the first invalid line.
pub fn parse(file: &str, text: &str) -> Result<Vec<Case>, ParseError> {
    let mut cases: Vec<Case> = Vec::new();
    for line in logical_lines(text) {
        let error = |problem: SyntaxError<'_>| to_parse_error(file, &line, &problem);
        let (head, rest) = line.text.split_once(' ').unwrap_or((&line.text, ""));
        let rest = rest.trim_start();
        match (head, cases.last_mut()) {
            ("case", _) => {
                let (name, title) = parsed_value(grammar::header(rest)).map_err(error)?;
                if cases.iter().any(|case| case.name == name) {
                    let what = format!("a second case `{name}`");
                    return Err(error(SyntaxError { at: rest, what }));
                }
                let file = file.to_owned();
                cases.push(Case { name, title, file, needs: Vec::new(), steps: Vec::new() });
            }
            (_, None) => {
                let what = "expected `case NAME \"TITLE\"`".to_owned();
                return Err(error(SyntaxError { at: &line.text, what }));
            }
            ("needs", Some(case)) => {
                case.needs.extend(parsed_value(grammar::needs(rest)).map_err(error)?);
            }
            (_, Some(case)) => {
                let mut step = parsed_value(grammar::step(&line.text)).map_err(error)?;
                step.line = line.number;
                case.steps.push(step);
            }
        }
    }
    Ok(cases)
}

fn parsed_value<'a, T>(
    result: Result<(&'a str, T), nom::Err<SyntaxError<'a>>>,
) -> Result<T, SyntaxError<'a>> {
    match result {
        Ok((_, value)) => Ok(value),
        Err(nom::Err::Error(problem) | nom::Err::Failure(problem)) => Err(problem),
        Err(nom::Err::Incomplete(_)) => {
            Err(SyntaxError { at: "", what: "the line ends too early".to_owned() })
        }
    }
}

fn to_parse_error(file: &str, line: &LogicalLine, problem: &SyntaxError<'_>) -> ParseError {
    // `at` is a part of the text of the line, or an unrelated empty string for its end.
    let start = line.text.as_ptr() as usize;
    let at = (problem.at.as_ptr() as usize).checked_sub(start).filter(|at| *at <= line.text.len());
    let at = at.unwrap_or(line.text.len());
    let index = line.parts.iter().rposition(|(begin, _)| *begin <= at).unwrap_or(0);
    let (begin, indent) = line.parts.get(index).copied().unwrap_or_default();
    let column = indent + line.text.get(begin..at).map_or(0, |text| text.chars().count()) + 1;
    let what =
        if problem.what.is_empty() { "not understood".to_owned() } else { problem.what.clone() };
    ParseError { file: file.to_owned(), line: line.number + index as u32, column, what }
}

/// Returns the lines that are not empty, without comments.
fn logical_lines(text: &str) -> Vec<LogicalLine> {
    let mut lines: Vec<LogicalLine> = Vec::new();
    let mut open = false;
    for (number, physical) in (1..).zip(text.lines()) {
        let code = without_comment(physical);
        let indent = code.chars().take_while(|c| c.is_whitespace()).count();
        let code = code.trim();
        let (code, continues) = match code.strip_suffix('\\') {
            Some(front) => (front.trim_end(), true),
            None => (code, false),
        };
        match lines.last_mut().filter(|_| open) {
            Some(line) => {
                line.text.push(' ');
                line.parts.push((line.text.len(), indent));
                line.text.push_str(code);
            }
            None if code.is_empty() => {}
            None => {
                lines.push(LogicalLine { number, text: code.to_owned(), parts: vec![(0, indent)] });
            }
        }
        open = continues;
    }
    lines
}

/// Removes the comment, which begins with a `#` outside of quotes.
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    for (at, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '#' if !quoted => return &line[..at],
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::syntax::{Action, Atom, CaseCondition, FrameKind, Relation, Test};
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "# A comment\ncase a/b \"A # title\"\nneeds partner ird 4\n  connect\n\
        +0.5 > times 3 cut 1 hold read-request sink-stag 0x51 \\\n      source-to $to+4 # here\n\
        < read-response [RFC5040-5.2.1-13] stag 0x51|<=7 to ?where length any [RFC5040-4.4-02] or end\n\
        < refusal [A-1 A-2] terminate [A-3] codes 1/2/3|1/2/4 [A-4]\n< nothing 0.25 [A-5]\n> fin\n\
        order write by-partner size 64\norder done [A-6]\n< message send payload pattern(64)\n";

    #[test]
    fn every_part_of_the_language() {
        let cases = parse("f", TEXT).unwrap();
        let [case] = cases.as_slice() else { panic!("{cases:?}") };
        assert_eq!((case.name.as_str(), case.title.as_str()), ("a/b", "A # title"));
        assert_eq!(case.needs, [CaseCondition::Partner, CaseCondition::Ird(4)]);
        let lines: Vec<u32> = case.steps.iter().map(|step| step.line).collect();
        assert_eq!(lines, [4, 5, 7, 8, 9, 10, 11, 12, 13]);
        let Action::Send(sent) = &case.steps[1].action else { panic!() };
        assert_eq!(
            (sent.kind, sent.times, sent.cut, sent.hold),
            (FrameKind::ReadRequest, 3, 1, true)
        );
        let source = Test::OneOf(vec![(Relation::Equal, Atom::Variable("to".into(), 4))]);
        assert_eq!(sent.fields[1].test, source);
        assert_eq!(case.steps[1].delay.as_millis(), 500);
        let Action::Expect { one_of, .. } = &case.steps[2].action else { panic!() };
        assert_eq!(one_of.len(), 2);
        assert_eq!(one_of[0].judges, ["RFC5040-5.2.1-13"]);
        assert_eq!(one_of[0].fields[1].test, Test::Bind("where".into()));
        assert_eq!(one_of[0].fields[2].judges, ["RFC5040-4.4-02"]);
        let Action::Refusal { judges, terminate, fields } = &case.steps[3].action else { panic!() };
        assert_eq!((judges.len(), terminate.len(), fields[0].judges.len()), (2, 1, 1));
        assert!(matches!(case.steps[4].action, Action::Silence { .. }));
        assert!(matches!(case.steps[8].action, Action::Message { .. }));
    }

    #[test]
    fn errors_have_line_and_column() {
        for (text, line, column, what) in [
            ("connect", 1, 1, "expected `case NAME \"TITLE\"`"),
            ("case", 1, 5, "expected the name of the case"),
            ("case x", 1, 7, "expected the title in quotes"),
            ("case x \"y", 1, 10, "expected a closing \""),
            ("case x \"y\"\n  walk", 2, 3, "expected connect, start, reads, order, > or <"),
            ("case x \"y\"\n> sned", 2, 3, "no frame `sned`"),
            ("case x \"y\"\n> write sttag 1", 2, 9, "no field `sttag` of write"),
            ("case x \"y\"\n> write stag", 2, 13, "expected a value"),
            ("case x \"y\"\n> write stag 1|2", 2, 9, "one value"),
            ("case x \"y\"\n> write stag 0x11223344556677889", 2, 14, "64 bits"),
            ("case x \"y\"\n> times 10001 write", 2, 9, "at most 10000"),
            ("case x \"y\"\n< write stag 1 [RFC", 2, 20, "a requirement or ]"),
            ("case x \"y\"\n> bytes payload x\"0\"", 2, 17, "pairs"),
            ("case x \"y\"\n> write \\\n   oops 1", 3, 4, "no field `oops`"),
            ("case x \"y\"\nneeds luck", 2, 7, "expected partner"),
            ("case x \"y\"\norder walk", 2, 7, "no operation `walk`"),
            ("case x \"y\"\ncase x \"z\"", 2, 6, "a second case"),
            ("case x \"y\"\n< terminate codes 1/2/999", 2, 19, "eight"),
            ("case x \"y\"\nconnect now", 2, 9, "end of the line"),
            ("case x \"y\"\n+700 > fin", 2, 2, "600 seconds"),
        ] {
            let error = parse("f", text).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
            assert!(error.what.contains(what), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*", at in 0usize..400, insert in "[ -~]{0,4}") {
            let _ = parse("f", &text);
            let mut changed = TEXT.to_owned();
            changed.insert_str(at.min(changed.len()), &insert);
            let _ = parse("f", &changed);
        }
    }
}
