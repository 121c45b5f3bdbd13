//! Registry of all pointers that C has from the connection manager and that are valid. For any
//! other pointer, freed or not created by this library, calls return EINVAL without reading through
//! the pointer.

use crate::channel::Channel;
use crate::id::Id;
use crate::orphaned;
use std::collections::BTreeMap;
use std::sync::Arc;
use uiw_cabi_core::abi::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use uiw_cabi_core::arguments::AnyPtr;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::fork::{ForkSafe, ForkState};
use uiw_cabi_core::lock::RwLock;

enum RegistryEntry {
    Id(Arc<Id>),
    Channel(Arc<Channel>),
    /// The box belongs to C until the event is acknowledged.
    Event,
    /// The object was valid in the parent, before a fork. Destroying it succeeds and does nothing.
    Inherited,
}

/// Registered objects by address. Every call of the connection manager begins with a look-up in
/// this table, so it is divided into shards, each with a lock that is held only for the look-up.
struct PointerTable(BTreeMap<usize, RegistryEntry>);

impl ForkState for PointerTable {
    const NEW: Self = Self(BTreeMap::new());

    fn in_child(&mut self) {
        for known in self.0.values_mut() {
            std::mem::forget(std::mem::replace(known, RegistryEntry::Inherited));
        }
    }
}

static POINTERS: ForkSafe<PointerTable, 64> = ForkSafe::new();

fn shard(address: usize) -> &'static RwLock<PointerTable> {
    POINTERS.shard(address as u64)
}

fn add(address: usize, known: RegistryEntry) {
    let before = shard(address).write().0.insert(address, known);
    // The previous entry is dropped after the lock is released, because the object to which it
    // refers may take locks when it is dropped.
    drop(before);
}

/// Removes the entry at `address` if `is` accepts it.
fn remove(address: usize, is: impl FnOnce(&RegistryEntry) -> bool) -> Option<RegistryEntry> {
    let mut shard = shard(address).write();
    if shard.0.get(&address).is_some_and(is) { shard.0.remove(&address) } else { None }
}

/// Returns the error for a pointer to another kind of object, or to none.
fn invalid(known: Option<&RegistryEntry>) -> Errno {
    if let Some(RegistryEntry::Inherited) = known {
        Errno::INHERITED.because("the id or channel was created by the parent, before a fork")
    } else {
        Errno::INVAL
            .because("the pointer refers to no such id, channel or event: it is NULL, was destroyed, or belongs to another library")
    }
}

/// Registers `id`, which C may use from now on.
pub(crate) fn add_id(id: &Arc<Id>) {
    add(id.abi().addr(), RegistryEntry::Id(Arc::clone(id)));
}

/// Removes the id, which C may not use any more.
pub(crate) fn remove_id(id: &Id) {
    drop(remove(id.abi().addr(), |known| matches!(known, RegistryEntry::Id(_))));
}

/// Returns the id at an address, if there is one.
pub(crate) fn id_at(address: usize) -> Option<Arc<Id>> {
    match shard(address).read().0.get(&address) {
        Some(RegistryEntry::Id(id)) => Some(Arc::clone(id)),
        _ => None,
    }
}

/// Returns all ids.
pub(crate) fn ids() -> Vec<Arc<Id>> {
    let mut ids = Vec::new();
    POINTERS.visit_all(|shard| {
        ids.extend(shard.0.values().filter_map(|known| match known {
            RegistryEntry::Id(id) => Some(Arc::clone(id)),
            _ => None,
        }));
    });
    ids
}

/// Pointer of C that is looked up in this registry.
pub(crate) trait RegisteredPtr {
    /// Rust value that belongs to the pointer.
    type Value;

    /// Returns the value for C's pointer.
    ///
    /// # Errors
    /// EINVAL if there is none; EIO if it was inherited through a fork.
    fn get(self) -> Result<Arc<Self::Value>>;
}

impl RegisteredPtr for AnyPtr<rdma_cm_id> {
    type Value = Id;

    fn get(self) -> Result<Arc<Id>> {
        let address = self.as_ptr().addr();
        match shard(address).read().0.get(&address) {
            Some(RegistryEntry::Id(id)) => Ok(Arc::clone(id)),
            other => Err(invalid(other)),
        }
    }
}

/// Registers `channel`, which C may use from now on.
pub(crate) fn add_channel(channel: &Arc<Channel>) {
    orphaned::remove(channel.abi().addr());
    add(channel.abi().addr(), RegistryEntry::Channel(Arc::clone(channel)));
}

/// Removes the channel, which C may not use any more.
pub(crate) fn remove_channel(channel: *mut rdma_event_channel) -> Option<Arc<Channel>> {
    match remove(channel.addr(), |known| matches!(known, RegistryEntry::Channel(_))) {
        Some(RegistryEntry::Channel(channel)) => Some(channel),
        _ => None,
    }
}

impl RegisteredPtr for AnyPtr<rdma_event_channel> {
    type Value = Channel;

    fn get(self) -> Result<Arc<Channel>> {
        let address = self.as_ptr().addr();
        match shard(address).read().0.get(&address) {
            Some(RegistryEntry::Channel(channel)) => Ok(Arc::clone(channel)),
            other => Err(invalid(other)),
        }
    }
}

/// Registers `event`, which C may acknowledge from now on.
pub(crate) fn add_event(event: *mut rdma_cm_event) {
    add(event.addr(), RegistryEntry::Event);
}

/// Removes an event. Returns true once for each event.
pub(crate) fn remove_event(event: *mut rdma_cm_event) -> bool {
    remove(event.addr(), |known| matches!(known, RegistryEntry::Event)).is_some()
}

/// Removes the pointer if it was inherited through a fork, and returns whether it was.
pub(crate) fn forget_inherited<T>(pointer: *mut T) -> bool {
    remove(pointer.addr(), |known| matches!(known, RegistryEntry::Inherited)).is_some()
}
