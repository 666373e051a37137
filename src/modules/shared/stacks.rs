//! Stacks with names that are looked up while their processes live, and what is counted by them on demand, between the stores of
//! `start` and `stop`: as the tree of `proc.profile`, and with an instance for each stack, named as flame graphs need it.

use crate::bpf::types::prof_sample;
use crate::host::{symbols, until_nul, CodeOf, Symbol};
use crate::kit::*;
use crate::pcp::{json_string, PmErr};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{Display, Write};
use std::sync::Arc;

/// A frame's name and the kind of its code.
type Frame = (Arc<str>, &'static str);

/// A stack: two are equal if all of this is.
#[derive(PartialEq, Eq, Hash)]
pub struct Stack {
    pid: u32,
    comm: [u8; 16],
    user: Vec<u64>,
    kernel: Vec<u64>,
    user_missed: bool,
    kernel_missed: bool,
}

/// A stack of the current run.
struct Known {
    samples: u64,
    /// The command and the frames, outermost first.
    frames: Vec<Frame>,
    /// The number of its name.
    number: u32,
}

/// The samples of a run, and those of all runs by name.
#[derive(Default)]
pub struct Stacks {
    known: HashMap<Stack, Known>,
    /// Bytes of the names of its frames.
    bytes: usize,
    /// Number of samples by command whose stack was beyond the largest number of stacks.
    beyond: HashMap<[u8; 16], u64>,
    folded: Folded,
}

impl Stacks {
    /// Largest total of frame names in bytes, several times that of the stacks of a run.
    const ROOM: usize = 16 << 20;
    /// Largest number of commands for samples without room for their stack. Any user can give a process any name.
    const COMMANDS: usize = 1000;
    /// Largest tree in JSON in bytes; it is one value of one answer.
    const TREE: usize = 16 << 20;

    /// Begins a run. The counts by name continue: a client would take a step back for a gap, or for a counter that wrapped.
    pub fn begin(&mut self) {
        (self.known, self.beyond) = Default::default();
        self.folded.begin();
    }

    /// Counts a sample. Returns false if its stack would be beyond `most`, so that it counts for its command only.
    pub fn add(&mut self, sample: &prof_sample, most: usize) -> bool {
        let (kernel, user) = ((sample.kernel_bytes, &sample.kernel[..]), (sample.user_bytes, &sample.user[..]));
        let key = Stack::new(sample.pid, sample.comm, kernel, user);
        if let Some(known) = self.known.get_mut(&key) {
            known.samples += 1;
            self.folded.add(known.number, 1);
            return true;
        }
        let room = self.known.len() < most && self.bytes < Self::ROOM;
        let frames = if room { key.frames() } else { vec![command(&sample.comm)] };
        let number = self.folded.number(folded(&frames));
        self.folded.add(number, 1);
        if room {
            self.bytes += frames.iter().map(|(name, _)| name.len() + size_of::<Frame>()).sum::<usize>();
            self.known.insert(key, Known { samples: 1, frames, number });
        } else {
            let is_known = self.beyond.len() < Self::COMMANDS || self.beyond.contains_key(&sample.comm);
            *self.beyond.entry(if is_known { sample.comm } else { OTHERS }).or_default() += 1;
        }
        room
    }

    /// Ends the run, and returns its stacks as a tree in JSON. The counts by name stay. If the tree would be too long, the stacks
    /// with the most samples are complete, and others end at a frame that all of their samples have.
    pub fn take_tree(&mut self) -> String {
        self.tree(Self::TREE)
    }

    fn tree(&mut self, mut room: usize) -> String {
        let mut root = Node { name: "root".into(), libtype: "", value: 0, children: Vec::new() };
        for (comm, samples) in std::mem::take(&mut self.beyond) {
            root.add(&[command(&comm)], samples, &mut room);
        }
        let mut known: Vec<Known> = std::mem::take(&mut self.known).into_values().collect();
        known.sort_by_key(|known| Reverse(known.samples));
        for Known { samples, frames, .. } in known {
            root.add(&frames, samples, &mut room);
        }
        self.bytes = 0;
        root.sort();
        root.json()
    }

    /// Fills the table with the samples by name.
    pub fn fill(&self, table: &mut Table, metric: Metric<u64>) {
        self.folded.fill(table, metric);
    }
}

/// Returns the names of the kernel's functions in which a thread waits, outermost first, with commas between them. `stack` has
/// their addresses, the innermost first.
pub fn kernel_frames(stack: &[u64]) -> String {
    let frames = names(stack, CodeOf::Kernel, KERNEL);
    let frames: Vec<&str> = up_to(&frames, SWITCHES).iter().map(|(name, _)| &**name).collect();
    frames.join(",")
}

/// The kernel's functions inside of which a thread leaves its CPU, and wakes another. What lies within is the program that reads the
/// stack.
const SWITCHES: &str = "__schedule";
const WAKES: &str = "try_to_wake_up";

/// Cause of the end of a thread's wait.
pub enum Waker {
    /// It was not seen.
    Unknown,
    /// An interrupt: the thread that it interrupted has no part in it.
    Interrupt,
    /// A thread, at this stack.
    Stack(Stack),
}

/// Returns the frames outside of the kernel's function with this name, all if there is none.
fn up_to<'a>(frames: &'a [Frame], end: &str) -> &'a [Frame] {
    let place = frames.iter().rposition(|(name, libtype)| *libtype == KERNEL && &**name == end);
    &frames[..place.unwrap_or(frames.len())]
}

