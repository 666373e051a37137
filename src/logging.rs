//! The log: a file in PCP's format (`libpcp/src/logutil.c`, `util.c`: `pmOpenLog`, `pmNotifyErr`), standard error, or syslog. Takes
//! records of the `log` crate and writes lines. If the log cannot be written to, only lines are lost.

use chrono::{DateTime, Local};
use log::{Level, LevelFilter, Log, Metadata, Record, SetLoggerError};
use nix::libc::{O_NOCTTY, O_NOFOLLOW, O_NONBLOCK};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The destination of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard error as pmcd or a shell has set it up.
    Stderr,
    /// A terminal on standard error, with the plain messages for a reader.
    Terminal,
    /// A new file; an existing one is kept as `NAME.prev`.
    File(PathBuf),
    /// The system log, facility `daemon`.
    Syslog,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Largest number of bytes logged in a minute: other processes cause lines, some of them without end.
const BUDGET: usize = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);

/// Opens the log and makes it the one of `log::info!` and the other macros. If the target cannot be opened, the reason is printed on
/// standard error, which is the log then. `program` is the name in each line.
///
/// If the target is a file, it also becomes standard error, as in `pmOpenLog`: output of libraries and panics is in the log too.
///
/// Must be called before [`crate::transport::connect`], which makes standard output the same as standard error.
pub fn start(program: &str, target: &Target, level: LevelFilter) -> Result<(), SetLoggerError> {
    let logger = LOGGER.get_or_init(|| {
        let sink = match target {
            Target::Stderr => Ok(Sink::Stderr),
            Target::Terminal => Ok(Sink::Terminal),
            Target::File(path) => match open(path) {
                Ok(file) => {
                    // Failing leaves standard error where it was; the file still gets every record.
                    let _ = nix::unistd::dup2_stderr(&file);
                    Ok(Sink::File(file))
                }
                Err(error) => Err(format!("cannot open log file {}: {error}", path.display())),
            },
            Target::Syslog => syslog(program).map_err(|error| format!("cannot reach syslog: {error}")),
        };
        let sink = sink.unwrap_or_else(|reason| {
            let _ = writeln!(io::stderr(), "{program}: {reason}; logging to standard error");
            Sink::Stderr
        });
        Logger::new(program, std::process::id(), sink)
    });
    log::set_logger(logger)?;
    log::set_max_level(level);
    logger.head(&host(), Local::now());
    Ok(())
}

/// Writes the last line of a log file, for an orderly exit; without that line the exit was another one.
pub fn finish() {
    if let Some(logger) = LOGGER.get() {
        logger.foot(Local::now());
    }
}

struct Logger {
    program: String,
    pid: u32,
    out: Mutex<Out>,
}

/// The destination of lines, with the bytes written and the lines left out since the beginning of a minute.
struct Out {
    sink: Sink,
    since: Instant,
    written: usize,
    left_out: u64,
}

enum Sink {
    Stderr,
    Terminal,
    File(File),
    Syslog(Box<syslog::Logger<syslog::LoggerBackend, syslog::Formatter3164>>),
}

impl Logger {
    fn new(program: &str, pid: u32, sink: Sink) -> Logger {
        let out = Out { sink, since: Instant::now(), written: 0, left_out: 0 };
        Logger { program: program.to_owned(), pid, out: Mutex::new(out) }
    }

    fn head(&self, host: &str, now: DateTime<Local>) {
        self.frame(&format!("Log for {} on {host} started {}\n\n", self.program, date(now)));
    }

    fn foot(&self, now: DateTime<Local>) {
        let mut out = self.out();
        self.tell_left_out(&mut out, now);
        drop(out);
        self.frame(&format!("\nLog finished {}\n", date(now)));
    }

    /// Writes a head or foot, which only a file has.
    fn frame(&self, text: &str) {
        if let Sink::File(file) = &mut self.out().sink {
            let _ = file.write_all(text.as_bytes());
        }
    }

    /// Writes a line, unless this minute has too many already. A terminal gets all lines: somebody reads them, and no disk fills.
    fn line(&self, level: Level, now: DateTime<Local>, text: &str) {
        let mut out = self.out();
        if !matches!(out.sink, Sink::Terminal) {
            if out.since.elapsed() >= MINUTE {
                self.tell_left_out(&mut out, now);
                (out.since, out.written) = (Instant::now(), 0);
            }
            if out.written + text.len() > BUDGET {
                out.left_out += 1;
                return;
            }
            out.written += text.len();
        }
        self.write(&mut out.sink, level, now, text);
    }

