//! Routines that copy out of shared memory and continue a CRC32C over the copied bytes, in one pass.
//!
//! They fold four vectors at a time (see the crate `uiw-crc32c`), and need VPCLMULQDQ: with AVX-512
//! the vectors have 64 bytes, with AVX2 32.

use uiw_crc32c::factors::fold;

/// Factors of a routine whose vectors have `PARTS` parts of 16 bytes: those that move a vector ahead
/// by four vectors and by one, and those that move each part to the end of its vector. `LEN` is
/// `PARTS + 2`.
const fn factors<const PARTS: usize, const LEN: usize>() -> [[i64; 2]; LEN] {
    let mut factors = [[0; 2]; LEN];
    factors[0] = fold(4 * 16 * PARTS);
    factors[1] = fold(16 * PARTS);
    // Those of the last part are zero, because it is not moved.
    let mut part = 1;
    while part < PARTS {
        factors[1 + part] = fold(16 * (PARTS - part));
        part += 1;
    }
    factors
}

/// Factors of `uiw_recover_load_crc_64`.
pub(super) static FACTORS_64: [[i64; 2]; 6] = factors::<4, 6>();
/// Factors of `uiw_recover_load_crc_32`.
pub(super) static FACTORS_32: [[i64; 2]; 4] = factors::<2, 4>();

/// Stores the exclusive-or of three vectors in the first one.
#[rustfmt::skip]
macro_rules! xor3 {
    (zmm $a:literal $b:literal $c:literal) => { concat!("vpternlogq zmm", $a, ", zmm", $b, ", zmm", $c, ", 0x96\n") };
    (ymm $a:literal $b:literal $c:literal) => {
        concat!("vpxor ymm", $a, ", ymm", $a, ", ymm", $b, "\nvpxor ymm", $a, ", ymm", $a, ", ymm", $c, "\n")
    };
}

/// Moves vector `$lane` ahead by the factors in vector 12, and adds vector `$next`; vector `$spare`
/// is overwritten.
#[rustfmt::skip]
macro_rules! fold {
    ($v:ident $lane:literal $spare:literal $next:literal) => {
        concat!(
            "vpclmulqdq ", stringify!($v), $spare, ", ", stringify!($v), $lane, ", ", stringify!($v), "12, 0x00\n",
            "vpclmulqdq ", stringify!($v), $lane, ", ", stringify!($v), $lane, ", ", stringify!($v), "12, 0x11\n",
            xor3!($v $lane $spare $next),
        )
    };
}

/// Loads vector `$to` from number `$at` of the source, and stores it.
#[rustfmt::skip]
macro_rules! copy {
    (zmm $to:literal $at:literal) => {
        concat!("vmovdqu64 zmm", $to, ", [rsi + 64 * ", $at, "]\nvmovdqu64 [rdi + 64 * ", $at, "], zmm", $to, "\n")
    };
    (ymm $to:literal $at:literal) => {
        concat!("vmovdqu ymm", $to, ", [rsi + 32 * ", $at, "]\nvmovdqu [rdi + 32 * ", $at, "], ymm", $to, "\n")
    };
}

/// Instructions that differ between the two sizes of vectors.
#[rustfmt::skip]
macro_rules! instruction {
    (broadcast zmm) => { "vbroadcasti32x4 zmm12, " };
    (broadcast ymm) => { "vbroadcasti128 ymm12, " };
    (load zmm) => { "vmovdqu64 zmm12, " };
    (load ymm) => { "vmovdqu ymm12, " };
    (begin zmm) => { "vpxorq zmm0, zmm0, zmm13\n" };
    (begin ymm) => { "vpxor ymm0, ymm0, ymm13\n" };
    (last zmm) => { "vextracti32x4 xmm4, zmm0, 3\n" };
    (last ymm) => { "vextracti128 xmm4, ymm0, 1\n" };
    (join zmm) => { "vpxorq zmm0, zmm0, zmm8\nvextracti64x4 ymm8, zmm0, 1\nvpxor ymm0, ymm0, ymm8\n" };
    (join ymm) => { "vpxor ymm0, ymm0, ymm8\n" };
}

