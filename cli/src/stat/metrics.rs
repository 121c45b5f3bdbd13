//! Counters in the text format of Prometheus, version 0.0.4.

use super::collect::{CollectedDevices, tcp_info};
use std::fmt::Write as _;
use uiw::counters::{
    ConnectionCounters, Count, Datagrams, Directions, ShardCounts, Snapshot, TerminateCount,
    Transfers,
};
use uiw_llp::canonical;

/// A metric with its samples, which the format requires to be adjacent.
struct MetricFamily {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Labels and values.
    samples: Vec<(String, f64)>,
}

/// All metrics, in the order of their first use.
#[derive(Default)]
struct MetricList(Vec<MetricFamily>);

impl MetricList {
    fn add(
        &mut self,
        (name, kind, help): (&'static str, &'static str, &'static str),
        labels: String,
        value: f64,
    ) {
        let at = self.0.iter().position(|metric| metric.name == name).unwrap_or_else(|| {
            self.0.push(MetricFamily { name, kind, help, samples: Vec::new() });
            self.0.len() - 1
        });
        self.0[at].samples.push((labels, value));
    }

    fn add_counter(&mut self, name: &'static str, help: &'static str, labels: String, value: u64) {
        self.add((name, "counter", help), labels, value as f64);
    }

    fn add_traffic(
        &mut self,
        [messages, bytes]: [(&'static str, &'static str); 2],
        labels: &str,
        moved: Directions,
    ) {
        for (direction, Count { messages: whole, bytes: payload }) in
            [("sent", moved.sent), ("received", moved.received)]
        {
            let labels = format!("{labels},direction=\"{direction}\"");
            self.add_counter(messages.0, messages.1, labels.clone(), whole);
            self.add_counter(bytes.0, bytes.1, labels, payload);
        }
    }

    /// Adds all metrics of one device of a program, with the labels `of`.
    fn add_snapshot(&mut self, of: &str, snapshot: &Snapshot) {
        let process = &snapshot.process;
        let (help, opened) = ("Device handles opened.", process.devices_opened);
        self.add_counter("uiw_devices_opened_total", help, of.to_owned(), opened);
        let (help, created) = ("Queue pairs created.", process.queue_pairs_created);
        self.add_counter("uiw_queue_pairs_created_total", help, of.to_owned(), created);
        self.add_transfers(of, &snapshot.transfers);
        for shard in &snapshot.shards {
            let of = format!("{of},shard=\"{}\"", shard.index);
            self.add_shard(&of, shard);
            self.add_datagrams(&of, &shard.datagrams);
            self.add_terminates(&of, &shard.terminates);
        }
        for pair in &snapshot.datagram_queue_pairs {
            let of = format!(
                "{of},shard=\"{}\",queue_pair=\"{:#08x}\",local=\"{}\"",
                pair.shard, pair.qp_num, pair.local
            );
            self.add_traffic(QUEUE_PAIR_DATAGRAMS, &of, pair.datagrams.traffic);
        }
        for connection in &snapshot.connections {
            self.add_connection(of, connection);
        }
    }

    /// Adds the transfers of `uiw cp`, if there were any.
    fn add_transfers(&mut self, of: &str, transfers: &Transfers) {
        if *transfers == Transfers::default() {
            return;
        }
        for (direction, counts) in transfers.named() {
            let of = format!("{of},direction=\"{direction}\"");
            for (result, count) in counts.results() {
                let labels = format!("{of},result=\"{result}\"");
                let help = "Transfers of `uiw cp` that have ended, by direction and result.";
                self.add_counter("uiw_transfers_total", help, labels, count);
            }
            let help = "Files and symbolic links of transfers that have ended.";
            self.add_counter("uiw_transfer_files_total", help, of.clone(), counts.files);
            let help = "Bytes of files that went over connections of transfers that have ended.";
            self.add_counter("uiw_transfer_bytes_total", help, of, counts.bytes);
        }
    }

    fn add_shard(&mut self, of: &str, shard: &ShardCounts) {
        for (operation, moved) in shard.traffic.named() {
            self.add_traffic(TRAFFIC, &format!("{of},operation=\"{operation}\""), moved);
        }
        for (wait, count) in [
            ("credit", shard.waits.credit),
            ("receive", shard.waits.receive),
            ("memory", shard.waits.memory),
        ] {
            let labels = format!("{of},wait=\"{wait}\"");
            let help = "How often connections waited, by what for.";
            self.add_counter("uiw_waits_total", help, labels, count);
        }
        let held = ("uiw_held_bytes", "gauge", "Bytes kept against the receive memory budget.");
        self.add(held, of.to_owned(), shard.held_bytes as f64);
        for (name, help, count) in [
            ("uiw_accepted_total", "Peers whose TCP connection was accepted.", shard.accepted),
            (
                "uiw_established_total",
                "Connections that entered Full Operation.",
                shard.established,
            ),
            ("uiw_ended_total", "Established connections that are over.", shard.ended),
            (
                "uiw_failed_startups_total",
                "Connections that ended in start-up.",
                shard.failed_startups,
            ),
            ("uiw_crc_errors_total", "FPDUs with a wrong CRC.", shard.crc_errors),
        ] {
            self.add_counter(name, help, of.to_owned(), count);
        }
        for (reason, count) in [
            ("set_up_limit", shard.refused_set_up_limit),
            ("keys", shard.refused_keys),
            ("system", shard.refused_system),
            ("program", shard.refused_program),
        ] {
            let labels = format!("{of},reason=\"{reason}\"");
            let help = "Peers that were not connected, by reason.";
            self.add_counter("uiw_refused_total", help, labels, count);
        }
    }

    fn add_datagrams(&mut self, of: &str, datagrams: &Datagrams) {
        self.add_traffic(DATAGRAMS, of, datagrams.traffic);
        for (reason, count) in datagrams.dropped() {
            let help = "Datagrams that arrived and were not passed on, by cause.";
            let labels = format!("{of},reason=\"{reason}\"");
            self.add_counter("uiw_datagrams_dropped_total", help, labels, count);
        }
        let help = "Sends of UD queue pairs whose datagram UDP refused.";
        self.add_counter("uiw_datagrams_unsent_total", help, of.to_owned(), datagrams.unsent);
    }

    fn add_terminates(&mut self, of: &str, terminates: &[TerminateCount]) {
        for count in terminates {
            let code = match count.code {
                Some((layer, etype, code)) => format!("{layer:x}/{etype:x}/{code:02x}"),
                None => "other".to_owned(),
            };
            for (direction, count) in [("sent", count.sent), ("received", count.received)] {
                let labels = format!("{of},code=\"{code}\",direction=\"{direction}\"");
                let help = "Terminates, by layer, error type and code of RFC 5040.";
                self.add_counter("uiw_terminates_total", help, labels, count);
            }
        }
    }

    fn add_connection(&mut self, of: &str, connection: &ConnectionCounters) {
        let of = format!(
            "{of},shard=\"{}\",queue_pair=\"{:#08x}\",local=\"{}\",peer=\"{}\"",
            connection.shard,
            connection.qp_num,
            canonical(connection.local),
            canonical(connection.peer)
        );
        self.add_traffic(CONNECTION_TRAFFIC, &of, connection.traffic.total());
        let Some(tcp) = tcp_info(connection) else { return };
        if let Some(rtt) = tcp.rtt_us {
            let metric =
                ("uiw_connection_rtt_seconds", "gauge", "Smoothed round-trip time of TCP.");
            self.add(metric, of.clone(), f64::from(rtt) / 1e6);
        }
        if let Some(count) = tcp.retransmits {
            let help = "TCP segments sent again.";
            self.add_counter("uiw_connection_retransmits_total", help, of, count.into());
        }
    }

    fn into_text(self) -> String {
        self.0.iter().fold(String::new(), |mut text, metric| {
            let MetricFamily { name, kind, help, samples } = metric;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
            text
        })
    }
}

const TRAFFIC: [(&str, &str); 2] = [
    (
        "uiw_messages_total",
        "Whole messages, by operation and the direction in which their payload travels.",
    ),
    ("uiw_bytes_total", "Bytes of payload, by operation and the direction in which they travel."),
];
const CONNECTION_TRAFFIC: [(&str, &str); 2] = [
    ("uiw_connection_messages_total", "Whole messages of an open connection."),
    ("uiw_connection_bytes_total", "Bytes of payload of an open connection."),
];

const DATAGRAMS: [(&str, &str); 2] = [
    ("uiw_datagram_messages_total", "Messages of UD queue pairs."),
    ("uiw_datagram_bytes_total", "Bytes of payload of UD queue pairs."),
];
const QUEUE_PAIR_DATAGRAMS: [(&str, &str); 2] = [
    ("uiw_datagram_queue_pair_messages_total", "Messages of a living UD queue pair."),
    ("uiw_datagram_queue_pair_bytes_total", "Bytes of payload of a living UD queue pair."),
];

/// Formats the counters of every device of every running program.
pub(super) fn format(collected: &CollectedDevices) -> String {
    let mut all = MetricList::default();
    for process in &collected.processes {
        let about = &process.snapshot.process;
        let Some(pid) = process.pid.or(process.is_elsewhere.then_some(about.pid)) else { continue };
        // The name of the file distinguishes several devices of a program, and equal process
        // numbers of other PID namespaces.
        let device = process.file.name().split('.').next().unwrap_or_default();
        let of = format!("pid=\"{pid}\",name={},device={}", quoted(&about.name), quoted(device));
        all.add_snapshot(&of, &process.snapshot);
    }
    all.into_text()
}

/// Returns the quoted value of a label.
fn quoted(value: &str) -> String {
    let escaped = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_quoted() {
        assert_eq!(quoted("a\"b\\c\nd"), r#""a\"b\\c\nd""#);
    }

    #[test]
    fn samples_of_a_metric_stand_together() {
        let mut all = MetricList::default();
        all.add_counter("a", "A.", "x=\"1\"".to_owned(), 1);
        all.add_counter("b", "B.", "x=\"1\"".to_owned(), 2);
        all.add_counter("a", "A.", "x=\"2\"".to_owned(), 3);
        let names: Vec<_> =
            all.0.iter().map(|metric| (metric.name, metric.samples.len())).collect();
        assert_eq!(names, [("a", 2), ("b", 1)]);
    }
}
