//! Configuration of a TLS stack.

use super::keys::{self, KeyError, PinnedKeys, SecretKey};
use super::provider;
use super::verify::{Pattern, TrustAnchors, Verifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ResolvesClientCert, Resumption};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, IpAddr as PkiIpAddr, ServerName};
use rustls::server::{
    AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, ResolvesServerCert,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, KeyLog, NoKeyLog, RootCertStore, ServerConfig};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Default time limit for a handshake, see [`TlsConfig::handshake_timeout`].
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Default maximum number of concurrent handshakes per listener, see [`TlsConfig::max_handshakes`].
pub const MAX_HANDSHAKES: usize = 1024;

/// TLS configuration: the identity of this end and the peers that it accepts.
///
/// Both ends always authenticate; this cannot be turned off. Only TLS 1.3 is used, without
/// resumption and early data.
///
/// ```
/// # mod uiw { pub use uiw_llp as llp; pub use uiw_tls as tls; }
/// use uiw::tls::{PinnedKeys, SecretKey, Tls, TlsConfig, TlsStack};
/// let (ours, theirs) = (SecretKey::generate()?, SecretKey::generate()?);
/// let mut pinned = PinnedKeys::default();
/// pinned.add(theirs.public_key(), "node2");
/// let tls = Tls::new(TlsConfig::raw_keys(&ours, pinned)?)?;
/// let stack = TlsStack::new(Box::new(uiw::llp::tcp::TcpStack::new()?), &tls)?;
/// # drop(stack);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TlsConfig {
    identity: Arc<CertifiedKey>,
    raw: bool,
    trust: Arc<TrustAnchors>,
    allow: Vec<Pattern>,
    pub(super) server_name: Option<ServerName<'static>>,
    pub(super) handshake_timeout: Duration,
    pub(super) max_handshakes: usize,
    pub(super) clear_datagrams: bool,
    key_log: Arc<dyn KeyLog>,
}

impl TlsConfig {
    /// Creates a configuration with raw public keys (RFC 7250).
    ///
    /// This end authenticates with `key`, and a peer must have one of the `pinned` keys.
    ///
    /// # Errors
    /// [`KeyError::Refused`] if the key cannot be used.
    pub fn raw_keys(key: &SecretKey, pinned: PinnedKeys) -> Result<Self, KeyError> {
        let public = CertificateDer::from(key.public_key().as_der().to_vec());
        let identity = CertifiedKey::new(vec![public], Arc::clone(key.signer()));
        Ok(Self::new(identity, true, TrustAnchors::Pinned(pinned)))
    }

