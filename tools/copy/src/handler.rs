//! Execution of requests at the server. This module does not use connections: the caller passes the
//! contents of slots in and out.

use super::batch::{self, Batch, BatchContent, BatchRead};
use super::claims::Claims;
use super::meta::Meta;
use super::names::RelPath;
use super::part::{OpenedPart, PartOutcome, PartialFile, next_data};
use super::protocol::{BLOCK, CreateMode, FileHead, Hash, Reply, Request, encode_entries};
use super::root::{ABANDONED, Listing, Root, wait_for_tick};
use super::tally::Tally;
use super::wire::WireError;
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::io::{Error, Result};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of files open for writing in one session at which another one first closes the least
/// recently used file that no request uses.
const MAX_PARTS: usize = 16;
/// Maximum number of files that one connection has open for reading.
const MAX_SOURCES: usize = 8;

/// State shared by the connections of one client.
#[derive(Debug)]
pub struct Session {
    root: Arc<Root>,
    writable: bool,
    /// Part of the names of temporary files of the session.
    label: String,
    /// Files open for writing, with the most recently used one at the end.
    parts: Mutex<Vec<Arc<PartialFile>>>,
    claims: Claims,
    opening: Arc<OpeningLock>,
    tally: Mutex<Tally>,
}

/// Lock that is held while an incomplete file is opened, because its contents are then read and
/// hashed. All sessions of a peer share one lock, so that small requests keep at most one processor
/// busy. After each block the lock passes to another waiting session, so that no session has to
/// wait for a whole file.
#[derive(Debug, Default)]
pub struct OpeningLock(parking_lot::Mutex<()>);

/// Handler of the requests of one connection.
pub struct Handler {
    session: Arc<Session>,
    sources: Vec<(RelPath, File)>,
    /// Position in the last directory that was not listed completely.
    listing: Option<Listing>,
    /// Function that returns whether the client still waits for the reply. Long operations stop if
    /// it returns false.
    should_continue: Box<dyn Fn() -> bool>,
    /// Entries that failed in the last request.
    failures: Vec<(RelPath, Error)>,
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handler").field("session", &self.session).finish_non_exhaustive()
    }
}

/// A reply, and the bytes that are written into the slot before.
pub type Answer = (Reply, Option<Vec<u8>>);

impl From<PartOutcome> for Reply {
    fn from(outcome: PartOutcome) -> Self {
        match outcome {
            PartOutcome::Done => Self::Done,
            PartOutcome::Reopen => Self::Reopen,
            PartOutcome::Missing(ranges) => Self::Missing(ranges),
        }
    }
}

fn failed(error: &Error) -> Reply {
    Reply::Failed { errno: batch::errno(error), text: error.to_string() }
}

impl Session {
    pub fn new(root: Arc<Root>, writable: bool, token: u64, opening: Arc<OpeningLock>) -> Self {
        let label = format!("{:08x}", token as u32);
        Self {
            root,
            writable,
            label,
            parts: Mutex::default(),
            claims: Claims::default(),
            opening,
            tally: Mutex::default(),
        }
    }

    /// Returns the totals so far.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Arc<PartialFile>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the incomplete file, and opens it if necessary. The inner error is the reply to send
    /// instead.
    fn open_part(
        &self,
        file: &FileHead,
        begin: bool,
        should_continue: &dyn Fn() -> bool,
    ) -> Result<std::result::Result<Arc<PartialFile>, Reply>> {
        let mut parts = self.parts();
        if let Some(at) = parts.iter().position(|part| *part.path() == file.path) {
            // If the file has another version, this releases its lock, once no other connection
            // uses it.
            let part = parts.remove(at);
            if part.matches(file) {
                parts.push(Arc::clone(&part));
                return Ok(Ok(part));
            }
            if !begin {
                parts.push(part);
                return Ok(Err(Reply::Reopen));
            }
        }
        while parts.len() >= MAX_PARTS
            && let Some(unused) = parts.iter().position(|part| Arc::strong_count(part) == 1)
        {
            parts.remove(unused);
        }
        let opening = RefCell::new(self.opening.0.lock());
        let opened = PartialFile::open(&self.root, file, begin, &|| {
            parking_lot::MutexGuard::bump(&mut opening.borrow_mut());
            should_continue()
        });
        drop(opening);
        match opened? {
            OpenedPart::Complete => Ok(Err(Reply::Complete)),
            OpenedPart::Nothing => Ok(Err(Reply::Reopen)),
            OpenedPart::Part(part) => {
                let part = Arc::new(part);
                parts.push(Arc::clone(&part));
                Ok(Ok(part))
            }
        }
    }
}

