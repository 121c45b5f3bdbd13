//! TLS 1.3 (RFC 8446) below MPA: decrypts the records of a captured connection with the secrets of
//! a key log.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{self, KeyType, Prk};

use super::connection::{Side, opposite};
use super::keylog::{Epoch, KeyLog, RANDOM_LEN, Role};
use super::reassembly::Chunk;

/// Length of a record header: type, version and length.
const HEADER_LEN: usize = 5;
/// Maximum length of an encrypted record in bytes (section 5.2).
const MAX_RECORD: usize = (1 << 14) + 256;
/// Maximum number of bytes of incomplete handshake messages.
const MAX_HANDSHAKE: usize = 1 << 17;
/// Maximum number of bytes of records that wait for the Hello of the other direction.
const MAX_WAITING: usize = 1 << 20;
/// Maximum number of successive records that may be missing from the capture.
const MAX_MISSING: u64 = 4096;
/// Limit on the bytes deciphered in the search for the first record after missing bytes: the first
/// number, which is enough for one record with all its possible numbers, plus the second number for
/// each captured byte. Without a limit, bytes that only look like records could take unlimited
/// time.
const SEARCH: (u64, u64) = (MAX_MISSING * MAX_RECORD as u64, 64);
const NONCE_LEN: usize = 12;

const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const FINISHED: u8 = 20;
const KEY_UPDATE: u8 = 24;

/// Returns whether a stream begins with a handshake record of TLS.
pub(super) fn begins_tls(bytes: &[u8]) -> bool {
    bytes.first() == Some(&HANDSHAKE)
}

/// Cipher suite that protects the records of a connection.
#[derive(Clone, Copy, Debug)]
struct CipherSuite {
    hash: hkdf::Algorithm,
    cipher: &'static aead::Algorithm,
}

impl CipherSuite {
    /// Returns the suite with this number (section B.4).
    fn from_number(number: u16) -> Option<Self> {
        let (hash, cipher) = match number {
            0x1301 => (hkdf::HKDF_SHA256, &aead::AES_128_GCM),
            0x1302 => (hkdf::HKDF_SHA384, &aead::AES_256_GCM),
            0x1303 => (hkdf::HKDF_SHA256, &aead::CHACHA20_POLY1305),
            _ => return None,
        };
        Some(Self { hash, cipher })
    }

    /// Computes HKDF-Expand-Label (section 7.1) without a context.
    fn expand(self, secret: &[u8], label: &str, len: usize) -> Option<Vec<u8>> {
        struct SecretLen(usize);
        impl KeyType for SecretLen {
            fn len(&self) -> usize {
                self.0
            }
        }
        let label = format!("tls13 {label}");
        let info = [&(len as u16).to_be_bytes()[..], &[label.len() as u8], label.as_bytes(), &[0]]
            .concat();
        let mut out = vec![0; len];
        let secret = Prk::new_less_safe(self.hash, secret);
        secret.expand(&[&info], SecretLen(len)).and_then(|okm| okm.fill(&mut out)).ok()?;
        Some(out)
    }
}

/// Keys of one direction, and the number of its next record.
#[derive(Debug)]
struct RecordKeys {
    suite: CipherSuite,
    secret: Vec<u8>,
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    next: u64,
}

impl RecordKeys {
    fn new(suite: CipherSuite, secret: &[u8]) -> Option<Self> {
        let key = suite.expand(secret, "key", suite.cipher.key_len())?;
        let key = LessSafeKey::new(UnboundKey::new(suite.cipher, &key).ok()?);
        let iv = suite.expand(secret, "iv", NONCE_LEN)?.try_into().ok()?;
        Some(Self { suite, secret: secret.to_vec(), key, iv, next: 0 })
    }

    /// Returns the keys after a KeyUpdate (section 7.2).
    fn next_generation(&self) -> Option<Self> {
        let secret = self.suite.expand(&self.secret, "traffic upd", self.suite.hash.len())?;
        Self::new(self.suite, &secret)
    }

