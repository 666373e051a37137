//! PCP's Python programs on the instances of processes: they read each name as a number, a blank and a program.

use crate::instance::Pmcd;
use crate::support::{config, lacks, told, wait_for};
use std::fs;
use std::process::{Command, Output};

const PYTHON: &str = "/usr/bin/python3";

/// Python that sends 1000 bytes over TCP and ends, most often before the agent looks at it.
const SHORT: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
client.send(b'x' * 1000)
";

/// Runs these processes. Returns their identifiers after their end.
fn short_lived() -> Vec<u32> {
    let run = |_| {
        let mut child = Command::new(PYTHON).args(["-I", "-c", SHORT]).spawn().unwrap();
        assert!(child.wait().unwrap().success());
        child.id()
    };
    (0..5).map(run).collect()
}

/// True if `-i` takes a number or a program for all of its instances, as from PCP 6 on; before that it takes whole names.
fn takes_parts_of_names() -> bool {
    let look = "import sys, pcp.pmconfig; sys.exit(not hasattr(pcp.pmconfig.pmConfig, 'get_proc_basename'))";
    Command::new(PYTHON).args(["-c", look]).status().unwrap().success()
}

/// Returns the output of a program. Panics if it failed or wrote to standard error.
#[track_caller]
fn said(what: &str, output: Output) -> String {
    assert!(output.status.success() && output.stderr.is_empty(), "{what}: {}", told(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const METRICS: [&str; 2] = ["bcc.proc.net.tcp.send.bytes", "bcc.proc.io.net.total.tx"];

#[test]
fn pythons_programs_find_instances_by_number_and_by_program() {
    if lacks(&["pmrep", "pcp2csv", "pmlogger", PYTHON]) {
        return;
    }
    let Some(pmcd) = Pmcd::beside(&config(&["sysfork", "netproc", "tcpperpid"]), &[]) else { return };
    let pids = short_lived();
    for metric in METRICS {
        wait_for("the processes", || {
            let names: Vec<String> = pmcd.values(metric).into_iter().map(|(name, _)| name).collect();
            assert!(names.iter().all(|name| name.split(' ').count() >= 2), "{names:?}");
            pids.iter().all(|pid| names.iter().any(|name| name.starts_with(&format!("{pid:06} ")))).then_some(())
        });
    }
    fs::write(pmcd.home.path("log.conf"), "log mandatory on 200 msec { bcc.proc }\n").unwrap();
    fs::create_dir_all(pmcd.home.path("pmlogger")).unwrap();
    let logged = pmcd.client("pmlogger").args(["-c", "log.conf", "-s", "4", "-l", "logger.log", "a"]).output().unwrap();
    assert!(logged.status.success(), "{}{}", told(&logged), pmcd.home.read("logger.log"));

    let mut programs = vec!["pmrep", "pcp2csv"];
    if !lacks(&["pcp2json"]) {
        programs.push("pcp2json");
    }
    let (by_program_alone, by_number_alone) = match takes_parts_of_names() {
        true => ("python3".to_owned(), pids[0].to_string()),
        false => ("[0-9]+ python3.*".to_owned(), format!("{:06} .*", pids[0])),
    };
    for program in programs {
        for metric in METRICS {
            let by_program: Vec<String> = pids.iter().map(|pid| format!("{pid:06} ")).collect();
            let by_number = &by_program[..1];
            for (wanted, names) in [(&by_program_alone, &by_program[..]), (&by_number_alone, by_number)] {
                let of = |command: &mut Command| {
                    let how = ["-t", "0.2", "-r", "-i", wanted, metric];
                    let raw = if program == "pmrep" { &["-o", "csv"][..] } else { &[] };
                    said(program, command.args(raw).args(how).output().unwrap())
                };
                let live = of(pmcd.client(program).args(["-s", "2"]));
                let archived = of(pmcd.program(program).args(["-a", "a"]));
                for text in [live, archived] {
                    assert!(names.iter().all(|name| text.contains(name.as_str())), "{program} -i {wanted}: {text}");
                }
            }
        }
    }
}
