//! Memory regions.

use crate::abi::mr as flags;
use crate::abi::{ibv_mr, ibv_pd};
use crate::boundary::{self, Result};
use crate::errno::Errno;
use crate::object::{Body, Object};
use crate::pd;
use crate::users::Used;
use parking_lot::Mutex;
use std::ffi::{c_int, c_uint, c_void};
use uiw_mem::ReregError;
use uiw_verbs::{Access, Memory, RawMr, STag};

/// A region as C holds it.
pub struct Mr {
    engine: Mutex<Option<RawMr>>,
    in_pd: Mutex<Used>,
}

impl Body for Mr {
    type Abi = ibv_mr;
    const KIND: u32 = 0x7569_6304;
}

impl Mr {
    /// The key of the region, and how much of `length` bytes from `addr` lies in it. Adapters bind windows that reach beyond
    /// their region and refuse only accesses there; this one ends with the region, which has the same effect.
    ///
    /// # Errors
    /// EINVAL while it is being deregistered.
    pub(crate) fn window(&self, addr: u64, length: u64) -> Result<(STag, u64)> {
        let engine = self.engine.lock();
        let region = engine.as_ref().ok_or(Errno::INVAL)?;
        let inside =
            addr.checked_sub(region.addr()).and_then(|offset| (region.len() as u64).checked_sub(offset));
        // What begins outside is for the bind to refuse.
        Ok((
            STag(region.rkey().0),
            inside.filter(|inside| *inside > 0).map_or(length, |inside| length.min(inside)),
        ))
    }
}

/// The rights behind C's flags.
///
/// # Errors
/// EOPNOTSUPP for on-demand paging, EINVAL for bits without a meaning.
pub fn access(flags: c_uint) -> Result<Access> {
    if flags & flags::IBV_ACCESS_ON_DEMAND != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    // Relaxed ordering and similar rights are optional; huge pages are a hint.
    let flags = flags & !(flags::IBV_ACCESS_OPTIONAL_RANGE | flags::IBV_ACCESS_HUGETLB);
    Access::from_bits(flags).ok_or(Errno::INVAL)
}

/// Memory that C guarantees to be mapped. Exclusive unless peers can reach it: verbs forbid touching bytes in flight, and
/// UIW_STABLE_TX is there for programs that do.
fn memory(addr: *mut c_void, length: usize) -> Memory {
    // SAFETY: `ibv_reg_mr`'s contract with its caller: the bytes stay mapped until the region is deregistered, and requests in
    // flight own what they name. A program that breaks it corrupts its own memory, as with any adapter.
    unsafe { Memory::borrowed(addr.cast(), length) }
}

/// # Safety
/// As for `ibv_reg_mr`.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut ibv_mr> {
    // SAFETY: the caller's promise.
    let domain = unsafe { pd::get(pd) }?;
    let access = access(flags)?;
    if length == 0 || addr.addr().checked_add(length).is_none() {
        return Err(Errno::INVAL);
    }
    let base = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    let engine = domain.engine.register_raw(memory(addr, length), base, access)?;
    let (lkey, rkey) = (engine.lkey(), engine.rkey());
    // SAFETY: the caller's promise.
    let context = unsafe { (*pd).context };
    let abi = ibv_mr { context, pd, addr, length, handle: rkey.0 >> 8, lkey: lkey.0, rkey: rkey.0 };
    Ok(Object::create(abi, Mr { engine: Mutex::new(Some(engine)), in_pd: Mutex::new(domain.users.add()) }))
}

/// `ibv_reg_mr`.
///
/// # Safety
/// `pd` is NULL or one of ours; the `length` bytes at `addr` stay mapped until the region is deregistered.
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe { register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) })
}

/// `ibv_reg_mr_iova`: the region begins at `iova` for peers and elements.
///
/// # Safety
/// As for [`ibv_reg_mr`].
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe { register(pd, addr, length, iova, access.cast_unsigned()) })
}

