//! What a YAML scalar means: its text as written, and the number, boolean or null that it may stand for.

/// A scalar as written.
#[derive(Debug)]
pub(crate) struct Scalar {
    /// Without quotes and with escapes resolved, but otherwise as written: a number is not converted.
    pub text: String,
    /// Neither quoted, nor a block, nor tagged as a string: the text may mean a number, a boolean or null.
    pub plain: bool,
}

/// What the text of a plain scalar means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Meaning {
    Null,
    Bool(bool),
    Int(i128),
    /// `010` is eight to YAML 1.1 and ten to YAML 1.2.
    LeadingZero,
    Float(f64),
    Text,
}

impl Scalar {
    /// Reads numbers, booleans and null as YAML 1.2's core schema does, and `1_000` and `0b1` as YAML 1.1 does.
    pub(crate) fn meaning(&self) -> Meaning {
        if !self.plain {
            return Meaning::Text;
        }
        match self.text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => return Meaning::Null,
            "true" | "True" | "TRUE" => return Meaning::Bool(true),
            "false" | "False" | "FALSE" => return Meaning::Bool(false),
            _ => {}
        }
        match integer(&self.text) {
            Some(meaning) => meaning,
            None => float(&self.text).map_or(Meaning::Text, Meaning::Float),
        }
    }

    /// The text as an octal number, as YAML 1.1 reads digits behind a zero.
    pub(crate) fn octal(&self) -> Option<i128> {
        i128::from_str_radix(&self.text.replace('_', ""), 8).ok()
    }

    /// The value of a text that is a boolean to YAML 1.1 and a string to YAML 1.2 (`yes`, `off`, `n`); `None` for any
    /// other.
    pub(crate) fn legacy_bool(&self) -> Option<bool> {
        if !self.plain {
            return None;
        }
        match self.text.as_str() {
            "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
            "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
            _ => None,
        }
    }
}

fn integer(text: &str) -> Option<Meaning> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if !digits.as_bytes().first()?.is_ascii_digit() {
        return None;
    }
    let digits = digits.replace('_', "");
    let (radix, digits) = match digits.get(..2) {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        _ => (10, digits.as_str()),
    };
    if radix == 10 && digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit()) {
        return Some(Meaning::LeadingZero);
    }
    let value = i128::from_str_radix(digits, radix).ok()?;
    Some(Meaning::Int(if negative { -value } else { value }))
}

fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    match unsigned {
        ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN" => return Some(f64::NAN),
        _ => {}
    }
    let first = unsigned.bytes().next()?;
    let plausible = first.is_ascii_digit() || (first == b'.' && unsigned.len() > 1);
    if !plausible || !unsigned.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'-' | b'+')) {
        return None;
    }
    text.parse().ok()
}

/// Enough of a text to recognise it in a message.
pub(crate) fn excerpt(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut chars = text.chars().flat_map(char::escape_debug);
    let start: String = chars.by_ref().take(CHARS_MAX).collect();
    if chars.next().is_some() { format!("{start}…") } else { start }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(text: &str) -> Meaning {
        Scalar { text: text.into(), plain: true }.meaning()
    }

    #[test]
    fn plain_scalars_mean_what_yaml_says() {
        assert_eq!(scalar("~"), Meaning::Null);
        assert_eq!(scalar("true"), Meaning::Bool(true));
        assert_eq!(scalar("yes"), Meaning::Text);
        assert_eq!(scalar("1_000"), Meaning::Int(1000));
        assert_eq!(scalar("0x10"), Meaning::Int(16));
        assert_eq!(scalar("-5"), Meaning::Int(-5));
        assert_eq!(scalar("010"), Meaning::LeadingZero);
        assert_eq!(scalar("5.0"), Meaning::Float(5.0));
        assert_eq!(scalar("1e3"), Meaning::Float(1000.0));
        assert_eq!(scalar("1.2.3.4"), Meaning::Text);
        assert_eq!(scalar("15m"), Meaning::Text);
        assert_eq!(scalar("."), Meaning::Text);
        assert_eq!(scalar("0x"), Meaning::Text);
        assert_eq!(scalar("-"), Meaning::Text);
    }
}
