//! `uiw doctor`: what would run on this machine, and what to do for the rest, and whether a peer
//! can be reached. It changes nothing.

mod checks;
mod preload;
mod sandbox;
mod startup;

use crate::shared::args::{ConnArgs, DEFAULT_PORT, bytes, resolve};
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::open::Opener;
use crate::shared::text;
use crate::wan::{rate, time};
use checks::{Check, State};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use uiw_cli_sys::calls;

/// What `--help` says behind the options.
pub(crate) const HELP: &str = "\
Each line is a check: `ok`, `limited` (it runs, but not as well as it could) or `no`, with what to do. Nothing is changed: no program is
attached, no limit raised. Run it in the network namespace that is meant.

With HOST a connection to an iWARP listener there is set up, as the options have it, and closed: a start-up that fails is reported with the kind of
peer that is suspected and the option to try (docs/nics.md).

Exit codes:
  0  what --need names would run, and HOST was reached
  1  something that --need names would not run, or HOST was not reached
  2  the command line is wrong";

/// Options of `uiw doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// An iWARP listener to be reached
    #[arg(value_name = "HOST[:PORT]")]
    host: Option<String>,
    /// Bytes on their way at once (bandwidth-delay product), such as 4M, that buffers should hold
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with_all = ["rate", "rtt"])]
    bdp: Option<u32>,
    /// Instead: bits a second of the path ..
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "10Gbit")]
    rate: u64,
    /// .. and its round-trip time
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1ms")]
    rtt: Duration,
    /// What must run: tcp, mptcp, packet, xdp; several with commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp")]
    need: Vec<StackRequirement>,
    /// The program of which is said whether it would load uiw's libraries under `uiw run` [default:
    /// /bin/sh]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    conn: ConnArgs,
}

impl Args {
    /// Returns whether it makes a connection.
    pub(crate) fn connects(&self) -> bool {
        self.host.is_some()
    }
}

/// A stack.
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
    // Before there are threads.
    let is_bpf_fatal = calls::is_bpf_fatal().unwrap_or(false);
    let sandbox = sandbox::all(args.program.as_deref());
    let mut found = checks::all(bdp, is_bpf_fatal);
    found.extend(sandbox);
    if let Some(host) = &args.host {
        let peer = resolve(host, DEFAULT_PORT)?;
        found.push(startup::check(opener, peer, &args.conn.peer_options().options()));
    }
    if args.json {
        let as_json = |check: &Check| {
            json!({ "check": check.name, "of": check.of, "state": check.state.word(), "says": check.says,
                    "fix": check.fix, "details": check.details })
        };
        let all: Vec<_> = found.iter().map(as_json).collect();
        text::json(&json!({ "bdp": bdp, "checks": all }));
    } else {
        for check in &found {
            let name =
                check.of.as_ref().map_or_else(|| check.name.to_owned(), |of| format!("{} {of}", check.name));
            text::line(format!("{name:<28} {:<8} {}", check.state.word(), check.says));
            if let Some(fix) = &check.fix {
                text::line(format!("{:<28} {:<8} fix: {fix}", "", ""));
            }
        }
    }
    let names = args.need.iter().map(|need| need.check()).chain([startup::NAME]);
    for name in names {
        let is_it = |check: &&Check| check.name == name && check.state == State::No;
        if let Some(check) = found.iter().find(|c| is_it(c) && (c.of.is_none() || name == startup::NAME)) {
            let fix = check.fix.clone().unwrap_or_else(|| "see `uiw doctor` for more".to_owned());
            return Err(Failure::new(Exit::Failed, check.name, &check.says, fix));
        }
    }
    Ok(())
}
