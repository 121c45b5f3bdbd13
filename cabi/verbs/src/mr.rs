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
use uiw_cabi_core::object::{Body, Object, ObjectKind};
use uiw_cabi_core::users::UserToken;
use uiw_mem::{LocalError, ReregError};
use uiw_verbs::{Access, Memory, RawMr, STag, Sge};

/// Memory region that C refers to.
pub struct Mr {
    engine: Mutex<Option<RawMr>>,
    in_pd: Mutex<UserToken>,
    registered: Mutex<RegisteredRange>,
}

impl Body for Mr {
    type Abi = ibv_mr;
    type C = ibv_mr;
    const KIND: ObjectKind = ObjectKind::Mr;
}

impl Mr {
    /// Returns the key of the region, and how many of the `length` bytes from `addr` on lie in it.
    /// RDMA adapters bind windows that extend beyond their region, and refuse only accesses there.
    /// Truncating the window at the end of the region has the same effect.
    ///
    /// # Errors
    /// EINVAL while the region is being deregistered.
    pub(crate) fn window(&self, addr: u64, length: u64) -> Result<(STag, u64)> {
        let engine = self.engine.lock();
        let region = engine
            .as_ref()
            .ok_or_else(|| Errno::INVAL.because("another call is deregistering the region"))?;
        let inside = addr
            .checked_sub(region.addr())
            .and_then(|offset| (region.len() as u64).checked_sub(offset));
        // The bind itself refuses a window that begins outside the region.
        Ok((
            STag(region.rkey().0),
            inside.filter(|inside| *inside > 0).map_or(length, |inside| length.min(inside)),
        ))
    }
}

/// Converts C's access flags.
///
/// # Errors
/// EINVAL for undefined flags.
pub fn access(flags: c_uint) -> Result<Access> {
    // Relaxed ordering and similar flags are optional, huge pages are a hint, and on-demand paging
    // is a property of the memory.
    let flags = flags
        & !(flags::IBV_ACCESS_OPTIONAL_RANGE
            | flags::IBV_ACCESS_HUGETLB
            | flags::IBV_ACCESS_ON_DEMAND);
    Access::from_bits(flags)
        .ok_or_else(|| Errno::INVAL.because(format_args!("access flags {flags:#x} are undefined")))
}

/// Memory of the program, in the form that a region needs.
struct ProgramMemory {
    memory: Memory,
    registered: RegisteredRange,
    /// Address of the first byte of `memory`.
    start: u64,
}

/// First address of a region of all memory. No program has the page before it.
const LOWEST: usize = 4096;

/// Returns the `length` bytes at `addr`, after the checks that the kernel makes before it pins
/// memory. The memory is exclusive unless peers can access it, because verbs forbid changes to
/// bytes in flight; UIW_STABLE_TX is for programs that make such changes.
///
/// # Errors
/// The errors of the table in the module [`mapping`].
fn bytes(addr: *mut c_void, length: usize, flags: c_uint) -> Result<ProgramMemory> {
    let on_demand = flags & flags::IBV_ACCESS_ON_DEMAND != 0;
    let start = addr.addr();
    fault_handler::install();
    if on_demand && start == 0 && length == usize::MAX {
        let (lowest, all) =
            (ptr::without_provenance_mut(LOWEST), isize::MAX.cast_unsigned() - LOWEST);
        // SAFETY: an access to bytes that are not mapped fails (`fault_handler`) or ends the
        // process. The engine accesses only bytes that requests name. Until a request completes,
        // the program does not use its buffers (ibv_post_send(3), ibv_post_recv(3)). Memory for
        // peers is shared, and accessed atomically.
        let memory = unsafe { Memory::on_demand(lowest, all) };
        return Ok(ProgramMemory {
            memory,
            registered: RegisteredRange::on_demand(),
            start: LOWEST as u64,
        });
    }
    if length == 0 || start.checked_add(length).is_none() {
        return Err(Errno::INVAL.because(format_args!(
            "{length} bytes at {addr:p} are empty or exceed the address space"
        )));
    }
    if on_demand {
        // SAFETY: an access to bytes that are not mapped fails (`fault_handler`) or ends the
        // process. Until a request completes, the program does not access its buffers
        // (ibv_post_send(3), ibv_post_recv(3)). Memory that a peer may access is shared, and the
        // engine accesses it atomically.
        let memory = unsafe { Memory::on_demand(addr.cast(), length) };
        return Ok(ProgramMemory {
            memory,
            registered: RegisteredRange::on_demand(),
            start: start as u64,
        });
    }
    // Like the kernel, which pins pages for writing if there is any of these rights.
    let write = flags & (flags::IBV_ACCESS_WRITABLE) != 0;
    mapping::check(start, length, write)?;
    // SAFETY: `mapping::check` has found the bytes accessible. Once they are not, an access fails
    // (`fault_handler`) or ends the process; `mapping` says what it discards. Until a request
    // completes, the program does not use its buffers (ibv_post_send(3), ibv_post_recv(3)). The
    // engine accesses memory that peers can access atomically.
    let memory = unsafe { Memory::foreign(addr.cast(), length) };
    let registered = memory.page_state().map_or(RegisteredRange::on_demand(), |page_state| {
        RegisteredRange::new(start, length, page_state)
    });
    Ok(ProgramMemory { memory, registered, start: start as u64 })
}

