//! A striped connection, and the turns that drive it.
//!
//! A turn runs where something has happened: in a call of the program, or in a waker that a stripe, the alarm or the listener wakes. The thread
//! that holds the stripes' lock takes the turn; one that finds it locked sets `again`, and the holder takes another. The lock of the state is
//! never held while anything is posted or woken, as both may run foreign code.

use super::port::Port;
use super::settings::StripedSettings;
use super::state::{Due, State};
use super::stripe::Stripe;
use crate::api::connection::Connection;
use crate::api::listener::Incoming;
use crate::cm::ConnInfo;
use crate::device::Device;
use crate::driver::Alarm;
use crate::error::Result;
use crate::pd::Pd;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;
use uiw_stream::Time;
use uiw_striping::wire::{Join, Reason, Request};
use uiw_striping::{Config, End, Endpoint, Role};

/// How stripes are made anew.
pub(super) enum Side {
    Initiator { peer: SocketAddr },
    Acceptor { port: Arc<Port> },
}

/// What a striped connection is made of when all of its stripes are established.
pub(super) struct Parts {
    pub(super) pd: Pd,
    pub(super) settings: StripedSettings,
    pub(super) side: Side,
    pub(super) token: [u8; 16],
    pub(super) connections: Vec<Connection>,
    /// What start-up of stripe 0 agreed on, with the program's private data.
    pub(super) info: ConnInfo,
}

/// The application's hold on a striped connection. Dropping it ends the connection.
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) device: Device,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state.lock().endpoint.abort();
        self.shared.turn();
        self.shared.forget();
    }
}

/// What only the thread that takes the turn touches.
pub(super) struct Io {
    pub(super) stripes: Vec<Stripe>,
    pub(super) alarm_at: Time,
}

pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    io: Mutex<Io>,
    again: AtomicBool,
    pub(super) waker: Waker,
    /// Set before the connection is used.
    alarm: OnceLock<Alarm>,
    pub(super) pd: Pd,
    pub(super) settings: StripedSettings,
    pub(super) side: Side,
    pub(super) token: [u8; 16],
    pub(super) info: ConnInfo,
}

/// Wakes a turn.
struct Turn(Weak<Shared>);

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.turn();
        }
    }
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Result<Arc<Self>> {
        let Parts { pd, settings, side, token, connections, info } = parts;
        let role = match side {
            Side::Initiator { .. } => Role::Initiator,
            Side::Acceptor { .. } => Role::Acceptor,
        };
        let config = Config {
            stripes: connections.len() as u8,
            depth: settings.conn.send_depth,
            recovery_timeout: settings.recovery_timeout,
        };
        let state = State::new(Endpoint::new(role, config), info.peer);
        let stripes = connections.into_iter().map(Stripe::up).collect();
        let shared = Arc::new_cyclic(|this: &Weak<Self>| Self {
            state: Mutex::new(state),
            io: Mutex::new(Io { stripes, alarm_at: Time::NEVER }),
            again: AtomicBool::new(false),
            waker: Waker::from(Arc::new(Turn(Weak::clone(this)))),
            alarm: OnceLock::new(),
            pd,
            settings,
            side,
            token,
            info,
        });
        let alarm = Alarm::new(shared.pd.driver(), shared.waker.clone())?;
        let _ = shared.alarm.set(alarm);
        Ok(shared)
    }

    /// Does what is to be done, in this thread or in the one that is at it.
    pub(super) fn turn(&self) {
        self.again.store(true, Ordering::SeqCst);
        // The holder looks at `again` after unlocking, so a failed try loses nothing.
        while self.again.load(Ordering::SeqCst)
            && let Some(mut io) = self.io.try_lock()
        {
            let mut due = Due::default();
            while self.again.swap(false, Ordering::SeqCst) {
                self.round(&mut io, &mut due);
            }
            drop(io);
            due.deliver();
        }
    }

    /// The time of the device's clock. Not with the lock of the state: wakers may run in it.
    pub(super) fn now(&self) -> Duration {
        self.alarm.get().map_or(Duration::ZERO, |alarm| Duration::from_nanos(alarm.now().as_nanos()))
    }

    /// Turns are taken at that time, too.
    pub(super) fn set_alarm(&self, io: &mut Io, at: Option<Duration>) {
        let at = at.map_or(Time::NEVER, |at| Time::default().after(at));
        if std::mem::replace(&mut io.alarm_at, at) != at
            && let Some(alarm) = self.alarm.get()
        {
            alarm.set(at);
        }
    }

    /// The alarm was due, and is not set any more.
    pub(super) fn alarm_passed(&self, io: &mut Io, now: Duration) {
        if io.alarm_at <= Time::default().after(now) {
            io.alarm_at = Time::NEVER;
        }
    }

    /// A peer with the connection's token and identity replaces a stripe.
    pub(super) fn offer(&self, incoming: Incoming, request: &Request) {
        let now = self.now();
        let Request { stripes, index, generation, delivered, .. } = *request;
        let mut state = self.state.lock();
        let refused = match state.endpoint.offer(stripes, index, generation, now) {
            Ok(()) => {
                let before = state.offers.insert(index, (incoming, delivered));
                drop(state);
                // Rejects a Request that its peer has given up.
                drop(before);
                self.turn();
                return;
            }
            Err(reason) => reason,
        };
        drop(state);
        tracing::warn!(peer = %incoming.peer_addr(), index, generation, %refused, "a stripe is rejected");
        // Fails when the peer is gone.
        let _ = incoming.reject(&Join::Rejection(refused).emit(b""));
    }

    /// Requests that have waited for the end of a stripe, and the connection has ended meanwhile.
    pub(super) fn reject_offers(&self) {
        let (waiting, is_closed) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.offers), state.endpoint.ended() == Some(End::Closed))
        };
        let reason = if is_closed { Reason::Closed } else { Reason::Unknown };
        for (incoming, _) in waiting.into_values() {
            // Fails when the peer is gone.
            let _ = incoming.reject(&Join::Rejection(reason).emit(b""));
        }
    }

    /// The listener has no such connection any more.
    pub(super) fn forget(&self) {
        if let Side::Acceptor { port } = &self.side {
            let is_closed = self.state.lock().endpoint.ended() == Some(End::Closed);
            port.forget(&self.token, is_closed);
        }
    }
}
