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
        /// The system's answer.
        source: io::Error,
    },
    /// Others can read a private key.
    #[error("{}: others can read this private key (mode {mode:04o}): chmod 600 it", path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// Others can change a file that decides which peers may connect.
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
        /// The user's number.
        owner: u32,
    },
    /// The file is not what it should be.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Description of the error.
        what: String,
    },
    /// A line of the file is not what it should be.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, starting at 1.
        line: usize,
        /// Description of the error.
        what: String,
    },
    /// A text is no public key.
    #[error("not a public key: {0}")]
    PublicKey(&'static str),
    /// rustls refuses the key or certificate.
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

/// Reads a file that holds a secret: its owner is this user or root, and no other user can read it.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, KeyError> {
    read_checked(path, 0o077, |path, mode| KeyError::Readable { path, mode })
}

/// Reads a file that decides which peers may connect: its owner is this user or root, and no other
/// user can change it.
///
/// # Errors
/// [`KeyError`]: it cannot be read, or others can change it.
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
    // Of the open file: a check of the path would be of another file if it is replaced meanwhile.
    let data = file.metadata().map_err(file_error(path))?;
    let mode = data.mode() & 0o7777;
    let own = rustix::process::geteuid().as_raw();
    if data.uid() != own && data.uid() != 0 {
        return Err(KeyError::Owner { path: path.to_owned(), owner: data.uid() });
    }
    if mode & forbidden != 0 {
        return Err(refuse(path.to_owned(), mode));
    }
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut file, &mut bytes).map_err(file_error(path))?;
    Ok(bytes)
}

/// A private key, with which this end proves its identity.
#[derive(Clone)]
pub struct SecretKey {
    der: Arc<PrivateKeyDer<'static>>,
    signer: Arc<dyn SigningKey>,
    public: PublicKey,
}

/// PKCS#8 of an Ed25519 key without its 32 bytes (RFC 8410 section 7, version 1: OpenSSL 3.0 does
/// not read version 2).
const ED25519_PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

impl SecretKey {
    /// A new Ed25519 key.
    ///
    /// # Errors
    /// [`KeyError::Refused`]: the system has no random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        let mut der = [0; 48];
        der[..16].copy_from_slice(&ED25519_PKCS8);
        getrandom::fill(&mut der[16..]).map_err(|error| KeyError::Refused(error.to_string()))?;
        Self::from_der(PrivatePkcs8KeyDer::from(der.to_vec()).into())
    }

    /// Reads a PEM file, as [`SecretKey::write`] or `openssl genpkey` make it. Any kind of key that
    /// TLS 1.3 signs with is taken.
    ///
    /// # Errors
    /// [`KeyError`]: the file cannot be read, others can read it too, or it has no such key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let pem = read_secret(path)?;
        let content = |what: String| KeyError::Content { path: path.to_owned(), what };
        // The error would have what is in the file.
        let der = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| content("no private key in PEM".into()))?;
        Self::from_der(der).map_err(|error| content(error.to_string()))
    }

    fn from_der(der: PrivateKeyDer<'static>) -> Result<Self, KeyError> {
        let signer = provider().key_provider.load_private_key(der.clone_key())?;
        let spki =
            signer.public_key().ok_or_else(|| KeyError::Refused("the key has no public part".into()))?;
        let public = PublicKey { spki: spki.as_ref().into() };
        Ok(Self { der: Arc::new(der), signer, public })
    }

    /// Writes it to a new file of mode 0600, as PKCS#8 in PEM.
    ///
    /// # Errors
    /// [`KeyError::File`], also where the file exists: a key is not replaced.
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(path).map_err(file_error(path))?;
        file.write_all(self.to_pem().as_bytes()).map_err(file_error(path))
    }

    /// PKCS#8 in PEM.
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

/// A public key: a SubjectPublicKeyInfo. Displayed in base64, which is one line of what
/// `openssl pkey -pubout` prints.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey {
    spki: Box<[u8]>,
}

