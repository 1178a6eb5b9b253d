//! YAML that people read: written by hand where comments and order matter, by the crate where they do not.

use serde_json::Value;

/// A value as a list or map in YAML.
pub fn yaml(value: &[Value]) -> String {
    serde_yaml::to_string(value).unwrap_or_default()
}

/// A text on one line, whatever is in it: a JSON string is a YAML one.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let begins_plainly = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_lowercase().as_str());
    if begins_plainly && !is_word && text.chars().all(is_plain) {
        return text.to_owned();
    }
    Value::from(text).to_string()
}

/// Every line moved to the right.
pub fn indented(columns: usize, text: &str) -> String {
    let pad = " ".repeat(columns);
    text.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("{pad}{line}\n") }).collect()
}

/// A map as an element of a list.
pub fn element(map: &str) -> String {
    indented(2, map).replacen("  ", "- ", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_read_back_as_it_was() {
        for text in ["edge", "tidegate.svc", "no", "Null", "1", "1e3", "", "a: b", "#x", "\"", "a\nb", "ä", "::1", "-"]
        {
            let read: String = serde_yaml::from_str(&quoted(text)).expect("it is YAML");
            assert_eq!(read, text);
        }
        assert_eq!(quoted("edge"), "edge");
    }

    #[test]
    fn lines_are_moved_and_empty_ones_stay_empty() {
        assert_eq!(indented(2, "a:\n\n- b\n"), "  a:\n\n  - b\n");
        assert_eq!(element("a: 1\nb:\n  c: 2\n"), "- a: 1\n  b:\n    c: 2\n");
    }
}
