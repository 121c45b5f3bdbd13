//! Factors with which a CRC is moved over bytes, as polynomials modulo the Castagnoli polynomial.
//! They are reflected: bit 31 is the coefficient of x^0.

/// Returns the product of two polynomials.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        if a >> bit & 1 == 1 {
            product ^= b;
        }
        b = b >> 1 ^ (0x82F6_3B78 & (b & 1).wrapping_neg());
    }
    product
}

/// Returns x^n.
#[must_use]
pub const fn power(mut n: usize) -> u32 {
    let (mut result, mut square) = (1 << 31, 1 << 30);
    while n > 0 {
        if n & 1 == 1 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        n >>= 1;
    }
    result
}

/// Returns the factors that move a vector of 16 bytes ahead by `bytes`: for its first and its second
/// half.
///
/// The low half of a vector holds the earlier bytes, so it is 64 bits further from the end.
/// Products of reflected polynomials are short of one factor x, which is taken off the exponents.
#[must_use]
pub const fn fold(bytes: usize) -> [i64; 2] {
    let late = (power(8 * bytes - 1) as i64) << 32;
    let early = (power(8 * bytes + 63) as i64) << 32;
    [early, late]
}
