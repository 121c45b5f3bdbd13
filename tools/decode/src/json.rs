//! JSON for terminals.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter};
use std::io::{self, Write};

/// Writes `value` as one line, without a line break. Control characters and those that change the
/// direction of text are escaped in strings: names and texts of other users and hosts must not
/// drive a terminal.
///
/// # Errors
/// The errors of `out`.
pub fn write(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(out, SafeFormatter);
    Ok(value.serialize(&mut serializer)?)
}

/// Returns `value` as one line, like [`write`].
#[must_use]
pub fn line(value: &serde_json::Value) -> String {
    let mut out = Vec::new();
    // Neither a vector nor a value fails.
    let _ = write(&mut out, value);
    String::from_utf8(out).unwrap_or_default()
}

/// Compact JSON without unsafe characters in strings.
struct SafeFormatter;

impl Formatter for SafeFormatter {
    // The methods of the trait are those of `CompactFormatter`, except for this one.
    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, char)) = rest.char_indices().find(|(_, char)| is_unsafe(*char)) {
            CompactFormatter.write_string_fragment(writer, &rest[..at])?;
            write!(writer, "\\u{:04x}", u32::from(char))?;
            rest = &rest[at + char.len_utf8()..];
        }
        CompactFormatter.write_string_fragment(writer, rest)
    }
}

/// Returns whether a terminal obeys the character, or shows what follows it elsewhere. All of these
/// have four hexadecimal digits.
fn is_unsafe(char: char) -> bool {
    let turns = matches!(
        char,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    turns || char.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn control_and_direction_characters_escaped() {
        let text = "a\n\x1b\u{7f}\u{85}\u{9b}\u{61c}\u{200f}\u{202e}\u{2066}\u{e9}\u{5d0}\u{1f600}\"";
        let value = json!({text: [text, 1, null]});
        let line = line(&value);
        let escaped =
            r"a\n\u001b\u007f\u0085\u009b\u061c\u200f\u202e\u2066éא😀\u0022".replace(r"\u0022", "\\\"");
        assert_eq!(line, format!(r#"{{"{escaped}":["{escaped}",1,null]}}"#));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }
}
