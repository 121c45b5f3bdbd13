//! The list of what was installed, by which it is removed.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::file::{Content, File};
use super::layout::{Layout, is_below};

/// Where it is, below the prefix.
const PATH: &str = "share/uiw/installed";

/// Files, and folders that were made for them: a line each, below the prefix, folders with `/` at the end. `./` is the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl Manifest {
    pub(super) fn place(layout: &Layout) -> PathBuf {
        layout.place(PATH)
    }

    /// The list of these files and of itself. Folders that are there belong to others.
    pub(super) fn of(layout: &Layout, files: &[File]) -> Self {
        let files: BTreeSet<PathBuf> =
            files.iter().map(|file| file.path.clone()).chain([PATH.into()]).collect();
        let all = files.iter().flat_map(|file| file.ancestors().skip(1));
        let folders = all.filter(|folder| !layout.place(folder).exists()).map(Path::to_path_buf).collect();
        Self { files, folders }
    }

    /// What the prefix has installed, if anything.
    pub(super) fn read(layout: &Layout) -> Result<Option<Self>, String> {
        let place = Self::place(layout);
        match fs::read_to_string(&place) {
            Ok(text) => {
                Self::parse(&text).map(Some).map_err(|line| format!("{}: bad line: {line}", place.display()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", place.display())),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut list = Self::default();
        for line in text.lines() {
            // Nothing outside of the prefix is removed, whatever the file says.
            match line.strip_suffix('/') {
                Some(".") => list.folders.insert(PathBuf::new()),
                Some(folder) if is_below(Path::new(folder)) => list.folders.insert(folder.into()),
                None if is_below(Path::new(line)) => list.files.insert(line.into()),
                _ => return Err(line.to_owned()),
            };
        }
        Ok(list)
    }

    fn text(&self) -> String {
        let files = self.files.iter().map(|file| format!("{}\n", file.display()));
        let folders = self.folders.iter().map(|folder| match folder.display().to_string() {
            path if path.is_empty() => "./\n".to_owned(),
            path => format!("{path}/\n"),
        });
        files.chain(folders).collect()
    }

    pub(super) fn add_folders(&mut self, other: &Self) {
        self.folders.extend(other.folders.iter().cloned());
    }

    pub(super) fn with_files(&self, other: &Self) -> Self {
        Self { files: &self.files | &other.files, folders: self.folders.clone() }
    }

    /// The files that are not those of `other`, without folders.
    pub(super) fn without_files(&self, other: &Self) -> Self {
        Self { files: &self.files - &other.files, folders: BTreeSet::new() }
    }

    pub(super) fn write(&self, layout: &Layout) -> Result<(), String> {
        let list = File { path: PATH.into(), content: Content::Text(self.text()) };
        let place = Self::place(layout);
        list.put(&place).map_err(|error| format!("{}: {error}", place.display()))
    }

    /// Removes the files that are still there, and the folders that are empty then. The list is the last file.
    pub(super) fn remove(&self, layout: &Layout, done: impl Fn(&Path)) -> Result<(), String> {
        let own = Path::new(PATH);
        let files = self.files.iter().filter(|file| *file != own).chain(self.files.get(own));
        for file in files {
            let place = layout.place(file);
            match fs::remove_file(&place) {
                Ok(()) => done(&place),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(format!("cannot remove {}: {error}", place.display())),
            }
        }
        // Those inside precede those around them.
        for folder in self.folders.iter().rev() {
            let place = layout.place(folder);
            match fs::remove_dir(&place) {
                Ok(()) => done(&place),
                // Something else is in it.
                Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {}
                Err(error) => return Err(format!("cannot remove {}: {error}", place.display())),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let text = "bin/uiw\nlib/libibverbs.so.1\n./\nbin/\nlib/\n";
        let list = Manifest::parse(text).unwrap();
        assert_eq!(list.text(), text);
        assert_eq!((list.files.len(), list.folders.len()), (2, 3));
    }

    #[test]
    fn nothing_outside_of_the_prefix_is_in_a_list() {
        for line in ["/etc/passwd", "../x", "a/../../x", "/", "..//", "", "./x/../y"] {
            assert_eq!(Manifest::parse(&format!("bin/uiw\n{line}\n")), Err(line.to_owned()), "{line}");
        }
    }
}
