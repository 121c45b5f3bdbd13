//! Invalidation of STags, by the program and by peers.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use uiw_ddp::STag;

use super::{Entry, EntryKind, Table, TableSlot};
use crate::{InvalidateError, PdId, Region, StreamId, WindowType, pin_count::CloseError};

impl Table {
    /// Invalidates an STag for the program, with a request on `stream` of protection domain `pd`
    /// (`IBV_WR_LOCAL_INV`): a type 2 window on the stream that it is bound to, or a fast-register
    /// STag. Succeeds if it is already invalid. Waits until no pin is held; the calling thread must
    /// hold none.
    ///
    /// # Errors
    /// An [`InvalidateError`]; nothing has changed then.
    pub fn invalidate_local(
        &self,
        stag: STag,
        stream: StreamId,
        pd: PdId,
    ) -> Result<(), InvalidateError> {
        let mut slots = self.shard(stag).0.write();
        let before = match slots.get_mut(&stag.index()) {
            Some(TableSlot::Entry(entry, now)) if entry.stag() == stag => {
                if entry.pd() != pd {
                    return Err(InvalidateError::NotAssociated { stag, stream, pd });
                }
                if entry.kind() == EntryKind::Window(WindowType::One) {
                    return Err(InvalidateError::CannotInvalidate { stag, what: entry.what() });
                }
                take_on(now, stag, stream, pd)?
            }
            Some(TableSlot::Region(region)) if region.stag() == stag => {
                return Err(InvalidateError::CannotInvalidate { stag, what: "region" });
            }
            _ => return Err(InvalidateError::InvalidStag { stag }),
        };
        drop(slots);
        self.retire(before);
        Ok(())
    }

    /// Invalidates an STag for a peer that has sent a Send with Invalidate on `stream` of
    /// protection domain `pd`. The STag must be bound to that stream: RFC 5040 8.1.1 item 7
    /// protects STags that several streams share. After [`Table::set_lenient_invalidate`], shared
    /// STags other than type 1 windows may be invalidated as well. Waits until no pin is held; the
    /// calling thread must hold none.
    ///
    /// # Errors
    /// An [`InvalidateError`]; nothing has changed then.
    pub fn invalidate_remote(
        &self,
        stag: STag,
        stream: StreamId,
        pd: PdId,
    ) -> Result<(), InvalidateError> {
        let lenient = self.lenient.load(Relaxed);
        let mut slots = self.shard(stag).0.write();
        let before = match slots.get_mut(&stag.index()) {
            Some(TableSlot::Entry(entry, now)) => {
                let Some(region) = now.as_ref().filter(|region| region.stag() == stag) else {
                    return Err(InvalidateError::InvalidStag { stag });
                };
                if region.pd() != pd {
                    return Err(InvalidateError::NotAssociated { stag, stream, pd });
                }
                if !is_remotely_revocable(entry, region, lenient) {
                    return Err(InvalidateError::CannotInvalidate { stag, what: entry.what() });
                }
                take_on(now, stag, stream, pd)?
            }
            Some(TableSlot::Region(region)) if region.stag() == stag && region.is_live() => {
                let region = region.clone();
                drop(slots);
                return invalidate_region(&region, lenient, stream, pd);
            }
            _ => return Err(InvalidateError::InvalidStag { stag }),
        };
        drop(slots);
        self.retire(before);
        Ok(())
    }
}

fn is_remotely_revocable(entry: &Entry, region: &Region, lenient: bool) -> bool {
    match entry.kind() {
        EntryKind::Window(WindowType::One) => false,
        EntryKind::Window(WindowType::Two) => true,
        EntryKind::Fast { .. } => lenient || region.stream().is_some(),
    }
}

/// Takes the valid binding out of its slot, if `stream` may use it.
fn take_on(
    now: &mut Option<Arc<Region>>,
    stag: STag,
    stream: StreamId,
    pd: PdId,
) -> Result<Option<Arc<Region>>, InvalidateError> {
    if now.as_ref().and_then(|region| region.stream()).is_some_and(|only| only != stream) {
        return Err(InvalidateError::NotAssociated { stag, stream, pd });
    }
    Ok(now.take())
}

/// Invalidates a plain region for a peer, if lenient invalidation is on. This revokes the region
/// completely, also for local access, until it is registered again.
fn invalidate_region(
    region: &Region,
    lenient: bool,
    stream: StreamId,
    pd: PdId,
) -> Result<(), InvalidateError> {
    let stag = region.stag();
    if region.pd() != pd {
        return Err(InvalidateError::NotAssociated { stag, stream, pd });
    }
    if !lenient {
        return Err(InvalidateError::CannotInvalidate {
            stag,
            what: "region shared by the streams of its PD",
        });
    }
    match region.pin_count().close() {
        Ok(()) => region.pin_count().drain(),
        Err(CloseError::Closed) => return Err(InvalidateError::InvalidStag { stag }),
        Err(CloseError::WindowsBound(_)) => {
            return Err(InvalidateError::CannotInvalidate {
                stag,
                what: "region with windows bound",
            });
        }
    }
    Ok(())
}
