//! Open devices. Every context is a view of the one engine, with asynchronous events of its own.

use crate::abi::{self, ibv_context, ibv_device, verbs_context};
use crate::boundary::{self, Result};
use crate::device::{self, Device};
use crate::errno::Errno;
use crate::object::{Body, Object};
use crate::persona::Persona;
use crate::settings::Settings;
use crate::{cq, cq_ex, mw, pd, post, process, qp, srq};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::c_int;
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// What a context and everything made in it share.
pub struct Context {
    /// Its device.
    pub device: &'static Device,
    /// The engine, as this context's own view.
    pub engine: verbs::Device,
    /// What the program takes it for.
    pub persona: Persona,
    /// What programs take for the kernel's descriptor of the context, and may duplicate; nothing can be asked of it.
    _command: OwnedFd,
    /// Objects that events are about.
    pub(crate) numbers: Mutex<Numbers>,
}

/// C's objects by the engine's numbers. Who takes an event looks here, under the lock, and counts it as delivered before
/// letting go; who destroys an object leaves here first.
#[derive(Default)]
pub(crate) struct Numbers {
    pub(crate) cqs: HashMap<u32, *mut abi::ibv_cq_ex>,
    pub(crate) qps: HashMap<u32, *mut abi::ibv_qp_ex>,
    pub(crate) srqs: HashMap<u32, *mut abi::ibv_srq>,
}

// SAFETY: the pointers are used under the lock alone, and objects leave the maps before they are freed.
unsafe impl Send for Numbers {}

/// The body of a `verbs_context`.
pub(crate) struct Opened(Arc<Context>);

impl Body for Opened {
    type Abi = verbs_context;
    const KIND: u32 = 0x7569_6301;
}

/// Where the `ibv_context` that C has lies in its `verbs_context`.
const TAIL: usize = offset_of!(verbs_context, context);

impl Context {
    /// The context behind C's pointer.
    ///
    /// # Safety
    /// `context` is NULL or one of ours, and nobody closes it during `'a`.
    ///
    /// # Errors
    /// EINVAL for NULL and for what is none; EIO for one that came through a fork.
    pub unsafe fn get<'a>(context: *mut ibv_context) -> Result<&'a Arc<Self>> {
        // SAFETY: the caller's promise.
        unsafe { Ok(&Object::<Opened>::get(whole(context))?.0) }
    }
}

/// Opens `device` once more.
///
/// # Errors
/// Those of opening the engine.
pub fn open(device: &'static Device) -> Result<*mut ibv_context> {
    let engine = process::with(process::Process::engine)?.with_own_events();
    let async_fd = engine.async_events().fd().map_err(Errno::from)?.as_raw_fd();
    let persona = Settings::get()?.persona;
    let command = empty_descriptor()?;
    let command_fd = command.as_raw_fd();
    let context = Context { device, engine, persona, _command: command, numbers: Mutex::default() };
    // SAFETY: integers, pointers and optional functions.
    let mut abi: verbs_context = unsafe { abi::zeroed() };
    fill(&mut abi, device, async_fd);
    abi.context.cmd_fd = command_fd;
    let opened = Object::<Opened>::create(abi, Opened(Arc::new(context)));
    // SAFETY: the tail of the structure just made.
    Ok(unsafe { &raw mut (*opened).context })
}

fn empty_descriptor() -> Result<OwnedFd> {
    // SAFETY: makes a descriptor, which belongs to nobody else.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            -1 => Err(Errno::last()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

fn fill(abi: &mut verbs_context, device: &'static Device, async_fd: c_int) {
    abi.query_port = Some(device::port::query_port_long);
    abi.alloc_parent_domain = Some(pd::alloc_parent_domain);
    abi.alloc_td = Some(pd::alloc_td);
    abi.dealloc_td = Some(pd::dealloc_td);
    abi.query_rt_values = Some(device::attributes::query_rt_values);
    abi.create_cq_ex = Some(cq_ex::create_cq_ex);
    abi.query_device_ex = Some(device::attributes::query_device_ex);
    abi.create_qp_ex = Some(qp::create_qp_ex);
    abi.get_srq_num = Some(srq::get_srq_num);
    abi.create_srq_ex = Some(srq::create_srq_ex);
    abi.sz = size_of::<verbs_context>();
    let context = &mut abi.context;
    context.device = device.abi();
    context.ops.alloc_mw = Some(mw::alloc_mw);
    context.ops.bind_mw = Some(mw::bind_mw);
    context.ops.dealloc_mw = Some(mw::dealloc_mw);
    context.ops.poll_cq = Some(cq::poll_cq);
    context.ops.req_notify_cq = Some(cq::req_notify_cq);
    context.ops.post_srq_recv = Some(post::post_srq_recv);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    context.async_fd = async_fd;
    context.num_comp_vectors = 1;
    context.abi_compat = usize::MAX;
}

/// The context that the connection manager uses for everybody, of the device that has `address`; opened once a device.
///
/// # Errors
/// ENODEV when no device has the address; those of [`open`].
pub fn for_address(address: IpAddr) -> Result<*mut ibv_context> {
    shared(device::with_address(address)?)
}

/// The context that the connection manager uses for everybody, of `device`.
///
/// # Errors
/// Those of [`open`].
pub fn shared(device: &'static Device) -> Result<*mut ibv_context> {
    let name = device.netdev_name();
    if let Some(context) = process::with(|process| process.shared.get(name).copied()) {
        return Ok(context as *mut ibv_context);
    }
    let new = open(device)?;
    let kept = process::with(|process| *process.shared.entry(name.to_owned()).or_insert(new as usize));
    if kept != new as usize {
        // Another thread was quicker.
        // SAFETY: made above, and nobody else has seen it.
        unsafe { close(new) };
    }
    Ok(kept as *mut ibv_context)
}

/// The structure whose tail C's pointer names, if it names one.
fn whole<T>(context: *mut ibv_context) -> *mut T {
    context.wrapping_byte_sub(TAIL).cast()
}

/// # Safety
/// `context` is one of ours, and nobody uses it any more.
unsafe fn close(context: *mut ibv_context) {
    // SAFETY: the caller's promise.
    unsafe { Object::<Opened>::free(whole(context)) };
}

/// `ibv_open_device`.
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    boundary::pointer(|| open(Device::get(device)?))
}

/// `ibv_close_device`.
///
/// # Safety
/// `context` is NULL or one of ours, and nobody uses it any more.
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    boundary::minus_one(|| {
        // SAFETY: the caller's promise.
        unsafe {
            Object::<Opened>::get_any(whole(context))?;
            close(context);
        }
        Ok(())
    })
}

/// `ibv_fork_init`: nothing is pinned and no hardware writes, so there is nothing to prepare.
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: `IBV_FORK_UNNEEDED`.
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

/// `ibv_dontfork_range` and `ibv_dofork_range`: nothing to do, as for [`ibv_fork_init`].
pub extern "C" fn fork_range(_base: *mut std::ffi::c_void, _size: usize) -> c_int {
    0
}
