//! Runs the stacks against each other in two network namespaces: the kernel's TCP, smoltcp over
//! AF_PACKET and smoltcp over AF_XDP.

mod conform;
mod congestion;
mod datagram_peer;
mod doctor;
mod exchange;
mod exhaustion;
mod gateway;
mod modes;
mod multicast;
mod multipath;
mod pairings;
mod path;
mod programs;
mod queues;
mod refusals;
mod segments;
mod syn_flood;
