//! Secrets of TLS connections in the NSS key log format, as written by `UIW_KEYLOG`, browsers and
//! OpenSSL.

use std::collections::HashMap;
use std::path::Path;

/// End of a TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// Length in bytes of the random of a ClientHello, which identifies the lines of a connection.
pub(super) const RANDOM_LEN: usize = 32;
/// Maximum number of connections whose secrets from a capture are kept.
const MAX_CONNECTIONS: usize = 1 << 20;
/// Maximum length of a secret in bytes (SHA-512).
const MAX_SECRET: usize = 64;

/// Secrets by connection.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyLog(HashMap<[u8; RANDOM_LEN], Secrets>);

/// The records of a direction that a secret protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epoch {
    /// Records of the handshake, after the ClientHello or ServerHello.
    Handshake,
    /// Records of application data, until the first KeyUpdate.
    Application,
}

/// Secrets of one connection, by epoch and role.
#[derive(Clone, Debug, Default)]
pub(super) struct Secrets([[Option<Vec<u8>>; 2]; 2]);

/// Reason why a file is not a valid key log.
#[derive(Debug, thiserror::Error)]
pub enum KeyLogError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A line is not in key log format.
    #[error("line {line}: {why}")]
    Line {
        /// Line number, starting at 1.
        line: usize,
        /// Description of the error.
        why: &'static str,
    },
}

impl KeyLog {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or a line is not in key log format.
    pub(super) fn read(path: &Path) -> Result<Self, KeyLogError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    pub(super) fn parse(text: &str) -> Result<Self, KeyLogError> {
        let mut all: HashMap<_, Secrets> = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let wrong = |why| KeyLogError::Line { line: number + 1, why };
            let mut words = line.split_whitespace();
            let Some(label) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            let (epoch, role) = match label {
                "CLIENT_HANDSHAKE_TRAFFIC_SECRET" => (Epoch::Handshake, Role::Client),
                "SERVER_HANDSHAKE_TRAFFIC_SECRET" => (Epoch::Handshake, Role::Server),
                "CLIENT_TRAFFIC_SECRET_0" => (Epoch::Application, Role::Client),
                "SERVER_TRAFFIC_SECRET_0" => (Epoch::Application, Role::Server),
                // Other secrets, and TLS 1.2.
                _ => continue,
            };
            let (Some(random), Some(secret), None) = (words.next(), words.next(), words.next())
            else {
                return Err(wrong("expected a label, a random and a secret"));
            };
            let random = bytes(random).and_then(|random| random.try_into().ok());
            let random: [u8; RANDOM_LEN] =
                random.ok_or_else(|| wrong("the random is not 64 hexadecimal digits"))?;
            let secret = bytes(secret).filter(|secret| (1..=MAX_SECRET).contains(&secret.len()));
            let secret = secret.ok_or_else(|| wrong("the secret is not of hexadecimal digits"))?;
            all.entry(random).or_default().0[epoch as usize][role as usize] = Some(secret);
        }
        Ok(Self(all))
    }

    /// Adds secrets that the capture contains, up to the maximum number of connections.
    pub(super) fn merge(&mut self, other: Self) {
        for (random, secrets) in other.0 {
            if self.0.len() < MAX_CONNECTIONS || self.0.contains_key(&random) {
                let own = self.0.entry(random).or_default();
                for (own, new) in own.0.iter_mut().flatten().zip(secrets.0.into_iter().flatten()) {
                    *own = new.or(own.take());
                }
            }
        }
    }

    pub(super) fn secrets_of(&self, random: &[u8; RANDOM_LEN]) -> Option<&Secrets> {
        self.0.get(random)
    }
}

impl Secrets {
    pub(super) fn get(&self, epoch: Epoch, role: Role) -> Option<&[u8]> {
        self.0[epoch as usize][role as usize].as_deref()
    }
}

/// Decodes hexadecimal digits, two for each byte.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_found_by_random_and_role() {
        let random = "ab".repeat(32);
        let text = format!(
            "# SSL/TLS secrets\n\nCLIENT_RANDOM {random} 00\nCLIENT_TRAFFIC_SECRET_0 {random} 0102\n\
             SERVER_HANDSHAKE_TRAFFIC_SECRET {random} 03\nEXPORTER_SECRET {random} 04\n"
        );
        let log = KeyLog::parse(&text).unwrap();
        let secrets = log.secrets_of(&[0xAB; 32]).unwrap();
        assert_eq!(secrets.get(Epoch::Application, Role::Client), Some(&[1, 2][..]));
        assert_eq!(secrets.get(Epoch::Handshake, Role::Server), Some(&[3][..]));
        assert_eq!(
            (
                secrets.get(Epoch::Handshake, Role::Client),
                secrets.get(Epoch::Application, Role::Server)
            ),
            (None, None)
        );
        assert!(log.secrets_of(&[0; 32]).is_none());
    }

    #[test]
    fn wrong_line_named() {
        let of = |line: &str| KeyLog::parse(&format!("# one\n{line}\n")).unwrap_err().to_string();
        assert!(of("CLIENT_TRAFFIC_SECRET_0 ab cd").contains("line 2: the random"));
        assert!(of("CLIENT_TRAFFIC_SECRET_0").contains("line 2: expected"));
        let random = "00".repeat(32);
        assert!(of(&format!("SERVER_TRAFFIC_SECRET_0 {random} 0")).contains("line 2: the secret"));
        assert!(of(&format!("SERVER_TRAFFIC_SECRET_0 {random} é0")).contains("line 2: the secret"));
    }
}
