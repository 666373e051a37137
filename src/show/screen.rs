//! The terminal that standard output is: its size and its colours, and a screen of its own for what is refreshed.

use crate::cli::{print, PrintError};
use std::io::{stdout, IsTerminal};

/// What is known of standard output.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Columns and lines; `None` where it is no terminal.
    pub size: Option<(usize, usize)>,
    /// Whether it moves the cursor.
    pub moves: bool,
    /// Whether it has colours, and they are wanted: <https://no-color.org>.
    pub colours: bool,
}

impl Screen {
    /// As it is now: a terminal can change its size.
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

    /// Columns.
    pub fn width(&self) -> Option<usize> {
        self.size.map(|(width, _)| width)
    }
}

/// A screen besides the usual one, which comes back at the end of the value, however that comes.
pub struct OwnScreen;

impl OwnScreen {
    /// Begins it, without a cursor.
    pub fn begin() -> Result<OwnScreen, PrintError> {
        print("\x1b[?1049h\x1b[?25l")?;
        Ok(OwnScreen)
    }

    /// Shows as many lines as there is room for, in the place of those before. False if the reader has gone.
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
