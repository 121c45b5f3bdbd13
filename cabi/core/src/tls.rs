//! The file that configures TLS: `UIW_TLS`, and `--tls` of uiw's own program.
//!
//! A line is a word and a value; empty lines and lines that begin with `#` are comments. Relative paths are relative to the file.
//!
//! | word | value | |
//! |---|---|---|
//! | `mode` | `raw` or `x509` | raw public keys, or certificates |
//! | `key` | a file in PEM, mode 0600 | the private key of this end |
//! | `pinned` | a file | mode `raw`: the keys of the peers, a line `KEY NAME` each |
//! | `certificate` | a file in PEM | mode `x509`: of this end, and what lies between it and the authority |
//! | `authority` | a file in PEM | mode `x509`: it signs the certificates of peers |
//! | `server-name` | a name | mode `x509`: what a server's certificate must be valid for, instead of its address |
//! | `allow` | a name, address or fingerprint | the access list, one entry a line; `*` stands for any characters |

use std::path::{Path, PathBuf};
use uiw_tls::{KeyError, PinnedKeys, PublicKey, SecretKey, TlsConfig, read_certificates, read_protected};

/// The variable that names the file.
pub const VARIABLE: &str = "UIW_TLS";
/// The variable that names the file for the secrets of connections.
pub const KEY_LOG: &str = "UIW_KEYLOG";

/// Options in addition to the TLS file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFileConfig {
    /// True if datagrams pass in the clear.
    pub clear_datagrams: bool,
    /// File to which the secrets of connections are appended.
    pub key_log: Option<PathBuf>,
}

/// A line of the file.
struct ConfigLine<'a> {
    file: &'a Path,
    number: usize,
}

impl ConfigLine<'_> {
    fn wrong(&self, what: impl Into<String>) -> KeyError {
        KeyError::Line { path: self.file.to_owned(), line: self.number, what: what.into() }
    }
}

/// Contents of the file.
#[derive(Default)]
struct ConfigLines {
    mode: Option<PeerMode>,
    key: Option<PathBuf>,
    pinned: Option<PathBuf>,
    certificate: Option<PathBuf>,
    authority: Option<PathBuf>,
    server_name: Option<String>,
    /// Entries of the access list with the numbers of their lines.
    allow: Vec<(usize, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerMode {
    Raw,
    X509,
}

impl ConfigLines {
    fn read(file: &Path, text: &str) -> Result<Self, KeyError> {
        let mut lines = Self::default();
        let directory = file.parent().unwrap_or(Path::new(""));
        for (number, text) in text.lines().enumerate() {
            let line = ConfigLine { file, number: number + 1 };
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (word, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
            let value = value.trim();
            // Errors name words of the format alone: a user that cannot read the file may read them.
            if value.is_empty() {
                return Err(line.wrong("expected a word and a value"));
            }
            let path = || Some(directory.join(value));
            let twice = match word {
                "mode" => lines.mode.replace(mode(value).map_err(|rule| line.wrong(rule))?).is_some(),
                "key" => std::mem::replace(&mut lines.key, path()).is_some(),
                "pinned" => std::mem::replace(&mut lines.pinned, path()).is_some(),
                "certificate" => std::mem::replace(&mut lines.certificate, path()).is_some(),
                "authority" => std::mem::replace(&mut lines.authority, path()).is_some(),
                "server-name" => lines.server_name.replace(value.to_owned()).is_some(),
                "allow" => {
                    lines.allow.push((line.number, value.to_owned()));
                    false
                }
                _ => {
                    let known = "mode, key, pinned, certificate, authority, server-name or allow";
                    return Err(line.wrong(format!("expected {known}")));
                }
            };
            if twice {
                return Err(line.wrong(format!("a second `{word}`")));
            }
        }
        Ok(lines)
    }

    fn config(self, file: &Path) -> Result<TlsConfig, KeyError> {
        let content = |what: &str| KeyError::Content { path: file.to_owned(), what: what.to_owned() };
        let needed = |value: Option<PathBuf>, what: &str| value.ok_or_else(|| content(what));
        let key = SecretKey::read(&needed(self.key, "no line `key FILE`")?)?;
        let of_raw = self.pinned.is_some();
        let of_x509 = self.certificate.is_some() || self.authority.is_some() || self.server_name.is_some();
        let config = match self.mode {
            Some(PeerMode::Raw) if of_x509 => {
                return Err(content("`certificate`, `authority` and `server-name` belong to mode x509"));
            }
            Some(PeerMode::Raw) => {
                let pinned = PinnedKeys::read(&needed(self.pinned, "no line `pinned FILE`")?)?;
                check_entries(file, &self.allow, |entry| is_pinned(entry, &pinned))?;
                TlsConfig::raw_keys(&key, pinned)?
            }
            Some(PeerMode::X509) if of_raw => return Err(content("`pinned` belongs to mode raw")),
            Some(PeerMode::X509) => {
                let chain = read_certificates(&needed(self.certificate, "no line `certificate FILE`")?)?;
                check_entries(file, &self.allow, |entry| is_name(entry, file))?;
                let authorities = read_certificates(&needed(self.authority, "no line `authority FILE`")?)?;
                TlsConfig::x509(chain, &key, authorities)?
            }
            None => return Err(content("no line `mode raw` or `mode x509`")),
        };
        let config = self.allow.iter().fold(config, |config, (_, pattern)| config.allow(pattern));
        match self.server_name {
            Some(name) => config.server_name(&name),
            None => Ok(config),
        }
    }
}

/// Refuses entries of the access list that no peer can have: they would lock everybody out in silence.
fn check_entries(
    file: &Path,
    entries: &[(usize, String)],
    check: impl Fn(&str) -> Result<(), &'static str>,
) -> Result<(), KeyError> {
    entries.iter().try_for_each(|(number, entry)| {
        check(entry).map_err(|why| ConfigLine { file, number: *number }.wrong(why))
    })
}

/// Checks that an entry is the name or fingerprint of a pinned key, or may be that of a later one.
fn is_pinned(entry: &str, pinned: &PinnedKeys) -> Result<(), &'static str> {
    let is_it = |(key, name): (&PublicKey, &str)| {
        name.eq_ignore_ascii_case(entry) || key.fingerprint().to_string() == entry
    };
    if entry.contains('*') || pinned.iter().any(is_it) {
        return Ok(());
    }
    Err("`allow` has neither the name nor the fingerprint of a pinned key")
}

/// Checks that an entry may be a name, an address or the fingerprint of a certificate.
fn is_name(entry: &str, file: &Path) -> Result<(), &'static str> {
    let is_file = file.parent().is_some_and(|directory| directory.join(entry).exists());
    if is_file || entry.contains(char::is_whitespace) {
        return Err(
            "`allow` takes one name, address or fingerprint, and no file: each entry has a line of its own",
        );
    }
    match entry.strip_prefix("SHA256:") {
        Some(digits) if digits.len() != 43 => {
            Err("`allow` has a fingerprint of another length than SHA256's")
        }
        _ => Ok(()),
    }
}

fn mode(text: &str) -> Result<PeerMode, &'static str> {
    match text {
        "raw" => Ok(PeerMode::Raw),
        "x509" => Ok(PeerMode::X509),
        _ => Err("expected raw or x509"),
    }
}