    /// Creates a configuration with X.509 certificates.
    ///
    /// This end authenticates with `chain`, its own certificate first, and the `key` of that
    /// certificate. A peer must have a certificate that is signed by one of `authorities` and
    /// permits its use as client or server (RFC 5280 section 4.2.1.12).
    ///
    /// A server's certificate must be valid for the first of these names that is set:
    /// [`uiw_llp::TransportConfig::peer_name`], [`TlsConfig::server_name`], the address that this
    /// end connects to. With an access list ([`TlsConfig::allow`]) only DNS names are compared and
    /// IP addresses are not, because the list already determines which peers are accepted.
    ///
    /// # Errors
    /// [`KeyError::Refused`] if the key does not belong to the certificate, or an authority's
    /// certificate cannot be used.
    pub fn x509(
        chain: Vec<CertificateDer<'static>>,
        key: &SecretKey,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Result<Self, KeyError> {
        let identity = CertifiedKey::from_der(chain, key.der(), &provider())?;
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority)?;
        }
        Ok(Self::new(identity, false, TrustAnchors::authorities(Arc::new(roots))?))
    }

    fn new(identity: CertifiedKey, raw: bool, trust: TrustAnchors) -> Self {
        Self {
            identity: Arc::new(identity),
            raw,
            trust: Arc::new(trust),
            allow: Vec::new(),
            server_name: None,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            max_handshakes: MAX_HANDSHAKES,
            clear_datagrams: false,
            key_log: Arc::new(NoKeyLog),
        }
    }

    /// Returns the pinned keys, or `None` if the configuration uses certificates.
    #[must_use]
    pub fn pinned(&self) -> Option<&PinnedKeys> {
        match &*self.trust {
            TrustAnchors::Pinned(pinned) => Some(pinned),
            TrustAnchors::Authorities { .. } => None,
        }
    }

    /// Adds a pattern to the access list.
    ///
    /// Without an access list every authenticated peer is accepted; with one, only peers that match
    /// a pattern. A pattern is one of:
    /// * a name, in which `*` stands for any characters: the name of a pinned key, or a DNS name or
    ///   URI of a certificate;
    /// * an IP address of a certificate;
    /// * a fingerprint (`SHA256:..`).
    #[must_use]
    pub fn allow(mut self, pattern: &str) -> Self {
        self.allow.push(Pattern::new(pattern));
        self
    }

    /// Sets the name for which every server's certificate must be valid, instead of the server's
    /// address (X.509 only).
    ///
    /// # Errors
    /// [`KeyError::Refused`] if `name` is neither a DNS name nor an IP address.
    pub fn server_name(mut self, name: &str) -> Result<Self, KeyError> {
        self.server_name = Some(parse_name(name)?);
        Ok(self)
    }

    /// Sets the time limit for a handshake. Default: [`HANDSHAKE_TIMEOUT`].
    #[must_use]
    pub fn handshake_timeout(mut self, time: Duration) -> Self {
        self.handshake_timeout = time;
        self
    }

    /// Sets the maximum number of concurrent handshakes per listener. Default: [`MAX_HANDSHAKES`].
    ///
    /// If a listener already has that many, a new connection aborts the oldest handshake of the
    /// address that has the most.
    #[must_use]
    pub fn max_handshakes(mut self, count: usize) -> Self {
        self.max_handshakes = count.max(1);
        self
    }

    /// Sets whether datagrams are allowed, although TLS does not protect them: they are sent in the
    /// clear.
    ///
    /// By default [`uiw_llp::StackExtensions::bind_datagrams`] refuses them.
    #[must_use]
    pub fn clear_datagrams(mut self, pass: bool) -> Self {
        self.clear_datagrams = pass;
        self
    }

    /// Appends the secrets of every connection to `file`, so that Wireshark can decrypt a capture.
    ///
    /// The file has the NSS key log format and is created with mode 0600. Anyone who can read it
    /// can decrypt all connections.
    ///
    /// # Errors
    /// [`KeyError::File`] if the file cannot be opened; [`KeyError::Owner`] or
    /// [`KeyError::Readable`] if it exists, and belongs to another user or others can read it.
    pub fn key_log(mut self, file: &Path) -> Result<Self, KeyError> {
        let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(file);
        let opened = opened.map_err(|source| KeyError::File { path: file.to_owned(), source })?;
        keys::check_secret(file, &opened)?;
        self.key_log = Arc::new(KeyLogFile(parking_lot::Mutex::new(opened)));
        Ok(self)
    }

    pub(super) fn verifier(&self) -> Verifier {
        Verifier { trust: Arc::clone(&self.trust), allow: self.allow.clone() }
    }

    /// Converts to rustls configurations for client and server.
    ///
    /// Other protocols of a program can use them to authenticate with the same identity and accept
    /// the same peers.
    ///
    /// # Errors
    /// [`KeyError::Refused`] if rustls refuses the configuration.
    pub fn to_rustls(&self) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), KeyError> {
        let verifier = Arc::new(self.verifier());
        let identity = || Arc::clone(&self.identity);
        let (as_client, as_server): (Arc<dyn ResolvesClientCert>, Arc<dyn ResolvesServerCert>) =
            if self.raw {
                (
                    Arc::new(AlwaysResolvesClientRawPublicKeys::new(identity())),
                    Arc::new(AlwaysResolvesServerRawPublicKeys::new(identity())),
                )
            } else {
                let certificate = Arc::new(SingleCertAndKey::from(identity()));
                (certificate.clone(), certificate)
            };
        let versions = &[&rustls::version::TLS13];
        let client =
            ClientConfig::builder_with_provider(provider()).with_protocol_versions(versions)?;
        let client =
            client.dangerous().with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<_>);
        let mut client = client.with_client_cert_resolver(as_client);
        client.resumption = Resumption::disabled();
        client.enable_early_data = false;
        client.key_log = Arc::clone(&self.key_log);
        let server =
            ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions)?;
        let mut server = server.with_client_cert_verifier(verifier).with_cert_resolver(as_server);
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;
        server.key_log = Arc::clone(&self.key_log);
        Ok((Arc::new(client), Arc::new(server)))
    }

    /// Returns the name for which the certificate of the server at `peer` must be valid. `asked` is
    /// the name set for the connection.
    pub(super) fn name_for(
        &self,
        asked: Option<&str>,
        peer: SocketAddr,
    ) -> Result<ServerName<'static>, KeyError> {
        match (asked, &self.server_name) {
            (Some(asked), _) => parse_name(asked),
            (None, Some(name)) => Ok(name.clone()),
            (None, None) => Ok(ServerName::IpAddress(PkiIpAddr::from(peer.ip()))),
        }
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("raw", &self.raw)
            .field("allow", &self.allow)
            .finish_non_exhaustive()
    }
}

fn parse_name(name: &str) -> Result<ServerName<'static>, KeyError> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| KeyError::Refused(format!("`{name}` is neither a DNS name nor an IP address")))
}

/// Reads the certificates of a PEM file.
///
/// # Errors
/// A [`KeyError`] if the file cannot be read, can be changed by other users, or contains no
/// certificate.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    let pem = keys::read_protected(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    // An error is not passed on, because its text could contain parts of the file.
    let certificates = certificates.ok().filter(|certificates| !certificates.is_empty());
    let what = "no certificate in PEM".to_owned();
    certificates.ok_or_else(|| KeyError::Content { path: path.to_owned(), what })
}

/// Key log in NSS format, appended to a file.
#[derive(Debug)]
struct KeyLogFile(parking_lot::Mutex<File>);

impl KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let line = format!("{label} {} {}\n", hex(client_random), hex(secret));
        // A single write per line, because other processes may append to the same file.
        if let Err(error) = self.0.lock().write_all(line.as_bytes()) {
            tracing::warn!(%error, "the key log is not complete");
        }
    }
}
