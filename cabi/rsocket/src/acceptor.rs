//! Listening. A task of the service accepts connections up to the backlog, so that peers can
//! connect even if the program is not in `raccept`.

use crate::connect;
use crate::link::Link;
use crate::service;
use crate::settings;
use crate::socket::{Phase, Socket, SocketOptions};
use crate::stream::{Stream, check_peer};
use crate::wire::ConnData;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::Poll;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::lock::Mutex;
use uiw_cabi_core::ports::PortReservation;
use uiw_cabi_core::settings::Settings;
use uiw_verbs::ConnConfig;
use uiw_verbs::cm::{CmChannel, CmEvent, CmEventKind, ConnRequest, Listener};

/// Largest backlog, which is also used for 0 and negative numbers.
const MAX_BACKLOG: usize = 1024;
/// Number of the event that ends a listener's task.
const CLOSED: u64 = 0;
/// Number of the event that announces that there may be room in the backlog: the program has taken
/// a connection, or a connection has failed.
const TAKEN: u64 = 1;

/// Connections of a listening socket.
pub(crate) struct Acceptor {
    queue: Mutex<AcceptQueue>,
    channel: Arc<CmChannel>,
    /// Listener and its port, which stays reserved within this process; `None` after the listener
    /// was closed.
    listener: Mutex<Option<(Listener, PortReservation)>>,
    options: Arc<ConnConfig>,
    ipv6: bool,
}

struct AcceptQueue {
    /// True if the listener was closed, so that nothing is added to `ready`.
    is_closed: bool,
    ready: VecDeque<Arc<Socket>>,
    /// Number of connections that the peer has not confirmed yet.
    begun: usize,
    backlog: usize,
}

impl Acceptor {
    /// Takes the oldest connection. The caller holds the lock of the listening socket.
    pub(crate) fn take(&self) -> Option<Arc<Socket>> {
        let taken = self.queue.lock().ready.pop_front()?;
        self.channel.post(CmEvent::posted(TAKEN));
        Some(taken)
    }

    /// Returns whether a connection is waiting.
    pub(crate) fn is_ready(&self) -> bool {
        !self.queue.lock().ready.is_empty()
    }

    /// Closes the listener: no peer can connect any more, and connections that were not taken end.
    /// The first call returns the port.
    pub(crate) fn close(&self) -> Option<PortReservation> {
        let listening = self.listener.lock().take();
        let port = listening.map(|(listener, port)| {
            drop(listener);
            port
        });
        self.channel.post(CmEvent::posted(CLOSED));
        let waiting = {
            let mut queue = self.queue.lock();
            queue.is_closed = true;
            std::mem::take(&mut queue.ready)
        };
        waiting.iter().for_each(Socket::close);
        port
    }

    fn is_full(&self) -> bool {
        let queue = self.queue.lock();
        queue.ready.len() + queue.begun >= queue.backlog
    }
}

/// Starts to listen. A socket without an address listens on a free port of every device.
///
/// # Errors
/// EINVAL for a socket that is connected; EADDRINUSE and other errors for the address.
pub(crate) fn listen(socket: &Arc<Socket>, backlog: i32) -> Result<()> {
    let backlog =
        usize::try_from(backlog).ok().filter(|backlog| (1..MAX_BACKLOG).contains(backlog));
    let backlog = backlog.unwrap_or(MAX_BACKLOG);
    {
        let state = socket.lock();
        match &state.phase {
            Phase::Listening(acceptor) => {
                acceptor.queue.lock().backlog = backlog;
                // There may be room for requests that wait.
                acceptor.channel.post(CmEvent::posted(TAKEN));
                return Ok(());
            }
            Phase::New(Some(_)) => {}
            Phase::New(None) => {
                let any = address::any(state.ipv6);
                drop(state);
                connect::bind(socket, any)?;
            }
            _ => return Err(Errno::INVAL.because("rlisten for an rsocket that is connected")),
        }
    }
    // The socket does not listen without it.
    service::start()?;
    let mut state = socket.lock();
    let (Some(local), Phase::New(Some(_))) = (state.local, &state.phase) else {
        return Err(Errno::INVAL.because("another thread is changing the rsocket"));
    };
    let options = connect::conn_config(&state.set)?;
    let Phase::New(Some(mut port)) = std::mem::replace(&mut state.phase, Phase::New(None)) else {
        return Err(Errno::IO);
    };
    // The previous listener's task may still use the previous channel.
    let channel = Arc::default();
    let bound = engine::get()
        .and_then(|device| Ok(Listener::bind(&device, local, backlog as u32, &options, &channel)?));
    let listener = match bound {
        Ok(listener) => listener,
        Err(errno) => {
            state.phase = Phase::New(Some(port));
            return Err(errno);
        }
    };
    // The listener uses the port now, but within this process it stays reserved for the socket.
    drop(port.unbind());
    let acceptor = Arc::new(Acceptor {
        queue: Mutex::new(AcceptQueue {
            is_closed: false,
            ready: VecDeque::new(),
            begun: 0,
            backlog,
        }),
        channel,
        listener: Mutex::new(Some((listener, port))),
        options,
        ipv6: state.ipv6,
    });
    state.phase = Phase::Listening(Arc::clone(&acceptor));
    drop(state);
    service::spawn(serve(acceptor, Arc::downgrade(socket)))
}

