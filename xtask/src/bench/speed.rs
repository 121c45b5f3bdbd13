//! `uiw perf --compare` between two processes: alternating slices of ours and raw TCP.

use super::programs::{Lab, clean_command, figure, json_object, output};
use super::{RatioBar, RatioLine, RatioSpread, TableRow};
use serde_json::Value;
use uiw_siw::{Error, Result};

/// Figure to compare.
#[derive(Clone, Copy)]
enum ComparedFigure {
    Throughput,
    RoundTrip,
    /// Time of a round trip, and its 99th percentile, which has a bar of its own.
    RoundTripAndTail,
    /// Messages per second, compared with raw writes of the same size.
    Messages,
    /// Processor time per byte, for both ends together.
    Processor,
}

/// Returns the bar for processors with AVX-512, or that for all others.
fn bar(with_avx512: f64, without: f64) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        return with_avx512;
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = with_avx512;
    without
}

pub(super) fn rows() -> Vec<TableRow> {
    use ComparedFigure::{Messages, Processor, RoundTrip, RoundTripAndTail, Throughput};
    use RatioBar::{AtLeast, AtMost};
    [
        ("write 64000, CRC off", "--op write --size 64000 --crc off", Throughput, AtLeast(0.97)),
        ("write 1M, CRC off", "--op write --size 1M --crc off", Throughput, AtLeast(0.97)),
        ("write 64000", "--op write --size 64000", Throughput, AtLeast(bar(0.97, 0.88))),
        ("write 1M", "--op write --size 1M", Throughput, AtLeast(bar(1.00, 0.92))),
        ("send 64000", "--op send --size 64000", Throughput, AtLeast(bar(0.95, 0.85))),
        ("send 1M", "--op send --size 1M", Throughput, AtLeast(bar(0.97, 0.88))),
        ("read 64000", "--op read --size 64000", Throughput, AtLeast(bar(0.92, 0.78))),
        ("read 1M", "--op read --size 1M", Throughput, AtLeast(bar(0.92, 0.80))),
        ("write 4096", "--op write --size 4K", Throughput, AtLeast(bar(0.70, 0.65))),
        ("send 4096", "--op send --size 4K", Throughput, AtLeast(bar(0.70, 0.65))),
        ("read 4096", "--op read --size 4K", Throughput, AtLeast(bar(0.70, 0.65))),
        ("write 1M, stable_tx", "--op write --size 1M --stable-tx on", Throughput, AtLeast(0.80)),
        (
            "write 1M, FPDUs of 1,424 bytes",
            "--op write --size 1M --fpdu 1418",
            Throughput,
            AtLeast(bar(0.80, 0.70)),
        ),
        ("write 1M, Markers", "--op write --size 1M --markers on", Throughput, AtLeast(0.65)),
        (
            "write ping-pong, polling",
            "--op write --size 64 --latency",
            RoundTripAndTail,
            AtMost(bar(1.10, 1.12)),
        ),
        (
            "send ping-pong, polling",
            "--op send --size 64 --latency",
            RoundTripAndTail,
            AtMost(bar(1.10, 1.12)),
        ),
        (
            "send 4096 ping-pong",
            "--op send --size 4K --latency",
            RoundTrip,
            AtMost(bar(1.25, 1.30)),
        ),
        (
            "send 64K ping-pong",
            "--op send --size 64K --latency",
            RoundTrip,
            AtMost(bar(1.30, 1.40)),
        ),
        ("send 1M ping-pong", "--op send --size 1M --latency", RoundTrip, AtMost(1.10)),
        ("send ping-pong, asleep", "--op send --size 64 --latency --wait", RoundTrip, AtMost(1.15)),
        (
            "send ping-pong, own poll",
            "--op send --size 64 --latency --wait-descriptor",
            RoundTrip,
            AtMost(1.5),
        ),
        ("write 64 one by one", "--op write --size 64 --depth 512 --spin", Messages, AtLeast(20.0)),
        ("send 64 one by one", "--op send --size 64 --depth 512 --spin", Messages, AtLeast(20.0)),
        (
            "write 64 in chains of 16",
            "--op write --size 64 --depth 512 --chain 16 --spin",
            Messages,
            AtLeast(30.0),
        ),
        (
            "send 64 in chains of 16",
            "--op send --size 64 --depth 512 --chain 16 --spin",
            Messages,
            AtLeast(30.0),
        ),
        (
            "read 64, 128 outstanding",
            "--op read --size 64 --depth 128 --spin",
            Messages,
            AtLeast(8.0),
        ),
        ("fetch-add, 128 outstanding", "--op fetch-add --depth 128 --spin", Messages, AtLeast(8.0)),
        (
            "two directions, write 1M",
            "--op write --size 1M --bidirectional",
            Throughput,
            AtLeast(bar(0.92, 0.80)),
        ),
        ("processor time, write 1M", "--op write --size 1M", Processor, AtMost(bar(1.15, 1.25))),
    ]
    .into_iter()
    .map(|(name, args, figure, bar)| {
        TableRow::new(name, bar, move |lab| measure(lab, args, figure))
    })
    .collect()
}

