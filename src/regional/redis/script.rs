//! A Lua script and the name that Redis knows it by.

use std::sync::OnceLock;

/// Made at compile time: `static CALL: Script = Script::new(include_str!("scripts/origin.lua"));`.
#[derive(Debug)]
pub struct Script {
    source: &'static str,
    /// The SHA-1 of the source in hex, by which EVALSHA calls it.
    hash: OnceLock<String>,
}

impl Script {
    pub const fn new(source: &'static str) -> Script {
        Script { source, hash: OnceLock::new() }
    }

    pub fn source(&self) -> &'static str {
        self.source
    }

    pub fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(self.source).get_hash().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_called_by_its_digest() {
        static SCRIPT: Script = Script::new("return 1");
        assert_eq!(SCRIPT.hash(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(SCRIPT.source(), "return 1");
    }
}