/// Task of a listener.
async fn serve(acceptor: Arc<Acceptor>, socket: Weak<Socket>) {
    let mut waiting = VecDeque::new();
    loop {
        let event = std::future::poll_fn(|cx| acceptor.channel.poll_pop(cx)).await;
        match event.kind {
            CmEventKind::ConnectRequest(request) => waiting.push_back(request),
            CmEventKind::Posted(CLOSED) => return,
            CmEventKind::ListenerDown { error, .. } => {
                tracing::warn!(%error, "a listening rsocket is down");
            }
            _ => {}
        }
        while !acceptor.is_full()
            && let Some(request) = waiting.pop_front()
        {
            let peer = request.peer_addr();
            if let Err(error) = accept(&acceptor, &socket, request) {
                tracing::warn!(%peer, %error, "a connection of an rsocket is refused");
            }
        }
    }
}

/// Accepts a request, and returns a connection that is established when the peer has received the
/// Reply. Its events go to `channel` if given, otherwise to the channel of the request.
///
/// # Errors
/// EPROTO for a peer that is not an rsocket, or with which this end cannot communicate; the errors
/// of the engine.
pub(crate) fn answer(
    request: ConnRequest,
    set: &SocketOptions,
    options: &Arc<ConnConfig>,
    channel: Option<&Arc<CmChannel>>,
) -> Result<Box<Stream>> {
    let peer = connect::parse_conn_data(request.private_data(), request.peer_addr())?;
    let variant = settings::variant(Settings::get()?.persona);
    if let Err(errno) = check_peer(variant, &peer) {
        // The peer's log shows the reason as well.
        request.reject(&ConnData::refusal(variant).to_bytes())?;
        return Err(errno);
    }
    let sizes = set.sizes.bounded();
    let link = Link::new(&engine::get()?, &sizes, variant)?;
    let data = link.conn_data().to_bytes();
    let stream = Stream::new(link, &sizes, &peer);
    request.accept(stream.link.qp(), Some(options), &data, channel)?;
    Ok(Box::new(stream))
}

/// Accepts a request. The connection is queued when it is established.
fn accept(acceptor: &Arc<Acceptor>, listening: &Weak<Socket>, request: ConnRequest) -> Result<()> {
    // The options that the program has set on the listening socket by now.
    let set = listening.upgrade().ok_or(Errno(libc::ECONNABORTED))?.lock().set;
    let new = Socket::new(acceptor.ipv6, set);
    let (local, remote) =
        (address::to_canonical(request.local_addr()), address::to_canonical(request.peer_addr()));
    let stream = answer(request, &set, &acceptor.options, Some(new.channel()))?;
    {
        let mut state = new.lock();
        (state.local, state.peer) = (Some(local), Some(remote));
        state.phase = Phase::Accepting(stream);
    }
    acceptor.queue.lock().begun += 1;
    let (acceptor, listening) = (Arc::clone(acceptor), Weak::clone(listening));
    service::spawn(async move {
        let connected = std::future::poll_fn(|cx| {
            new.poll(cx, |state| match state.phase {
                Phase::Accepting(_) => Poll::Pending,
                Phase::Connected(..) => Poll::Ready(true),
                _ => Poll::Ready(false),
            })
        })
        .await;
        let open = {
            let mut queue = acceptor.queue.lock();
            queue.begun -= 1;
            if connected && !queue.is_closed {
                queue.ready.push_back(Arc::clone(&new));
            }
            !queue.is_closed
        };
        match listening.upgrade() {
            Some(socket) if open => socket.wake(None),
            _ => new.close(),
        }
        if !connected {
            acceptor.channel.post(CmEvent::posted(TAKEN));
        }
    })
}
