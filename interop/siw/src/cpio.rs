//! Archives as the kernel unpacks them at boot (cpio, "newc": `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeMap;

/// An archive that is being filled.
#[derive(Default)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

struct Entry {
    mode: u32,
    bytes: Vec<u8>,
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;

impl Archive {
    /// A folder with all above it.
    pub fn folder(&mut self, path: &str) {
        let mut at = 0;
        while let Some(slash) = path[at..].find('/') {
            self.add(&path[..at + slash], FOLDER, Vec::new());
            at += slash + 1;
        }
        self.add(path, FOLDER, Vec::new());
    }

    /// A file with these permissions.
    pub fn file(&mut self, path: &str, permissions: u32, bytes: Vec<u8>) {
        self.above(path);
        self.add(path, FILE | permissions, bytes);
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.above(path);
        self.add(path, LINK, target.as_bytes().to_vec());
    }

    /// Returns whether something is there.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    fn above(&mut self, path: &str) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
    }

    fn add(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        if !path.is_empty() {
            self.entries.entry(path.to_owned()).or_insert(Entry { mode, bytes });
        }
    }

    /// The archive's bytes. Folders come before what is in them.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, (path, entry)) in self.entries.iter().enumerate() {
            emit(&mut out, number + 1, path, entry.mode, &entry.bytes);
        }
        emit(&mut out, 0, "TRAILER!!!", 0, &[]);
        out
    }
}

fn emit(out: &mut Vec<u8>, inode: usize, name: &str, mode: u32, bytes: &[u8]) {
    let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
    let fields = [inode, mode as usize, 0, 0, links, 0, bytes.len(), 0, 0, 0, 0, name.len() + 1, 0]
        .map(|field| format!("{field:08x}"));
    out.extend_from_slice(b"070701");
    out.extend_from_slice(fields.concat().as_bytes());
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    pad(out);
    out.extend_from_slice(bytes);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_first_and_once() {
        let mut archive = Archive::default();
        archive.file("a/b/c", 0o644, b"xyz".to_vec());
        archive.file("a/b/d", 0o755, Vec::new());
        archive.link("a/e", "b/c");
        let bytes = archive.emit();
        let text = String::from_utf8_lossy(&bytes);
        let at = |name: &str| text.find(&format!("{name}\0")).unwrap();
        assert!(at("a") < at("a/b") && at("a/b") < at("a/b/c") && at("a/b/c") < at("TRAILER!!!"));
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(text.matches("070701").count(), 6);
        // 110 bytes of header, the name with its NUL, padded, then the bytes.
        assert!(text.contains("a/b/c\0xyz"));
    }
}
