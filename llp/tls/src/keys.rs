//! Raw public keys (RFC 7250): key pairs, their files, and files of pinned keys.

use super::provider;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use rustls::sign::SigningKey;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use uiw_llp::Fingerprint;

/// Reason why a key or a file of keys or certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Other users can read a private key.
    #[error("{}: others can read this secret (mode {mode:04o}): chmod 600 it", path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// Other users can change a file that determines which peers may connect.
    #[error("{}: others can change this file (mode {mode:04o}): chmod go-w it", path.display())]
    Writable {
        /// The file.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// A file that must be protected belongs to another user.
    #[error("{}: belongs to user {owner}, neither to this one nor to root", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// User ID of the owner.
        owner: u32,
    },
    /// The content of the file is invalid.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Description of the error.
        what: String,
    },
    /// A line of the file is invalid.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, starting at 1.
        line: usize,
        /// Description of the error.
        what: String,
    },
    /// The key is in an earlier line as well.
    #[error("this key is in an earlier line as well")]
    Repeated,
    /// The text is not a public key.
    #[error("not a public key: {0}")]
    PublicKey(&'static str),
    /// rustls refused the key or certificate.
    #[error("{0}")]
    Refused(String),
}

impl From<rustls::Error> for KeyError {
    fn from(error: rustls::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> KeyError + '_ {
    move |source| KeyError::File { path: path.to_owned(), source }
}

/// Reads a file that contains a secret. Its owner must be this user or root, and no other user may
/// be able to read it.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, KeyError> {
    read_checked(path, 0o077, |path, mode| KeyError::Readable { path, mode })
}

/// Reads a file that determines which peers may connect. Its owner must be this user or root, and
/// no other user may be able to change it.
///
/// # Errors
/// [`KeyError`] if the file cannot be read, or others can change it.
pub fn read_protected(path: &Path) -> Result<String, KeyError> {
    let bytes = read_checked(path, 0o022, |path, mode| KeyError::Writable { path, mode })?;
    String::from_utf8(bytes)
        .map_err(|_| KeyError::Content { path: path.to_owned(), what: "not a text file".into() })
}

fn read_checked(
    path: &Path,
    forbidden: u32,
    refuse: impl FnOnce(PathBuf, u32) -> KeyError,
) -> Result<Vec<u8>, KeyError> {
    let mut file = fs::File::open(path).map_err(file_error(path))?;
    check(path, &file, forbidden, refuse)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut file, &mut bytes).map_err(file_error(path))?;
    Ok(bytes)
}

/// Checks that an open file which contains secrets belongs to this user or root, and that no other
/// user can read it.
pub(crate) fn check_secret(path: &Path, file: &fs::File) -> Result<(), KeyError> {
    check(path, file, 0o077, |path, mode| KeyError::Readable { path, mode })
}

/// Checks the owner and the mode of the open file, because `path` may name another one by now.
fn check(
    path: &Path,
    file: &fs::File,
    forbidden: u32,
    refuse: impl FnOnce(PathBuf, u32) -> KeyError,
) -> Result<(), KeyError> {
    let data = file.metadata().map_err(file_error(path))?;
    let mode = data.mode() & 0o7777;
    let own = rustix::process::geteuid().as_raw();
    if data.uid() != own && data.uid() != 0 {
        return Err(KeyError::Owner { path: path.to_owned(), owner: data.uid() });
    }
    if mode & forbidden != 0 { Err(refuse(path.to_owned(), mode)) } else { Ok(()) }
}

/// Private key with which this end authenticates.
#[derive(Clone)]
pub struct SecretKey {
    der: Arc<PrivateKeyDer<'static>>,
    signer: Arc<dyn SigningKey>,
    public: PublicKey,
}

/// PKCS#8 of an Ed25519 key without its 32 bytes (RFC 8410 section 7, version 1: OpenSSL 3.0 does
/// not read version 2).
const ED25519_PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