impl Stack {
    /// Makes a stack of its addresses, the innermost first, and of what `bpf_get_stack` returned for each part: bytes, or a negative
    /// error number.
    pub fn new(pid: u32, comm: [u8; 16], kernel: (i32, &[u64]), user: (i32, &[u64])) -> Stack {
        let part = |(bytes, stack): (i32, &[u64])| {
            let frames = usize::try_from(bytes).unwrap_or(0) / 8;
            stack[..frames.min(stack.len())].to_vec()
        };
        let (user_missed, kernel_missed) = (missed(user.0), missed(kernel.0));
        Stack { pid, comm, user: part(user), kernel: part(kernel), user_missed, kernel_missed }
    }

    /// Returns the name of the instance of a stack at which a thread waits.
    pub fn name_of_wait(&self) -> String {
        folded(up_to(&self.frames(), SWITCHES))
    }

    /// Returns the same and, behind `--`, the stack of what ended the wait: the innermost frame first, so that both meet where the one
    /// thread wakes the other.
    pub fn name_of_wake(&self, waker: &Waker) -> String {
        let mark = |name: &str| -> Frame { (name.into(), "user") };
        let mut frames = up_to(&self.frames(), SWITCHES).to_vec();
        frames.push(mark("--"));
        match waker {
            Waker::Unknown => frames.push(mark("[unknown]")),
            Waker::Interrupt => frames.push(mark("[interrupt]")),
            Waker::Stack(waker) => frames.extend(up_to(&waker.frames(), WAKES).iter().rev().cloned()),
        }
        folded(&frames)
    }

    /// Returns the named frames, the command first, then from the outermost on.
    fn frames(&self) -> Vec<Frame> {
        let mut frames = vec![command(&self.comm)];
        frames.extend(names(&self.user, CodeOf::Process(self.pid), "user"));
        if self.user_missed {
            frames.push(("[Missed User Stack]".into(), "user"));
        }
        frames.extend(names(&self.kernel, CodeOf::Kernel, KERNEL));
        if self.kernel_missed {
            frames.push(("[Missed Kernel Stack]".into(), KERNEL));
        }
        frames
    }
}

/// The kind of the kernel's code.
const KERNEL: &str = "kernel";

/// The command for samples beyond the largest number of commands.
const OTHERS: [u8; 16] = *b"[others]\0\0\0\0\0\0\0\0";

/// True if `bpf_get_stack` failed, but not because there is no such stack (`-EFAULT`: a kernel thread has no user stack).
fn missed(bytes: i32) -> bool {
    const EFAULT: i32 = 14;
    bytes < 0 && bytes != -EFAULT
}

