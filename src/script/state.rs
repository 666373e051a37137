//! The state of a script. The thread that reads its output writes it; the threads that serve fetches read it.

use super::output::{cut, rows, Line, Row, MAX_TEXT};
use super::source::{ScriptMap, Source, OUTPUT};
use crate::kit::RefreshError;
use crate::pcp::json_string;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Age at which rows of a map that is printed every second are no longer served.
const OLD: Duration = Duration::from_secs(10);

/// Number of skipped hooks whose names are kept.
const NAMED: usize = 3;
/// Largest name of a hook in bytes.
const MAX_HOOK: usize = 200;

/// The status of a script, in the words of PCP's bpftrace agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Not started, or ended without an error.
    #[default]
    Stopped,
    /// Being compiled; bpftrace attaches its probes next.
    Starting,
    /// Running with its probes attached.
    Started,
    /// Ended with an error.
    Error,
}

impl Status {
    /// The word that clients see, as in PCP's bpftrace agent.
    pub fn word(self) -> &'static str {
        match self {
            Status::Stopped => "stopped",
            Status::Starting => "starting",
            Status::Started => "started",
            Status::Error => "error",
        }
    }
}

/// The state of a script.
#[derive(Debug, Default)]
pub struct ScriptState {
    /// Its text.
    pub code: String,
    source: Source,
    /// Its status.
    pub status: Status,
    /// The process, while there is one.
    pub pid: Option<u32>,
    /// Exit code of the last process, or minus the number of the signal that ended it.
    pub exit_code: i32,
    /// Reason why it does not work: the standard error of bpftrace before its end, or the error of the start.
    pub error: String,
    /// Standard error of bpftrace since the start.
    pub messages: String,
    /// Reason why it does not run, in a sentence.
    pub why: String,
    /// The number of probes that bpftrace attaches, including those of its own; `None` before it says so.
    attaches: Option<u64>,
    /// The number of hooks that bpftrace could not attach to, and the names of the first ones.
    skipped: (u64, Vec<String>),
    /// The unfinished last line of the standard error.
    begun: String,
    /// Bytes of output that were read since the agent started.
    pub data_bytes: u64,
    /// Number of starts.
    pub starts: u64,
    /// Number of output lines that were not understood.
    pub unread_lines: u64,
    /// Number of events that bpftrace lost.
    pub lost_events: u64,
    /// The last text of `printf` and the like.
    pub output: String,
    rows: HashMap<String, (Instant, Vec<Row>)>,
    /// Time of the last fetch of its values, or of the start.
    read_at: Option<Instant>,
    /// The expiry after which it was ended because nobody fetched its values.
    expired: Option<Duration>,
    /// True if its values were fetched after that.
    is_wanted: bool,
}

impl ScriptState {
    /// Makes the state of a script that has not been started.
    pub fn new(code: String, source: Source) -> ScriptState {
        ScriptState { code, source, ..ScriptState::default() }
    }

    /// Returns the state of its module, and a sentence about it.
    pub fn summary(&self) -> (&'static str, String) {
        match self.status {
            Status::Started => match (self.failure(), self.skipped.0) {
                (Some(failure), _) => ("failed", failure),
                (None, 0) => ("running", format!("bpftrace has attached {} probes", self.probes())),
                (None, skipped) => (
                    "running",
                    format!("bpftrace has attached {} probes, and {skipped} not: {}", self.probes(), self.unattached()),
                ),
            },
            Status::Starting if self.attaches.is_some() => ("postponed", "bpftrace attaches the probes".into()),
            Status::Starting => ("postponed", "bpftrace compiles the script".into()),
            Status::Stopped if self.expired.is_some() => ("postponed", self.asleep()),
            Status::Stopped if self.starts == 0 => ("postponed", "bpftrace is about to be started".into()),
            Status::Stopped => ("running", "the script has ended by itself, its values stay".into()),
            Status::Error => ("failed", self.why.clone()),
        }
    }

