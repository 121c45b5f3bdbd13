//! Buffers of this program to which the peer's program can write at its own offsets: `riomap`.

use crate::wire::{Mapping, Target};
use std::collections::BTreeMap;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_verbs::mapping::RegisteredRange;
use uiw_verbs::RawMr;

/// Returns the address of the peer's list of mappings, which directly follows its targets (two in
/// every implementation).
fn list_start(targets: Target) -> u64 {
    targets.addr.wrapping_add(u64::from(targets.len) * Target::LEN as u64)
}

struct MappedMemory {
    addr: usize,
    len: usize,
    /// Memory region that gives the peer access, which is kept until the mapping is removed.
    region: RawMr,
    _registered: RegisteredRange,
    offset: u64,
    published: bool,
}

/// Mappings of a connection.
pub(crate) struct Mappings {
    /// The peer's list of mappings.
    list: Target,
    /// Number of entries in that list.
    room: u16,
    /// Mappings by their index in that list.
    shared: BTreeMap<u16, MappedMemory>,
    /// Mappings without PROT_WRITE, which are not announced to the peer.
    local: Vec<MappedMemory>,
}

impl Mappings {
    pub(crate) fn new(targets: Target, room: u16) -> Self {
        let list = Target { addr: list_start(targets), key: targets.key, len: Mapping::LEN as u32 };
        Self { list, room, shared: BTreeMap::new(), local: Vec::new() }
    }

    /// Returns whether another mapping can be published.
    pub(crate) fn has_room(&self) -> bool {
        self.shared.len() < usize::from(self.room)
    }

    /// Adds the buffer of `region`, to which the peer can write at `offset` if it is `shared`.
    ///
    /// # Errors
    /// ENOMEM if the peer accepts no more mappings.
    pub(crate) fn add(
        &mut self,
        (addr, len): (usize, usize),
        (region, registered): (RawMr, RegisteredRange),
        offset: u64,
        shared: bool,
    ) -> Result<()> {
        let mapped =
            MappedMemory { addr, len, region, _registered: registered, offset, published: false };
        if !shared {
            self.local.push(mapped);
            return Ok(());
        }
        let index = (0..self.room).find(|index| !self.shared.contains_key(index));
        let index =
            index.ok_or_else(|| Errno::NOMEM.because("the peer accepts no more mappings"))?;
        self.shared.insert(index, mapped);
        Ok(())
    }

    /// Removes a buffer. From then on, the peer's writes to it fail.
    ///
    /// # Errors
    /// EINVAL if the buffer is not mapped.
    pub(crate) fn remove(&mut self, addr: usize, len: usize) -> Result<()> {
        let is = |mapped: &MappedMemory| mapped.addr == addr && mapped.len == len;
        if let Some(index) =
            self.shared.iter().find(|(_, mapped)| is(mapped)).map(|(index, _)| *index)
        {
            self.shared.remove(&index);
            return Ok(());
        }
        let at = self.local.iter().position(is);
        let at = at.ok_or_else(|| Errno::INVAL.because("the buffer is not mapped"))?;
        self.local.remove(at);
        Ok(())
    }

    /// Removes all buffers. From then on, the peer's writes to them fail.
    pub(crate) fn clear(&mut self) {
        self.shared.clear();
        self.local.clear();
    }

    /// Returns the first unpublished mapping: its index, its entry in the peer's list, and the
    /// place of that entry in the memory of the peer.
    pub(crate) fn unpublished(&self) -> Option<(u16, Mapping, Target)> {
        let (index, mapped) = self.shared.iter().find(|(_, mapped)| !mapped.published)?;
        let target = Target {
            addr: mapped.addr as u64,
            key: mapped.region.rkey().0,
            len: mapped.len as u32,
        };
        let at = self.list.addr.wrapping_add(u64::from(*index) * Mapping::LEN as u64);
        Some((*index, Mapping { offset: mapped.offset, target }, Target { addr: at, ..self.list }))
    }

    /// Marks the first unpublished mapping as published.
    pub(crate) fn published(&mut self) {
        if let Some(mapped) = self.shared.values_mut().find(|mapped| !mapped.published) {
            mapped.published = true;
        }
    }
}
