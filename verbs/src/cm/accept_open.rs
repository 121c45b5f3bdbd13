//! Connections that a program has accepted itself.

use crate::cm::{CmChannel, CmSide, ConnId, check_options};
use crate::conn::Conn;
use crate::driver::{Driver, Slot};
use crate::error::{Error, Result};
use crate::options::ConnConfig;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uiw_llp::Token;
use uiw_stream::RdmapStream;

/// Connection whose Request has not arrived yet. Dropping it before the Request arrives ends the
/// connection without an event.
pub struct AwaitedRequest {
    driver: Arc<Driver>,
    token: Token,
}

impl std::fmt::Debug for AwaitedRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awaited").field("token", &self.token).finish_non_exhaustive()
    }
}

impl Drop for AwaitedRequest {
    fn drop(&mut self) {
        let token = self.token;
        self.driver.shard(token).call(move |core| {
            core.with_conn(token, |conn, services| {
                if conn.stream.awaits_request() {
                    conn.cm.forget();
                    conn.fail_startup(Error::NotConnected, services);
                }
            });
        });
    }
}

/// Waits for the Request of the peer on a kernel socket that the program has accepted itself, and
/// over which nothing was sent. The outcome is an event on `channel`:
/// [`crate::cm::CmEventKind::ConnectRequest`] or [`crate::cm::CmEventKind::Failed`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use std::sync::Arc;
/// use uiw::raw::cm::{self, CmEventKind};
/// let (client, server) = (End::new()?, End::new()?);
/// let options = Arc::new(uiw::raw::ConnConfig::default());
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let (peer, socket) = (listener.local_addr()?, std::net::TcpStream::connect(listener.local_addr()?)?);
/// cm::connect_open(&client.qp, socket.into(), peer, &options, b"", &client.channel, 7)?;
/// assert!(matches!(client.event(), CmEventKind::Posted(7)));
/// let _awaited = cm::accept_open(&server.device, listener.accept()?.0.into(), &options, &server.channel)?;
/// let CmEventKind::ConnectRequest(request) = server.event() else { return Err("no request".into()) };
/// request.accept(&server.qp, None, b"", None)?;
/// assert!(matches!(client.event(), CmEventKind::Established(_)));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Limit`] or [`Error::Zero`] if an option is out of range; [`Error::Io`] if the device
/// does not use the kernel's TCP, or for an OS error.
pub fn accept_open(
    device: &crate::Device,
    socket: OwnedFd,
    options: &Arc<ConnConfig>,
    channel: &Arc<CmChannel>,
) -> Result<AwaitedRequest> {
    let driver = Arc::clone(device.driver());
    check_options(driver.limits().max_rd_atomic, options)?;
    let shard = driver.shard_for_listener();
    shard.start()?;
    let (options, channel) = (Arc::clone(options), Arc::clone(channel));
    let token = shard.call(move |core| {
        let shared = Arc::clone(&core.services.shared);
        let sink = shared.table.reserve()?;
        let id = ConnId(shared.next_stream().0);
        let token = core.next_token();
        let opened = core.stack.open_socket(socket, None, &options.stream, token);
        let socket = opened
            .inspect_err(|_| _ = shared.table.release(sink))
            .map_err(Error::io("accepting"))?;
        let stream = RdmapStream::listen(options.stream_config(), sink, core.services.now);
        let cm = CmSide::new(id, channel);
        let mut conn = Conn::new(token, socket, stream, options, cm, &core.services);
        conn.register_addresses(&shared);
        core.fill_slot(token, Slot::Conn(Box::new(conn)));
        core.services.counters.accepted();
        // The Request may have arrived already. This also sets the timer for start-up.
        core.with_conn(token, Conn::on_readable);
        Ok::<_, Error>(token)
    })?;
    driver.note_use(token);
    Ok(AwaitedRequest { driver, token })
}
