//! `uiw cp`: copies files to and from the shares of `uiw serve`. The protocol and the files are in
//! `uiw_copy`.

mod caller;
pub(crate) mod channel;
mod client;
mod direction;
mod entries;
pub(crate) mod list;
mod location;
mod pattern;
mod plan;
mod pull;
mod push;
mod rate_limit;
mod report;
mod segment_size;
mod sources;
mod stripe;

use crate::shared::args::{ConnArgs, DEFAULT_PORT, PeerConfig, resolve};
use crate::shared::fail::{Exit, Failure, Refusal, Result};
use crate::shared::open::Opener;
use crate::shared::stop::StopFlag;
use crate::shared::trust::{EndRole, KeyFiles};
use client::ConnectionShape;
use direction::Direction;
use location::{Location, RemotePath};
use pattern::Pattern;
use plan::{CopyOptions, CopyPlan};
use pull::Pull;
use push::Push;
use rate_limit::{RateLimit, parse_rate};
use report::Report;
use segment_size::SegmentSize;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stripe::{ConnectTarget, Stripe, interrupted};
use uiw_cabi_core::settings::DeadAfter;
use uiw_llp::TransportConfig;

/// Options of `uiw cp`.
#[derive(Clone, Debug, clap::Args)]
#[command(override_usage = "uiw cp [OPTIONS] SRC... TARGET")]
pub(crate) struct Args {
    /// Sources and target: HOST[:PORT]:SHARE/PATH at one end, local paths at the other. A directory
    /// is copied into the target under its name; with a slash at the end, only its contents are
    /// copied
    #[arg(value_names = ["SRC", "TARGET"], required = true, num_args = 2..)]
    paths: Vec<OsString>,
    /// Number of connections [default: 2 to 8, depending on the round-trip time]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    stripes: Option<u16>,
    /// Maximum rate in bytes per second, such as 500K or 25M, or in bits, such as 200Mbit; at least
    /// 64K
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    limit: Option<u64>,
    /// Show what would be copied or deleted, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Ignore entries whose name matches (repeatable): `*` stands for any part of a name, `?` for
    /// any byte; a pattern with a slash is compared with the path below a source
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<Pattern>,
    /// After copying, delete entries of copied directories that do not exist at the source
    #[arg(long)]
    delete: bool,
    /// One JSON object for each entry that failed (or would be copied), and one at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

/// Options of the connection to a server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Access {
    /// Accept the key of a server that is used for the first time, and pin it
    #[arg(long, conflicts_with = "clear")]
    accept_new: bool,
    /// Do not encrypt, even to other machines
    #[arg(long)]
    clear: bool,
    #[command(flatten)]
    conn: ConnArgs,
}

/// Default time after which a transfer gives up without a sign of life of the server.
const GIVE_UP: Duration = Duration::from_secs(15 * 60);

/// Sources and target of the command line.
enum CopyPaths {
    Push(Vec<PathBuf>, RemotePath),
    Pull(Vec<RemotePath>, PathBuf),
}

impl CopyPaths {
    fn from_args(paths: &[OsString]) -> Result<Self> {
        let mut locations = paths.iter().map(Location::parse).collect::<Result<Vec<_>>>()?;
        let usage = |why: &str| {
            Failure::usage(
                "uiw cp",
                why,
                "one end is HOST[:PORT]:SHARE/PATH, and the other one is local",
            )
        };
        let target = locations.pop().ok_or_else(|| usage("no target"))?;
        check_different_names(&locations)?;
        let (mut local, mut remote) = (Vec::new(), Vec::new());
        for location in locations {
            match location {
                Location::Local(path) => local.push(path),
                Location::Remote(place) => remote.push(place),
            }
        }
        match target {
            Location::Remote(target) if remote.is_empty() => Ok(Self::Push(local, target)),
            Location::Remote(_) => Err(usage("a source and the target are both remote")),
            Location::Local(_) if remote.is_empty() => Err(usage("no path has a host")),
            Location::Local(_) if !local.is_empty() => {
                Err(usage("some sources are local, as the target is"))
            }
            Location::Local(target) => {
                let one = |other: &RemotePath| {
                    other.host == remote[0].host && other.share == remote[0].share
                };
                if remote.iter().all(one) {
                    Ok(Self::Pull(remote, target))
                } else {
                    Err(usage("the sources are in different shares"))
                }
            }
        }
    }

