#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uiw_fuzz::segments::run(data));
