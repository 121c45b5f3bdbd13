//! Files of `uiw cp`: messages, batches and lists of arbitrary bytes; a truncated or damaged
//! journal; and a share whose client sends arbitrary requests, repeats them, and reconnects after a
//! restart of the server.
//!
//! Files outside of the share and in a read-only share must not change, and a complete file may
//! only contain bytes that were sent for it.

use crate::input::Input;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uiw_copy::batch::{self, Batch, BatchContent, SMALL};
use uiw_copy::handler::{Handler, Session};
use uiw_copy::journal::{Journal, Record};
use uiw_copy::meta::{EntryKind, FileTime, Meta};
use uiw_copy::names::RelPath;
use uiw_copy::protocol::{
    BLOCK, CreateMode, FileHead, MESSAGE, Reply, Request, SLOT, decode_entries, encode_entries,
};
use uiw_copy::root::Root;
use uiw_copy::wire::WireError;

/// Maximum number of requests of an input.
const STEPS: usize = 60;
/// Names that the client requests: existing ones, missing ones, and ones outside of the share.
const PATHS: [&str; 16] = [
    "a",
    "b",
    "d",
    "d/a",
    "d/b",
    "out",
    "out/secret",
    "link",
    "link/x",
    "socket",
    "e",
    "e/f",
    "",
    "..",
    "d/../a",
    "a.uiw-part",
];
/// Content of the file outside of the share.
const SECRET: &[u8] = b"secret";

/// Runs an input.
pub fn run(bytes: &[u8]) {
    formats(bytes);
    let mut input = Input::new(bytes);
    journal(&mut input.clone());
    FuzzedShare::new(input.bool()).run(&mut input);
}

/// Checks that decoded values are encoded to the same bytes.
fn formats(bytes: &[u8]) {
    let (number, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let framed = [&[0, 7, number % 15], rest].concat();
    for bytes in [bytes, &framed] {
        if let Ok((tag, request)) = Request::decode(bytes) {
            assert_eq!(request.encode(tag), bytes, "{request:?}");
        }
        match Reply::decode(bytes) {
            // An error text is cleaned and truncated, so only the tag must be the same.
            Ok((tag, Reply::Failed { errno, text })) => {
                assert!(!text.chars().any(char::is_control));
                let again = Reply::decode(&Reply::Failed { errno, text }.encode(tag));
                assert!(matches!(again, Ok((same, Reply::Failed { .. })) if same == tag));
            }
            Ok((tag, reply)) => assert_eq!(reply.encode(tag), bytes, "{reply:?}"),
            Err(_) => {}
        }
        if let Ok(entries) = decode_entries(bytes) {
            assert_eq!(encode_entries(&entries), bytes);
        }
        if let Ok(records) = batch::decode(bytes, u16::from(*number)) {
            assert_eq!(records.len(), usize::from(*number));
            for (path, content) in records {
                assert!(!path.is_empty());
                if let BatchContent::Bytes(meta, bytes) = content {
                    assert_eq!(meta.size, bytes.len() as u64);
                }
            }
        }
        if let Ok(path) = RelPath::new(bytes) {
            let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
            assert!(path.is_empty() || bytes.split(|byte| *byte == b'/').all(is_name));
        }
    }
}

/// Truncates and changes a journal with records of a file. Only records that were written may be
/// read, in their order.
fn journal(input: &mut Input<'_>) {
    let file = memory();
    let head = head(RelPath::default(), input);
    let blocks = head.blocks();
    let mut journal = Journal::new(file.try_clone().expect("a descriptor"));
    journal.restart(&head.meta).expect("a journal");
    let mut written = Vec::new();
    for _ in 0..input.below(6) {
        let (first, hash) = (input.u64() % (blocks + 2), [input.u8() | 1; 32]);
        let record = if input.bool() {
            Record::Hole(first..first + 1 + u64::from(input.u8() % 4))
        } else {
            Record::Block(first, hash)
        };
        journal.append(&record).expect("a journal");
        written.push(record);
    }
    let mut bytes = read(&file);
    match input.below(4) {
        0 => bytes.truncate(input.below(bytes.len() + 1)),
        1 => {
            let at = input.below(bytes.len());
            bytes[at] ^= input.u8();
        }
        2 => bytes.extend(input.take(200)),
        _ => bytes = input.take(300).to_vec(),
    }
    let file = memory();
    file.write_all_at(&bytes, 0).expect("room");
    let mut journal = Journal::new(file.try_clone().expect("a descriptor"));
    let is_of = journal.matches(&head.meta).expect("a journal");
    let mut found = Vec::new();
    let replayed = journal.replay(&head, |record| {
        found.push(record);
        Ok(())
    });
    replayed.expect("a journal");
    if is_of {
        assert!(
            found.len() <= written.len() && found == written[..found.len()],
            "{found:?} of {written:?}"
        );
    }
    assert!(read(&file).len() <= bytes.len().max(40));
}

/// Creates a file without a name.
fn memory() -> fs::File {
    let path = unused_path();
    let file =
        fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    fs::remove_file(path).expect("it is there");
    file
}

fn read(file: &fs::File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("a file").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("its bytes");
    bytes
}

/// Returns a path that does not exist.
fn unused_path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    parent.join(format!("uiw-fuzz-{}-{number}", std::process::id()))
}

