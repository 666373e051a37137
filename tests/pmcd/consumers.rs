//! Programs and files that PCP ships for these metrics: pcp-atop, pcp-htop, pmrep's sets, a group of pmlogconf and a derived metric.
//! Each is used as it came with PCP and shows the known traffic of a process. For those that look for pmdabpf's names, the agent
//! serves these; others are tried a second time with a copy of PCP's file that has pmdabpf's names.

use crate::instance::{values, Pmcd, BPF_NAMES, LINUX, PROC};
use crate::support::{config, lacks, lacks_host_pids, skip, told, wait_for, Proc};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3";
const SETS: &str = "/etc/pcp/pmrep/proc.conf";
/// File with the definition of `proc.hog.net`.
pub const HOGS: &str = "/etc/pcp/derived/proc.conf";
/// Directory of pmlogconf's groups.
pub const GROUPS: &str = "/etc/pcp/pmlogconf";
/// The group of these metrics.
pub const GROUP: &str = "networking/perprocess-linux";

/// Python with four threads, each with 25 TCP writes of 1000 bytes and 10 datagrams of 500, all read; then it prints `ready`. Told
/// `on`, the first pair continues until its input ends.
const TRAFFIC: &str = include_str!("../programs/traffic.py");

/// The eight metrics in the order of their items, with their values for such a process.
pub const EXPECTED: [(&str, u64); 8] = [
    ("bcc.proc.net.tcp.send.calls", 100),
    ("bcc.proc.net.tcp.send.bytes", 100_000),
    ("bcc.proc.net.tcp.recv.calls", 100),
    ("bcc.proc.net.tcp.recv.bytes", 100_000),
    ("bcc.proc.net.udp.send.calls", 40),
    ("bcc.proc.net.udp.send.bytes", 20_000),
    ("bcc.proc.net.udp.recv.calls", 40),
    ("bcc.proc.net.udp.recv.bytes", 20_000),
];

pub struct Traffic(Proc);

impl Traffic {
    /// Starts a process that has made its traffic and waits.
    pub fn done() -> Traffic {
        let mut command = Command::new(PYTHON);
        command.args(["-I", "-c", TRAFFIC]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Proc(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Traffic(process)
    }

    /// Starts a process that makes traffic until it is dropped.
    pub fn steady() -> Traffic {
        let mut traffic = Traffic::done();
        writeln!(traffic.0 .0.stdin.as_mut().unwrap(), "on").unwrap();
        traffic
    }

    pub fn pid(&self) -> i32 {
        self.0.pid()
    }

    /// Returns the name of its instance.
    pub fn instance(&self) -> String {
        format!("{:06} {PYTHON}", self.pid())
    }
}

/// The names under which a consumer looks for metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Names {
    Ours,
    Pmdabpfs,
}

impl Names {
    /// Returns the names that a file of PCP contains: some programs look for both. Prints that, if the file is missing or contains
    /// neither.
    pub fn of(file: &str) -> Vec<Names> {
        if lacks(&[file]) {
            return Vec::new();
        }
        let bytes = fs::read(file).unwrap();
        let looks_for = |names: &Names| {
            let prefix = names.name("bcc.proc.net.");
            bytes.windows(prefix.len()).any(|part| part == prefix.as_bytes())
        };
        let found: Vec<Names> = [Names::Ours, Names::Pmdabpfs].into_iter().filter(looks_for).collect();
        if found.is_empty() {
            skip(&format!("bcc.proc.net or bpf.proc.net in {file}"));
        }
        found
    }

    /// Returns the names that a file contains, and always pmdabpf's: see [`Names::copy`]. Returns none, and prints that, if it
    /// contains neither.
    pub fn tried(file: &str) -> Vec<Names> {
        let mut names = Names::of(file);
        if names == [Names::Ours] {
            names.push(Names::Pmdabpfs);
        }
        names
    }

    /// Replaces our names in a text by these.
    pub fn name(self, ours: &str) -> String {
        if self == Names::Ours {
            return ours.into();
        }
        let mut text = ours.replace("bcc.proc.net", "bpf.proc.net");
        for way in ["tcp.send", "tcp.recv", "udp.send", "udp.recv"] {
            text = text.replace(&format!("bpf.proc.net.{way}.calls"), &format!("bpf.proc.net.{way}.packets"));
        }
        text
    }

