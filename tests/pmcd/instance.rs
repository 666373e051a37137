//! A pmcd of the test: its port, socket, log, agents and name space are apart from those of a pmcd that may be running here.

use crate::support::{lacks, lacks_bpf, programs_of, told, wait_for, wait_seconds, Home, Proc, ALL, BINARY};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PMCD: &str = "/usr/lib/pcp/bin/pmcd";
const OWN_AGENT: &str = "/var/lib/pcp/pmdas/pmcd/pmda_pmcd.so";
const OWN_NAMES: &str = "/var/lib/pcp/pmns/root_pmcd";
const MERGE: &str = "/usr/lib/pcp/bin/pmnsmerge";
/// The line that makes netproc serve pmdabpf's names, as `bpf-names on` writes it.
pub const BPF_NAMES: &str = "bpf_names = True\n";

pub struct Pmcd {
    // Ended before the directory goes.
    pub process: Proc,
    pub home: Home,
    pub port: u16,
    /// Address on which it listens besides the loopback address.
    address: Option<Ipv4Addr>,
}

/// Another agent of PCP beside ours: its lines in pmcd's configuration, and its names.
pub struct Beside {
    name: &'static str,
    domain: u32,
    program: &'static str,
    names: &'static str,
}

/// PCP's agent for processes, which only answers clients that come over pmcd's socket, since it has to know their users.
pub const PROC: Beside = Beside {
    name: "proc",
    domain: 3,
    program: "/var/lib/pcp/pmdas/proc/pmdaproc",
    names: "/var/lib/pcp/pmns/root_proc",
};

/// PCP's agent for the machine.
pub const LINUX: Beside = Beside {
    name: "linux",
    domain: 60,
    program: "/var/lib/pcp/pmdas/linux/pmdalinux",
    names: "/var/lib/pcp/pmns/root_linux",
};

/// Returns the text after the domain in pmcd's configuration, and the agent's arguments, for a connection over a pipe.
pub fn pipe() -> (String, String) {
    ("pipe binary".into(), String::new())
}

/// Returns a port that was free a moment ago.
pub fn port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Sets the environment that restricts PCP's programs to the directory.
fn apart<'a>(command: &'a mut Command, home: &Home) -> &'a mut Command {
    for variable in ["PCP_TMP_DIR", "PCP_RUN_DIR", "PCP_LOG_DIR"] {
        command.env(variable, home.path(""));
    }
    let derived = home.path("derived");
    if derived.exists() {
        command.env("PCP_DERIVED_CONFIG", derived);
    }
    // PCP's Python programs are for the distribution's Python.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = ["/usr/bin", "/bin"].iter().map(PathBuf::from).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(dirs).unwrap());
    command.env("PMCD_SOCKET", home.path("pmcd.socket")).current_dir(home.path("")).stdin(Stdio::null())
}

impl Pmcd {
    /// Starts a pmcd and the agent with six modules over a pipe. Returns `None`, and prints that, if this host lacks something for
    /// it.
    pub fn start() -> Option<Pmcd> {
        Pmcd::with(|_| pipe())
    }

    /// Starts a pmcd with another connection to the agent.
    pub fn with(how: impl Fn(&Home) -> (String, String)) -> Option<Pmcd> {
        Pmcd::serving(ALL, &[], how)
    }

    /// Starts a pmcd with this configuration of the agent, and other agents.
    pub fn beside(config: &str, others: &[Beside]) -> Option<Pmcd> {
        Pmcd::serving(config, others, |_| pipe())
    }

    /// Starts a pmcd with this configuration of the agent that other hosts reach by this address.
    pub fn of_host(address: Ipv4Addr, config: &str) -> Option<Pmcd> {
        Pmcd::listening(Some(address), config, &[], |_| pipe())
    }

    /// Starts a pmcd with this configuration, other agents, and a connection, for which `how` finds the directory prepared.
    pub fn serving(config: &str, others: &[Beside], how: impl Fn(&Home) -> (String, String)) -> Option<Pmcd> {
        Pmcd::listening(None, config, others, how)
    }