impl Handler {
    /// Creates a handler. Long operations call `should_continue` repeatedly, and stop if it returns
    /// false.
    pub fn new(session: Arc<Session>, should_continue: impl Fn() -> bool + 'static) -> Self {
        Self {
            session,
            sources: Vec::new(),
            listing: None,
            should_continue: Box::new(should_continue),
            failures: Vec::new(),
        }
    }

    /// Returns the entries that failed in the last request, for a log. The client got the same
    /// errors.
    pub fn failures(&self) -> &[(RelPath, Error)] {
        &self.failures
    }

    /// Executes a request. `read_slot` returns the first bytes of its slot.
    ///
    /// # Errors
    /// Returns an error if the client has violated the protocol.
    pub fn handle<E: From<WireError>>(
        &mut self,
        request: &Request,
        read_slot: impl FnOnce(u32) -> std::result::Result<Vec<u8>, E>,
    ) -> std::result::Result<Answer, E> {
        self.failures.clear();
        let answer = match request {
            request if request.writes() && !self.session.writable => Err(Errno::ROFS.into()),
            Request::Put { file, index, len, hash } => {
                let bytes = read_slot(*len)?;
                check_hash(&bytes, hash).and_then(|()| {
                    let reply =
                        self.with_part(file, |part| part.put_block(*index, &bytes, hash))?;
                    if reply == Reply::Done {
                        self.session.tally().count_block(&file.path, bytes.len() as u64);
                    }
                    Ok((reply, None))
                })
            }
            Request::PutBatch { count, len, hash } => {
                let bytes = read_slot(*len)?;
                let records = batch::decode(&bytes, *count)?;
                let mut files = Vec::with_capacity(records.len());
                for ((path, content), position) in records.iter().zip(0..) {
                    match content {
                        BatchContent::Bytes(meta, bytes) => {
                            files.push((position, path, meta, *bytes));
                        }
                        BatchContent::Failed(_) | BatchContent::TooLarge(_) => {
                            return Err(WireError::value("the mark of a record", 1u8).into());
                        }
                    }
                }
                check_hash(&bytes, hash).map(|()| {
                    let session = Arc::clone(&self.session);
                    let paths = files.iter().map(|(_, path, ..)| RelPath::clone(path)).collect();
                    let _claim = session.claims.take(paths);
                    let failures =
                        batch::store(&session.root, files.iter().copied(), &session.label);
                    for (position, path, meta, _) in &files {
                        match failures.iter().find(|(at, _)| at == position) {
                            None => session.tally().count_file(path, meta.size),
                            Some((_, errno)) => {
                                self.fail(path, Error::from_raw_os_error((*errno).into()));
                            }
                        }
                    }
                    (Reply::Stored(failures), None)
                })
            }
            other => self.handle_without_bytes(other),
        };
        Ok(answer.unwrap_or_else(|error| {
            let reply = failed(&error);
            // If another transfer writes the file, the client tries again later, so this is not a
            // failure.
            if error.raw_os_error() != Some(Errno::BUSY.raw_os_error()) {
                self.fail(&request.path().unwrap_or_default(), error);
            }
            (reply, None)
        }))
    }

    fn fail(&mut self, path: &RelPath, error: Error) {
        self.session.tally().errors += 1;
        self.failures.push((path.clone(), error));
    }