    fn server(&self) -> (&str, &str) {
        match self {
            Self::Push(_, remote) => (&remote.host, &remote.share),
            Self::Pull(remote, _) => {
                remote.first().map_or(("", ""), |first| (&first.host, &first.share))
            }
        }
    }
}

/// Refuses several sources with the same name, because one would overwrite the other.
fn check_different_names(sources: &[Location]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in sources.iter().filter_map(Location::name) {
        if !seen.insert(name.clone()) {
            let name = Path::new(OsStr::from_bytes(&name)).display().to_string();
            let fix = "copy them one after the other, or into different directories";
            return Err(Failure::usage(name, "two sources have this name", fix));
        }
    }
    Ok(())
}

/// Refuses `--delete` if the contents of a source go into the same directory as another source,
/// because each would delete the entries of the other.
fn check_delete(sources: &[OsString]) -> Result<()> {
    let locations = sources.iter().map(Location::parse).collect::<Result<Vec<_>>>()?;
    if locations.len() > 1 && locations.iter().any(|source| source.name().is_none()) {
        let why = "the contents of a source and another one go into the same directory";
        return Err(Failure::usage(
            "--delete",
            why,
            "copy them one after the other, into different directories",
        ));
    }
    Ok(())
}

/// Runs `uiw cp`.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    let paths = CopyPaths::from_args(&args.paths)?;
    if args.delete {
        check_delete(&args.paths[..args.paths.len() - 1])?;
    }
    let (host, share) = paths.server();
    let stop = StopFlag::on_signal()?;
    // A dry run writes nothing, so it also works with a read-only share.
    let push = matches!(paths, CopyPaths::Push(..)) && !args.dry_run;
    let rate_limit = args.limit.map(RateLimit::new);
    let (target, first) = connect(opener, &args.access, (host, share), push, rate_limit, &stop)?;
    if args.delete && push && !first.can_remove() {
        let fix = "update `uiw` there, or leave --delete out";
        return Err(Failure::new(Exit::Unreachable, host, "its `uiw serve` has no --delete", fix));
    }
    let mut shape = ConnectionShape::from_round_trip(first.round_trip());
    shape.stripes = args.stripes.unwrap_or(shape.stripes);
    if let Some(rate_limit) = &target.rate_limit {
        shape.stripes = shape.stripes.min(rate_limit.max_stripes());
    }
    let rules =
        CopyOptions { dry_run: args.dry_run, delete: args.delete, excluded: args.exclude.clone() };
    let plan = CopyPlan::new(Report::new(args.json, Arc::clone(&target.heard)), stop, rules);
    let direction: Box<dyn Direction> = match &paths {
        CopyPaths::Push(..) => Box::new(Push),
        CopyPaths::Pull(..) => Box::new(Pull { label: format!("{:08x}", target.token as u32) }),
    };
    let done =
        client::transfer(first, &plan, direction.as_ref(), &target, shape, |caller| match &paths {
            CopyPaths::Push(from, to) => sources::add_local_sources(caller, from, to),
            CopyPaths::Pull(from, to) => sources::add_remote_sources(caller, from, to),
        });
    if let Err(failure) = done {
        plan.report.print_failed_summary(shape.stripes.into(), args.dry_run);
        return Err(failure);
    }
    plan.report.print_summary(shape.stripes.into(), args.dry_run, true);
    match plan.report.failures() {
        0 => Ok(()),
        count => Err(Failure::new(
            Exit::Failed,
            format!("{count} of the entries"),
            if args.delete { "not copied or not deleted" } else { "not copied" },
            "each is named above; the same command copies what is missing",
        )),
    }
}

