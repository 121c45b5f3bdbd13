//! Contexts of open devices. Every context is a view of the one engine, with its own asynchronous
//! events.

use crate::device::Device;
use crate::device_events;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::HashMap;
use std::io;
use std::mem::offset_of;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use uiw_cabi_core::abi::{ibv_context, ibv_cq, ibv_qp, ibv_srq, verbs_context};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::denied;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{self, Body, Object, ObjectKind};
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::settings::Settings;
use uiw_cabi_core::users::UnacknowledgedEvents;

/// State shared by a context and all objects created in it.
pub struct Context {
    /// Device of the context.
    pub device: &'static Device,
    /// View of the engine that belongs to this context.
    pub engine: uiw_verbs::Device,
    /// Kind of device that the program sees.
    pub persona: Persona,
    /// `cmd_fd`, which programs take for the kernel's descriptor of the context, and may duplicate.
    /// It has no function.
    _command: OwnedFd,
    /// Objects that asynchronous events can concern.
    pub(crate) numbers: Mutex<NumberedObjects>,
}

/// C's objects by the engine's numbers.
///
/// When an object is looked up for an asynchronous event, the event is counted as delivered under
/// the same lock. An object is removed from these tables before its destruction waits for delivered
/// events.
///
/// Each context has one such lock. It is held only for look-ups, and is not used for messages and
/// completion events.
#[derive(Default)]
pub(crate) struct NumberedObjects {
    pub(crate) cqs: HashMap<u32, NumberedObject<ibv_cq>>,
    pub(crate) qps: HashMap<u32, NumberedObject<ibv_qp>>,
    pub(crate) srqs: HashMap<u32, NumberedObject<ibv_srq>>,
}

/// Object of C, with its count of delivered asynchronous events.
pub(crate) struct NumberedObject<T> {
    object: *mut T,
    events: Arc<UnacknowledgedEvents>,
}

impl<T> NumberedObject<T> {
    pub(crate) fn new(object: *mut T, events: &Arc<UnacknowledgedEvents>) -> Self {
        Self { object, events: Arc::clone(events) }
    }

    /// Returns C's pointer. It may be used while the table is locked, or if the caller ensures in
    /// another way that the object is not destroyed.
    pub(crate) fn object(&self) -> *mut T {
        self.object
    }

    /// Returns C's pointer, and counts one more delivered event. The object is not destroyed until
    /// the event is acknowledged.
    pub(crate) fn deliver(&self) -> *mut T {
        self.events.deliver();
        self.object
    }
}

// SAFETY: the values are addresses, which any thread may hold, and counters that are `Send` and
// `Sync`. Only `Qp::with_number` makes a reference of an address, with `Object::get`, which looks
// it up, and its caller ensures that the object is not freed.
unsafe impl Send for NumberedObjects {}

/// Context that C refers to. Objects created in it keep the [`Context`].
pub struct OpenContext(Arc<Context>);

impl Body for OpenContext {
    type Abi = verbs_context;
    /// Last part of the `verbs_context`.
    type C = ibv_context;
    const OFFSET: usize = offset_of!(verbs_context, context);
    const KIND: ObjectKind = ObjectKind::Context;
}

impl OpenContext {
    /// Returns a reference to the context, for objects created in it.
    pub(crate) fn share(&self) -> Arc<Context> {
        Arc::clone(&self.0)
    }
}

impl Deref for OpenContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.0
    }
}

impl Context {
    /// Creates a context of `device` on `engine`. The caller has filled `abi` except for the
    /// device's pointer and the descriptors.
    ///
    /// # Errors
    /// EINVAL if an environment variable has an invalid value, EMFILE.
    pub(crate) fn create(
        device: &'static Device,
        engine: &uiw_verbs::Device,
        mut abi: verbs_context,
    ) -> Result<*mut ibv_context> {
        let engine = engine.with_own_events();
        let command = empty_descriptor()?;
        abi.context.device = device.abi();
        abi.context.async_fd = engine.async_events().fd().map_err(Errno::from)?.as_raw_fd();
        abi.context.cmd_fd = command.as_raw_fd();
        let persona = Settings::get()?.persona;
        let context =
            Self { device, engine, persona, _command: command, numbers: Mutex::default() };
        let context = Arc::new(context);
        device_events::add(&context);
        Ok(Object::create(abi, OpenContext(context)))
    }
}

fn empty_descriptor() -> Result<OwnedFd> {
    let made = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(io::Error::from);
    Ok(made.inspect_err(|error| denied::report("opening a device", error))?)
}

/// Returns whether one of our open contexts is at `address`, which is C's pointer to the last part
/// of the context.
pub(crate) fn is_alive(address: usize) -> bool {
    object::is_alive(address.wrapping_sub(OpenContext::OFFSET), OpenContext::KIND)
}