impl PublicKey {
    /// Parses a SubjectPublicKeyInfo in DER.
    ///
    /// # Errors
    /// [`KeyError::PublicKey`].
    pub fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        webpki::RawPublicKeyEntity::try_from(&SubjectPublicKeyInfoDer::from(der))
            .map_err(|_| KeyError::PublicKey("no SubjectPublicKeyInfo"))?;
        Ok(Self { spki: der.into() })
    }

    /// The SubjectPublicKeyInfo in DER.
    #[must_use]
    pub fn as_der(&self) -> &[u8] {
        &self.spki
    }

    /// Encodes the key in PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem("PUBLIC KEY", &self.spki)
    }

    /// The SHA-256 hash of the SubjectPublicKeyInfo.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        super::fingerprint(&self.spki)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    /// Base64, or PEM.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let body: String = text.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect();
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

/// The keys that are accepted, each with a name. As a file: a line for each key,
/// `[OPTIONS] KEY NAME`, where KEY is a public key in base64 and NAME is the rest of the line;
/// empty lines and lines that begin with `#` are comments. OPTIONS has the form `word=value`
/// without a space, its word in lower case, which no key begins with. What it means is the
/// program's: `uiw serve` takes `shares=NAME[:rw],..`.
#[derive(Clone, Debug, Default)]
pub struct PinnedKeys(BTreeMap<PublicKey, PinnedKey>);

#[derive(Clone, Debug, Default)]
struct PinnedKey {
    name: String,
    options: String,
    /// Line of the file, counted from 1, or 0 for a key that does not come from a file.
    line: usize,
}

/// A line of a file of pinned keys.
#[derive(Clone, Copy, Debug)]
pub struct PinnedLine<'a> {
    /// Number of the line, from 1; 0 for a key that no file has.
    pub number: usize,
    /// The key.
    pub key: &'a PublicKey,
    /// Name.
    pub name: &'a str,
    /// Options of the entry, empty if the line has none.
    pub options: &'a str,
}

/// Returns whether a word of a line is its options: a key begins with `M`, as the DER of every
/// SubjectPublicKeyInfo does in base64.
fn is_options(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_lowercase()) && word.contains('=')
}

impl PinnedKeys {
    /// Reads a file.
    ///
    /// # Errors
    /// [`KeyError`]: it cannot be read, others can change it, or a line is wrong.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = read_protected(path)?;
        Self::parse(&text).map_err(|LineError { line, what }| KeyError::Line {
            path: path.to_owned(),
            line,
            what: what.to_string(),
        })
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// The first wrong line, from 1, and why it is wrong.
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
            keys.insert(key, PinnedKey { name, options, line: number + 1 });
        }
        Ok(Self(keys))
    }

    /// Adds a key, or gives it another name.
    pub fn add(&mut self, key: PublicKey, name: &str) {
        self.0.entry(key).or_default().name = name.to_owned();
    }

    /// The name of a key; `None`: it is not pinned.
    #[must_use]
    pub fn name_of(&self, key: &PublicKey) -> Option<&str> {
        self.0.get(key).map(|pin| pin.name.as_str())
    }

    /// The options of a key, empty where its line has none; `None`: it is not pinned.
    #[must_use]
    pub fn options_of(&self, key: &PublicKey) -> Option<&str> {
        self.0.get(key).map(|pin| pin.options.as_str())
    }

    /// The keys in the order of their lines.
    pub fn lines(&self) -> impl Iterator<Item = PinnedLine<'_>> {
        let line = |(key, pin): (_, _)| {
            let PinnedKey { name, options, line }: &PinnedKey = pin;
            PinnedLine { number: *line, key, name, options }
        };
        let mut lines: Vec<_> = self.0.iter().map(line).collect();
        lines.sort_by_key(|line| line.number);
        lines.into_iter()
    }

    /// The keys with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&PublicKey, &str)> {
        self.0.iter().map(|(key, pin)| (key, pin.name.as_str()))
    }
}

/// A wrong line of a file of pinned keys.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct LineError {
    /// Line number, starting at 1.
    pub line: usize,
    /// Error in the line.
    pub what: KeyError,
}
