//! `uiw doctor`: checks which features of uiw work on this machine, says how to enable the others,
//! and whether a peer can be reached. It changes nothing.

mod checks;
mod preload;
mod sandbox;
mod startup;

use crate::shared::args::{ConnArgs, DEFAULT_PORT, bytes, resolve};
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::open::Opener;
use crate::shared::text;
use crate::wan::{rate, time};
use checks::{Check, CheckState};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use uiw_cli_sys::calls;

/// Text of `--help` after the options.
pub(crate) const HELP: &str = "\
Each line is a check: `ok`, `limited` (it works, but not as well as it could) or `no`, with a fix. Nothing is changed: no program is
attached, and no limit raised. Run it in the network namespace to be checked.

With HOST, a connection to an iWARP listener there is set up with the given options, and closed. If the start-up fails, the report names the kind of
peer that is suspected, and the option to try (docs/nics.md).

Exit codes:
  0  everything that --need names works, and HOST was reached
  1  something that --need names does not work, or HOST was not reached
  2  the command line is wrong";

/// Options of `uiw doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// iWARP listener to connect to
    #[arg(value_name = "HOST[:PORT]")]
    host: Option<String>,
    /// Bandwidth-delay product in bytes, such as 4M, for which the buffers should suffice
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with_all = ["rate", "rtt"])]
    bdp: Option<u32>,
    /// Instead of --bdp: bits per second of the path
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "10Gbit")]
    rate: u64,
    /// Instead of --bdp: round-trip time of the path
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1ms")]
    rtt: Duration,
    /// Stacks that must work: tcp, mptcp, packet, xdp; separate several with commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp")]
    need: Vec<StackRequirement>,
    /// Check whether this program would load uiw's libraries under `uiw run` [default: /bin/sh]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    conn: ConnArgs,
}

impl Args {
    /// Returns whether the command makes a connection.
    pub(crate) fn connects(&self) -> bool {
        self.host.is_some()
    }
}

/// A stack that must work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum StackRequirement {
    /// The kernel's TCP
    Tcp,
    /// The kernel's Multipath TCP
    Mptcp,
    /// smoltcp over AF_PACKET
    Packet,
    /// smoltcp over AF_XDP
    Xdp,
}

impl StackRequirement {
    fn check(self) -> &'static str {
        match self {
            Self::Tcp => checks::TCP,
            Self::Mptcp => checks::MPTCP,
            Self::Packet => checks::PACKET,
            Self::Xdp => checks::XDP,
        }
    }
}

/// Runs `uiw doctor`.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    let bdp = match args.bdp {
        Some(bytes) => u64::from(bytes),
        None => (args.rtt.as_secs_f64() * args.rate as f64 / 8.0).ceil() as u64,
    };
    // This check forks, so it must run before there are threads.
    let is_bpf_fatal = calls::is_bpf_fatal().unwrap_or(false);
    let sandbox = sandbox::run_checks(args.program.as_deref());
    let mut found = checks::run_checks(bdp, is_bpf_fatal);
    found.extend(sandbox);
    if let Some(host) = &args.host {
        found.push(match resolve(host, DEFAULT_PORT) {
            Ok(peer) => startup::check(opener, peer, &args.conn.peer_options().options()),
            Err(failure) => startup::failed(&failure).with_subject(host),
        });
    }
    if args.json {
        let as_json = |check: &Check| {
            json!({ "check": check.name, "of": check.subject, "state": check.state.word(), "says": check.says,
                    "fix": check.fix, "details": check.details })
        };
        let all: Vec<_> = found.iter().map(as_json).collect();
        text::json(&json!({ "bdp": bdp, "checks": all }));
    } else {
        for check in &found {
            let name = check.subject.as_ref().map_or_else(
                || check.name.to_owned(),
                |subject| format!("{} {subject}", check.name),
            );
            text::line(format!("{name:<28} {:<8} {}", check.state.word(), check.says));
            if let Some(fix) = &check.fix {
                text::line(format!("{:<28} {:<8} fix: {fix}", "", ""));
            }
        }
    }
    let names = args.need.iter().map(|need| need.check()).chain([startup::NAME]);
    for name in names {
        let is_it = |check: &&Check| check.name == name && check.state == CheckState::No;
        if let Some(check) =
            found.iter().find(|c| is_it(c) && (c.subject.is_none() || name == startup::NAME))
        {
            let fix = check.fix.clone().unwrap_or_else(|| "see `uiw doctor` for more".to_owned());
            return Err(Failure::new(Exit::Failed, check.name, &check.says, fix));
        }
    }
    Ok(())
}
