//! Server end, which executes the orders of the client.

use super::end::ConnectionEnd;
use super::{Args, DEPTH, ExtensionOrder, orders, report};
use crate::shared::fail::{Failure, Result};
use crate::shared::open::Opener;
use crate::shared::qp_setup::{PendingQp, QueueDepths, WaitLimits};
use crate::shared::stop::StopFlag;
use crate::shared::text;
use serde_json::json;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use uiw::raw::cm::{CmChannel, CmEventKind, ConnRequest, Listener};
use uiw::raw::{ConnConfig, Device};

/// Maximum number of connections that are served at the same time.
const MAX_SESSIONS: usize = 128;

/// Serves connections until Ctrl-C, each on its own thread.
pub(super) fn serve(opener: &Opener, address: SocketAddr, args: &Args) -> Result<()> {
    let stop = StopFlag::on_signal()?;
    let device = opener.device()?;
    let channel = Arc::new(CmChannel::default());
    let options = Arc::new(args.options());
    let listener = Listener::bind(&device, address, 64, &options, &channel)
        .map_err(|error| Failure::local(format!("cannot listen on {address}"), error))?;
    crate::serve::announce(listener.local_addr(), opener.has_tls());
    let mut threads = Vec::new();
    let mut outcome = Ok(());
    while stop.sleep_on(channel.fd()?) {
        threads.retain(|thread: &JoinHandle<()>| !thread.is_finished());
        match channel.try_pop().map(|event| event.kind) {
            Some(CmEventKind::ConnectRequest(request)) if !args.raw.is_empty() => {
                // Serve one connection. Its failure is the failure of the command.
                outcome = super::raw::RawSession::new(&device, args)?
                    .accept(request, WaitLimits::stop(&stop));
                break;
            }
            Some(CmEventKind::ConnectRequest(request)) => {
                let (device, options, stop) =
                    (device.clone(), Arc::clone(&options), Arc::clone(&stop));
                let how = (args.json, args.refused);
                let peer = request.peer_addr();
                let session = move || {
                    let _guard = SessionGuard(&stop);
                    if let Err(failure) = run_session(&device, request, &options, &stop, how) {
                        text::line(format!("{peer}: {failure}"));
                    }
                };
                // Dropping the session rejects its request.
                let spawned = match threads.len() {
                    0..MAX_SESSIONS => thread::Builder::new().spawn(session),
                    _ => Err(io::Error::other(format!(
                        "{MAX_SESSIONS} connections are served already"
                    ))),
                };
                match spawned {
                    Ok(thread) => threads.push(thread),
                    Err(error) => text::line(format!("{peer}: rejected: {error}")),
                }
            }
            Some(CmEventKind::ListenerDown { error, for_good: true, .. }) => {
                outcome = Err(crate::serve::listener_failure(address, error));
                stop.set();
            }
            Some(CmEventKind::ListenerDown { error, .. }) => {
                text::line(crate::serve::listener_down_text(&error));
            }
            Some(CmEventKind::Failed(error)) => {
                text::line(format!("a connection failed during set-up: {error}"));
            }
            _ => {}
        }
    }
    drop(listener);
    for thread in threads {
        let _ = thread.join();
    }
    outcome
}

fn run_session(
    device: &Device,
    request: ConnRequest,
    options: &ConnConfig,
    stop: &StopFlag,
    (as_json, refused): (bool, Option<ExtensionOrder>),
) -> Result<()> {
    let private_data = request.private_data().to_vec();
    let (ird, ord) = request.peer_ird_ord().unwrap_or_default();
    let details = json!({
        "private_data": private_data.len(), "revision": request.revision(), "peer_ird": ird, "peer_ord": ord,
    });
    report(as_json, "request", &details, || {
        format!(
            "request: revision {}, {} bytes of private data, IRD {ird}, ORD {ord}",
            request.revision(),
            private_data.len()
        )
    });
    if private_data.starts_with(b"reject") {
        request.reject(&[b"rejected as asked: ", &private_data[..]].concat())?;
        return Ok(());
    }
    let pd = device.alloc_pd()?;
    let depths = QueueDepths { sges: super::MAX_SGES, ..QueueDepths::new(DEPTH, DEPTH) };
    let pending = PendingQp::new(device, &pd, &depths)?;
    let until = WaitLimits::stop(stop);
    let mut end = ConnectionEnd::accept(pending, request, options, &private_data, until)?;
    if let Some(refused) = refused {
        return orders::check_refused(&mut end, refused, as_json);
    }
    let outcome = follow_orders(&mut end, until);
    let drained = end.drain();
    let (posted, done) = end.totals;
    let how = end.wrong.clone().unwrap_or_else(|| "closed".to_owned());
    report(as_json, "over", &json!({"how": how, "posted": posted, "done": done}), || {
        format!("connection over: {how}; {done} of {posted} requests and receives done")
    });
    outcome.and(drained)
}

/// Executes orders until the other end closes. An error after an order that ends the connection is
/// expected, so it is not returned.
fn follow_orders(end: &mut ConnectionEnd, until: WaitLimits<'_>) -> Result<()> {
    while let Some(order) = end.next_order(until)? {
        match orders::take_order(end, &order) {
            Err(_) if order.order.op.ends_connection() => return Ok(()),
            result => result?,
        }
        if end.wrong.as_deref() != Some("closed") {
            end.wrong = None;
        }
    }
    Ok(())
}

/// Forgets the thread of a session when it ends, for whatever reason, because the flag keeps a
/// descriptor for each thread that waits.
struct SessionGuard<'a>(&'a StopFlag);

impl Drop for SessionGuard<'_> {
    fn drop(&mut self) {
        self.0.forget_this_thread();
    }
}
