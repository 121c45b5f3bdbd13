//! Encoding of message fields: big-endian numbers, and bytes preceded by their length. A decoder
//! never reads beyond its input, and must consume the whole message.

/// Reason why bytes are not a valid message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends inside a field.
    #[error("the message ends inside of {0}")]
    Short(&'static str),
    /// Bytes follow the last field.
    #[error("{0} bytes follow behind the message")]
    Trailing(usize),
    /// A field has an invalid value.
    #[error("{what} is {value}")]
    Value {
        /// Name of the field.
        what: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// A name or path violates a rule.
    #[error(transparent)]
    Name(#[from] super::names::NameError),
}

impl WireError {
    /// Creates the error for a field with an illegal value.
    pub(crate) fn value(what: &'static str, value: impl Into<u64>) -> Self {
        Self::Value { what, value: value.into() }
    }
}

pub type Result<T> = std::result::Result<T, WireError>;

/// Encoder that appends fields.
#[derive(Debug, Default)]
pub struct Encoder(pub Vec<u8>);

impl Encoder {
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    /// Appends bytes preceded by their length. More than 65,535 bytes are truncated, which can only
    /// happen to texts.
    pub fn counted(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.u16(len).fixed(&bytes[..len.into()])
    }
}

/// Decoder that takes fields from the front.
#[derive(Clone, Debug)]
pub struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len).ok_or(WireError::Short(what))?;
        self.0 = rest;
        Ok(front)
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    pub fn u8(&mut self, what: &'static str) -> Result<u8> {
        Ok(u8::from_be_bytes(self.array(what)?))
    }

    pub fn u16(&mut self, what: &'static str) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array(what)?))
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array(what)?))
    }

    pub fn flag(&mut self, what: &'static str) -> Result<bool> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(WireError::value(what, other)),
        }
    }

    pub fn counted(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let len = self.u16(what)?;
        self.take(len.into(), what)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn finish(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::Trailing(self.0.len())) }
    }
}
