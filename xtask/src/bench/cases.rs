//! The cases of `bench peers` and `bench siw`, and which of them are asked for.

use super::figures::{Format, Kind};
use std::process::ExitCode;

/// What is measured.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) op: &'static str,
    pub(crate) size: u32,
    /// Messages under way.
    pub(crate) depth: u32,
    pub(crate) latency: bool,
}

const fn stream(op: &'static str, size: u32, depth: u32) -> Case {
    Case { op, size, depth, latency: false }
}

/// Round trips of messages of `size` bytes.
pub(crate) const fn ping_pong(op: &'static str, size: u32) -> Case {
    Case { op, size, depth: 1, latency: true }
}

/// Throughput. Depths are those that `uiw perf` takes by itself.
const STREAMS: [Case; 12] = [
    stream("write", 64, 128),
    stream("write", 4096, 128),
    stream("write", 65536, 16),
    stream("write", 1 << 20, 2),
    stream("read", 64, 128),
    stream("read", 4096, 128),
    stream("read", 65536, 64),
    stream("read", 1 << 20, 4),
    stream("send", 64, 128),
    stream("send", 4096, 128),
    stream("send", 65536, 16),
    stream("send", 1 << 20, 2),
];

impl Case {
    pub(crate) fn name(&self) -> String {
        format!("{} {}{}", self.op, self.size, if self.latency { ", round trip" } else { "" })
    }

    pub(crate) fn kind(&self) -> Kind {
        if self.latency { Kind::RoundTrip } else { Kind::Throughput }
    }
}

/// Which rows, and how they are printed.
#[derive(clap::Args)]
pub(crate) struct Pick {
    /// Only rows whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// A Markdown table
    #[arg(long)]
    markdown: bool,
    /// One JSON object a line of the table
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print the names of the rows
    #[arg(long)]
    list: bool,
}

impl Pick {
    /// The cases asked for of a benchmark that has these round trips.
    ///
    /// # Errors
    /// The exit code when there is nothing to measure: the names were asked for and are printed, or no row is called so.
    pub(crate) fn cases(&self, round_trips: &[Case]) -> Result<Vec<Case>, ExitCode> {
        let cases = STREAMS.iter().chain(round_trips).copied();
        super::chosen(cases, Case::name, self.only.as_deref(), self.list)
    }

    pub(crate) fn format(&self) -> Format {
        Format::of(self.markdown, self.json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_of_rows_are_distinct() {
        let trips = [ping_pong("send", 64), ping_pong("send", 4096)];
        let names: BTreeSet<_> = STREAMS.iter().chain(&trips).map(Case::name).collect();
        assert_eq!(names.len(), STREAMS.len() + trips.len());
    }
}
