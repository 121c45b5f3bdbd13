//! Values of fields, after variables were resolved.

use super::partner::pattern_byte;
use std::collections::BTreeMap;
use uiw_cases::{Atom, Field, Relation, Test};

/// Value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Bytes(Vec<u8>),
    Codes([u8; 3]),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) if *number < 10 => write!(f, "{number}"),
            Self::Number(number) => write!(f, "{number} ({number:#x})"),
            Self::Bytes(bytes) if bytes.len() > 16 => {
                write!(f, "{} bytes {}..", bytes.len(), hex(&bytes[..16]))
            }
            Self::Bytes(bytes) => write!(f, "{} bytes {}", bytes.len(), hex(bytes)),
            Self::Codes([layer, etype, code]) => write!(f, "{layer:x}/{etype:x}/{code:#04x}"),
        }
    }
}

/// Formats bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Position in the pattern of an order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pattern {
    pub(super) seed: u32,
    /// Length of a message in bytes.
    pub(super) size: u32,
    message: u32,
    at: u32,
}

impl Pattern {
    pub(super) fn new(seed: u32, size: u32) -> Self {
        Self { seed, size, ..Self::default() }
    }

    fn take(&mut self, bytes: u64) -> Vec<u8> {
        (0..bytes)
            .map(|_| {
                if self.size > 0 && self.at >= self.size {
                    (self.message, self.at) = (self.message + 1, 0);
                }
                let byte = pattern_byte(self.seed, self.message, self.at);
                self.at += 1;
                byte
            })
            .collect()
    }
}

/// Variables, which `?NAME` and orders set.
#[derive(Debug, Default)]
pub(super) struct Variables {
    numbers: BTreeMap<String, u64>,
    pub(super) pattern: Pattern,
}

impl Variables {
    pub(super) fn set(&mut self, name: &str, number: u64) {
        self.numbers.insert(name.to_owned(), number);
    }

    /// # Errors
    /// Returns an error if a variable is not set.
    pub(super) fn resolve(&mut self, atom: &Atom) -> Result<Value, String> {
        Ok(match atom {
            Atom::Number(number) => Value::Number(*number),
            Atom::Variable(name, add) => {
                let number =
                    self.numbers.get(name).ok_or_else(|| format!("${name} has no value here"))?;
                Value::Number(number.wrapping_add_signed(*add))
            }
            Atom::Bytes(bytes) => Value::Bytes(bytes.clone()),
            Atom::Pattern(bytes) => Value::Bytes(self.pattern.take(*bytes)),
            Atom::Zeros(bytes) => Value::Bytes(vec![0; *bytes as usize]),
            Atom::Codes(codes) => Value::Codes(*codes),
        })
    }

    /// Tests a value. The inner result has a description of the demanded values if the test fails.
    ///
    /// # Errors
    /// Returns the errors of [`resolve`](Self::resolve).
    pub(super) fn test(
        &mut self,
        test: &Test,
        found: &Value,
    ) -> Result<Result<(), String>, String> {
        match test {
            Test::Any => Ok(Ok(())),
            Test::Bind(name) => {
                if let Value::Number(number) = found {
                    self.set(name, *number);
                }
                Ok(Ok(()))
            }
            Test::OneOf(values) => {
                let mut demanded = Vec::new();
                for (relation, atom) in values {
                    let value = self.resolve(atom)?;
                    if holds(*relation, found, &value) {
                        return Ok(Ok(()));
                    }
                    let sign = match relation {
                        Relation::Equal => "",
                        Relation::AtMost => "at most ",
                        Relation::AtLeast => "at least ",
                    };
                    demanded.push(format!("{sign}{value}"));
                }
                Ok(Err(demanded.join(" or ")))
            }
        }
    }
}

fn holds(relation: Relation, found: &Value, demanded: &Value) -> bool {
    match (relation, found, demanded) {
        (Relation::Equal, found, demanded) => found == demanded,
        (Relation::AtMost, Value::Number(found), Value::Number(most)) => found <= most,
        (Relation::AtLeast, Value::Number(found), Value::Number(least)) => found >= least,
        _ => false,
    }
}

/// Fields of a frame to send.
#[derive(Clone, Debug, Default)]
pub(super) struct Values(BTreeMap<String, Value>);

impl Values {
    /// # Errors
    /// Returns the errors of [`Variables::resolve`].
    pub(super) fn from_fields(fields: &[Field], variables: &mut Variables) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        for field in fields {
            if let Test::OneOf(of) = &field.test
                && let [(_, atom)] = of.as_slice()
            {
                values.insert(field.name.clone(), variables.resolve(atom)?);
            }
        }
        Ok(Self(values))
    }

    pub(super) fn set(&mut self, name: &str, number: u64) {
        self.0.insert(name.to_owned(), Value::Number(number));
    }

    pub(super) fn set_bytes(&mut self, name: &str, bytes: Vec<u8>) {
        self.0.insert(name.to_owned(), Value::Bytes(bytes));
    }

    pub(super) fn set_default(&mut self, name: &str, number: u64) {
        self.0.entry(name.to_owned()).or_insert(Value::Number(number));
    }

    pub(super) fn get(&self, name: &str) -> Option<u64> {
        match self.0.get(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn number(&self, name: &str, default: u64) -> u64 {
        self.get(name).unwrap_or(default)
    }

    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        match self.0.get(name)? {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn codes(&self, name: &str) -> Option<[u8; 3]> {
        match self.0.get(name)? {
            Value::Codes(codes) => Some(*codes),
            _ => None,
        }
    }

    pub(super) fn has(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.0.contains_key(*name))
    }
}
