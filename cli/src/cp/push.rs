//! Copying files to the server.

use super::direction::{
    Direction, PageResult, ReplyResult, RequestStep, SlotReader, Violation, add_page, list_step,
};
use super::entries::{CopyDirectory, CopyItem, EntryPaths, FileEnd, LargeFile};
use super::plan::{CopyPlan, Task};
use rustix::io::Errno;
use std::fs::File;
use std::sync::Arc;
use uiw_copy::batch::{Batch, SMALL};
use uiw_copy::handler::{BlockRead, read_block};
use uiw_copy::meta::{EntryKind, Meta};
use uiw_copy::protocol::{CreateMode, FileHead, MAX_RANGES, Reply, Request};

/// Direction from this end to the server.
pub(super) struct Push;

impl Direction for Push {
    fn start(&self, plan: &CopyPlan, task: &mut Task) -> Option<RequestStep> {
        match task {
            Task::Directory(directory, known) => {
                let is_there = plan.options.dry_run || directory.is_surplus;
                let create = if is_there { CreateMode::No } else { CreateMode::Private };
                Some(list_step(&directory.place.remote, known, create))
            }
            Task::Batch(items) => read_batch(plan, items),
            Task::Link(item) => {
                let (path, target) = (item.place.remote.clone(), item.meta.target.clone());
                Some((Request::Symlink { path, target, mtime: item.meta.mtime }, None))
            }
            Task::Open(item, _) => {
                let file = FileHead { path: item.place.remote.clone(), meta: item.meta.clone() };
                Some((Request::Open { file }, None))
            }
            Task::Block(large_file, index) => {
                let large_file = Arc::clone(large_file);
                match send_block(plan, &large_file, *index)? {
                    SentPart::Block(step) => Some(step),
                    SentPart::Hole(end) => {
                        let blocks = *index..large_file.skip_hole(*index, end);
                        *task = Task::Hole(Arc::clone(&large_file), blocks.clone());
                        Some((Request::Hole { file: large_file.head(), blocks }, None))
                    }
                }
            }
            Task::Hole(large_file, blocks) => {
                Some((Request::Hole { file: large_file.head(), blocks: blocks.clone() }, None))
            }
            Task::Finish(large_file) => Some((Request::Finish { file: large_file.head() }, None)),
            Task::Remove(_, places) if !places.is_empty() => {
                let path = places.last().map(|place| place.remote.clone()).unwrap_or_default();
                Some((Request::Remove { path }, None))
            }
            Task::Seal(directory) | Task::Remove(directory, _) => {
                let (path, meta) = (directory.place.remote.clone(), &directory.meta);
                Some((Request::SetDirectory { path, mode: meta.mode, mtime: meta.mtime }, None))
            }
        }
    }

    fn reply(
        &self,
        plan: &CopyPlan,
        task: Task,
        reply: Reply,
        read_slot: SlotReader<'_>,
    ) -> ReplyResult<Option<Task>> {
        match task {
            Task::Directory(directory, mut known) => {
                match add_page(plan, &directory, &mut known, reply, read_slot)? {
                    PageResult::More => return Ok(Some(Task::Directory(directory, known))),
                    PageResult::Failed => return Ok(None),
                    PageResult::Absent if !plan.options.dry_run && !directory.is_surplus => {
                        return Err(Violation::Reply("a directory to be made"));
                    }
                    PageResult::Absent | PageResult::Complete => {}
                }
                if directory.is_surplus {
                    plan.add_surplus(&directory, known);
                    plan.on_listed(&directory);
                    return Ok(None);
                }
                match directory.place.root.list(&directory.place.local) {
                    Ok(sources) => {
                        plan.add_entries(&directory, sources, known);
                        plan.on_listed(&directory);
                    }
                    Err(error) => plan.fail_directory(&directory, error),
                }
            }
            Task::Batch(items) => on_batch_stored(plan, &items, reply)?,
            Task::Link(item) => match reply {
                Reply::Done => plan.on_copied(&item),
                Reply::Failed { text, .. } => plan.fail(&item, text),
                _ => return Err(Violation::Reply("a symbolic link")),
            },
            Task::Open(item, tried) => on_opened(plan, item, tried, reply)?,
            Task::Block(large_file, index) => {
                let bytes = large_file.head().block_len(index);
                on_block_stored(plan, &large_file, reply, || plan.report.count_moved(bytes))?;
            }
            Task::Hole(large_file, blocks) => {
                let bytes = large_file.head().range_len(&blocks);
                on_block_stored(plan, &large_file, reply, || plan.report.count_resumed(bytes))?;
            }
            Task::Finish(large_file) => on_finished(plan, large_file, reply)?,
            Task::Seal(directory) => match reply {
                Reply::Done => plan.on_sealed(&directory),
                Reply::Failed { text, .. } => plan.fail_directory(&directory, text),
                _ => return Err(Violation::Reply("a directory")),
            },
            Task::Remove(directory, places) => return on_removed(plan, directory, places, reply),
        }
        Ok(None)
    }
}

