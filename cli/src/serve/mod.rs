//! `uiw serve`: the reference server, and the shares of `uiw cp`. One thread accepts; each
//! connection has a thread of its own, which sleeps in the device.

mod budget;
mod comparisons;
mod descriptors;
mod foreign;
mod idle;
mod opposite;
mod peers;
pub(crate) mod perf;
mod ping;
mod place;
mod pulse;
mod raw;
mod sessions;
mod shares;
mod transfer;

use crate::shared::args::{ConnArgs, DEFAULT_PORT, PeerConfig, listen, receive_memory};
use crate::shared::fail::{BUSY, Exit, Failure, Result};
use crate::shared::notify::notify;
use crate::shared::open::Opener;
use crate::shared::qp_setup::Link;
use crate::shared::service::Service;
use crate::shared::spin;
use crate::shared::stop::Stop;
use crate::shared::text;
use crate::shared::trust::EndRole;
use budget::Budget;
use comparisons::Comparisons;
use idle::Idle;
use peers::{Grant, Peer};
use pulse::Pulse;
use sessions::{MAX, Sessions};
use shares::{ShareArg, Shares};
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use transfer::Transfers;
use uiw::raw::cm::{CmChannel, CmEventKind, ConnRequest, Listener};
use uiw::raw::{Device, Error, Limits, Pd};
use uiw_cabi_core::settings::DeadAfter;
use uiw_datagram::Qpn;

/// Connections that TCP may complete before we take them.
const BACKLOG: u32 = 1024;

/// Options of `uiw serve`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Address to listen at (repeatable): ADDR:PORT, NAME:PORT, ADDR, :PORT (all addresses) or PORT
    /// (this machine only); port 0 takes a free one
    /// [default: 127.0.0.1:7174; with --llp packet: or xdp: port 7174 of its first address]
    #[arg(long, value_name = "ADDR:PORT", value_parser = listen)]
    listen: Vec<SocketAddr>,
    #[command(flatten)]
    conn: ConnArgs,
    /// Memory for partly received FPDUs and messages without a receive, of all connections
    /// together: bytes, at least 256K
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = receive_memory)]
    receive_memory: u32,
    /// Connections of one address at a time; of IPv6 a /64 counts as one address. All addresses
    /// together have at most 1024 [default: as many as the address leaves to others, at most 448]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    per_address: Option<u16>,
    /// Close a connection on which nothing has moved for this time, such as 90s or 10m; 0 is never
    #[arg(long, value_name = "TIME", default_value = "10m")]
    idle_timeout: DeadAfter,
    /// With shares, do not encrypt beyond this machine either
    #[arg(long, requires = "share")]
    clear: bool,
    /// Let `uiw cp` read the files below DIR, and with `:rw` write there (repeatable)
    #[arg(long, value_name = "NAME=DIR[:rw]")]
    share: Vec<ShareArg>,
    /// Exit on EOF of stdin
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

impl Args {
    /// Default level of the log: connections, refusals and faults; of a server that belongs to
    /// another command only what is wrong.
    pub(crate) fn log(&self) -> &'static str {
        if self.until_stdin_ends { "warn" } else { "warn,uiw::serve=info" }
    }
}

/// A server holds memory for its peers, so it gives up the dead earlier than they give up the
/// server.
const DEAD_AFTER: DeadAfter = DeadAfter(Some(Duration::from_secs(60)));

/// Runs until Ctrl-C.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    // Before any other thread has an arena.
    uiw_mem::share_arenas();
    if args.clear && opener.has_tls() {
        let why = "a file of --tls or UIW_TLS is named";
        return Err(Failure::usage("--clear", why, "leave one of them out"));
    }
    let addresses = match args.listen.as_slice() {
        [] => vec![SocketAddr::new(opener.own_address(), DEFAULT_PORT)],
        addresses => addresses.to_vec(),
    };
    let is_here = addresses.iter().all(|address| address.ip().is_loopback());
    let is_default = !args.share.is_empty() && !is_here && !args.clear;
    let opener = if is_default { EndRole::Server.opener(opener)?.0 } else { opener.clone() };
    let opener = &opener.checking(shares::checker(&args.share));
    // SIGHUP makes a service read its files again, if it has any; a server in a terminal ends with
    // the terminal.
    let stop = if opener.has_tls() || !std::io::stdin().is_terminal() {
        let opener = opener.clone();
        Stop::on_signal_but_hangup(move || match opener.reload_tls() {
            Ok(()) if !opener.has_tls() => tracing::info!("SIGHUP: there are no files to be read again"),
            Ok(()) => tracing::info!("the files of TLS were read again"),
            Err(failure) => {
                tracing::error!(error = failure.cause(), "the configuration of TLS before holds on");
            }
        })?
    } else {
        Stop::on_signal()?
    };
    if args.until_stdin_ends {
        stop.on_stdin_end();
    }
    let limits = Limits::default().max_held_bytes(args.receive_memory as usize);
    let mut settings = args.conn.settings();
    settings.dead_after.get_or_insert(DEAD_AFTER);
    let peer_options = PeerConfig::new(settings.connection());
    descriptors::raise();
    spin::limit();
    serve(&opener.device_with(limits)?, &addresses, args, &peer_options, &stop)
}

