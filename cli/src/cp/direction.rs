//! What both directions of a transfer have in common.

use super::plan::{Plan, Task};
use super::transfer::{Directory, LISTS_FULL};
use std::sync::Arc;
use uiw_copy::meta::Entry;
use uiw_copy::names::RelPath;
use uiw_copy::protocol::{Create, Reply, Request, decode_entries};
use uiw_copy::wire::WireError;

/// A request, and the bytes that go into its slot before it.
pub(super) type Step = (Request, Option<Vec<u8>>);

/// A server did what it must not.
#[derive(Debug, thiserror::Error)]
pub(super) enum Violation {
    /// Its bytes are no message.
    #[error("violates the protocol: {0}")]
    Wire(#[from] WireError),
    /// The reply does not belong to its request.
    #[error("gave an answer that does not belong to the request ({0})")]
    Reply(&'static str),
}

pub(super) type Checked<T> = Result<T, Violation>;

/// Gives the first bytes of the slot of a reply.
pub(super) type Landed<'a> = &'a dyn Fn(u32) -> Vec<u8>;

/// To the server, or from it.
pub(super) trait Direction: Send + Sync {
    /// Begins a task, or takes its next step: what the server is asked for. `None`: nothing; the
    /// task is over.
    fn start(&self, plan: &Plan, task: &mut Task) -> Option<Step>;

    /// The server's answer to the last step. The task comes back if it has another step.
    ///
    /// # Errors
    /// [`Violation`].
    fn reply(&self, plan: &Plan, task: Task, reply: Reply, landed: Landed<'_>) -> Checked<Option<Task>>;
}

/// Asks for the entries of a directory behind those that are known.
pub(super) fn list(path: &RelPath, known: &[Entry], create: Create) -> Step {
    let after = known.last().map(|entry| entry.name.as_bytes().to_vec()).unwrap_or_default();
    (Request::List { path: path.clone(), after, create }, None)
}

/// Adds a page of a list.
pub(super) fn listed(
    plan: &Plan,
    directory: &Arc<Directory>,
    known: &mut Vec<Entry>,
    reply: Reply,
    landed: Landed<'_>,
) -> Checked<Page> {
    match reply {
        Reply::Listed { len, more } => {
            let page = decode_entries(&landed(len))?;
            // In order it ends, and no name is there twice.
            let first = known.len().saturating_sub(1);
            let is_empty = page.is_empty();
            if !directory.reserve(&page) {
                plan.fail_directory(directory, LISTS_FULL);
                return Ok(Page::Failed);
            }
            known.extend(page);
            if (more && is_empty) || !known[first..].is_sorted_by(|a, b| a.name < b.name) {
                return Err(Violation::Reply("a list that is not in order"));
            }
            Ok(if more { Page::More } else { Page::Complete })
        }
        Reply::Absent => Ok(Page::Absent),
        Reply::Failed { text, .. } => {
            plan.fail_directory(directory, text);
            Ok(Page::Failed)
        }
        _ => Err(Violation::Reply("a list")),
    }
}

/// What became of a page.
pub(super) enum Page {
    More,
    Complete,
    /// There is no such directory.
    Absent,
    Failed,
}
