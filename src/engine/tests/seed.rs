//! One seed for what chance decides in a test run: another one each time, so that runs find what one run would not, and
//! printed, so that a run that fails can be had again.

use std::sync::LazyLock;

const NAME: &str = "TIDEGATE_TEST_SEED";

static SEED: LazyLock<u64> = LazyLock::new(|| match std::env::var(NAME) {
    Ok(text) => text.parse().unwrap_or_else(|_| panic!("{NAME} is a whole number, not {text:?}")),
    Err(_) => rand::random(),
});

/// The seed of this run, the environment's if it has one. It is among what a test says, which is shown if the test fails.
pub(crate) fn seed() -> u64 {
    println!("{NAME}={} makes the same choices again", *SEED);
    *SEED
}