/// Connects to a share of a server for the first time.
fn connect(
    opener: &Opener,
    access: &Access,
    (host, share): (&str, &str),
    push: bool,
    rate_limit: Option<RateLimit>,
    stop: &StopFlag,
) -> Result<(ConnectTarget, Stripe)> {
    let peer = resolve(host, DEFAULT_PORT)?;
    let settings = access.conn.settings();
    let mut peer_options = PeerConfig::new(settings.connection());
    let give_up = match settings.dead_after {
        Some(DeadAfter(Some(time))) => time,
        _ => GIVE_UP,
    };
    peer_options.congestion.get_or_insert_with(|| TransportConfig::AUTO.to_owned());
    let token = getrandom::u64().map_err(|error| Failure::local("no random numbers", error))?;
    let security = SecurityMode::from_args(opener, access, peer)?;
    let target = ConnectTarget {
        device: security.opener.device()?,
        peer,
        share: share.to_owned(),
        token,
        push,
        segment_size: SegmentSize::new(peer_options.own.stream.max_segment),
        peer_options,
        rate_limit,
        give_up,
        heard: Arc::default(),
        identity: OnceLock::new(),
    };
    let connect = || {
        let connect = || {
            Stripe::connect(&target, ConnectionShape::from_round_trip(Duration::MAX).slots, stop)
        };
        let before = target.segment_size.for_next_connection();
        // The first message of TLS may be too long for the path, unlike that of MPA. If the failed
        // attempt has led to another segment size, try again with it.
        let is_other =
            || security.opener.has_tls() && target.segment_size.for_next_connection() != before;
        connect().or_else(|failure| if is_other() { connect() } else { Err(failure) })
    };
    match security.connect(access, host, connect) {
        Ok(first) => Ok((target, first)),
        Err(_) if stop.is_set() => Err(interrupted(peer)),
        Err(failure) => Err(failure),
    }
}

/// Protection of connections.
struct SecurityMode {
    opener: Opener,
    /// Key files of the user, if these are used.
    files: Option<KeyFiles>,
}

impl SecurityMode {
    /// Chooses encryption, unless the server is on this machine or the user refuses it.
    fn from_args(opener: &Opener, args: &Access, peer: SocketAddr) -> Result<Self> {
        if args.clear && opener.has_tls() {
            return Err(Failure::usage(
                "--clear",
                "a file of --tls or UIW_TLS is named",
                "leave one of them out",
            ));
        }
        let is_default = !args.clear && !peer.ip().to_canonical().is_loopback();
        let (opener, files) = if is_default || args.accept_new {
            EndRole::Client.tls_opener(opener)?
        } else {
            (opener.clone(), None)
        };
        if args.accept_new && files.is_none() {
            let fix = "add the key to the file of pinned keys with `uiw key pin`";
            return Err(Failure::usage(
                "--accept-new",
                "keys are pinned as --tls or UIW_TLS say",
                fix,
            ));
        }
        Ok(Self { opener, files })
    }

    /// Makes the first connection, and pins the key of a new server if the user accepts it.
    fn connect(
        &self,
        args: &Access,
        host: &str,
        connect: impl Fn() -> Result<Stripe>,
    ) -> Result<Stripe> {
        let Some(files) = &self.files else { return connect() };
        let mut connected = connect();
        if args.accept_new
            && let Err(Failure { refusal: Some(Refusal::UnknownKey { key }), .. }) = &connected
        {
            files.accept_new(host, key)?;
            self.opener.reload_tls()?;
            connected = connect();
        }
        let stripe = connected.map_err(|failure| files.explain(host, failure))?;
        files.check(host, stripe.identity())?;
        Ok(stripe)
    }
}
