//! Configuration file of TLS, named by `UIW_TLS` or by the option `--tls` of the program `uiw`.
//!
//! Each line has a keyword and a value. Empty lines and lines that begin with `#` are ignored.
//! Relative paths are relative to the folder of the file.
//!
//! | keyword | value | meaning |
//! |---|---|---|
//! | `mode` | `raw` or `x509` | authentication by raw public keys or by certificates |
//! | `key` | a file in PEM, mode 0600 | the private key of this end |
//! | `pinned` | a file | mode `raw`: the public keys of the peers, one line `KEY NAME` for each |
//! | `certificate` | a file in PEM | mode `x509`: the certificate of this end, followed by the intermediate certificates |
//! | `authority` | a file in PEM | mode `x509`: the certificate authorities that sign the certificates of peers |
//! | `server-name` | a name | mode `x509`: the name for which a server's certificate must be valid, instead of the server's address |
//! | `allow` | a name, address or fingerprint | one entry of the access list (the keyword may be repeated); `*` matches any characters |

use std::path::{Path, PathBuf};
use uiw_tls::{
    KeyError, PinnedKeys, PublicKey, SecretKey, TlsConfig, read_certificates, read_protected,
};

/// Environment variable with the path of the configuration file.
pub const VARIABLE: &str = "UIW_TLS";
/// Environment variable with the path of the file to which the secrets of connections are appended.
pub const KEY_LOG: &str = "UIW_KEYLOG";

/// TLS options that are not in the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFileConfig {
    /// True if datagrams, which TLS cannot protect, are sent and received unencrypted. Otherwise
    /// they are refused.
    pub clear_datagrams: bool,
    /// File to which the secrets of connections are appended, for decoding captures.
    pub key_log: Option<PathBuf>,
}

/// Position of a line, for error messages.
struct LinePosition<'a> {
    file: &'a Path,
    /// Line number, from 1.
    number: usize,
}

impl LinePosition<'_> {
    fn error(&self, what: impl Into<String>) -> KeyError {
        KeyError::Line { path: self.file.to_owned(), line: self.number, what: what.into() }
    }
}

/// Parsed lines of the file.
#[derive(Default)]
struct ConfigLines {
    mode: Option<AuthMode>,
    key: Option<PathBuf>,
    pinned: Option<PathBuf>,
    certificate: Option<PathBuf>,
    authority: Option<PathBuf>,
    server_name: Option<String>,
    /// Entries of the access list, each with its line number.
    allow: Vec<(usize, String)>,
}

/// Authentication of both ends: the value of `mode`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AuthMode {
    Raw,
    X509,
}

impl ConfigLines {
    /// Parses `text`, the contents of `file`.
    fn parse(file: &Path, text: &str) -> Result<Self, KeyError> {
        let mut lines = Self::default();
        let directory = file.parent().unwrap_or(Path::new(""));
        for (number, text) in text.lines().enumerate() {
            let line = LinePosition { file, number: number + 1 };
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (word, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
            let value = value.trim();
            // Error messages contain only keywords of the format, never text from the file: a user
            // who may not read the file may see them.
            if value.is_empty() {
                return Err(line.error("expected a word and a value"));
            }
            let path = || Some(directory.join(value));
            let twice = match word {
                "mode" => lines
                    .mode
                    .replace(parse_mode(value).map_err(|rule| line.error(rule))?)
                    .is_some(),
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
                    return Err(line.error(format!("expected {known}")));
                }
            };
            if twice {
                return Err(line.error(format!("a second `{word}`")));
            }
        }
        Ok(lines)
    }

