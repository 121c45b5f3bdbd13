//! Shared receive queues.

use crate::context::{Context, NumberedObject, OpenContext};
use crate::pd::Pd;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use uiw_cabi_core::abi::srq as flags;
use uiw_cabi_core::abi::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, zeroed};
use uiw_cabi_core::arguments::{Handle, InOutPtr, InPtr, OutPtr, OwnedHandle};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{Body, Object, ObjectKind};
use uiw_cabi_core::users::{UnacknowledgedEvents, UserToken, Users};
use uiw_verbs::{AsyncEvent, SrqAttr};

/// Shared receive queue that C refers to.
pub struct Srq {
    context: Arc<Context>,
    /// Queue of the engine.
    pub engine: Arc<uiw_verbs::Srq>,
    /// Queue pairs that use the queue.
    pub users: Users,
    /// Asynchronous events that were delivered and not acknowledged yet.
    pub async_events: Arc<UnacknowledgedEvents>,
    _in_pd: UserToken,
}

impl Body for Srq {
    type Abi = ibv_srq;
    type C = ibv_srq;
    const KIND: ObjectKind = ObjectKind::Srq;
}

/// Creates a queue, and stores its actual attributes in `attr`.
pub fn create(
    domain: &Object<Pd>,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq> {
    attr.max_sge = attr.max_sge.max(1);
    let engine = domain.engine.create_srq(SrqAttr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        // Only `ibv_modify_srq` arms the limit, as with siw.
        limit: 0,
    })?;
    let number = engine.num();
    let mut abi: ibv_srq = zeroed();
    abi.context = domain.abi.get(|pd| &pd.context);
    abi.srq_context = srq_context;
    abi.pd = domain.abi();
    abi.handle = number;
    let srq = Srq {
        context: Arc::clone(&domain.context),
        engine,
        users: Users::default(),
        async_events: Arc::default(),
        _in_pd: domain.users.add(),
    };
    let events = Arc::clone(&srq.async_events);
    let srq = Object::create(abi, srq);
    domain.context.numbers.lock().srqs.insert(number, NumberedObject::new(srq, &events));
    Ok(srq)
}

/// `ibv_create_srq`.
pub extern "C" fn ibv_create_srq(
    pd: Handle<'_, Pd>,
    init: InOutPtr<'_, ibv_srq_init_attr>,
) -> *mut ibv_srq {
    boundary::pointer(|| {
        let init = init.get()?;
        create(pd.get()?, init.srq_context, &mut init.attr)
    })
}

/// `ibv_create_srq_ex`: supports only basic queues, not those for XRC and tag matching.
pub(crate) extern "C" fn create_srq_ex(
    context: Handle<'_, OpenContext>,
    init: InOutPtr<'_, ibv_srq_init_attr_ex>,
) -> *mut ibv_srq {
    boundary::pointer(|| {
        context.get()?;
        let given = init.get_ref()?;
        let typed = given.comp_mask & flags::IBV_SRQ_INIT_ATTR_TYPE != 0;
        let known = flags::IBV_SRQ_INIT_ATTR_TYPE | flags::IBV_SRQ_INIT_ATTR_PD;
        if typed && given.srq_type != flags::IBV_SRQT_BASIC || given.comp_mask & !known != 0 {
            return Err(
                Errno::UNSUPPORTED.because("only basic shared receive queues are supported")
            );
        }
        if given.comp_mask & flags::IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(Errno::INVAL.because("the attributes contain no protection domain"));
        }
        let (domain, init) = (init.object(|init| &init.pd)?, init.get()?);
        create(domain, init.srq_context, &mut init.attr)
    })
}

/// `ibv_get_srq_num`: fails, because only queues for XRC have a number that peers could use.
pub(crate) extern "C" fn get_srq_num(srq: Handle<'_, Srq>, _number: OutPtr<'_, u32>) -> c_int {
    boundary::code(|| {
        srq.get()?;
        Err(Errno::UNSUPPORTED.because("basic shared receive queues have no number"))
    })
}

/// `ibv_modify_srq`: changes the depth and the limit.
pub extern "C" fn ibv_modify_srq(
    srq: Handle<'_, Srq>,
    attr: InPtr<'_, ibv_srq_attr>,
    mask: c_int,
) -> c_int {
    boundary::code(|| {
        let (srq, attr) = (srq.get()?, attr.get()?);
        if mask & !(flags::IBV_SRQ_MAX_WR | flags::IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::INVAL.because("unknown attributes (srq_attr_mask)"));
        }
        let depth = (mask & flags::IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & flags::IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        Ok(srq.engine.modify(depth, limit)?)
    })
}

/// `ibv_query_srq`.
pub extern "C" fn ibv_query_srq(srq: Handle<'_, Srq>, attr: OutPtr<'_, ibv_srq_attr>) -> c_int {
    boundary::code(|| {
        let now = srq.get()?.engine.query();
        attr.write(ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit })
    })
}

/// `ibv_destroy_srq`: waits until every delivered event is acknowledged. Returns EBUSY while queue
/// pairs use the queue.
pub extern "C" fn ibv_destroy_srq(srq: OwnedHandle<'_, Srq>) -> c_int {
    boundary::code(|| srq.destroy(|srq| srq.leave()))
}

impl Srq {
    /// Unregisters the queue: no event refers to it afterwards, and the program has acknowledged
    /// all delivered events.
    fn leave(&self) -> Result<()> {
        self.users.check_none("queue pairs use the shared receive queue")?;
        let number = self.engine.num();
        self.context.numbers.lock().srqs.remove(&number);
        let about = |event: &AsyncEvent| matches!(event, AsyncEvent::SrqLimitReached { srq } if *srq == number);
        drop(self.context.engine.async_events().remove_if(about));
        self.async_events.wait();
        Ok(())
    }
}
