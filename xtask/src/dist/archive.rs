//! Archives that are the same whenever and by whichever user they are made.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder, write::GzEncoder};

/// Every file and link below `root`, relative to it, in the order of their names.
pub(super) fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path().strip_prefix(root).unwrap_or(&folder).to_path_buf()),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Compressed, without name and time.
pub(super) fn gzip<W: Write>(to: W) -> GzEncoder<W> {
    GzBuilder::new().mtime(0).write(to, Compression::best())
}

/// Writes what is below `root` as a tar, in the folder `top`: files of root, at the time `seconds`.
pub(super) fn tar<W: Write>(root: &Path, top: &Path, seconds: u64, to: W) -> io::Result<W> {
    let mut tar = tar::Builder::new(to);
    for file in files(root)? {
        let from = root.join(&file);
        let found = fs::symlink_metadata(&from)?;
        let mut header = tar::Header::new_gnu();
        header.set_mtime(seconds);
        header.set_uid(0);
        header.set_gid(0);
        let place = top.join(&file);
        if found.is_symlink() {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_mode(0o777);
            header.set_size(0);
            tar.append_link(&mut header, place, fs::read_link(&from)?)?;
        } else {
            header.set_mode(found.permissions().mode() & 0o777);
            header.set_size(found.len());
            tar.append_data(&mut header, place, fs::File::open(&from)?)?;
        }
    }
    tar.into_inner()
}