    /// Makes a copy of a file of PCP with these names, below the test's directory.
    pub fn copy(self, file: &str, pmcd: &Pmcd, name: &str) {
        let copy = pmcd.home.path(name);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::write(copy, self.name(&fs::read_to_string(file).unwrap())).unwrap();
    }

    /// Starts a pmcd with netproc under these names, and with the other agents that the consumers need.
    pub fn served(self) -> Option<Pmcd> {
        if lacks(&[PYTHON]) || lacks_host_pids() {
            return None;
        }
        let asked = if self == Names::Pmdabpfs { BPF_NAMES } else { "" };
        Pmcd::beside(&(config(&["sysfork", "netproc"]) + asked), &[PROC, LINUX])
    }
}

/// The first acceptance check of the original's consumers: identifier, name and all eight values of a process with threads.
#[test]
fn every_process_has_its_pid_its_name_and_all_eight_values() {
    let Some(pmcd) = Names::Ours.served() else { return };
    let traffic = Traffic::done();
    let names: Vec<&str> = EXPECTED.iter().map(|(name, _)| *name).collect();
    let text = pmcd.ask("pminfo", &[&["-f"], &names[..]].concat());
    let blocks: Vec<&str> = text.split("\n\n").filter(|block| !block.trim().is_empty()).collect();
    assert_eq!(blocks.len(), 8, "{text}");
    // Identifier and name of each instance.
    let instances = |block: &str| -> Vec<(u32, String)> {
        let instance = |line: &str| {
            let (number, name) = line.trim().strip_prefix("inst [")?.split_once(" or \"")?;
            Some((number.parse().unwrap(), name.split_once("\"]")?.0.to_owned()))
        };
        block.lines().filter_map(instance).collect()
    };
    for (block, (name, value)) in blocks.iter().zip(EXPECTED) {
        assert!(block.trim_start().starts_with(name), "{block}");
        let line = format!("inst [{} or \"{}\"] value {value}", traffic.pid(), traffic.instance());
        assert!(block.contains(&line), "no `{line}` in {block}");
        // The same processes in all eight, in ascending order, which is pcp-htop's fast case.
        assert_eq!(instances(block), instances(blocks[0]), "{text}");
        assert!(instances(block).is_sorted(), "{block}");
    }
}

#[test]
fn pcp_atop_shows_the_traffic_of_each_process() {
    for names in Names::of("/usr/lib/pcp/bin/pcp-atop") {
        let Some(pmcd) = names.served() else { return };
        atop_shows_the_traffic(&pmcd);
    }
}

fn atop_shows_the_traffic(pmcd: &Pmcd) {
    let traffic = Traffic::done();
    let output = pmcd.local_client("pcp").args(["atop", "-P", "PRN", "1", "1"]).output().unwrap();
    let text = told(&output);
    assert!(output.status.success(), "{text}");
    let line = text.lines().find(|line| line.split(' ').nth(6) == Some(&traffic.pid().to_string()));
    let line = line.unwrap_or_else(|| panic!("no line for {} in {text}", traffic.pid()));
    // Whether the counters are there, which PCP 7 denies; then calls and bytes: TCP out, TCP in, UDP out, UDP in.
    let shown = |flag| line.contains(&format!("(python3) S {flag} 100 100000 100 100000 40 20000 40 20000 "));
    assert!(shown("y") || shown("n"), "{line}");

    let output = pmcd.local_client("pcp").args(["atop", "-n", "1", "1"]).output().unwrap();
    let text = told(&output);
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&traffic.pid().to_string()));
    let fields: Vec<&str> = line.unwrap_or_else(|| panic!("{text}")).split_whitespace().collect();
    assert!(text.contains("TCPRCV TCPSND UDPRCV UDPSND"), "{text}");
    // In front of them is the thread's id, on some machines only.
    assert!(fields[1..].windows(4).any(|counts| counts == ["100", "100", "40", "40"]), "{text}");
}

