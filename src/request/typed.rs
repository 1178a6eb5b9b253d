//! A descriptor as people type it: `key=value,key2=value2`. Every command and page that takes a descriptor reads it here.

use std::fmt;

use crate::request::DescriptorEntry;

/// The entries of a descriptor, in the order in which they were typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedDescriptor(Vec<(String, String)>);

impl TypedDescriptor {
    /// Reads `key=value,key2=value2`. The first `=` of an entry separates; a backslash goes before commas and backslashes in
    /// values.
    pub fn read(text: &str) -> Result<TypedDescriptor, String> {
        let mut parts = vec![String::new()];
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match (c, parts.last_mut()) {
                ('\\', Some(part)) => part.extend(chars.next()),
                (',', _) => parts.push(String::new()),
                (c, Some(part)) => part.push(c),
                (_, None) => {}
            }
        }
        let entry = |part: String| match part.split_once('=') {
            Some(("", _)) => Err(format!("'{part}' has an empty key: write key=value")),
            Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
            None => Err(format!("'{part}' has no '=': write key=value")),
        };
        Ok(TypedDescriptor(parts.into_iter().map(entry).collect::<Result<_, _>>()?))
    }

    pub fn entries(&self) -> impl Iterator<Item = DescriptorEntry<'_>> {
        self.0.iter().map(|(key, value)| DescriptorEntry { key, value })
    }
}

impl fmt::Display for TypedDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.0.iter().enumerate() {
            write!(f, "{}{key}={value}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_typed_as_pairs() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let read = |text| TypedDescriptor::read(text);
        assert_eq!(read("a=b,c=d=e").unwrap().0, [pair("a", "b"), pair("c", "d=e")]);
        assert_eq!(read("a=b\\,c\\\\").unwrap().0, [pair("a", "b,c\\")]);
        assert_eq!(read("a=").unwrap().0, [pair("a", "")]);
        assert!(read("a").unwrap_err().contains("write key=value"));
        assert!(read("a=b,,c=d").is_err());
        assert!(read("=b").is_err());
        assert_eq!(read("a=b,c=d=e").unwrap().to_string(), "a=b,c=d=e");
    }
}
