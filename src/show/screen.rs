//! Standard output as a terminal: its size and colours, and a separate screen for output that is refreshed.

use crate::cli::{print, PrintError};
use std::io::{stdout, IsTerminal};

/// Properties of standard output.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Columns and lines; `None` if it is not a terminal.
    pub size: Option<(usize, usize)>,
    /// True if it can move the cursor.
    pub moves: bool,
    /// True if it has colours and the user wants them: <https://no-color.org>.
    pub colours: bool,
}

impl Screen {
    /// Reads the properties again: a terminal can change its size.
    pub fn now() -> Screen {
        let is_terminal = stdout().is_terminal();
        let size = is_terminal.then(|| terminal_size::terminal_size_of(stdout())).flatten();
        let size = size.map(|(width, height)| (usize::from(width.0), usize::from(height.0)));
        // A pseudo-terminal that nobody told its size has none.
        let size = size.filter(|&(width, height)| width > 0 && height > 0).or(is_terminal.then_some((80, 24)));
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let moves = is_terminal && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
        Screen { size, moves, colours: moves && !is_set("NO_COLOR") }
    }

    /// Returns the number of columns.
    pub fn width(&self) -> Option<usize> {
        self.size.map(|(width, _)| width)
    }
}

/// The alternate screen of the terminal. The usual one comes back when this value is dropped, for whatever reason.
pub struct OwnScreen;

impl OwnScreen {
    /// Switches to the alternate screen, and hides the cursor.
    pub fn begin() -> Result<OwnScreen, PrintError> {
        print("\x1b[?1049h\x1b[?25l")?;
        Ok(OwnScreen)
    }

    /// Shows as many lines as fit, in place of those before. Returns false if the reader of standard output has gone.
    pub fn show(&self, text: &str, screen: Screen) -> Result<bool, PrintError> {
        let (_, height) = screen.size.unwrap_or((80, 24));
        let lines: Vec<String> = text.lines().take(height).map(|line| format!("{line}\x1b[K")).collect();
        print(&format!("\x1b[H{}\x1b[J", lines.join("\r\n")))
    }
}

impl Drop for OwnScreen {
    fn drop(&mut self) {
        let _ = print("\x1b[?25h\x1b[?1049l"); // nobody is left to be told
    }
}
