//! Output of the counters of a process as text and as JSON.

use super::ProgramDevice;
use super::collect::tcp_info;
use crate::shared::text;
use crate::shared::text::{grouped, number};
use serde_json::{Value, json};
use std::time::Duration;
use uiw::counters::{
    ConnectionCounters, Count, DatagramQueuePair, Datagrams, Directions, Operations, ShardCounts,
    Snapshot, TerminateCount, TransferCounts, WaitCounts,
};
use uiw_copy::names::EscapedName;
use uiw_llp::canonical;

/// Bytes per second, sent and received.
type Rates = (f64, f64);

/// Returns the rates since an earlier time, or `None` if there is no earlier time.
fn rates(now: &Operations, before: Option<(Duration, Operations)>) -> Option<Rates> {
    let (time, before) = before?;
    let seconds = time.as_secs_f64();
    let moved = now.since(&before).total();
    (seconds > 0.0)
        .then(|| (moved.sent.bytes as f64 / seconds, moved.received.bytes as f64 / seconds))
}

/// Like [`rates`], for datagrams.
fn datagram_rates(now: &Datagrams, before: Option<(Duration, Datagrams)>) -> Option<Rates> {
    let (time, before) = before?;
    let seconds = time.as_secs_f64();
    let rate = |now: Count, before: Count| now.bytes.saturating_sub(before.bytes) as f64 / seconds;
    let (now, before) = (now.traffic, before.traffic);
    (seconds > 0.0).then(|| (rate(now.sent, before.sent), rate(now.received, before.received)))
}

fn queue_pair_rates(
    pair: &DatagramQueuePair,
    before: Option<(Duration, &Snapshot)>,
) -> Option<Rates> {
    let before = before.map(|(time, before)| {
        let id = |it: &DatagramQueuePair| (it.shard, it.qp_num, it.began_ns);
        let then = before.datagram_queue_pairs.iter().find(|other| id(other) == id(pair));
        (time, then.map(|then| then.datagrams).unwrap_or_default())
    });
    datagram_rates(&pair.datagrams, before)
}

/// Finds the same connection in an earlier snapshot.
fn find_earlier<'a>(
    before: &'a Snapshot,
    now: &ConnectionCounters,
) -> Option<&'a ConnectionCounters> {
    let id = |it: &ConnectionCounters| (it.shard, it.began_ns, it.local, it.peer);
    before.connections.iter().find(|connection| id(connection) == id(now))
}

fn connection_rates(
    connection: &ConnectionCounters,
    before: Option<(Duration, &Snapshot)>,
) -> Option<Rates> {
    let before = before.map(|(time, before)| {
        // A connection that began after the earlier snapshot counts from zero.
        let then = find_earlier(before, connection).map(|then| then.traffic).unwrap_or_default();
        (time, then)
    });
    rates(&connection.traffic, before)
}

/// Prints the counters as text.
pub(super) fn print_text(process: &ProgramDevice, before: Option<(Duration, &Snapshot)>) {
    let snapshot = &process.snapshot;
    let total = snapshot.total();
    let about = &snapshot.process;
    let name = match process.pid {
        Some(pid) => format!("{pid} {}", about.name),
        None if process.is_elsewhere => {
            format!("{} {} (in another PID namespace)", about.pid, about.name)
        }
        None => format!("{} {} (ended)", about.pid, about.name),
    };
    let mut connections = number(total.established, "connection");
    if process.is_running() {
        let open = grouped(total.established - total.ended.min(total.established));
        connections = format!("{open} of {connections} open");
    }
    text::line(format!(
        "{name}: {}, {}, {connections}; {}",
        number(about.devices_opened, "device"),
        number(about.queue_pairs_created, "queue pair"),
        about.library,
    ));
    if !about.command.is_empty() {
        text::line(format!("  {}", EscapedName(about.command.as_bytes())));
    }
    let rates = rates(&total.traffic, before.map(|(time, before)| (time, before.total().traffic)));
    text::line(format!("  {}", directions(total.traffic.total(), rates)));
    for (name, moved) in total.traffic.named() {
        if moved != Directions::default() {
            text::line(format!("  {name:6} {}", directions(moved, None)));
        }
    }
    let datagrams = &total.datagrams;
    if datagrams.traffic != Directions::default() {
        let rates = datagram_rates(
            datagrams,
            before.map(|(time, before)| (time, before.total().datagrams)),
        );
        text::line(format!("  datagrams: {}", directions(datagrams.traffic, rates)));
    }
    if let Some(line) = not_passed_on(datagrams) {
        text::line(format!("  datagrams: {line}"));
    }
    for line in snapshot.transfers.named().into_iter().filter_map(transfers) {
        text::line(format!("  {line}"));
    }
    for line in trouble_lines(&total) {
        text::line(format!("  {line}"));
    }
    for pair in &snapshot.datagram_queue_pairs {
        text::line(format!(
            "  qp {:#08x} {} datagrams, shard {}",
            pair.qp_num, pair.local, pair.shard
        ));
        text::line(format!(
            "    {}",
            directions(pair.datagrams.traffic, queue_pair_rates(pair, before))
        ));
        if let Some(line) = not_passed_on(&pair.datagrams) {
            text::line(format!("    {line}"));
        }
    }
    for connection in &snapshot.connections {
        print_connection(connection, connection_rates(connection, before));
    }
}

