//! `uiw cp` between two processes.

mod audit;
mod delete;
mod hostile;
mod list;
mod program;
mod resume;
mod security;
mod silence;
mod tree;