    fn tell_left_out(&self, out: &mut Out, now: DateTime<Local>) {
        let left_out = std::mem::take(&mut out.left_out);
        if left_out > 0 {
            let said = format!("{left_out} lines were left out: at most {} KB a minute are logged", BUDGET >> 10);
            self.write(&mut out.sink, Level::Warn, now, &said);
        }
    }

    fn write(&self, sink: &mut Sink, level: Level, now: DateTime<Local>, text: &str) {
        // Syslog stamps and names its lines itself.
        if let Sink::Syslog(log) = sink {
            let sent = match level {
                Level::Error => log.err(text),
                Level::Warn => log.warning(text),
                Level::Info => log.info(text),
                Level::Debug | Level::Trace => log.debug(text),
            };
            if sent.is_ok() {
                return;
            }
        }
        let name = match level {
            Level::Error => "Error",
            Level::Warn => "Warning",
            Level::Info => "Info",
            Level::Debug | Level::Trace => "Debug",
        };
        // One write for one record: lines of two threads do not mix, and a reader sees whole ones.
        let line = format!("[{}] {}({}) {name}: {text}\n", now.format("%a %b %e %H:%M:%S"), self.program, self.pid);
        let _ = match sink {
            Sink::Terminal => io::stderr().write_all(format!("{text}\n").as_bytes()),
            Sink::File(file) => file.write_all(line.as_bytes()),
            Sink::Stderr | Sink::Syslog(_) => io::stderr().write_all(line.as_bytes()),
        };
    }

    /// Locks the state. A thread that panicked while logging has left nothing inconsistent that matters here.
    fn out(&self) -> std::sync::MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.line(record.level(), Local::now(), &tame(&record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Files to which a path, or a link at it, may lead, since only root can change them.
const STREAMS: [&str; 3] = ["/dev/null", "/dev/stdout", "/dev/stderr"];

/// Opens a new file at `path`. It must not exist: the directory can belong to the `pcp` account, and a root process must not be made
/// to write elsewhere by a link in it. Anything other than a file or a link (a terminal, a named pipe) is neither renamed nor
/// replaced.
fn open(path: &Path) -> io::Result<File> {
    let target = fs::read_link(path).unwrap_or_default();
    if let Some(stream) = STREAMS.iter().find(|stream| [path, &target].contains(&Path::new(stream))) {
        return in_place(0).open(stream);
    }
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.is_file() && !meta.is_symlink() => return in_place(O_NOFOLLOW).open(path),
        Ok(_) => {
            let mut previous = path.as_os_str().to_owned();
            previous.push(".prev");
            fs::rename(path, previous)?;
        }
        Err(_) => {}
    }
    OpenOptions::new().append(true).create_new(true).open(path)
}

/// Returns the options for opening an existing special file: a named pipe without a reader blocks nothing, its lines are lost; a
/// terminal does not become the controlling one.
fn in_place(flags: i32) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).custom_flags(O_NONBLOCK | O_NOCTTY | flags);
    options
}

fn syslog(program: &str) -> Result<Sink, syslog::Error> {
    let formatter = syslog::Formatter3164 {
        facility: syslog::Facility::LOG_DAEMON,
        hostname: None,
        process: program.to_owned(),
        pid: std::process::id(),
    };
    Ok(Sink::Syslog(Box::new(syslog::unix(formatter)?)))
}

