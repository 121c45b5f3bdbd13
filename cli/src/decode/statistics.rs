//! What each direction of each connection carried: messages by operation with their sizes, the time from a Read or an atomic to its answer, and what TCP
//! sent again.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::SocketAddr;

use hdrhistogram::Histogram;
use serde::Serialize;
use uiw_rdmap::Opcode;

use super::event::{Event, Record};
use crate::number::number;

/// Requests that wait for their answer, of one kind and one direction.
const MAX_WAITING: usize = 65_536;
const NANOSECONDS: f64 = 1e9;

/// One direction of a connection.
type Direction = (u32, SocketAddr, SocketAddr);

/// Statistics so far.
#[derive(Debug, Default)]
pub(super) struct Statistics {
    directions: BTreeMap<Direction, Figures>,
}

#[derive(Debug, Default)]
struct Figures {
    operations: BTreeMap<&'static str, Sizes>,
    /// Times of requests without an answer so far, and the times from one to the other.
    reads: Latencies,
    atomics: Latencies,
    retransmissions: u64,
    repeated_bytes: u64,
    missing_bytes: u64,
    first: Option<u64>,
    last: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    messages: u64,
    bytes: u64,
    least: u64,
    most: u64,
}

#[derive(Debug, Default)]
struct Latencies {
    waiting: VecDeque<Option<u64>>,
    /// In nanoseconds; none until there is one.
    times: Option<Histogram<u64>>,
}

impl Latencies {
    fn add(&mut self, nanoseconds: u64) {
        // Three digits and any number of nanoseconds: neither can fail.
        let times = self.times.take().or_else(|| Histogram::new(3).ok());
        self.times = times.map(|mut times| {
            let _ = times.record(nanoseconds.max(1));
            times
        });
    }
}

/// A line of the output.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Line {
    Messages {
        connection: u32,
        from: SocketAddr,
        to: SocketAddr,
        operation: &'static str,
        messages: u64,
        bytes: u64,
        least: u64,
        mean: f64,
        most: u64,
    },
    /// From a request to its answer, in microseconds.
    Latency {
        connection: u32,
        from: SocketAddr,
        to: SocketAddr,
        operation: &'static str,
        answers: u64,
        least_us: f64,
        median_us: f64,
        p99_us: f64,
        most_us: f64,
    },
    Direction {
        connection: u32,
        from: SocketAddr,
        to: SocketAddr,
        seconds: f64,
        retransmissions: u64,
        repeated_bytes: u64,
        missing_bytes: u64,
    },
}

impl Statistics {
    pub(super) fn take(&mut self, record: &Record) {
        if record.connection == 0 {
            return;
        }
        let key = (record.connection, record.from, record.to);
        let figures = self.directions.entry(key).or_default();
        figures.first = figures.first.or(record.time);
        figures.last = record.time.or(figures.last);
        match &record.event {
            Event::Message(message) => {
                let sizes = figures.operations.entry(message.name).or_insert(Sizes::NONE);
                sizes.add(message.length);
                self.answer(key, message.opcode, record.time);
            }
            Event::Tcp { repeated_bytes, retransmissions } => {
                figures.repeated_bytes += repeated_bytes;
                figures.retransmissions += retransmissions;
            }
            Event::Missing { bytes, .. } => {
                figures.missing_bytes += bytes;
                self.forget(key);
            }
            // A request or an answer may be among what was not decoded.
            Event::Lost { .. } | Event::Resumed { .. } => self.forget(key),
            _ => {}
        }
    }

    fn answer(&mut self, (connection, from, to): Direction, opcode: u8, time: Option<u64>) {
        let (request, is_answer, is_atomic) = match Opcode::from_raw(opcode) {
            Some(Opcode::ReadRequest) => ((connection, from, to), false, false),
            Some(Opcode::ReadResponse) => ((connection, to, from), true, false),
            Some(Opcode::AtomicRequest) => ((connection, from, to), false, true),
            Some(Opcode::AtomicResponse) => ((connection, to, from), true, true),
            _ => return,
        };
        let figures = self.directions.entry(request).or_default();
        let latencies = if is_atomic { &mut figures.atomics } else { &mut figures.reads };
        if is_answer {
            if let Some(Some(asked)) = latencies.waiting.pop_front()
                && let Some(answered) = time
            {
                latencies.add(answered.saturating_sub(asked));
            }
        } else if latencies.waiting.len() < MAX_WAITING {
            latencies.waiting.push_back(time);
        }
    }

    /// What waits for an answer on this connection may have it already.
    fn forget(&mut self, (connection, from, to): Direction) {
        for key in [(connection, from, to), (connection, to, from)] {
            if let Some(figures) = self.directions.get_mut(&key) {
                figures.reads.waiting.clear();
                figures.atomics.waiting.clear();
            }
        }
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for (&(connection, from, to), figures) in &self.directions {
            let nanoseconds =
                figures.last.zip(figures.first).map_or(0, |(last, first)| last.saturating_sub(first));
            lines.push(Line::Direction {
                connection,
                from,
                to,
                seconds: nanoseconds as f64 / NANOSECONDS,
                retransmissions: figures.retransmissions,
                repeated_bytes: figures.repeated_bytes,
                missing_bytes: figures.missing_bytes,
            });
            for (&operation, &Sizes { messages, bytes, least, most }) in &figures.operations {
                let mean = bytes as f64 / messages as f64;
                lines.push(Line::Messages {
                    connection,
                    from,
                    to,
                    operation,
                    messages,
                    bytes,
                    least,
                    mean,
                    most,
                });
            }
            for (operation, latencies) in figures.latencies() {
                let Some(times) = &latencies.times else { continue };
                let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
                lines.push(Line::Latency {
                    connection,
                    from,
                    to,
                    operation,
                    answers: times.len(),
                    least_us: us(times.min()),
                    median_us: us(times.value_at_quantile(0.5)),
                    p99_us: us(times.value_at_quantile(0.99)),
                    most_us: us(times.max()),
                });
            }
        }
        lines
    }
}

impl Figures {
    fn latencies(&self) -> [(&'static str, &Latencies); 2] {
        [("RDMA Read", &self.reads), ("Atomic", &self.atomics)]
    }
}

impl Sizes {
    const NONE: Self = Self { messages: 0, bytes: 0, least: u64::MAX, most: 0 };

    fn add(&mut self, length: u64) {
        self.messages += 1;
        self.bytes += length;
        self.least = self.least.min(length);
        self.most = self.most.max(length);
    }
}

/// The lines as text.
pub(super) fn text(lines: &[Line]) -> String {
    let mut out = String::new();
    for line in lines {
        // Writing to a string cannot fail.
        let _ = match line {
            Line::Direction {
                connection,
                from,
                to,
                seconds,
                retransmissions,
                repeated_bytes,
                missing_bytes,
            } => {
                writeln!(
                    out,
                    "[{connection}] {from} > {to}: {seconds:.6} s, {} ({repeated_bytes} bytes) sent again, \
                     {missing_bytes} bytes missing",
                    number(*retransmissions, "segment"),
                )
            }
            Line::Messages { operation, messages, bytes, least, mean, most, .. } => writeln!(
                out,
                "  {operation}: {}, {}; sizes from {least} to {most}, on average {mean:.1}",
                number(*messages, "message"),
                number(*bytes, "byte"),
            ),
            Line::Latency { operation, answers, least_us, median_us, p99_us, most_us, .. } => writeln!(
                out,
                "  {operation} to its answer: {answers}, from {least_us:.1} to {most_us:.1} us, median {median_us:.1}, p99 {p99_us:.1}"
            ),
        };
    }
    out
}
