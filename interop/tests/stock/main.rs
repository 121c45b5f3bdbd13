//! Stock programs on our two C libraries.

mod c_programs;
mod capture;
mod cm;
mod datagrams;
mod exports;
mod forks;
mod pair;
mod perftest;
mod python;
mod require;
mod rping;
mod run;
mod tls;
mod utilities;
