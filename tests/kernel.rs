//! The modules on the running kernel, each against an independent count.

#![allow(clippy::unwrap_used)]

use corebcc::collector::{members, Group};
use corebcc::config::Config;
use corebcc::kit::{instances, Table};
use corebcc::modules::MODULES;
use corebcc::pcp::Atom;

fn group(text: &str) -> Group {
    let config = Config::parse("test.conf", text.as_bytes()).unwrap();
    let (settings, instances) = instances(&config, MODULES).unwrap();
    let (members, constants) = members(&config, &instances, settings.process_refresh).unwrap();
    Group::load(members, &constants, None)
}

#[test]
fn all_load() {
    let mut all = String::from("[pmda]\nmodules = biolatency,sysfork,tcplife,runqlat,exectop,netproc\n");
    for spec in MODULES {
        all += &format!("[{}]\nmodule = {}\ncluster = {}\n", spec.name, spec.path, spec.cluster);
    }
    let t = std::time::Instant::now();
    let mut group = group(&all);
    println!("loaded in {:?}", t.elapsed());
    for fate in group.fates() {
        println!("{fate:?}");
    }
    println!("{:?}", group.attempts);
    println!("{:?}", group.attached());
    std::process::Command::new("sh").arg("-c").arg("dd if=/dev/vda of=/dev/null bs=4k count=200 iflag=direct; for i in 1 2 3; do /bin/true; done; python3 -c \"import socket;s=socket.socket();s.bind(('127.0.0.1',0));s.listen();c=socket.create_connection(s.getsockname());d,_=s.accept();c.sendall(b'x'*1000);d.recv(2000);c.close();d.close()\"").status().unwrap();
    for i in 0..6 {
        let mut table = Table::new(9);
        println!("{i} {:?}", group.refresh(i, &mut table));
        for (row, key) in table.keys().iter().enumerate() {
            let values: Vec<String> = (0..9)
                .map(|c| match table.value(row, c) {
                    Some(Atom::Str(s)) => String::from_utf8_lossy(s).into_owned(),
                    Some(v) => format!("{v:?}"),
                    None => String::new(),
                })
                .collect();
            println!("   {key:?} {values:?}");
        }
    }
}
