//! Verification of peers.

use super::error::TlsError;
use super::keys::{KeyError, PinnedKeys, PublicKey};
use super::{fingerprint, provider};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls13_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;
use uiw_llp::PeerIdentity;

/// Keys or authorities by which peers are authenticated.
#[derive(Debug)]
pub(super) enum TrustAnchors {
    Pinned(PinnedKeys),
    Authorities {
        roots: Arc<RootCertStore>,
        clients: Arc<dyn ClientCertVerifier>,
        servers: Arc<WebPkiServerVerifier>,
    },
}

impl TrustAnchors {
    pub(super) fn authorities(roots: Arc<RootCertStore>) -> Result<Self, KeyError> {
        let refused =
            |error: rustls::server::VerifierBuilderError| KeyError::Refused(error.to_string());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider());
        let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), provider());
        Ok(Self::Authorities {
            roots,
            clients: clients.build().map_err(refused)?,
            servers: servers.build().map_err(refused)?,
        })
    }
}

/// Role of the peer.
#[derive(Clone, Debug)]
pub(super) enum PeerRole {
    Client,
    /// A server with this name.
    Server(ServerName<'static>),
}

/// Verifies peers for rustls.
#[derive(Debug, Clone)]
pub(super) struct Verifier {
    pub(super) trust: Arc<TrustAnchors>,
    pub(super) allow: Vec<Pattern>,
}

impl Verifier {
    /// Returns the identity of the peer with this certificate or raw public key.
    pub(super) fn identify(
        &self,
        certificate: &CertificateDer<'_>,
    ) -> Result<PeerIdentity, TlsError> {
        let identity = match &*self.trust {
            TrustAnchors::Pinned(pinned) => {
                let key = PublicKey::from_der(certificate)
                    .map_err(|error| TlsError::Certificate(error.to_string().into()))?;
                let fingerprint = key.fingerprint();
                let Some(name) = pinned.name_of(&key) else {
                    return Err(TlsError::UnknownKey { fingerprint, public_key: key.to_string() });
                };
                let options = pinned.options_of(&key).unwrap_or_default().to_owned();
                PeerIdentity::PublicKey { name: name.to_owned(), fingerprint, options }
            }
            TrustAnchors::Authorities { .. } => {
                let parsed = webpki::EndEntityCert::try_from(certificate)
                    .map_err(|error| TlsError::Certificate(error.to_string().into()))?;
                let names =
                    parsed.valid_dns_names().chain(parsed.valid_uri_names()).map(str::to_owned);
                PeerIdentity::Certificate {
                    names: names.collect(),
                    fingerprint: fingerprint(certificate),
                }
            }
        };
        let listed = self.allow.is_empty()
            || self
                .allow
                .iter()
                .any(|pattern| pattern.fits(&identity) || pattern.is_address_of(certificate));
        if listed {
            Ok(identity)
        } else {
            Err(TlsError::NotAllowed { identity: identity.to_string() })
        }
    }

    /// Verifies again a peer that was accepted before, and returns its identity.
    ///
    /// # Errors
    /// The reason why the peer is no longer accepted.
    pub(super) fn check(
        &self,
        chain: &[CertificateDer<'_>],
        peer: &PeerRole,
    ) -> Result<PeerIdentity, TlsError> {
        let (own, intermediates) = chain.split_first().ok_or(TlsError::NoCertificate)?;
        self.check_authentic(own, intermediates, peer, UnixTime::now())?;
        self.identify(own)
    }

    fn check_authentic(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        peer: &PeerRole,
        now: UnixTime,
    ) -> Result<(), Error> {
        let TrustAnchors::Authorities { roots, clients, servers } = &*self.trust else {
            return Ok(());
        };
        match peer {
            PeerRole::Client => clients.verify_client_cert(own, intermediates, now).map(drop),
            // With an access list, the address adds nothing to the list: see `TlsConfig::x509`.
            PeerRole::Server(ServerName::IpAddress(_)) if !self.allow.is_empty() => {
                rustls::client::verify_server_cert_signed_by_trust_anchor(
                    &ParsedCertificate::try_from(own)?,
                    roots,
                    intermediates,
                    now,
                    provider().signature_verification_algorithms.all,
                )
            }
            PeerRole::Server(name) => {
                servers.verify_server_cert(own, intermediates, name, &[], now).map(drop)
            }
        }
    }

    fn signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &provider().signature_verification_algorithms;
        match &*self.trust {
            TrustAnchors::Pinned(_) => {
                let key = SubjectPublicKeyInfoDer::from(certificate.as_ref());
                verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
            }
            TrustAnchors::Authorities { .. } => {
                verify_tls13_signature(message, certificate, signed, algorithms)
            }
        }
    }

    fn schemes() -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Implements the functions that rustls requires of verifiers for both servers and clients.
macro_rules! either_verifier {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            // TLS 1.2 is never negotiated.
            Err(Error::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOffered))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.signature(message, certificate, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            Self::schemes()
        }

        fn requires_raw_public_keys(&self) -> bool {
            matches!(&*self.trust, TrustAnchors::Pinned(_))
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_authentic(own, intermediates, &PeerRole::Server(name.to_owned()), now)?;
        self.identify(own)?;
        Ok(ServerCertVerified::assertion())
    }

    either_verifier!();
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        match &*self.trust {
            TrustAnchors::Pinned(_) => &[],
            TrustAnchors::Authorities { clients, .. } => clients.root_hint_subjects(),
        }
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_authentic(own, intermediates, &PeerRole::Client, now)?;
        self.identify(own)?;
        Ok(ClientCertVerified::assertion())
    }

    either_verifier!();
}

/// Entry of the access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(String);

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    fn fits(&self, identity: &PeerIdentity) -> bool {
        match identity {
            PeerIdentity::PublicKey { name, fingerprint, .. } => {
                !name.is_empty() && glob(&self.0, name) || self.0 == fingerprint.to_string()
            }
            PeerIdentity::Certificate { names, fingerprint } => {
                names.iter().any(|name| glob(&self.0, name)) || self.0 == fingerprint.to_string()
            }
            PeerIdentity::SameProcess => true,
            // This crate creates no other kind of identity, and unknown ones are not allowed.
            _ => false,
        }
    }

    /// Returns whether the pattern is an IP address for which the certificate is valid.
    fn is_address_of(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok(address) = self.0.parse::<std::net::IpAddr>() else { return false };
        let name = ServerName::IpAddress(address.into());
        webpki::EndEntityCert::try_from(certificate)
            .is_ok_and(|parsed| parsed.verify_is_valid_for_subject_name(&name).is_ok())
    }
}

/// Returns whether `pattern` matches the whole of `text`. `*` stands for any characters, and case
/// is ignored, as in DNS names.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.to_ascii_lowercase(), text.to_ascii_lowercase());
    let mut parts = pattern.split('*');
    let Some(first) = parts.next() else { return false };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, text) in [
            ("node1", "node1"),
            ("NODE*", "node1"),
            ("*", ""),
            ("*.example", "a.b.example"),
            ("a*b*c", "a-b-b-c"),
        ] {
            assert!(glob(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("node1", "node12"),
            ("node", "anode"),
            ("*.example", "example"),
            ("a*b*c", "acb"),
            ("a*a", "a"),
            ("", "a"),
        ] {
            assert!(!glob(pattern, text), "{pattern} {text}");
        }
    }
}