    fn handle_without_bytes(&mut self, request: &Request) -> Result<Answer> {
        let session = Arc::clone(&self.session);
        let root = &session.root;
        let reply = match request {
            Request::Stat { path } => match root.meta(path) {
                Ok(meta) => Reply::Found(meta),
                Err(error) if is_absent(&error) => Reply::Absent,
                Err(error) => return Err(error),
            },
            Request::List { path, after, create } => return self.list(path, after, *create),
            Request::Open { file } => match session.open_part(file, true, &self.should_continue)? {
                Ok(part) => {
                    session.tally().extend_common_path(&file.path);
                    Reply::Missing(part.missing())
                }
                Err(reply) => reply,
            },
            Request::Hole { file, blocks } => {
                self.with_part(file, |part| part.put_hole(blocks.clone()))?
            }
            Request::Finish { file } => self.finish(file)?,
            Request::Symlink { path, target, mtime } => {
                let _claim = session.claims.take(vec![path.clone()]);
                root.symlink(path, target, *mtime, &session.label)?;
                session.tally().count_file(path, 0);
                Reply::Done
            }
            Request::SetDirectory { path, mode, mtime } => {
                // The share itself belongs to the operator. A client that copies into it must not
                // change its mode.
                if !path.is_empty() {
                    root.set_directory(path, *mode, *mtime)?;
                }
                Reply::Done
            }
            Request::Get { path, version, index } => return self.get(path, version, *index),
            Request::GetBatch { paths } => {
                let mut batch = Batch::default();
                // The client asks again for files that do not fit.
                for path in paths {
                    match batch.read(root, path) {
                        BatchRead::NoRoom => break,
                        BatchRead::File(bytes) => session.tally().count_file(path, bytes),
                        BatchRead::TooLarge => {}
                        BatchRead::Failed(error) => self.fail(path, error),
                    }
                }
                let (count, len) = (batch.count, batch.bytes().len() as u32);
                let hash = batch.hash();
                return Ok((Reply::Batch { count, len, hash }, Some(batch.into_bytes())));
            }
            Request::Remove { path } => {
                let _claim = session.claims.take(vec![path.clone()]);
                if let Some((parent, _)) = path.split().filter(|(parent, _)| !parent.is_empty()) {
                    // An error shows again when the entry is removed.
                    let _ = root.make_writable(&parent);
                }
                root.remove(path, &self.should_continue)?;
                session.tally().count_removal(path);
                Reply::Done
            }
            Request::End { failed } => {
                session.tally().reported = Some(*failed);
                Reply::Done
            }
            Request::Put { .. } | Request::PutBatch { .. } => return Err(Errno::INVAL.into()),
        };
        Ok((reply, None))
    }

    fn with_part(
        &self,
        file: &FileHead,
        on: impl FnOnce(&PartialFile) -> Result<PartOutcome>,
    ) -> Result<Reply> {
        match self.session.open_part(file, false, &self.should_continue)? {
            Ok(part) => Ok(on(&part)?.into()),
            Err(reply) => Ok(reply),
        }
    }

    fn finish(&self, file: &FileHead) -> Result<Reply> {
        let part = match self.session.open_part(file, false, &self.should_continue)? {
            Ok(part) => part,
            Err(reply) => return Ok(reply),
        };
        let outcome = part.finish();
        // The file is also removed from the open ones after an error. Opening it again verifies its
        // contents.
        if !matches!(outcome, Ok(PartOutcome::Missing(_))) {
            self.session.parts().retain(|known| !Arc::ptr_eq(known, &part));
        }
        let outcome = outcome?;
        if matches!(outcome, PartOutcome::Done) {
            // Also count a file without bytes, which had no earlier request.
            self.session.tally().count_block(&file.path, 0);
        }
        Ok(outcome.into())
    }

