//! `uiw key`: keys for TLS with raw public keys.

use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::text;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use serde_json::json;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use uiw_tls::{KeyError, PinnedKeys, PublicKey, SecretKey};

/// Create, show and pin keys.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum KeyCommand {
    /// Create a private key (Ed25519) and print its public key
    New {
        /// A new file, of mode 0600
        file: PathBuf,
    },
    /// Print the public key of a private key, in the format of files of pinned keys
    Show {
        /// The file of the private key
        file: PathBuf,
        /// Print it in PEM, for other programs
        #[arg(long, conflicts_with = "json")]
        pem: bool,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Add a peer's public key to a file of pinned keys
    Pin {
        /// The file of pinned keys; it is created if it does not exist
        file: PathBuf,
        /// A key as printed by `uiw key new` or `show`, or a file in PEM
        key: String,
        /// Name of the peer in logs and access lists
        name: String,
        /// Pin the key even if another key is pinned under this name
        #[arg(long)]
        add: bool,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        KeyCommand::New { file } => {
            let key = SecretKey::generate().map_err(failure)?;
            key.write(file).map_err(failure)?;
            text::line(key.public_key().to_string());
            note!("{}", key.public_key().fingerprint());
        }
        KeyCommand::Show { file, pem, json } => {
            let key = SecretKey::read(file).map_err(|error| not_private(file, error))?.public_key();
            let fingerprint = key.fingerprint().to_string();
            if *json {
                text::json(&json!({ "key": key.to_string(), "fingerprint": fingerprint }));
            } else if *pem {
                text::line(key.to_pem().trim_end());
            } else {
                text::line(key.to_string());
                note!("{fingerprint}");
            }
        }
        KeyCommand::Pin { file, key, name, add } => pin(file, key, name, *add)?,
    }
    Ok(())
}

/// Adds a key to a file of pinned keys. With `add`, a name may have several keys.
pub(crate) fn pin(file: &Path, key: &str, name: &str, add: bool) -> Result<()> {
    if name.trim().is_empty() || name.contains(['\n', '\r']) {
        return Err(Failure::usage(format!("{name:?}"), "no name", "name the peer in one line"));
    }
    let key = public_key(key)?;
    let failed = |error: &dyn Display, fix| Failure::new(Exit::Failed, file.display(), error, fix);
    let unwritable = |error| failed(&error, "choose a regular file that can be written");
    let mut options = OpenOptions::new();
    let is_root = geteuid().is_root();
    if is_root {
        // Another user, such as the one of a service, may own the directory and replace the file by
        // a link to any file, or by a FIFO.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    }
    let mut out =
        options.create(true).append(true).read(true).mode(0o644).open(file).map_err(unwritable)?;
    if !out.metadata().map_err(unwritable)?.is_file() {
        return Err(unwritable(ErrorKind::InvalidInput.into()));
    }
    let text = std::io::read_to_string(&out).map_err(unwritable)?;
    // The list of a service belongs to the user of the service.
    let pinned = if is_root {
        PinnedKeys::parse(&text)
            .map_err(|error| failed(&error, "correct the line, or start with a new file"))?
    } else {
        PinnedKeys::read(file).map_err(failure)?
    };
    if let Some(name) = pinned.name_of(&key) {
        let why = format!("it is pinned as `{name}` in {} already", file.display());
        return Err(Failure::new(
            Exit::Failed,
            key.fingerprint(),
            why,
            "edit that line to rename it",
        ));
    }
    if let Some(line) = pinned.lines().find(|line| line.name == name.trim()).filter(|_| !add) {
        let why = format!(
            "another key ({}) is pinned under this name: {}:{}",
            line.key.fingerprint(),
            file.display(),
            line.number
        );
        let fix = "replace that line if the key has changed, or pin a second key with --add";
        return Err(Failure::new(Exit::Failed, name, why, fix));
    }
    // An edited file may lack the newline at its end.
    let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    out.write_all(format!("{separator}{key} {}\n", name.trim()).as_bytes()).map_err(unwritable)?;
    note!("{} is pinned as `{}`", key.fingerprint(), name.trim());
    Ok(())
}

/// Returns the key given as text, or the key in the file of that name.
fn public_key(text: &str) -> Result<PublicKey> {
    let contents = std::fs::read_to_string(text);
    let text = contents.as_deref().unwrap_or(text).trim();
    text.parse().map_err(|error: KeyError| {
        Failure::usage(
            "the key",
            error,
            "give what `uiw key show` prints, or a file with a public key in PEM",
        )
    })
}

/// Creates the error for a file that should contain a private key.
fn not_private(file: &Path, error: KeyError) -> Failure {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    if text.trim().parse::<PublicKey>().is_ok() {
        let fix = "give the file of its private key";
        return Failure::usage(file.display(), "this is a public key", fix);
    }
    failure(error)
}

/// Creates the error for a file of keys or certificates.
pub(crate) fn failure(error: KeyError) -> Failure {
    let (what, why) = match error.to_string().split_once(": ") {
        Some((what, why)) => (what.to_owned(), why.to_owned()),
        None => ("TLS".to_owned(), error.to_string()),
    };
    let fix = match &error {
        KeyError::Readable { .. } => "chmod 600 it",
        KeyError::Writable { .. } => "chmod go-w it",
        KeyError::Owner { .. } => "chown it",
        KeyError::File { source, .. } => match source.kind() {
            ErrorKind::AlreadyExists => "choose another name: a key is never replaced",
            ErrorKind::NotFound => {
                "`uiw key new` makes a key for `mode raw`, `uiw key pin` a file of pinned keys; docs/tls.md has the file of --tls"
            }
            _ => "check the path and the permissions of the file",
        },
        _ => "see docs/tls.md, and `uiw key --help`",
    };
    // The text of the library may end with the hint, which would then be printed twice.
    let why = why.strip_suffix(fix).map_or(why.as_str(), |why| why.trim_end_matches(": "));
    Failure::new(Exit::Usage, what, why, fix)
}
