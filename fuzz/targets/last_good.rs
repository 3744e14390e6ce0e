#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mainstay_sim::fuzz::run("last_good", bytes));
