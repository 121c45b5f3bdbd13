//! `uiw serve`: the reference server, which also serves the shares of `uiw cp`. One thread accepts
//! connections; each connection has its own thread, which sleeps in the device.

mod budget;
mod comparisons;
mod descriptors;
mod foreign;
mod heartbeat;
mod idle;
mod listen;
mod opposite;
mod peers;
pub(crate) mod perf;
pub(crate) mod ping;
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
use crate::shared::stop::StopFlag;
use crate::shared::text;
use crate::shared::trust::EndRole;
use budget::Budget;
use comparisons::Comparisons;
use heartbeat::HeartbeatSender;
use idle::IdleMonitor;
use peers::{Grant, Peer};
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

/// Maximum number of TCP connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Options of `uiw serve`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Address to listen on (repeatable): ADDR:PORT, NAME:PORT, ADDR, :PORT (all addresses) or PORT
    /// (this machine only); port 0 chooses a free port [default: 127.0.0.1:7174; with --llp packet:
    /// or xdp: port 7174 of its first address]
    #[arg(long, value_name = "ADDR:PORT", value_parser = listen)]
    listen: Vec<SocketAddr>,
    #[command(flatten)]
    conn: ConnArgs,
    /// Memory for partly received FPDUs and messages without a receive, of all connections
    /// together: bytes, at least 256K
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = receive_memory)]
    receive_memory: u32,
    /// Maximum number of connections of one address; an IPv6 /64 counts as one address. All
    /// addresses together have at most 1024 [default: as many as the address leaves to others, at
    /// most 448]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    per_address: Option<u16>,
    /// Close a connection without traffic for this time, such as 90s or 10m; 0 means never
    #[arg(long, value_name = "TIME", default_value = "10m")]
    idle_timeout: DeadAfter,
    /// With shares, do not encrypt connections from other machines
    #[arg(long, requires = "share")]
    clear: bool,
    /// Let `uiw cp` read the files in DIR, and with `:rw` also write there (repeatable)
    #[arg(long, value_name = "NAME=DIR[:rw]")]
    share: Vec<ShareArg>,
    /// Exit on EOF of stdin
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

impl Args {
    /// Returns the default log filter: connections, refusals and faults. A server that belongs to
    /// another command logs only problems.
    pub(crate) fn log(&self) -> &'static str {
        if self.until_stdin_ends { "warn" } else { "warn,uiw::serve=info" }
    }
}

/// Default time after which a silent peer counts as dead. A server holds memory for its peers, so
/// it gives up earlier than they do.
const DEAD_AFTER: DeadAfter = DeadAfter(Some(Duration::from_secs(60)));

/// Runs until Ctrl-C.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    // This must come before another thread allocates memory from an arena of its own.
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
    let opener = if is_default { EndRole::Server.tls_opener(opener)?.0 } else { opener.clone() };
    let opener = &opener.with_line_check(shares::line_check(&args.share));
    if !args.share.is_empty() && !opener.has_tls() {
        let who = if is_here { "user of this machine" } else { "host that reaches this port" };
        tracing::warn!("every {who} can use the shares, because TLS is off");
    }
    // SIGHUP makes a service read its files again, if it has any. A server in a terminal without
    // such files ends with the terminal.
    let stop = if opener.has_tls() || !std::io::stdin().is_terminal() {
        let opener = opener.clone();
        StopFlag::on_signal_but_hangup(move || match opener.reload_tls() {
            Ok(()) if !opener.has_tls() => {
                tracing::info!("SIGHUP ignored: there are no files to read again");
            }
            Ok(()) => tracing::info!("the files of TLS were read again"),
            Err(failure) => {
                tracing::error!(
                    error = failure.cause(),
                    "the configuration of TLS before holds on"
                );
            }
        })?
    } else {
        StopFlag::on_signal()?
    };
    if args.until_stdin_ends {
        stop.on_stdin_end();
    }
    let limits = Limits::default().max_held_bytes(args.receive_memory as usize);
    let mut settings = args.conn.settings();
    settings.dead_after.get_or_insert(DEAD_AFTER);
    let peer_options = PeerConfig::new(settings.connection());
    descriptors::raise();
    spin::limit_spinning();
    serve(&opener.device_with(limits)?, &addresses, args, &peer_options, &stop)
}

