//! JSON that is safe to print on a terminal.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter};
use std::io::{self, Write};

/// Writes `value` as one line, without a line break. Control characters and characters that change
/// the text direction are escaped in strings, because names and texts of other users and hosts must
/// not control a terminal.
///
/// # Errors
/// Returns the errors of `out`.
pub fn write(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(out, SafeFormatter);
    Ok(value.serialize(&mut serializer)?)
}

/// Returns `value` as one line, like [`write`].
#[must_use]
pub fn line(value: &serde_json::Value) -> String {
    let mut out = Vec::new();
    // Serializing a value to a vector cannot fail.
    let _ = write(&mut out, value);
    String::from_utf8(out).unwrap_or_default()
}

/// Compact JSON without unsafe characters in strings.
struct SafeFormatter;

impl Formatter for SafeFormatter {
    // All other methods of the trait have the defaults, like `CompactFormatter`.
    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, char)) = rest.char_indices().find(|(_, char)| is_unsafe(*char)) {
            CompactFormatter.write_string_fragment(writer, &rest[..at])?;
            write!(writer, "\\u{:04x}", u32::from(char))?;
            rest = &rest[at + char.len_utf8()..];
        }
        CompactFormatter.write_string_fragment(writer, rest)
    }
}

/// Returns whether a terminal would obey the character or change the text direction. All such
/// characters have four hexadecimal digits.
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
        let text =
            "a\n\x1b\u{7f}\u{85}\u{9b}\u{61c}\u{200f}\u{202e}\u{2066}\u{e9}\u{5d0}\u{1f600}\"";
        let value = json!({text: [text, 1, null]});
        let line = line(&value);
        let escaped = r"a\n\u001b\u007f\u0085\u009b\u061c\u200f\u202e\u2066éא😀\u0022"
            .replace(r"\u0022", "\\\"");
        assert_eq!(line, format!(r#"{{"{escaped}":["{escaped}",1,null]}}"#));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }
}
