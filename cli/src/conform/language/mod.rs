//! The language of case files: what stands in them, and how it is read. docs/conform.md has the grammar.

mod grammar;
mod parse;
mod syntax;

pub(super) use parse::{ParseError, parse};
pub(super) use syntax::{
    Action, Atom, Case, Expected, Field, FrameKind, Need, Operation, Relation, Sent, Test,
};