/// Handles the reply to [`Request::Finish`].
fn on_finished(plan: &CopyPlan, large_file: Arc<LargeFile>, reply: Reply) -> ReplyResult<()> {
    match reply {
        Reply::Done | Reply::Complete => {
            if large_file.cancel() {
                plan.on_large_file_copied(&large_file.item);
            }
        }
        Reply::Missing(ranges) if !ranges.is_empty() => {
            if ranges.iter().any(|range| range.end > large_file.head().blocks()) {
                return Err(Violation::Reply("blocks behind the end"));
            }
            large_file.set_missing(ranges);
            if large_file.is_endless() {
                return Err(Violation::Reply("blocks that were sent already"));
            }
            plan.add_file(large_file);
        }
        Reply::Reopen => plan.reopen(&large_file, None),
        Reply::Failed { text, .. } => plan.give_up(&large_file, &text),
        _ => return Err(Violation::Reply("the end of a file")),
    }
    Ok(())
}

/// Handles the reply to a request of [`Task::Remove`]. Returns the task if entries are left.
fn on_removed(
    plan: &CopyPlan,
    directory: Arc<CopyDirectory>,
    mut places: Vec<EntryPaths>,
    reply: Reply,
) -> ReplyResult<Option<Task>> {
    let removed = places.pop();
    let place = removed.as_ref().unwrap_or(&directory.place);
    match reply {
        Reply::Done if removed.is_some() => plan.report.report_deleted(&place.remote),
        Reply::Done => {}
        Reply::Failed { text, .. } if removed.is_some() => {
            plan.report.report_not_removed(&place.remote, &text);
        }
        Reply::Failed { text, .. } => {
            plan.report.report_failed(place.remote.as_bytes(), &text);
        }
        _ => return Err(Violation::Reply("an entry to be removed")),
    }
    match removed {
        Some(_) if !places.is_empty() => {
            return Ok(Some(Task::Remove(directory, places)));
        }
        Some(_) => plan.on_removed(&directory),
        None => plan.on_sealed_again(),
    }
    Ok(None)
}

/// Reads small files and returns the request for them. Afterwards `items` contains only the files
/// in the request.
fn read_batch(plan: &CopyPlan, items: &mut Vec<CopyItem>) -> Option<RequestStep> {
    let mut batch = Batch::default();
    let mut included = Vec::with_capacity(items.len());
    let mut rest = Vec::new();
    for mut item in items.drain(..) {
        match item.place.root.read_small(&item.place.local, SMALL) {
            Err(error) => plan.fail(&item, error),
            Ok(Err(meta)) => {
                plan.set_source(&mut item, meta);
                plan.restart(item);
            }
            Ok(Ok((meta, bytes))) => {
                if batch.add_file(&item.place.remote, &meta, &bytes) {
                    plan.set_source(&mut item, meta);
                    included.push(item);
                } else {
                    rest.push(item);
                }
            }
        }
    }
    if !rest.is_empty() {
        plan.add_small(rest);
    }
    *items = included;
    if items.is_empty() {
        return None;
    }
    let (count, hash) = (batch.count, batch.hash());
    let bytes = batch.into_bytes();
    Some((Request::PutBatch { count, len: bytes.len() as u32, hash }, Some(bytes)))
}

