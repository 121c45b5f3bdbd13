//! What a TLS stack is configured with.

use super::keys::{KeyError, PinnedKeys, SecretKey};
use super::provider;
use super::verify::{Pattern, TrustAnchors, Verifier};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, IpAddr as PkiIpAddr, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, KeyLog, RootCertStore, ServerConfig};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Default time for the handshake of a peer, see [`TlsConfig::handshake_timeout`].
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes that one listener has at a time, unless [`TlsConfig::max_handshakes`] says otherwise.
pub const MAX_HANDSHAKES: usize = 1024;

/// The identity of this end, and which peers are accepted. Both ends authenticate; there is no way to leave that out. TLS 1.3 alone,
/// without resumption and early data.
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
    /// Raw public keys (RFC 7250): this end proves that it has `key`, and a peer must have one of `pinned`.
    ///
    /// # Errors
    /// [`KeyError::Refused`].
    pub fn raw_keys(key: &SecretKey, pinned: PinnedKeys) -> Result<Self, KeyError> {
        let public = CertificateDer::from(key.public_key().as_der().to_vec());
        let identity = CertifiedKey::new(vec![public], Arc::clone(key.signer()));
        Ok(Self::new(identity, true, TrustAnchors::Pinned(pinned)))
    }

    /// X.509: this end presents `chain`, its own certificate first, and proves that it has its `key`; a peer must have a certificate
    /// that one of `authorities` has signed, for the use as client or server (RFC 5280 section 4.2.1.12).
    ///
    /// A server's certificate must be valid for [`uiw_llp::TransportConfig::peer_name`], else for [`TlsConfig::server_name`], else, unless
    /// there is an access list ([`TlsConfig::allow`]), for the address that is connected to. With an access list only DNS names are
    /// compared in this way: that a listed peer has the address says nothing more.
    ///
    /// # Errors
    /// [`KeyError::Refused`]: the key is not that of the certificate, or an authority's certificate cannot be used.
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

    /// The keys of peers that are accepted; `None` with certificates.
    #[must_use]
    pub fn pinned(&self) -> Option<&PinnedKeys> {
        match &*self.trust {
            TrustAnchors::Pinned(pinned) => Some(pinned),
            TrustAnchors::Authorities { .. } => None,
        }
    }

    /// Adds to the access list. Without one every authentic peer is accepted; with one, only those that a pattern fits: a name (of a
    /// pinned key, or a certificate's DNS name or URI) in which `*` stands for any characters, an IP address of a certificate, or a
    /// fingerprint (`SHA256:..`).
    #[must_use]
    pub fn allow(mut self, pattern: &str) -> Self {
        self.allow.push(Pattern::new(pattern));
        self
    }

    /// The name that every server's certificate must be valid for, instead of the address that is connected to (X.509).
    ///
    /// # Errors
    /// [`KeyError::Refused`]: it is neither a DNS name nor an IP address.
    pub fn server_name(mut self, name: &str) -> Result<Self, KeyError> {
        self.server_name = Some(parse_name(name)?);
        Ok(self)
    }

    /// Sets the time for the handshake of a peer. Default: [`HANDSHAKE_TIMEOUT`].
    #[must_use]
    pub fn handshake_timeout(mut self, time: Duration) -> Self {
        self.handshake_timeout = time;
        self
    }

    /// Handshakes that one listener has at a time; for a further one the oldest is cut. Default: [`MAX_HANDSHAKES`].
    #[must_use]
    pub fn max_handshakes(mut self, count: usize) -> Self {
        self.max_handshakes = count.max(1);
        self
    }

    /// Lets datagrams pass, which TLS cannot protect. Default: [`uiw_llp::StackExtensions::bind_datagrams`] refuses them.
    #[must_use]
    pub fn clear_datagrams(mut self, pass: bool) -> Self {
        self.clear_datagrams = pass;
        self
    }

    /// Appends the secrets of every connection to `file` (mode 0600), in the format of NSS key logs, so that Wireshark can decrypt a
    /// capture. A reader of that file can read what was sent.
    ///
    /// # Errors
    /// [`KeyError::File`].
    pub fn key_log(mut self, file: &Path) -> Result<Self, KeyError> {
        let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(file);
        let opened = opened.map_err(|source| KeyError::File { path: file.to_owned(), source })?;
        self.key_log = Arc::new(KeyLogFile(parking_lot::Mutex::new(opened)));
        Ok(self)
    }

    pub(super) fn verifier(&self) -> Verifier {
        Verifier { trust: Arc::clone(&self.trust), allow: self.allow.clone() }
    }

    /// The same for rustls, as client and as server: for other uses of the same identity and peers.
    ///
    /// # Errors
    /// [`KeyError::Refused`].
    pub fn to_rustls(&self) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), KeyError> {
        let verifier = Arc::new(self.verifier());
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(provider()).with_protocol_versions(versions)?;
        let client = client.dangerous().with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<_>);
        let resolver = Arc::new(OneIdentity { identity: Arc::clone(&self.identity), raw: self.raw });
        let mut client = client.with_client_cert_resolver(Arc::clone(&resolver) as Arc<_>);
        client.resumption = Resumption::disabled();
        client.enable_early_data = false;
        client.key_log = Arc::clone(&self.key_log);
        let server = ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions)?;
        let mut server = server.with_client_cert_verifier(verifier).with_cert_resolver(resolver);
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;
        server.key_log = Arc::clone(&self.key_log);
        Ok((Arc::new(client), Arc::new(server)))
    }

    /// The name that the server at `peer` must have, given the one that the connection asks for.
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
/// [`KeyError`]: it cannot be read, others can change it, or it has no certificate.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    let pem = super::keys::read_protected(path)?;
    let content = |what: String| KeyError::Content { path: path.to_owned(), what };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(content("no certificate in PEM".into())),
        Ok(certificates) => Ok(certificates),
        // The error would have what is in the file.
        Err(_) => Err(content("no certificate in PEM".into())),
    }
}

/// The same identity for every peer.
#[derive(Debug)]
struct OneIdentity {
    identity: Arc<CertifiedKey>,
    raw: bool,
}

impl rustls::server::ResolvesServerCert for OneIdentity {
    fn resolve(&self, _hello: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.identity))
    }

    fn only_raw_public_keys(&self) -> bool {
        self.raw
    }
}

impl rustls::client::ResolvesClientCert for OneIdentity {
    fn resolve(&self, _issuers: &[&[u8]], _schemes: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.identity))
    }

    fn has_certs(&self) -> bool {
        true
    }

    fn only_raw_public_keys(&self) -> bool {
        self.raw
    }
}

#[derive(Debug)]
struct NoKeyLog;

impl KeyLog for NoKeyLog {
    fn log(&self, _label: &str, _client_random: &[u8], _secret: &[u8]) {}

    fn will_log(&self, _label: &str) -> bool {
        false
    }
}

#[derive(Debug)]
struct KeyLogFile(parking_lot::Mutex<File>);

impl KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let line = format!("{label} {} {}\n", hex(client_random), hex(secret));
        // In one piece, as other processes may append to the same file.
        if let Err(error) = self.0.lock().write_all(line.as_bytes()) {
            tracing::warn!(%error, "the key log is not complete");
        }
    }
}
