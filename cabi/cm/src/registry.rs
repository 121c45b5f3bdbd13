//! Every pointer that C has from the connection manager, while it is valid. A pointer to anything
//! else, freed or never given out by this library, is answered with EINVAL and not read through.

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
    /// The box belongs to C until it is acknowledged.
    Event,
    /// Valid before a fork, in the parent: destroying it is no error, and does nothing.
    Inherited,
}

/// Known objects by address. Every call of the connection manager begins with a look-up here, so
/// the table is in shards, each with a lock that is held for the look-up alone.
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
    // Unlocked: what it refers to may take locks when it is dropped.
    drop(before);
}

/// Removes what `is` accepts.
fn remove(address: usize, is: impl FnOnce(&RegistryEntry) -> bool) -> Option<RegistryEntry> {
    let mut shard = shard(address).write();
    if shard.0.get(&address).is_some_and(is) { shard.0.remove(&address) } else { None }
}

/// The error for a pointer that names something else, or nothing.
fn invalid(known: Option<&RegistryEntry>) -> Errno {
    if let Some(RegistryEntry::Inherited) = known {
        Errno::INHERITED.because("the id or channel was made in the parent, before a fork")
    } else {
        Errno::INVAL
            .because("a pointer to no such id, channel or event: NULL, destroyed, or of another library")
    }
}

/// C may name `id` from now on.
pub(crate) fn add_id(id: &Arc<Id>) {
    add(id.abi().addr(), RegistryEntry::Id(Arc::clone(id)));
}

/// C may not name the id any more.
pub(crate) fn remove_id(id: &Id) {
    drop(remove(id.abi().addr(), |known| matches!(known, RegistryEntry::Id(_))));
}

/// The id at an address, if there is one.
pub(crate) fn id_at(address: usize) -> Option<Arc<Id>> {
    match shard(address).read().0.get(&address) {
        Some(RegistryEntry::Id(id)) => Some(Arc::clone(id)),
        _ => None,
    }
}

/// Every id.
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

/// Pointer of C's that is looked up here.
pub(crate) trait RegisteredPtr {
    /// The Rust value that belongs to it.
    type Value;

    /// The value behind C's pointer.
    ///
    /// # Errors
    /// EINVAL when there is none; EIO when it came through a fork.
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

/// C may name `channel` from now on.
pub(crate) fn add_channel(channel: &Arc<Channel>) {
    orphaned::remove(channel.abi().addr());
    add(channel.abi().addr(), RegistryEntry::Channel(Arc::clone(channel)));
}

/// C may not name the channel any more.
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

/// C may acknowledge `event` from now on.
pub(crate) fn add_event(event: *mut rdma_cm_event) {
    add(event.addr(), RegistryEntry::Event);
}

/// True once for each event.
pub(crate) fn remove_event(event: *mut rdma_cm_event) -> bool {
    remove(event.addr(), |known| matches!(known, RegistryEntry::Event)).is_some()
}

/// Returns whether the pointer came through a fork. It is forgotten.
pub(crate) fn forget_inherited<T>(pointer: *mut T) -> bool {
    remove(pointer.addr(), |known| matches!(known, RegistryEntry::Inherited)).is_some()
}