/// Returns a description of a file as the client sends it. There are only a few sizes and versions,
/// so that requests often refer to the same file.
fn head(path: RelPath, input: &mut Input<'_>) -> FileHead {
    let version = [input.u8() % 3; 16];
    let size = input.pick(&[0, 1, 700, 5000, SMALL, SMALL + 1, BLOCK, BLOCK + 1]);
    let sparse = input.u8().is_multiple_of(4);
    let mode = input.pick(&[0o600, 0o644, 0o755, 0]);
    let mtime = FileTime { seconds: i64::from(input.u8()), nanos: 5 };
    let meta =
        Meta { kind: EntryKind::File, mode, size, mtime, version, sparse, target: Vec::new() };
    FileHead { path, meta }
}

/// Returns the bytes of a block that the client sends: a hole, or one of two kinds of data.
fn block(head: &FileHead, index: u64, kind: u8) -> Vec<u8> {
    vec![
        if kind == 0 { 0 } else { kind % 2 + 1 + head.meta.version[0] * 2 };
        head.block_len(index) as usize
    ]
}

/// Share, the folder around it, and the client.
struct FuzzedShare {
    outer: PathBuf,
    writable: bool,
    /// File of the last request, with which the client usually continues.
    file: Option<FileHead>,
    before: BTreeMap<PathBuf, String>,
}

impl FuzzedShare {
    fn new(writable: bool) -> Self {
        let outer = unused_path();
        let share = outer.join("share");
        fs::create_dir_all(share.join("d")).expect("a folder");
        fs::write(outer.join("secret"), SECRET).expect("a file");
        fs::write(share.join("a"), b"first").expect("a file");
        fs::write(share.join("d/a"), vec![9; 3000]).expect("a file");
        symlink("..", share.join("out")).expect("a link");
        symlink("../secret", share.join("link")).expect("a link");
        drop(UnixListener::bind(share.join("socket")).expect("a socket"));
        let before = listing(&share);
        Self { outer, writable, file: None, before }
    }

    fn path(&self) -> PathBuf {
        self.outer.join("share")
    }

    fn session(&self) -> Handler {
        let root = Arc::new(Root::open(&self.path()).expect("a folder"));
        Handler::new(Arc::new(Session::new(root, self.writable, 7, Arc::default())), || true)
    }