fn print_connection(connection: &ConnectionCounters, rates: Option<Rates>) {
    let arrow = if connection.initiator { "->" } else { "<-" };
    text::line(format!(
        "  qp {:#08x} {} {arrow} {}, shard {}{}",
        connection.qp_num,
        canonical(connection.local),
        canonical(connection.peer),
        connection.shard,
        if connection.same_device { ", within the device" } else { "" },
    ));
    text::line(format!("    {}", directions(connection.traffic.total(), rates)));
    let mut line = Vec::new();
    if let Some(tcp) = tcp_info(connection) {
        line.extend(tcp.rtt_us.map(|rtt| format!("round trip {}", text::micros(rtt.into()))));
        line.extend(
            tcp.retransmits
                .map(|count| format!("retransmitted {}", number(count.into(), "segment"))),
        );
        line.extend(tcp.cwnd.map(|window| format!("window {}", number(window.into(), "segment"))));
        line.extend(tcp.congestion);
    }
    line.extend(waits(&connection.waits));
    if connection.held_bytes > 0 {
        line.push(format!("{} bytes held", grouped(connection.held_bytes)));
    }
    if !line.is_empty() {
        text::line(format!("    {}", line.join(", ")));
    }
}

fn directions(moved: Directions, rates: Option<Rates>) -> String {
    let one = |what: &str, count: Count, rate: Option<f64>| {
        let rate = rate.map(|rate| format!(" ({})", text::rate(rate))).unwrap_or_default();
        format!(
            "{what} {} in {}{rate}",
            number(count.bytes, "byte"),
            number(count.messages, "message")
        )
    };
    let sent = one("sent", moved.sent, rates.map(|(sent, _)| sent));
    format!("{sent}, {}", one("received", moved.received, rates.map(|(_, received)| received)))
}

/// Returns the line about transfers of `uiw cp` in one direction, if there were any.
fn transfers((direction, counts): (&str, TransferCounts)) -> Option<String> {
    let results: Vec<_> = counts
        .results()
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(result, count)| format!("{} {result}", grouped(*count)))
        .collect();
    let (files, bytes) = (number(counts.files, "file"), number(counts.bytes, "byte"));
    (!results.is_empty()).then(|| format!("{direction}s: {}; {files}, {bytes}", results.join(", ")))
}

fn waits(waits: &WaitCounts) -> Option<String> {
    let all = [(waits.credit, "credit"), (waits.receive, "a receive"), (waits.memory, "memory")];
    let some: Vec<_> = all
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} for {what}"))
        .collect();
    (!some.is_empty()).then(|| format!("waited {}", some.join(", ")))
}

/// Returns the numbers of datagrams dropped, by cause, and of those that UDP refused.
fn not_passed_on(datagrams: &Datagrams) -> Option<String> {
    let dropped = datagrams.dropped();
    let parts = dropped.iter().filter(|(_, count)| *count > 0);
    let mut parts: Vec<_> = parts
        .map(|(why, count)| format!("{} {}", grouped(*count), why.replace('_', " ")))
        .collect();
    if datagrams.unsent > 0 {
        parts.push(format!("{} not sent", grouped(datagrams.unsent)));
    }
    (!parts.is_empty()).then(|| format!("dropped {}", parts.join(", ")))
}

/// Returns lines about waits, refusals and errors, for counters that are not zero.
fn trouble_lines(total: &ShardCounts) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(waits(&total.waits));
    let refused = [
        (total.refused_set_up_limit, "by the limit of connections in set-up"),
        (total.refused_keys, "without a memory key"),
        (total.refused_system, "by the system"),
        (total.refused_program, "by the program"),
    ];
    for (count, why) in refused {
        if count > 0 {
            lines.push(format!("{} refused {why}", number(count, "peer")));
        }
    }
    if total.failed_startups > 0 {
        lines.push(format!("{} failed in start-up", number(total.failed_startups, "connection")));
    }
    if total.crc_errors > 0 {
        lines.push(format!("{} with a wrong CRC", number(total.crc_errors, "FPDU")));
    }
    for count in &total.terminates {
        let (sent, received) = (grouped(count.sent), grouped(count.received));
        lines.push(format!("Terminate {}: {sent} sent, {received} received", code(count)));
    }
    if total.held_bytes > 0 {
        lines.push(format!("{} bytes held", grouped(total.held_bytes)));
    }
    lines
}

/// Formats layer, error type and code as in RFC 5040.
fn code(count: &TerminateCount) -> String {
    match count.code {
        Some((layer, etype, code)) => format!("{layer:x}/{etype:x}/{code:02x}"),
        None => "of other codes".to_owned(),
    }
}

