//! Files from the server.

use super::direction::{Checked, Direction, Landed, Page, Step, Violation, list, listed};
use super::plan::{Plan, Task};
use super::transfer::{Directory, FileEnd, Item, Place, Transfer};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use uiw_copy::batch::{self, Content};
use uiw_copy::meta::Meta;
use uiw_copy::part::{OpenedFile, Outcome, Part};
use uiw_copy::protocol::{Create, FileHead, Hash, Reply, Request};
use uiw_copy::root::ABANDONED;

/// See the module.
pub(super) struct Pull {
    /// Part of the names of temporary files.
    pub(super) label: String,
}

impl Direction for Pull {
    fn start(&self, plan: &Plan, task: &mut Task) -> Option<Step> {
        match task {
            Task::Directory(directory, _) if directory.is_surplus => {
                match directory.place.root.list(&directory.place.local) {
                    Ok(entries) => {
                        plan.add_surplus(directory, entries);
                        plan.listed(directory);
                    }
                    Err(error) => plan.fail_directory(directory, error),
                }
                None
            }
            Task::Directory(directory, known) => {
                if known.is_empty() && !plan.rules.dry_run && !make(plan, directory) {
                    return None;
                }
                Some(list(&directory.place.remote, known, Create::No))
            }
            Task::Batch(items) => {
                let paths = items.iter().map(|item| item.place.remote.clone()).collect();
                Some((Request::GetBatch { paths }, None))
            }
            Task::Link(item) => {
                let place = &item.place;
                match place.root.symlink(&place.local, &item.meta.target, item.meta.mtime, &self.label) {
                    Ok(()) => plan.done(item),
                    Err(error) => plan.fail(item, error),
                }
                None
            }
            Task::Open(item, tried) => {
                open(plan, item, *tried);
                None
            }
            Task::Block(transfer, index) => {
                if transfer.is_cancelled() {
                    return None;
                }
                let (path, version) = (transfer.item.place.remote.clone(), transfer.item.meta.version);
                Some((Request::Get { path, version, index: *index }, None))
            }
            // Only files to the server have this task.
            Task::Hole(..) => None,
            Task::Finish(transfer) => {
                finish(plan, transfer);
                None
            }
            Task::Seal(directory) => {
                let (place, meta) = (&directory.place, &directory.meta);
                match place.root.set_directory(&place.local, meta.mode, meta.mtime) {
                    Ok(()) => plan.sealed(directory),
                    Err(error) => plan.fail_directory(directory, error),
                }
                None
            }
            Task::Remove(directory, places) => {
                remove(plan, directory, places);
                None
            }
        }
    }

    fn reply(&self, plan: &Plan, task: Task, reply: Reply, landed: Landed<'_>) -> Checked<Option<Task>> {
        match task {
            Task::Directory(directory, mut known) => {
                match listed(plan, &directory, &mut known, reply, landed)? {
                    Page::More => return Ok(Some(Task::Directory(directory, known))),
                    Page::Failed => return Ok(None),
                    Page::Absent => {
                        plan.fail_directory(&directory, "it is not there any more");
                        return Ok(None);
                    }
                    Page::Complete => {}
                }
                let (root, local) = (&directory.place.root, &directory.place.local);
                if !plan.rules.dry_run {
                    // It is the user's convenience alone.
                    let _ = root.remove_abandoned(local, ABANDONED);
                }
                match root.list(local) {
                    _ if plan.is_target_absent() => plan.add_entries(&directory, known, Vec::new()),
                    Ok(targets) => plan.add_entries(&directory, known, targets),
                    Err(_) if plan.rules.dry_run => plan.add_entries(&directory, known, Vec::new()),
                    Err(error) => {
                        plan.fail_directory(&directory, error);
                        return Ok(None);
                    }
                }
                plan.listed(&directory);
            }
            Task::Batch(items) => self.batch(plan, items, reply, landed)?,
            Task::Block(transfer, index) => block(plan, &transfer, index, reply, landed)?,
            _ => return Err(Violation::Reply("nothing")),
        }
        Ok(None)
    }
}

/// Removes entries at this end, and gives their directory its time again.
fn remove(plan: &Plan, directory: &Directory, places: &mut Vec<Place>) {
    while let Some(place) = places.pop() {
        match place.root.remove(&place.local, &|| !plan.stop.is_set()) {
            Ok(()) => plan.report.deleted(&place.remote),
            // Interrupted.
            Err(_) if plan.stop.is_set() => return,
            Err(error) => plan.report.not_removed(&place.remote, &error),
        }
    }
    let (place, meta) = (&directory.place, &directory.meta);
    if !directory.is_surplus
        && let Err(error) = place.root.set_directory(&place.local, meta.mode, meta.mtime)
    {
        plan.report.failed(place.remote.as_bytes(), &error);
    }
    plan.removal_done();
}

/// The directory at this end.
fn make(plan: &Plan, directory: &Directory) -> bool {
    let place = &directory.place;
    let made = if place.local.is_empty() { Ok(()) } else { place.root.make_directory(&place.local, true) };
    match made {
        Ok(()) => true,
        Err(error) => {
            plan.fail_directory(directory, error);
            false
        }
    }
}

