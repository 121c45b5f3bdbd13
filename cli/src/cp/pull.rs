//! Copying files from the server.

use super::direction::{
    Direction, PageResult, ReplyResult, RequestStep, SlotReader, Violation, add_page, list_step,
};
use super::entries::{CopyDirectory, CopyItem, EntryPaths, FileEnd, LargeFile};
use super::plan::{CopyPlan, Task};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use uiw_copy::batch::{self, BatchContent};
use uiw_copy::part::{OpenedPart, PartOutcome, PartialFile};
use uiw_copy::protocol::{CreateMode, FileHead, Hash, Reply, Request};
use uiw_copy::root::ABANDONED;

/// Direction from the server to this end.
pub(super) struct Pull {
    /// Part of the names of temporary files.
    pub(super) label: String,
}

impl Direction for Pull {
    fn start(&self, plan: &CopyPlan, task: &mut Task) -> Option<RequestStep> {
        match task {
            Task::Directory(directory, _) if directory.is_surplus => {
                match directory.place.root.list(&directory.place.local) {
                    Ok(entries) => {
                        plan.add_surplus(directory, entries);
                        plan.on_listed(directory);
                    }
                    Err(error) => plan.fail_directory(directory, error),
                }
                None
            }
            Task::Directory(directory, known) => {
                if known.is_empty() && !plan.options.dry_run && !make_directory(plan, directory) {
                    return None;
                }
                Some(list_step(&directory.place.remote, known, CreateMode::No))
            }
            Task::Batch(items) => {
                let paths = items.iter().map(|item| item.place.remote.clone()).collect();
                Some((Request::GetBatch { paths }, None))
            }
            Task::Link(item) => {
                let place = &item.place;
                match place.root.symlink(
                    &place.local,
                    &item.meta.target,
                    item.meta.mtime,
                    &self.label,
                ) {
                    Ok(()) => plan.on_copied(item),
                    Err(error) => plan.fail(item, error),
                }
                None
            }
            Task::Open(item, tried) => {
                open_target(plan, item, *tried);
                None
            }
            Task::Block(large_file, index) => {
                if large_file.is_cancelled() {
                    return None;
                }
                let (path, version) =
                    (large_file.item.place.remote.clone(), large_file.item.meta.version);
                Some((Request::Get { path, version, index: *index }, None))
            }
            // Only copying to the server uses this task.
            Task::Hole(..) => None,
            Task::Finish(large_file) => {
                finish_target(plan, large_file);
                None
            }
            Task::Seal(directory) => {
                let (place, meta) = (&directory.place, &directory.meta);
                match place.root.set_directory(&place.local, plan.local_mode(directory), meta.mtime)
                {
                    Ok(()) => plan.on_sealed(directory),
                    Err(error) => plan.fail_directory(directory, error),
                }
                None
            }
            Task::Remove(directory, places) if !places.is_empty() => {
                remove_entries(plan, directory, places);
                None
            }
            Task::Remove(directory, _) => {
                let (place, meta) = (&directory.place, &directory.meta);
                if let Err(error) =
                    place.root.set_directory(&place.local, plan.local_mode(directory), meta.mtime)
                {
                    plan.report.report_failed(place.remote.as_bytes(), &error);
                }
                plan.on_sealed_again();
                None
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
                    PageResult::Absent => {
                        plan.fail_directory(&directory, "it is not there any more");
                        return Ok(None);
                    }
                    PageResult::Complete => {}
                }
                let (root, local) = (&directory.place.root, &directory.place.local);
                if !plan.options.dry_run {
                    // An error does not matter, because this only cleans up.
                    let _ = root.remove_abandoned(local, ABANDONED);
                }
                match root.list(local) {
                    _ if plan.is_target_absent() => plan.add_entries(&directory, known, Vec::new()),
                    Ok(targets) => plan.add_entries(&directory, known, targets),
                    Err(_) if plan.options.dry_run => {
                        plan.add_entries(&directory, known, Vec::new());
                    }
                    Err(error) => {
                        plan.fail_directory(&directory, error);
                        return Ok(None);
                    }
                }
                plan.on_listed(&directory);
            }
            Task::Batch(items) => self.store_batch(plan, items, reply, read_slot)?,
            Task::Block(large_file, index) => {
                store_block(plan, &large_file, index, reply, read_slot)?;
            }
            _ => return Err(Violation::Reply("nothing")),
        }
        Ok(None)
    }
}

