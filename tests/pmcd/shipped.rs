//! Files for PCP's programs (`consumers`): put in place and removed as Install and Remove do it, and used there.

use crate::consumers::{
    any_disk, column, htop, logs_the_groups, on_screen, pmrep, shows_columns, shows_screen, Names, Traffic, EXPECTED,
    GROUP, GROUPS,
};
use crate::instance::{session, values, Pmcd, LINUX, PROC};
use crate::support::{anybody_counts_runs, config, lacks, lacks_host_pids, skip, told, use_disk, wait_for, Proc};
use corebcc::kit::Spec;
use corebcc::modules::MODULES;
use corebcc::reference::pmchart;
use corebcc::reference::views::DASHBOARDS;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// Directories like those of an installed PCP, with the files that Install places in them.
pub struct Placed(TempDir);

impl Placed {
    pub fn new() -> Placed {
        let placed = Placed(TempDir::new().unwrap());
        placed.script("place_consumers");
        placed
    }

    /// Runs a function of registration.sh on these directories.
    #[track_caller]
    fn script(&self, function: &str) {
        let mut command = Command::new("sh");
        command.args(["-euc", &format!(". scripts/registration.sh; {function}")]).current_dir(REPOSITORY);
        let variables = [("PCP_SYSCONF_DIR", "etc"), ("PCP_VAR_DIR", "var"), ("PCP_PMCDCONF_PATH", "etc/pmcd.conf")];
        let output = command.envs(variables.map(|(name, dir)| (name, self.path(dir)))).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{function}: {}", told(&output));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns all files and links.
    fn files(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut left = vec![self.0.path().to_path_buf()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    left.push(entry.path());
                } else {
                    assert!(entry.path().exists(), "{} leads nowhere", entry.path().display());
                    found.insert(entry.path().strip_prefix(self.0.path()).unwrap().display().to_string());
                }
            }
        }
        found
    }
}