    /// Decrypts the record with this number. Returns its type and content.
    fn open(&self, record: &[u8], number: u64) -> Option<(u8, Vec<u8>)> {
        let (header, sealed) = record.split_at(HEADER_LEN);
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let inner = self.key.open_in_place(nonce, Aad::from(header), &mut sealed).ok()?;
        // Trailing zeros are padding, and the byte before them is the type (section 5.2).
        let end = inner.iter().rposition(|byte| *byte != 0)?;
        Some((inner[end], inner[..end].to_vec()))
    }
}

/// A TLS connection.
#[derive(Debug, Default)]
pub(super) struct TlsSession {
    client: Option<Side>,
    /// Random of the ClientHello.
    random: Option<[u8; RANDOM_LEN]>,
    suite: Option<CipherSuite>,
    directions: [DirectionKeys; 2],
}

/// State of one direction.
#[derive(Debug, Default)]
struct DirectionKeys {
    phase: TlsPhase,
    /// Bytes of records. Those before `taken` have been processed.
    records: Vec<u8>,
    taken: usize,
    /// Bytes of incomplete handshake messages.
    handshake: Vec<u8>,
    keys: Option<RecordKeys>,
    /// Number of bytes before `records` that are not in the capture.
    missing: u64,
    /// Number of bytes captured so far.
    captured: u64,
    /// Number of bytes deciphered in searches so far.
    searched: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TlsPhase {
    #[default]
    Clear,
    Handshake,
    Application,
    /// The direction cannot be followed.
    Ended,
}

impl TlsSession {
    /// Returns whether a direction cannot be decrypted, for example because its secrets are not in
    /// the key log or its records are not TLS 1.3.
    pub(super) fn is_locked(&self, side: Side) -> bool {
        self.directions[side].phase == TlsPhase::Ended
    }

    pub(super) fn is_any_locked(&self) -> bool {
        [0, 1].into_iter().any(|side| self.is_locked(side))
    }

    /// Returns whether records wait for the Hello of the other direction.
    pub(super) fn is_waiting(&self) -> bool {
        let waits =
            |keys: &DirectionKeys| keys.phase == TlsPhase::Clear && !keys.remaining().is_empty();
        !self.is_any_locked() && self.directions.iter().any(waits)
    }

    /// Takes the next piece of a direction's stream. Returns decrypted pieces of both directions.
    pub(super) fn decrypt(&mut self, side: Side, chunk: Chunk, log: &KeyLog) -> Vec<(Side, Chunk)> {
        let direction = &mut self.directions[side];
        match chunk {
            _ if direction.phase == TlsPhase::Ended => {}
            Chunk::Bytes(bytes) => {
                direction.captured += bytes.len() as u64;
                direction.records.drain(..std::mem::take(&mut direction.taken));
                direction.records.extend(bytes);
            }
            // The end of the handshake, where the keys change, cannot be found if bytes are
            // missing.
            Chunk::Missing(_) if direction.phase != TlsPhase::Application => direction.end(),
            Chunk::Missing(bytes) => {
                direction.missing += bytes + direction.remaining().len() as u64;
                direction.consume(direction.remaining().len());
            }
        }
        let mut out = Vec::new();
        for side in [side, opposite(side)] {
            self.process_records(side, log, &mut out);
        }
        out
    }

    /// Processes the complete records of a direction.
    fn process_records(&mut self, side: Side, log: &KeyLog, out: &mut Vec<(Side, Chunk)>) {
        loop {
            let direction = &mut self.directions[side];
            if direction.missing > 0 && !direction.resume(side, out) {
                return;
            }
            let Some(record) = direction.peek_record() else { return };
            let (kind, is_clear) = (record[0], direction.phase == TlsPhase::Clear);
            let known = match kind {
                CHANGE_CIPHER_SPEC => Some(()),
                HANDSHAKE if is_clear => {
                    direction.handshake.extend_from_slice(&record[HEADER_LEN..]);
                    direction.consume(record.len());
                    self.process_hellos(side);
                    continue;
                }
                // An alert.
                21 if is_clear => Some(()),
                APPLICATION_DATA if is_clear => match self.begin_encryption(side, log) {
                    FirstRecord::Done => continue,
                    FirstRecord::Later => return,
                    FirstRecord::Never => None,
                },
                APPLICATION_DATA => {
                    let number = direction.keys.as_ref().map_or(0, |keys| keys.next);
                    direction.keys.as_ref().and_then(|keys| keys.open(&record, number)).map(
                        |(kind, content)| {
                            self.process_content(side, kind, content, log, out);
                        },
                    )
                }
                _ => None,
            };
            let direction = &mut self.directions[side];
            match known {
                Some(()) => direction.consume(record.len()),
                None => return direction.end(),
            }
        }
    }

