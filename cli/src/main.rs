//! The uiw program.

fn main() {}
