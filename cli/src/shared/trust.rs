//! Encryption without a configuration file, with keys of the user in `~/.config/uiw`.
//!
//! `key.pem` is the private key, which is created when it is first needed. `known-servers` contains
//! the keys of servers that `uiw cp` accepts, `authorized-clients` the keys of clients that `uiw
//! serve` accepts. `client.conf` and `server.conf` are files in the format of `--tls` that name
//! these files.

use crate::key;
use crate::shared::env;
use crate::shared::fail::{Exit, Failure, Refusal, Result};
use crate::shared::open::Opener;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uiw_llp::PeerIdentity;
use uiw_tls::{PinnedKeys, PublicKey, SecretKey};

/// Role of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndRole {
    Client,
    Server,
}

/// Key files of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyFiles {
    key: PathBuf,
    pub(crate) pinned: PathBuf,
}

fn directory() -> Result<PathBuf> {
    let home = || env::path("HOME").map(|home| home.join(".config"));
    let base = env::path("XDG_CONFIG_HOME").or_else(home);
    base.map(|base| base.join("uiw")).ok_or_else(|| {
        Failure::usage(
            "no place for keys",
            "neither XDG_CONFIG_HOME nor HOME is set",
            "name a file with --tls",
        )
    })
}

/// Creates a file unless it exists. The file gets its name when it is complete, because another
/// process may read it at any time, and nothing replaces a damaged file later.
fn create_if_missing(path: &Path, text: &str) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let number = getrandom::u64().map_err(|error| Failure::local("no random numbers", error))?;
    let new = path.with_extension(format!("{number:016x}.new"));
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    let created = written.and_then(|()| fs::hard_link(&new, path));
    let _ = fs::remove_file(&new);
    match created {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(unwritable(path, &error)),
        _ => Ok(()),
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, path.display(), error, "make it writable, or name a file with --tls")
}

impl EndRole {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Client => ("client.conf", "known-servers"),
            Self::Server => ("server.conf", "authorized-clients"),
        }
    }

    /// Returns an opener with TLS, configured by `--tls` or else with the keys of the user. In the
    /// second case also returns the key files.
    pub(crate) fn tls_opener(self, opener: &Opener) -> Result<(Opener, Option<KeyFiles>)> {
        if opener.has_tls() {
            return Ok((opener.clone(), None));
        }
        let directory = directory()?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|error| unwritable(&directory, &error))?;
        let (conf, pinned) = self.names();
        let files = KeyFiles { key: directory.join("key.pem"), pinned: directory.join(pinned) };
        if !files.key.exists() {
            let key = SecretKey::generate().map_err(key::failure)?;
            // If another process creates a key at the same time, that key is used.
            create_if_missing(&files.key, &key.to_pem())?;
        }
        create_if_missing(&files.pinned, "")?;
        let conf = directory.join(conf);
        create_if_missing(&conf, &format!("mode raw\nkey key.pem\npinned {pinned}\n"))?;
        if self == Self::Server {
            let key = files.public_key()?;
            note!(
                "encrypted by the key {key}; `uiw key pin {} KEY NAME` accepts a client",
                files.pinned.display()
            );
        }
        Ok((opener.clone().with_default_tls(conf), Some(files)))
    }
}

/// Line that makes a warning stand out.
const RULE: &str = "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@";

/// Returns the fingerprint of a key in base64.
fn fingerprint(key: &str) -> String {
    key.parse::<PublicKey>().map_or_else(|_| key.to_owned(), |key| key.fingerprint().to_string())
}

/// Returns whether `host` is one of the comma-separated names in `name`.
fn is_named(name: &str, host: &str) -> bool {
    name.split(',').any(|name| name.trim() == host)
}

impl KeyFiles {
    fn public_key(&self) -> Result<String> {
        Ok(SecretKey::read(&self.key).map_err(key::failure)?.public_key().to_string())
    }

    fn pinned(&self) -> Result<PinnedKeys> {
        PinnedKeys::read(&self.pinned).map_err(key::failure)
    }

    /// Refuses a server that uses the key of another server.
    pub(crate) fn check(&self, host: &str, identity: Option<&PeerIdentity>) -> Result<()> {
        let Some(PeerIdentity::PublicKey { name, fingerprint, .. }) = identity else {
            return Ok(());
        };
        if is_named(name, host) {
            return Ok(());
        }
        if let Some(changed) = self.check_changed_key(host, &fingerprint.to_string()) {
            return Err(changed);
        }
        let pinned = self.pinned.display();
        let why = format!(
            "it has the key of another server: {fingerprint} is pinned as `{name}` in {pinned}"
        );
        let fix = format!(
            "nothing was copied; if they are the same server, make that name `{name},{host}`"
        );
        Err(Failure::new(Exit::Unreachable, host, why, fix).with_refusal(Refusal::Unaccepted))
    }

    /// Prints a warning and returns an error if keys are pinned for `host`. Callers use it for a
    /// server whose key is not among them. Returns `None` if no key is pinned for `host`.
    fn check_changed_key(&self, host: &str, fingerprint: &str) -> Option<Failure> {
        let pinned = self.pinned().ok()?;
        let lines: Vec<_> = pinned.lines().filter(|line| is_named(line.name, host)).collect();
        let first = lines.first()?;
        let at = |number: usize| format!("{}:{number}", self.pinned.display());
        note!("{RULE}\nWARNING: THE KEY OF THE SERVER {host} HAS CHANGED\n{RULE}");
        note!(
            "Someone may have taken its place, and would read and change what is copied. Or its key was replaced."
        );
        note!("its key now:  {fingerprint}");
        for line in &lines {
            note!("pinned key:   {} in {}", line.key.fingerprint(), at(line.number));
        }
        let why =
            format!("its key {fingerprint} is not the one that is pinned in {}", at(first.number));
        let fix = "nothing was copied; ask whoever operates the server whether its key was replaced, and for its fingerprint";
        Some(Failure::new(Exit::Unreachable, host, why, fix).with_refusal(Refusal::Unaccepted))
    }

    /// Pins the key of a server for which no key is pinned yet.
    pub(crate) fn accept_new(&self, host: &str, key: &str) -> Result<()> {
        let fingerprint = fingerprint(key);
        if let Some(changed) = self.check_changed_key(host, &fingerprint) {
            return Err(changed);
        }
        key::pin(&self.pinned, key, host, false)
    }

    /// Adds the hint for a refused connection.
    pub(crate) fn explain(&self, host: &str, failure: Failure) -> Failure {
        match failure.refusal.clone() {
            Some(Refusal::UnknownKey { key }) => {
                if let Some(changed) = self.check_changed_key(host, &fingerprint(&key)) {
                    return changed;
                }
                let pinned = self.pinned.display();
                failure.with_fix(format!(
                    "compare it with `uiw key show FILE` of the server's key there, then: uiw key pin {pinned} '{key}' {host} (or --accept-new)"
                ))
            }
            Some(Refusal::Unaccepted) => match self.public_key() {
                Ok(key) => failure.with_fix(format!(
                    "on the server: uiw key pin ~/.config/uiw/authorized-clients '{key}' NAME, then SIGHUP to `uiw serve`; \
                     the list of the service is /var/lib/uiw/authorized-clients"
                )),
                Err(_) => failure,
            },
            _ => failure,
        }
    }
}
