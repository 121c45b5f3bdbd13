//! Memory regions.

use crate::fault_handler;
use crate::mapping::{self, RegisteredRange};
use crate::pd::Pd;
use parking_lot::Mutex;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use uiw_cabi_core::abi::mr as flags;
use uiw_cabi_core::abi::{ibv_mr, ibv_sge};
use uiw_cabi_core::arguments::{ArrayPtr, Count, Handle, OwnedHandle};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{Body, Object};
use uiw_cabi_core::users::UserToken;
use uiw_mem::ReregError;
use uiw_verbs::{Access, Memory, RawMr, STag};

/// A region as C holds it.
pub struct Mr {
    engine: Mutex<Option<RawMr>>,
    in_pd: Mutex<UserToken>,
    registered: Mutex<RegisteredRange>,
}

impl Body for Mr {
    type Abi = ibv_mr;
    type C = ibv_mr;
    const KIND: u32 = 0x7569_6304;
}

impl Mr {
    /// The key of the region, and how much of `length` bytes from `addr` lies in it. Adapters bind
    /// windows that reach beyond their region and refuse only accesses there; this one ends with
    /// the region, which has the same effect.
    ///
    /// # Errors
    /// EINVAL while it is being deregistered.
    pub(crate) fn window(&self, addr: u64, length: u64) -> Result<(STag, u64)> {
        let engine = self.engine.lock();
        let region = engine
            .as_ref()
            .ok_or_else(|| Errno::INVAL.because("the region is deregistered by another call"))?;
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
/// EINVAL for bits without a meaning.
pub fn access(flags: c_uint) -> Result<Access> {
    // Relaxed ordering and similar rights are optional; huge pages are a hint, and on-demand paging
    // is of the memory.
    let flags =
        flags & !(flags::IBV_ACCESS_OPTIONAL_RANGE | flags::IBV_ACCESS_HUGETLB | flags::IBV_ACCESS_ON_DEMAND);
    Access::from_bits(flags)
        .ok_or_else(|| Errno::INVAL.because(format_args!("access flags {flags:#x} have no meaning")))
}

/// Memory of the program as a region needs it.
struct ProgramMemory {
    memory: Memory,
    registered: RegisteredRange,
    /// Address of the first byte of `memory`.
    start: u64,
}

/// The first address that a region of all memory has: no program has the pages in front of it.
const LOWEST: usize = 4096;

/// The `length` bytes at `addr`, after the checks that the kernel makes of what it pins. Exclusive
/// unless peers can reach it: verbs forbid touching bytes in flight, and UIW_STABLE_TX is there for
/// programs that do.
///
/// # Errors
/// The errors of the table in the module [`mapping`](crate::mapping).
fn bytes(addr: *mut c_void, length: usize, flags: c_uint) -> Result<ProgramMemory> {
    let on_demand = flags & flags::IBV_ACCESS_ON_DEMAND != 0;
    let start = addr.addr();
    fault_handler::install();
    if on_demand && start == 0 && length == usize::MAX {
        let (lowest, all) = (ptr::without_provenance_mut(LOWEST), isize::MAX.cast_unsigned() - LOWEST);
        // SAFETY: the program leaves the bytes that its requests name to the device until they
        // complete (ibv_post_send(3)); every access finds out whether they are mapped.
        let memory = unsafe { Memory::on_demand(lowest, all) };
        return Ok(ProgramMemory { memory, registered: RegisteredRange::on_demand(), start: LOWEST as u64 });
    }
    if length == 0 || start.checked_add(length).is_none() {
        return Err(Errno::INVAL
            .because(format_args!("{length} bytes at {addr:p} are none, or run past the last address")));
    }
    if on_demand {
        // SAFETY: the program leaves the bytes that its requests name to the device until they
        // complete (ibv_post_send(3)); every access finds out whether they are mapped.
        let memory = unsafe { Memory::on_demand(addr.cast(), length) };
        return Ok(ProgramMemory { memory, registered: RegisteredRange::on_demand(), start: start as u64 });
    }
    // As the kernel: with any of these rights pages are pinned for writing.
    let write = flags & (flags::IBV_ACCESS_WRITABLE) != 0;
    mapping::check(start, length, write)?;
    // SAFETY: the program leaves the bytes that its requests name to the device until they complete
    // (ibv_post_send(3)); what it unmaps before that is discarded by the functions of the C library
    // that this library exports (`mapping`).
    let memory = unsafe { Memory::foreign(addr.cast(), length) };
    let registered = memory
        .page_state()
        .map_or(RegisteredRange::on_demand(), |page_state| RegisteredRange::new(start, length, page_state));
    Ok(ProgramMemory { memory, registered, start: start as u64 })
}

/// The `length` bytes at `addr` of a program for a region of this library's own, which peers may
/// write if it is `writable`, and the note of what the program unmaps, which is kept as long as the
/// region.
///
/// # Errors
/// As for `ibv_reg_mr`.
pub fn program_memory(addr: *mut c_void, length: usize, writable: bool) -> Result<(Memory, RegisteredRange)> {
    let flags = if writable { flags::IBV_ACCESS_WRITABLE } else { 0 };
    bytes(addr, length, flags).map(|bytes| (bytes.memory, bytes.registered))
}

/// Registers memory of the program. `iova`, if given, is where the region begins for peers and
/// elements.
pub(crate) fn register(
    domain: &Object<Pd>,
    addr: *mut c_void,
    length: usize,
    iova: Option<u64>,
    flags: c_uint,
) -> Result<*mut ibv_mr> {
    let access = access(flags)?;
    let ProgramMemory { memory, registered, start } = bytes(addr, length, flags)?;
    // A region of all memory begins behind its address.
    let base = match iova {
        _ if access.contains(Access::ZERO_BASED) => 0,
        Some(iova) => iova.saturating_add(start - addr.addr() as u64),
        None => start,
    };
    add(domain, memory, registered, RegionBounds { addr, length, base }, access)
}

/// Address of a region for the program, and its base for peers and in elements.
pub(crate) struct RegionBounds {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) base: u64,
}

/// Makes a region of `memory`.
pub(crate) fn add(
    domain: &Object<Pd>,
    memory: Memory,
    registered: RegisteredRange,
    bounds: RegionBounds,
    access: Access,
) -> Result<*mut ibv_mr> {
    let RegionBounds { addr, length, base } = bounds;
    let engine = domain.engine.register_raw(memory, base, access)?;
    let (lkey, rkey) = (engine.lkey(), engine.rkey());
    let (context, pd) = (domain.abi.get(|pd| &pd.context), domain.abi());
    let abi = ibv_mr { context, pd, addr, length, handle: rkey.0 >> 8, lkey: lkey.0, rkey: rkey.0 };
    let mr = Mr {
        engine: Mutex::new(Some(engine)),
        in_pd: Mutex::new(domain.users.add()),
        registered: Mutex::new(registered),
    };
    Ok(Object::create(abi, mr))
}

/// `ibv_reg_mr`.
pub extern "C" fn ibv_reg_mr(
    pd: Handle<'_, Pd>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    boundary::pointer(|| register(pd.get()?, addr, length, None, access.cast_unsigned()))
}

/// `ibv_reg_mr_iova`: the region begins at `iova` for peers and elements.
pub extern "C" fn ibv_reg_mr_iova(
    pd: Handle<'_, Pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    boundary::pointer(|| register(pd.get()?, addr, length, Some(iova), access.cast_unsigned()))
}

/// `ibv_reg_mr_iova2`.
pub extern "C" fn ibv_reg_mr_iova2(
    pd: Handle<'_, Pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    boundary::pointer(|| register(pd.get()?, addr, length, Some(iova), access))
}

/// `ibv_dereg_mr`; EBUSY while windows are bound to it.
pub extern "C" fn ibv_dereg_mr(mr: OwnedHandle<'_, Mr>) -> c_int {
    boundary::code(|| {
        mr.destroy(|mr| {
            let mut engine = mr.engine.lock();
            let region = engine
                .take()
                .ok_or_else(|| Errno::INVAL.because("the region is deregistered by another call"))?;
            if let Err((error, region)) = region.deregister() {
                *engine = Some(region);
                return Err(error.into());
            }
            Ok(())
        })
    })
}

/// `ibv_rereg_mr`'s results: which part failed, and whether the region is still there.
const IBV_REREG_MR_ERR_INPUT: c_int = -1;
const IBV_REREG_MR_ERR_CMD: c_int = -4;

/// `ibv_rereg_mr`: the keys change, the object stays.
pub extern "C" fn ibv_rereg_mr(
    mr: Handle<'_, Mr>,
    what: c_int,
    pd: Handle<'_, Pd>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    boundary::value(IBV_REREG_MR_ERR_INPUT, || {
        Ok(match rereg(mr, what, pd, addr, length, access) {
            Ok(()) => 0,
            Err((code, errno)) => {
                errno.set();
                code
            }
        })
    })
}

