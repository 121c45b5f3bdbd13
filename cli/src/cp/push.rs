//! Files to the server.

use super::direction::{Checked, Direction, Landed, Page, Step, Violation, list, listed};
use super::plan::{Plan, Task};
use super::transfer::{FileEnd, Item, Transfer};
use rustix::io::Errno;
use std::fs::File;
use std::sync::Arc;
use uiw_copy::batch::{Batch, SMALL};
use uiw_copy::handler::{Read, read_block};
use uiw_copy::meta::{Kind, Meta};
use uiw_copy::protocol::{Create, FileHead, MAX_RANGES, Reply, Request};

/// See the module.
pub(super) struct Push;

impl Direction for Push {
    fn start(&self, plan: &Plan, task: &mut Task) -> Option<Step> {
        match task {
            Task::Directory(directory, known) => {
                let is_there = plan.rules.dry_run || directory.is_surplus;
                let create = if is_there { Create::No } else { Create::Private };
                Some(list(&directory.place.remote, known, create))
            }
            Task::Batch(items) => batch(plan, items),
            Task::Link(item) => {
                let (path, target) = (item.place.remote.clone(), item.meta.target.clone());
                Some((Request::Symlink { path, target, mtime: item.meta.mtime }, None))
            }
            Task::Open(item, _) => {
                let file = FileHead { path: item.place.remote.clone(), meta: item.meta.clone() };
                Some((Request::Open { file }, None))
            }
            Task::Block(transfer, index) => {
                let transfer = Arc::clone(transfer);
                match block(plan, &transfer, *index)? {
                    SentPart::Block(step) => Some(step),
                    SentPart::Hole(end) => {
                        let blocks = *index..transfer.skip(*index, end);
                        *task = Task::Hole(Arc::clone(&transfer), blocks.clone());
                        Some((Request::Hole { file: transfer.head(), blocks }, None))
                    }
                }
            }
            Task::Hole(transfer, blocks) => {
                Some((Request::Hole { file: transfer.head(), blocks: blocks.clone() }, None))
            }
            Task::Finish(transfer) => Some((Request::Finish { file: transfer.head() }, None)),
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

    fn reply(&self, plan: &Plan, task: Task, reply: Reply, landed: Landed<'_>) -> Checked<Option<Task>> {
        match task {
            Task::Directory(directory, mut known) => {
                match listed(plan, &directory, &mut known, reply, landed)? {
                    Page::More => return Ok(Some(Task::Directory(directory, known))),
                    Page::Failed => return Ok(None),
                    Page::Absent if !plan.rules.dry_run && !directory.is_surplus => {
                        return Err(Violation::Reply("a directory to be made"));
                    }
                    Page::Absent | Page::Complete => {}
                }
                if directory.is_surplus {
                    plan.add_surplus(&directory, known);
                    plan.listed(&directory);
                    return Ok(None);
                }
                match directory.place.root.list(&directory.place.local) {
                    Ok(sources) => {
                        plan.add_entries(&directory, sources, known);
                        plan.listed(&directory);
                    }
                    Err(error) => plan.fail_directory(&directory, error),
                }
            }
            Task::Batch(items) => stored(plan, &items, reply)?,
            Task::Link(item) => match reply {
                Reply::Done => plan.done(&item),
                Reply::Failed { text, .. } => plan.fail(&item, text),
                _ => return Err(Violation::Reply("a symbolic link")),
            },
            Task::Open(item, tried) => opened(plan, item, tried, reply)?,
            Task::Block(transfer, index) => {
                let bytes = transfer.head().block_len(index);
                put(plan, &transfer, reply, || plan.report.moved(bytes))?;
            }
            Task::Hole(transfer, blocks) => {
                let bytes = transfer.head().range_len(&blocks);
                put(plan, &transfer, reply, || plan.report.resumed(bytes))?;
            }
            Task::Finish(transfer) => match reply {
                Reply::Done | Reply::Complete => {
                    if transfer.cancel() {
                        plan.finished(&transfer.item);
                    }
                }
                Reply::Missing(ranges) if !ranges.is_empty() => {
                    if ranges.iter().any(|range| range.end > transfer.head().blocks()) {
                        return Err(Violation::Reply("blocks behind the end"));
                    }
                    transfer.set_missing(ranges);
                    if transfer.is_endless() {
                        return Err(Violation::Reply("blocks that were sent already"));
                    }
                    plan.add_file(transfer);
                }
                Reply::Reopen => plan.reopen(&transfer, None),
                Reply::Failed { text, .. } => plan.give_up(&transfer, &text),
                _ => return Err(Violation::Reply("the end of a file")),
            },
            Task::Seal(directory) => match reply {
                Reply::Done => plan.sealed(&directory),
                Reply::Failed { text, .. } => plan.fail_directory(&directory, text),
                _ => return Err(Violation::Reply("a directory")),
            },
            Task::Remove(directory, mut places) => {
                let removed = places.pop();
                let place = removed.as_ref().unwrap_or(&directory.place);
                match reply {
                    Reply::Done if removed.is_some() => plan.report.deleted(&place.remote),
                    Reply::Done => {}
                    Reply::Failed { text, .. } if removed.is_some() => {
                        plan.report.not_removed(&place.remote, &text);
                    }
                    Reply::Failed { text, .. } => plan.report.failed(place.remote.as_bytes(), &text),
                    _ => return Err(Violation::Reply("an entry to be removed")),
                }
                if removed.is_some() && !(directory.is_surplus && places.is_empty()) {
                    return Ok(Some(Task::Remove(directory, places)));
                }
                plan.removal_done();
            }
        }
        Ok(None)
    }
}

/// A batch of what can be read of `items`, which then are those.
fn batch(plan: &Plan, items: &mut Vec<Item>) -> Option<Step> {
    let mut batch = Batch::default();
    let mut included = Vec::with_capacity(items.len());
    let mut rest = Vec::new();
    for mut item in items.drain(..) {
        match item.place.root.read_small(&item.place.local, SMALL) {
            Err(error) => plan.fail(&item, error),
            Ok(Err(meta)) => {
                item.meta = meta;
                plan.restart(item);
            }
            Ok(Ok((meta, bytes))) => {
                if batch.add_file(&item.place.remote, &meta, &bytes) {
                    item.meta = meta;
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

fn stored(plan: &Plan, items: &[Item], reply: Reply) -> Checked<()> {
    match reply {
        Reply::Stored(mut failures) => {
            failures.sort_unstable();
            for (item, position) in items.iter().zip(0u16..) {
                match failures.binary_search_by_key(&position, |(position, _)| *position) {
                    Ok(at) => plan.fail(item, std::io::Error::from_raw_os_error(failures[at].1.into())),
                    Err(_) => {
                        plan.report.moved(item.meta.size);
                        plan.done(item);
                    }
                }
            }
        }
        Reply::Failed { text, .. } => items.iter().for_each(|item| plan.fail(item, &text)),
        _ => return Err(Violation::Reply("a batch")),
    }
    Ok(())
}

fn opened(plan: &Plan, item: Item, tried: u8, reply: Reply) -> Checked<()> {
    match reply {
        Reply::Complete => {
            plan.report.resumed(item.meta.size);
            plan.finished(&item);
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
            let transfer = Arc::new(Transfer::new(item, FileEnd::Source(file)));
            if is_other {
                plan.reopen(&transfer, Some(meta));
                return Ok(());
            }
            if ranges.iter().any(|range| range.end > transfer.head().blocks()) {
                return Err(Violation::Reply("blocks behind the end"));
            }
            let missing = transfer.set_missing(ranges);
            if is_listed && transfer.item.restarts == 0 {
                plan.report.resumed(transfer.item.meta.size.saturating_sub(missing));
            }
            plan.add_file(transfer);
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
    Block(Step),
    /// It lies in a hole up to this block.
    Hole(u64),
}

/// Reads a block. `None`: the file has changed or cannot be read, or means nothing any more.
fn block(plan: &Plan, transfer: &Transfer, index: u64) -> Option<SentPart> {
    let FileEnd::Source(file) = &transfer.end else { return None };
    if transfer.is_cancelled() {
        return None;
    }
    match read_block(file, &transfer.item.meta.version, index) {
        Ok(Read::Block(bytes)) => {
            let hash = *blake3::hash(&bytes).as_bytes();
            let len = bytes.len() as u32;
            Some(SentPart::Block((Request::Put { file: transfer.head(), index, len, hash }, Some(bytes))))
        }
        Ok(Read::HoleUntil(end)) => Some(SentPart::Hole(end)),
        Ok(Read::Changed(_)) => {
            // The name may stand for another file by now.
            match transfer.item.place.root.meta(&transfer.item.place.local) {
                Ok(meta) if meta.kind == Kind::File => plan.reopen(transfer, Some(meta)),
                Ok(_) => plan.give_up(transfer, &"it is no file any more"),
                Err(error) => plan.give_up(transfer, &error),
            }
            None
        }
        Err(error) => {
            plan.give_up(transfer, &error);
            None
        }
    }
}

/// Blocks are stored, or not.
fn put(plan: &Plan, transfer: &Arc<Transfer>, reply: Reply, count: impl FnOnce()) -> Checked<()> {
    if transfer.is_cancelled() {
        return Ok(());
    }
    match reply {
        Reply::Done => {
            count();
            if transfer.done() {
                plan.push_urgent(Task::Finish(Arc::clone(transfer)));
            }
        }
        Reply::Complete | Reply::Reopen => plan.reopen(transfer, None),
        Reply::Failed { text, .. } => plan.give_up(transfer, &text),
        _ => return Err(Violation::Reply("a block")),
    }
    Ok(())
}
