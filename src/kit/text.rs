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
    /// The name with its control characters written out.
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

/// A name with the bytes of its control characters written out (`\x0a`), so that it is not taken for another one.
pub fn name(text: &[u8]) -> Cow<'_, [u8]> {
    replaced(text, |out, bytes| bytes.iter().for_each(|byte| out.extend(format!("\\x{byte:02x}").bytes())))
}

/// Text in which some characters, and what is not UTF-8, are written out byte by byte (`\x20`), as systemd does it.
pub fn written_out(text: &[u8], is_written_out: impl Fn(char) -> bool) -> String {
    let mut out = String::new();
    let write = |out: &mut String, bytes: &[u8]| bytes.iter().for_each(|byte| *out += &format!("\\x{byte:02x}"));
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            match is_written_out(character) {
                true => write(&mut out, character.encode_utf8(&mut [0; 4]).as_bytes()),
                false => out.push(character),
            }
        }
        write(&mut out, chunk.invalid());
    }
    out
}

/// Text as a part of an instance name, not that of another text: no blank, which ends names for libpcp, no comma, at which its tools part
/// them, no semicolon, which parts the lines of a stack, and no control character. All of these are written out, and backslashes with them.
pub fn word(text: &[u8]) -> String {
    written_out(text, |c| c.is_whitespace() || c.is_control() || [',', ';', '\\'].contains(&c))
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
    fn names_have_control_characters_written_out_and_nothing_else() {
        assert_eq!(*name(b"\n2147483647 9 x"), *b"\\x0a2147483647 9 x");
        assert_eq!(*name(b"a\x1b[2J\x7f"), *b"a\\x1b[2J\\x7f");
        assert_eq!(*name("c1 \u{9b}2J".as_bytes()), *b"c1 \\xc2\\x9b2J");
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
