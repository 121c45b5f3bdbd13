//! The language of case files: its syntax tree and its parser. `docs/case-files.md` describes the
//! grammar.
//!
//! ```
//! let text = "case a/crc \"A wrong CRC\"\n  start\n  > write crc-xor 1\n  < terminate codes 2/0/2\n";
//! let cases = uiw_cases::parse("a.case", text)?;
//! assert_eq!((cases[0].name.as_str(), cases[0].steps.len()), ("a/crc", 3));
//! let wrong = uiw_cases::parse("a.case", "case a \"b\"\n  > sned").unwrap_err();
//! assert_eq!((wrong.line, wrong.column), (2, 5));
//! # Ok::<(), uiw_cases::ParseError>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod grammar;
mod parse;
mod syntax;

pub use parse::{ParseError, parse};
pub use syntax::{
    Action, Atom, Case, CaseCondition, ExpectedFrame, Field, FrameKind, Operation, Relation,
    SentFrame, Step, Test,
};
