//! Statement 72: dbpmda completes all of its requests, on every metric.

use crate::instance::session;
use crate::support::{
    lacks, lacks_bpf,
    rows::{rows, BUCKETS_OF_SERIES, HISTOGRAMS, INDOMS},
    use_disk, wait_for, Home, Proc, ALL, BINARY,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// Returns dbpmda's output by command.
fn dbpmda(home: &Home, open: &str, ready: impl Fn(), commands: &[String]) -> BTreeMap<String, String> {
    fs::write(home.path("root"), "root {\n    bcc 149:*:*\n}\n").unwrap();
    let mut command = Command::new("dbpmda");
    command.args(["-ie", "-n"]).arg(home.path("root"));
    home.keep(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(home.create("dbpmda.log"));
    let mut process = Proc(command.spawn().unwrap());
    let mut input = process.0.stdin.take().unwrap();
    writeln!(input, "{open}").unwrap();
    ready();
    let mut output = process.0.stdout.take().unwrap();
    let commands = commands.join("\n");
    let writer = std::thread::spawn(move || write!(input, "{commands}\nquit\n").unwrap());
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    writer.join().unwrap();
    assert_eq!(process.end().code(), Some(0), "{text}");
    let said = text.split("dbpmda> ").filter_map(|part| part.split_once('\n'));
    said.map(|(command, reply)| (command.to_owned(), reply.to_owned())).collect()
}

#[test]
fn c72_dbpmda_completes_every_request_on_every_metric() {
    if lacks_bpf() || lacks(&["dbpmda"]) {
        return;
    }
    let home = Home::new(ALL);
    let mut commands = Vec::new();
    for row in rows() {
        let id = format!("149.{}.{}", row.cluster, row.item);
        for verb in ["desc", "fetch", "text", "label item", "pmid", "children", "traverse"] {
            commands.push(format!("{verb} {}", row.name));
        }
        commands.push(format!("name {id}"));
        commands.push(format!("label cluster 149.{}", row.cluster));
        commands.push(format!("store {} \"1\"", row.name));
    }
    for serial in INDOMS {
        for verb in ["instance", "text indom", "label indom", "label instances"] {
            commands.push(format!("{verb} 149.{serial}"));
        }
    }
    commands.extend(
        ["label domain", "label context", "children bcc", "traverse bcc", "children bcc.proc"].map(String::from),
    );
    let open = format!("open pipe {BINARY} -d 149 -c {0}/corebcc.conf -l {0}/corebcc.log", home.path("").display());
    let disks = Cell::new(false);
    let ready = || {
        home.wait_for_log("ready: ");
        session();
        // An exec and a fork, so that exectop has an instance on a machine that does nothing else.
        assert!(Command::new("true").status().unwrap().success());
        disks.set(use_disk());
    };
    let said = dbpmda(&home, &open, ready, &commands);
    let reply =
        |command: &str| said.get(command).unwrap_or_else(|| panic!("no reply to {command}: {said:#?}")).as_str();

    for row in rows() {
        let id = format!("149.{}.{}", row.cluster, row.item);
        let has = |command: &str, part: &str| {
            let text = reply(command);
            assert!(text.contains(part) && !text.contains("IPC protocol"), "{command}: no `{part}` in {text}");
        };
        has(&format!("desc {}", row.name), &format!("PMID: {id}\n"));
        has(&format!("desc {}", row.name), &format!("Units: {}\n", row.units));
        let idle = row.module == "biolatency" && !disks.get();
        has(&format!("fetch {}", row.name), if idle { "numpmid: 1" } else { "numval: " });
        has(&format!("text {}", row.name), "[");
        has(&format!("label item {}", row.name), "returns 0 label sets");
        has(&format!("pmid {}", row.name), &id);
        has(&format!("children {}", row.name), &format!("Metric: {}\n", row.name));
        has(&format!("traverse {}", row.name), row.name);
        has(&format!("name {id}"), row.name);
        has(&format!("label cluster 149.{}", row.cluster), &format!("bcc_module=\"{}\"", row.module));
        if !idle {
            has(&format!("store {} \"1\"", row.name), "No permission to perform requested operation");
        }
        assert!(reply("traverse bcc").contains(row.name));
    }
    for serial in INDOMS {
        let indom = format!("149.{serial}");
        assert!(reply(&format!("instance {indom}")).starts_with(&format!("pmInDom: {indom}\n")), "{indom}");
        assert!(reply(&format!("text indom {indom}")).contains('['), "{indom}");
        let histogram = HISTOGRAMS.contains(&serial) || BUCKETS_OF_SERIES.contains(&serial);
        assert_eq!(reply(&format!("label indom {indom}")).contains("statistic=\"histogram\""), histogram, "{indom}");
    }
    assert!(reply("label instances 149.4").contains("lower_bound=0"), "{}", reply("label instances 149.4"));
    assert!(reply("label domain").contains("agent=\"bcc\""));
    assert!(reply("label context").contains("0 label sets"));
    assert!(["disk", "proc", "runq"].iter().all(|child| reply("children bcc").contains(child)));
    assert!(reply("children bcc.proc").contains("leaf sysfork"), "{}", reply("children bcc.proc"));
    assert!(!said.values().any(|text| text.contains("timed out") || text.contains("PM_ERR_IPC")), "{said:#?}");
}

#[test]
fn c69_dbpmda_meets_the_agent_over_its_sockets() {
    if lacks_bpf() || lacks(&["dbpmda"]) {
        return;
    }
    for (option, open) in [("-u", "unix"), ("-i", "inet"), ("-6", "ipv6")] {
        let home = Home::new(ALL);
        let place = match option {
            "-u" => home.path("agent.sock").display().to_string(),
            _ => crate::instance::port().to_string(),
        };
        let mut agent = Proc(home.agent(&[option, &place]).spawn().unwrap());
        let there = || home.log().contains("waiting for pmcd on").then_some(()).or(agent_ended(&home));
        wait_for("the agent to listen", there);
        if home.log().contains("cannot listen on loopback port") && option == "-6" {
            crate::support::skip("an IPv6 loopback address");
            continue;
        }
        let commands = ["desc bcc.proc.sysfork".to_owned(), "fetch bcc.proc.sysfork".to_owned()];
        let ready = || home.wait_for_log("ready: ");
        let said = dbpmda(&home, &format!("open socket {open} {place}"), ready, &commands);
        assert!(said["desc bcc.proc.sysfork"].contains("PMID: 149.2.0"), "{option}: {said:#?}");
        assert!(said["fetch bcc.proc.sysfork"].contains("numval: 1"), "{option}: {said:#?}");
        assert_eq!(agent.end().code(), Some(0), "{option}");
    }
}

fn agent_ended(home: &Home) -> Option<()> {
    home.log().contains("Log finished").then_some(())
}
