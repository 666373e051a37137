//! Text of a configuration: definition of blanks, and its form in messages.

/// True for Python's `str.isspace`: Unicode white space and the four ASCII separators.
pub(super) fn blank(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Removes blanks at both ends, as Python's `str.strip`.
pub(super) fn trim(text: &str) -> &str {
    text.trim_matches(blank)
}

/// Formats a text of the file for messages: in backquotes, in one line, cut if it is long.
pub(super) fn shown(text: &str) -> String {
    const LIMIT: usize = 60;
    let mut chars = text.chars();
    let mut out = String::from("`");
    for c in chars.by_ref().take(LIMIT) {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out.push_str(if chars.next().is_some() { "...`" } else { "`" });
    out
}