/// Reads the file, and those that it names.
///
/// # Errors
/// [`KeyError`], which names the file and the line.
pub fn read(file: &Path, options: &TlsFileConfig) -> Result<TlsConfig, KeyError> {
    let text = read_protected(file)?;
    let config = ConfigLines::read(file, &text)?.config(file)?.clear_datagrams(options.clear_datagrams);
    match &options.key_log {
        Some(log) => config.key_log(log),
        None => Ok(config),
    }
}

/// The file of pinned keys that the file names; `None` where it names none, or cannot be read.
pub fn pinned_file(file: &Path) -> Option<PathBuf> {
    let text = read_protected(file).ok()?;
    ConfigLines::read(file, &text).ok()?.pinned
}

/// The file and those that it names, as far as it can be read.
pub(crate) fn files(file: &Path) -> Vec<PathBuf> {
    let mut files = vec![file.to_owned()];
    if let Ok(text) = read_protected(file)
        && let Ok(lines) = ConfigLines::read(file, &text)
    {
        files.extend([lines.key, lines.pinned, lines.certificate, lines.authority].into_iter().flatten());
    }
    files
}

#[cfg(test)]
pub(crate) mod directory {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    /// A directory of one test.
    pub(crate) struct Directory(PathBuf);

    impl Directory {
        pub(crate) fn new() -> Self {
            let number = getrandom::u64().unwrap();
            let path = std::env::temp_dir().join(format!("uiw-tls-{}-{number:x}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        pub(crate) fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.path(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::directory::Directory;
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn invalid_files_named() {
        let directory = Directory::new();
        let key = SecretKey::generate().unwrap();
        key.write(&directory.path("key.pem")).unwrap();
        directory.write("pins", &format!("{} self\n", key.public_key()));
        let read = |text: &str| {
            let options = TlsFileConfig { key_log: Some(directory.path("log")), ..TlsFileConfig::default() };
            read(&directory.write("tls", text), &options).map(drop).map_err(|error| error.to_string())
        };
        let good = "# ours\nmode raw\nkey key.pem\npinned pins\nallow self\nallow node*\n";
        assert_eq!(read(good), Ok(()));
        let log = fs::metadata(directory.path("log")).unwrap();
        assert_eq!(log.permissions().mode() & 0o777, 0o600, "it decrypts everything");
        for (text, why) in [
            ("", "tls: no line `key FILE`"),
            ("key key.pem", "tls: no line `mode raw` or `mode x509`"),
            ("mode both", "tls:1: expected raw or x509"),
            ("mode raw\nmode raw", "tls:2: a second `mode`"),
            ("mode raw\nkey key.pem", "tls: no line `pinned FILE`"),
            (
                "mode raw\nkey key.pem\npinned pins\nauthority a",
                "tls: `certificate`, `authority` and `server-name` belong to mode x509",
            ),
            ("mode x509\nkey key.pem\npinned pins", "tls: `pinned` belongs to mode raw"),
            ("mode x509\nkey key.pem", "tls: no line `certificate FILE`"),
            ("mode raw\nkey key.pem\npinned nowhere", "nowhere: No such file or directory (os error 2)"),
            (
                "mode raw\nkey key.pem\npinned pins\nallow self\nallow pins",
                "tls:5: `allow` has neither the name nor the fingerprint of a pinned key",
            ),
            ("key", "tls:1: expected a word and a value"),
            ("keys a", "tls:1: expected mode, key, pinned, certificate, authority, server-name or allow"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.ends_with(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn unusable_entries_of_certificates_refused() {
        let directory = Directory::new();
        let file = directory.write("tls", "");
        directory.write("list", "client.example");
        let fingerprint = format!("SHA256:{}", "A".repeat(43));
        for good in ["client.example", "*.example", "192.0.2.1", "spiffe://a/b", &fingerprint] {
            assert_eq!(is_name(good, &file), Ok(()), "{good}");
        }
        for bad in ["list", "a.example b.example", "SHA256:AAAA"] {
            assert!(is_name(bad, &file).is_err(), "{bad}");
        }
    }
}