/// Removes entries of a directory at this end.
fn remove_entries(plan: &CopyPlan, directory: &Arc<CopyDirectory>, places: &mut Vec<EntryPaths>) {
    // An error shows again when an entry is removed.
    let _ = directory.place.root.make_writable(&directory.place.local);
    while let Some(place) = places.pop() {
        match place.root.remove(&place.local, &|| !plan.stop.is_set()) {
            Ok(()) => plan.report.report_deleted(&place.remote),
            // The transfer was interrupted.
            Err(_) if plan.stop.is_set() => return,
            Err(error) => plan.report.report_not_removed(&place.remote, &error),
        }
    }
    plan.on_removed(directory);
}

/// Creates a directory at this end. Returns false if that has failed.
fn make_directory(plan: &CopyPlan, directory: &CopyDirectory) -> bool {
    let place = &directory.place;
    let made =
        if place.local.is_empty() { Ok(()) } else { place.root.make_directory(&place.local, true) };
    match made {
        Ok(()) => {
            // An error shows again when an entry is created.
            let _ = place.root.make_writable(&place.local);
            true
        }
        Err(error) => {
            plan.fail_directory(directory, error);
            false
        }
    }
}

impl Pull {
    fn store_batch(
        &self,
        plan: &CopyPlan,
        mut items: Vec<CopyItem>,
        reply: Reply,
        read_slot: SlotReader<'_>,
    ) -> ReplyResult<()> {
        let (count, bytes) = match reply {
            Reply::Batch { count, len, hash } if usize::from(count) <= items.len() => {
                let bytes = read_slot(len);
                if *blake3::hash(&bytes).as_bytes() != hash {
                    return Err(Violation::Reply("bytes that do not have their hash"));
                }
                (count, bytes)
            }
            Reply::Failed { text, .. } => {
                items.iter().for_each(|item| plan.fail(item, &text));
                return Ok(());
            }
            _ => return Err(Violation::Reply("a batch")),
        };
        let records = batch::decode(&bytes, count)?;
        let rest = items.split_off(count.into());
        if !items.iter().zip(&records).all(|(item, (path, _))| item.place.remote == *path) {
            return Err(Violation::Reply("other files than those asked for"));
        }
        if !rest.is_empty() {
            plan.add_small(rest);
        }
        // All items of a transfer have the same target directory.
        let Some(root) = items.first().map(|item| Arc::clone(&item.place.root)) else {
            return Ok(());
        };
        let mut whole: Vec<(u16, &CopyItem, &[u8])> = Vec::new();
        for ((item, (_, content)), position) in items.iter_mut().zip(&records).zip(0..) {
            if let BatchContent::Bytes(meta, _) | BatchContent::TooLarge(meta) = content {
                plan.set_source(item, meta.clone());
            }
            match content {
                BatchContent::Bytes(_, bytes) => whole.push((position, item, bytes)),
                BatchContent::Failed(errno) => {
                    plan.fail(item, std::io::Error::from_raw_os_error((*errno).into()));
                }
                BatchContent::TooLarge(_) => plan.restart(item.clone()),
            }
        }
        let files = whole
            .iter()
            .map(|(position, item, bytes)| (*position, &item.place.local, &item.meta, *bytes));
        let failures = batch::store(&root, files, &self.label);
        for (position, item, _) in whole {
            match failures.iter().find(|(failed, _)| *failed == position) {
                Some((_, errno)) => {
                    plan.fail(item, std::io::Error::from_raw_os_error((*errno).into()));
                }
                None => {
                    plan.report.count_moved(item.meta.size);
                    plan.on_copied(item);
                }
            }
        }
        Ok(())
    }
}

