//! The work of a transfer, which all connections take from, and what became of it.

use super::pattern::Pattern;
use super::report::Report;
use super::transfer::{Directory, Item, ListMemory, Place, Transfer};
use crate::shared::fail::{Exit, Failure};
use crate::shared::stop::Stop;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uiw_copy::batch::SMALL;
use uiw_copy::meta::Entry;
use uiw_copy::meta::{Kind, Meta};
use uiw_copy::names::Name;
use uiw_copy::protocol::{MAX_BATCH, MESSAGE, SLOT};

/// Large files under way at a time.
const MAX_OPEN: usize = 16;
/// Bytes of memory of lists from which on no directory is listed as long as there are large files to copy.
const ENOUGH_LISTS: u64 = 256 << 20;
/// Entries that one task removes, one after the other, each with a round trip to the server.
const REMOVALS: usize = 32;
/// How often a file may change while it is copied.
const MAX_RESTARTS: u8 = 5;
/// How long a file that another transfer writes is left alone, and how often it is tried.
const BUSY: (Duration, u8) = (Duration::from_secs(2), 60);

/// One request, or one step at this end.
#[derive(Debug)]
pub(super) enum Task {
    /// Lists a directory, of which these entries are known.
    Directory(Arc<Directory>, Vec<Entry>),
    /// Small files, at most as many as fit a slot.
    Batch(Vec<Item>),
    Link(Item),
    /// Begins or continues a large file; tried so often before.
    Open(Item, u8),
    Block(Arc<Transfer>, u64),
    /// Blocks of a hole, of which the first is counted as under way.
    Hole(Arc<Transfer>, Range<u64>),
    Finish(Arc<Transfer>),
    /// Gives a complete directory its mode and time.
    Seal(Arc<Directory>),
    /// Removes entries of the directory at the target, the last one first, then seals it again if the source has it.
    Remove(Arc<Directory>, Vec<Place>),
}

/// Choices of the user about a transfer.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) dry_run: bool,
    /// Removes what is at the target and not at the source.
    pub(super) delete: bool,
    /// Entries that are left alone, at both ends.
    pub(super) excluded: Vec<Pattern>,
}

/// See the module.
pub(super) struct Plan {
    state: Mutex<PlanState>,
    changed: Condvar,
    pub(super) report: Report,
    /// Set when there is nothing more to do, for whatever reason.
    pub(super) stop: Arc<Stop>,
    pub(super) rules: Rules,
    /// The target would be made: nothing is there to compare with.
    target_absent: AtomicBool,
    /// The last reason for which a connection was lost.
    loss: Mutex<String>,
    lists: ListMemory,
}

#[derive(Default)]
struct PlanState {
    /// What was under way on a connection that broke, and last steps.
    first: VecDeque<Task>,
    files: VecDeque<Arc<Transfer>>,
    /// Large files between `Open` and their end.
    open: usize,
    ready: VecDeque<Task>,
    opens: VecDeque<Task>,
    later: Vec<(Instant, Task)>,
    /// The last one first, so that few are known at a time.
    directories: Vec<Task>,
    /// Entries that are neither there nor failed, and one for the command line.
    entries: u64,
    /// Entries of targets that their sources do not have, by directory. They are removed when everything else is there.
    surplus: Vec<(Arc<Directory>, Vec<Place>)>,
    failure: Option<Failure>,
}

impl Plan {
    pub(super) fn new(report: Report, stop: Arc<Stop>, rules: Rules) -> Self {
        let state = Mutex::new(PlanState { entries: 1, ..PlanState::default() });
        let target_absent = AtomicBool::new(false);
        let (loss, lists) = (Mutex::default(), ListMemory::default());
        Self { state, changed: Condvar::new(), report, stop, rules, target_absent, loss, lists }
    }

    /// Notes why a connection was lost. False: another one was lost for this reason just before.
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

