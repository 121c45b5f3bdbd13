//! Output of results as text and as JSON.

use super::compare::{Comparison, CpuCost, Quartiles, us_at};
use super::plan::MeasurementPlan;
use super::run::PerfOutcome;
use crate::shared::text;
use serde_json::{Value, json};
use uiw_llp::Multipath;

/// Returns the settings and path properties that are needed to interpret a figure.
fn context(plan: &MeasurementPlan, outcome: &PerfOutcome) -> Value {
    let mut value = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "peer": outcome.peer.to_string(),
        "op": plan.op,
        "size": plan.size,
        "connections": plan.connections,
        "bidirectional": plan.bidirectional,
        "depth": plan.depth,
        "chain": plan.chain,
        "signal_every": plan.signal_every,
        "wait": plan.wait,
        "validated": plan.validate,
        "crc": plan.peer_options.crc,
        "markers": plan.peer_options.markers,
        "fpdu": plan.peer_options.fpdu.to_string(),
        "stable_tx": plan.peer_options.stable_tx,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": kernel(),
    });
    if let Some(path) = &outcome.path {
        value["emss"] = path.emss.into();
        value["path_mtu"] = path.stream.path_mtu.into();
        value["fpdu_bytes"] = uiw_mpa::fpdu_len(path.max_ulpdu).into();
        value["congestion"] = path.stream.congestion.clone().into();
        value["retransmits"] = path.stream.retransmits.into();
        value["uiw_peer"] = path.uiw_peer.into();
        match path.stream.multipath {
            Some(Multipath::Subflows(count)) => value["subflows"] = count.into(),
            Some(Multipath::Fallback) => value["subflows"] = 0.into(),
            None => {}
        }
    }
    value
}

/// Returns the line above a table, with the settings of the measurement.
pub(crate) fn heading(plan: &MeasurementPlan, outcome: &PerfOutcome) -> String {
    let on = |on: bool| if on { "on" } else { "off" };
    let path = outcome.path.as_ref().map_or_else(String::new, |path| {
        let mtu = path.stream.path_mtu.map_or_else(|| "?".to_owned(), |mtu| mtu.to_string());
        format!(
            ", MTU {mtu}, EMSS {}, FPDU up to {}, {}",
            path.emss,
            uiw_mpa::fpdu_len(path.max_ulpdu),
            path.stream.congestion.as_deref().unwrap_or("?"),
        ) + &path.stream.multipath.map_or_else(String::new, |multipath| format!(", {multipath}"))
    });
    format!(
        "{} to {}: CRC {}, Markers {}{path}; {} cores, Linux {}",
        title(plan),
        outcome.peer,
        on(plan.peer_options.crc),
        on(plan.peer_options.markers),
        std::thread::available_parallelism().map_or(0, usize::from),
        kernel(),
    )
}

/// Returns the name of the measured operation.
fn title(plan: &MeasurementPlan) -> String {
    if plan.bidirectional { format!("{} both ways", plan.op) } else { plan.op.to_string() }
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "?".to_owned(), |text| text.trim().to_owned())
}

/// Returns the line with the names of the columns.
pub(crate) fn columns(plan: &MeasurementPlan) -> String {
    if plan.latency {
        format!(
            "{:>9} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "bytes", "rounds", "min us", "avg", "p50", "p90", "p99", "p99.9", "max"
        )
    } else {
        format!(
            "{:>9} {:>12} {:>12} {:>13} {:>11} {:>11}",
            "bytes", "messages", "throughput", "messages/s", "cpu ns/byte", "at server"
        )
    }
}

/// Returns one line of the table.
pub(crate) fn row(plan: &MeasurementPlan, outcome: &PerfOutcome) -> String {
    if let Some(histogram) = &outcome.round_trips {
        let us = |quantile| us_at(histogram, quantile);
        return format!(
            "{:>9} {:>10} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
            plan.size,
            histogram.len(),
            us(0.0),
            histogram.mean() / 1e3,
            us(0.5),
            us(0.9),
            us(0.99),
            us(0.999),
            us(1.0),
        );
    }
    let bytes = outcome.bytes.max(1) as f64;
    format!(
        "{:>9} {:>12} {:>12} {:>13} {:>11.3} {:>11.3}",
        plan.size,
        text::grouped(outcome.messages),
        text::rate(outcome.rate()),
        text::grouped((outcome.messages as f64 / outcome.seconds) as u64),
        outcome.cpu_client_ns as f64 / bytes,
        outcome.cpu_server_ns as f64 / bytes,
    )
}