fn command(comm: &[u8; 16]) -> Frame {
    (String::from_utf8_lossy(until_nul(comm)).into(), "user")
}

/// Returns the names of a stack's frames, outermost first; the programs give the innermost first.
fn names(stack: &[u64], of: CodeOf, libtype: &'static str) -> Vec<Frame> {
    let name = |symbol: Option<Symbol>| symbol.map_or_else(|| "[unknown]".into(), |symbol| symbol.name.into());
    symbols(stack, of).into_iter().rev().map(|symbol| (name(symbol), libtype)).collect()
}

/// Makes the name of a stack's instance: the frames with commas between them, at which Grafana's flame graphs split them. libpcp
/// takes the text before a blank for the whole name, and scripts turn the commas into semicolons, so a frame contains none of these.
/// The kernel's frames have the suffix by which flame graphs colour them.
fn folded(frames: &[Frame]) -> String {
    let mut name = String::new();
    for (place, (frame, libtype)) in frames.iter().enumerate() {
        if place > 0 {
            name.push(',');
        }
        name.extend(frame.chars().map(|c| match c {
            ',' | ';' => ':',
            c if c.is_whitespace() || c.is_control() => '_',
            c => c,
        }));
        if frame.is_empty() {
            name.push_str("[unknown]");
        }
        if *libtype == KERNEL {
            name.push_str("_[k]");
        }
    }
    written_out(name.as_bytes(), b"")
}

/// Returns the identifier of a name: a hash, so that it is the same in every run and after a restart.
fn identifier(secret: Secret, name: &str) -> u32 {
    secret.hash(name.as_bytes()) as u32 & Folded::MOST
}

/// The samples of a name, or the time.
struct Count {
    name: String,
    samples: u64,
    /// True if there are samples of the current run, or of the last one.
    recent: bool,
}

/// Samples by name, or times, each with its number. They continue over runs: a client would take a step back for a gap.
#[derive(Default)]
pub struct Folded {
    counts: BTreeMap<u32, Count>,
    /// Bytes of all names.
    bytes: usize,
}

impl Folded {
    /// Largest total of names in bytes: that of 16384 stacks of 20 frames. They all go into one answer to a client.
    const ROOM: usize = 8 << 20;
    /// The highest number.
    const MOST: u32 = u32::MAX >> 1;
    /// Name for samples whose own name has no room.
    const OTHERS: &str = "[others]";

    /// Returns the number of a name, which keeps it: its identifier, or the next free number if another name has that already. Nobody
    /// can bring that about, and among thousands of names it is rare.
    pub fn number(&mut self, name: String) -> u32 {
        let mut number = identifier(secret(), &name);
        while let Some(other) = self.counts.get(&number) {
            if other.name == name {
                return number;
            }
            number = (number + 1) & Self::MOST;
        }
        if self.bytes + name.len() > Self::ROOM && name != Self::OTHERS {
            return self.number(Self::OTHERS.into());
        }
        self.bytes += name.len();
        self.counts.insert(number, Count { name, samples: 0, recent: true });
        number
    }

    /// Adds samples to those of a name with this number.
    pub fn add(&mut self, number: u32, samples: u64) {
        if let Some(count) = self.counts.get_mut(&number) {
            count.samples += samples;
            count.recent = true;
        }
    }

    /// Fills a row of the table for each name.
    pub fn fill(&self, table: &mut Table, metric: Metric<u64>) {
        for (&number, Count { name, samples, .. }) in &self.counts {
            table.numbered(number, name.as_bytes()).set(metric, *samples);
        }
    }

    /// Begins a run. If half of the room is used, names without samples in the last run give way.
    pub fn begin(&mut self) {
        if self.bytes > Self::ROOM / 2 {
            // One that the next number follows stays: the name there may be one that found this number taken.
            let followed =
                |number: u32, counts: &BTreeMap<u32, Count>| counts.contains_key(&((number + 1) & Self::MOST));
            let old = self.counts.iter().filter(|(number, count)| !count.recent && !followed(**number, &self.counts));
            let old: Vec<u32> = old.map(|(number, _)| *number).collect();
            for count in old.iter().filter_map(|number| self.counts.remove(number)) {
                self.bytes -= count.name.len();
            }
        }
        self.counts.values_mut().for_each(|count| count.recent = false);
    }
}