fn on_batch_stored(plan: &CopyPlan, items: &[CopyItem], reply: Reply) -> ReplyResult<()> {
    match reply {
        Reply::Stored(mut failures) => {
            failures.sort_unstable();
            for (item, position) in items.iter().zip(0u16..) {
                match failures.binary_search_by_key(&position, |(position, _)| *position) {
                    Ok(at) => {
                        plan.fail(item, std::io::Error::from_raw_os_error(failures[at].1.into()));
                    }
                    Err(_) => {
                        plan.report.count_moved(item.meta.size);
                        plan.on_copied(item);
                    }
                }
            }
        }
        Reply::Failed { text, .. } => items.iter().for_each(|item| plan.fail(item, &text)),
        _ => return Err(Violation::Reply("a batch")),
    }
    Ok(())
}

fn on_opened(plan: &CopyPlan, item: CopyItem, tried: u8, reply: Reply) -> ReplyResult<()> {
    match reply {
        Reply::Complete => {
            plan.report.count_resumed(item.meta.size);
            plan.on_large_file_copied(&item);
        }
        Reply::Missing(ranges) => {
            let opened = item.place.root.open_file(&item.place.local);
            let (file, meta): (File, Meta) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    plan.fail_open(&item, &error);
                    return Ok(());
                }
            };
            let is_other = meta.version != item.meta.version;
            let is_listed = ranges.len() < MAX_RANGES;
            let large_file = Arc::new(LargeFile::new(item, FileEnd::Source(file)));
            if is_other {
                plan.reopen(&large_file, Some(meta));
                return Ok(());
            }
            if ranges.iter().any(|range| range.end > large_file.head().blocks()) {
                return Err(Violation::Reply("blocks behind the end"));
            }
            let missing = large_file.set_missing(ranges);
            if is_listed && large_file.item.restarts == 0 {
                plan.report.count_resumed(large_file.item.meta.size.saturating_sub(missing));
            }
            plan.add_file(large_file);
        }
        Reply::Failed { errno, .. } if i32::from(errno) == Errno::BUSY.raw_os_error() => {
            plan.retry_later(item, tried);
        }
        Reply::Failed { text, .. } => plan.fail_open(&item, &text),
        _ => return Err(Violation::Reply("a file to be opened")),
    }
    Ok(())
}

enum SentPart {
    Block(RequestStep),
    /// The block lies in a hole that ends at this block.
    Hole(u64),
}

/// Reads a block. Returns `None` if the file has changed, cannot be read, or was cancelled.
fn send_block(plan: &CopyPlan, large_file: &LargeFile, index: u64) -> Option<SentPart> {
    let FileEnd::Source(file) = &large_file.end else { return None };
    if large_file.is_cancelled() {
        return None;
    }
    match read_block(file, &large_file.item.meta.version, index) {
        Ok(BlockRead::Block(bytes)) => {
            let hash = *blake3::hash(&bytes).as_bytes();
            let len = bytes.len() as u32;
            Some(SentPart::Block((
                Request::Put { file: large_file.head(), index, len, hash },
                Some(bytes),
            )))
        }
        Ok(BlockRead::HoleUntil(end)) => Some(SentPart::Hole(end)),
        Ok(BlockRead::Changed(_)) => {
            // The name may refer to another file by now.
            match large_file.item.place.root.meta(&large_file.item.place.local) {
                Ok(meta) if meta.kind == EntryKind::File => plan.reopen(large_file, Some(meta)),
                Ok(_) => plan.give_up(large_file, &"it is no file any more"),
                Err(error) => plan.give_up(large_file, &error),
            }
            None
        }
        Err(error) => {
            plan.give_up(large_file, &error);
            None
        }
    }
}

/// Handles the reply to a block or hole. Calls `count` if the server has stored it.
fn on_block_stored(
    plan: &CopyPlan,
    large_file: &Arc<LargeFile>,
    reply: Reply,
    count: impl FnOnce(),
) -> ReplyResult<()> {
    if large_file.is_cancelled() {
        return Ok(());
    }
    match reply {
        Reply::Done => {
            count();
            if large_file.block_done() {
                plan.push_urgent(Task::Finish(Arc::clone(large_file)));
            }
        }
        Reply::Complete | Reply::Reopen => plan.reopen(large_file, None),
        Reply::Failed { text, .. } => plan.give_up(large_file, &text),
        _ => return Err(Violation::Reply("a block")),
    }
    Ok(())
}
