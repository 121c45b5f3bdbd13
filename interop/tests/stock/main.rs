//! Stock programs on our two C libraries.

mod c_programs;
mod capture;
mod cm;
mod containers;
mod datagrams;
mod exports;
mod faults;
mod forks;
mod iser;
mod migration;
mod mpi;
mod nixl;
mod pair;
mod perftest;
mod python;
mod raw;
mod reported;
mod require;
mod rping;
mod rsockets;
mod run;
mod sockets;
mod sockets_programs;
mod tls;
mod ucx;
mod utilities;
