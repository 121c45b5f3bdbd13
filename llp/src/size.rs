//! Sizes in human-readable form.

/// Parses a number of bytes, such as `500`, `64K`, `4M` or `1G`. Returns `None` if the text is not
/// such a number or the number exceeds 2^64 - 1.
pub fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 1 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        (at, 'g' | 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes() {
        assert_eq!(
            [size("500"), size("64k"), size("1G")],
            [Some(500), Some(64 << 10), Some(1 << 30)]
        );
        assert_eq!([size(""), size("K"), size("-1"), size("1T"), size("99999999999G")], [None; 5]);
    }
}