/// Returns the `length` bytes at `addr` for a region that this library registers itself; peers may
/// write it if it is `writable`. The [`RegisteredRange`] records which bytes the program unmaps,
/// and must be kept as long as the region.
///
/// # Errors
/// The errors of `ibv_reg_mr`.
pub fn program_memory(
    addr: *mut c_void,
    length: usize,
    writable: bool,
) -> Result<(Memory, RegisteredRange)> {
    let flags = if writable { flags::IBV_ACCESS_WRITABLE } else { 0 };
    bytes(addr, length, flags).map(|bytes| (bytes.memory, bytes.registered))
}

/// Registers memory of the program. For peers and in elements the region begins at 0 if it is
/// zero-based, otherwise at `iova` if given, otherwise at its own address.
pub(crate) fn register(
    domain: &Object<Pd>,
    addr: *mut c_void,
    length: usize,
    iova: Option<u64>,
    flags: c_uint,
) -> Result<*mut ibv_mr> {
    let access = access(flags)?;
    let ProgramMemory { memory, registered, start } = bytes(addr, length, flags)?;
    // A region of all memory begins after its nominal address.
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

/// Registers a region of `memory`, and creates its object.
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

/// `ibv_reg_mr_iova`: for peers and in elements the region begins at `iova`.
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

/// `ibv_dereg_mr`: returns EBUSY while windows are bound to the region.
pub extern "C" fn ibv_dereg_mr(mr: OwnedHandle<'_, Mr>) -> c_int {
    boundary::code(|| {
        mr.destroy(|mr| {
            let mut engine = mr.engine.lock();
            let region = engine
                .take()
                .ok_or_else(|| Errno::INVAL.because("another call is deregistering the region"))?;
            if let Err((error, region)) = region.deregister() {
                *engine = Some(region);
                return Err(error.into());
            }
            Ok(())
        })
    })
}

/// Results of `ibv_rereg_mr`. They tell which part failed, and whether the region still exists.
const IBV_REREG_MR_ERR_INPUT: c_int = -1;
const IBV_REREG_MR_ERR_CMD: c_int = -4;

/// `ibv_rereg_mr`: changes the keys, but keeps the object.
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
        return Err(input(Errno::INVAL.because("the call changes nothing, or something unknown")));
    }
    if flags != 0 && what & flags::IBV_REREG_MR_CHANGE_ACCESS == 0 {
        return Err(input(
            Errno::INVAL.because("access rights without IBV_REREG_MR_CHANGE_ACCESS"),
        ));
    }
    let object = mr.get().map_err(input)?;
    let domain = match what & flags::IBV_REREG_MR_CHANGE_PD {
        0 => None,
        _ => Some(pd.get().map_err(input)?),
    };
    let access = match what & flags::IBV_REREG_MR_CHANGE_ACCESS {
        0 => None,
        _ => Some(access(flags.cast_unsigned()).map_err(input)?),
    };
    let mut engine = object.engine.lock();
    let region = engine
        .as_mut()
        .ok_or_else(|| input(Errno::INVAL.because("another call is deregistering the region")))?;
    let memory = match what & flags::IBV_REREG_MR_CHANGE_TRANSLATION {
        0 => None,
        _ if addr.is_null() => {
            return Err(input(Errno::INVAL.because("ibv_rereg_mr with memory at NULL")));
        }
        _ => {
            let rights = access.map_or(region.region().access().bits(), |_| flags.cast_unsigned());
            Some(bytes(addr, length, rights).map_err(input)?)
        }
    };
    let (memory, registered) = match memory {
        Some(ProgramMemory { memory, registered, start }) => {
            (Some((memory, start)), Some(registered))
        }
        None => (None, None),
    };
    region.rereg(domain.map(|d| &d.engine), memory, access).map_err(|error| {
        let errno =
            if let ReregError::WindowsBound { .. } = error { Errno::BUSY } else { Errno::INVAL }
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

/// `ibv_advise_mr`: makes pages of on-demand regions present. Without the flag to flush, the advice
/// is a hint, and pages that cannot be made present are not reported.
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
        let domain = pd.get()?;
        if !matches!(advice, PREFETCH | PREFETCH_WRITE | PREFETCH_NO_FAULT) {
            return Err(Errno::UNSUPPORTED.because(format_args!("advice {advice} is unknown")));
        }
        let write = advice == PREFETCH_WRITE;
        if flags & !FLUSH != 0 {
            return Err(Errno::INVAL.because(format_args!("flags {flags:#x} are unknown")));
        }
        for sge in list.copies(count)? {
            let element = Sge { addr: sge.addr, length: sge.length, lkey: STag(sge.lkey) };
            let range = domain.engine.resolve(element, write).map_err(advice_error)?;
            // The last advice concerns only pages that are already present.
            if advice != PREFETCH_NO_FAULT {
                let checked = mapping::check(range.start, range.len(), write);
                if flags & FLUSH != 0 {
                    checked?;
                }
            }
        }
        Ok(())
    })
}

/// Returns the error of `ibv_advise_mr` for an invalid element, as in the kernel's mlx5 driver.
fn advice_error(error: LocalError) -> Errno {
    let number = match error {
        LocalError::InvalidLkey { .. } => libc::ENOENT,
        LocalError::ProtectionDomain { .. } | LocalError::NotWritable { .. } => libc::EPERM,
        LocalError::OutOfRange { .. } => libc::EFAULT,
    };
    Errno(number).because(error)
}