    /// Begins decryption at the first encrypted record of a direction.
    fn begin_encryption(&mut self, side: Side, log: &KeyLog) -> FirstRecord {
        let (Some(client), Some(suite)) = (self.client, self.suite) else {
            let waits = self.directions[side].remaining().len() < MAX_WAITING;
            return if waits && !self.is_any_locked() {
                FirstRecord::Later
            } else {
                FirstRecord::Never
            };
        };
        let secrets = self.random.and_then(|random| log.secrets_of(&random));
        let secret = secrets.and_then(|secrets| secrets.get(Epoch::Handshake, role(side, client)));
        let direction = &mut self.directions[side];
        direction.keys = secret.and_then(|secret| RecordKeys::new(suite, secret));
        direction.phase = TlsPhase::Handshake;
        direction.handshake.clear();
        if direction.keys.is_some() { FirstRecord::Done } else { FirstRecord::Never }
    }

    /// Processes the unencrypted handshake messages.
    fn process_hellos(&mut self, side: Side) {
        while let Some((kind, body)) = self.directions[side].take_handshake_message() {
            match kind {
                CLIENT_HELLO => {
                    let random = body.get(2..).and_then(|rest| rest.first_chunk::<RANDOM_LEN>());
                    (self.client, self.random) = (Some(side), random.copied());
                }
                SERVER_HELLO => {
                    // The cipher suite follows version, random and session. A HelloRetryRequest
                    // contains the same suite.
                    let session = body.get(2 + RANDOM_LEN).map_or(0, |len| usize::from(*len));
                    let suite = body
                        .get(2 + RANDOM_LEN + 1 + session..)
                        .and_then(|rest| rest.first_chunk::<2>());
                    self.suite = suite
                        .and_then(|number| CipherSuite::from_number(u16::from_be_bytes(*number)));
                    if self.suite.is_none() {
                        // This is not TLS 1.3.
                        return self.directions[side].end();
                    }
                }
                _ => {}
            }
        }
    }

    /// Processes the content of the next encrypted record.
    fn process_content(
        &mut self,
        side: Side,
        kind: u8,
        content: Vec<u8>,
        log: &KeyLog,
        out: &mut Vec<(Side, Chunk)>,
    ) {
        let direction = &mut self.directions[side];
        if let Some(keys) = &mut direction.keys {
            keys.next += 1;
        }
        match kind {
            APPLICATION_DATA if !content.is_empty() => out.push((side, Chunk::Bytes(content))),
            HANDSHAKE => {
                direction.handshake.extend(content);
                while let Some((kind, _)) = self.directions[side].take_handshake_message() {
                    let direction = &mut self.directions[side];
                    let keys = match (kind, direction.phase) {
                        (FINISHED, TlsPhase::Handshake) => {
                            direction.phase = TlsPhase::Application;
                            let role = role(side, self.client.unwrap_or_default());
                            let secrets = self.random.and_then(|random| log.secrets_of(&random));
                            let secret =
                                secrets.and_then(|secrets| secrets.get(Epoch::Application, role));
                            secret
                                .zip(self.suite)
                                .and_then(|(secret, suite)| RecordKeys::new(suite, secret))
                        }
                        (KEY_UPDATE, TlsPhase::Application) => {
                            direction.keys.as_ref().and_then(RecordKeys::next_generation)
                        }
                        _ => continue,
                    };
                    if keys.is_none() {
                        return direction.end();
                    }
                    direction.keys = keys;
                }
            }
            // Alerts are ignored: close_notify marks the end of a direction, which the FIN shows as
            // well.
            _ => {}
        }
    }
}

/// Result of [`TlsSession::begin_encryption`].
enum FirstRecord {
    Done,
    /// The Hello of the other direction has not come yet.
    Later,
    Never,
}

fn role(side: Side, client: Side) -> Role {
    if side == client { Role::Client } else { Role::Server }
}

impl DirectionKeys {
    /// Returns the bytes of records that have not been processed.
    fn remaining(&self) -> &[u8] {
        self.records.get(self.taken..).unwrap_or_default()
    }