/// A run that clients begin and end by stores, as of the Python agent's profiler: a start during a run and a stop without one are
/// logged and otherwise ignored.
pub struct Run {
    /// Name of the module's section, for the log.
    name: String,
    is_on: bool,
    /// Limits log lines about refused stores, which any client may try.
    refusals: EveryMinute,
}

/// An order that a client stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Begin a run.
    Start,
    /// End it.
    Stop,
    /// Forget what was counted.
    Clear,
}

impl Run {
    /// Makes a run that has not begun, of a section with this name.
    pub fn new(name: &str) -> Run {
        Run { name: name.into(), is_on: false, refusals: EveryMinute::default() }
    }

    /// True between start and stop.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the state as clients read it.
    pub fn state(&self) -> &'static str {
        if self.is_on {
            "started"
        } else {
            "stopped"
        }
    }

    /// Returns the order that a stored value gives, from which on the run is on or not; `None` if it makes no sense now, which is logged;
    /// `PM_ERR_BADSTORE` for other values.
    pub fn order(&mut self, value: &[u8]) -> Result<Option<Order>, PmErr> {
        let order = match value {
            b"start" => Order::Start,
            b"stop" => Order::Stop,
            b"clear" => Order::Clear,
            _ => return Err(PmErr::BADSTORE),
        };
        let refusal = match (order, self.is_on) {
            (Order::Start, true) => "already started",
            (Order::Clear, true) => "not cleared: sampling is running, stop it first",
            (Order::Stop, false) => "not started",
            _ => {
                self.is_on = order == Order::Start;
                return Ok(Some(order));
            }
        };
        self.log(refusal);
        Ok(None)
    }

    /// Takes a start back that failed.
    pub fn failed(&mut self, error: impl Display) {
        self.is_on = false;
        self.log(&format!("not started: {error}"));
    }

    fn log(&mut self, refusal: &str) {
        if let Some(more) = self.refusals.due() {
            log::error!("{}: {refusal}{more}", self.name);
        }
    }
}

struct Node {
    name: Arc<str>,
    /// Kind of the code; empty at the root.
    libtype: &'static str,
    value: u64,
    children: Vec<Node>,
}

impl Node {
    /// Bytes of a node in JSON without its name, and of its memory.
    const BYTES: usize = 128;

    /// Adds a stack, as far as there is room for it.
    fn add(&mut self, frames: &[Frame], count: u64, room: &mut usize) {
        self.value += count;
        let mut node = self;
        for (name, libtype) in frames {
            let known = node.children.iter().position(|child| child.name == *name && child.libtype == *libtype);
            let at = match known {
                Some(at) => at,
                None => {
                    let Some(rest) = room.checked_sub(json_string(name).len() + Self::BYTES) else { return };
                    *room = rest;
                    node.children.push(Node { name: Arc::clone(name), libtype, value: 0, children: Vec::new() });
                    node.children.len() - 1
                }
            };
            node = &mut node.children[at];
            node.value += count;
        }
    }

    fn sort(&mut self) {
        self.children.sort_by(|a, b| a.name.cmp(&b.name));
        self.children.iter_mut().for_each(Node::sort);
    }

    /// Formats the node. Stacks are at most 254 frames deep, so recursion is bounded.
    fn json(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out.shrink_to_fit(); // it stays until the next run
        out
    }

    fn write(&self, out: &mut String) {
        let libtype = if self.libtype.is_empty() { "null".into() } else { json_string(self.libtype) };
        let _ = write!(
            out,
            "{{\"name\": {}, \"libtype\": {libtype}, \"value\": {}, \"children\": [",
            json_string(&self.name),
            self.value
        );
        for (i, child) in self.children.iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            child.write(out);
        }
        out.push_str("]}");
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::pcp::Atom;

