//! Code for both directions of a transfer.

use super::entries::{CopyDirectory, LISTS_FULL};
use super::plan::{CopyPlan, Task};
use std::sync::Arc;
use uiw_copy::meta::Entry;
use uiw_copy::names::RelPath;
use uiw_copy::protocol::{CreateMode, Reply, Request, decode_entries};
use uiw_copy::wire::WireError;

/// A request, and the bytes that are written into its slot before.
pub(super) type RequestStep = (Request, Option<Vec<u8>>);

/// A violation of the protocol by the server.
#[derive(Debug, thiserror::Error)]
pub(super) enum Violation {
    /// The bytes are not a valid message.
    #[error("violates the protocol: {0}")]
    Wire(#[from] WireError),
    /// The reply does not belong to its request.
    #[error("gave an answer that does not belong to the request ({0})")]
    Reply(&'static str),
}

pub(super) type ReplyResult<T> = Result<T, Violation>;

/// Function that returns the first bytes of the slot of a reply.
pub(super) type SlotReader<'a> = &'a dyn Fn(u32) -> Vec<u8>;

/// Direction of a transfer: to the server or from it.
pub(super) trait Direction: Send + Sync {
    /// Begins a task or its next step, and returns the request for the server. `None` means that
    /// the task is over.
    fn start(&self, plan: &CopyPlan, task: &mut Task) -> Option<RequestStep>;

    /// Handles the server's reply to the last step. Returns the task if it has another step.
    ///
    /// # Errors
    /// Returns a [`Violation`] if the reply is not valid.
    fn reply(
        &self,
        plan: &CopyPlan,
        task: Task,
        reply: Reply,
        read_slot: SlotReader<'_>,
    ) -> ReplyResult<Option<Task>>;
}

/// Returns the request for the entries of a directory after those that are known.
pub(super) fn list_step(path: &RelPath, known: &[Entry], create: CreateMode) -> RequestStep {
    let after = known.last().map(|entry| entry.name.as_bytes().to_vec()).unwrap_or_default();
    (Request::List { path: path.clone(), after, create }, None)
}

/// Adds a page of a directory list to `known`.
pub(super) fn add_page(
    plan: &CopyPlan,
    directory: &Arc<CopyDirectory>,
    known: &mut Vec<Entry>,
    reply: Reply,
    read_slot: SlotReader<'_>,
) -> ReplyResult<PageResult> {
    match reply {
        Reply::Listed { len, more } => {
            let page = decode_entries(&read_slot(len))?;
            // Requiring sorted names ensures that the list ends, and that no name occurs twice.
            let first = known.len().saturating_sub(1);
            let is_empty = page.is_empty();
            if !directory.reserve(&page) {
                plan.fail_directory(directory, LISTS_FULL);
                return Ok(PageResult::Failed);
            }
            known.extend(page);
            if (more && is_empty) || !known[first..].is_sorted_by(|a, b| a.name < b.name) {
                return Err(Violation::Reply("a list that is not in order"));
            }
            Ok(if more { PageResult::More } else { PageResult::Complete })
        }
        Reply::Absent => Ok(PageResult::Absent),
        Reply::Failed { text, .. } => {
            plan.fail_directory(directory, text);
            Ok(PageResult::Failed)
        }
        _ => Err(Violation::Reply("a list")),
    }
}

/// Result of the request for a page.
pub(super) enum PageResult {
    More,
    Complete,
    /// The directory does not exist.
    Absent,
    Failed,
}
