//! Figures of rounds, and the table of ratios between stacks: what `bench peers` and `bench siw` print.

use serde_json::{Value, json};

/// Median and quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) q1: f64,
    pub(crate) q3: f64,
}

impl Spread {
    /// Of these values, of which there is one at least.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| {
            let place = values.len().saturating_sub(1) as f64 * part;
            let (low, high) = (values.get(place.floor() as usize), values.get(place.ceil() as usize));
            low.zip(high).map_or(f64::NAN, |(low, high)| low + (high - low) * place.fract())
        };
        Self { median: at(0.5), q1: at(0.25), q3: at(0.75) }
    }
}

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Messages a second.
    Throughput,
    /// Microseconds of a round trip.
    RoundTrip,
}

/// One figure of a round.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// Whose it is; [`UIW`] is ours.
    pub(crate) stack: &'static str,
    pub(crate) value: f64,
    /// Our figure of the same round.
    pub(crate) ours: f64,
}

/// Our own name in a row.
pub(crate) const UIW: &str = "uiw";

/// How a table is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Plain,
    Markdown,
    Json,
}

impl Format {
    /// What the options say.
    pub(crate) fn of(markdown: bool, json: bool) -> Self {
        match (json, markdown) {
            (true, _) => Self::Json,
            (_, true) => Self::Markdown,
            _ => Self::Plain,
        }
    }

    /// The table's head, behind a line that says what the figures were measured with.
    pub(crate) fn head(self, with: &str) {
        match self {
            Self::Plain => {
                println!("{with}");
                println!(
                    "{:<24} {:<26} {:>16}  {:<26} {:>9}  quartiles",
                    "row", "stack", "median", "quartiles", "uiw ahead"
                );
            }
            Self::Markdown => {
                println!("{with}\n");
                println!(
                    "| row | stack | median | quartiles | uiw ahead | quartiles |\n|---|---|---|---|---|---|"
                );
            }
            Self::Json => {}
        }
    }
}

/// A measured row: one operation and size, several stacks.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Bytes of a message.
    pub(crate) size: u32,
    pub(crate) rounds: Vec<Vec<Measured>>,
}

/// One line of the table.
struct Line {
    stack: &'static str,
    value: Spread,
    /// How many times as good as this one we are; above 1 we are ahead.
    ahead: Option<Spread>,
}

impl Row {
    /// In the order in which they came in the first round.
    fn lines(&self) -> Vec<Line> {
        let mut names: Vec<&'static str> = Vec::new();
        for measured in self.rounds.iter().flatten() {
            if !names.contains(&measured.stack) {
                names.push(measured.stack);
            }
        }
        // uiw stands first, whatever the order of the measurements.
        names.sort_by_key(|name| *name != UIW);
        let line = |stack: &'static str| {
            let of = |figure: &dyn Fn(&Measured) -> f64| {
                let those = self.rounds.iter().flatten().filter(|measured| measured.stack == stack);
                Spread::of(those.map(figure).collect())
            };
            let ahead = |measured: &Measured| match self.kind {
                Kind::Throughput => measured.ours / measured.value,
                Kind::RoundTrip => measured.value / measured.ours,
            };
            Line { stack, value: of(&|measured| measured.value), ahead: (stack != UIW).then(|| of(&ahead)) }
        };
        names.into_iter().map(line).collect()
    }

    /// A figure as people read it.
    fn text(&self, value: f64) -> String {
        match self.kind {
            Kind::RoundTrip => format!("{value:.1} us"),
            Kind::Throughput if self.size < 4096 => format!("{:.1} k/s", value / 1e3),
            Kind::Throughput => format!("{:.1} MB/s", value * f64::from(self.size) / 1e6),
        }
    }

    /// Prints its lines.
    pub(crate) fn print(&self, format: Format) {
        for line in self.lines() {
            let Line { stack, value, ahead } = line;
            let median = self.text(value.median);
            let range = format!("{} to {}", self.text(value.q1), self.text(value.q3));
            let ratio = ahead.map_or(String::new(), |ahead| format!("{:.2}", ahead.median));
            let ratios = ahead.map_or(String::new(), |ahead| format!("{:.2} to {:.2}", ahead.q1, ahead.q3));
            let name = &self.name;
            match format {
                Format::Plain => {
                    println!("{name:<24} {stack:<26} {median:>16}  {range:<26} {ratio:>9}  {ratios}");
                }
                Format::Markdown => {
                    println!("| {name} | {stack} | {median} | {range} | {ratio} | {ratios} |");
                }
                Format::Json => println!("{}", self.json(stack, &value, ahead.as_ref())),
            }
        }
    }

    fn json(&self, stack: &str, value: &Spread, ahead: Option<&Spread>) -> Value {
        let spread = |spread: &Spread| json!({"median": spread.median, "q1": spread.q1, "q3": spread.q3});
        let unit = match self.kind {
            Kind::Throughput => "messages_per_second",
            Kind::RoundTrip => "round_trip_us",
        };
        json!({
            "row": self.name, "size": self.size, "stack": stack, "rounds": self.rounds.len(),
            unit: spread(value), "uiw_ahead": ahead.map(spread),
        })
    }
}

