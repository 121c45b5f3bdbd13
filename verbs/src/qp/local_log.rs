//! Log lines of a queue pair's local errors.

use super::inner::QpInner;
use super::local_errors::LocalDetail;
use crate::wr::Sge;
use std::sync::Arc;
use uiw_mem::{LocalError, Table};

impl QpInner {
    /// Keeps the text of an error, before the completion that has its status.
    pub(crate) fn keep_local_error(&self, detail: &LocalDetail) {
        *self.local_error.lock() = Some(detail.to_string().into());
    }

    /// Returns the text of the last error that was kept.
    pub(crate) fn local_error(&self) -> Option<Arc<str>> {
        self.local_error.lock().clone()
    }

    /// Logs an error that does not end a connection.
    #[cold]
    pub(crate) fn log_local(&self, detail: &LocalDetail) {
        self.keep_local_error(detail);
        let qp = self.num;
        if self.log_limit.permits(detail.cause) {
            tracing::warn!(qp = %format_args!("{qp:#08x}"), "{detail}");
        } else {
            tracing::debug!(qp = %format_args!("{qp:#08x}"), "{detail}");
        }
    }

    /// Describes the first unusable element of a request or a receive: its value and the limit.
    #[cold]
    pub(crate) fn explain_elements(&self, table: &Table, elements: &[Sge], write: bool) -> String {
        for (at, sge) in elements.iter().enumerate() {
            let Err(error) = table.local(sge.lkey, self.pd.id(), sge.addr, sge.length, write)
            else {
                continue;
            };
            let region =
                table.region(sge.lkey).filter(|_| matches!(error, LocalError::OutOfRange { .. }));
            let limit = region
                .map(|region| {
                    format!(", which has {} bytes from {:#x} on", region.len(), region.base())
                })
                .unwrap_or_default();
            return format!(
                "element {at} ({} bytes at {:#x}): {error}{limit}",
                sge.length, sge.addr
            );
        }
        "its memory is not mapped, or was deregistered meanwhile".to_owned()
    }
}