fn open_target(plan: &CopyPlan, item: &CopyItem, tried: u8) {
    let head = FileHead { path: item.place.local.clone(), meta: item.meta.clone() };
    match PartialFile::open(&item.place.root, &head, true, &|| !plan.stop.is_set()) {
        Ok(OpenedPart::Part(part)) => {
            if item.restarts == 0 {
                plan.report.count_resumed(part.verified_bytes());
            }
            let missing = part.missing();
            let large_file = Arc::new(LargeFile::new(item.clone(), FileEnd::Target(part)));
            large_file.set_missing(missing);
            plan.add_file(large_file);
        }
        Ok(OpenedPart::Complete | OpenedPart::Nothing) => {
            plan.report.count_resumed(item.meta.size);
            plan.on_large_file_copied(item);
        }
        Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
            plan.retry_later(item.clone(), tried);
        }
        Err(error) => plan.fail_open(item, &error),
    }
}

fn finish_target(plan: &CopyPlan, large_file: &Arc<LargeFile>) {
    let FileEnd::Target(part) = &large_file.end else { return };
    match part.finish() {
        Ok(PartOutcome::Done) => {
            if large_file.cancel() {
                plan.on_large_file_copied(&large_file.item);
            }
        }
        // Another connection failed to finish the file, and reports the error.
        Ok(PartOutcome::Reopen) => {}
        Ok(PartOutcome::Missing(ranges)) => {
            large_file.set_missing(ranges);
            plan.add_file(Arc::clone(large_file));
        }
        Err(error) => plan.give_up(large_file, &error),
    }
}

fn store_block(
    plan: &CopyPlan,
    large_file: &Arc<LargeFile>,
    index: u64,
    reply: Reply,
    read_slot: SlotReader<'_>,
) -> ReplyResult<()> {
    let FileEnd::Target(part) = &large_file.end else { return Ok(()) };
    if large_file.is_cancelled() {
        return Ok(());
    }
    let stored = match reply {
        Reply::Block { len, hash } => {
            let bytes = verify_block(large_file, index, len, &hash, read_slot)?;
            plan.report.count_moved(bytes.len() as u64);
            part.put_block(index, &bytes, &hash)
        }
        Reply::HoleUntil(end) => {
            let head = large_file.head();
            if end <= index || end > head.blocks() {
                return Err(Violation::Reply("a hole that is not there"));
            }
            let blocks: Range<u64> = index..large_file.skip_hole(index, end);
            plan.report.count_resumed(head.range_len(&blocks));
            part.put_hole(blocks)
        }
        Reply::Changed(meta) => {
            plan.reopen(large_file, Some(meta));
            return Ok(());
        }
        Reply::Failed { text, .. } => {
            plan.give_up(large_file, &text);
            return Ok(());
        }
        _ => return Err(Violation::Reply("a block")),
    };
    match stored {
        Ok(_) if large_file.block_done() => plan.push_urgent(Task::Finish(Arc::clone(large_file))),
        Ok(_) => {}
        Err(error) => plan.give_up(large_file, &error),
    }
    Ok(())
}

/// Returns the bytes of a block after checking their length and hash.
fn verify_block(
    large_file: &LargeFile,
    index: u64,
    len: u32,
    hash: &Hash,
    read_slot: SlotReader<'_>,
) -> ReplyResult<Vec<u8>> {
    if u64::from(len) != large_file.head().block_len(index) {
        return Err(Violation::Reply("a block of another length"));
    }
    let bytes = read_slot(len);
    if blake3::hash(&bytes).as_bytes() == hash {
        Ok(bytes)
    } else {
        Err(Violation::Reply("bytes that do not have their hash"))
    }
}