impl Pull {
    fn batch(&self, plan: &Plan, mut items: Vec<Item>, reply: Reply, landed: Landed<'_>) -> Checked<()> {
        let (count, bytes) = match reply {
            Reply::Batch { count, len, hash } if usize::from(count) <= items.len() => {
                let bytes = landed(len);
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
        // The items of one transfer have one target directory.
        let Some(root) = items.first().map(|item| Arc::clone(&item.place.root)) else { return Ok(()) };
        let mut whole: Vec<(u16, &Item, &Meta, &[u8])> = Vec::new();
        for ((item, (_, content)), position) in items.iter().zip(&records).zip(0..) {
            match content {
                Content::Bytes(meta, bytes) => whole.push((position, item, meta, bytes)),
                Content::Failed(errno) => plan.fail(item, std::io::Error::from_raw_os_error((*errno).into())),
                Content::TooLarge(meta) => plan.restart(Item { meta: meta.clone(), ..item.clone() }),
            }
        }
        let files =
            whole.iter().map(|(position, item, meta, bytes)| (*position, &item.place.local, *meta, *bytes));
        let failures = batch::store(&root, files, &self.label);
        for (position, item, meta, _) in whole {
            match failures.iter().find(|(failed, _)| *failed == position) {
                Some((_, errno)) => plan.fail(item, std::io::Error::from_raw_os_error((*errno).into())),
                None => {
                    plan.report.moved(meta.size);
                    plan.done(item);
                }
            }
        }
        Ok(())
    }
}

fn open(plan: &Plan, item: &Item, tried: u8) {
    let head = FileHead { path: item.place.local.clone(), meta: item.meta.clone() };
    match Part::open(&item.place.root, &head, true, &|| !plan.stop.is_set()) {
        Ok(OpenedFile::Part(part)) => {
            if item.restarts == 0 {
                plan.report.resumed(part.verified_bytes());
            }
            let missing = part.missing();
            let transfer = Arc::new(Transfer::new(item.clone(), FileEnd::Target(part)));
            transfer.set_missing(missing);
            plan.add_file(transfer);
        }
        Ok(OpenedFile::Complete | OpenedFile::Nothing) => {
            plan.report.resumed(item.meta.size);
            plan.finished(item);
        }
        Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
            plan.retry_later(item.clone(), tried);
        }
        Err(error) => plan.fail_open(item, &error),
    }
}

fn finish(plan: &Plan, transfer: &Arc<Transfer>) {
    let FileEnd::Target(part) = &transfer.end else { return };
    match part.finish() {
        Ok(Outcome::Done) => {
            if transfer.cancel() {
                plan.finished(&transfer.item);
            }
        }
        // Another connection could not finish it, and reports that.
        Ok(Outcome::Reopen) => {}
        Ok(Outcome::Missing(ranges)) => {
            transfer.set_missing(ranges);
            plan.add_file(Arc::clone(transfer));
        }
        Err(error) => plan.give_up(transfer, &error),
    }
}

fn block(plan: &Plan, transfer: &Arc<Transfer>, index: u64, reply: Reply, landed: Landed<'_>) -> Checked<()> {
    let FileEnd::Target(part) = &transfer.end else { return Ok(()) };
    if transfer.is_cancelled() {
        return Ok(());
    }
    let stored = match reply {
        Reply::Block { len, hash } => {
            let bytes = verified(transfer, index, len, &hash, landed)?;
            plan.report.moved(bytes.len() as u64);
            part.put(index, &bytes, &hash)
        }
        Reply::HoleUntil(end) => {
            let head = transfer.head();
            if end <= index || end > head.blocks() {
                return Err(Violation::Reply("a hole that is not there"));
            }
            let blocks: Range<u64> = index..transfer.skip(index, end);
            plan.report.resumed(head.range_len(&blocks));
            part.hole(blocks)
        }
        Reply::Changed(meta) => {
            plan.reopen(transfer, Some(meta));
            return Ok(());
        }
        Reply::Failed { text, .. } => {
            plan.give_up(transfer, &text);
            return Ok(());
        }
        _ => return Err(Violation::Reply("a block")),
    };
    match stored {
        Ok(_) if transfer.done() => plan.push_urgent(Task::Finish(Arc::clone(transfer))),
        Ok(_) => {}
        Err(error) => plan.give_up(transfer, &error),
    }
    Ok(())
}

/// The bytes of a block, which have its length and hash.
fn verified(transfer: &Transfer, index: u64, len: u32, hash: &Hash, landed: Landed<'_>) -> Checked<Vec<u8>> {
    if u64::from(len) != transfer.head().block_len(index) {
        return Err(Violation::Reply("a block of another length"));
    }
    let bytes = landed(len);
    if blake3::hash(&bytes).as_bytes() == hash {
        Ok(bytes)
    } else {
        Err(Violation::Reply("bytes that do not have their hash"))
    }
}