/// What a slice of `uiw perf --compare --slices 1 --json` says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) kind: Kind,
    /// Messages a second, or the median round trip in microseconds; the same of raw TCP (in large writes, or message by message).
    ours: f64,
    raw: f64,
    /// Raw TCP that writes small messages one by one, in messages a second.
    one_by_one: Option<f64>,
    /// Mean round trip.
    pub(crate) mean: Option<f64>,
}

impl Slice {
    /// `size`: bytes of a message.
    pub(crate) fn read(said: &str, size: u32) -> Option<Self> {
        let value: Value = said.lines().find_map(|line| serde_json::from_str(line).ok())?;
        let kind = match value["mode"].as_str()? {
            "latency" => Kind::RoundTrip,
            _ => Kind::Throughput,
        };
        let figure = |stack: &str| match kind {
            Kind::RoundTrip => value["round_trip_us_p50"][stack]["median"].as_f64(),
            Kind::Throughput => {
                value["bytes_per_second"][stack]["median"].as_f64().map(|bytes| bytes / f64::from(size))
            }
        };
        Some(Self {
            kind,
            ours: figure("uiw")?,
            raw: figure("raw")?,
            one_by_one: value["one_write_a_message"]["raw_messages_per_second"]["median"].as_f64(),
            mean: value["round_trip_us_mean"]["uiw"]["median"].as_f64(),
        })
    }

    /// Our figure.
    pub(crate) fn ours(&self) -> f64 {
        self.ours
    }

    /// Ours and raw TCP's figures.
    pub(crate) fn measured(&self) -> Vec<Measured> {
        let ours = self.ours;
        let mut all = vec![Measured { stack: UIW, value: ours, ours }];
        let raw = match self.kind {
            Kind::Throughput => "raw TCP, large writes",
            Kind::RoundTrip => "raw TCP",
        };
        all.push(Measured { stack: raw, value: self.raw, ours });
        all.extend(self.one_by_one.map(|value| Measured { stack: "raw TCP, one by one", value, ours }));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_those_of_the_sorted_values() {
        let spread = Spread::of(vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!(spread, Spread { median: 3.0, q1: 2.0, q3: 4.0 });
        assert_eq!(Spread::of(vec![1.0, 3.0]), Spread { median: 2.0, q1: 1.5, q3: 2.5 });
    }

    #[test]
    fn above_one_is_ahead_for_rates_and_for_times() {
        for (kind, ahead) in [(Kind::Throughput, 0.5), (Kind::RoundTrip, 2.0)] {
            let measured = |stack, value| Measured { stack, value, ours: 10.0 };
            let rounds = vec![vec![measured("other", 20.0), measured(UIW, 10.0)]];
            let lines = Row { name: String::new(), kind, size: 64, rounds }.lines();
            assert_eq!((lines[0].stack, lines[0].ahead), (UIW, None));
            assert_eq!(lines[1].ahead.unwrap().median, ahead);
        }
    }

    #[test]
    fn a_comparison_is_read() {
        let said =
            r#"{"mode":"throughput","bytes_per_second":{"uiw":{"median":6400.0},"raw":{"median":64000.0}},
            "one_write_a_message":{"raw_messages_per_second":{"median":25.0}},"noise":{"median":1.01}}"#
                .replace('\n', "");
        let slice = Slice::read(&format!("a line of something else\n{said}\n"), 64).unwrap();
        assert_eq!((slice.ours, slice.raw, slice.one_by_one), (100.0, 1000.0, Some(25.0)));
        assert_eq!(slice.measured().len(), 3);
        assert_eq!(Slice::read("no JSON", 64), None);
    }
}
