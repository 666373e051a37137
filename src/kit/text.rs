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
    /// The name as [`name`] has it.
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

/// A name in which what is no printable ASCII is written out byte by byte (`\x0a`), so that it is not taken for another one. pmproxy writes other
/// names in a way that Prometheus does not read, and with them the whole scrape.
pub fn name(text: &[u8]) -> Cow<'_, [u8]> {
    match text.iter().all(is_printable) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(written_out(text, b"").into_bytes()),
    }
}

/// The same with blanks written out: libpcp takes what precedes the first blank for the whole name, and of two names with one first word none
/// must depend on whether the other is there.
pub fn one_word(text: &[u8]) -> Cow<'_, [u8]> {
    match text.iter().all(|byte| is_printable(byte) && *byte != b' ') {
        true => Cow::Borrowed(text),
        false => Cow::Owned(written_out(text, b" ").into_bytes()),
    }
}

/// The same of a name that is not needed afterwards.
pub fn into_one_word(text: Vec<u8>) -> Vec<u8> {
    match one_word(&text) {
        Cow::Owned(changed) => changed,
        Cow::Borrowed(_) => text,
    }
}

fn is_printable(byte: &u8) -> bool {
    (b' '..=b'~').contains(byte)
}

/// Text in which what is no printable ASCII, and some characters more, are written out byte by byte (`\x20`), as systemd does it.
pub fn written_out(text: &[u8], more: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text {
        match is_printable(byte) && !more.contains(byte) {
            true => out.push(char::from(*byte)),
            false => out += &format!("\\x{byte:02x}"),
        }
    }
    out
}

/// Text as a part of an instance name, not that of another text: no blank, which ends names for libpcp, no comma, at which its tools part
/// them, and no semicolon, which parts the lines of a stack. These are written out, and backslashes with them.
pub fn word(text: &[u8]) -> String {
    written_out(text, b" ,;\\")
}

/// Text with its control characters written out: `\n`, `\t`, `\r`, others as `\x1b`.
pub fn escaped(text: &[u8]) -> Cow<'_, [u8]> {
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
        for &byte in &text[place..place + bytes] {
            let written = match byte {
                _ if !is => out.write_all(&[byte]),
                b'\n' => out.write_all(b"\\n"),
                b'\t' => out.write_all(b"\\t"),
                b'\r' => out.write_all(b"\\r"),
                _ => write!(out, "\\x{byte:02x}"),
            };
            debug_assert!(written.is_ok(), "a Vec takes everything");
        }
        place += bytes;
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printable_ascii_and_nothing_else_is_changed() {
        assert_eq!(*name(b"\n2147483647 9 x"), *b"\\x0a2147483647 9 x");
        assert_eq!(*name(b"a\x1b[2J\x7f"), *b"a\\x1b[2J\\x7f");
        assert_eq!(*name("caf\u{e9} \u{9b}2J".as_bytes()), *b"caf\\xc3\\xa9 \\xc2\\x9b2J");
        assert_eq!(*name(b"cut \xc2"), *b"cut \\xc2");
        for harmless in ["", "bash", "Web Content", "[a] zork", "a\\x2db"] {
            let is_same = matches!(name(harmless.as_bytes()), Cow::Borrowed(text) if text == harmless.as_bytes());
            assert!(is_same, "{harmless}");
        }
        assert_eq!(*one_word(b"Web Content\x1b"), *br"Web\x20Content\x1b");
    }

    #[test]
    fn text_has_its_control_characters_written_out() {
        assert_eq!(*escaped(b"a\nb\tc\rd\x1b[2J\x7f"), *b"a\\nb\\tc\\rd\\x1b[2J\\x7f");
        assert_eq!(*escaped("\u{9b}2J \u{e9}".as_bytes()), *"\\xc2\\x9b2J \u{e9}".as_bytes());
        assert_eq!(*escaped(&escaped(b"a\nb")), *b"a\\nb");
    }
}