    fn list(&mut self, path: &RelPath, after: &[u8], create: CreateMode) -> Result<Answer> {
        let root = &self.session.root;
        let (entries, more) = match root.read_page(path, after, &mut self.listing) {
            Err(error) if is_absent(&error) && create != CreateMode::No => {
                root.make_directory(path, create == CreateMode::Private)?;
                self.session.tally().extend_common_path(path);
                Default::default()
            }
            Err(error) if is_absent(&error) => return Ok((Reply::Absent, None)),
            page => {
                if create != CreateMode::No && after.is_empty() {
                    // The client sets the mode of a private directory at the end. That of the share
                    // itself is not changed.
                    if create == CreateMode::Private && !path.is_empty() {
                        // An error shows again when an entry is created.
                        let _ = root.make_writable(path);
                    }
                    // An error does not matter, because this only cleans up.
                    let _ = root.remove_abandoned(path, ABANDONED);
                }
                page?
            }
        };
        let bytes = encode_entries(&entries);
        Ok((Reply::Listed { len: bytes.len() as u32, more }, Some(bytes)))
    }

    fn open_source(&mut self, path: &RelPath) -> Result<&File> {
        match self.sources.iter().position(|(known, _)| known == path) {
            Some(at) => Ok(&self.sources[at].1),
            None => {
                let (file, _) = self.session.root.open_file(path)?;
                if self.sources.len() == MAX_SOURCES {
                    self.sources.remove(0);
                }
                self.sources.push((path.clone(), file));
                Ok(&self.sources[self.sources.len() - 1].1)
            }
        }
    }

    fn get(&mut self, path: &RelPath, version: &[u8; 16], index: u64) -> Result<Answer> {
        let before = Meta::from_stat(&rustix::fs::fstat(self.open_source(path)?)?);
        if before.version != *version {
            // The name may refer to another file by now.
            self.sources.retain(|(known, _)| known != path);
            let now = Meta::from_stat(&rustix::fs::fstat(self.open_source(path)?)?);
            if now.version != *version {
                return Ok((Reply::Changed(now), None));
            }
        }
        let file = self.open_source(path)?;
        match read_block(file, version, index)? {
            BlockRead::Changed(meta) => Ok((Reply::Changed(meta), None)),
            BlockRead::HoleUntil(end) => {
                self.session.tally().count_block(path, 0);
                Ok((Reply::HoleUntil(end), None))
            }
            BlockRead::Block(bytes) => {
                let hash = *blake3::hash(&bytes).as_bytes();
                self.session.tally().count_block(path, bytes.len() as u64);
                Ok((Reply::Block { len: bytes.len() as u32, hash }, Some(bytes)))
            }
        }
    }
}

/// Checks the hash of received bytes.
fn check_hash(bytes: &[u8], hash: &Hash) -> Result<()> {
    if blake3::hash(bytes) == *hash {
        Ok(())
    } else {
        Err(Error::other("the bytes do not have their hash"))
    }
}

fn is_absent(error: &Error) -> bool {
    error.raw_os_error() == Some(Errno::NOENT.raw_os_error())
}

/// Result of reading a block of a source.
pub enum BlockRead {
    Block(Vec<u8>),
    /// The block lies in a hole that ends at this block.
    HoleUntil(u64),
    /// The file has another version.
    Changed(Meta),
}

/// Reads a block of the version that the caller expects.
pub fn read_block(file: &File, version: &[u8; 16], index: u64) -> Result<BlockRead> {
    wait_for_tick(file)?;
    let meta = Meta::from_stat(&rustix::fs::fstat(file)?);
    if meta.version != *version {
        return Ok(BlockRead::Changed(meta));
    }
    let read = read_block_of(file, &meta, index);
    let after = Meta::from_stat(&rustix::fs::fstat(file)?);
    if after.version == *version { read } else { Ok(BlockRead::Changed(after)) }
}

/// Reads a block or finds a hole, without checking the version.
fn read_block_of(file: &File, meta: &Meta, index: u64) -> Result<BlockRead> {
    let blocks = meta.size.div_ceil(BLOCK);
    if index >= blocks {
        return Err(Errno::INVAL.into());
    }
    let start = index * BLOCK;
    if meta.sparse {
        let data = next_data(file, start)?.unwrap_or(u64::MAX);
        if data >= start + BLOCK {
            return Ok(BlockRead::HoleUntil((data / BLOCK).min(blocks)));
        }
        if data >= meta.size {
            return Ok(BlockRead::HoleUntil(blocks));
        }
    }
    let mut bytes = vec![0; (meta.size - start).min(BLOCK) as usize];
    file.read_exact_at(&mut bytes, start)?;
    Ok(BlockRead::Block(bytes))
}