impl SecretKey {
    /// Generates an Ed25519 key.
    ///
    /// # Errors
    /// [`KeyError::Refused`] if the system has no random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        let mut der = [0; 48];
        der[..16].copy_from_slice(&ED25519_PKCS8);
        getrandom::fill(&mut der[16..]).map_err(|error| KeyError::Refused(error.to_string()))?;
        Self::from_der(PrivatePkcs8KeyDer::from(der.to_vec()).into())
    }

    /// Reads a PEM file as created by [`SecretKey::write`] or `openssl genpkey`. All kinds of keys
    /// with which TLS 1.3 can sign are accepted.
    ///
    /// # Errors
    /// [`KeyError`] if the file cannot be read, others can read it, or it contains no such key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let pem = read_secret(path)?;
        let content = |what: String| KeyError::Content { path: path.to_owned(), what };
        // The error could contain parts of the file.
        let der = PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|_| content("no private key in PEM".into()))?;
        Self::from_der(der).map_err(|error| content(error.to_string()))
    }

    fn from_der(der: PrivateKeyDer<'static>) -> Result<Self, KeyError> {
        let signer = provider().key_provider.load_private_key(der.clone_key())?;
        let spki = signer
            .public_key()
            .ok_or_else(|| KeyError::Refused("the key has no public part".into()))?;
        let public = PublicKey { spki: spki.as_ref().into() };
        Ok(Self { der: Arc::new(der), signer, public })
    }

    /// Writes the key to a new file of mode 0600, as PKCS#8 in PEM.
    ///
    /// # Errors
    /// [`KeyError::File`], also if the file exists: an existing key is never replaced.
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(file_error(path))?;
        file.write_all(self.to_pem().as_bytes()).map_err(file_error(path))
    }

    /// Encodes the key as PKCS#8 in PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem("PRIVATE KEY", self.der.secret_der())
    }

    /// Returns the public part.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.public.clone()
    }

    pub(super) fn signer(&self) -> &Arc<dyn SigningKey> {
        &self.signer
    }

    pub(super) fn der(&self) -> PrivateKeyDer<'static> {
        self.der.clone_key()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecretKey").field(&self.public.fingerprint().to_string()).finish()
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        out.extend(line.iter().map(|byte| char::from(*byte)));
        out.push('\n');
    }
    out + "-----END " + label + "-----\n"
}

/// Public key, as a SubjectPublicKeyInfo. It is displayed in base64 without line breaks, as between
/// the first and last line of the output of `openssl pkey -pubout`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey {
    spki: Box<[u8]>,
}

impl PublicKey {
    /// Parses a SubjectPublicKeyInfo in DER.
    ///
    /// # Errors
    /// [`KeyError::PublicKey`] if `der` is not a SubjectPublicKeyInfo.
    pub fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        webpki::RawPublicKeyEntity::try_from(&SubjectPublicKeyInfoDer::from(der))
            .map_err(|_| KeyError::PublicKey("no SubjectPublicKeyInfo"))?;
        Ok(Self { spki: der.into() })
    }

    /// Returns the SubjectPublicKeyInfo in DER.
    #[must_use]
    pub fn as_der(&self) -> &[u8] {
        &self.spki
    }

    /// Encodes the key in PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem("PUBLIC KEY", &self.spki)
    }

    /// Returns the SHA-256 hash of the SubjectPublicKeyInfo.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        super::fingerprint(&self.spki)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    /// Parses base64 or PEM.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let body: String =
            text.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect();
        let der = STANDARD.decode(body).map_err(|_| KeyError::PublicKey("not base64"))?;
        Self::from_der(&der)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(&self.spki))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PublicKey").field(&self.fingerprint().to_string()).finish()
    }
}