#[test]
fn pcp_htop_shows_the_eight_columns() {
    const COLUMNS: &str = "/usr/share/pcp/htop/columns";
    if lacks(&["/usr/lib/pcp/bin/pcp-htop", &format!("{COLUMNS}/udp"), "script"]) {
        return;
    }
    // Later releases name the columns as the metrics.
    let calls = if fs::read_to_string(format!("{COLUMNS}/tcp")).unwrap().contains("[tcp_send_packets]") {
        "packets"
    } else {
        "calls"
    };
    let columns = EXPECTED.map(|(name, _)| column(name).replace("calls", calls));
    for names in Names::tried(&format!("{COLUMNS}/tcp")) {
        let Some(pmcd) = names.served() else { return };
        for file in ["tcp", "udp"] {
            names.copy(&format!("{COLUMNS}/{file}"), &pmcd, &format!("etc/htop/columns/{file}"));
        }
        shows_columns(&pmcd, &Traffic::done(), &columns, &pmcd.home.path("etc"));
    }
}

/// The screens that PCP 6.1 and later have for pmdabpf's rows.
#[test]
fn pcp_htop_shows_execs_exits_opens_and_slow_requests() {
    const SCREENS: &str = "/usr/share/pcp/htop/screens";
    if lacks(&["/usr/lib/pcp/bin/pcp-htop", &format!("{SCREENS}/exitsnoop"), "script"]) || lacks_host_pids() {
        return;
    }
    let modules = ["sysfork", "execsnoop", "exitsnoop", "opensnoop", "biolatency"];
    let asking = |text: String, module: &&str| {
        text.replace(&format!("module = {module}\n"), &format!("module = {module}\n{BPF_NAMES}"))
    };
    let text = modules.iter().fold(config(&modules), asking).replace("= sysfork\nbpf_names = True\n", "= sysfork\n");
    let text = text.replace("module = biolatency\n", "module = biolatency\nslow = 0\n");
    let text = text.replace("module = opensnoop\n", "module = opensnoop\nprocess = cat\nfailed = True\n");
    let Some(pmcd) = Pmcd::beside(&text, &[PROC, LINUX]) else { return };
    let screens = pmcd.home.path("etc/htop/screens");
    fs::create_dir_all(&screens).unwrap();
    let own = std::process::id();
    let rows = [
        ("execsnoop", format!(r"\d+ {own} 0 true 0 /bin/true")),
        ("exitsnoop", format!(r"\d+ {own} 0 0 true")),
        // pcp-htop has N/A for -1.
        ("opensnoop", r"\d+ cat N/A 2 /no/such/file".into()),
        ("biosnoop", format!(r"({}) F?[RWFD][FASM]* \d", any_disk())),
    ];
    let sync = fs::File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("htop")).unwrap();
    for (screen, row) in rows {
        let shipped = fs::read_to_string(format!("{SCREENS}/{screen}")).unwrap();
        // It is off in every column's place too: only the screen itself is to be on.
        fs::write(screens.join(screen), shipped.replacen("\ndefault = false", "\ndefault = true", 1)).unwrap();
        shows_screen(&pmcd, &pmcd.home.path("etc"), screen, &row, || {
            Command::new("/bin/true").status().unwrap();
            Command::new("/bin/cat").arg("/no/such/file").stderr(Stdio::null()).status().unwrap();
            (&sync).write_all(b"x").and_then(|()| sync.sync_all()).unwrap();
        });
        fs::remove_file(screens.join(screen)).unwrap();
    }
}

/// Runs pcp-htop, with the screens below a directory like `/etc/pcp`, from one screen to the next until a row is there of what `work` does.
pub fn shows_screen(pmcd: &Pmcd, sysconf: &Path, screen: &str, row: &str, work: impl Fn()) {
    let mut terminal = htop(pmcd, "-C -d 5", sysconf);
    let row = regex::Regex::new(row).unwrap();
    let mut input = terminal.0.stdin.take().unwrap();
    let seen = (0..60).any(|_| {
        work();
        input.write_all(b"\t").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        row.is_match(&on_screen(pmcd))
    });
    assert!(seen, "{row} is not on the screen {screen}: {}", on_screen(pmcd));
    input.write_all(b"q").unwrap();
    assert!(terminal.end().success());
    // It writes down the screens that there were.
    let _ = fs::remove_file(pmcd.home.path("htoprc"));
}

/// Returns a pattern of the names of all disks.
pub fn any_disk() -> String {
    let disks = fs::read_dir("/sys/block").unwrap().map(|disk| disk.unwrap().file_name().into_string().unwrap());
    disks.collect::<Vec<_>>().join("|")
}