#[cfg(test)]
mod tests {
    use super::super::meta::{EntryKind, FileTime};
    use super::super::scratch::ScratchDirectory;
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    fn head(name: &str, blocks: u64) -> FileHead {
        let meta = Meta {
            kind: EntryKind::File,
            mode: 0o600,
            size: blocks * BLOCK,
            mtime: FileTime::default(),
            version: [1; 16],
            sparse: true,
            target: Vec::new(),
        };
        FileHead { path: RelPath::new(name.as_bytes()).unwrap(), meta }
    }

    /// Returns the reply for a file of `blocks` without existing data.
    fn missing(blocks: u64) -> Reply {
        Reply::Missing(std::iter::once(0..blocks).collect())
    }

    /// Sends a request that needs no bytes.
    fn handle(handler: &mut Handler, request: &Request) -> Reply {
        let no_bytes = |_| Err(WireError::Value { what: "a slot", value: 0 });
        handler.handle(request, no_bytes).unwrap().0
    }

    #[test]
    fn least_recently_used_file_closed() {
        let scratch = ScratchDirectory::new();
        let root = Arc::new(Root::open(scratch.path()).unwrap());
        let handler = |token| {
            let session = Session::new(Arc::clone(&root), true, token, Arc::default());
            Handler::new(Arc::new(session), || true)
        };
        let file = |number: usize| head(&number.to_string(), 1);
        let (mut first, mut other) = (handler(1), handler(2));
        for number in 0..=MAX_PARTS {
            assert_eq!(handle(&mut first, &Request::Open { file: file(number) }), missing(1));
            // The first file stays in use.
            handle(&mut first, &Request::Hole { file: file(0), blocks: 0..1 });
        }
        let closed = |number: &usize| {
            handle(&mut other, &Request::Open { file: file(*number) }) == missing(1)
        };
        assert_eq!((0..=MAX_PARTS).filter(closed).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn long_verification_delays_no_other_session() {
        const RECORDS: u64 = 200;
        let scratch = ScratchDirectory::new();
        let root = Arc::new(Root::open(scratch.path()).unwrap());
        let opening = Arc::<OpeningLock>::default();
        let session =
            |token| Arc::new(Session::new(Arc::clone(&root), true, token, Arc::clone(&opening)));
        let long = Request::Open { file: head("long", 2 * RECORDS) };
        let mut first = Handler::new(session(1), || true);
        assert_eq!(handle(&mut first, &long), missing(2 * RECORDS));
        for block in 0..RECORDS {
            let blocks = 2 * block..2 * block + 1;
            let hole = Request::Hole { file: head("long", 2 * RECORDS), blocks };
            assert_eq!(handle(&mut first, &hole), Reply::Done);
        }
        drop(first);
        let (begun, other_is_open) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        std::thread::scope(|scope| {
            let other = session(2);
            let (begun, is_open) = (Arc::clone(&begun), Arc::clone(&other_is_open));
            let wait_for_other = (Arc::clone(&begun), Arc::clone(&is_open));
            let mut first = Handler::new(session(1), move || {
                let (begun, is_open) = &wait_for_other;
                begun.store(true, Ordering::SeqCst);
                // The verification of each record is slow until the other session has been served.
                if !is_open.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                true
            });
            scope.spawn(move || {
                while !begun.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let mut other = Handler::new(other, || true);
                let short = Request::Open { file: head("short", 1) };
                assert_eq!(handle(&mut other, &short), missing(1));
                is_open.store(true, Ordering::SeqCst);
            });
            assert!(matches!(handle(&mut first, &long), Reply::Missing(_)));
            assert!(
                other_is_open.load(Ordering::SeqCst),
                "the other session waited for all records"
            );
        });
    }
}