    /// Marks further bytes as processed.
    fn consume(&mut self, bytes: usize) {
        self.taken = (self.taken + bytes).min(self.records.len());
    }

    fn end(&mut self) {
        *self = Self { phase: TlsPhase::Ended, ..Self::default() };
    }

    /// Returns a copy of the first record if it is complete. Ends the direction if the bytes are
    /// not a record.
    fn peek_record(&mut self) -> Option<Vec<u8>> {
        let header = self.remaining().first_chunk::<HEADER_LEN>()?;
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[1] != 3 || len > MAX_RECORD {
            self.end();
            return None;
        }
        self.remaining().get(..HEADER_LEN + len).map(<[u8]>::to_vec)
    }

    /// Takes the first handshake message if it is complete.
    fn take_handshake_message(&mut self) -> Option<(u8, Vec<u8>)> {
        if self.handshake.len() > MAX_HANDSHAKE {
            self.end();
        }
        let head = self.handshake.first_chunk::<4>()?;
        let (kind, len) = (head[0], u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize);
        let body = self.handshake.get(4..4 + len)?.to_vec();
        self.handshake.drain(..4 + len);
        Some((kind, body))
    }

    /// Finds the first record after missing bytes: bytes that look like a record and are authentic
    /// with one of its possible numbers. Returns whether it was found. A search that takes too long
    /// ends the direction.
    fn resume(&mut self, side: Side, out: &mut Vec<(Side, Chunk)>) -> bool {
        let Some(keys) = &mut self.keys else { return false };
        let rest = self.records.get(self.taken..).unwrap_or_default();
        let most_searched = SEARCH.0 + self.captured.saturating_mul(SEARCH.1);
        let mut at = 0;
        while let Some(header) = rest.get(at..).and_then(|rest| rest.first_chunk::<HEADER_LEN>()) {
            let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
            if header[..3] != [APPLICATION_DATA, 3, 3] || len > MAX_RECORD {
                at += 1;
                continue;
            }
            // This may be a record that is not complete yet.
            let Some(record) = rest.get(at..at + HEADER_LEN + len) else { break };
            let missing = self.missing + at as u64;
            let shortest = (HEADER_LEN + keys.suite.cipher.tag_len() + 1) as u64;
            let most = (missing / shortest + 1).min(MAX_MISSING);
            // Most often the missing records have the same length as this one.
            let likely = keys.next + (missing / record.len() as u64).min(most);
            let number =
                std::iter::once(likely).chain(keys.next..=keys.next + most).find(|number| {
                    self.searched += record.len() as u64;
                    self.searched > most_searched || keys.open(record, *number).is_some()
                });
            if self.searched > most_searched {
                self.end();
                return false;
            }
            let Some(number) = number else {
                at += 1;
                continue;
            };
            // Subtract the overhead of the missing records to get the missing bytes of content. The
            // result is exact if the records had no padding; otherwise it is too large.
            let beside = (number - keys.next) * shortest;
            out.push((side, Chunk::Missing(missing.saturating_sub(beside).max(1))));
            keys.next = number;
            self.consume(at);
            self.missing = 0;
            return true;
        }
        self.missing += at as u64;
        self.consume(at);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decoder;
    use crate::event::Event;
    use crate::flows::PacketTime;
    use crate::packet::TcpSegment;
    use rustls::crypto::aws_lc_rs as provider;
    use rustls::crypto::{CryptoProvider, SupportedKxGroup};
    use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
    use rustls::{
        ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
        SupportedCipherSuite,
    };
    use std::io::{Read as _, Write as _};
    use std::sync::{Arc, Mutex};

    /// A key log in memory.
    #[derive(Debug, Default)]
    struct KeyLogLines(Mutex<String>);

    impl rustls::KeyLog for KeyLogLines {
        fn log(&self, label: &str, random: &[u8], secret: &[u8]) {
            let digits =
                |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let line = format!("{label} {} {}\n", digits(random), digits(secret));
            self.0.lock().unwrap().push_str(&line);
        }
    }

    /// Creates two ends of rustls with this suite, and their key log. Each end has the named
    /// groups.
    fn ends(
        suite: SupportedCipherSuite,
        groups: [&[&'static dyn SupportedKxGroup]; 2],
    ) -> ([Connection; 2], Arc<KeyLogLines>) {
        let of = |groups: &[&'static dyn SupportedKxGroup]| {
            let usual = provider::default_provider();
            Arc::new(CryptoProvider {
                cipher_suites: vec![suite],
                kx_groups: groups.to_vec(),
                ..usual
            })
        };
        let made = rcgen::generate_simple_self_signed(["uiw.test".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let lines = Arc::new(KeyLogLines::default());
        let client = ClientConfig::builder_with_provider(of(groups[0]));
        let client = client.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
        let mut client = client.with_root_certificates(roots).with_no_client_auth();
        client.key_log = lines.clone();
        let server = ServerConfig::builder_with_provider(of(groups[1]));
        let server = server
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let server = server.with_single_cert(vec![made.cert.der().clone()], key.into()).unwrap();
        let name = ServerName::try_from("uiw.test").unwrap();
        let client = ClientConnection::new(Arc::new(client), name).unwrap();
        ([client.into(), ServerConnection::new(Arc::new(server)).unwrap().into()], lines)
    }

    /// Passes the pending bytes of `from` to the other end, and returns them.
    fn carry(ends: &mut [Connection; 2], from: Side) -> Vec<u8> {
        let mut bytes = Vec::new();
        while ends[from].wants_write() {
            ends[from].write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            ends[opposite(from)].read_tls(&mut rest).unwrap();
            ends[opposite(from)].process_new_packets().unwrap();
            // Unread plaintext would fill the buffer.
            let mut text = [0; 1 << 16];
            while ends[opposite(from)].reader().read(&mut text).is_ok_and(|len| len > 0) {}
        }
        bytes
    }

    /// Returns the plaintext that a session decrypts from pieces of this length, by direction.
    fn followed(
        wire: &[(Side, Vec<u8>)],
        lines: &KeyLogLines,
        piece: usize,
    ) -> ([Vec<u8>; 2], bool) {
        let log = KeyLog::parse(&lines.0.lock().unwrap()).unwrap();
        let mut session = TlsSession::default();
        let mut content = [Vec::new(), Vec::new()];
        for (side, bytes) in wire {
            for piece in bytes.chunks(piece) {
                for (side, chunk) in session.decrypt(*side, Chunk::Bytes(piece.to_vec()), &log) {
                    let Chunk::Bytes(bytes) = chunk else { panic!("nothing is missing") };
                    content[side].extend(bytes);
                }
            }
        }
        (content, session.is_any_locked())
    }

    /// Records with their senders.
    type Wire = Vec<(Side, Vec<u8>)>;

    /// Runs a conversation between the ends: the handshake, and text in both directions before and
    /// after key updates.
    fn conversation(ends: &mut [Connection; 2]) -> (Wire, [Vec<u8>; 2]) {
        let mut wire = Vec::new();
        while ends.iter().any(|end| end.is_handshaking()) {
            for side in [0, 1] {
                wire.push((side, carry(ends, side)));
            }
        }
        let mut said = [Vec::new(), Vec::new()];
        for round in 0..4u8 {
            for side in [0, 1] {
                let text = vec![round * 2 + side as u8; 40_000];
                ends[side].writer().write_all(&text).unwrap();
                said[side].extend(text);
                wire.push((side, carry(ends, side)));
            }
            // A key update of this end requests one of the other end.
            ends[usize::from(round % 2)].refresh_traffic_keys().unwrap();
        }
        (wire, said)
    }

    #[test]
    fn cipher_suites_decrypted_after_key_updates() {
        let groups: &[&'static dyn SupportedKxGroup] = &[provider::kx_group::X25519];
        for suite in provider::ALL_CIPHER_SUITES.iter().filter(|suite| suite.tls13().is_some()) {
            let (mut ends, lines) = ends(*suite, [groups, groups]);
            let (wire, said) = conversation(&mut ends);
            for piece in [1, 1000, usize::MAX] {
                assert!(
                    followed(&wire, &lines, piece) == (said.clone(), false),
                    "{suite:?}, pieces of {piece}"
                );
            }
        }
    }

    #[test]
    fn second_client_hello_followed() {
        // The server does not support the first group of the client, so it answers with a
        // HelloRetryRequest.
        let client: &[&'static dyn SupportedKxGroup] =
            &[provider::kx_group::X25519, provider::kx_group::SECP256R1];
        let server: &[&'static dyn SupportedKxGroup] = &[provider::kx_group::SECP256R1];
        let (mut ends, lines) =
            ends(provider::cipher_suite::TLS13_AES_128_GCM_SHA256, [client, server]);
        let (wire, said) = conversation(&mut ends);
        assert!(followed(&wire, &lines, 1000) == (said, false));
    }

    #[test]
    fn another_ciphertext_ends_the_direction() {
        let groups: &[&'static dyn SupportedKxGroup] = &[provider::kx_group::X25519];
        let (mut ends, lines) =
            ends(provider::cipher_suite::TLS13_AES_256_GCM_SHA384, [groups, groups]);
        let (mut wire, said) = conversation(&mut ends);
        let last = wire.last_mut().unwrap();
        last.1[100] ^= 1;
        let (content, is_locked) = followed(&wire, &lines, 1000);
        assert!(is_locked && content[0] == said[0] && said[1].starts_with(&content[1]));
        assert!(content[1].len() < said[1].len());
    }

    /// Without keys, the records behind missing bytes would be kept forever.
    #[test]
    fn missing_application_secret_ends_direction() {
        let groups: &[&'static dyn SupportedKxGroup] = &[provider::kx_group::X25519];
        let (mut ends, lines) =
            ends(provider::cipher_suite::TLS13_AES_128_GCM_SHA256, [groups, groups]);
        let mut wire = Vec::new();
        while ends.iter().any(|end| end.is_handshaking()) {
            for side in [0, 1] {
                wire.push((side, carry(&mut ends, side)));
            }
        }
        let text = lines.0.lock().unwrap();
        let handshake: Vec<_> = text.lines().filter(|line| line.contains("HANDSHAKE")).collect();
        let (log, mut session) =
            (KeyLog::parse(&handshake.join("\n")).unwrap(), TlsSession::default());
        for (side, bytes) in wire {
            session.decrypt(side, Chunk::Bytes(bytes), &log);
        }
        session.decrypt(0, Chunk::Missing(1), &log);
        session.decrypt(0, Chunk::Bytes(vec![0; 1 << 16]), &log);
        assert!(session.is_any_locked() && session.directions[0].records.is_empty());
    }

    /// Each header would require deciphering a whole record with thousands of sequence numbers.
    #[test]
    fn look_alikes_behind_gap_end_direction() {
        let groups: &[&'static dyn SupportedKxGroup] = &[provider::kx_group::X25519];
        let (mut ends, lines) =
            ends(provider::cipher_suite::TLS13_AES_128_GCM_SHA256, [groups, groups]);
        let (wire, _) = conversation(&mut ends);
        let log = KeyLog::parse(&lines.0.lock().unwrap()).unwrap();
        let mut session = TlsSession::default();
        for (side, bytes) in wire {
            session.decrypt(side, Chunk::Bytes(bytes), &log);
        }
        session.decrypt(0, Chunk::Missing(1 << 20), &log);
        let header = [APPLICATION_DATA, 3, 3, 0x40, 0x11];
        session.decrypt(0, Chunk::Bytes(header.repeat(MAX_RECORD / 5 + 40)), &log);
        assert!(session.is_any_locked());
    }

    #[test]
    fn record_behind_long_gap_found() {
        let groups: &[&'static dyn SupportedKxGroup] = &[provider::kx_group::X25519];
        let (mut ends, lines) =
            ends(provider::cipher_suite::TLS13_AES_128_GCM_SHA256, [groups, groups]);
        let (wire, _) = conversation(&mut ends);
        let log = KeyLog::parse(&lines.0.lock().unwrap()).unwrap();
        let mut session = TlsSession::default();
        for (side, bytes) in wire {
            session.decrypt(side, Chunk::Bytes(bytes), &log);
        }
        for (len, round) in [(5, 0), (1 << 14, 1), (1 << 14, 2), (1 << 14, 3)] {
            let mut missing = 0;
            for _ in 0..4000 - round {
                ends[0].writer().write_all(&[1; 1 << 14]).unwrap();
                missing += carry(&mut ends, 0).len() as u64;
            }
            session.decrypt(0, Chunk::Missing(missing), &log);
            ends[0].writer().write_all(&vec![2; len]).unwrap();
            let found = session.decrypt(0, Chunk::Bytes(carry(&mut ends, 0)), &log);
            assert!(found.last() == Some(&(0, Chunk::Bytes(vec![2; len]))), "round {round}");
        }
    }

    /// Decoder of one TCP connection.
    struct SegmentFeed {
        decoder: Decoder,
        next: [u32; 2],
        /// Directions that could not be decoded to their end.
        stopped: Vec<Side>,
    }

    impl SegmentFeed {
        fn new() -> Self {
            let mut feed = Self { decoder: Decoder::default(), next: [0; 2], stopped: Vec::new() };
            [0, 1].into_iter().for_each(|side| feed.push(side, &[]));
            feed
        }

        /// Adds the next segment of a direction, which is a SYN if it has no payload.
        fn push(&mut self, side: Side, payload: &[u8]) {
            let addresses = [1, 2].map(|host| ([10, 0, 0, host], 7).into());
            let segment = TcpSegment {
                from: addresses[side],
                to: addresses[opposite(side)],
                sequence: self.next[side],
                acknowledgment: None,
                syn: payload.is_empty(),
                fin: false,
                rst: false,
                payload,
                cut: 0,
            };
            self.decoder.flows.segment(&segment, PacketTime::default(), &mut |record| {
                if matches!(record.event, Event::NotFollowed { .. }) {
                    self.stopped.push(usize::from(record.from != addresses[0]));
                }
            });
            self.next[side] += payload.len().max(1) as u32;
        }
    }

    /// Secrets in a capture may follow the ClientHello.
    #[test]
    fn secrets_behind_hello_found() {
        let groups: &[&'static dyn SupportedKxGroup] = &[provider::kx_group::X25519];
        let (mut ends, lines) =
            ends(provider::cipher_suite::TLS13_AES_128_GCM_SHA256, [groups, groups]);
        let mut feed = SegmentFeed::new();
        feed.push(0, &carry(&mut ends, 0));
        let answer = carry(&mut ends, 1);
        feed.decoder.secrets(Some(lines.0.lock().unwrap().clone()));
        feed.push(1, &answer);
        ends[0].writer().write_all(b"MPA ID Req Frame").unwrap();
        feed.push(0, &carry(&mut ends, 0));
        let shared = &feed.decoder.flows.shared;
        assert_eq!((shared.connections, shared.locked), (1, 0));
        // Both directions are reported when they cannot be decrypted any more.
        for side in [0, 1] {
            feed.push(side, &[APPLICATION_DATA, 3, 3, 0, 1, 0]);
        }
        assert_eq!(feed.stopped, [0, 1]);
    }

    #[test]
    fn locked_connection_reported() {
        let groups: &[&'static dyn SupportedKxGroup] = &[provider::kx_group::X25519];
        let both = [0, 1].as_slice();
        for (captured, selection, expected) in
            [(both, None, 1), (&[1], None, 1), (both, Some(":7"), 1), (both, Some(":8"), 0)]
        {
            let (mut ends, _) =
                ends(provider::cipher_suite::TLS13_AES_128_GCM_SHA256, [groups, groups]);
            let mut feed = SegmentFeed::new();
            let shared = &mut feed.decoder.flows.shared;
            shared.selection = selection.map(|which| which.parse().unwrap()).into_iter().collect();
            // Another connection was decoded.
            shared.connections = 1;
            for side in [0, 1, 0] {
                let bytes = carry(&mut ends, side);
                if captured.contains(&side) {
                    feed.push(side, &bytes);
                }
            }
            let summary = feed.decoder.finish(&mut |_| {});
            let is_named = summary.to_string().contains("1 connection of TLS: name the file");
            assert_eq!(
                (summary.locked, is_named, summary.followed()),
                (expected, expected > 0, true)
            );
        }
    }
}
