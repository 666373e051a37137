//! Help texts in PCP's format (newhelp(1)), compiled in: `@ NAME one line`, then the full text up to the next `@`.

use std::collections::HashMap;

/// Help texts by metric name (`bcc.disk.all.latency`) or instance domain (`BCC.0`).
pub struct Help {
    entries: HashMap<&'static str, (&'static str, &'static str)>,
}

impl Help {
    /// Parses a help file. Lines before the first entry are comments.
    pub fn parse(source: &'static str) -> Help {
        let mut entries = HashMap::new();
        let mut rest = source;
        while let Some(start) = find_entry(rest) {
            let entry = &rest[start + 1..];
            let end = find_entry(entry).unwrap_or(entry.len());
            let (head, body) = entry[..end].split_once('\n').unwrap_or((&entry[..end], ""));
            let (name, oneline) = head.trim().split_once(char::is_whitespace).unwrap_or((head.trim(), ""));
            entries.insert(name, (oneline.trim(), body.trim()));
            rest = &entry[end..];
        }
        Help { entries }
    }

    /// Returns the one-line or the full text; `None` if there is none.
    pub fn get(&self, name: &str, full: bool) -> Option<&'static str> {
        let (oneline, text) = self.entries.get(name)?;
        Some(if full { text } else { oneline }).filter(|text| !text.is_empty()).copied()
    }

    /// Returns the names with an entry.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.entries.keys().copied()
    }
}

/// Returns the position of the next `@` at the beginning of a line.
fn find_entry(text: &str) -> Option<usize> {
    if text.starts_with('@') {
        return Some(0);
    }
    text.find("\n@").map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_where_the_next_begins() {
        let help = Help::parse("# comment\n@ bcc.a one line\nFull text.\n\nMore.\n\n@ BCC.0 a domain\n");
        assert_eq!(help.get("bcc.a", false), Some("one line"));
        assert_eq!(help.get("bcc.a", true), Some("Full text.\n\nMore."));
        assert_eq!(help.get("BCC.0", false), Some("a domain"));
        assert_eq!(help.get("BCC.0", true), None);
        assert_eq!(help.get("bcc.b", false), None);
    }
}
