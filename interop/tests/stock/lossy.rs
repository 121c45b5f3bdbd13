//! Path between server and client on which `uiw wan` loses, duplicates and reorders frames.

use crate::reported::{number, unreliable_messages};
use serde_json::Value;
use std::process::Command;
use uiw_interop::stock::{Network, Running, uiw};

/// Emulator between the ends of [`Network::path`].
pub(crate) struct LossyPath(Running);

impl LossyPath {
    /// Starts an emulator that loses 1 % of the frames, duplicates 0.5 % and reorders 0.5 %.
    pub(crate) fn start(network: &Network) -> Self {
        let mut command = Command::new(uiw());
        command.args(["wan", "server", "client", "--json", "--seed", "7"]);
        command.args(["--loss", "1%", "--duplicate", "0.5%", "--reorder", "0.5%"]);
        let mut wan = Running::start(network.middle(command));
        wan.wait_saying("carrying");
        Self(wan)
    }

    /// Stops the emulator, and asserts that at least 0.5 % of the datagrams were lost according to
    /// its own counters and to the reports of both ends, and that some were duplicated and some
    /// reordered.
    #[track_caller]
    pub(crate) fn has_lost_datagrams(self, reports: &[Value; 2]) {
        let ended = self.0.interrupt();
        let statistics = ended.well().said.lines().last().expect("statistics");
        let statistics: Value = serde_json::from_str(statistics).expect("JSON");
        let sum = |name: &str| {
            number(&statistics["ways"][0], name) + number(&statistics["ways"][1], name)
        };
        assert!(sum("lost") as f64 >= 0.005 * sum("frames") as f64, "{statistics}");
        assert!(sum("duplicated") > 0 && sum("reordered") > 0, "{statistics}");
        let of_both =
            |way: &str| reports.iter().map(|report| unreliable_messages(report, way)).sum::<u64>();
        let (sent, received) = (of_both("sent"), of_both("received"));
        // A duplicated datagram is received twice.
        let lost = (sent + sum("duplicated")).saturating_sub(received);
        assert!(lost as f64 >= 0.005 * sent as f64, "{lost} of {sent} datagrams lost: {reports:?}");
    }
}