    /// Returns the script as JSON for clients of PCP's bpftrace agent, in that agent's words; without the text if it would be longer
    /// than `most` bytes.
    pub fn json(&self, name: &str, most: usize) -> String {
        let variables = self.source.maps.iter().map(|map| {
            let (name, kind) = (json_string(&map.name), json_string(map.metric_type()));
            format!("{name}:{{\"single\":{},\"metrictype\":{kind}}}", map.is_single())
        });
        let output = self.source.prints.then(|| format!("\"{OUTPUT}\":{{\"single\":true,\"metrictype\":\"output\"}}"));
        let variables: Vec<String> = variables.chain(output).collect();
        let code = Some(json_string(&self.code)).filter(|code| code.len() <= most);
        format!(
            "{{\"script_id\":{},\"state\":{{\"status\":\"{}\"}},\"variables\":{{{}}},\"code\":{}}}",
            json_string(name),
            self.status.word(),
            variables.join(","),
            code.as_deref().unwrap_or("null"),
        )
    }

    /// Returns the program that bpftrace runs.
    pub fn program(&self) -> String {
        self.source.program(&self.code)
    }

    /// Returns the number of attached probes of the script.
    pub fn probes(&self) -> u64 {
        let own = u64::from(self.source.adds_probe());
        self.attaches.map_or(0, |probes| probes.saturating_sub(own).saturating_sub(self.skipped.0))
    }

    /// Returns the reason why a script that runs counts nothing: it is attached to none of its hooks.
    pub fn failure(&self) -> Option<String> {
        let is_attached = self.skipped.0 == 0 || self.probes() > self.source.clocks;
        let is_started = self.status == Status::Started;
        (is_started && !is_attached).then(|| {
            let (hooks, names) = (self.skipped.0, self.unattached());
            format!("attached to none of its {hooks} hooks: {names}: this kernel lacks them, or cannot trace them")
        })
    }

    fn unattached(&self) -> String {
        let (skipped, names) = &self.skipped;
        let others = skipped.saturating_sub(NAMED as u64);
        let others = if others > 0 { format!(" and {others} others") } else { String::new() };
        format!("{}{others}", names.join(", "))
    }

    /// True if bpftrace attaches probes and has not shown yet that it is done.
    pub fn attaches(&self) -> bool {
        self.status == Status::Starting && self.attaches.is_some()
    }

    /// Marks the probes as attached, if bpftrace attaches them.
    pub fn settle(&mut self) {
        if self.attaches() {
            self.status = Status::Started;
        }
    }

    /// Notes that its values are fetched. Returns true if it has to be started for that.
    pub fn read(&mut self, now: Instant) -> bool {
        self.read_at = Some(now);
        self.is_wanted = self.expired.is_some();
        self.is_wanted
    }

    /// True, once, if it has to be started because its values were fetched after it had expired.
    pub fn take_wanted(&mut self) -> bool {
        std::mem::take(&mut self.is_wanted)
    }

    /// Returns the time at which it is ended unless its values are fetched. As in PCP's bpftrace agent, a script with a name of its
    /// own (`// name:`) never expires.
    pub fn expires_at(&self, expiry: Duration) -> Option<Instant> {
        self.pid?;
        self.read_at.filter(|_| self.source.name.is_none()).map(|at| at + expiry)
    }

    /// Notes that its process was ended because nobody fetched its values.
    pub fn expire(&mut self, expiry: Duration) {
        self.status = Status::Stopped;
        self.pid = None;
        self.expired = Some(expiry);
        self.forget();
    }

    fn asleep(&self) -> String {
        let seconds = self.expired.map_or(0, |expiry| expiry.as_secs());
        format!("ended, since nobody fetched its values for {seconds} s; whoever does has it started again")
    }

    /// Returns the rows of a map as they were last printed, or the reason why there are none.
    pub fn rows(&self, map: &ScriptMap, now: Instant) -> Result<&[Row], RefreshError> {
        let Some((printed, rows)) = self.rows.get(&map.name) else {
            if self.expired.is_some() {
                return Err(RefreshError(self.asleep()));
            }
            let reason = format!("{} was not printed yet: the script is {}", map.name, self.status.word());
            return Err(RefreshError(reason));
        };
        let is_old = now.saturating_duration_since(*printed) > OLD;
        match is_old && self.status == Status::Started && self.source.adds_print(map) {
            true => Err(RefreshError(format!("{} was last printed more than {} s ago", map.name, OLD.as_secs()))),
            false => Ok(rows),
        }
    }

    /// Notes that a process was started.
    pub fn start(&mut self, pid: u32) {
        self.status = Status::Starting;
        self.pid = Some(pid);
        self.starts += 1;
        self.read_at = Some(Instant::now());
        (self.expired, self.is_wanted) = (None, false);
        self.forget();
    }

    /// Forgets the output of an earlier process.
    fn forget(&mut self) {
        self.forget_probes();
        self.exit_code = 0;
        self.error.clear();
        self.messages.clear();
        self.output.clear();
        self.rows.clear();
    }

