//! Queue pair of the engine for a connection for which the program has no RC queue pair.
//!
//! On InfiniBand and RoCE the connection manager exchanges its own messages, and a connection does
//! not need a queue pair. UCX passes the number of a UD queue pair that it does not use, exchanges
//! its addresses as private data, and moves RC queue pairs itself. On iWARP a connection is a
//! stream, which must belong to a queue pair: this placeholder. Nothing is posted to it, and it
//! lives as long as the id.

use uiw_cabi_core::boundary::Result;
use uiw_cabi_verbs::context::Context;
use uiw_verbs::{CqConfig, Qp, QpCap, QpInit};

/// Creates a placeholder, which keeps its own protection domain and completion queue.
pub(crate) fn create(context: &Context) -> Result<Qp> {
    let pd = context.engine.alloc_pd()?;
    let cq = context.engine.create_cq(1, CqConfig::default())?;
    let cap =
        QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    Ok(pd.create_qp(QpInit::new(&cq, &cq).cap(cap))?)
}
