//! Layout of maps that outlive the agent: a hash of everything that gives their contents a meaning.

use std::fmt::Display;

/// Version, to be raised when the agent changes the meaning of counts without changing a struct.
const VERSION: u64 = 1;

/// A hash (FNV-1a) that is the same in every version of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout(pub u64);

impl Layout {
    /// Hashes bytes.
    pub fn of(bytes: &[u8]) -> Layout {
        Layout(0xcbf2_9ce4_8422_2325).with_bytes(bytes)
    }

    /// Returns the hash of the version, to be continued with [`Layout::with`].
    pub fn begin() -> Layout {
        Layout::of(&VERSION.to_le_bytes())
    }

    /// Adds a text. Two texts give another hash than their concatenation.
    #[must_use]
    pub fn with(self, text: impl Display) -> Layout {
        self.with_bytes(text.to_string().as_bytes()).with_bytes(&[0])
    }

    fn with_bytes(self, bytes: &[u8]) -> Layout {
        let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Layout(bytes.iter().fold(self.0, add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_the_same_in_each_version_and_parts_texts() {
        assert_eq!(Layout::of(b"a").0, 0xaf63_dc4c_8601_ec8c, "FNV-1a of `a`");
        assert_ne!(Layout::begin().with("ab").with("c"), Layout::begin().with("a").with("bc"));
    }
}