/// `ibv_reg_mr_iova2`.
///
/// # Safety
/// As for [`ibv_reg_mr`].
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe { register(pd, addr, length, iova, access) })
}

/// `ibv_dereg_mr`; EBUSY while windows are bound to it.
///
/// # Safety
/// `mr` is NULL or one of ours, and no thread uses it any more.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Object::<Mr>::get_any(mr) }?;
        if !object.is_inherited() {
            let mut engine = object.engine.lock();
            let region = engine.take().ok_or(Errno::INVAL)?;
            if let Err((error, region)) = region.deregister() {
                *engine = Some(region);
                return Err(error.into());
            }
        }
        // SAFETY: as above.
        unsafe { Object::<Mr>::free(mr) };
        Ok(())
    })
}

/// `ibv_rereg_mr`'s results: which part failed, and whether the region is still there.
const IBV_REREG_MR_ERR_INPUT: c_int = -1;
const IBV_REREG_MR_ERR_CMD: c_int = -4;

/// `ibv_rereg_mr`: the keys change, the object stays.
///
/// # Safety
/// `mr` is NULL or one of ours and no other thread uses it meanwhile; what is changed is as for [`ibv_reg_mr`].
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    what: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    boundary::value(IBV_REREG_MR_ERR_INPUT, || {
        // SAFETY: the caller's promise.
        Ok(match unsafe { rereg(mr, what, pd, addr, length, access) } {
            Ok(()) => 0,
            Err((code, errno)) => {
                errno.set();
                code
            }
        })
    })
}

/// # Safety
/// As for [`ibv_rereg_mr`].
unsafe fn rereg(
    mr: *mut ibv_mr,
    what: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> std::result::Result<(), (c_int, Errno)> {
    let input = |errno| (IBV_REREG_MR_ERR_INPUT, errno);
    let all = flags::IBV_REREG_MR_CHANGE_TRANSLATION
        | flags::IBV_REREG_MR_CHANGE_PD
        | flags::IBV_REREG_MR_CHANGE_ACCESS;
    if what == 0 || what & !all != 0 {
        return Err(input(Errno::INVAL));
    }
    // SAFETY: the caller's promise, here and below.
    let object = unsafe { Object::<Mr>::get(mr) }.map_err(input)?;
    let domain = match what & flags::IBV_REREG_MR_CHANGE_PD {
        0 => None,
        // SAFETY: as above.
        _ => Some(unsafe { pd::get(pd) }.map_err(input)?),
    };
    let memory = match what & flags::IBV_REREG_MR_CHANGE_TRANSLATION {
        0 => None,
        _ if length == 0 || addr.is_null() => return Err(input(Errno::INVAL)),
        _ => Some((memory(addr, length), addr.addr() as u64)),
    };
    let access = match what & flags::IBV_REREG_MR_CHANGE_ACCESS {
        0 => None,
        _ => Some(access(flags.cast_unsigned()).map_err(input)?),
    };
    let engine = object.engine.lock();
    let region = engine.as_ref().ok_or(input(Errno::INVAL))?;
    let moved = memory.is_some();
    region.rereg(domain.map(|d| &d.engine), memory, access).map_err(|error| {
        let errno = if let ReregError::WindowsBound { .. } = error { Errno::BUSY } else { Errno::INVAL };
        (IBV_REREG_MR_ERR_CMD, errno)
    })?;
    if let Some(domain) = domain {
        *object.in_pd.lock() = domain.users.add();
    }
    // SAFETY: the object lives, and C orders its own calls, so no other thread writes it during this one.
    unsafe {
        (*mr).lkey = region.lkey().0;
        (*mr).rkey = region.rkey().0;
        if domain.is_some() {
            (*mr).pd = pd;
        }
        if moved {
            (*mr).addr = addr;
            (*mr).length = length;
        }
    }
    Ok(())
}
