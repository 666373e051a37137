//! Bytes from foreign sources, such as command names: none of their control characters reaches a client's terminal or a
//! file.

use std::borrow::Cow;
use std::io::Write;

/// True if a control character is at this place: an ASCII one, or the first byte of one from U+0080 to U+009F, which
/// terminals obey too.
pub fn is_control(text: &[u8], place: usize) -> bool {
    match text[place] {
        0xc2 => text.get(place + 1).is_some_and(|next| (0x80..=0x9f).contains(next)),
        byte => byte.is_ascii_control(),
    }
}

/// A name escaped by `name`, kept for repeated use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name(Vec<u8>);

impl Name {
    /// Escapes a name, see `name`.
    pub fn new(text: &[u8]) -> Name {
        Name(name(text).into_owned())
    }

    /// Returns its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// True if the name is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Escapes all bytes of a name that are not printable ASCII (`\x0a`), so that names stay distinct. pmproxy serves other
/// names in a form that makes Prometheus reject the whole scrape.
pub fn name(text: &[u8]) -> Cow<'_, [u8]> {
    match text.iter().all(is_printable) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(written_out(text, b"").into_bytes()),
    }
}

/// Escapes a name as [`name`] does, and writes its blanks out: libpcp compares names up to the first blank only, so that two names with
/// one first word would be one.
pub fn one_word(text: &[u8]) -> Cow<'_, [u8]> {
    match text.iter().all(|byte| is_printable(byte) && *byte != b' ') {
        true => Cow::Borrowed(text),
        false => Cow::Owned(written_out(text, b" ").into_bytes()),
    }
}

/// Escapes a name that the caller no longer needs, see [`one_word`].
pub fn into_one_word(text: Vec<u8>) -> Vec<u8> {
    match one_word(&text) {
        Cow::Owned(changed) => changed,
        Cow::Borrowed(_) => text,
    }
}

fn is_printable(byte: &u8) -> bool {
    (b' '..=b'~').contains(byte)
}

/// Escapes all bytes that are not printable ASCII, and those in `more` (`\x20`), as systemd does.
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

/// Escapes text for use as a part of an instance name: blanks, which end names for libpcp; commas, which separate names
/// for its tools; semicolons, which separate the lines of a stack; and backslashes.
pub fn word(text: &[u8]) -> String {
    written_out(text, b" ,;\\")
}

/// Escapes control characters: `
/// `, `\t`, `\r`, others as `\x1b`.
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

/// Returns a text as lines, the first with one beginning and the others with another, none wider than `width` bytes unless a word is.
pub fn wrapped(width: usize, first: &str, others: &str, text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::from(first));
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.len() + 1 + word.len() > width {
            lines += &line;
            lines.push('\n');
            line = others.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    lines + &line + "\n"
}

/// Returns a text with a capital letter at its beginning.
pub fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
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
