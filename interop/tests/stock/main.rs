//! Stock programs on our two C libraries.

mod c_programs;
mod cm;
mod python;
mod rping;
