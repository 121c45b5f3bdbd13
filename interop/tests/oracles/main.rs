//! uiw's decoder against test oracles: captures and programs that share no code with it.

mod captures;
mod decoded;
mod live;
mod lua;
mod tshark;