fn rereg(
    mr: Handle<'_, Mr>,
    what: c_int,
    pd: Handle<'_, Pd>,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> std::result::Result<(), (c_int, Errno)> {
    let input = |errno| (IBV_REREG_MR_ERR_INPUT, errno);
    let all = flags::IBV_REREG_MR_CHANGE_TRANSLATION
        | flags::IBV_REREG_MR_CHANGE_PD
        | flags::IBV_REREG_MR_CHANGE_ACCESS;
    if what == 0 || what & !all != 0 {
        return Err(input(Errno::INVAL.because("nothing, or something unknown, is to change")));
    }
    let object = mr.get().map_err(input)?;
    let domain = match what & flags::IBV_REREG_MR_CHANGE_PD {
        0 => None,
        _ => Some(pd.get().map_err(input)?),
    };
    let memory = match what & flags::IBV_REREG_MR_CHANGE_TRANSLATION {
        0 => None,
        _ if addr.is_null() => return Err(input(Errno::INVAL.because("ibv_rereg_mr to memory at NULL"))),
        _ => Some(bytes(addr, length, flags.cast_unsigned()).map_err(input)?),
    };
    let access = match what & flags::IBV_REREG_MR_CHANGE_ACCESS {
        0 => None,
        _ => Some(access(flags.cast_unsigned()).map_err(input)?),
    };
    let engine = object.engine.lock();
    let region = engine
        .as_ref()
        .ok_or_else(|| input(Errno::INVAL.because("the region is deregistered by another call")))?;
    let (memory, registered) = match memory {
        Some(ProgramMemory { memory, registered, start }) => (Some((memory, start)), Some(registered)),
        None => (None, None),
    };
    region.rereg(domain.map(|d| &d.engine), memory, access).map_err(|error| {
        let errno = if let ReregError::WindowsBound { .. } = error { Errno::BUSY } else { Errno::INVAL }
            .because(error);
        (IBV_REREG_MR_ERR_CMD, errno)
    })?;
    object.abi.set(|mr| &mr.lkey, region.lkey().0);
    object.abi.set(|mr| &mr.rkey, region.rkey().0);
    if let Some(domain) = domain {
        *object.in_pd.lock() = domain.users.add();
        object.abi.set(|mr| &mr.pd, domain.abi());
    }
    if let Some(registered) = registered {
        *object.registered.lock() = registered;
        object.abi.set(|mr| &mr.addr, addr);
        object.abi.set(|mr| &mr.length, length);
    }
    Ok(())
}

