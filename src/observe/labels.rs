//! The labels of a rule's counters: domain, and the first two levels of the rule under the reference's names.

use std::sync::Arc;

/// How much of a value a label shows.
const VALUE_BYTES_MAX: usize = 128;

/// One set of labels, with names as envoyproxy/ratelimit writes them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels {
    /// The name of the rule's domain.
    pub domain: Arc<str>,
    /// The first level of the rule; `override` for limits that requests bring along.
    pub key1: Arc<str>,
    /// The second level; `None` for a rule of one level. Deeper levels have no label.
    pub key2: Option<Arc<str>>,
}

impl Labels {
    pub fn new(domain: &str, steps: &[Arc<str>]) -> Labels {
        let step = |index: usize| steps.get(index).map(|step| sanitized(step).into());
        Labels { domain: sanitized(domain).into(), key1: step(0).unwrap_or_default(), key2: step(1) }
    }
}

/// The start of a value that a label has room for.
pub(crate) fn clipped(value: &str) -> &str {
    &value[..value.floor_char_boundary(VALUE_BYTES_MAX)]
}

/// As envoyproxy/ratelimit writes names, so that dashboards find them: `:` and `|` become `_`, and so do the dots of an
/// IPv4 address.
fn sanitized(name: &str) -> String {
    let mut text: Vec<char> = name.chars().map(|c| if matches!(c, ':' | '|') { '_' } else { c }).collect();
    let mut at = 0;
    while at < text.len() {
        match ipv4_dots(&text, at) {
            Some(dots) => {
                dots.iter().for_each(|dot| text[*dot] = '_');
                at = dots[2];
            }
            None => at += 1,
        }
    }
    text.into_iter().collect()
}

/// The dots of the address that starts here, if one does.
fn ipv4_dots(text: &[char], start: usize) -> Option<[usize; 3]> {
    let is_digit = |at: usize| text.get(at).is_some_and(char::is_ascii_digit);
    if start > 0 && is_digit(start - 1) {
        return None;
    }
    let number_end = |from: usize| {
        let digits = (from..from + 4).take_while(|digit| is_digit(*digit)).count();
        (1..=3).contains(&digits).then_some(from + digits)
    };
    let mut dots = [0; 3];
    let mut at = start;
    for dot in &mut dots {
        *dot = number_end(at).filter(|end| text.get(*end) == Some(&'.'))?;
        at = *dot + 1;
    }
    number_end(at).map(|_| dots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_the_reference_writes_them() {
        for (name, written) in [
            ("a:b|c", "a_b_c"),
            ("remote_address_10.0.0.1", "remote_address_10_0_0_1"),
            ("10.0.0.1.2", "10_0_0_1.2"),
            ("1.2.3", "1.2.3"),
            ("1234.1.1.1", "1234.1.1.1"),
            ("v1.2 and 127.0.0.1, 1.1.1.1", "v1.2 and 127_0_0_1, 1_1_1_1"),
            ("api.example.com", "api.example.com"),
        ] {
            assert_eq!(sanitized(name), written);
        }
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        assert_eq!(clipped(&"ü".repeat(100)).len(), 128);
        assert_eq!(clipped(&format!("x{}", "ü".repeat(100))).len(), 127);
        assert_eq!(clipped("short"), "short");
    }
}
