//! Labels that an operator adds to every metric: EXTRA_TAGS.

use std::str::FromStr;

use crate::observe::label_name::LabelName;

/// `name:value,name2:value2`, as labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags(pub Vec<(String, String)>);

impl FromStr for Tags {
    type Err = String;

    fn from_str(text: &str) -> Result<Tags, String> {
        let mut tags: Vec<(String, String)> = Vec::new();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once(':') else {
                return Err(format!("'{pair}' has no ':': write name:value,name2:value2"));
            };
            if !is_label_name(name) {
                return Err(format!("'{name}' is not a label name: use letters, digits and _, not a digit first"));
            }
            if name.starts_with("__") {
                return Err(format!("the label '{name}' is Prometheus' own: choose a name without __ at its start"));
            }
            // Two labels of one name would make every scrape invalid.
            if LabelName::is_taken(name) || tags.iter().any(|(other, _)| other == name) {
                return Err(format!("the label '{name}' is there already: choose another name"));
            }
            tags.push((name.to_owned(), value.to_owned()));
        }
        Ok(Tags(tags))
    }
}

fn is_label_name(name: &str) -> bool {
    let is_first = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    let bytes = name.as_bytes();
    bytes.first().is_some_and(is_first) && bytes.iter().all(|byte| is_first(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_labels() {
        let read = |text: &str| text.parse::<Tags>();
        assert_eq!(read("a:b,c:d:e").unwrap().0, [("a".into(), "b".into()), ("c".into(), "d:e".into())]);
        assert_eq!(read("").unwrap().0, []);
        for nonsense in ["a", "a-b:c", "1:c", "__name__:x", "domain:x", "a:b,a:c", ":x"] {
            assert!(read(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_label_of_a_metric_can_not_be_set_twice() {
        let own = LabelName::ALL.iter().map(|name| name.word());
        for name in own.chain(["le"]) {
            let said = format!("a:b,{name}:x").parse::<Tags>().unwrap_err();
            assert!(said.contains(&format!("the label '{name}' is there already")), "{said}");
        }
    }
}
