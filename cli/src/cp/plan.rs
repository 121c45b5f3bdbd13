//! The work queue of a transfer, shared by all its connections, and the state of its entries.

use super::entries::{CopyDirectory, CopyItem, EntryPaths, LargeFile, ListMemory};
use super::pattern::Pattern;
use super::report::Report;
use crate::shared::fail::{Exit, Failure};
use crate::shared::stop::StopFlag;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use uiw_copy::batch::SMALL;
use uiw_copy::meta::{Entry, EntryKind, Meta};
use uiw_copy::names::{EscapedName, Name, NameError};
use uiw_copy::protocol::{MAX_BATCH, MESSAGE, SLOT};

/// Maximum number of large files that are transferred at the same time.
const MAX_OPEN_FILES: usize = 16;
/// Memory used by directory lists, in bytes, above which no further directory is listed while there
/// are large files to copy.
const LISTS_HIGH_WATER: u64 = 256 << 20;
/// Maximum number of entries that one task removes. It removes them one after the other, each with
/// a round trip to the server.
const REMOVALS_PER_TASK: usize = 32;
/// Maximum number of times that the copy of a file is restarted.
const MAX_RESTARTS: u8 = 5;
/// Delay before a file that another transfer writes is tried again.
const BUSY_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of times that a file that another transfer writes is tried again.
const MAX_BUSY_RETRIES: u8 = 60;

/// One request to the server, or one step at this end.
#[derive(Debug)]
pub(super) enum Task {
    /// Lists a directory. The entries received so far are the second field.
    Directory(Arc<CopyDirectory>, Vec<Entry>),
    /// Transfers small files that fit one slot together.
    Batch(Vec<CopyItem>),
    /// Creates a symbolic link.
    Link(CopyItem),
    /// Starts or resumes a large file. The second field is the number of earlier attempts that
    /// failed because another transfer writes the file.
    Open(CopyItem, u8),
    /// Transfers the block with this number.
    Block(Arc<LargeFile>, u64),
    /// Transfers a range of blocks that lie in a hole. Only the first one is counted as under way.
    Hole(Arc<LargeFile>, Range<u64>),
    /// Completes a large file once all its blocks have been transferred.
    Finish(Arc<LargeFile>),
    /// Sets mode and modification time of a complete directory.
    Seal(Arc<CopyDirectory>),
    /// Removes these entries of the target directory, starting with the last one. Without entries,
    /// seals the directory again after its last removal.
    Remove(Arc<CopyDirectory>, Vec<EntryPaths>),
}

/// User options of a transfer.
#[derive(Debug, Default)]
pub(super) struct CopyOptions {
    /// Report the changes without making them.
    pub(super) dry_run: bool,
    /// Remove entries of the target that do not exist at the source.
    pub(super) delete: bool,
    /// Patterns of entries that are ignored at both ends.
    pub(super) excluded: Vec<Pattern>,
}

/// Shared work queue of a transfer.
///
/// Each connection takes its next [`Task`] with [`CopyPlan::take_task`] and reports the result with
/// one of the other methods.
pub(super) struct CopyPlan {
    state: Mutex<PlanState>,
    changed: Condvar,
    pub(super) report: Report,
    /// Set when the transfer has ended, for whatever reason.
    pub(super) stop: Arc<StopFlag>,
    pub(super) options: CopyOptions,
    /// True if the target directory does not exist yet, so that there are no entries to compare
    /// with.
    target_absent: AtomicBool,
    /// Mode of the local target directory, if it existed before. The copy does not change it.
    target_mode: OnceLock<u16>,
    /// Cause of the most recent loss of a connection.
    loss: Mutex<String>,
    lists: ListMemory,
}

#[derive(Default)]
struct PlanState {
    /// Tasks that go before all others: those of broken connections, and the last steps of files
    /// and directories.
    urgent: VecDeque<Task>,
    /// Open files with blocks to transfer.
    files: VecDeque<Arc<LargeFile>>,
    /// Number of large files that were taken from `opens` and are not finished yet.
    open: usize,
    /// Small files, symbolic links and removals.
    ready: VecDeque<Task>,
    /// Large files to be opened.
    opens: VecDeque<Task>,
    /// Files that another transfer writes, with the time of the next attempt.
    later: Vec<(Instant, Task)>,
    /// Stack of directories to be listed. Listing the newest one first keeps the number of known
    /// entries small.
    directories: Vec<Task>,
    /// Number of entries that are neither copied nor failed, plus one until all entries of the
    /// command line are added. During the removal of surplus entries, the number of removal tasks
    /// that are not done.
    pending: u64,
    /// Entries, by directory, that exist only at the target. They are removed after everything else
    /// has been copied.
    surplus: Vec<(Arc<CopyDirectory>, Vec<EntryPaths>)>,
    /// First error that ended the transfer.
    failure: Option<Failure>,
}

