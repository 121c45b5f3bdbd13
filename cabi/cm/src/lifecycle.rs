//! Creating, migrating and destroying ids.

use crate::channel::Channel;
use crate::id::{Id, Phase};
use crate::registry::RegisteredPtr as _;
use crate::routes::{self, EventSource};
use crate::{event, registry};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use uiw_cabi_core::abi::cm::{RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP};
use uiw_cabi_core::abi::{rdma_cm_id, rdma_event_channel};
use uiw_cabi_core::arguments::{AnyPtr, OutPtr};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::settings::Settings;
use uiw_verbs::cm::{CmEvent, CmEventKind};

/// Creates and registers an id.
pub(crate) fn create(channel: &Arc<Channel>, sync: bool, context: *mut c_void) -> Arc<Id> {
    let id = Id::new(channel, sync, context);
    registry::add_id(&id);
    id
}

/// Creates the channel of a synchronous id.
pub(crate) fn own_channel() -> Result<Arc<Channel>> {
    let channel = Channel::new()?;
    registry::add_channel(&channel);
    Ok(channel)
}

/// Destroys an id: ends its connection, removes its events from the channel and its pointer from
/// the registry, and then waits until C has acknowledged its events.
pub(crate) fn destroy(id: &Id) {
    acknowledge_shown(id);
    discard(id);
    id.wait_all_acknowledged();
}

/// Like [`destroy`], for an id of which C has no event.
pub(crate) fn discard(id: &Id) {
    let _control = id.control();
    let mut state = id.lock();
    if std::mem::replace(&mut state.destroyed, true) {
        return;
    }
    let phase = std::mem::replace(&mut state.phase, Phase::Over);
    let (conn, handle, port) = (state.conn.take(), state.handle.take(), state.port.take());
    let (sidr, placeholder) = (state.sidr.take(), state.placeholder.take());
    let (channel, sync) = (Arc::clone(&state.channel), state.sync);
    drop(state);
    registry::remove_id(id);
    drop(sidr);
    drop(port);
    if sync {
        drop(registry::remove_channel(channel.abi()));
    }
    if let Some(handle) = handle {
        // An orderly close continues on its own; in all other cases the connection is aborted.
        // Neither raises an event.
        handle.forget();
        if !matches!(phase, Phase::Disconnecting | Phase::Over) {
            let _ = handle.abort();
        }
    }
    drop(placeholder);
    let listener = match &phase {
        Phase::Listening(listener) => Some(listener.id()),
        Phase::SidrListening(listener) => Some(listener.id()),
        _ => None,
    };
    // Dropping a listener rejects its requests, and dropping a request rejects it.
    drop(phase);
    let sources =
        conn.map(EventSource::Conn).into_iter().chain(listener.map(EventSource::Listener));
    drop(routes::remove(sources, &channel, |event| id.is_about(event, conn)));
}

/// Acknowledges the event to which the `event` field of a synchronous id points.
pub(crate) fn acknowledge_shown(id: &Id) {
    let event = id.abi.replace(|id| &id.event, ptr::null_mut());
    if !event.is_null() {
        let _ = event::acknowledge(event);
    }
}

/// Moves an id and its pending events to another channel. Waits until C has acknowledged the id's
/// events of the previous channel.
fn migrate(id: &Id, to: &Arc<Channel>, sync: bool) -> Result<()> {
    acknowledge_shown(id);
    let control = id.control();
    let mut state = id.lock_checked()?;
    let from = std::mem::replace(&mut state.channel, Arc::clone(to));
    let was_sync = std::mem::replace(&mut state.sync, sync);
    let conn = state.conn;
    let notes =
        |event: &CmEvent| matches!(event.kind, CmEventKind::Posted(_)) && id.is_about(event, conn);
    for event in from.queue().remove_if(notes) {
        to.queue().post(event);
    }
    match &state.phase {
        Phase::Listening(listener) => listener.migrate(to.queue()),
        Phase::SidrListening(listener) => listener.migrate(to.queue()),
        // If the peer has disconnected meanwhile, this is reported when the program answers the
        // request.
        Phase::Requested(request) => drop(request.migrate(to.queue())),
        _ => {
            if let Some(sidr) = &state.sidr {
                sidr.migrate(to.queue());
            }
            let followed =
                state.handle.as_ref().is_some_and(|handle| handle.migrate(to.queue()).is_ok());
            if !followed {
                for event in from.queue().remove_if(|event| id.is_about(event, conn)) {
                    to.queue().post(event);
                }
            }
        }
    }
    id.abi.set(|id| &id.channel, to.abi());
    // Events that are delivered from now on come from the new channel, and may be acknowledged by a
    // thread that waits for this call.
    let delivered = id.delivered_events();
    drop(state);
    drop(control);
    if was_sync {
        drop(registry::remove_channel(from.abi()));
    }
    id.wait_acknowledged(delivered);
    Ok(())
}

/// `rdma_create_id`: without a channel the id is synchronous, and gets its own channel.
pub extern "C" fn rdma_create_id(
    channel: AnyPtr<rdma_event_channel>,
    id: OutPtr<'_, *mut rdma_cm_id>,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    boundary::minus_one(|| {
        id.check()?;
        check_port_space(ps)?;
        let new = if channel.is_null() {
            create(&own_channel()?, true, context)
        } else {
            create(&channel.get()?, false, context)
        };
        new.set_port_space(ps);
        id.write(new.abi())
    })
}

/// Checks that the port space is supported: those with connections, and those with datagrams if
/// datagrams are offered.
pub(crate) fn check_port_space(ps: c_int) -> Result<()> {
    match ps {
        RDMA_PS_TCP => Ok(()),
        RDMA_PS_UDP | RDMA_PS_IPOIB => match Settings::get()?.no_datagrams() {
            None => Ok(()),
            Some(reason) => Err(Errno::UNSUPPORTED.because(reason)),
        },
        RDMA_PS_IB => Err(Errno::UNSUPPORTED.because("InfiniBand addresses are not offered")),
        _ => Err(Errno::INVAL.because("unknown port space")),
    }
}

/// `rdma_destroy_id`: permitted in every state. Waits until the events of the id are acknowledged.
pub extern "C" fn rdma_destroy_id(id: AnyPtr<rdma_cm_id>) -> c_int {
    boundary::minus_one(|| {
        if registry::forget_inherited(id.as_ptr()) {
            return Ok(());
        }
        destroy(&*id.get()?);
        Ok(())
    })
}

/// `rdma_migrate_id`: without a channel the id becomes synchronous, which it must not be already.
pub extern "C" fn rdma_migrate_id(
    id: AnyPtr<rdma_cm_id>,
    channel: AnyPtr<rdma_event_channel>,
) -> c_int {
    boundary::minus_one(|| {
        let id = id.get()?;
        if channel.is_null() {
            if id.lock().sync {
                return Err(Errno::INVAL.because("the id is already synchronous"));
            }
            migrate(&id, &own_channel()?, true)
        } else {
            migrate(&id, &channel.get()?, false)
        }
    })
}
