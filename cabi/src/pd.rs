//! Protection domains, and the thread and parent domains that some programs make of them.

use crate::abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use crate::boundary::{self, Result};
use crate::context::Context;
use crate::errno::Errno;
use crate::object::{Body, Object};
use crate::users::{Used, Users};
use std::ffi::c_int;
use std::sync::Arc;

/// A protection domain as C holds it.
pub struct Pd {
    /// Its context.
    pub context: Arc<Context>,
    /// The engine's; a parent domain is another handle of the domain under it.
    pub engine: uiw_verbs::Pd,
    /// C's objects in it.
    pub users: Users,
    /// Of a parent domain: the one under it is in use.
    _under: Option<Used>,
}

impl Body for Pd {
    type Abi = ibv_pd;
    const KIND: u32 = 0x7569_6302;
}

fn create(context: *mut ibv_context, pd: Pd) -> *mut ibv_pd {
    let handle = pd.engine.num();
    Object::create(ibv_pd { context, handle }, pd)
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// `context` is NULL or one of ours.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        let open = unsafe { Context::get(context) }?;
        let engine = open.engine.alloc_pd()?;
        Ok(create(context, Pd { context: Arc::clone(open), engine, users: Users::default(), _under: None }))
    })
}

/// `ibv_dealloc_pd`; EBUSY while anything is in it.
///
/// # Safety
/// `pd` is NULL or one of ours, and no thread uses it any more.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Object::<Pd>::get_any(pd) }?;
        if !object.is_inherited() && object.users.any() {
            return Err(Errno::BUSY.because("objects of the protection domain are left"));
        }
        // SAFETY: as above.
        unsafe { Object::<Pd>::free(pd) };
        Ok(())
    })
}

/// A thread domain: a promise of the program that one thread at a time uses what is in it. The engine does not need it.
struct Td(#[expect(dead_code, reason = "keeps the context")] Arc<Context>);

impl Body for Td {
    type Abi = ibv_td;
    const KIND: u32 = 0x7569_6303;
}

/// `ibv_alloc_td`.
///
/// # Safety
/// `context` is NULL or one of ours, `attr` is NULL or readable.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        let (open, attr) =
            unsafe { (Context::get(context)?, attr.as_ref().ok_or_else(|| Errno::INVAL.null())?) };
        if attr.comp_mask != 0 {
            return Err(Errno::INVAL.because("attributes that are not known (comp_mask)"));
        }
        Ok(Object::create(ibv_td { context }, Td(Arc::clone(open))))
    })
}

/// `ibv_dealloc_td`.
///
/// # Safety
/// `td` is NULL or one of ours, and no thread uses it any more.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise.
        unsafe {
            Object::<Td>::get_any(td)?;
            Object::<Td>::free(td);
        }
        Ok(())
    })
}

/// `ibv_alloc_parent_domain`: another handle of the same domain. Its allocators are for queues in memory that the program chooses;
/// the engine allocates its own, so they are never called.
///
/// # Safety
/// `context` is NULL or one of ours, `attr` is NULL or readable with pointers of ours in it.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const ALLOCATORS_AND_CONTEXT: u32 = 3;
    boundary::pointer(|| {
        // SAFETY: the caller's promise, here and below.
        let (open, attr) =
            unsafe { (Context::get(context)?, attr.as_ref().ok_or_else(|| Errno::INVAL.null())?) };
        if attr.comp_mask & !ALLOCATORS_AND_CONTEXT != 0 {
            return Err(Errno::INVAL.because("attributes that are not known (comp_mask)"));
        }
        // SAFETY: as above.
        let under = unsafe { Object::<Pd>::get(attr.pd) }?;
        if !attr.td.is_null() {
            // SAFETY: as above.
            unsafe { Object::<Td>::get(attr.td) }?;
        }
        let pd = Pd {
            context: Arc::clone(open),
            engine: under.engine.clone(),
            users: Users::default(),
            _under: Some(under.users.add()),
        };
        Ok(create(context, pd))
    })
}

/// The engine's domain behind C's pointer.
///
/// # Safety
/// `pd` is NULL or one of ours.
///
/// # Errors
/// As [`Object::get`].
pub unsafe fn get<'a>(pd: *mut ibv_pd) -> Result<&'a Object<Pd>> {
    // SAFETY: the caller's promise.
    unsafe { Object::get(pd) }
}