#[test]
fn files_are_put_in_place_and_taken_out_again() {
    let placed = Placed::new();
    let both = ["pmchart", "pmlogconf/corebcc", "pmieconf/corebcc", "pmlogrewrite"].iter().flat_map(|directory| {
        let files = fs::read_dir(format!("{}/consumers/{directory}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        files.map(move |file| format!("{directory}/{}", file.unwrap().file_name().display()))
    });
    let wanted: BTreeSet<String> =
        ["pmrep/corebcc.conf", "dstat/corebcc", "htop/columns/corebcc", "htop/meters/corebcc", "htop/screens/corebcc"]
            .map(|name| format!("etc/{name}"))
            .into_iter()
            .chain(both.flat_map(|name| [format!("etc/{name}"), format!("var/config/{name}")]))
            .collect();
    assert_eq!(placed.files(), wanted);
    placed.script("place_consumers");
    assert_eq!(placed.files(), wanted, "a second time");
    // None is called like a file of the PCP that is installed here.
    for name in wanted.iter().filter_map(|name| name.strip_prefix("etc/")).filter(|_| Path::new("/etc/pcp").is_dir()) {
        let owner = Command::new("dpkg").args(["-S", &format!("/etc/pcp/{name}")]).output();
        assert!(!owner.is_ok_and(|owner| owner.status.success()), "{name}");
    }
    placed.script("take_consumers");
    assert_eq!(placed.files(), BTreeSet::new());
}

/// pmlogrewrite ends with an error if two rules rename one metric.
#[test]
fn the_rule_for_old_archives_is_left_out_where_pcp_has_it() {
    let placed = Placed(TempDir::new().unwrap());
    fs::create_dir_all(placed.path("var/config/pmlogrewrite")).unwrap();
    let rule = "metric bcc.proc.io.net.perpid.tcp.send.calls { name -> bcc.proc.net.tcp.send.calls }\n";
    fs::write(placed.path("var/config/pmlogrewrite/bcc_migrate.conf"), rule).unwrap();
    placed.script("place_consumers");
    let files = placed.files();
    assert!(!files.iter().any(|name| name.contains("corebcc_netproc")), "{files:?}");
    assert!(files.contains("var/config/pmlogrewrite/corebcc_cachestat.conf"), "{files:?}");
}

#[test]
fn pmdabpfs_names_are_refused_where_its_agent_is() {
    let placed = Placed(TempDir::new().unwrap());
    fs::create_dir_all(placed.path("etc")).unwrap();
    for (line, there) in [("#bpf\t157\tdso x\n", false), ("bpf\t157\tdso\tbpf_init\tpmda_bpf.so\n", true)] {
        fs::write(placed.path("etc/pmcd.conf"), format!("pmcd\t2\tdso\n{line}[access]\nallow * : all;\n")).unwrap();
        placed.script(&format!("{}bpf_agent", if there { "" } else { "! " }));
    }
}

/// The functions of registration.sh that put programs on the path work in the directory of an agent.
#[test]
fn commands_are_linked_from_the_path_and_nothing_of_others_goes() {
    let placed = Placed(TempDir::new().unwrap());
    let agent = placed.path("agent");
    fs::create_dir_all(&agent).unwrap();
    fs::create_dir_all(agent.join("consumers/pcp")).unwrap();
    for name in
        ["bpf-names", "pmdacorebcc.1", "corebcc.conf.5", "bpf-names.8", "pcp-corebcc.1", "consumers/pcp/pcp-corebcc"]
    {
        fs::write(agent.join(name), name).unwrap();
    }
    fs::write(agent.join("pmdacorebcc"), "#!/bin/sh\necho $1 of $2\n").unwrap();
    fs::set_permissions(agent.join("pmdacorebcc"), fs::Permissions::from_mode(0o755)).unwrap();
    let script = |function: &str| -> String {
        let mut command = Command::new("sh");
        command.args(["-euc", &format!(". {REPOSITORY}/scripts/registration.sh; {function}")]).current_dir(&agent);
        let variables = [
            ("PCP_BIN_DIR", "bin"),
            ("PCP_BINADM_DIR", "pcp"),
            ("PCP_MAN_DIR", "man"),
            ("PCP_SYSCONF_DIR", "etc"),
            ("PCP_SHARE_DIR", "share/pcp"),
        ];
        let output = command.envs(variables.map(|(name, dir)| (name, placed.path(dir)))).output().unwrap();
        assert!(output.status.success(), "{function}: {}", told(&output));
        String::from_utf8(output.stderr).unwrap()
    };
    let links = [
        "bin/pmdacorebcc",
        "bin/bpf-names",
        "man/man1/pmdacorebcc.1",
        "man/man5/corebcc.conf.5",
        "man/man1/pcp-corebcc.1",
    ];
    let commands = ["pcp/pcp-corebcc", "pcp/pcp-biolatency", "pcp/pcp-runqlat"];
    let completions = placed.path("share/bash-completion/completions/pmdacorebcc");
    script("write_completions");
    for round in ["first", "second"] {
        assert_eq!(script("place_commands"), "", "{round} time");
        for link in links {
            let name = Path::new(link).file_name().unwrap();
            assert_eq!(fs::read_link(placed.path(link)).unwrap(), agent.join(name), "{round} time");
        }
        for command in commands {
            let program = fs::read_link(placed.path(command)).unwrap();
            assert_eq!(program, agent.join("consumers/pcp/pcp-corebcc"), "{round} time");
        }
        assert_eq!(fs::read_to_string(&completions).unwrap(), "completions of bash\n", "{round} time");
    }
    script("take_commands");
    assert!(links.iter().chain(&commands).all(|link| placed.path(link).symlink_metadata().is_err()));
    assert!(completions.symlink_metadata().is_err());

    // An earlier release left the man page itself; a program of somebody else is no business of ours.
    fs::write(placed.path("man/man1/pmdacorebcc.1"), "old").unwrap();
    fs::write(placed.path("bin/bpf-names"), "other").unwrap();
    let said = script("place_commands");
    assert!(
        said.starts_with("Warning: cannot link") && said.contains("bin/bpf-names") && said.lines().count() == 1,
        "{said}"
    );
    assert!(fs::read_link(placed.path("man/man1/pmdacorebcc.1")).is_ok());
    script("take_commands");
    assert_eq!(placed.files().iter().filter(|name| !name.starts_with("agent")).collect::<Vec<_>>(), ["bin/bpf-names"]);
}

/// A change by bpf-names only concerns its own lines.
#[test]
fn bpf_names_edits_its_own_lines_of_the_configuration() {
    let placed = Placed(TempDir::new().unwrap());
    let file = placed.path("etc/corebcc/corebcc.conf");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let other = "[pmda]\nmodules = net\n[net]\nMODULE: netproc\ncluster = 40\n# mine\n[netproc]\nmodule = sysfork\n";
    for before in [include_str!("../../corebcc.conf"), other] {
        fs::write(&file, before).unwrap();
        let text = || fs::read_to_string(&file).unwrap();
        placed.script("set_bpf_names off; ! wants_bpf_names");
        assert_eq!(text(), before);
        placed.script("set_bpf_names on; wants_bpf_names");
        let on = text();
        let has_names = |spec: &&&'static Spec| spec.options.iter().any(|option| option.name == "bpf_names");
        let off = MODULES.iter().filter(has_names).fold(on.clone(), |text, spec| {
            let line = spec.name;
            text.replacen(&format!("{line}\nbpf_names = True\n"), &format!("{line}\n"), 1)
        });
        assert_eq!(off, before);
        placed.script("set_bpf_names on");
        assert_eq!(text(), on);
        placed.script("set_bpf_names off; ! wants_bpf_names");
        assert_eq!(text(), before);
        fs::write(&file, before.replace("netproc\ncluster", "netproc\nbpf_names=no\ncluster")).unwrap();
        placed.script("! wants_bpf_names; set_bpf_names on");
        assert_eq!(text(), on);
    }
}

/// Path of the sets: a file, since pmrep of PCP 5.2 reads no directory.
const SETS: &str = "etc/pmrep/corebcc.conf";

#[test]
fn pmrep_shows_the_shipped_sets() {
    if lacks(&["pmrep"]) {
        return;
    }
    let Some(pmcd) = Names::Ours.served() else { return };
    let placed = Placed::new();
    let traffic = Traffic::steady();
    for (set, columns) in [(":bcc-net", 4), (":bcc-net-calls", 4), (":bcc-activity", 4)] {
        let output = pmcd.pmrep(&placed.path(SETS), &["-s", "3", "-t", "0.3", set]);
        assert!(output.status.success() && output.stderr.is_empty(), "{set}: {}", told(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // A row per process: its whole name, then the values, the last time as numbers; as wide as a terminal.
        let row = text.lines().rev().find_map(|line| line.trim_start().strip_prefix(&traffic.instance()));
        let row = row.unwrap_or_else(|| panic!("{set}: no row in {text}"));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{set}: {text}");
        let title = text.lines().find_map(|line| line.split_whitespace().next()).unwrap();
        assert_eq!(title, "Process", "{set}: {text}");
        // All columns have something for it (`~`: nothing), and ours a number.
        let fields: Vec<&str> = row.split_whitespace().collect();
        let moved: Option<f64> = fields[columns - 1].parse().ok();
        assert!(fields.len() == columns && !fields.contains(&"~") && moved > Some(0.0), "{set}: {text}");
    }
    let rows = pmrep(&pmcd, &placed.path(SETS), &[":bcc-net"]);
    assert_eq!(rows.len(), 4, "{rows:?}");
}

/// Configuration of all that the sets and plugins show, with its options.
fn shown() -> String {
    let modules = ["biolatency", "runqlat", "sysfork", "netproc", "tcptop", "exectop", "cgroup_disk", "cgroup_runq"];
    let text = config(&modules).replace("[biolatency]\n", "[biolatency]\nby_size = True\n");
    text.replace("[runqlat]\n", "[runqlat]\nper_cpu = True\n")
}

#[test]
fn each_set_of_pmrep_has_values_and_fits_a_terminal() {
    if lacks(&["pmrep"]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&shown(), &[LINUX]) else { return };
    let placed = Placed::new();
    let cgroups = pmcd.values("bcc.agent.module.up").contains(&("cgroup_disk".into(), "1".into()));
    let text = fs::read_to_string(placed.path(SETS)).unwrap();
    let sets = text.split("\n[").skip(1).map(|set| set.split_once("]\n").unwrap());
    // The three sets by process have a test of their own.
    for (set, lines) in sets.filter(|(set, _)| !["bcc-net", "bcc-net-calls", "bcc-activity"].contains(set)) {
        let columns = lines.lines().filter(|line| line.starts_with("bcc.") || line.starts_with("disk.")).count();
        if lines.contains("bcc.cgroup.disk") && !cgroups {
            skip(&format!("cgroups with block I/O, for the set {set}"));
            continue;
        } else if lines.contains(".disk.") && !use_disk() {
            skip(&format!("a disk that counts requests, for the set {set}"));
            continue;
        }
        wait_for(&format!("numbers in {set}"), || {
            use_disk();
            session();
            let output = pmcd.pmrep(&placed.path(SETS), &["-s", "2", "-t", "0.3", &format!(":{set}")]);
            assert!(output.status.success() && output.stderr.is_empty(), "{set}: {}", told(&output));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            println!("{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{set}: {text}");
            // There may be no reads of a disk.
            let numbers = |line: &str| line.split_whitespace().filter(|field| field.parse::<f64>().is_ok()).count();
            text.lines().any(|line| 2 * numbers(line) >= columns).then_some(())
        });
    }
}

#[test]
fn each_plugin_of_dstat_has_values() {
    if lacks(&["pcp", "/usr/lib/pcp/bin/pcp-dstat"]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&shown(), &[]) else { return };
    let text = include_str!("../../consumers/dstat/corebcc");
    // Where dstat looks for a user's plugins.
    let plugins = pmcd.home.path(".pcp/dstat");
    fs::create_dir_all(&plugins).unwrap();
    fs::write(plugins.join("corebcc"), text).unwrap();
    let has_disks = use_disk();
    for plugin in text.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']')) {
        if !has_disks && plugin.contains("disk") {
            skip(&format!("a disk that counts requests, for the plugin {plugin}"));
            continue;
        }
        wait_for(&format!("values of {plugin}"), || {
            use_disk();
            session();
            let mut dstat = pmcd.program("pcp");
            dstat.env_remove("PCP_VAR_DIR").env("HOME", pmcd.home.path(""));
            let host = format!("localhost:{}", pmcd.port);
            let output =
                dstat.args(["-h", &host, "dstat", "--nocolor", &format!("--{plugin}"), "1", "2"]).output().unwrap();
            let text = told(&output);
            println!("{text}");
            assert!(output.status.success() && output.stderr.is_empty(), "{plugin}: {text}");
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .skip(2)
                .any(|line| line.contains(|c: char| ('1'..='9').contains(&c)))
                .then_some(())
        });
    }
}

/// If PCP's own group is enabled as well, pmlogger logs both, even under different names.
#[test]
fn the_shipped_group_is_logged_also_beside_pcps_own() {
    const OURS: (&str, Names) = ("corebcc/netproc", Names::Ours);
    if lacks(&["pmlogconf", "pmlogger"]) {
        return;
    }
    let Some(pmcd) = Names::Ours.served() else { return };
    let placed = Placed::new();
    let groups = placed.path("var/config/pmlogconf");
    logs_the_groups(&pmcd, &groups, &[OURS]);
    let own = format!("{GROUPS}/{GROUP}");
    fs::create_dir_all(groups.join("networking")).unwrap();
    for names in Names::tried(&own) {
        let Some(pmcd) = names.served() else { return };
        names.copy(&own, &pmcd, "own");
        fs::copy(pmcd.home.path("own"), groups.join(GROUP)).unwrap();
        logs_the_groups(&pmcd, &groups, &[OURS, (GROUP, names)]);
    }
}

/// With the modules of the shipped configuration all metrics with values go into the archive, and no others.
#[test]
fn what_runs_by_default_is_logged_and_so_is_the_agent() {
    if lacks(&["pmlogconf", "pmlogger"]) {
        return;
    }
    for (modules, histograms) in [(&["sysfork", "biolatency", "runqlat"][..], true), (&["sysfork"], false)] {
        let Some(pmcd) = Pmcd::beside(&config(modules), &[]) else { return };
        if histograms {
            // Quantiles have a value once the agent has looked at waits of its own life.
            wait_for("a quantile", || {
                let output = pmcd.client("pminfo").args(["-f", "bcc.runq.all.p99"]).output().unwrap();
                (!values(&String::from_utf8_lossy(&output.stdout)).is_empty()).then_some(())
            });
        }
        let placed = Placed::new();
        let mut command = pmcd.client("pmlogconf");
        command.args(["-c", "-q", "-d"]).arg(placed.path("var/config/pmlogconf"));
        let output = command.arg("logger.conf").output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
        let mut command = pmcd.client("pmlogger");
        let output =
            command.args(["-c", "logger.conf", "-t", "0.2", "-s", "4", "-l", "logger.log", "a"]).output().unwrap();
        assert!(output.status.success(), "{}{}", told(&output), pmcd.home.read("logger.log"));
        let logged = |metric: &str| {
            let output = pmcd.program("pminfo").args(["-a", "a", "-f", metric]).output().unwrap();
            values(&String::from_utf8_lossy(&output.stdout))
        };
        for metric in ["bcc.disk.all.latency", "bcc.runq.latency"] {
            assert_eq!(logged(metric).iter().any(|(name, _)| name == "0-1"), histograms, "{metric}");
        }
        assert_eq!(!logged("bcc.runq.all.count").is_empty(), histograms);
        assert_eq!(logged("bcc.runq.all.p99").len(), usize::from(histograms));
        assert!(logged("bcc.runq.all.bucket").is_empty(), "for those who choose it");
        assert!(logged("bcc.proc.net.tcp.send.bytes").is_empty());
        let of = |metric: &str, module: &str| logged(metric).into_iter().find(|(name, _)| name == module).unwrap().1;
        assert_eq!(of("bcc.agent.module.up", "sysfork"), "1");
        assert!(of("bcc.agent.module.status", "sysfork").contains("attached to"));
        assert!(of("bcc.agent.module.status", "netproc").contains("not enabled"));
        for metric in ["bcc.agent.restarts", "bcc.agent.crashes", "bcc.agent.memory.resident", "bcc.agent.version"] {
            assert_eq!(logged(metric).len(), 1, "{metric}");
        }
        assert_eq!(logged("bcc.agent.summary.modules.running")[0].1, modules.len().to_string());
        assert_eq!(logged("bcc.agent.summary.modules.failed")[0].1, "0");
        assert_eq!(logged("bcc.agent.summary.losses").len(), 1);
        // Statistics may be somebody else's setting; the agent does not turn them on.
        assert!(
            logged("bcc.agent.summary.cpu.programs").is_empty() || anybody_counts_runs(),
            "program statistics are off"
        );
        assert!(logged("bcc.agent.metric.status").is_empty(), "for those who choose it: 43 KB a record");
        assert_eq!(!logged("bcc.agent.lost.events").is_empty(), histograms);
    }
}

#[test]
fn pcp_htop_shows_the_shipped_columns() {
    // pcp-htop of PCP 5.2 has no columns from files.
    if lacks(&["/usr/lib/pcp/bin/pcp-htop", "/usr/share/pcp/htop/columns/udp", "script"]) {
        return;
    }
    let Some(pmcd) = Names::Ours.served() else { return };
    let placed = Placed::new();
    let traffic = Traffic::done();
    let columns = EXPECTED.map(|(name, _)| format!("bcc_{}", column(name)));
    shows_columns(&pmcd, &traffic, &columns, &placed.path("etc"));
}

#[test]
fn pcp_htop_shows_the_shipped_meters() {
    if lacks(&["/usr/lib/pcp/bin/pcp-htop", "/usr/share/pcp/htop/meters/tcp", "script"]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&shown(), &[LINUX]) else { return };
    wait_for("a quantile", || (!pmcd.values("bcc.runq.all.p99").is_empty()).then_some(()));
    let placed = Placed::new();
    let meters = "left_meters=Dynamic(bcc_disk) Dynamic(bcc_runq)\nleft_meter_modes=2 2\nright_meters=Tasks\nright_meter_modes=2\n";
    fs::write(
        pmcd.home.path("htoprc"),
        format!("htop_version=3.2.0\nconfig_reader_min_version=2\nfields=0 1\n{meters}"),
    )
    .unwrap();
    let mut terminal = htop(&pmcd, "-C -d 5", &placed.path("etc"));
    let meter = regex::Regex::new(r"Run queue us: ?p50: ?\d+(\.\d+)? p99: ?\d+(\.\d+)? max: ?\d+").unwrap();
    wait_for("the meters", || {
        use_disk();
        let screen = on_screen(&pmcd);
        (meter.is_match(&screen) && screen.contains("Disk us")).then_some(())
    });
    terminal.0.stdin.take().unwrap().write_all(b"q").unwrap();
    assert!(terminal.end().success());
}

/// Each of its screens has a row of known work; they are off as they come.
#[test]
fn pcp_htop_shows_the_shipped_screens() {
    if lacks(&["/usr/lib/pcp/bin/pcp-htop", "/usr/share/pcp/htop/screens/exitsnoop", "script"]) || lacks_host_pids() {
        return;
    }
    let modules = ["sysfork", "biolatency", "biotop", "tcptop", "exectop", "cgroup_disk"];
    let Some(pmcd) = Pmcd::beside(&config(&modules), &[PROC, LINUX]) else { return };
    let placed = Placed::new();
    let shipped = fs::read_to_string(placed.path("etc/htop/screens/corebcc")).unwrap();
    let own = std::process::id();
    let rows = [
        ("bcc_disks", &*format!(r"({}) \d+\S* (\d|N/A)", any_disk())),
        ("bcc_cgroups", r"(\d|N/A) /"),
        ("bcc_tcp", &format!(r"{own} \S+ 127\.0\.0\.1 \d+ 127\.0\.0\.1 \d+ 1?[05]0[0-2]")),
        ("bcc_bio", &format!(r"{own} W \S+ \d+ \d+")),
        ("bcc_exec", r"\d true"),
    ];
    for (screen, row) in rows {
        if matches!(screen, "bcc_disks" | "bcc_bio" | "bcc_cgroups") && !use_disk() {
            skip(&format!("a disk that counts requests, for the screen {screen}"));
            continue;
        }
        if screen == "bcc_cgroups" && pmcd.values("bcc.cgroup.disk.name").is_empty() {
            skip(&format!("cgroups with block I/O, for the screen {screen}"));
            continue;
        }
        let (before, after) = shipped.split_once(&format!("[{screen}]")).unwrap();
        let on = after.replacen("default = false", "default = true", 1);
        fs::write(placed.path("etc/htop/screens/corebcc"), format!("{before}[{screen}]{on}")).unwrap();
        shows_screen(&pmcd, &placed.path("etc"), screen, row, || {
            Command::new("/bin/true").status().unwrap();
            session();
            use_disk();
        });
    }
}

/// Views of pmchart: it knows every metric of the modules that run, and draws an archive.
#[test]
fn pmchart_draws_the_shipped_views() {
    const PMCHART: &str = "/usr/bin/pmchart";
    if lacks(&[PMCHART, "pmlogger"]) {
        return;
    }
    let modules = ["sysfork", "biolatency", "runqlat", "netproc", "exectop", "syscount", "cgroup_disk", "softirqs"];
    let Some(pmcd) = Pmcd::beside(&config(&modules), &[]) else { return };
    let placed = Placed::new();
    let chart = |view: &str, source: &[&str], args: &[&str]| {
        let mut command = pmcd.program(PMCHART);
        // Messages would be windows.
        command
            .env("QT_QPA_PLATFORM", "offscreen")
            .env("PCP_STDERR", "messages")
            .env("XDG_RUNTIME_DIR", pmcd.home.path(""));
        let output =
            command.args(source).args(["-c", &placed.path(&format!("etc/pmchart/{view}")).display().to_string()]);
        let output = output.args(args).output().unwrap();
        let messages = fs::read_to_string(pmcd.home.path("messages")).unwrap_or_default();
        let _ = fs::remove_file(pmcd.home.path("messages"));
        assert!(output.status.success(), "{view}: {messages}{}", told(&output));
        messages
    };
    let served = pmcd.ask("pminfo", &["bcc"]);
    let served: BTreeSet<&str> = served.lines().collect();
    let views: Vec<String> = DASHBOARDS.iter().flat_map(pmchart::views).map(|(name, _)| name).collect();
    for view in &views {
        let messages = chart(view, &["-h", &pmcd.local()], &["-C", "-C"]);
        for line in messages.lines().filter(|line| !line.is_empty()) {
            let metric = line.split(": Unknown metric name").next().unwrap().rsplit(':').next().unwrap();
            assert!(line.contains("Unknown metric name") && !served.contains(metric), "{view}: {line}");
        }
        assert!(messages.is_empty() || view != "Bcc.Overview", "{messages}");
    }

    fs::write(pmcd.home.path("log.conf"), "log mandatory on 200 msec { bcc.disk.all bcc.runq }\n").unwrap();
    let mut logger =
        Proc(pmcd.client("pmlogger").args(["-c", "log.conf", "-T", "5sec", "-l", "logger.log", "a"]).spawn().unwrap());
    let disks = (0..20).fold(false, |any, _| {
        std::thread::sleep(Duration::from_millis(200));
        use_disk() || any
    });
    assert!(logger.end().success(), "{}", pmcd.home.read("logger.log"));
    chart("Bcc.Overview", &["-a", "a"], &["-O", "-0", "-t", "0.2", "-g", "800x900", "-o", "a.ppm"]);
    // A portable pixmap: three numbers, then three bytes a pixel.
    let picture = fs::read(pmcd.home.path("a.ppm")).unwrap();
    let colours: BTreeSet<&[u8]> = picture[picture.len() % 3..].chunks(3).collect();
    let has = |red, green, blue| colours.contains(&[red, green, blue][..]);
    assert!(has(0xff, 0x7f, 0x0e), "p99 of the run queue is not on {} colours", colours.len());
    assert!(has(0, 0xff, 0x40), "waits of up to 32 us are not on {} colours", colours.len());
    assert!(!disks || has(0x1f, 0x77, 0xb4), "reads or writes are not on {} colours", colours.len());
}

#[test]
fn pmdabpfs_names_have_types_units_identifiers_and_help() {
    let Some(pmcd) = Names::Pmdabpfs.served() else { return };
    let traffic = Traffic::done();
    for (name, value) in EXPECTED {
        let theirs = Names::Pmdabpfs.name(name);
        let output = pmcd.run("pminfo", &["-d", "-f", "-m", "-T", &theirs]);
        let text = told(&output);
        let units = if name.ends_with("bytes") { "byte" } else { "count" };
        let line = format!("inst [{} or \"{}\"] value {value}", traffic.pid(), traffic.instance());
        let wanted = [
            "PMID: 149.40.",
            "64-bit unsigned int  InDom: 149.40 ",
            &format!("counter  Units: {units}"),
            "Help:",
            &line,
        ];
        assert!(wanted.iter().all(|part| text.contains(part)), "{theirs}: {text}");
        assert!(output.status.success() && output.stderr.is_empty(), "{theirs}: {text}");
    }
}

#[test]
fn without_the_option_there_is_nothing_below_bpf() {
    let Some(pmcd) = Names::Ours.served() else { return };
    let root = pmcd.home.read("root").replacen("root {", "root {\n    bpf 149:*:*", 1);
    fs::write(pmcd.home.path("root"), root).unwrap();
    let mut pmcd = pmcd;
    pmcd.again(nix::sys::signal::Signal::SIGTERM);
    pmcd.wait_for_values();
    assert!(!told(&pmcd.run("pminfo", &["bpf"])).contains("bpf.proc"));
    assert!(!pmcd.run("pminfo", &["-d", "bpf.proc.net.tcp.send.bytes"]).status.success());
}

/// Archives in the form before PCP 5.3, and with cachestat as the Python agent logged it, are made from one of this agent by the
/// opposite rules, and brought back by the shipped ones.
#[test]
fn pmlogrewrite_brings_old_archives_to_the_metadata_of_now() {
    const REWRITE: &str = "/usr/lib/pcp/bin/pmlogrewrite";
    if lacks(&[REWRITE, "pmlogger"]) || lacks_host_pids() {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&config(&["netproc", "cachestat", "sysfork"]), &[]) else { return };
    let traffic = Traffic::done();
    fs::write(pmcd.home.path("log.conf"), "log mandatory on 100 msec { bcc.proc.net bcc.mem }\n").unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let output =
        pmcd.client("pmlogger").args(["-c", "log.conf", "-s", "3", "-l", "logger.log", "now"]).output().unwrap();
    assert!(output.status.success(), "{}{}", told(&output), pmcd.home.read("logger.log"));

    let renamed = |name: &str| name.replace("bcc.proc.net", "bcc.proc.io.net.perpid");
    let mut opposite: String =
        EXPECTED.iter().map(|(name, _)| format!("metric {name} {{ name -> {} }}\n", renamed(name))).collect();
    for name in ["buffers", "cached"] {
        opposite += &format!("metric bcc.mem.vmstat.{name} {{ sem -> counter }}\n");
    }
    fs::write(pmcd.home.path("opposite"), opposite).unwrap();
    // For its table of domains, which pmlogrewrite of PCP 7 looks at.
    std::os::unix::fs::symlink("/var/lib/pcp/pmns", pmcd.home.path("pmns")).unwrap();
    let placed = Placed::new();
    let run = |program: &str, args: &[&str]| {
        let output = pmcd.program(program).args(args).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{program} {args:?}: {}", told(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(REWRITE, &["-c", "opposite", "now", "old"]);
    assert!(run("pminfo", &["-d", "-a", "old", "bcc.mem.vmstat.cached"]).contains("counter"));
    run("pminfo", &["-a", "old", &renamed(EXPECTED[0].0)]);
    run(REWRITE, &["-c", &placed.path("etc/pmlogrewrite").display().to_string(), "old", "again"]);
    for option in ["-d", "-f"] {
        assert_eq!(run("pminfo", &[option, "-a", "again"]), run("pminfo", &[option, "-a", "now"]));
    }
    let sends = values(&run("pminfo", &["-f", "-a", "again", EXPECTED[1].0]));
    assert!(sends.contains(&(traffic.instance(), EXPECTED[1].1.to_string())), "{sends:?}");
}