    fn state(&self) -> MutexGuard<'_, PlanState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, to: impl FnOnce(&mut PlanState)) {
        to(&mut self.state());
        self.changed.notify_all();
    }

    /// An entry to be copied.
    pub(super) fn add_entry(&self, place: Place, meta: Meta, parent: Option<Arc<Directory>>) {
        self.state().entries += 1;
        if let Some(parent) = &parent {
            parent.add();
        }
        match meta.kind {
            Kind::Directory => {
                let directory = Arc::new(Directory::new(place, meta, parent, &self.lists));
                self.add(|state| state.directories.push(Task::Directory(directory, Vec::new())));
            }
            Kind::Special => {
                let item = Item { place, meta, parent, restarts: 0 };
                self.fail(&item, "a device, FIFO or socket, which is not copied");
            }
            Kind::Symlink => {
                self.report.found(0);
                let item = Item { place, meta, parent, restarts: 0 };
                self.add(|state| state.ready.push_back(Task::Link(item)));
            }
            Kind::File => {
                self.report.found(meta.size);
                let item = Item { place, meta, parent, restarts: 0 };
                if item.meta.size > SMALL {
                    self.add(|state| state.opens.push_back(Task::Open(item, 0)));
                } else {
                    self.add_small(vec![item]);
                }
            }
        }
    }

    /// Small files, in batches that fit a slot and whose paths fit a message.
    pub(super) fn add_small(&self, items: Vec<Item>) {
        let weight = |item: &Item| {
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

    /// The entries of a directory's source, of which those that are at the target already are left out.
    pub(super) fn add_entries(&self, directory: &Arc<Directory>, sources: Vec<Entry>, targets: Vec<Entry>) {
        let mut targets: HashMap<_, _> = targets.into_iter().map(|entry| (entry.name, entry.meta)).collect();
        for Entry { name, meta } in sources {
            let target = targets.remove(&name);
            if self.is_excluded(directory, &name) {
                continue;
            }
            let place = match directory.place.join(&name) {
                Ok(place) => place,
                Err(error) => {
                    let path = [directory.place.remote.as_bytes(), name.as_bytes()].join(&b'/');
                    self.report.failed(&path, &error);
                    continue;
                }
            };
            let is_there = target.is_some_and(|target| meta.is_copied_by(&target));
            if is_there && meta.kind != Kind::Directory {
                self.report.unchanged();
                continue;
            }
            if self.rules.dry_run && meta.kind != Kind::Directory && meta.kind != Kind::Special {
                self.report.would_copy(&place.remote, &meta);
                continue;
            }
            self.add_entry(place, meta, Some(Arc::clone(directory)));
        }
        if self.rules.delete {
            self.add_surplus(directory, targets.into_iter().map(|(name, meta)| Entry { name, meta }));
        }
    }

    fn is_excluded(&self, directory: &Directory, name: &Name) -> bool {
        let excluded = &self.rules.excluded;
        // Without patterns no path need be made.
        !excluded.is_empty() && {
            let path = [directory.below.as_slice(), name.as_bytes()].concat();
            excluded.iter().any(|pattern| pattern.matches(&path))
        }
    }

    /// Notes entries of a target directory that its source does not have. Directories are searched for excluded entries first.
    pub(super) fn add_surplus(&self, directory: &Arc<Directory>, entries: impl IntoIterator<Item = Entry>) {
        for Entry { name, meta } in entries {
            if self.is_excluded(directory, &name) {
                directory.removals().has_excluded = true;
                continue;
            }
            match directory.place.join(&name) {
                Ok(place) if meta.kind == Kind::Directory && !self.rules.excluded.is_empty() => {
                    let parent = Some(Arc::clone(directory));
                    let mut surplus = Directory::new(place, meta, parent, &self.lists);
                    surplus.is_surplus = true;
                    directory.add();
                    let task = Task::Directory(Arc::new(surplus), Vec::new());
                    self.add(|state| {
                        state.entries += 1;
                        state.directories.push(task);
                    });
                }
                Ok(place) => directory.removals().places.push(place),
                Err(error) => {
                    let path = [directory.place.remote.as_bytes(), name.as_bytes()].join(&b'/');
                    self.report.failed(&path, &error);
                }
            }
        }
    }

    /// Everything in a directory is known: it is surplus as a whole, or entries of it are.
    fn note_removals(&self, directory: &Arc<Directory>) {
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
        if self.rules.dry_run {
            removals.places.iter().rev().for_each(|place| self.report.would_delete(&place.remote));
        } else if !removals.places.is_empty() {
            self.state().surplus.push((Arc::clone(directory), removals.places));
        }
    }

    /// Everything is there, or has failed: what is surplus is removed. False: there is nothing to remove.
    fn begin_removal(&self, state: &mut PlanState) -> bool {
        let surplus = std::mem::take(&mut state.surplus);
        if self.report.failures() > 0 {
            if !surplus.is_empty() {
                self.report.not_deleted();
            }
            return false;
        }
        for (directory, mut places) in surplus {
            while !places.is_empty() {
                let part = places.split_off(places.len().saturating_sub(REMOVALS));
                state.ready.push_back(Task::Remove(Arc::clone(&directory), part));
            }
        }
        state.entries = state.ready.len() as u64;
        state.entries > 0
    }

    /// Surplus entries of a directory are removed.
    pub(super) fn removed(&self) {
        self.leave(None);
    }

    /// A large file whose blocks may be taken.
    pub(super) fn add_file(&self, transfer: Arc<Transfer>) {
        if transfer.is_whole() {
            self.first(Task::Finish(transfer));
        } else {
            self.add(|state| {
                // It may be there still, when blocks of it turned out to be missing at its end.
                if !state.files.iter().any(|known| Arc::ptr_eq(known, &transfer)) {
                    state.files.push_back(transfer);
                }
            });
        }
    }

    /// A task that goes before all others.
    pub(super) fn first(&self, task: Task) {
        self.add(|state| state.first.push_back(task));
    }

    /// Tasks of a connection that broke.
    pub(super) fn again(&self, tasks: impl IntoIterator<Item = Task>) {
        self.add(|state| {
            for task in tasks {
                // Its place among the open files is taken anew.
                if matches!(task, Task::Open(..)) {
                    state.open -= 1;
                    state.opens.push_front(task);
                } else {
                    state.first.push_back(task);
                }
            }
        });
    }

    /// Something to be done now; `None` if there is nothing at the moment.
    pub(super) fn take(&self) -> Option<Task> {
        if self.stop.is_set() {
            return None;
        }
        let mut state = self.state();
        if let Some(task) = state.first.pop_front() {
            return Some(task);
        }
        while let Some(file) = state.files.front() {
            match file.take().filter(|_| !file.is_cancelled()) {
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
        if state.open < MAX_OPEN
            && let Some(task) = state.opens.pop_front()
        {
            state.open += 1;
            return Some(task);
        }
        let has_files = state.open > 0 || !state.opens.is_empty();
        if has_files && self.lists.load(Ordering::Relaxed) > ENOUGH_LISTS {
            return None;
        }
        state.directories.pop()
    }

    /// Returns whether at least so many blocks of open files are still to be taken.
    pub(super) fn has_blocks(&self, count: u64) -> bool {
        let mut found = 0;
        self.state().files.iter().any(|file| {
            found += file.missing();
            found >= count
        })
    }

    /// Returns whether more requests than `count` could be made now.
    fn has_more_than(&self, count: u64) -> bool {
        let state = self.state();
        let tasks = state.first.len() + state.ready.len() + state.opens.len() + state.directories.len();
        let blocks = state.files.iter().map(|file| file.missing()).sum::<u64>();
        blocks.saturating_add(tasks as u64) > count
    }

    /// Waits until more requests than `count` can be made. False: everything is done.
    pub(super) fn wait_for_more_than(&self, count: u64) -> bool {
        while !self.has_more_than(count) {
            if !self.wait() {
                return false;
            }
        }
        true
    }

    /// Waits a moment for something to do. False: everything is done.
    pub(super) fn wait(&self) -> bool {
        let state = self.state();
        if state.entries == 0 || self.stop.is_set() {
            return false;
        }
        // Files that are busy elsewhere are due without any event.
        let _ = self.changed.wait_timeout(state, Duration::from_millis(50));
        true
    }

    /// Returns whether every entry is there or has failed.
    pub(super) fn is_over(&self) -> bool {
        self.state().entries == 0
    }

    /// Returns the number of failed entries to report to the server. `None` if the transfer was interrupted, or failed for a reason at the server:
    /// that would not close in order either.
    pub(super) fn end_report(&self) -> Option<u64> {
        let state = self.state();
        match &state.failure {
            Some(Failure { exit: Exit::Failed | Exit::Usage, .. }) => Some(self.report.failures() + 1),
            None if state.entries == 0 => Some(self.report.failures()),
            _ => None,
        }
    }

    /// Another transfer writes the file.
    pub(super) fn busy(&self, item: Item, tried: u8) {
        if tried >= BUSY.1 {
            self.state().open -= 1;
            self.fail(&item, "another transfer writes it");
            return;
        }
        self.add(|state| {
            state.open -= 1;
            state.later.push((Instant::now() + BUSY.0, Task::Open(item, tried + 1)));
        });
    }

    /// Begins a large file anew, of the same version or another.
    pub(super) fn reopen(&self, transfer: &Transfer, meta: Option<Meta>) {
        if !transfer.cancel() {
            return;
        }
        self.state().open -= 1;
        let mut item = transfer.item.clone();
        if let Some(meta) = meta {
            item.meta = meta;
        }
        self.restart(item);
    }

    /// A file that is another one than it was.
    pub(super) fn restart(&self, mut item: Item) {
        item.restarts += 1;
        if item.restarts > MAX_RESTARTS {
            self.fail(&item, "it changes while it is copied");
        } else if item.meta.kind != Kind::File {
            self.fail(&item, "it is no file any more");
        } else {
            self.add(|state| state.opens.push_back(Task::Open(item, 0)));
        }
    }

    /// A large file is there, or was before.
    pub(super) fn finished(&self, item: &Item) {
        self.state().open -= 1;
        self.done(item);
    }

    /// A large file has failed.
    pub(super) fn give_up(&self, transfer: &Transfer, why: &dyn std::fmt::Display) {
        if transfer.cancel() {
            self.state().open -= 1;
            self.fail(&transfer.item, why);
        }
    }

    /// Opening a large file has failed.
    pub(super) fn not_opened(&self, item: &Item, why: &dyn std::fmt::Display) {
        self.state().open -= 1;
        self.fail(item, why);
    }

    pub(super) fn done(&self, item: &Item) {
        self.report.copied();
        self.leave(item.parent.as_ref());
    }

    pub(super) fn fail(&self, item: &Item, why: impl std::fmt::Display) {
        self.report.failed(item.place.remote.as_bytes(), &why);
        self.leave(item.parent.as_ref());
    }

    /// The list of a directory is known and its entries are added.
    pub(super) fn listed(&self, directory: &Arc<Directory>) {
        self.entry_of(directory);
    }

    fn entry_of(&self, directory: &Arc<Directory>) {
        if directory.done() {
            self.note_removals(directory);
            if self.rules.dry_run || directory.is_surplus {
                self.sealed(directory);
            } else {
                self.first(Task::Seal(Arc::clone(directory)));
            }
        }
    }

    /// A directory has its mode and time.
    pub(super) fn sealed(&self, directory: &Directory) {
        self.leave(directory.parent.as_ref());
    }

    pub(super) fn fail_directory(&self, directory: &Directory, why: impl std::fmt::Display) {
        self.report.failed(directory.place.remote.as_bytes(), &why);
        self.leave(directory.parent.as_ref());
    }

    /// All entries of the command line are added.
    pub(super) fn named(&self) {
        self.leave(None);
    }

    /// An entry is there or has failed.
    fn leave(&self, parent: Option<&Arc<Directory>>) {
        if let Some(parent) = parent {
            self.entry_of(parent);
        }
        let mut is_over = false;
        self.add(|state| {
            state.entries -= 1;
            is_over = state.entries == 0 && !self.begin_removal(state);
        });
        if is_over {
            self.stop.set();
        }
    }

    /// Ends the transfer.
    pub(super) fn end(&self, failure: Failure) {
        self.add(|state| {
            state.failure.get_or_insert(failure);
        });
        self.stop.set();
    }

    /// Returns the reason why the transfer has ended.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        self.state().failure.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cp::channel::Heard;
    use uiw_copy::meta::Time;
    use uiw_copy::names::RelPath;
    use uiw_copy::root::Root;

    #[test]
    fn repeated_losses_noted_once() {
        let report = Report::new(true, Arc::new(Heard::default()));
        let plan = Plan::new(report, Stop::on_signal().unwrap(), Rules::default());
        let noted = ["refused", "refused", "reset", "refused", ""].map(|cause| plan.note_loss(cause));
        assert_eq!(noted, [true, false, true, true, true]);
        assert!(plan.note_loss("refused"), "the server has answered meanwhile");
    }

    #[test]
    fn removals_of_directory_divided() {
        let report = Report::new(true, Arc::new(Heard::default()));
        let rules = Rules { delete: true, ..Rules::default() };
        let plan = Plan::new(report, Stop::on_signal_but_hangup(|| {}).unwrap(), rules);
        let root = Arc::new(Root::open("/".as_ref()).unwrap());
        let place = Place { root, local: RelPath::default(), remote: RelPath::default() };
        let meta = |kind| Meta {
            kind,
            mode: 0,
            size: 0,
            mtime: Time::default(),
            version: [0; 16],
            sparse: false,
            target: Vec::new(),
        };
        plan.add_entry(place, meta(Kind::Directory), None);
        plan.named();
        let Some(Task::Directory(directory, _)) = plan.take() else { panic!("a directory") };
        let names: Vec<_> = (0..100).map(|number| format!("{number:03}")).collect();
        let entry =
            |name: &String| Entry { name: Name::new(name.as_bytes()).unwrap(), meta: meta(Kind::File) };
        plan.add_entries(&directory, Vec::new(), names.iter().map(entry).collect());
        plan.listed(&directory);
        assert!(matches!(plan.take(), Some(Task::Seal(_))));
        plan.sealed(&directory);
        let (mut removed, mut tasks) = (Vec::new(), 0);
        while let Some(Task::Remove(_, places)) = plan.take() {
            tasks += 1;
            removed.extend(places.iter().rev().map(|place| place.remote.to_string()));
        }
        assert_eq!(removed, names);
        assert_eq!(tasks, 4);
        assert!((0..tasks).all(|_| !plan.is_over() && (plan.removed(), true).1));
        assert!(plan.is_over());
    }
}
