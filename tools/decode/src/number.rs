//! Formatting of numbers.

/// Formats a number with a separator every three digits.
///
/// ```
/// assert_eq!(uiw_decode::number::grouped(1_234_567), "1,234,567");
/// ```
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with a noun, whose plural ends with `s`.
///
/// ```
/// use uiw_decode::number::number;
/// assert_eq!((number(1, "byte"), number(1000, "byte")), ("1 byte".to_owned(), "1,000 bytes".to_owned()));
/// ```
#[must_use]
pub fn number(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}