/// `ibv_advise_mr`: makes pages of on-demand regions present. Without the flag to flush it is a
/// hint, and an error is none.
pub(crate) extern "C" fn advise_mr<'a>(
    pd: Handle<'_, Pd>,
    advice: c_int,
    flags: u32,
    list: ArrayPtr<'a, ibv_sge>,
    count: Count<'a, u32>,
) -> c_int {
    const FLUSH: u32 = 1;
    const PREFETCH: c_int = 0;
    const PREFETCH_WRITE: c_int = 1;
    const PREFETCH_NO_FAULT: c_int = 2;
    boundary::code(|| {
        pd.get()?;
        let write = match advice {
            PREFETCH => false,
            PREFETCH_WRITE => true,
            // For what is present already: there is nothing to do.
            PREFETCH_NO_FAULT => return Ok(()),
            _ => return Err(Errno::UNSUPPORTED.because(format_args!("advice {advice} is not known"))),
        };
        if flags & !FLUSH != 0 {
            return Err(Errno::INVAL.because(format_args!("flags {flags:#x} are not known")));
        }
        for sge in list.copies(count)? {
            let start = usize::try_from(sge.addr).map_err(|_| Errno::INVAL.out_of_range())?;
            let checked = mapping::check(start, sge.length as usize, write);
            if flags & FLUSH != 0 {
                checked?;
            }
        }
        Ok(())
    })
}
