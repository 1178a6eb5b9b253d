//! One seed for all that chance decides in a test run. It differs from run to run, so that many runs find what one would
//! not, and it is printed, so that a run that fails can be repeated.

use std::sync::LazyLock;

const NAME: &str = "TIDEGATE_TEST_SEED";

static SEED: LazyLock<u64> = LazyLock::new(|| match std::env::var(NAME) {
    Ok(text) => text.parse().unwrap_or_else(|_| panic!("{NAME} is a whole number, not {text:?}")),
    Err(_) => rand::random(),
});

/// The seed of this run, from the environment if that has one. It is part of a test's output, which is shown if the test
/// fails.
pub(crate) fn seed() -> u64 {
    println!("{NAME}={} makes the same choices again", *SEED);
    *SEED
}