/// State that all connections share.
struct Server {
    device: Device,
    pd: Pd,
    stop: Arc<StopFlag>,
    /// Options for peers that do not name a service.
    peer_options: PeerConfig,
    sessions: Arc<Sessions>,
    budget: Budget,
    /// Held while memory is filled for a peer, so that only one connection does this work at a
    /// time.
    filling: parking_lot::Mutex<()>,
    shares: Shares,
    transfers: Transfers,
    heartbeats: HeartbeatSender,
    comparisons: Comparisons,
    /// `None` if connections may be idle for any time.
    idle: Option<IdleMonitor>,
}

impl Server {
    /// Lets the [`IdleMonitor`] close the connection when it has been idle for too long.
    fn watch(&self, link: &Link) {
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
    stop: &Arc<StopFlag>,
) -> Result<()> {
    let DeadAfter(idle) = args.idle_timeout;
    let shares = Shares::open(&args.share)?;
    let channel = Arc::new(CmChannel::default());
    let options = Arc::new(peer_options.options());
    let bind = |address: &SocketAddr| listen::bind(device, *address, &options, &channel);
    let listeners = addresses.iter().map(bind).collect::<Result<Vec<_>>>()?;
    for listener in &listeners {
        text::line(format!("listening on {}", listener.local_addr()));
    }
    let connections = descriptors::connections(&shares);
    if connections < MAX {
        tracing::info!(
            connections,
            "fewer connections than {MAX}, because of the limit of descriptors (`ulimit -n`)"
        );
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
        heartbeats: HeartbeatSender::default(),
        comparisons: Comparisons::default(),
        idle: idle.map(IdleMonitor::new),
    });
    let spawn = |name: &str, run: fn(&Server)| {
        let own = Arc::clone(&server);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&own));
        spawned.map_err(|error| Failure::local("cannot start a thread", error))
    };
    let watch = spawn("uiw-idle", |own| {
        if let Some(idle) = &own.idle {
            idle.run(&own.device, &own.stop);
        }
    })?;
    let heartbeats = spawn("uiw-heartbeat", |own| own.heartbeats.run(&own.stop))?;
    let mut outcome = Ok(());
    notify("READY=1");
    loop {
        // This thread does not wait in the device, so that the threads of connections that wait
        // there are woken only by their own events.
        if !stop.sleep_on(channel.fd()?) {
            break;
        }
        let Some(event) = channel.try_pop() else { continue };
        match event.kind {
            CmEventKind::ConnectRequest(request) => start_session(&server, request),
            CmEventKind::Failed(error) => {
                tracing::info!(%error, "connection failed during set-up");
            }
            CmEventKind::ListenerDown { listener: id, error, for_good: true } => {
                let down = listeners.iter().find(|listener| listener.id() == id);
                outcome =
                    Err(listener_failure(down.map_or(addresses[0], Listener::local_addr), error));
                stop.set();
            }
            CmEventKind::ListenerDown { error, .. } => {
                tracing::warn!("{}", listener_down_text(&error));
            }
            CmEventKind::Established(_)
            | CmEventKind::Disconnected(_)
            | CmEventKind::Posted(_)
            | CmEventKind::SidrRequest(_)
            | CmEventKind::SidrResolved(_) => {}
        }
    }
    notify("STOPPING=1");
    drop(listeners);
    server.sessions.wait_empty();
    let _ = (watch.join(), heartbeats.join());
    outcome
}