/// Accepted keys, each with a name.
///
/// A file of pinned keys has a line `[OPTIONS] KEY NAME` for each key. KEY is a public key in
/// base64, and NAME is the rest of the line. Empty lines and lines that begin with `#` are ignored.
/// OPTIONS has the form `word=value` without spaces; the word is in lower case, so it cannot be
/// mistaken for a key. The program defines the meaning of the options: `uiw serve` accepts
/// `shares=NAME[:rw],..`.
#[derive(Clone, Debug, Default)]
pub struct PinnedKeys(BTreeMap<PublicKey, PinnedKey>);

#[derive(Clone, Debug, Default)]
struct PinnedKey {
    name: String,
    options: String,
    /// Line number, from 1, or 0 for a key that does not come from a file.
    line: usize,
}

/// Line of a file of pinned keys.
#[derive(Clone, Copy, Debug)]
pub struct PinnedLine<'a> {
    /// Line number, from 1, or 0 for a key that does not come from a file.
    pub number: usize,
    /// The key.
    pub key: &'a PublicKey,
    /// Name of the key.
    pub name: &'a str,
    /// Options of the entry, empty if the line has none.
    pub options: &'a str,
}

/// Returns whether the first word of a line contains options. A key begins with `M`, because the
/// DER of every SubjectPublicKeyInfo does so in base64.
fn is_options(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_lowercase()) && word.contains('=')
}

impl PinnedKeys {
    /// Reads a file.
    ///
    /// # Errors
    /// [`KeyError`] if the file cannot be read, others can change it, or a line is invalid.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = read_protected(path)?;
        Self::parse(&text).map_err(|LineError { line, what }| KeyError::Line {
            path: path.to_owned(),
            line,
            what: what.to_string(),
        })
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// [`LineError`] for the first invalid line, with its number (from 1) and the reason.
    pub fn parse(text: &str) -> Result<Self, LineError> {
        let mut keys = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let words = |text: &'_ str| match text.split_once(char::is_whitespace) {
                Some((word, rest)) => (word.to_owned(), rest.trim().to_owned()),
                None => (text.to_owned(), String::new()),
            };
            let (mut options, mut rest) = words(line);
            if !is_options(&options) {
                (options, rest) = (String::new(), line.to_owned());
            }
            let (key, name) = words(&rest);
            let key = key.parse().map_err(|what| LineError { line: number + 1, what })?;
            // Which of two lines has the right options cannot be known.
            if keys.insert(key, PinnedKey { name, options, line: number + 1 }).is_some() {
                return Err(LineError { line: number + 1, what: KeyError::Repeated });
            }
        }
        Ok(Self(keys))
    }

    /// Adds a key, or changes its name.
    pub fn add(&mut self, key: PublicKey, name: &str) {
        self.0.entry(key).or_default().name = name.to_owned();
    }

    /// Returns the name of a key, or `None` if the key is not pinned.
    #[must_use]
    pub fn name_of(&self, key: &PublicKey) -> Option<&str> {
        self.0.get(key).map(|pin| pin.name.as_str())
    }

    /// Returns the options of a key, which are empty if its line has none, or `None` if the key is
    /// not pinned.
    #[must_use]
    pub fn options_of(&self, key: &PublicKey) -> Option<&str> {
        self.0.get(key).map(|pin| pin.options.as_str())
    }

    /// Returns the keys in the order of their lines.
    pub fn lines(&self) -> impl Iterator<Item = PinnedLine<'_>> {
        let line = |(key, pin): (_, _)| {
            let PinnedKey { name, options, line }: &PinnedKey = pin;
            PinnedLine { number: *line, key, name, options }
        };
        let mut lines: Vec<_> = self.0.iter().map(line).collect();
        lines.sort_by_key(|line| line.number);
        lines.into_iter()
    }

    /// Returns the keys with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&PublicKey, &str)> {
        self.0.iter().map(|(key, pin)| (key, pin.name.as_str()))
    }
}

/// Invalid line of a file of pinned keys.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct LineError {
    /// Line number, starting at 1.
    pub line: usize,
    /// Error in the line.
    pub what: KeyError,
}
