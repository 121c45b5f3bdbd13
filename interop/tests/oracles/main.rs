//! Checks the decoder of uiw against test oracles: captures and programs that share no code with
//! it.

mod captures;
mod decoded;
mod live;
mod lua;
mod mutated;
#[allow(dead_code, reason = "tests of the decoder use the rest")]
#[path = "../../../tools/decode/tests/decode/packets.rs"]
mod segments;
mod tshark;