    fn listening(
        address: Option<Ipv4Addr>,
        config: &str,
        others: &[Beside],
        how: impl Fn(&Home) -> (String, String),
    ) -> Option<Pmcd> {
        let needed = others.iter().flat_map(|other| [other.program, other.names]);
        let needed: Vec<&str> =
            [PMCD, MERGE, OWN_AGENT, OWN_NAMES, "pminfo", "pmprobe"].into_iter().chain(needed).collect();
        if lacks_bpf() || lacks(&needed) {
            return None;
        }
        let home = Home::new(config);
        let (transport, args) = how(&home);
        let dir = home.path("").display().to_string();
        let mut lines = format!(
            "pmcd\t2\tdso\tpmcd_init\t{OWN_AGENT}\n\
             corebcc\t149\t{transport}\t{BINARY} -d 149 -l {dir}corebcc.log -c {dir}corebcc.conf {args}\n"
        );
        for Beside { name, domain, program, .. } in others {
            lines += &format!("{name}\t{domain}\tpipe\tbinary\t{program} -d {domain}\n");
        }
        fs::write(home.path("pmcd.conf"), lines).unwrap();
        let merge = Command::new(MERGE)
            .arg("-f")
            .arg(OWN_NAMES)
            .args(others.iter().map(|o| o.names))
            .arg(home.path("root"))
            .output();
        assert!(merge.as_ref().unwrap().status.success(), "{}", told(&merge.unwrap()));
        // As registration.sh's choose_roots chooses them.
        let bpf = if config.contains(BPF_NAMES) { "\n    bpf 149:*:*" } else { "" };
        let names = fs::read_to_string(home.path("root")).unwrap();
        fs::write(home.path("root"), names.replacen("root {", &format!("root {{\n    bcc 149:*:*{bpf}"), 1)).unwrap();
        let port = port();
        let pmcd = Pmcd { process: run(&home, port, address), home, port, address };
        pmcd.wait_for_values();
        Some(pmcd)
    }

    /// Ends pmcd by a signal, unless it has ended, and starts another one in its place.
    pub fn again(&mut self, signal: Signal) {
        if self.process.0.try_wait().unwrap().is_none() {
            self.process.signal(signal);
            self.process.end();
        }
        self.process = run(&self.home, self.port, self.address);
    }

    /// Waits until no module is being loaded any more.
    #[track_caller]
    pub fn wait_for_values(&self) {
        // Loading all modules takes a few seconds of a processor, which this may have to share.
        wait_seconds(180, "values from pmcd", || {
            let values = self.run("pmprobe", &["bcc"]);
            let text = String::from_utf8_lossy(&values.stdout).into_owned();
            (text.contains("bcc.proc.sysfork 1") && !text.contains("Try again")).then_some(())
        });
    }

    /// Returns a command for a client of this pmcd.
    pub fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        apart(&mut command, &self.home).args(["-h", &format!("localhost:{}", self.port)]);
        command
    }

    /// Returns a command for a client that logs in over TCP, with a password.
    pub fn logged_in(&self, program: &str, user: &str, password: &str) -> Command {
        let mut command = Command::new(program);
        let host = format!("pcp://127.0.0.1:{}?method=plain&user={user}&pass={password}", self.port);
        apart(&mut command, &self.home).args(["-h", &host]);
        command
    }

    /// Returns a command for a client over pmcd's socket, by which pmcd knows its user.
    pub fn local_client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        apart(&mut command, &self.home).args(["-h", &self.local()]);
        command
    }

    /// Runs pmrep, and repeats that if it gave up since the agent of a busy machine told it once to try again.
    pub fn pmrep(&self, configuration: &Path, args: &[&str]) -> Output {
        wait_for("pmrep to get values", || {
            let output = self.local_client("pmrep").arg("-c").arg(configuration).args(args).output().unwrap();
            (!told(&output).contains("PM_ERR_AGAIN")).then_some(output)
        })
    }

    /// Returns the address of this pmcd's socket for clients.
    pub fn local(&self) -> String {
        format!("unix://{}", self.home.path("pmcd.socket").display())
    }

    /// Runs a client.
    pub fn run(&self, program: &str, args: &[&str]) -> Output {
        self.client(program).args(args).output().unwrap()
    }

    /// Runs a client, and returns its output. Panics if it fails.
    #[track_caller]
    pub fn ask(&self, program: &str, args: &[&str]) -> String {
        let output = self.run(program, args);
        assert!(output.status.success(), "{program} {args:?}: {}", told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns a command for a program of PCP that is no client.
    pub fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        apart(&mut command, &self.home).env("PCP_VAR_DIR", self.home.path(""));
        command
    }

    /// Returns the agent's process identifier from its latest log; an agent that has just started writes it in a moment.
    pub fn agent(&self) -> i32 {
        wait_for("the agent's log", || self.home.log().split("pmdacorebcc(").nth(1)?.split(')').next()?.parse().ok())
    }

    pub fn agents_programs(&self) -> Vec<u32> {
        programs_of(self.agent())
    }

    /// Returns the values of a metric by instance name; a single value has the name "".
    #[track_caller]
    pub fn values(&self, metric: &str) -> Vec<(String, String)> {
        values(&self.ask("pminfo", &["-f", metric]))
    }
}

