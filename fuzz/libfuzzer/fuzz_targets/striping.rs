#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uiw_fuzz::striping::run(data));
