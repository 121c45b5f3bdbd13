//! What C may name: every pointer that it has from the connection manager, while it is good. A pointer to anything else, freed or
//! never ours, is answered with EINVAL and not looked at.

use crate::abi::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use crate::boundary::Result;
use crate::cm::channel::Channel;
use crate::cm::id::Id;
use crate::cm::left_behind::LeftBehind;
use crate::errno::Errno;
use crate::process;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use verbs::cm::{ConnId, ListenerId};

/// The connection manager's part of the process's state.
#[derive(Default)]
pub(crate) struct Registry {
    ids: HashMap<usize, Arc<Id>>,
    channels: HashMap<usize, Arc<Channel>>,
    events: HashSet<usize>,
    /// Who still believes in a channel that is gone.
    pub(crate) left_behind: LeftBehind,
    /// Whom the engine's events are about.
    pub(crate) conns: HashMap<ConnId, Arc<Id>>,
    pub(crate) listeners: HashMap<ListenerId, Arc<Id>>,
    /// Ports that ids of this process have, by id.
    pub(crate) ports: HashMap<usize, Port>,
    /// The protection domain of each shared context, by context.
    pub(crate) domains: HashMap<usize, usize>,
    /// Good before a fork, in the parent: destroying them is no mistake, and does nothing.
    inherited: HashSet<usize>,
}

/// A port that an id has.
#[derive(Clone, Copy)]
pub(crate) struct Port {
    /// The real address.
    pub(crate) at: SocketAddr,
    /// `RDMA_OPTION_ID_REUSEADDR`
    pub(crate) reuse: bool,
}

impl Registry {
    /// What a forked child knows of its parent's: the pointers, to ignore them.
    pub(crate) fn after_fork(&self) -> Self {
        let pointers = self.ids.keys().chain(self.channels.keys()).chain(&self.events).chain(&self.inherited);
        Self { inherited: pointers.copied().collect(), ..Self::default() }
    }

    pub(crate) fn add_id(&mut self, id: &Arc<Id>) {
        self.inherited.remove(&id.abi().addr());
        self.ids.insert(id.abi().addr(), Arc::clone(id));
    }

    pub(crate) fn id_at(&self, address: usize) -> Option<Arc<Id>> {
        self.ids.get(&address).map(Arc::clone)
    }

    pub(crate) fn remove_id(&mut self, id: &Id) {
        self.ids.remove(&id.abi().addr());
        self.ports.remove(&id.abi().addr());
    }

    pub(crate) fn add_channel(&mut self, channel: &Arc<Channel>) {
        self.inherited.remove(&channel.abi().addr());
        self.left_behind.forget(channel.abi().addr());
        self.channels.insert(channel.abi().addr(), Arc::clone(channel));
    }

    pub(crate) fn remove_channel(&mut self, channel: *mut rdma_event_channel) -> Option<Arc<Channel>> {
        self.channels.remove(&channel.addr())
    }

    pub(crate) fn add_event(&mut self, event: *mut rdma_cm_event) {
        self.inherited.remove(&event.addr());
        self.events.insert(event.addr());
    }

    /// True once for each event.
    pub(crate) fn remove_event(&mut self, event: *mut rdma_cm_event) -> bool {
        self.events.remove(&event.addr())
    }

    pub(crate) fn forget_inherited<T>(&mut self, pointer: *mut T) -> bool {
        self.inherited.remove(&pointer.addr())
    }

    fn missing<T>(&self, pointer: *mut T) -> Errno {
        if self.inherited.contains(&pointer.addr()) { Errno::INHERITED } else { Errno::INVAL }
    }
}

/// The id behind C's pointer.
///
/// # Errors
/// EINVAL when there is none; EIO when it came through a fork.
pub(crate) fn id(pointer: *mut rdma_cm_id) -> Result<Arc<Id>> {
    process::with(|process| process.cm.id_at(pointer.addr()).ok_or_else(|| process.cm.missing(pointer)))
}

/// The channel behind C's pointer.
///
/// # Errors
/// As [`id`].
pub(crate) fn channel(pointer: *mut rdma_event_channel) -> Result<Arc<Channel>> {
    process::with(|process| {
        let cm = &process.cm;
        cm.channels.get(&pointer.addr()).map(Arc::clone).ok_or_else(|| cm.missing(pointer))
    })
}