/// Returns the JSON object of a result.
pub(crate) fn result(plan: &MeasurementPlan, outcome: &PerfOutcome) -> Value {
    let mut value = context(plan, outcome);
    value["type"] = "result".into();
    value["mode"] = if plan.latency { "latency" } else { "throughput" }.into();
    value["messages"] = outcome.messages.into();
    value["bytes"] = outcome.bytes.into();
    if let Some(by_server) = outcome.by_server {
        value["messages_by"] = json!({"client": outcome.messages - by_server, "server": by_server});
    }
    value["seconds"] = outcome.seconds.into();
    let bytes = outcome.bytes.max(1) as f64;
    value["cpu_ns_per_byte"] = json!({
        "client": outcome.cpu_client_ns as f64 / bytes,
        "server": outcome.cpu_server_ns as f64 / bytes,
    });
    match &outcome.round_trips {
        Some(histogram) => {
            let us = |quantile| us_at(histogram, quantile);
            value["round_trip_us"] = json!({
                "min": us(0.0), "avg": histogram.mean() / 1e3, "p50": us(0.5), "p90": us(0.9), "p99": us(0.99),
                "p99_9": us(0.999), "max": us(1.0),
            });
        }
        None => {
            value["bytes_per_second"] = outcome.rate().into();
            value["messages_per_second"] = (outcome.messages as f64 / outcome.seconds).into();
        }
    }
    value
}

fn quartiles(quartiles: &Quartiles) -> Value {
    json!({"median": quartiles.median, "q1": quartiles.q1, "q3": quartiles.q3})
}

fn costs(cpu: &CpuCost) -> Value {
    json!({"client": cpu.client, "server": cpu.server})
}

/// Returns the JSON object of a comparison.
pub(crate) fn comparison(plan: &MeasurementPlan, comparison: &Comparison) -> Value {
    let mut value = context(plan, &comparison.last);
    value["type"] = "comparison".into();
    value["mode"] = if plan.latency { "latency" } else { "throughput" }.into();
    value["slices"] = comparison.slices.into();
    value["slice_seconds"] = comparison.slice_seconds.into();
    value["raw_size"] = comparison.raw_size.into();
    let (unit, cpu_unit) = if plan.latency {
        ("round_trip_us_p50", "cpu_ns_per_round_trip")
    } else {
        ("bytes_per_second", "cpu_ns_per_byte")
    };
    value[unit] = json!({"uiw": quartiles(&comparison.ours), "raw": quartiles(&comparison.raw)});
    value["ratio_of"] = format!("{unit}, uiw / raw").into();
    value["ratio"] = quartiles(&comparison.ratio);
    value["noise"] = quartiles(&comparison.noise);
    if let Some(one) = &comparison.one_by_one {
        value["one_write_a_message"] = json!({
            "raw_size": one.size, "raw_messages_per_second": quartiles(&one.raw), "ratio": quartiles(&one.ratio),
        });
    }
    if let Some((ours, raw)) = &comparison.p99 {
        value["round_trip_us_p99"] = json!({"uiw": quartiles(ours), "raw": quartiles(raw)});
    }
    if let Some((ours, raw)) = &comparison.mean {
        value["round_trip_us_mean"] = json!({"uiw": quartiles(ours), "raw": quartiles(raw)});
    }
    value[cpu_unit] =
        json!({"uiw": costs(&comparison.cpu_ours), "raw": costs(&comparison.cpu_raw)});
    value
}

/// Returns the lines of text of a comparison.
pub(crate) fn comparison_lines(plan: &MeasurementPlan, comparison: &Comparison) -> Vec<String> {
    let Comparison { ours, raw, ratio, noise, cpu_ours, cpu_raw, .. } = comparison;
    let figure = |quartiles: &Quartiles| {
        if plan.latency { text::micros(quartiles.median) } else { text::rate(quartiles.median) }
    };
    let unit = if plan.latency { "round trip" } else { "byte" };
    let better = if plan.latency { "less is better" } else { "more is better" };
    let line = |name: String, quartiles: &Quartiles, cpu: &CpuCost| {
        format!(
            "  {name:<34} {:>12}   cpu {:.3} ns a {unit} here, {:.3} at the server",
            figure(quartiles),
            cpu.client,
            cpu.server
        )
    };
    let of = |quartiles: &Quartiles| {
        format!("{:.3} (quartiles {:.3} to {:.3})", quartiles.median, quartiles.q1, quartiles.q3)
    };
    let mut lines = vec![
        format!(
            "{} slices of {} s each, every one on a new connection, medians:",
            comparison.slices, comparison.slice_seconds
        ),
        line(format!("uiw {}, {} bytes", title(plan), plan.size), ours, cpu_ours),
        line(format!("raw TCP, {} bytes a call", comparison.raw_size), raw, cpu_raw),
        format!("  ratio uiw / raw ({better})     {}", of(ratio)),
        format!("  noise raw / raw                    {}", of(noise)),
    ];
    if let Some(one) = &comparison.one_by_one {
        let messages = text::grouped(one.raw.median as u64);
        lines
            .push(format!("  raw TCP, {} bytes a write         {messages:>12} a second", one.size));
        lines.push(format!("  ratio of messages, uiw / that      {}", of(&one.ratio)));
    }
    if let Some((ours, raw)) = &comparison.p99 {
        let (ours, raw) = (text::micros(ours.median), text::micros(raw.median));
        lines.push(format!("  99th percentile                    {ours} beside {raw} of raw TCP"));
    }
    lines
}
