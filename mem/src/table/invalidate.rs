//! Which ends may invalidate which STags.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use uiw_ddp::STag;

use super::{Entry, EntryKind, Table, TableSlot};
use crate::{InvalidateError, PdId, Region, StreamId, WindowType, pin_count::CloseError};

impl Table {
    /// The program's own invalidation, posted on `stream` of protection domain `pd`
    /// (`IBV_WR_LOCAL_INV`): of a type 2 window on the stream it is bound to, or of a fast-register
    /// STag. Of one that is in the invalid state already it is no error. Waits until no pin is
    /// held; the calling thread must hold none.
    ///
    /// # Errors
    /// [`InvalidateError`]; nothing is changed then.
    pub fn invalidate_local(&self, stag: STag, stream: StreamId, pd: PdId) -> Result<(), InvalidateError> {
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

    /// A peer's invalidation, by a Send with Invalidate on `stream` of protection domain `pd`: of
    /// what is bound to that stream. RFC 5040 8.1.1 item 7 protects what several streams share,
    /// unless [`Table::set_lenient_invalidate`] was said. Waits until no pin is held; the calling
    /// thread must hold none.
    ///
    /// # Errors
    /// [`InvalidateError`]; nothing is changed then.
    pub fn invalidate_remote(&self, stag: STag, stream: StreamId, pd: PdId) -> Result<(), InvalidateError> {
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
                if !remotely_revocable(entry, region, lenient) {
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

fn remotely_revocable(entry: &Entry, region: &Region, lenient: bool) -> bool {
    match entry.kind() {
        EntryKind::Window(WindowType::One) => false,
        EntryKind::Window(WindowType::Two) => true,
        EntryKind::Fast { .. } => lenient || region.stream().is_some(),
    }
}

/// Takes what is valid out of its slot, if `stream` may use it.
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

/// The leniency: a plain region is revoked as a whole, for local access as well, until it is
/// registered anew.
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
            return Err(InvalidateError::CannotInvalidate { stag, what: "region with windows bound" });
        }
    }
    Ok(())
}