    /// Makes a sample without frames, whose kernel stack has this length.
    pub fn sample(comm: &[u8], kernel_bytes: i32) -> prof_sample {
        let mut name = [0; 16];
        name[..comm.len()].copy_from_slice(comm);
        prof_sample { pid: 0, kernel_bytes, user_bytes: -14, pad: 0, comm: name, kernel: [0; 127], user: [0; 127] }
    }

    /// Returns the instances of a table, by name.
    pub fn named(table: &Table) -> Vec<(String, u64)> {
        let row = |(row, key): (usize, &Key)| match (key, table.value(row, 0)) {
            (Key::Numbered(_, name), Some(Atom::U64(value))) => {
                (String::from_utf8_lossy(table.text(name)).into_owned(), value)
            }
            other => panic!("{other:?}"),
        };
        let mut rows: Vec<(String, u64)> = table.keys().iter().enumerate().map(row).collect();
        rows.sort();
        rows
    }

    /// Returns two names with the same identifier, which only somebody with the secret can find: with 31 bits there are some among a
    /// hundred thousand.
    fn twins() -> [String; 2] {
        let mut known = HashMap::new();
        let mut names = (0..).map(|number| format!("twin{number}"));
        let found = names.find_map(|name| {
            let other = known.insert(identifier(secret(), &name), name.clone())?;
            Some([other, name])
        });
        found.expect("numbers are many")
    }

    fn filled(stacks: &Stacks) -> Vec<(String, u64)> {
        let mut table = Table::new(1);
        stacks.fill(&mut table, Metric::new(0));
        named(&table)
    }