/// Parses the values in the output of `pminfo -f`.
pub fn values(text: &str) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (name, value) = line.trim().split_once("value ")?;
        let name = name.split_once(" or \"").map_or("", |(_, name)| name.trim_end().trim_end_matches("\"]"));
        Some((name.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// Returns the lines of each metric in the output of pminfo, without blank ones.
pub fn blocks(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut blocks = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        // A line of a help text may begin with a name, too.
        let is_head = |rest: &str| ["[", "PMID: "].iter().any(|begin| rest.starts_with(begin));
        if line.starts_with("bcc.") && line.split_once(' ').is_none_or(|(_, rest)| is_head(rest)) {
            name = line.split(' ').next().unwrap().to_owned();
            blocks.insert(name.clone(), vec![line.to_owned()]);
        } else if let (Some(block), false) = (blocks.get_mut(&name), line.is_empty()) {
            block.push(line.to_owned());
        }
    }
    blocks
}

fn run(home: &Home, port: u16, address: Option<Ipv4Addr>) -> Proc {
    let mut command = Command::new(PMCD);
    // Agents as children of pmcd itself; restarts of them left on. Nobody can log in unless the directory says how.
    apart(&mut command, home).env("PMCD_ROOT_AGENT", "0").env("PCP_VAR_DIR", home.path(""));
    command.env("PCP_SASL2_CONFIG_PATH", home.path("sasl2"));
    command.args(["-f", "-A", "-U", "root", "-i", "127.0.0.1", "-p", &port.to_string()]);
    if fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("QEMU TCG CPU")) {
        // An emulated processor prepares two dozen modules for longer than the three seconds that pmcd waits for a new agent.
        command.args(["-q", "30"]);
    }
    if let Some(address) = address {
        command.args(["-i", &address.to_string()]);
    }
    for (option, file) in [("-s", "pmcd.socket"), ("-c", "pmcd.conf"), ("-l", "pmcd.log"), ("-n", "root")] {
        command.arg(option).arg(home.path(file));
    }
    let out = home.create("pmcd.out.log");
    let mut process = Proc(command.stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap());
    wait_for("pmcd to listen", || {
        assert!(process.0.try_wait().unwrap().is_none(), "pmcd ended: {}", home.read("pmcd.log"));
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
    });
    process
}

impl Drop for Pmcd {
    /// Ends pmcd by a signal after which it ends its agents; killed, it would not.
    fn drop(&mut self) {
        if self.process.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.process.signal(Signal::SIGTERM);
            let _ = self.process.0.wait();
        }
    }
}

/// Makes a TCP session of this process and its end, with 1000 bytes to the listening port and 500 back. Returns the ports: that of
/// the side that connected, then the other one.
pub fn session() -> (u16, u16) {
    use std::io::{Read, Write};
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let mut room = [0; 1000];
    client.write_all(&room).unwrap();
    server.read_exact(&mut room).unwrap();
    server.write_all(&room[..500]).unwrap();
    client.read_exact(&mut room[..500]).unwrap();
    (client.local_addr().unwrap().port(), server.local_addr().unwrap().port())
}