    fn forget_probes(&mut self) {
        (self.attaches, self.skipped) = (None, (0, Vec::new()));
        self.begun.clear();
    }

    /// Notes that its process could not be started, or that its work panicked.
    pub fn refuse(&mut self, error: String) {
        self.status = Status::Error;
        (self.expired, self.is_wanted) = (None, false);
        self.exit_code = -1;
        self.pid = None;
        self.error = cut(error, MAX_TEXT);
        self.why = self.error.trim().to_owned();
    }

    /// Notes that its process ended, with the reason if the agent or an error ended it. After an end without an error the values
    /// stay.
    pub fn end(&mut self, exit_code: i32, why: Option<String>) {
        let in_order = exit_code == 0 && why.is_none();
        self.status = if in_order { Status::Stopped } else { Status::Error };
        self.pid = None;
        self.forget_probes();
        self.exit_code = exit_code;
        if in_order {
            return;
        }
        self.rows.clear();
        if let Some(why) = why {
            self.error.clone_from(&why);
            self.why = why;
            return;
        }
        let how = match exit_code {
            code if code < 0 => format!("bpftrace was ended by signal {}", -code),
            code => format!("bpftrace ended with exit code {code}"),
        };
        self.why = last_error(&self.messages).map_or_else(|| how.clone(), |last| format!("{how}: {last}"));
        self.error = if self.messages.is_empty() { how } else { self.messages.clone() };
    }

    /// Reads a line of the standard output.
    pub fn line(&mut self, line: &[u8]) {
        // It prints once all is attached: the line before says that it begins to attach.
        self.settle();
        match Line::parse(line) {
            Some(Line::Attached(probes)) => self.attaches = Some(probes),
            Some(Line::Maps(maps)) => {
                for map in &self.source.maps {
                    if let Some(value) = maps.get(&map.name) {
                        self.rows.insert(map.name.clone(), (Instant::now(), rows(map, value)));
                    }
                }
            }
            Some(Line::Text(text)) => {
                let output = std::mem::take(&mut self.output) + &text;
                self.output = last(match self.source.retained_lines {
                    Some(lines) => with_header(&output, lines),
                    None => output,
                });
            }
            Some(Line::Lost(events)) => self.lost_events = self.lost_events.saturating_add(events),
            Some(Line::Other) => {}
            None if line.trim_ascii().is_empty() => {}
            None => self.unread_lines += 1,
        }
    }

    /// Reads bytes of the standard error, and replaces bpftrace's name for the script, `stdin`, by that of its file.
    pub fn complain(&mut self, bytes: &[u8], file: &str) {
        let text = String::from_utf8_lossy(bytes).replace("stdin:", &format!("{file}:"));
        let lines = std::mem::take(&mut self.begun) + &text;
        let (whole, begun) = lines.rsplit_once('\n').unwrap_or(("", &lines));
        for hook in whole.lines().filter_map(skipped) {
            let (count, names) = &mut self.skipped;
            *count += 1;
            if names.len() < NAMED {
                names.push(cut(hook.to_owned(), MAX_HOOK));
            }
        }
        self.begun = cut(begun.to_owned(), MAX_TEXT);
        self.messages = cut(std::mem::take(&mut self.messages) + &text, MAX_TEXT);
    }
}

/// Returns the hook in a warning of bpftrace that it could not attach a probe.
fn skipped(line: &str) -> Option<&str> {
    line.trim().strip_prefix("WARNING: could not attach probe ")?.strip_suffix(", skipping.")
}

/// Returns the last line of an error, without the lines of the script that bpftrace shows below it.
fn last_error(error: &str) -> Option<&str> {
    let line = |is: &dyn Fn(&str) -> bool| error.lines().map(str::trim).rfind(|line| !line.is_empty() && is(line));
    line(&|line| line.contains("ERROR") || line.contains("error: ")).or_else(|| line(&|_| true))
}

/// Returns the first line of a text and the last `lines` ones.
fn with_header(text: &str, lines: usize) -> String {
    let count = text.split_inclusive('\n').count();
    let is_kept = |number: usize| number == 0 || number + lines >= count;
    text.split_inclusive('\n').enumerate().filter(|(number, _)| is_kept(*number)).map(|(_, line)| line).collect()
}