fn measure(lab: &Lab, args: &str, figure: ComparedFigure) -> Result<Vec<RatioLine>> {
    let mut command = clean_command(lab.uiw()?);
    command.args(["perf", "--compare", "--json", "--slices", &lab.rounds.to_string()]);
    command.args(args.split_whitespace());
    command.args(lab.options.congestion.iter().flat_map(|name| ["--congestion", name]));
    let value = json_object(&output(&command)?)?;
    let mut lines = vec![read(figure, &value)?];
    if matches!(figure, ComparedFigure::RoundTripAndTail) {
        lines.push(tail(&value)?);
    }
    Ok(lines)
}

fn tail(value: &Value) -> Result<RatioLine> {
    let us = |who: &str| figure(value, &format!("/round_trip_us_p99/{who}/median"));
    let (ours, raw) = (us("uiw")?, us("raw")?);
    let note = format!("{ours:.1} beside {raw:.1} us");
    Ok(RatioLine::new("99th percentile, of raw TCP's", RatioSpread::new([ours / raw]), note)
        .bar(RatioBar::AtMost(1.3)))
}

fn read(kind: ComparedFigure, value: &Value) -> Result<RatioLine> {
    let of = |path: &str| figure(value, path);
    let (what, ratio, note) = match kind {
        ComparedFigure::Throughput => {
            let rate =
                |who: &str| of(&format!("/bytes_per_second/{who}/median")).map(|rate| rate / 1e9);
            ("of raw TCP", "/ratio", format!("{:.2} beside {:.2} GB/s", rate("uiw")?, rate("raw")?))
        }
        ComparedFigure::RoundTrip | ComparedFigure::RoundTripAndTail => {
            let us = |part: &str, who: &str| of(&format!("/round_trip_us_{part}/{who}/median"));
            let ends =
                |part: &str| Ok(format!("{:.1} beside {:.1}", us(part, "uiw")?, us(part, "raw")?));
            (
                "of raw TCP",
                "/ratio",
                format!("{} us; 99th percentile {}", ends("p50")?, ends("p99")?),
            )
        }
        ComparedFigure::Messages => {
            let raw = of("/one_write_a_message/raw_messages_per_second/median")? / 1e6;
            let note = format!(
                "raw {raw:.2} million/s; {:.3} of raw TCP in large writes",
                of("/ratio/median")?
            );
            ("of raw writes", "/one_write_a_message/ratio", note)
        }
        ComparedFigure::Processor => {
            let end = |who: &str, end: &str| of(&format!("/cpu_ns_per_byte/{who}/{end}"));
            let cost = |who: &str| Ok::<_, Error>(end(who, "client")? + end(who, "server")?);
            let (ours, raw) = (cost("uiw")?, cost("raw")?);
            let note = format!("{ours:.3} beside {raw:.3} ns a byte");
            return Ok(RatioLine::new("of raw TCP", RatioSpread::new([ours / raw]), note)
                .noise(of("/noise/median")?));
        }
    };
    let part = |part: &str| of(&format!("{ratio}/{part}"));
    let spread = RatioSpread { median: part("median")?, q1: part("q1")?, q3: part("q3")? };
    Ok(RatioLine::new(what, spread, note).noise(of("/noise/median")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn comparison_read() {
        let spread =
            |median: f64| json!({"median": median, "q1": median - 0.1, "q3": median + 0.1});
        let value = json!({
            "bytes_per_second": {"uiw": {"median": 6.4e9}, "raw": {"median": 64e9}}, "ratio": spread(0.1), "noise": {"median": 1.01},
            "one_write_a_message": {"raw_messages_per_second": {"median": 25e6}, "ratio": spread(4.0)},
            "cpu_ns_per_byte": {"uiw": {"client": 1.0, "server": 2.0}, "raw": {"client": 0.5, "server": 0.5}},
        });
        let median =
            |figure| read(figure, &value).map(|line| (line.spread.median, line.noise)).unwrap();
        assert_eq!(median(ComparedFigure::Throughput), (0.1, Some(1.01)));
        assert_eq!(median(ComparedFigure::Messages), (4.0, Some(1.01)));
        assert_eq!(median(ComparedFigure::Processor), (3.0, Some(1.01)));
        assert!(read(ComparedFigure::RoundTrip, &value).is_err());
    }
}
