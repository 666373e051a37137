//! Bytes that somebody else chose, such as command names: no control character of theirs reaches a client's terminal or a file.

use std::borrow::Cow;
use std::io::Write;

/// Whether a control character is at this place: ASCII's, or the first byte of one from U+0080 to U+009F, which terminals obey too.
pub fn is_control(text: &[u8], place: usize) -> bool {
    match text[place] {
        0xc2 => text.get(place + 1).is_some_and(|next| (0x80..=0x9f).contains(next)),
        byte => byte.is_ascii_control(),
    }
}

/// A name that [`name`] has looked at: for what is served again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name(Vec<u8>);

impl Name {
    /// The name without control characters.
    pub fn new(text: &[u8]) -> Name {
        Name(name(text).into_owned())
    }

    /// The bytes of it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A name without control characters: each byte of them is a `_`.
pub fn name(text: &[u8]) -> Cow<'_, [u8]> {
    replaced(text, |out, bytes| out.extend(bytes.iter().map(|_| b'_')))
}

/// Text with its control characters written out: `\n`, `\t`, `\r`, others as `\x1b`.
pub fn escaped(text: &[u8]) -> Cow<'_, [u8]> {
    replaced(text, |out, bytes| {
        for &byte in bytes {
            let written = match byte {
                b'\n' => out.write_all(b"\\n"),
                b'\t' => out.write_all(b"\\t"),
                b'\r' => out.write_all(b"\\r"),
                _ => write!(out, "\\x{byte:02x}"),
            };
            debug_assert!(written.is_ok(), "a Vec takes everything");
        }
    })
}

fn replaced(text: &[u8], write: impl Fn(&mut Vec<u8>, &[u8])) -> Cow<'_, [u8]> {
    // One pass without a branch tells of nearly every text that there is none.
    let may_have = text.iter().fold(false, |found, &byte| found | (byte < b' ') | (byte == 0x7f) | (byte == 0xc2));
    if !may_have || !(0..text.len()).any(|place| is_control(text, place)) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len() * 2);
    let mut place = 0;
    while place < text.len() {
        let is = is_control(text, place);
        let bytes = if is && text[place] == 0xc2 { 2 } else { 1 };
        let these = &text[place..place + bytes];
        if is {
            write(&mut out, these);
        } else {
            out.extend_from_slice(these);
        }
        place += bytes;
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_control_characters_and_nothing_else() {
        assert_eq!(*name(b"\n2147483647 9 x"), *b"_2147483647 9 x");
        assert_eq!(*name(b"a\x1b[2J\x7f"), *b"a_[2J_");
        assert_eq!(*name("c1 \u{9b}2J".as_bytes()), *b"c1 __2J");
        for harmless in ["", "bash", "Web Content", "[a] zork", "caf\u{e9}", "\u{c2}\u{a0}"] {
            assert!(
                matches!(name(harmless.as_bytes()), Cow::Borrowed(text) if text == harmless.as_bytes()),
                "{harmless}"
            );
        }
        assert_eq!(*name(b"cut \xc2"), *b"cut \xc2");
    }

    #[test]
    fn text_has_its_control_characters_written_out() {
        assert_eq!(*escaped(b"a\nb\tc\rd\x1b[2J\x7f"), *b"a\\nb\\tc\\rd\\x1b[2J\\x7f");
        assert_eq!(*escaped("\u{9b}2J \u{e9}".as_bytes()), *"\\xc2\\x9b2J \u{e9}".as_bytes());
        assert_eq!(*escaped(&escaped(b"a\nb")), *b"a\\nb");
    }
}