/// Defines a routine with vectors of `$size` bytes, whose factors are the operand `$factors`. Words
/// are aligned on the side of the source, like in `uiw_recover_load`.
#[rustfmt::skip] // A routine reads line by line.
macro_rules! load_crc {
    ($name:literal, $v:ident, $size:literal, $factors:literal) => {
        concat!(
            ".globl ", $name, "\n.hidden ", $name, "\n.type ", $name, ",@function\n.p2align 5\n",
            $name, ":\n",
            "mov r11d, [rcx]\n",
            "test sil, 7\njnz 70f\n",
            "2: cmp rdx, 4 * ", $size, "\njb 6f\n",
            instruction!(broadcast $v), "[rip + ", $factors, "]\n",
            "vmovd xmm13, r11d\n",
            copy!($v "0" "0"), copy!($v "1" "1"), copy!($v "2" "2"), copy!($v "3" "3"),
            instruction!(begin $v),
            "3: add rsi, 4 * ", $size, "\nadd rdi, 4 * ", $size, "\nsub rdx, 4 * ", $size, "\n",
            "cmp rdx, 4 * ", $size, "\njb 4f\n",
            copy!($v "4" "0"), fold!($v "0" "8" "4"),
            copy!($v "5" "1"), fold!($v "1" "9" "5"),
            copy!($v "6" "2"), fold!($v "2" "10" "6"),
            copy!($v "7" "3"), fold!($v "3" "11" "7"),
            "jmp 3b\n",
            // Four vectors become one.
            "4: ", instruction!(broadcast $v), "[rip + ", $factors, " + 16]\n",
            fold!($v "0" "8" "1"), fold!($v "0" "8" "2"), fold!($v "0" "8" "3"),
            "jmp 41f\n",
            "40: ", copy!($v "4" "0"), fold!($v "0" "8" "4"),
            "add rsi, ", $size, "\nadd rdi, ", $size, "\nsub rdx, ", $size, "\n",
            "41: cmp rdx, ", $size, "\njae 40b\n",
            // The parts of the vector become one part, and this becomes the register.
            instruction!(load $v), "[rip + ", $factors, " + 32]\n",
            instruction!(last $v),
            "vpclmulqdq ", stringify!($v), "8, ", stringify!($v), "0, ", stringify!($v), "12, 0x00\n",
            "vpclmulqdq ", stringify!($v), "0, ", stringify!($v), "0, ", stringify!($v), "12, 0x11\n",
            instruction!(join $v),
            "vextracti128 xmm8, ymm0, 1\nvpxor xmm0, xmm0, xmm8\nvpxor xmm0, xmm0, xmm4\n",
            "vmovq r8, xmm0\nvpextrq r9, xmm0, 1\nvzeroupper\n",
            "xor r11d, r11d\ncrc32 r11, r8\ncrc32 r11, r9\n",
            "6: cmp rdx, 8\njb 62f\n",
            "61: mov rax, [rsi]\nmov [rdi], rax\ncrc32 r11, rax\n",
            "add rsi, 8\nadd rdi, 8\nsub rdx, 8\ncmp rdx, 8\njae 61b\n",
            "62: test dl, 4\njz 63f\nmov eax, [rsi]\nmov [rdi], eax\ncrc32 r11d, eax\nadd rsi, 4\nadd rdi, 4\n",
            "63: test dl, 2\njz 64f\nmovzx eax, word ptr [rsi]\nmov [rdi], ax\ncrc32 r11d, ax\nadd rsi, 2\nadd rdi, 2\n",
            "64: test dl, 1\njz 65f\nmovzx eax, byte ptr [rsi]\nmov [rdi], al\ncrc32 r11d, al\n",
            "65: mov [rcx], r11d\nxor eax, eax\nret\n",
            // The bytes before the first aligned word.
            "70: test rdx, rdx\njz 65b\n",
            "test sil, 1\njz 71f\nmovzx eax, byte ptr [rsi]\nmov [rdi], al\ncrc32 r11d, al\n",
            "inc rsi\ninc rdi\ndec rdx\n",
            "71: test sil, 2\njz 72f\ncmp rdx, 2\njb 64b\n",
            "movzx eax, word ptr [rsi]\nmov [rdi], ax\ncrc32 r11d, ax\nadd rsi, 2\nadd rdi, 2\nsub rdx, 2\n",
            "72: test sil, 4\njz 2b\ncmp rdx, 4\njb 63b\n",
            "mov eax, [rsi]\nmov [rdi], eax\ncrc32 r11d, eax\nadd rsi, 4\nadd rdi, 4\nsub rdx, 4\njmp 2b\n",
            ".size ", $name, ", . - ", $name, "\n",
        )
    };
}