/// What all connections share.
struct Server {
    device: Device,
    pd: Pd,
    stop: Arc<Stop>,
    /// For peers that do not name a service.
    peer_options: PeerConfig,
    sessions: Arc<Sessions>,
    budget: Budget,
    /// Held while memory is filled for a peer.
    filling: parking_lot::Mutex<()>,
    shares: Shares,
    transfers: Transfers,
    pulse: Pulse,
    comparisons: Comparisons,
    /// `None`: connections may be idle for any time.
    idle: Option<Idle>,
}

impl Server {
    /// Names the connection's queue pair in the log, and ends it once nothing has moved on it for
    /// too long.
    fn watch(&self, link: &Link) {
        let qp = tracing::field::display(Qpn::from_raw(link.qp.num()));
        tracing::Span::current().record("qp", qp);
        if let Some(idle) = &self.idle {
            idle.watch(link);
        }
    }
}

fn serve(
    device: &Device,
    addresses: &[SocketAddr],
    args: &Args,
    peer_options: &PeerConfig,
    stop: &Arc<Stop>,
) -> Result<()> {
    let DeadAfter(idle) = args.idle_timeout;
    let shares = Shares::open(&args.share)?;
    let channel = Arc::new(CmChannel::default());
    let options = Arc::new(peer_options.options());
    let bind = |address: &SocketAddr| place::bind(device, *address, &options, &channel);
    let listeners = addresses.iter().map(bind).collect::<Result<Vec<_>>>()?;
    for listener in &listeners {
        text::line(format!("listening on {}", listener.local_addr()));
    }
    let connections = descriptors::connections(&shares);
    if connections < MAX {
        tracing::warn!(connections, "the limit of descriptors (`ulimit -n`) bounds the connections");
    }
    let pd = device.alloc_pd()?;
    let server = Arc::new(Server {
        device: device.clone(),
        pd,
        stop: Arc::clone(stop),
        peer_options: peer_options.clone(),
        sessions: Arc::new(Sessions::new(args.per_address.map(usize::from), connections)),
        budget: Budget::default(),
        filling: parking_lot::Mutex::default(),
        shares,
        transfers: Transfers::default(),
        pulse: Pulse::default(),
        comparisons: Comparisons::default(),
        idle: idle.map(Idle::new),
    });
    let own = Arc::clone(&server);
    let watch = std::thread::Builder::new().name("uiw-idle".to_owned()).spawn(move || {
        if let Some(idle) = &own.idle {
            idle.run(&own.device, &own.stop);
        }
    });
    let watch = watch.map_err(|error| Failure::local("cannot start a thread", error))?;
    let own = Arc::clone(&server);
    let pulse =
        std::thread::Builder::new().name("uiw-pulse".to_owned()).spawn(move || own.pulse.run(&own.stop));
    let pulse = pulse.map_err(|error| Failure::local("cannot start a thread", error))?;
    let mut outcome = Ok(());
    notify("READY=1");
    loop {
        // Not in the device: a connection's thread that waits there is woken only by its own
        // events.
        if !stop.sleep_on(channel.fd()?) {
            break;
        }
        let Some(event) = channel.try_pop() else { continue };
        match event.kind {
            CmEventKind::ConnectRequest(request) => begin(&server, request),
            CmEventKind::Failed(error) => {
                tracing::info!(%error, "a connection failed in its set-up");
            }
            CmEventKind::ListenerDown { listener: id, error, for_good: true } => {
                let down = listeners.iter().find(|listener| listener.id() == id);
                outcome = Err(listener_down(down.map_or(addresses[0], Listener::local_addr), error));
                stop.set();
            }
            CmEventKind::ListenerDown { error, .. } => tracing::warn!("{}", while_down(&error)),
            CmEventKind::Established(_)
            | CmEventKind::Disconnected(_)
            | CmEventKind::Posted(_)
            | CmEventKind::SidrRequest(_)
            | CmEventKind::SidrResolved(_) => {}
        }
    }
    notify("STOPPING=1");
    drop(listeners);
    server.sessions.over();
    let _ = (watch.join(), pulse.join());
    outcome
}

/// No peer can ever connect again.
pub(crate) fn listener_down(address: SocketAddr, error: Error) -> Failure {
    let fix = "start it again when the interface is there: see `ip link`";
    Failure::new(Exit::Failed, format!("cannot listen on {address}"), why(error), fix)
}

