//! Text in man(7): escapes, fonts and lines of at most 80 bytes, as `mandoc -T lint` requires.

use crate::kit::wrapped;

/// Length of the longest line that is written, in bytes.
const WIDTH: usize = 78;

/// A manual page. In its texts `words between backquotes` are bold.
pub struct Page(String);

impl Page {
    /// Begins the page of a command or file in a section of the manual, with its date.
    pub fn new(name: &str, section: u8, date: &str) -> Page {
        Page(format!(".TH {} {section} \"{date}\" \"corebcc\" \"Performance Co-Pilot\"\n", name.to_uppercase()))
    }

    /// Begins a section.
    pub fn section(&mut self, title: &str) -> &mut Page {
        self.request(&format!(".SH {title}"))
    }

    /// Begins a subsection.
    pub fn subsection(&mut self, title: &str) -> &mut Page {
        self.request(&format!(".SS {title}"))
    }

    /// Adds the first paragraph of a section, or text that continues after a request.
    pub fn text(&mut self, text: &str) -> &mut Page {
        self.0.push_str(&filled(text));
        self
    }

    /// Adds a further paragraph.
    pub fn paragraph(&mut self, text: &str) -> &mut Page {
        self.request(".PP").text(text)
    }

    /// Adds a term and its explanation.
    pub fn tagged(&mut self, tag: &str, text: &str) -> &mut Page {
        self.request(".TP").text(tag).text(text)
    }

    /// Adds lines that are not filled.
    pub fn example(&mut self, lines: &[&str]) -> &mut Page {
        self.request(".PP\n.RS 4\n.nf");
        for line in lines {
            self.request(&guarded(&code(line)));
        }
        self.request(".fi\n.RE")
    }

    /// Adds a line of roff.
    pub fn request(&mut self, line: &str) -> &mut Page {
        self.0.push_str(line);
        self.0.push('\n');
        self
    }

    /// Returns the text of the page.
    pub fn finish(self) -> String {
        self.0
    }
}

/// Converts a text to lines of roff with fonts.
fn filled(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let marked: String =
        parts.map(|(i, part)| if i % 2 == 1 { format!("\\fB{}\\fP", code(part)) } else { prose(part) }).collect();
    wrapped(WIDTH, "", "", &marked).lines().map(|line| guarded(line) + "\n").collect()
}

/// Escapes the beginning of a line that would be a request.
fn guarded(line: &str) -> String {
    if line.starts_with(['.', '\'']) {
        format!("\\&{line}")
    } else {
        line.to_owned()
    }
}

/// Escapes a text in which only the backslash is special.
fn prose(text: &str) -> String {
    text.replace('\\', "\\e")
}

/// Escapes a text that users type: its characters stay as they are, even if a formatter prefers typographic ones.
fn code(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_keeps_its_characters() {
        assert_eq!(
            filled("see `--check 'x'` of a \\ and well-known"),
            "see \\fB\\-\\-check \\(aqx\\(aq\\fP of a \\e and well-known\n"
        );
    }

    #[test]
    fn no_line_is_long_or_a_request() {
        let text = filled(&"words .and 'dots ".repeat(40));
        assert!(text.lines().all(|line| line.len() <= 80 && !line.starts_with(['.', '\''])), "{text}");
        assert_eq!(text.replace("\\&", "").split_whitespace().count(), 120);
    }
}
