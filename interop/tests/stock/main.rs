//! Stock programs on our two C libraries.

mod c_programs;
mod cm;
mod forks;
mod python;
mod rping;
