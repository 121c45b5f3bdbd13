//! Buffers of this program that the peer's program writes at offsets of its own: `riomap`.

use crate::wire::{Mapping, Target};
use std::collections::BTreeMap;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_verbs::mapping::RegisteredRange;
use uiw_verbs::RawMr;

/// Entries of the peer's list behind its targets: two of them, as every implementation has.
fn list_start(targets: Target) -> u64 {
    targets.addr.wrapping_add(u64::from(targets.len) * Target::LEN as u64)
}

struct MappedMemory {
    addr: usize,
    len: usize,
    /// Kept for its drop: without it the peer has no access.
    region: RawMr,
    _registered: RegisteredRange,
    offset: u64,
    published: bool,
}

/// The mappings of a connection.
pub(crate) struct Mappings {
    /// The peer's list, and how many entries it has.
    list: Target,
    room: u16,
    /// Mappings by index in that list.
    shared: BTreeMap<u16, MappedMemory>,
    /// Mappings without PROT_WRITE, of which the peer is not informed.
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

    /// Adds the buffer of `region`, which the peer may write at `offset` if it is `shared`.
    ///
    /// # Errors
    /// ENOMEM when the peer takes no more.
    pub(crate) fn add(
        &mut self,
        (addr, len): (usize, usize),
        (region, registered): (RawMr, RegisteredRange),
        offset: u64,
        shared: bool,
    ) -> Result<()> {
        let mapped = MappedMemory { addr, len, region, _registered: registered, offset, published: false };
        if !shared {
            self.local.push(mapped);
            return Ok(());
        }
        let index = (0..self.room).find(|index| !self.shared.contains_key(index));
        let index = index.ok_or_else(|| Errno::NOMEM.because("the peer takes no more mappings"))?;
        self.shared.insert(index, mapped);
        Ok(())
    }

    /// Removes a buffer; the peer's writes to it fail from now on.
    ///
    /// # Errors
    /// EINVAL for one that is not mapped.
    pub(crate) fn remove(&mut self, addr: usize, len: usize) -> Result<()> {
        let is = |mapped: &MappedMemory| mapped.addr == addr && mapped.len == len;
        if let Some(index) = self.shared.iter().find(|(_, mapped)| is(mapped)).map(|(index, _)| *index) {
            self.shared.remove(&index);
            return Ok(());
        }
        let at = self.local.iter().position(is);
        let at = at.ok_or_else(|| Errno::INVAL.because("a buffer that is not mapped"))?;
        self.local.remove(at);
        Ok(())
    }

    /// The first mapping that is not published: its index, the entry, and where that goes.
    pub(crate) fn unpublished(&self) -> Option<(u16, Mapping, Target)> {
        let (index, mapped) = self.shared.iter().find(|(_, mapped)| !mapped.published)?;
        let target = Target { addr: mapped.addr as u64, key: mapped.region.rkey().0, len: mapped.len as u32 };
        let at = self.list.addr.wrapping_add(u64::from(*index) * Mapping::LEN as u64);
        Some((*index, Mapping { offset: mapped.offset, target }, Target { addr: at, ..self.list }))
    }

    /// It is published now.
    pub(crate) fn published(&mut self) {
        if let Some(mapped) = self.shared.values_mut().find(|mapped| !mapped.published) {
            mapped.published = true;
        }
    }
}
