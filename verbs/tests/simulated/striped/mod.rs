//! Striped connections.

mod endings;
mod joins;
mod model;
mod program;
