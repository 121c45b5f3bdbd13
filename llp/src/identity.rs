//! Identity of a peer that the stack has verified.

use std::fmt;

/// Verified identity of a peer. Only a stack that authenticates its peers provides it: see
/// [`crate::StreamExtensions::peer_identity`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerIdentity {
    /// A pinned raw public key (RFC 7250).
    PublicKey {
        /// Name under which the key is pinned; empty if it has none.
        name: String,
        /// Fingerprint of the SubjectPublicKeyInfo.
        fingerprint: Fingerprint,
        /// Text before the key in the file of pinned keys, or empty. The program defines its
        /// meaning.
        options: String,
    },
    /// An X.509 certificate that a trusted authority has signed.
    Certificate {
        /// DNS names and URIs, in the order of the certificate.
        names: Vec<String>,
        /// Fingerprint of the whole certificate.
        fingerprint: Fingerprint,
    },
    /// The other end of the connection is in this process.
    SameProcess,
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PublicKey { name, fingerprint, .. } if name.is_empty() => {
                write!(f, "key {fingerprint}")
            }
            Self::PublicKey { name, fingerprint, .. } => write!(f, "{name} ({fingerprint})"),
            Self::Certificate { names, fingerprint } if names.is_empty() => {
                write!(f, "certificate {fingerprint}")
            }
            Self::Certificate { names, fingerprint } => {
                write!(f, "{} ({fingerprint})", names.join(", "))
            }
            Self::SameProcess => f.write_str("this process"),
        }
    }
}

/// SHA-256 hash, displayed in the same way as OpenSSH displays hashes of keys: `SHA256:` and base64
/// without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        f.write_str("SHA256:")?;
        for group in self.0.chunks(3) {
            let bits = group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - group.len()));
            for digit in 0..=group.len() {
                let at = bits >> (18 - 6 * digit) & 63;
                write!(f, "{}", char::from(ALPHABET[at as usize]))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_base64_without_padding() {
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = (at * 37 + 250) as u8;
        }
        assert_eq!(Fingerprint([0; 32]).to_string(), format!("SHA256:{}", "A".repeat(43)));
        // `base64` of coreutils encodes the same bytes in this way.
        assert_eq!(
            Fingerprint(bytes).to_string(),
            "SHA256:+h9EaY6z2P0iR2yRttsAJUpvlLneAyhNcpe84QYrUHU"
        );
    }
}