/// Returns the end of a text, from the beginning of a line if there is one.
fn last(text: String) -> String {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let begin = (text.len() - MAX_TEXT..).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    let end = &text[begin..];
    end.split_once('\n').map_or(end, |(_, lines)| lines).to_owned()
}

/// A script's state that threads share.
#[derive(Clone, Debug)]
pub struct SharedState(Arc<Mutex<ScriptState>>);

impl SharedState {
    /// Makes a state that can be shared.
    pub fn new(state: ScriptState) -> SharedState {
        SharedState(Arc::new(Mutex::new(state)))
    }

    /// True if both are the same state.
    pub fn is(&self, other: &SharedState) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Locks the state, also after a panic of another thread, which leaves at most a half-written row.
    pub fn get(&self) -> MutexGuard<'_, ScriptState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::output::Cell;

    fn state(code: &str) -> ScriptState {
        ScriptState::new(code.into(), Source::parse(code))
    }

    #[test]
    fn a_script_is_started_once_bpftrace_says_that_it_attaches() {
        let mut state = state("BEGIN { @a = count(); }");
        assert_eq!(state.status, Status::Stopped);
        state.start(17);
        assert_eq!((state.status, state.pid), (Status::Starting, Some(17)));
        state.line(br#"{"type": "attached_probes", "data": {"probes": 2}}"#);
        assert_eq!((state.status, state.summary().0), (Status::Starting, "postponed"), "it begins to attach");
        state.complain(b"ERROR: Unknown error -1: couldn't set RLIMIT_MEMLOCK\n", "x.bt");
        state.line(br#"{"type": "map", "data": {"@a": 3, "@b": 4}}"#);
        assert_eq!(state.summary(), ("running", "bpftrace has attached 1 probes".into()));
        assert_eq!((state.status, state.probes()), (Status::Started, 1), "the probe that prints is not its own");
        assert!(state.error.is_empty() && state.messages.contains("RLIMIT_MEMLOCK"));
        let map = |name: &str| ScriptMap { name: name.into(), ..state.source.maps[0].clone() };
        let (a, b, now) = (map("@a"), map("@b"), Instant::now());
        assert_eq!(state.rows(&a, now).unwrap()[0].cell, Cell::Count(3));
        assert!(state.rows(&b, now).is_err());
        assert!(state
            .rows(&a, now + 2 * OLD)
            .is_err_and(|error| error.0.contains("@a was last printed more than 10 s ago")));
        state.line(b"nonsense\xff");
        state.line(b" ");
        state.line(br#"{"type": "lost_events", "data": {"events": 9}}"#);
        assert_eq!((state.unread_lines, state.lost_events), (1, 9));
        state.end(0, None);
        assert_eq!((state.status, state.pid, state.rows(&a, now + 2 * OLD).is_ok()), (Status::Stopped, None, true));
    }

    #[test]
    fn a_script_that_nobody_reads_expires() {
        let expiry = Duration::from_secs(60);
        let mut named = state("// name: n\nBEGIN { @a = 1; }");
        named.start(17);
        assert_eq!(named.expires_at(expiry), None);

        let mut state = state("BEGIN { @a = 1; }");
        assert!(state.expires_at(expiry).is_none(), "it does not run");
        state.start(17);
        state.line(br#"{"type": "map", "data": {"@a": 1}}"#);
        let now = Instant::now();
        assert!(state.expires_at(expiry).is_some_and(|at| at <= now + expiry));
        assert!(!state.read(now) && !state.take_wanted(), "it runs");
        assert_eq!(state.expires_at(expiry), Some(now + expiry));
        state.expire(expiry);
        let sentence = "ended, since nobody fetched its values for 60 s; whoever does has it started again";
        assert_eq!((state.summary(), state.pid), (("postponed", sentence.into()), None));
        let map = state.source.maps[0].clone();
        assert_eq!(state.rows(&map, now).unwrap_err().0, sentence);
        assert!(!state.take_wanted());
        assert!(state.read(now) && state.take_wanted() && !state.take_wanted());
        state.start(18);
        assert_eq!((state.summary().0, state.expires_at(expiry).is_some()), ("postponed", true));
        state.end(0, None);
        assert_eq!((state.summary().0, state.expires_at(expiry)), ("running", None), "it has ended by itself");
    }

    #[test]
    fn a_script_is_json_with_the_words_of_pcps_agent() {
        let state = state("BEGIN { @a[1] = hist(2); @ = \"x\"; printf(\"y\"); }");
        let json: serde_json::Value = serde_json::from_str(&state.json("x", 1000)).unwrap();
        assert_eq!((json["script_id"].as_str(), json["code"].as_str()), (Some("x"), Some(&*state.code)));
        assert_eq!(json["state"]["status"], "stopped");
        let variable = |name: &str| json["variables"][name].to_string();
        assert_eq!(variable("@a"), r#"{"metrictype":"histogram","single":false}"#);
        assert_eq!(variable("@"), r#"{"metrictype":"","single":true}"#);
        assert_eq!(variable("@output"), r#"{"metrictype":"output","single":true}"#);
        let json: serde_json::Value = serde_json::from_str(&state.json("x", 10)).unwrap();
        assert!(json["code"].is_null());
    }

    #[test]
    fn a_script_without_a_hook_has_failed() {
        let code = "BEGIN { } kprobe:a, kprobe:b { @ = count(); } interval:s:1 { print(@); } END { }";
        let started = |complaints: &[u8]| {
            let mut state = state(code);
            state.start(17);
            state.line(br#"{"type": "attached_probes", "data": {"probes": 6}}"#);
            complaints.chunks(7).for_each(|bytes| state.complain(bytes, "x.bt"));
            state.line(b"");
            state
        };
        let one = "WARNING: could not attach probe kprobe:a, skipping.\n";
        let both = format!("create_probe_event: no\n{one}{}", one.replace(":a", ":b"));
        let state = started(both.as_bytes());
        let failure =
            "attached to none of its 2 hooks: kprobe:a, kprobe:b: this kernel lacks them, or cannot trace them";
        assert_eq!((state.summary(), state.failure()), (("failed", failure.into()), Some(failure.into())));
        let state = started(one.as_bytes());
        let sentence = "bpftrace has attached 4 probes, and 1 not: kprobe:a";
        assert_eq!((state.summary(), state.failure()), (("running", sentence.into()), None));
        assert_eq!(started(b"").summary().1, "bpftrace has attached 5 probes");
    }

    #[test]
    fn a_header_that_is_missing_is_the_error() {
        let said = "ERROR: Unknown error -1: couldn't set RLIMIT_MEMLOCK\ndefinitions.h:4:10: fatal error: 'net/sock.h' file not found\n";
        assert_eq!(last_error(said), Some("definitions.h:4:10: fatal error: 'net/sock.h' file not found"));
    }

    #[test]
    fn an_error_has_the_words_of_bpftrace() {
        let mut state = state("BEGIN { @a = nosuch; }");
        state.start(17);
        state.complain(b"stdin:1:14-20: ERROR: Unknown identifier: 'nosuch'\n", "x.bt");
        state.end(1, None);
        assert_eq!((state.status, state.exit_code), (Status::Error, 1));
        assert_eq!(state.error, "x.bt:1:14-20: ERROR: Unknown identifier: 'nosuch'\n");
        assert_eq!(
            state.summary().1,
            "bpftrace ended with exit code 1: x.bt:1:14-20: ERROR: Unknown identifier: 'nosuch'"
        );
        state.start(18);
        assert_eq!(state.error, "");
        state.end(-9, None);
        assert_eq!(state.error, "bpftrace was ended by signal 9");
        state.complain(&[b'x'; 10 * MAX_TEXT], "x.bt");
        assert_eq!(state.messages.len(), MAX_TEXT);
    }

    #[test]
    fn a_table_keeps_its_first_line() {
        let mut state = state("// table-retain-lines: 2\nBEGIN { printf(\"x\"); }");
        let mut print = |text: &str| {
            state.line(format!("{{\"type\": \"printf\", \"data\": \"{text}\\n\"}}").as_bytes());
            state.output.clone()
        };
        assert_eq!(print("pid"), "pid\n");
        assert_eq!((print("1"), print("2")), ("pid\n1\n".into(), "pid\n1\n2\n".into()));
        assert_eq!((print("3"), print("4")), ("pid\n2\n3\n".into(), "pid\n3\n4\n".into()));
    }

    #[test]
    fn the_end_of_the_output_is_kept() {
        let mut state = state("BEGIN { printf(\"x\"); }");
        for number in 0..2000 {
            state.line(format!("{{\"type\": \"printf\", \"data\": \"line {number}\\n\"}}").as_bytes());
        }
        assert!(state.output.len() <= MAX_TEXT && state.output.starts_with("line "), "{}", state.output);
        assert!(state.output.ends_with("line 1999\n"));
    }
}