/// Creates the error of a listener that has failed for good.
pub(crate) fn listener_failure(address: SocketAddr, error: Error) -> Failure {
    let fix = "start it again when the interface is there: see `ip link`";
    Failure::new(Exit::Failed, format!("cannot listen on {address}"), why(error), fix)
}

/// Returns the message about a listener that is down temporarily.
pub(crate) fn listener_down_text(error: &Error) -> String {
    format!("{error}: listening again when the interface is up")
}

fn why(error: Error) -> String {
    match error {
        Error::Io { source, .. } => source.to_string(),
        error => error.to_string(),
    }
}

/// Prints the address of the listener, and a warning if the connections are not encrypted and leave
/// this machine.
pub(crate) fn announce(address: SocketAddr, has_tls: bool) {
    text::line(format!("listening on {address}"));
    if !address.ip().is_loopback() && !has_tls {
        note!(
            "warning: {address}: the wire is not encrypted\nhint: use --tls, or a tunnel, on networks you do not trust"
        );
    }
}

/// Returns the number of bytes of memory that are needed to serve a client.
fn required_memory(service: &Service) -> u64 {
    match service {
        Service::Ping(order) => ping::required_memory(order.size),
        Service::Perf(order) => perf::required_memory(order),
        Service::RawTcp(order) => raw::required_memory(order),
        Service::Cp(order) => transfer::required_memory(order),
        Service::Foreign => foreign::MEMORY,
        Service::Comparison | Service::Unknown(_) => 0,
    }
}

/// Stack size of a connection's thread, in bytes. glibc caches up to 40 MiB of stacks of ended
/// threads, including the pages that were used. The larger the stacks, the fewer it caches.
const STACK: usize = 8 << 20;

/// Starts the thread of a connection.
fn start_session(server: &Arc<Server>, request: ConnRequest) {
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
        let service = Service::from_private_data(request.private_data());
        // Connections of `uiw cp` are logged only at debug level, because the transfer has a line
        // of its own.
        let is_transfer = matches!(service, Service::Cp(_));
        if is_transfer {
            tracing::debug!(%peer, identity, service = service.name(), "connection");
        } else {
            tracing::info!(%peer, identity, service = service.name(), "connection");
        }
        match run_session(&leaving.0, request, service, &holder) {
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

/// Releases the resources of a session when its thread ends, for whatever reason.
struct SessionGuard(Arc<Server>, Grant);

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.0.stop.forget_this_thread();
        self.0.sessions.leave(&self.1);
    }
}

/// Rejects a connection, and returns the reason as the error.
fn refuse(request: ConnRequest, why: &str) -> Result<()> {
    let peer = text::canonical(request.peer_addr());
    let _ = request.reject(why.as_bytes());
    Err(Failure::lost(peer, format!("refused: {why}")))
}

fn run_session(server: &Server, request: ConnRequest, service: Service, peer: &Peer) -> Result<()> {
    let _share = match server.budget.take(peer, required_memory(&service)) {
        Ok(share) => share,
        Err(why) => {
            let peer = text::canonical(request.peer_addr());
            let _ = request.reject(format!("{BUSY}: {why}").as_bytes());
            return Err(Failure::lost(peer, why));
        }
    };
    if shares::is_limited(request.peer_identity()) && !matches!(service, Service::Cp(_)) {
        return refuse(request, "the key is limited to shares (`uiw cp`)");
    }
    match service {
        Service::Ping(order) => ping::serve(server, request, &order),
        Service::Perf(order) => perf::serve(server, request, &order),
        Service::Comparison => raw::compare(server, request),
        Service::RawTcp(order) => raw::slice(server, request, &order),
        Service::Cp(order) => transfer::serve(server, request, &order, peer),
        Service::Foreign => foreign::serve(server, request),
        Service::Unknown(name) => {
            let peer = text::canonical(request.peer_addr());
            let _ = request.reject(format!("unknown uiw service: {name:.100}").as_bytes());
            Err(Failure::lost(peer, format!("asks for `{name}`, which this version does not have")))
        }
    }
}