    /// Reads the files that the lines name, and builds the configuration.
    fn into_config(self, file: &Path) -> Result<TlsConfig, KeyError> {
        let content =
            |what: &str| KeyError::Content { path: file.to_owned(), what: what.to_owned() };
        let needed = |value: Option<PathBuf>, what: &str| value.ok_or_else(|| content(what));
        let key = SecretKey::read(&needed(self.key, "no line `key FILE`")?)?;
        let has_raw_lines = self.pinned.is_some();
        let has_x509_lines =
            self.certificate.is_some() || self.authority.is_some() || self.server_name.is_some();
        let config = match self.mode {
            Some(AuthMode::Raw) if has_x509_lines => {
                return Err(content(
                    "`certificate`, `authority` and `server-name` belong to mode x509",
                ));
            }
            Some(AuthMode::Raw) => {
                let pinned = PinnedKeys::read(&needed(self.pinned, "no line `pinned FILE`")?)?;
                check_entries(file, &self.allow, |entry| check_pinned_entry(entry, &pinned))?;
                TlsConfig::raw_keys(&key, pinned)?
            }
            Some(AuthMode::X509) if has_raw_lines => {
                return Err(content("`pinned` belongs to mode raw"));
            }
            Some(AuthMode::X509) => {
                let chain =
                    read_certificates(&needed(self.certificate, "no line `certificate FILE`")?)?;
                check_entries(file, &self.allow, |entry| check_name_entry(entry, file))?;
                let authorities =
                    read_certificates(&needed(self.authority, "no line `authority FILE`")?)?;
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

/// Checks each entry of the access list with `check`, and reports the line of the first invalid
/// one.
///
/// An entry that no peer can match is an error, because a list of such entries would refuse every
/// peer without an explanation.
fn check_entries(
    file: &Path,
    entries: &[(usize, String)],
    check: impl Fn(&str) -> Result<(), &'static str>,
) -> Result<(), KeyError> {
    entries.iter().try_for_each(|(number, entry)| {
        check(entry).map_err(|why| LinePosition { file, number: *number }.error(why))
    })
}

/// Checks that an entry is the name or fingerprint of a pinned key. Entries with `*` are accepted,
/// because a key pinned later may match.
fn check_pinned_entry(entry: &str, pinned: &PinnedKeys) -> Result<(), &'static str> {
    let matches = |(key, name): (&PublicKey, &str)| {
        name.eq_ignore_ascii_case(entry) || key.fingerprint().to_string() == entry
    };
    if entry.contains('*') || pinned.iter().any(matches) {
        return Ok(());
    }
    Err("`allow` has neither the name nor the fingerprint of a pinned key")
}

/// Checks that an entry has the form of a certificate's name, address or fingerprint. An entry that
/// names an existing file is refused, because files of entries are not supported.
fn check_name_entry(entry: &str, file: &Path) -> Result<(), &'static str> {
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

fn parse_mode(text: &str) -> Result<AuthMode, &'static str> {
    match text {
        "raw" => Ok(AuthMode::Raw),
        "x509" => Ok(AuthMode::X509),
        _ => Err("expected raw or x509"),
    }
}

/// Reads the configuration file `file` and the files that it names.
///
/// # Errors
/// [`KeyError`] with the file, and the line if one is at fault.
pub fn read(file: &Path, options: &TlsFileConfig) -> Result<TlsConfig, KeyError> {
    let text = read_protected(file)?;
    let config = ConfigLines::parse(file, &text)?
        .into_config(file)?
        .clear_datagrams(options.clear_datagrams);
    match &options.key_log {
        Some(log) => config.key_log(log),
        None => Ok(config),
    }
}

/// Returns the path of the pinned keys from the configuration file `file`. Returns `None` if `file`
/// has no line `pinned` or is not valid.
pub fn pinned_file(file: &Path) -> Option<PathBuf> {
    let text = read_protected(file).ok()?;
    ConfigLines::parse(file, &text).ok()?.pinned
}

/// Returns the configuration file `file` and the files that it names. If `file` is not valid,
/// returns only `file`.
pub(crate) fn referenced_files(file: &Path) -> Vec<PathBuf> {
    let mut files = vec![file.to_owned()];
    if let Ok(text) = read_protected(file)
        && let Ok(lines) = ConfigLines::parse(file, &text)
    {
        files.extend(
            [lines.key, lines.pinned, lines.certificate, lines.authority].into_iter().flatten(),
        );
    }
    files
}

#[cfg(test)]
pub(crate) mod directory {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    /// Temporary directory of one test, removed on drop.
    pub(crate) struct Directory(PathBuf);

    impl Directory {
        pub(crate) fn new() -> Self {
            let number = getrandom::u64().unwrap();
            let path =
                std::env::temp_dir().join(format!("uiw-tls-{}-{number:x}", std::process::id()));
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
            let options =
                TlsFileConfig { key_log: Some(directory.path("log")), ..TlsFileConfig::default() };
            read(&directory.write("tls", text), &options)
                .map(drop)
                .map_err(|error| error.to_string())
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
            (
                "mode raw\nkey key.pem\npinned nowhere",
                "nowhere: No such file or directory (os error 2)",
            ),
            (
                "mode raw\nkey key.pem\npinned pins\nallow self\nallow pins",
                "tls:5: `allow` has neither the name nor the fingerprint of a pinned key",
            ),
            ("key", "tls:1: expected a word and a value"),
            (
                "keys a",
                "tls:1: expected mode, key, pinned, certificate, authority, server-name or allow",
            ),
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
            assert_eq!(check_name_entry(good, &file), Ok(()), "{good}");
        }
        for bad in ["list", "a.example b.example", "SHA256:AAAA"] {
            assert!(check_name_entry(bad, &file).is_err(), "{bad}");
        }
    }
}
