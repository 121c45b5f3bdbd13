//! `uiw cp` between two processes.

mod hostile;
mod program;
mod resume;
mod security;
mod silence;
mod tree;
