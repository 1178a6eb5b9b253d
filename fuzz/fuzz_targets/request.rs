//! Reads any bytes as a RateLimitRequest, with the lean reader and with prost. `make fuzz` runs it for a minute.

#![no_main]

#[path = "../../src/server/rls/oracle.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(difference) = oracle::compare(bytes) {
        panic!("{difference}");
    }
});