/// Starts pcp-htop on a terminal of its own.
pub fn htop(pmcd: &Pmcd, options: &str, sysconf: &Path) -> Proc {
    let htop = format!("pcp -h {} htop {options}", pmcd.local());
    let mut command = pmcd.program("script");
    command.args(["-qfec", &format!("stty rows 50 cols 150; exec {htop}"), "htop.log"]);
    command.env_remove("PCP_VAR_DIR").env("TERM", "xterm").env("HTOPRC", pmcd.home.path("htoprc"));
    command.env("PCP_SYSCONF_DIR", sysconf);
    Proc(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
}

/// Returns what pcp-htop has drawn so far, in words.
pub fn on_screen(pmcd: &Pmcd) -> String {
    let escape = regex::Regex::new("\u{1b}\\[[0-9;?]*[A-Za-z]|\u{1b}[()]B").unwrap();
    let screen = escape.replace_all(&pmcd.home.read("htop.log"), " ").into_owned();
    screen.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns PCP's name for the column of a metric.
pub fn column(name: &str) -> String {
    name.trim_start_matches("bcc.proc.net.").replace('.', "_")
}

/// Runs pcp-htop on a terminal of its own until it shows the row of the process with the values of these columns, which it finds
/// below a directory like `/etc/pcp`.
pub fn shows_columns(pmcd: &Pmcd, traffic: &Traffic, columns: &[String], sysconf: &Path) {
    let fields: Vec<String> = columns.iter().map(|column| format!("Dynamic({column})")).collect();
    fs::write(pmcd.home.path("htoprc"), format!("fields=0 {} 1\n", fields.join(" "))).unwrap();
    let mut terminal = htop(pmcd, &format!("-C -d 600 -p {}", traffic.pid()), sysconf);
    // PCP 6.0 shows bytes, later releases Kbytes, under the same title.
    let rows = [1, 1024].map(|unit| {
        let shown = |(name, value): (&str, u64)| if name.ends_with("bytes") { value / unit } else { value }.to_string();
        format!("{} {} ", traffic.pid(), EXPECTED.map(shown).join(" "))
    });
    wait_for(&format!("one of {rows:?} on the terminal"), || {
        let screen = on_screen(pmcd);
        rows.iter().any(|row| screen.contains(row)).then_some(())
    });
    terminal.0.stdin.take().unwrap().write_all(b"q").unwrap();
    assert!(terminal.end().success());
}

/// Runs one of pmrep's sets for about a second. Returns its header and rows, after checking that standard error is empty.
#[track_caller]
pub fn pmrep(pmcd: &Pmcd, configuration: &Path, set: &[&str]) -> Vec<Vec<String>> {
    let output = pmcd.pmrep(configuration, &[&["-o", "csv", "-l", "\t", "-s", "3", "-t", "0.3"], set].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{set:?}: {}", told(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| line.split('\t').map(|field| field.trim_matches('"').to_owned()).collect()).collect()
}

/// Returns the last value of a column of a process; pmrep of PCP 7 leaves instances out of the titles if a set says so.
#[track_caller]
fn last(rows: &[Vec<String>], metric: &str, traffic: &Traffic) -> f64 {
    let title = format!("{metric}-{}", traffic.instance());
    let column = rows[0].iter().position(|field| *field == title || field == metric);
    let column = column.unwrap_or_else(|| panic!("no `{title}` in {:?}", rows[0]));
    rows.last().unwrap()[column].parse().unwrap_or_else(|_| panic!("{title}: {rows:?}"))
}

/// Runs pmrep on PCP's own sets under each of the possible names, with traffic. `check` gets a function that runs a set.
fn with_pmreps_sets(check: impl Fn(&Names, &Traffic, &dyn Fn(&str, &str) -> Vec<Vec<String>>)) {
    if lacks(&["pmrep"]) {
        return;
    }
    for names in Names::tried(SETS) {
        let Some(pmcd) = names.served() else { return };
        names.copy(SETS, &pmcd, "pmrep.conf");
        let traffic = Traffic::steady();
        check(&names, &traffic, &|instance, set| pmrep(&pmcd, &pmcd.home.path("pmrep.conf"), &["-i", instance, set]));
    }
}

#[test]
fn pmreps_own_sets_run_without_a_warning() {
    with_pmreps_sets(|names, traffic, pmrep| {
        let [net, calls] = [":proc-net", ":proc-net-ext"].map(|set| pmrep(&traffic.instance(), set));
        for (name, _) in EXPECTED {
            let set = if name.ends_with("bytes") { &net } else { &calls };
            assert!(last(set, &names.name(name), traffic) > 0.0, "{name}");
        }
    });
}

#[test]
fn pmreps_set_of_activity_adds_up_the_traffic() {
    with_pmreps_sets(|names, traffic, pmrep| {
        // The sum is a metric that pmrep derives, under a name below theirs.
        let activity = pmrep(&format!("{:06} .*", traffic.pid()), ":proc-activity");
        assert!(last(&activity, &names.name("bcc.proc.net.total.bytes"), traffic) > 0.0);
        // One row of it is one process: the proc agent's columns have the same title.
        assert_eq!(last(&activity, "proc.psinfo.pid", traffic), f64::from(traffic.pid()));
    });
}

#[test]
fn the_derived_metric_of_network_hogs_has_values() {
    if lacks(&["pmval"]) {
        return;
    }
    for names in Names::tried(HOGS) {
        let Some(pmcd) = names.served() else { return };
        names.copy(HOGS, &pmcd, "derived");
        hogs_have_values(&pmcd, names);
    }
}

fn hogs_have_values(pmcd: &Pmcd, names: Names) {
    let traffic = Traffic::steady();
    let ask = |program: &str, args: &[&str]| {
        let output = pmcd.local_client(program).args(args).output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(ask("pminfo", &["-d", "proc.hog.net"]).contains("InDom: 149.40 "));
    let instance = traffic.instance();
    let sent = names.name("bcc.proc.net.tcp.send.bytes");
    wait_for("the instance", || ask("pminfo", &["-f", &sent]).contains(&instance).then_some(()));
    let instance = format!("{:06}", traffic.pid());
    // A machine that is busy may leave it no time between two samples.
    wait_for("a rate above zero", || {
        let text = ask("pmval", &["-s", "4", "-t", "0.2", "-f", "0", "-i", &instance, "proc.hog.net"]);
        text.lines().filter_map(|line| line.trim().parse().ok()).any(|rate: f64| rate > 0.0).then_some(())
    });
}

/// The group is also found on a machine without traffic, since processes with sockets have instances from the beginning.
#[test]
fn pmlogconf_finds_the_group_and_pmlogger_logs_it() {
    if lacks(&["pmlogconf", "pmlogger"]) {
        return;
    }
    for names in Names::tried(&format!("{GROUPS}/{GROUP}")) {
        let Some(pmcd) = names.served() else { return };
        names.copy(&format!("{GROUPS}/{GROUP}"), &pmcd, &format!("groups/{GROUP}"));
        logs_the_groups(&pmcd, &pmcd.home.path("groups"), &[(GROUP, names)]);
    }
}

/// Checks that pmlogconf with this directory enables these groups, and that an archive made by its configuration has the eight
/// metrics under the names of each group.
pub fn logs_the_groups(pmcd: &Pmcd, directory: &Path, groups: &[(&str, Names)]) {
    let traffic = Traffic::done();
    for old in ["logger.conf", "net.0", "net.index", "net.meta"] {
        let _ = fs::remove_file(pmcd.home.path(old));
    }
    let mut command = pmcd.client("pmlogconf");
    let output = command.args(["-c", "-q", "-d"]).arg(directory).arg("logger.conf").output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let text = pmcd.home.read("logger.conf");
    let part = |(group, names): &(&str, Names)| {
        let part = text.split("#----").find(|part| part.contains(&format!("#+ {group}:")));
        let part = part.unwrap_or_else(|| panic!("no {group} in {text}"));
        assert!(part.contains(":y:") && part.contains(&names.name("\tbcc.proc.net\n")), "{part}");
        part.to_owned()
    };
    fs::write(pmcd.home.path("group.conf"), groups.iter().map(part).collect::<String>()).unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let mut command = pmcd.client("pmlogger");
    let output =
        command.args(["-c", "group.conf", "-t", "0.2", "-s", "2", "-l", "logger.log", "net"]).output().unwrap();
    assert!(output.status.success(), "{}{}", told(&output), pmcd.home.read("logger.log"));
    for (name, value) in groups.iter().flat_map(|(_, names)| EXPECTED.map(|(name, value)| (names.name(name), value))) {
        let output = pmcd.program("pminfo").args(["-a", "net", "-f", &name]).output().unwrap();
        let logged = values(&String::from_utf8_lossy(&output.stdout));
        assert!(logged.contains(&(traffic.instance(), value.to_string())), "{name}: {}", told(&output));
    }
}
