//! cgroup_net: known calls and bytes over loopback from a cgroup of the test.

use crate::cgroups::{hierarchy, Cgroup};
use crate::common::lacks;
use crate::netproc::{connected, EVERY_WAY};
use crate::support::{alone, Agent, Script, IPV4, IPV6};
use corebcc::host::Controller;

/// Returns calls and bytes of a cgroup, in the order of the items.
fn values(agent: &mut Agent, cgroup: &str) -> [u64; 8] {
    std::array::from_fn(|column| agent.numbers(column).get(cgroup).copied().unwrap_or_default())
}

fn step(agent: &mut Agent, script: &mut Script, cgroup: &str) -> (String, [u64; 8]) {
    let before = values(agent, cgroup);
    script.go();
    let line = script.line();
    let after = values(agent, cgroup);
    (line, std::array::from_fn(|column| after[column] - before[column]))
}

#[test]
fn traffic_counts_for_the_cgroup_of_the_process() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    for (number, meeting) in [IPV4, IPV6].iter().enumerate() {
        let (cgroup, other) = (Cgroup::make(&cgroups, &format!("net{number}")), Cgroup::make(&cgroups, "beside"));
        let mut agent = Agent::new("cgroup_net", "");
        let (mut script, mut beside) = (connected(meeting, "every way"), connected(meeting, "every way"));
        assert_eq!((script.line(), beside.line()), ("connected".into(), "connected".into()));
        cgroup.take(script.pid());
        other.take(beside.pid());
        for (name, numbers) in EVERY_WAY {
            let (line, grown) = step(&mut agent, &mut script, &cgroup.name);
            assert_eq!((&line[..], grown), (name, numbers), "{}", cgroup.name);
        }
        assert_eq!(values(&mut agent, &other.name), [0; 8], "it has not begun");
        let total =
            EVERY_WAY.iter().fold([0; 8], |sum: [u64; 8], (_, one)| std::array::from_fn(|at| sum[at] + one[at]));
        EVERY_WAY.iter().for_each(|_| drop((beside.go(), beside.line())));
        assert_eq!(values(&mut agent, &other.name), total, "all in one");
        assert_eq!(values(&mut agent, &cgroup.name), total);
        println!("{}: {total:?}", meeting.family);
    }
}

/// With room for fewer cgroups than there are, the sum over all is right nevertheless.
#[test]
fn cgroups_without_a_row_count_for_other() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    let mut agent = Agent::new("cgroup_net", "max_cgroups = 8");
    let mut script = Script::python(
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         while True:\n step('sent')\n u.sendto(b'x' * 77, ('127.0.0.1', 9))",
    );
    script.line();
    let made: Vec<Cgroup> = (0..100).map(|number| Cgroup::make(&cgroups, &format!("many{number}"))).collect();
    let sums = |agent: &mut Agent| [4, 5].map(|column| agent.numbers(column).into_values().sum::<u64>());
    let before = sums(&mut agent);
    for cgroup in &made {
        cgroup.take(script.pid());
        script.go();
        script.line();
    }
    let (after, rows) = (sums(&mut agent), agent.numbers(4));
    println!("{} rows, other {:?}", rows.len(), rows.get("other"));
    assert_eq!([after[0] - before[0], after[1] - before[1]], [100, 7700], "{rows:?}");
    assert!(rows.len() <= 9 && rows["other"] >= 92, "{rows:?}");
    // A cgroup with a process in it cannot be removed.
    drop(script);
}

/// A client in a network of its own, with a server in another one: nothing else passes between them.
const PAIR: &str = "\
import ctypes, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def apart():
 if libc.unshare(0x40000000): raise OSError(ctypes.get_errno(), 'a network namespace')
def reached(pid, device, address):
 lines = [f'echo 1 > /proc/sys/net/ipv6/conf/{device}/disable_ipv6', f'ip link set {device} arp off up', f'ip addr add {address}/24 dev {device}']
 for line in lines: subprocess.run(['nsenter', '-t', str(pid), '-n', 'sh', '-c', line], check=True)
apart()
ready, go = os.pipe(), os.pipe()
peer = os.fork()
if not peer:
 libc.prctl(1, 9) # PR_SET_PDEATHSIG
 apart()
 os.write(ready[1], b'x')
 os.read(go[0], 1)
 u, t = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket()
 for each in u, t: each.bind(('10.9.0.2', 7))
 t.listen()
 os.write(ready[1], b'x')
 for _ in range(100):
  data, client = u.recvfrom(2000)
  u.sendto(data, client)
 c, _ = t.accept()
 left = 300000
 while left: left -= len(c.recv(65536))
 c.sendall(b'y' * 200000)
 c.close()
 os.read(go[0], 1) # the network ends with it
 os._exit(0)
os.read(ready[0], 1)
address = '02:00:00:00:00:01'
subprocess.run(f'ip link add name va address {address} type veth peer name vb address {address} netns {peer}'.split(), check=True)
reached(os.getpid(), 'va', '10.9.0.1')
reached(peer, 'vb', '10.9.0.2')
os.write(go[1], b'x')
os.read(ready[0], 1)
step('connected')
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(100):
 u.sendto(b'x' * 10 * number, ('10.9.0.2', 7))
 u.recv(2000)
t = socket.create_connection(('10.9.0.2', 7))
t.sendall(b'x' * 300000)
while t.recv(65536): pass
t.close()
time.sleep(0.5)
counts = [line.split() for line in open('/proc/self/net/dev') if line.split()[0] == 'va:'][0]
os.write(go[1], b'x')
step(*[counts[column] for column in (2, 1, 10, 9)])
";

#[test]
fn packets_are_those_of_the_network_device() {
    let _alone = alone();
    let Some(cgroups) = hierarchy(Controller::Unified) else { return };
    if lacks(&["ip", "nsenter"]) {
        return;
    }
    let cgroup = Cgroup::make(&cgroups, "packets");
    let mut agent = Agent::new("cgroup_net", "packets = True");
    let mut script = Script::python(PAIR);
    assert_eq!(script.line(), "connected");
    cgroup.take(script.pid());
    script.go();
    let [in_count, in_bytes, out_count, out_bytes] = script.numbers()[..] else { panic!("four numbers") };
    /// Size in bytes of the header of Ethernet, which is no part of an IP packet.
    const ETHERNET: u64 = 14;
    let counted = [9, 10, 11, 12].map(|column| agent.numbers(column).get(&cgroup.name).copied().unwrap_or_default());
    println!("{counted:?}");
    assert!(in_count > 100 && out_count > 100);
    assert_eq!(counted, [in_count, in_bytes - in_count * ETHERNET, out_count, out_bytes - out_count * ETHERNET]);
    drop(script); // a cgroup with a process in it cannot be removed
}