/// No peer can connect for the time being.
pub(crate) fn while_down(error: &Error) -> String {
    format!("{error}: it goes on when the interface is up")
}

fn why(error: Error) -> String {
    match error {
        Error::Io { source, .. } => source.to_string(),
        error => error.to_string(),
    }
}

/// Says where peers may connect, and that others may listen along, where they may.
pub(crate) fn announce(address: SocketAddr, has_tls: bool) {
    text::line(format!("listening on {address}"));
    if !address.ip().is_loopback() && !has_tls {
        note!(
            "warning: {address}: the wire is not encrypted\nhint: use --tls, or a tunnel, on networks you do not trust"
        );
    }
}

/// Bytes of memory that serving it takes.
fn memory(service: &Service) -> u64 {
    match service {
        Service::Ping(order) => ping::memory(order.size),
        Service::Perf(order) => perf::memory(order),
        Service::Slice(order) => raw::memory(order),
        Service::Cp(order) => transfer::memory(order),
        Service::Foreign => foreign::MEMORY,
        Service::Raw | Service::Unknown(_) => 0,
    }
}

/// Bytes that a connection's stack may grow to. glibc keeps 40 MiB of stacks whose threads have
/// ended, with what they touched: so of large ones it keeps few.
const STACK: usize = 8 << 20;

/// Starts the thread of a connection.
fn begin(server: &Arc<Server>, request: ConnRequest) {
    let peer = text::canonical(request.peer_addr());
    let identity = request.peer_identity().map(ToString::to_string);
    let holder = Peer::new(peer.ip(), identity.clone());
    let grant = match server.sessions.enter(&holder) {
        Ok(grant) => grant,
        Err(busy) => {
            tracing::warn!(%peer, %busy, "connection rejected");
            let _ = request.reject(format!("{BUSY}: {busy}").as_bytes());
            return;
        }
    };
    let leaving = SessionGuard(Arc::clone(server), grant);
    let thread = std::thread::Builder::new().name(format!("uiw-{}", peer.port())).stack_size(STACK);
    let spawned = thread.spawn(move || {
        // Its lines name the queue pair, once there is one.
        let span = tracing::error_span!("session", qp = tracing::field::Empty);
        let _entered = span.enter();
        let service = Service::of(request.private_data());
        // Connections of `uiw cp` have one line a transfer.
        let is_transfer = matches!(service, Service::Cp(_));
        if is_transfer {
            tracing::debug!(%peer, identity, service = service.name(), "connection");
        } else {
            tracing::info!(%peer, identity, service = service.name(), "connection");
        }
        match session(&leaving.0, request, service, &holder) {
            Ok(()) if is_transfer => tracing::debug!(%peer, "connection over"),
            Ok(()) => tracing::info!(%peer, "connection over"),
            Err(failure) if failure.is_logged => {
                tracing::debug!(%peer, error = failure.cause(), "connection failed");
            }
            Err(failure) => tracing::warn!(%peer, error = failure.cause(), "connection failed"),
        }
        drop(leaving);
    });
    if let Err(error) = spawned {
        tracing::error!(%peer, %error, "no thread for a connection");
    }
}

/// A session's thread, which releases everything however it ends.
struct SessionGuard(Arc<Server>, Grant);

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.0.stop.forget_this_thread();
        self.0.sessions.leave(&self.1);
    }
}

fn session(server: &Server, request: ConnRequest, service: Service, peer: &Peer) -> Result<()> {
    let _share = match server.budget.take(peer, memory(&service)) {
        Ok(share) => share,
        Err(why) => {
            let peer = text::canonical(request.peer_addr());
            let _ = request.reject(format!("{BUSY}: {why}").as_bytes());
            return Err(Failure::lost(peer, why));
        }
    };
    if shares::is_limited(request.peer_identity()) && !matches!(service, Service::Cp(_)) {
        let address = text::canonical(request.peer_addr());
        let why = "the key is limited to shares (`uiw cp`)";
        let _ = request.reject(why.as_bytes());
        return Err(Failure::lost(address, format!("refused: {why}")));
    }
    match service {
        Service::Ping(order) => ping::serve(server, request, &order),
        Service::Perf(order) => perf::serve(server, request, &order),
        Service::Raw => raw::compare(server, request),
        Service::Slice(order) => raw::slice(server, request, &order),
        Service::Cp(order) => transfer::serve(server, request, &order, peer),
        Service::Foreign => foreign::serve(server, request),
        Service::Unknown(name) => {
            let peer = text::canonical(request.peer_addr());
            let _ = request.reject(format!("unknown uiw service: {name:.100}").as_bytes());
            Err(Failure::lost(peer, format!("asks for `{name}`, which this version does not have")))
        }
    }
}
