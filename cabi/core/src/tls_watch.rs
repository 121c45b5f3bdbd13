//! Watches the TLS files (`UIW_TLS`, and the files that it names), and reads them again after they
//! have changed.
//!
//! A service normally reads its configuration again on SIGHUP. Here the signal belongs to the
//! program: by default it ends the program, and the program may block the signal, wait for it or
//! handle it. The files themselves are therefore watched: a thread compares their times, sizes and
//! inodes at intervals. This works on every file system and for links that change, and needs no
//! descriptor, which matters to programs that expect particular descriptor numbers. Files that are
//! being written are not read: they must have been unchanged for an interval.
//!
//! inotify would not need the intervals, but it misses changes on network file systems, needs a
//! watch on each directory that a link leads through, is limited to 128 instances for each user by
//! default, and takes a descriptor.

use crate::tls::{self, TlsFileConfig};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use uiw_tls::{KeyError, Tls, TlsConfig};
use uiw_verbs::integration::spawn_thread;

/// Interval between two checks.
const PERIOD: Duration = Duration::from_secs(2);

/// Properties that change with the contents of a file; `None` if the file cannot be read.
type Stamp = Option<(u64, u64, u64, [i64; 4])>;

/// The watched files, and the contents that are in use.
pub(crate) struct TlsWatch {
    file: PathBuf,
    options: TlsFileConfig,
    /// The configuration file and the files that it names.
    files: Vec<PathBuf>,
    /// Stamps of the files when they were read.
    read: Vec<Stamp>,
    /// Stamps of the files at the last check.
    seen: Vec<Stamp>,
}

impl TlsWatch {
    /// Creates the watch, before the files are read for the first time.
    ///
    /// # Errors
    /// The path of the file is relative, and the working directory does not exist any more.
    pub(crate) fn new(file: &Path, options: &TlsFileConfig) -> io::Result<Self> {
        // The program may change its working directory.
        let file = std::path::absolute(file)?;
        let files = tls::referenced_files(&file);
        let read = stamps(&files);
        Ok(Self { file, options: options.clone(), files, seen: read.clone(), read })
    }

    /// Watches the files on a new thread, until the end of the process.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(mut self, tls: Tls) -> io::Result<()> {
        let watch = move || {
            loop {
                thread::sleep(PERIOD);
                match self.check_files().map(|config| config.and_then(|config| tls.replace(config)))
                {
                    None => {}
                    Some(Ok(())) => {
                        tracing::info!(file = %self.file.display(), "the files of TLS were read again");
                    }
                    // Like the error of the first read, this is shown even without a log.
                    Some(Err(error)) => crate::log::note!(
                        "uiw: {}={}: {error}: the configuration of TLS before holds on",
                        tls::VARIABLE,
                        self.file.display()
                    ),
                }
            }
        };
        spawn_thread("uiw-tls", watch)?;
        Ok(())
    }

    /// Returns the new configuration, or its error, once for each change of the files.
    fn check_files(&mut self) -> Option<Result<TlsConfig, KeyError>> {
        let found = stamps(&self.files);
        let is_written = std::mem::replace(&mut self.seen, found) != self.seen;
        if is_written || self.seen == self.read {
            return None;
        }
        // The changed file may name other files.
        self.files = tls::referenced_files(&self.file);
        self.seen = stamps(&self.files);
        let config = tls::read(&self.file, &self.options);
        if stamps(&self.files) != self.seen {
            return None;
        }
        self.read.clone_from(&self.seen);
        Some(config)
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let about = std::fs::metadata(file).ok()?;
        let times = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
        Some((about.dev(), about.ino(), about.size(), times))
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::directory::Directory;
    use uiw_tls::SecretKey;

    /// Returns a configuration that accepts one peer, and its watch.
    fn watched() -> (Directory, TlsWatch) {
        let directory = Directory::new();
        let key = SecretKey::generate().unwrap();
        key.write(&directory.path("key.pem")).unwrap();
        directory.write("pins", &format!("{} peer\n", key.public_key()));
        let file = directory.write("tls", "mode raw\nkey key.pem\npinned pins\n");
        let watch = TlsWatch::new(&file, &TlsFileConfig::default()).unwrap();
        (directory, watch)
    }

    fn is_quiet(watch: &mut TlsWatch) -> bool {
        (0..3).all(|_| watch.check_files().is_none())
    }

    /// Checks the files until they are unchanged for an interval.
    fn read_again(watch: &mut TlsWatch) -> Result<(), String> {
        assert!(watch.check_files().is_none(), "a change is only noted at first");
        let config = watch.check_files().expect("a change that lasts");
        assert!(is_quiet(watch), "once");
        config.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn changes_are_read_once_they_last() {
        let (directory, mut watch) = watched();
        assert!(is_quiet(&mut watch));
        let pins = std::fs::read_to_string(directory.path("pins")).unwrap();
        directory.write("pins", &format!("{pins}# another\n"));
        assert_eq!(read_again(&mut watch), Ok(()));
        // The file is being written: it is not read.
        directory.write("pins", "");
        assert!(watch.check_files().is_none());
        directory.write("pins", &pins);
        assert_eq!(read_again(&mut watch), Ok(()));
        // The file is replaced by another one, as with `mv`.
        directory.write("pins.new", &pins);
        std::fs::rename(directory.path("pins.new"), directory.path("pins")).unwrap();
        assert_eq!(read_again(&mut watch), Ok(()));
    }

    #[test]
    fn error_reported_once_files_still_watched() {
        let (directory, mut watch) = watched();
        directory.write("pins", "no key\n");
        assert!(read_again(&mut watch).unwrap_err().contains("pins"));
        std::fs::remove_file(directory.path("pins")).unwrap();
        assert!(read_again(&mut watch).unwrap_err().contains("No such file"));
        directory.write("tls", "mode raw\nkey key.pem\npinned others\n");
        assert!(read_again(&mut watch).unwrap_err().contains("others"));
        let key = SecretKey::read(&directory.path("key.pem")).unwrap();
        directory.write("others", &format!("{} other\n", key.public_key()));
        assert_eq!(read_again(&mut watch), Ok(()));
        // If the configuration file is invalid, only that file is known.
        directory.write("tls", "words\n");
        assert!(read_again(&mut watch).unwrap_err().contains("tls:1"));
        directory.write("tls", "mode raw\nkey key.pem\npinned others\n");
        assert_eq!(read_again(&mut watch), Ok(()));
    }
}