    #[test]
    fn stacks_beyond_the_limit_count_for_their_command() {
        let mut stacks = Stacks::default();
        let kept: Vec<bool> = (0..3).map(|i| stacks.add(&prof_sample { pid: i, ..sample(b"sh", -17) }, 1)).collect();
        assert_eq!(kept, [true, false, false]);
        assert_eq!(filled(&stacks), [("sh".into(), 2), ("sh,[Missed_Kernel_Stack]_[k]".into(), 1)]);
        let tree = stacks.take_tree();
        for part in [r#""name": "root", "libtype": null, "value": 3"#, r#""name": "sh", "libtype": "user", "value": 3"#]
        {
            assert!(tree.contains(part), "{tree}");
        }
        assert_eq!(filled(&stacks).iter().map(|(_, samples)| samples).sum::<u64>(), 3, "the tree's end is not theirs");
    }

    #[test]
    fn stacks_without_room_for_their_names_count_for_their_command() {
        let mut stacks = Stacks { bytes: Stacks::ROOM - 1, ..Stacks::default() };
        let kept: Vec<bool> = (0..3).map(|i| stacks.add(&prof_sample { pid: i, ..sample(b"sh", -17) }, 9)).collect();
        assert_eq!(kept, [true, false, false]);
        stacks.take_tree();
        assert!(stacks.add(&sample(b"sh", -17), 9), "room again");
    }

    #[test]
    fn commands_beyond_a_thousand_are_others() {
        let mut stacks = Stacks::default();
        for number in 0..2 * Stacks::COMMANDS {
            (0..2).for_each(|_| assert!(!stacks.add(&sample(format!("sh{number}").as_bytes(), -14), 0)));
        }
        assert_eq!(stacks.beyond.len(), Stacks::COMMANDS + 1);
        assert_eq!(stacks.beyond[&OTHERS], 2 * Stacks::COMMANDS as u64);
        assert!(stacks.take_tree().contains(r#""name": "[others]", "libtype": "user", "value": 2000"#));
    }

    #[test]
    fn a_tree_that_is_too_long_has_the_stacks_with_most_samples() {
        let mut stacks = Stacks::default();
        let add = |stacks: &mut Stacks, comm: &str, samples: usize| {
            (0..samples).for_each(|_| assert!(stacks.add(&sample(comm.as_bytes(), -17), 1 << 20)));
        };
        (0..5000).for_each(|number| add(&mut stacks, &format!("few{number}"), 1));
        add(&mut stacks, "many", 3);
        let tree = stacks.tree(100_000);
        assert!((50_000..100_000).contains(&tree.len()), "{}", tree.len());
        assert!(tree.contains(r#""name": "root", "libtype": null, "value": 5003"#));
        assert!(tree.contains(r#""name": "many", "libtype": "user", "value": 3, "children": [{"name": "[Missed Ker"#));
    }

    #[test]
    fn names_have_no_blanks_and_part_at_their_commas() {
        let frame = |name: &str, libtype| (Arc::from(name), libtype);
        let frames = [
            frame("Web Content", "user"),
            frame("f(int, char;)", "user"),
            frame("", "user"),
            frame("a\nb\u{1}", "user"),
            frame("caf\u{e9}", "user"),
            frame("do_exit", "kernel"),
        ];
        assert_eq!(folded(&frames), r"Web_Content,f(int:_char:),[unknown],a_b_,caf\xc3\xa9,do_exit_[k]");
    }

    #[test]
    fn a_name_keeps_its_number_and_none_has_that_of_another() {
        let [one, other] = &twins();
        let mut folded = Folded::default();
        let first = folded.number(one.clone());
        assert_eq!(folded.number(other.clone()), first + 1);
        assert_eq!([one, other].map(|name| folded.number(name.clone())), [first, first + 1]);
        assert_eq!(Folded::default().number(other.clone()), first);
    }

    #[test]
    fn nobody_can_make_two_names_of_one_identifier() {
        // Of one FNV-1a hash.
        let names = ["costarring", "liquid"];
        let (mut folded, mut other_way) = (Folded::default(), Folded::default());
        let numbers = names.map(|name| folded.number(name.into()));
        let [second, first] = ["liquid", "costarring"].map(|name| other_way.number(name.into()));
        assert_eq!(numbers, [first, second], "who came first makes no difference");
        let [own, another] = [Secret::random(), Secret::random()].map(|secret| identifier(secret, "liquid"));
        assert_ne!(own, another, "and who does not know the secret cannot tell");
        let twins = twins();
        let known = |secret: Secret| identifier(secret, &twins[0]) == identifier(secret, &twins[1]);
        assert!(known(secret()) && !known(Secret::random()));
    }

    #[test]
    fn names_unseen_in_the_last_run_give_way_when_room_is_scarce() {
        let mut folded = Folded::default();
        let begin_and_see = |folded: &mut Folded, names: &[&str]| {
            folded.begin();
            for name in names {
                let number = folded.number((*name).into());
                folded.add(number, 1);
            }
            folded.counts.values().map(|count| (count.name.len(), count.samples)).max()
        };
        let long = "x".repeat(Folded::ROOM / 2);
        assert_eq!(begin_and_see(&mut folded, &[&long]), Some((long.len(), 1)));
        assert_eq!(begin_and_see(&mut folded, &["a"]), Some((long.len(), 1)), "there is room");
        assert_eq!(begin_and_see(&mut folded, &["a"]), Some((1, 2)), "the other has had no sample since");
        assert_eq!(folded.bytes, 1);
        // The second, which is seen, is found behind the first only.
        let twins = twins();
        let [first, second] = twins.clone().map(|name| folded.number(name));
        assert_eq!(second, first + 1);
        folded.number(long);
        folded.begin();
        folded.add(second, 1);
        folded.number("y".repeat(Folded::ROOM / 4));
        folded.begin();
        assert_eq!(folded.number(twins[1].clone()), second);
    }

    #[test]
    fn names_without_room_are_others() {
        let mut folded = Folded::default();
        let long = |letter: &str| letter.repeat(Folded::ROOM / 2);
        let [first, _, third] = ["a", "b", "c"].map(|letter| folded.number(long(letter)));
        assert_eq!(folded.counts[&third].name, "[others]");
        assert_eq!(folded.number(long("a")), first);
        assert_eq!(folded.number("d".into()), third);
    }
}
