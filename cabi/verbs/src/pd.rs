//! Protection domains, and the thread domains and parent domains that some programs create in
//! addition.

use crate::context::{Context, OpenContext};
use std::ffi::c_int;
use std::sync::Arc;
use uiw_cabi_core::abi::{ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use uiw_cabi_core::arguments::{Handle, InPtr, OwnedHandle};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{Body, Object, ObjectKind};
use uiw_cabi_core::users::{UserToken, Users};

/// Protection domain that C refers to.
pub struct Pd {
    /// Open device to which the domain belongs.
    pub context: Arc<Context>,
    /// Domain of the engine. A parent domain is another handle of the domain on which it is based.
    pub engine: uiw_verbs::Pd,
    /// C's objects in the domain.
    pub users: Users,
    /// Tokens that keep the domain on which a parent domain is based, and its thread domain, from
    /// being deallocated.
    _uses: [Option<UserToken>; 2],
}

impl Body for Pd {
    type Abi = ibv_pd;
    type C = ibv_pd;
    const KIND: ObjectKind = ObjectKind::Pd;
}

impl Pd {
    fn create(
        context: &Object<OpenContext>,
        engine: uiw_verbs::Pd,
        uses: [Option<UserToken>; 2],
    ) -> *mut ibv_pd {
        let abi = ibv_pd { context: context.abi(), handle: engine.num() };
        Object::create(
            abi,
            Self { context: context.share(), engine, users: Users::default(), _uses: uses },
        )
    }

    /// Creates a domain.
    pub fn alloc(context: &Object<OpenContext>) -> Result<*mut ibv_pd> {
        Ok(Self::create(context, context.engine.alloc_pd()?, [None, None]))
    }
}

/// `ibv_alloc_pd`.
pub extern "C" fn ibv_alloc_pd(context: Handle<'_, OpenContext>) -> *mut ibv_pd {
    boundary::pointer(|| Pd::alloc(context.get()?))
}

/// `ibv_dealloc_pd`: returns EBUSY while there are objects in the domain.
pub extern "C" fn ibv_dealloc_pd(pd: OwnedHandle<'_, Pd>) -> c_int {
    boundary::code(|| {
        pd.destroy(|pd| pd.users.check_none("there are still objects in the protection domain"))
    })
}

/// Thread domain, by which the program promises that only one thread at a time uses the objects in
/// it. The engine does not use this promise.
pub(crate) struct Td {
    /// Parent domains with this thread domain.
    users: Users,
    _context: Arc<Context>,
}

impl Body for Td {
    type Abi = ibv_td;
    type C = ibv_td;
    const KIND: ObjectKind = ObjectKind::Td;
}

/// `ibv_alloc_td`.
pub(crate) extern "C" fn alloc_td(
    context: Handle<'_, OpenContext>,
    attr: InPtr<'_, ibv_td_init_attr>,
) -> *mut ibv_td {
    boundary::pointer(|| {
        let (context, attr) = (context.get()?, attr.get()?);
        if attr.comp_mask != 0 {
            return Err(Errno::INVAL.because("unknown attributes (comp_mask)"));
        }
        Ok(Object::create(
            ibv_td { context: context.abi() },
            Td { users: Users::default(), _context: context.share() },
        ))
    })
}

/// `ibv_dealloc_td`: returns EBUSY while parent domains use the thread domain.
pub(crate) extern "C" fn dealloc_td(td: OwnedHandle<'_, Td>) -> c_int {
    boundary::code(|| td.destroy(|td| td.users.check_none("parent domains use the thread domain")))
}

/// `ibv_alloc_parent_domain`: creates another handle of the same domain. Its allocators are meant
/// for queues in memory that the program chooses. They are never called, because the engine
/// allocates its own queues.
pub(crate) extern "C" fn alloc_parent_domain(
    context: Handle<'_, OpenContext>,
    attr: InPtr<'_, ibv_parent_domain_init_attr>,
) -> *mut ibv_pd {
    const ALLOCATORS_AND_CONTEXT: u32 = 3;
    boundary::pointer(|| {
        let (context, given) = (context.get()?, attr.get()?);
        if given.comp_mask & !ALLOCATORS_AND_CONTEXT != 0 {
            return Err(Errno::INVAL.because("unknown attributes (comp_mask)"));
        }
        let under: &Object<Pd> = attr.object(|attr| &attr.pd)?;
        let thread_domain: Option<&Object<Td>> = match given.td.is_null() {
            true => None,
            false => Some(attr.object(|attr| &attr.td)?),
        };
        let uses = [Some(under.users.add()), thread_domain.map(|td| td.users.add())];
        Ok(Pd::create(context, under.engine.clone(), uses))
    })
}