/// Prints the counters as one JSON object.
pub(super) fn print_json(process: &ProgramDevice, before: Option<(Duration, &Snapshot)>) {
    let snapshot = &process.snapshot;
    let about = &snapshot.process;
    let total = snapshot.total();
    let rates = rates(&total.traffic, before.map(|(time, before)| (time, before.total().traffic)));
    let connections = snapshot.connections.iter().map(|connection| {
        let tcp = tcp_info(connection).map(|tcp| {
            json!({
                "rtt_us": tcp.rtt_us,
                "rtt_var_us": tcp.rtt_var_us,
                "retransmits": tcp.retransmits,
                "cwnd": tcp.cwnd,
                "unacked": tcp.unacked,
                "congestion": tcp.congestion,
            })
        });
        json!({
            "shard": connection.shard,
            "queue_pair": connection.qp_num,
            "local": canonical(connection.local),
            "peer": canonical(connection.peer),
            "initiator": connection.initiator,
            "same_device": connection.same_device,
            "began_ns": connection.began_ns,
            "traffic": operations(&connection.traffic),
            "rates": rate_object(connection_rates(connection, before)),
            "waits": wait_object(&connection.waits),
            "held_bytes": connection.held_bytes,
            "tcp": tcp,
        })
    });
    let queue_pairs = snapshot.queue_pairs().into_iter().map(|pair| {
        json!({
            "queue_pair": pair.qp_num,
            "connections": pair.connections,
            "traffic": operations(&pair.traffic),
            "waits": wait_object(&pair.waits),
        })
    });
    let datagram_queue_pairs = snapshot.datagram_queue_pairs.iter().map(|pair| {
        json!({
            "shard": pair.shard,
            "queue_pair": pair.qp_num,
            "local": pair.local,
            "began_ns": pair.began_ns,
            "datagrams": datagrams(&pair.datagrams),
            "rates": rate_object(queue_pair_rates(pair, before)),
        })
    });
    let transfers = snapshot.transfers.named().into_iter().map(|(direction, counts)| {
        let mut object = json!({"files": counts.files, "bytes": counts.bytes});
        for (result, count) in counts.results() {
            object[result] = count.into();
        }
        (direction.to_owned(), object)
    });
    text::json(&json!({
        "type": "process",
        "pid": process.pid.unwrap_or(about.pid),
        "name": about.name,
        "running": process.is_running(),
        "library": about.library,
        "command": about.command,
        "began_ns": about.began_ns,
        "devices_opened": about.devices_opened,
        "queue_pairs_created": about.queue_pairs_created,
        "total": shard(&total),
        "with_others": operations(&snapshot.with_other_devices()),
        "rates": rate_object(rates),
        "transfers": Value::Object(transfers.collect()),
        "shards": snapshot.shards.iter().map(shard).collect::<Vec<_>>(),
        "queue_pairs": queue_pairs.collect::<Vec<_>>(),
        "connections": connections.collect::<Vec<_>>(),
        "datagram_queue_pairs": datagram_queue_pairs.collect::<Vec<_>>(),
    }));
}

fn rate_object(rates: Option<Rates>) -> Value {
    rates.map_or(Value::Null, |(sent, received)| json!({ "sent": sent, "received": received }))
}

fn wait_object(waits: &WaitCounts) -> Value {
    json!({ "credit": waits.credit, "receive": waits.receive, "memory": waits.memory })
}

fn both(moved: Directions) -> Value {
    let count = |count: Count| json!({ "messages": count.messages, "bytes": count.bytes });
    json!({ "sent": count(moved.sent), "received": count(moved.received) })
}

/// Returns the counters of datagrams as a JSON object.
pub(crate) fn datagrams(datagrams: &Datagrams) -> Value {
    let dropped = datagrams.dropped().map(|(why, count)| (why.to_owned(), count.into()));
    json!({
        "traffic": both(datagrams.traffic),
        "same_device": both(datagrams.same_device),
        "with_others": both(datagrams.with_other_devices()),
        "unsent": datagrams.unsent,
        "dropped": Value::Object(dropped.into_iter().collect()),
    })
}

/// Returns the traffic as a JSON object.
pub(crate) fn operations(traffic: &Operations) -> Value {
    let each = traffic.named().map(|(name, moved)| (name.to_owned(), both(moved)));
    Value::Object(each.into_iter().collect())
}

fn shard(counts: &ShardCounts) -> Value {
    let terminates = counts.terminates.iter().map(|count| {
        json!({
            "layer": count.code.map(|(layer, ..)| layer),
            "type": count.code.map(|(_, etype, _)| etype),
            "code": count.code.map(|(.., code)| code),
            "sent": count.sent,
            "received": count.received,
        })
    });
    json!({
        "shard": counts.index,
        "traffic": operations(&counts.traffic),
        "same_device": operations(&counts.same_device),
        "datagrams": datagrams(&counts.datagrams),
        "waits": wait_object(&counts.waits),
        "held_bytes": counts.held_bytes,
        "accepted": counts.accepted,
        "established": counts.established,
        "ended": counts.ended,
        "failed_startups": counts.failed_startups,
        "refused": {
            "set_up_limit": counts.refused_set_up_limit,
            "keys": counts.refused_keys,
            "system": counts.refused_system,
            "program": counts.refused_program,
        },
        "crc_errors": counts.crc_errors,
        "terminates": terminates.collect::<Vec<_>>(),
    })
}