    fn run(mut self, input: &mut Input<'_>) {
        let mut handler = self.session();
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            match input.below(16) {
                // The server is restarted, and its incomplete files may be damaged meanwhile.
                0 => {
                    drop(handler);
                    self.damage(input);
                    handler = self.session();
                }
                _ => self.request(&mut handler, input),
            }
            self.check();
        }
    }

    fn request(&mut self, handler: &mut Handler, input: &mut Input<'_>) {
        let file = match self.file.take().filter(|_| !input.u8().is_multiple_of(8)) {
            Some(file) => file,
            None => {
                let Ok(path) = RelPath::new(input.pick(&PATHS).as_bytes()) else { return };
                head(path, input)
            }
        };
        self.file = Some(file.clone());
        let path = file.path.clone();
        let blocks = file.blocks();
        let mtime = FileTime { seconds: 7, nanos: 0 };
        let mut bytes = Vec::new();
        let request = match input.below(13) {
            0 => Request::Stat { path },
            1 => {
                let create = input.pick(&[CreateMode::No, CreateMode::Private, CreateMode::Usual]);
                Request::List { path, after: input.take(3).to_vec(), create }
            }
            2 => Request::Open { file },
            3..=5 => {
                let index = u64::from(input.u8()) % (blocks + 1);
                bytes = block(&file, index, input.u8() % 3);
                let hash = *blake3::hash(&bytes).as_bytes();
                if input.u8() == 0 && !bytes.is_empty() {
                    bytes[0] ^= 0x80;
                }
                Request::Put { file, index, len: bytes.len() as u32, hash }
            }
            6 => Request::Hole { file, blocks: u64::from(input.u8() % 2)..blocks.max(1) },
            7 => Request::Finish { file },
            8 => {
                let mut batch = Batch::default();
                for _ in 0..1 + input.below(3) {
                    let Ok(path) = RelPath::new(input.pick(&PATHS).as_bytes()) else { continue };
                    let mut file = head(path, input);
                    file.meta.size = file.meta.size.min(5000);
                    let content = vec![
                        input.u8() % 2 + 1 + file.meta.version[0] * 2;
                        file.meta.size as usize
                    ];
                    batch.add_file(&file.path, &file.meta, &content);
                }
                let (count, hash) = (batch.count, batch.hash());
                bytes = batch.into_bytes();
                Request::PutBatch { count, len: bytes.len() as u32, hash }
            }
            9 => {
                let target =
                    input.pick(&["a", "..", "../secret", "/etc/passwd", "d"]).as_bytes().to_vec();
                Request::Symlink { path, target, mtime }
            }
            10 => Request::SetDirectory { path, mode: 0o755, mtime },
            11 => Request::Remove { path },
            _ if input.bool() => {
                Request::Get { path, version: file.meta.version, index: u64::from(input.u8() % 3) }
            }
            _ => Request::GetBatch { paths: vec![path, file.path] },
        };
        // The request is encoded and decoded, possibly with a changed byte. Invalid messages do not
        // reach the handler.
        let mut message = request.encode(1);
        if input.u8() == 0 {
            let at = input.below(message.len());
            message[at] ^= input.u8();
        }
        let Ok((_, request)) = Request::decode(&message) else { return };
        bytes.resize(SLOT as usize, 0);
        let landed = |len: u32| Ok::<_, WireError>(bytes[..len as usize].to_vec());
        let Ok((reply, sent)) = handler.handle(&request, landed) else { return };
        let encoded = reply.encode(1);
        assert!(encoded.len() <= MESSAGE as usize, "{reply:?}");
        assert!(Reply::decode(&encoded).is_ok(), "{reply:?}");
        assert!(sent.is_none_or(|sent| sent.len() <= SLOT as usize));
    }

    /// Simulates lost or changed bytes of incomplete files on the storage medium.
    fn damage(&self, input: &mut Input<'_>) {
        let names: Vec<_> = listing(&self.path()).into_keys().collect();
        for name in names {
            let is_incomplete = [".uiw-part", ".uiw-journal"]
                .iter()
                .any(|suffix| name.as_os_str().as_bytes().ends_with(suffix.as_bytes()));
            let path = self.path().join(name);
            // A file with a hole may be larger than the memory.
            let is_short_file = fs::symlink_metadata(&path)
                .is_ok_and(|data| data.is_file() && data.len() <= 1 << 20);
            if !is_incomplete || !is_short_file || input.bool() {
                continue;
            }
            let Ok(mut bytes) = fs::read(&path) else { continue };
            match input.below(4) {
                0 => drop(fs::remove_file(&path)),
                1 => {
                    bytes.truncate(input.below(bytes.len() + 1));
                    let _ = fs::write(&path, bytes);
                }
                2 if !bytes.is_empty() => {
                    let at = input.below(bytes.len());
                    bytes[at] ^= 1 | input.u8();
                    let _ = fs::write(&path, bytes);
                }
                _ => {}
            }
        }
    }

    fn check(&self) {
        let names: Vec<_> = fs::read_dir(&self.outer).expect("a folder").flatten().collect();
        assert_eq!(names.len(), 2, "something is beside the share");
        assert_eq!(fs::read(self.outer.join("secret")).expect("it is there"), SECRET);
        let now = listing(&self.path());
        if !self.writable {
            assert_eq!(now, self.before, "a share that is read-only has changed");
            return;
        }
        for (name, what) in now {
            let is_incomplete = name.to_string_lossy().contains(".uiw-");
            let is_file = what.starts_with("file");
            if is_incomplete || !is_file || self.before.get(&name) == Some(&what) {
                continue;
            }
            let bytes = fs::read(self.path().join(&name)).unwrap_or_default();
            for block in bytes.chunks(BLOCK as usize) {
                let first = block.first().copied().unwrap_or_default();
                let is_sent = first <= 6 && block.iter().all(|byte| *byte == first);
                assert!(is_sent, "{} has bytes that were not sent", name.display());
            }
        }
    }
}

impl Drop for FuzzedShare {
    fn drop(&mut self) {
        // Folders may have no permissions any more.
        for (name, what) in listing(&self.path()) {
            if what.starts_with("folder") {
                let _ =
                    fs::set_permissions(self.path().join(name), fs::Permissions::from_mode(0o700));
            }
        }
        let _ = fs::remove_dir_all(&self.outer);
    }
}

/// Lists all entries below a folder, with their type, size and permissions.
fn listing(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below)).into_iter().flatten().flatten() {
            let name = below.join(entry.file_name());
            let Ok(data) = fs::symlink_metadata(entry.path()) else { continue };
            let kind = data.file_type();
            let what = if kind.is_symlink() {
                format!("link to {:?}", fs::read_link(entry.path()).ok())
            } else if kind.is_dir() {
                folders.push(name.clone());
                format!("folder, {:o}", data.mode())
            } else {
                format!(
                    "file, {:o}, {} bytes, {}.{}",
                    data.mode(),
                    data.size(),
                    data.mtime(),
                    data.mtime_nsec()
                )
            };
            found.insert(name, what);
        }
    }
    found
}
