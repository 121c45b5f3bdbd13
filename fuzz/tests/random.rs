//! Random inputs, which are the same in each run, like the first inputs of a fuzzer without a
//! corpus. `UIW_FUZZ_INPUTS` sets their number.

/// Generator of random bytes: SplitMix64 (Steele, Lea, Flood 2014).
struct RandomBytes(u64);

impl RandomBytes {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn input(&mut self) -> Vec<u8> {
        let len = self.next() % 2000;
        // Small numbers are more frequent, because most choices are small.
        let mask = [0xFF, 0xFF, 0x3F, 0x0F][(self.next() % 4) as usize];
        (0..len).map(|_| self.next() as u8 & mask).collect()
    }
}

fn run(target: fn(&[u8]), inputs: u64) {
    let set = std::env::var("UIW_FUZZ_INPUTS").ok().and_then(|count| count.parse().ok());
    for seed in 0..set.unwrap_or(inputs) {
        let input = RandomBytes(seed).input();
        if std::panic::catch_unwind(|| target(&input)).is_err() {
            panic!("seed {seed} fails");
        }
    }
}

#[test]
fn copies() {
    run(uiw_fuzz::copies::run, 100);
}