fn host() -> String {
    nix::unistd::gethostname().map_or_else(|_| "localhost".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Formats a time as `ctime(3)`, without the newline.
fn date(now: DateTime<Local>) -> String {
    now.format("%a %b %e %H:%M:%S %Y").to_string()
}

/// Makes a text safe for the log. It may contain arguments of traced processes, which strangers choose: further lines are indented,
/// so that they do not look like lines of the log, and control characters cannot command a terminal.
fn tame(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\n' => out.push_str("\n\t"),
            c if c.is_control() && c != '\t' => {
                let _ = write!(out, "{}", c.escape_default());
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeZone;

    fn at(day: u32) -> DateTime<Local> {
        Local.with_ymd_and_hms(2026, 11, day, 23, 35, 36).unwrap()
    }

    #[test]
    fn a_log_file_reads_as_one_of_pcp() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let logger = Logger::new("pmdacorebcc", 1283, Sink::File(open(&path).unwrap()));
        logger.head("there", at(20));
        logger.line(Level::Info, at(20), "main loop ended");
        logger.line(Level::Warn, at(5), "w");
        logger.line(Level::Error, at(5), "e");
        logger.line(Level::Trace, at(5), "t");
        logger.foot(at(20));
        let expected = "\
Log for pmdacorebcc on there started Fri Nov 20 23:35:36 2026

[Fri Nov 20 23:35:36] pmdacorebcc(1283) Info: main loop ended
[Thu Nov  5 23:35:36] pmdacorebcc(1283) Warning: w
[Thu Nov  5 23:35:36] pmdacorebcc(1283) Error: e
[Thu Nov  5 23:35:36] pmdacorebcc(1283) Debug: t

Log finished Fri Nov 20 23:35:36 2026
";
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn a_flood_is_bounded_by_the_minute_and_its_lines_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let logger = Logger::new("p", 1, Sink::File(open(&path).unwrap()));
        let text = "x".repeat(60_000);
        let left_out = || fs::read_to_string(&path).unwrap().matches(" lines were left out: ").count();
        (0..300).for_each(|_| logger.line(Level::Error, at(1), &text));
        assert!(fs::metadata(&path).unwrap().len() < 1_100_000 && left_out() == 0);
        logger.out().since = Instant::now().checked_sub(MINUTE).unwrap();
        logger.line(Level::Info, at(2), "after the flood");
        let written = fs::read_to_string(&path).unwrap();
        let last: Vec<&str> = written.lines().rev().take(2).collect();
        assert_eq!(
            last,
            [
                "[Mon Nov  2 23:35:36] p(1) Info: after the flood",
                "[Mon Nov  2 23:35:36] p(1) Warning: 283 lines were left out: at most 1024 KB a minute are logged"
            ]
        );
        (0..20).for_each(|_| logger.line(Level::Error, at(3), &text));
        logger.foot(at(3));
        assert_eq!(left_out(), 2, "an end tells of the minute that is not over");
    }

    #[test]
    fn the_file_before_is_kept_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        for text in ["1", "2", "3"] {
            open(&path).unwrap().write_all(text.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "3");
        assert_eq!(fs::read_to_string(dir.path().join("x.log.prev")).unwrap(), "2");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_link_left_in_the_directory_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("x.log"), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        open(&path).unwrap().write_all(b"log").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&path).unwrap(), "log");
    }

    #[test]
    fn devices_are_opened_in_place() {
        open(Path::new("/dev/null")).unwrap().write_all(b"x").unwrap();
        assert!(fs::symlink_metadata("/dev/null.prev").is_err());
    }

    #[test]
    fn a_link_to_no_file_is_not_followed_either() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        open(&path).unwrap().write_all(b"log").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "log");
        let null = dir.path().join("null.log");
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        open(&null).unwrap().write_all(b"log").unwrap();
        assert!(fs::symlink_metadata(&null).unwrap().is_symlink());
    }

    #[test]
    fn a_named_pipe_is_not_waited_for() {
        use std::io::Read;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(open(&path).is_err(), "nobody reads it");
        let mut reader = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(&path).unwrap();
        let mut log = open(&path).unwrap();
        log.write_all(b"log").unwrap();
        let mut text = [0; 8];
        assert_eq!(reader.read(&mut text).unwrap(), 3);
        while log.write_all(&[b'x'; 4096]).is_ok() {}
    }

    #[test]
    fn a_full_disk_is_survived() {
        let logger = Logger::new("p", 1, Sink::File(open(Path::new("/dev/full")).unwrap()));
        logger.line(Level::Info, at(1), "lost");
        logger.foot(at(1));
        assert!(matches!(logger.out().sink, Sink::File(_)));
    }

    #[test]
    fn foreign_text_cannot_forge_lines_or_command_the_terminal() {
        assert_eq!(tame("a\nb\x1b[2J\tc\r\n"), "a\n\tb\\u{1b}[2J\tc");
    }
}