impl CopyPlan {
    pub(super) fn new(report: Report, stop: Arc<StopFlag>, options: CopyOptions) -> Self {
        let state = Mutex::new(PlanState { pending: 1, ..PlanState::default() });
        let (target_absent, target_mode) = (AtomicBool::new(false), OnceLock::new());
        let (loss, lists) = (Mutex::default(), ListMemory::default());
        let changed = Condvar::new();
        Self { state, changed, report, stop, options, target_absent, target_mode, loss, lists }
    }

    /// Records why a connection was lost. Returns false if the previous loss had the same cause.
    pub(super) fn note_loss(&self, cause: &str) -> bool {
        let mut loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *loss != cause;
        cause.clone_into(&mut loss);
        is_new
    }

    pub(super) fn set_target_absent(&self) {
        self.target_absent.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_target_absent(&self) -> bool {
        self.target_absent.load(Ordering::Relaxed)
    }

    pub(super) fn set_target_mode(&self, mode: u16) {
        let _ = self.target_mode.set(mode);
    }

    /// Returns the mode that a complete directory gets at this end.
    pub(super) fn local_mode(&self, directory: &CopyDirectory) -> u16 {
        let of_target = self.target_mode.get().filter(|_| directory.place.local.is_empty());
        of_target.copied().unwrap_or(directory.meta.mode)
    }

    fn state(&self) -> MutexGuard<'_, PlanState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the connections that wait for tasks.
    fn update(&self, change: impl FnOnce(&mut PlanState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Adds an entry to be copied, unless the target has it already. Directories are always added.
    ///
    /// In a dry run, files and symbolic links are only reported.
    pub(super) fn add_unless_copied(
        &self,
        place: EntryPaths,
        meta: Meta,
        parent: Option<Arc<CopyDirectory>>,
        target: Option<&Meta>,
    ) {
        let is_there = target.is_some_and(|target| meta.is_copied_by(target));
        if is_there && meta.kind != EntryKind::Directory {
            self.report.count_unchanged();
        } else if self.options.dry_run && matches!(meta.kind, EntryKind::File | EntryKind::Symlink)
        {
            self.report.report_would_copy(&place.remote, &meta);
        } else {
            self.add_entry(place, meta, parent);
        }
    }

    fn add_entry(&self, place: EntryPaths, meta: Meta, parent: Option<Arc<CopyDirectory>>) {
        self.state().pending += 1;
        if let Some(parent) = &parent {
            parent.add_pending();
        }
        let item = CopyItem { place, meta, parent, restarts: 0 };
        match item.meta.kind {
            EntryKind::Directory => {
                let CopyItem { place, meta, parent, .. } = item;
                let directory = Arc::new(CopyDirectory::new(place, meta, parent, &self.lists));
                self.update(|state| state.directories.push(Task::Directory(directory, Vec::new())));
            }
            EntryKind::Special => match item.meta.target.as_slice() {
                [] => self.fail(&item, "a device, FIFO or socket, or a file above 64 TiB"),
                reason => self.fail(&item, EscapedName(reason)),
            },
            EntryKind::Symlink => {
                self.report.count_found(0);
                self.update(|state| state.ready.push_back(Task::Link(item)));
            }
            EntryKind::File => {
                self.report.count_found(item.meta.size);
                if item.meta.size > SMALL {
                    self.update(|state| state.opens.push_back(Task::Open(item, 0)));
                } else {
                    self.add_small(vec![item]);
                }
            }
        }
    }

    /// Adds small files, in batches that fit a slot and whose paths fit a message.
    pub(super) fn add_small(&self, items: Vec<CopyItem>) {
        let weight = |item: &CopyItem| {
            let path = item.place.remote.as_bytes().len();
            (item.meta.size + path as u64 + 80, path + 2)
        };
        let mut state = self.state();
        for item in items {
            let (bytes, path) = weight(&item);
            if let Some(Task::Batch(batch)) = state.ready.back_mut() {
                let sums = batch
                    .iter()
                    .map(weight)
                    .fold((bytes, path), |sum, (bytes, path)| (sum.0 + bytes, sum.1 + path));
                let fits = sums.0 <= SLOT.into() && sums.1 + 16 <= MESSAGE as usize;
                if fits && batch.len() < MAX_BATCH.into() {
                    batch.push(item);
                    continue;
                }
            }
            state.ready.push_back(Task::Batch(vec![item]));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Adds the entries of a source directory, except excluded ones and those that are already at
    /// the target. With `--delete`, entries that exist only at the target are recorded for removal.
    pub(super) fn add_entries(
        &self,
        directory: &Arc<CopyDirectory>,
        sources: Vec<Entry>,
        targets: Vec<Entry>,
    ) {
        let mut targets: HashMap<_, _> =
            targets.into_iter().map(|entry| (entry.name, entry.meta)).collect();
        for Entry { name, meta } in sources {
            let target = targets.remove(&name);
            if self.is_excluded(directory, &name) {
                continue;
            }
            if let Some(place) = self.place_in(directory, &name) {
                let parent = Some(Arc::clone(directory));
                self.add_unless_copied(place, meta, parent, target.as_ref());
            }
        }
        if self.options.delete {
            self.add_surplus(
                directory,
                targets.into_iter().map(|(name, meta)| Entry { name, meta }),
            );
        }
    }

    /// Returns the paths of an entry of a directory. If they are too long, reports that the entry
    /// failed.
    fn place_in(&self, directory: &CopyDirectory, name: &Name) -> Option<EntryPaths> {
        let failed = |error: &NameError| {
            let path = [directory.place.remote.as_bytes(), name.as_bytes()].join(&b'/');
            self.report.report_failed(&path, error);
        };
        directory.place.join(name).inspect_err(failed).ok()
    }

    fn is_excluded(&self, directory: &CopyDirectory, name: &Name) -> bool {
        let excluded = &self.options.excluded;
        // Building the path is only necessary if there are patterns.
        !excluded.is_empty() && {
            let path = [directory.below.as_slice(), name.as_bytes()].concat();
            excluded.iter().any(|pattern| pattern.matches(&path))
        }
    }

    /// Records entries that exist only in the target directory.
    ///
    /// If there are exclude patterns, a surplus directory is first searched for excluded entries,
    /// which stay.
    pub(super) fn add_surplus(
        &self,
        directory: &Arc<CopyDirectory>,
        entries: impl IntoIterator<Item = Entry>,
    ) {
        for Entry { name, meta } in entries {
            if self.is_excluded(directory, &name) {
                directory.removals().has_excluded = true;
                continue;
            }
            let Some(place) = self.place_in(directory, &name) else { continue };
            if meta.kind == EntryKind::Directory && !self.options.excluded.is_empty() {
                let parent = Some(Arc::clone(directory));
                let mut surplus = CopyDirectory::new(place, meta, parent, &self.lists);
                surplus.is_surplus = true;
                directory.add_pending();
                let task = Task::Directory(Arc::new(surplus), Vec::new());
                self.update(|state| {
                    state.pending += 1;
                    state.directories.push(task);
                });
            } else {
                directory.removals().places.push(place);
            }
        }
    }

    /// Records the removals of a directory once all its entries are known.
    ///
    /// A surplus directory without excluded entries is removed as a whole, otherwise its surplus
    /// entries are removed one by one.
    fn note_removals(&self, directory: &Arc<CopyDirectory>) {
        let mut removals = std::mem::take(&mut *directory.removals());
        if let Some(parent) = directory.parent.as_ref().filter(|_| directory.is_surplus) {
            let mut parent = parent.removals();
            if !removals.has_excluded {
                parent.places.push(directory.place.clone());
                return;
            }
            parent.has_excluded = true;
        }
        removals.places.sort_unstable_by(|a, b| b.remote.cmp(&a.remote));
        if self.options.dry_run {
            removals
                .places
                .iter()
                .rev()
                .for_each(|place| self.report.report_would_delete(&place.remote));
        } else if !removals.places.is_empty() {
            self.state().surplus.push((Arc::clone(directory), removals.places));
        }
    }

    /// Schedules the removal of surplus entries, after all other entries have been copied or have
    /// failed.
    ///
    /// Returns false if there is nothing to remove, or if nothing is removed because an entry has
    /// failed.
    fn begin_removal(&self, state: &mut PlanState) -> bool {
        let surplus = std::mem::take(&mut state.surplus);
        if self.report.failures() > 0 {
            if !surplus.is_empty() {
                self.report.report_nothing_deleted();
            }
            return false;
        }
        for (directory, mut places) in surplus {
            while !places.is_empty() {
                let part = places.split_off(places.len().saturating_sub(REMOVALS_PER_TASK));
                directory.add_pending();
                state.ready.push_back(Task::Remove(Arc::clone(&directory), part));
            }
        }
        state.pending = state.ready.len() as u64;
        state.pending > 0
    }

    /// Called when the entries of a [`Task::Remove`] are removed. After the last one, the directory
    /// is sealed again, because it was made writable.
    pub(super) fn on_removed(&self, directory: &Arc<CopyDirectory>) {
        if directory.entry_done() {
            self.push_urgent(Task::Remove(Arc::clone(directory), Vec::new()));
        } else {
            self.complete(None);
        }
    }

    /// Called when a directory is sealed after its removals.
    pub(super) fn on_sealed_again(&self) {
        self.complete(None);
    }

    /// Adds an opened large file, whose blocks can then be taken.
    pub(super) fn add_file(&self, large_file: Arc<LargeFile>) {
        if large_file.is_complete() {
            self.push_urgent(Task::Finish(large_file));
        } else {
            self.update(|state| {
                // The file may still be queued if blocks were found missing when it was finished.
                if !state.files.iter().any(|known| Arc::ptr_eq(known, &large_file)) {
                    state.files.push_back(large_file);
                }
            });
        }
    }

    /// Adds a task that goes before all others.
    pub(super) fn push_urgent(&self, task: Task) {
        self.update(|state| state.urgent.push_back(task));
    }

    /// Returns the unfinished tasks of a connection to the queue.
    pub(super) fn requeue(&self, tasks: impl IntoIterator<Item = Task>) {
        self.update(|state| {
            for task in tasks {
                // The file counts as open again once another connection takes the task.
                if matches!(task, Task::Open(..)) {
                    state.open -= 1;
                    state.opens.push_front(task);
                } else {
                    state.urgent.push_back(task);
                }
            }
        });
    }

    /// Takes the next task, or returns `None` if there is none at the moment.
    pub(super) fn take_task(&self) -> Option<Task> {
        if self.stop.is_set() {
            return None;
        }
        let mut state = self.state();
        if let Some(task) = state.urgent.pop_front() {
            return Some(task);
        }
        while let Some(file) = state.files.front() {
            match file.take_block().filter(|_| !file.is_cancelled()) {
                Some(block) => return Some(Task::Block(Arc::clone(file), block)),
                None => drop(state.files.pop_front()),
            }
        }
        if let Some(task) = state.ready.pop_front() {
            return Some(task);
        }
        let now = Instant::now();
        if let Some(at) = state.later.iter().position(|(due, _)| *due <= now) {
            let (_, task) = state.later.swap_remove(at);
            state.opens.push_front(task);
        }
        if state.open < MAX_OPEN_FILES
            && let Some(task) = state.opens.pop_front()
        {
            state.open += 1;
            return Some(task);
        }
        let has_files = state.open > 0 || !state.opens.is_empty();
        if has_files && self.lists.load(Ordering::Relaxed) > LISTS_HIGH_WATER {
            return None;
        }
        state.directories.pop()
    }

    /// Returns whether at least `count` blocks of open files are still to be taken.
    pub(super) fn has_blocks(&self, count: u64) -> bool {
        let mut found = 0;
        self.state().files.iter().any(|file| {
            found += file.missing();
            found >= count
        })
    }

    /// Returns whether there are tasks for more than `count` requests now.
    fn has_more_than(&self, count: u64) -> bool {
        let state = self.state();
        let tasks =
            state.urgent.len() + state.ready.len() + state.opens.len() + state.directories.len();
        let blocks = state.files.iter().map(|file| file.missing()).sum::<u64>();
        blocks.saturating_add(tasks as u64) > count
    }

    /// Waits until there are tasks for more than `count` requests. Returns false if the transfer is
    /// over.
    pub(super) fn wait_for_more_than(&self, count: u64) -> bool {
        while !self.has_more_than(count) {
            if !self.wait_for_tasks() {
                return false;
            }
        }
        true
    }

    /// Waits up to 50 ms for new tasks. Returns false if the transfer is over.
    pub(super) fn wait_for_tasks(&self) -> bool {
        let state = self.state();
        if state.pending == 0 || self.stop.is_set() {
            return false;
        }
        // No notification is sent when a file in `later` becomes due, so the wait has a time limit.
        let _ = self.changed.wait_timeout(state, Duration::from_millis(50));
        true
    }

    /// Returns whether every entry has been copied or has failed, and all removals are done.
    pub(super) fn is_over(&self) -> bool {
        self.state().pending == 0
    }

    /// Returns the number of failures to report to the server: the failed entries, plus one if an
    /// error ended the transfer.
    ///
    /// Returns `None` if the transfer was interrupted or failed because of the server, which could
    /// not close in order either.
    pub(super) fn failures_to_report(&self) -> Option<u64> {
        let state = self.state();
        match &state.failure {
            Some(Failure { exit: Exit::Failed | Exit::Usage, .. }) => {
                Some(self.report.failures() + 1)
            }
            None if state.pending == 0 => Some(self.report.failures()),
            _ => None,
        }
    }

    /// Tries a file again later, because another transfer writes it.
    pub(super) fn retry_later(&self, item: CopyItem, tried: u8) {
        if tried >= MAX_BUSY_RETRIES {
            self.state().open -= 1;
            self.fail(&item, "another transfer writes it");
            return;
        }
        self.update(|state| {
            state.open -= 1;
            state.later.push((Instant::now() + BUSY_RETRY_DELAY, Task::Open(item, tried + 1)));
        });
    }

    /// Restarts a large file, with the metadata of its new version if it has changed.
    pub(super) fn reopen(&self, large_file: &LargeFile, meta: Option<Meta>) {
        if !large_file.cancel() {
            return;
        }
        self.state().open -= 1;
        let mut item = large_file.item.clone();
        if let Some(meta) = meta {
            self.set_source(&mut item, meta);
        }
        self.restart(item);
    }

    /// Replaces the metadata of the source, which may have changed since it was found.
    pub(super) fn set_source(&self, item: &mut CopyItem, meta: Meta) {
        self.report.change_found(item.meta.size, meta.size);
        item.meta = meta;
    }

    /// Restarts the copy of the file that `item` describes, most often because it has changed.
    pub(super) fn restart(&self, mut item: CopyItem) {
        item.restarts += 1;
        if item.restarts > MAX_RESTARTS {
            self.fail(&item, "it changes while it is copied");
        } else if item.meta.kind != EntryKind::File {
            self.fail(&item, "it is no file any more");
        } else {
            self.update(|state| state.opens.push_back(Task::Open(item, 0)));
        }
    }

    /// Called when a large file is complete, or was complete already.
    pub(super) fn on_large_file_copied(&self, item: &CopyItem) {
        self.state().open -= 1;
        self.on_copied(item);
    }

    /// Fails an open large file, unless it was cancelled before.
    pub(super) fn give_up(&self, large_file: &LargeFile, why: &dyn std::fmt::Display) {
        if large_file.cancel() {
            self.state().open -= 1;
            self.fail(&large_file.item, why);
        }
    }

    /// Fails a large file that could not be opened.
    pub(super) fn fail_open(&self, item: &CopyItem, why: &dyn std::fmt::Display) {
        self.state().open -= 1;
        self.fail(item, why);
    }

    /// Called when a file or symbolic link is complete.
    pub(super) fn on_copied(&self, item: &CopyItem) {
        self.report.count_copied();
        self.complete(item.parent.as_ref());
    }

    /// Fails a file or symbolic link.
    pub(super) fn fail(&self, item: &CopyItem, why: impl std::fmt::Display) {
        self.report.report_failed(item.place.remote.as_bytes(), &why);
        self.complete(item.parent.as_ref());
    }

    /// Called when a directory has been listed and all its entries are added.
    pub(super) fn on_listed(&self, directory: &Arc<CopyDirectory>) {
        self.complete_in(directory);
    }

    /// Counts one pending entry of `directory` as complete, and seals the directory after the last
    /// one.
    fn complete_in(&self, directory: &Arc<CopyDirectory>) {
        if directory.entry_done() {
            self.note_removals(directory);
            if self.options.dry_run || directory.is_surplus {
                self.on_sealed(directory);
            } else {
                self.push_urgent(Task::Seal(Arc::clone(directory)));
            }
        }
    }

    /// Called when mode and modification time of a directory are set.
    pub(super) fn on_sealed(&self, directory: &CopyDirectory) {
        self.complete(directory.parent.as_ref());
    }

    /// Fails a directory as a whole.
    pub(super) fn fail_directory(&self, directory: &CopyDirectory, why: impl std::fmt::Display) {
        self.report.report_failed(directory.place.remote.as_bytes(), &why);
        self.complete(directory.parent.as_ref());
    }

    /// Called when all entries of the command line are added.
    pub(super) fn on_sources_added(&self) {
        self.complete(None);
    }

    /// Counts an entry as complete, whether it was copied or failed. Stops the transfer after the
    /// last one.
    fn complete(&self, parent: Option<&Arc<CopyDirectory>>) {
        if let Some(parent) = parent {
            self.complete_in(parent);
        }
        let mut is_over = false;
        self.update(|state| {
            state.pending -= 1;
            is_over = state.pending == 0 && !self.begin_removal(state);
        });
        if is_over {
            self.stop.set();
        }
    }

    /// Ends the transfer with an error. Later errors are ignored.
    pub(super) fn abort(&self, failure: Failure) {
        self.update(|state| {
            state.failure.get_or_insert(failure);
        });
        self.stop.set();
    }

    /// Takes the error that ended the transfer.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        self.state().failure.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cp::channel::LastHeard;
    use uiw_copy::meta::FileTime;
    use uiw_copy::names::RelPath;
    use uiw_copy::root::Root;

    #[test]
    fn repeated_losses_noted_once() {
        let report = Report::new(true, Arc::new(LastHeard::default()));
        let plan = CopyPlan::new(report, StopFlag::on_signal().unwrap(), CopyOptions::default());
        let noted =
            ["refused", "refused", "reset", "refused", ""].map(|cause| plan.note_loss(cause));
        assert_eq!(noted, [true, false, true, true, true]);
        assert!(plan.note_loss("refused"), "the server has answered meanwhile");
    }

    #[test]
    fn removals_of_directory_divided() {
        let report = Report::new(true, Arc::new(LastHeard::default()));
        let rules = CopyOptions { delete: true, ..CopyOptions::default() };
        let plan = CopyPlan::new(report, StopFlag::on_signal_but_hangup(|| {}).unwrap(), rules);
        let root = Arc::new(Root::open("/".as_ref()).unwrap());
        let place = EntryPaths { root, local: RelPath::default(), remote: RelPath::default() };
        let meta = |kind| Meta {
            kind,
            mode: 0,
            size: 0,
            mtime: FileTime::default(),
            version: [0; 16],
            sparse: false,
            target: Vec::new(),
        };
        plan.add_entry(place, meta(EntryKind::Directory), None);
        plan.on_sources_added();
        let Some(Task::Directory(directory, _)) = plan.take_task() else { panic!("a directory") };
        let names: Vec<_> = (0..100).map(|number| format!("{number:03}")).collect();
        let entry = |name: &String| Entry {
            name: Name::new(name.as_bytes()).unwrap(),
            meta: meta(EntryKind::File),
        };
        plan.add_entries(&directory, Vec::new(), names.iter().map(entry).collect());
        plan.on_listed(&directory);
        assert!(matches!(plan.take_task(), Some(Task::Seal(_))));
        plan.on_sealed(&directory);
        let (mut removed, mut tasks) = (Vec::new(), 0);
        while let Some(Task::Remove(_, places)) = plan.take_task() {
            tasks += 1;
            removed.extend(places.iter().rev().map(|place| place.remote.to_string()));
        }
        assert_eq!(removed, names);
        assert_eq!(tasks, 4);
        (0..tasks).for_each(|_| plan.on_removed(&directory));
        // Sealed earlier, a read-only directory would refuse the removals of the other tasks.
        assert!(matches!(plan.take_task(), Some(Task::Remove(_, places)) if places.is_empty()));
        assert!(plan.take_task().is_none() && !plan.is_over());
        plan.on_sealed_again();
        assert!(plan.is_over());
    }
}
