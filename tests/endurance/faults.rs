//! Faults on purpose, one after the other at random: after each the agent serves right within ten seconds.

use crate::instance::session;
use crate::number;
use crate::peer::{Peer, SECOND};
use crate::place::{mount_pins, pinned, Allowed, Place, Told, PINS};
use crate::reference::pmcd as wire;
use crate::support::loops::{read_blocks, Loop};
use crate::support::script::{part, python};
use crate::support::{config, Group, Home, Proc, ONE};
use corebcc::pcp::Pmid;
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sys::resource::{rlim_t, Resource};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LOG: &str = "log mandatory on 1 sec { bcc.proc.sysfork bcc.disk.dev.read.total }\n";
/// Modules of each kind: pinned and not, tables, rows of events, processes, shared programs.
const MODULES: [&str; 9] =
    ["biolatency", "sysfork", "runqlat", "exectop", "netproc", "tcplife", "execsnoop", "opensnoop", "exitsnoop"];

/// The metric bcc.proc.sysfork.
const TASKS: Pmid = Pmid(0x2540_0800);

/// The place of the faults, with a generator of pseudo-random numbers.
struct Scene {
    place: Place,
    random: u64,
}

struct Fault {
    name: &'static str,
    cause: Cause,
    allowed: Allowed,
}

/// A cause of a fault: makes it, ends it, and says what it lacks here.
type Cause = fn(&mut Scene) -> Result<(), String>;

const fn fault(name: &'static str, cause: Cause) -> Fault {
    Fault { name, cause, allowed: Allowed::Nothing }
}

/// A fault during which an agent begins, and is asked.
const fn start_in(name: &'static str, cause: Cause) -> Fault {
    Fault { name, cause, allowed: Allowed::Takeover }
}

const fn without_pins(name: &'static str, cause: Cause) -> Fault {
    Fault { name, cause, allowed: Allowed::AnotherBeginning }
}

/// Every kind of fault that can be made here.
static FAULTS: [Fault; 24] = [
    fault("agent: TERM", |scene| scene.send(Place::end_agent, Signal::SIGTERM)),
    fault("agent: KILL", |scene| scene.send(Place::end_agent, Signal::SIGKILL)),
    fault("agent: STOP for up to 7 s", |scene| scene.stop(Place::signal_agent, 7000)),
    fault("pmcd: TERM", |scene| scene.send(Place::renew_pmcd, Signal::SIGTERM)),
    fault("pmcd: KILL", |scene| scene.send(Place::renew_pmcd, Signal::SIGKILL)),
    fault("pmcd: STOP for up to 3 s", |scene| scene.stop(Place::signal_pmcd, 3000)),
    fault("pmlogger: TERM", |scene| scene.send(Place::signal_logger, Signal::SIGTERM)),
    fault("pmlogger: KILL", |scene| scene.send(Place::signal_logger, Signal::SIGKILL)),
    fault("pmlogger: STOP for up to 3 s", |scene| scene.stop(Place::signal_logger, 3000)),
    start_in("state and log: the file system is full", full),
    start_in("state and log: the file system is read-only", read_only),
    start_in("state and log: directories, links instead", foreign_files),
    fault("agent: no descriptor is left", no_descriptors),
    start_in("agent and pmcd: no memory is left", no_memory),
    start_in("agent and pmcd: no process can be made", no_processes),
    without_pins("pins: unmounted", unmount_pins),
    without_pins("pins: removed below a running agent", remove_pins),
    fault("configuration: noise, told to reload", noise_as_configuration),
    fault("orders: a flood", flood_of_orders),
    fault("PDU to the agent: cut anywhere", cut_request),
    fault("PDU to pmcd: bent and cut", bent_request),
    fault("process: its command line cannot be read", no_command_line),
    fault("disk: comes, is read and goes", passing_disk),
    fault("processes and sessions: a crowd", crowd),
];

impl Scene {
    /// Returns a number below the limit, by Marsaglia's xorshift.
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    /// Sleeps for up to so many milliseconds.
    fn pause(&mut self, most: u64) {
        sleep(Duration::from_millis(self.below(most)));
    }

    /// Sends a process of the place a signal.
    fn send(&mut self, to: fn(&mut Place, Signal), signal: Signal) -> Result<(), String> {
        to(&mut self.place, signal);
        Ok(())
    }

    /// Stops a process of the place for up to so many milliseconds.
    fn stop(&mut self, to: fn(&mut Place, Signal), most: u64) -> Result<(), String> {
        to(&mut self.place, Signal::SIGSTOP);
        self.pause(most);
        self.send(to, Signal::SIGCONT)
    }

    /// Makes an agent begin, and be asked, under the conditions of the fault.
    fn start_under_it(&mut self) {
        let how = if self.below(2) == 0 { Signal::SIGTERM } else { Signal::SIGKILL };
        self.place.end_agent(how);
        self.place.signal_pmcd(Signal::SIGHUP);
        for _ in 0..3 {
            self.place.work();
            let _ = self.place.pmcd.run("pmprobe", &["bcc"]);
            self.pause(300);
        }
    }

    fn store(&self, metric: &str, order: &str) {
        let _ = self.place.pmcd.local_client("pmstore").args([metric, order]).output();
    }
}

fn full(scene: &mut Scene) -> Result<(), String> {
    let filler = scene.place.pmcd.home.path("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 65536]).is_ok() {}
    while file.write_all(&[0]).is_ok() {}
    scene.start_under_it();
    fs::remove_file(filler).unwrap();
    Ok(())
}

/// A read-only mount covers the directory, since the file system below has files that are open for writing.
fn read_only(scene: &mut Scene) -> Result<(), String> {
    let place = scene.place.pmcd.home.path("");
    let mount_it = |flags| mount(Some(&place), &place, None::<&str>, MsFlags::MS_BIND | flags, None::<&str>).unwrap();
    mount_it(MsFlags::empty());
    mount_it(MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
    scene.start_under_it();
    umount2(&place, MntFlags::MNT_DETACH).unwrap();
    Ok(())
}

/// Directories and links stand where the agent's files should be.
fn foreign_files(scene: &mut Scene) -> Result<(), String> {
    let home = &scene.place.pmcd.home;
    let names: Vec<PathBuf> = ["corebcc.starts", "corebcc.log"].map(|name| home.path(name)).into();
    let kept = names.iter().map(|name| fs::read(name).unwrap_or_default()).collect::<Vec<_>>();
    let is_link = scene.below(2) == 0;
    for name in &names {
        let _ = fs::remove_file(name);
        if is_link {
            std::os::unix::fs::symlink("/dev/full", name).unwrap();
        } else {
            fs::create_dir(name).unwrap();
        }
    }
    scene.start_under_it();
    for (name, text) in names.iter().zip(kept) {
        let _ = fs::remove_dir(name);
        let _ = fs::remove_file(name);
        fs::write(name, text).unwrap();
    }
    Ok(())
}

/// Sets a limit of another process, and returns the one before.
fn limit(pid: i32, soft: rlim_t) -> rlim_t {
    let which = Resource::RLIMIT_NOFILE as u32;
    let mut old = nix::libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both are limits of this thread's memory.
    unsafe { nix::libc::prlimit(pid, which, std::ptr::null(), &mut old) };
    let new = nix::libc::rlimit { rlim_cur: soft, rlim_max: old.rlim_max };
    // SAFETY: as above.
    unsafe { nix::libc::prlimit(pid, which, &new, std::ptr::null_mut()) };
    old.rlim_cur
}

fn no_descriptors(scene: &mut Scene) -> Result<(), String> {
    let agent = scene.place.agent().ok_or("an agent")?;
    let open = fs::read_dir(format!("/proc/{agent}/fd")).map_or(0, |entries| entries.count()) as rlim_t;
    let before = limit(agent, open + scene.below(3));
    scene.place.work();
    scene.store("bcc.agent.control", "reload");
    let _ = scene.place.pmcd.run("pmprobe", &["-v", "bcc"]);
    scene.pause(500);
    limit(agent, before);
    Ok(())
}

/// A cgroup for pmcd and all that it starts, in the hierarchy of a controller; `None` if there is none.
struct Cgroup {
    path: PathBuf,
    before: PathBuf,
    pid: i32,
}

impl Cgroup {
    fn around(pid: i32, controller: &str) -> Option<Cgroup> {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let its = |line: &str| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let root =
                if controllers.is_empty() { "/sys/fs/cgroup".into() } else { format!("/sys/fs/cgroup/{controllers}") };
            let is_it = controllers.split(',').any(|name| name == controller)
                || controllers.is_empty()
                    && fs::read_to_string(format!("{root}/cgroup.subtree_control"))
                        .is_ok_and(|names| names.split_whitespace().any(|name| name == controller));
            is_it.then(|| (PathBuf::from(&root), PathBuf::from(root + path)))
        };
        let (root, before) = cgroups.lines().find_map(its)?;
        let path = root.join(format!("corebcc-endurance-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let new = Cgroup { path, before, pid };
        new.move_all(&new.path);
        Some(new)
    }

    /// Moves pmcd and its children.
    fn move_all(&self, to: &Path) {
        let pid = self.pid;
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for pid in std::iter::once(pid.to_string()).chain(children.split_whitespace().map(str::to_owned)) {
            let _ = fs::write(to.join("cgroup.procs"), pid);
        }
    }

    fn set(&self, files: [&str; 2], value: &str) {
        assert!(files.iter().any(|file| fs::write(self.path.join(file), value).is_ok()), "{}", self.path.display());
    }

    fn get(&self, files: [&str; 2]) -> u64 {
        let text = files.iter().find_map(|file| fs::read_to_string(self.path.join(file)).ok()).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let until = Instant::now() + 10 * SECOND;
        while fs::remove_dir(&self.path).is_err() && Instant::now() < until {
            for pid in fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default().lines() {
                let _ = fs::write(self.before.join("cgroup.procs"), pid);
            }
            sleep(Duration::from_millis(20));
        }
    }
}

fn no_memory(scene: &mut Scene) -> Result<(), String> {
    const LIMIT: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];
    let pmcd = scene.place.pmcd.process.pid();
    let cgroup = Cgroup::around(pmcd, "memory").ok_or("a cgroup with a limit of memory")?;
    // pmcd itself may be chosen as well.
    cgroup.set(LIMIT, &((1 + scene.below(16)) << 20).to_string());
    if scene.place.pmcd.process.0.try_wait().unwrap().is_none() {
        scene.start_under_it();
    }
    Ok(())
}

fn no_processes(scene: &mut Scene) -> Result<(), String> {
    const NOW: [&str; 2] = ["pids.current"; 2];
    let pmcd = scene.place.pmcd.process.pid();
    let cgroup = Cgroup::around(pmcd, "pids").ok_or("a cgroup with a limit of processes")?;
    let room = scene.below(3);
    cgroup.set(["pids.max"; 2], &(cgroup.get(NOW).saturating_sub(1) + room).to_string());
    scene.start_under_it();
    Ok(())
}

fn unmount_pins(scene: &mut Scene) -> Result<(), String> {
    // Another beginning is known by its second.
    sleep(SECOND);
    umount2(PINS, MntFlags::MNT_DETACH).unwrap();
    if scene.below(2) == 0 {
        scene.start_under_it();
    }
    mount_pins();
    scene.place.end_agent(Signal::SIGTERM);
    Ok(())
}

fn remove_pins(scene: &mut Scene) -> Result<(), String> {
    sleep(SECOND);
    fs::remove_dir_all(Path::new(PINS).join("corebcc")).map_err(|error| format!("pins ({error})"))?;
    scene.place.end_agent(Signal::SIGTERM);
    Ok(())
}

fn noise_as_configuration(scene: &mut Scene) -> Result<(), String> {
    let path = scene.place.pmcd.home.config();
    let right = fs::read(&path).unwrap();
    let mut wrong = right.clone();
    for _ in 0..1 + scene.below(40) {
        let at = scene.below(wrong.len() as u64) as usize;
        wrong[at] = scene.below(256) as u8;
    }
    wrong.truncate(scene.below(wrong.len() as u64 + 1) as usize);
    fs::write(&path, wrong).unwrap();
    scene.store("bcc.agent.control", "reload");
    scene.place.signal_agent(Signal::SIGHUP);
    let _ = scene.place.pmcd.run("pmprobe", &["bcc"]);
    scene.pause(300);
    fs::write(&path, right).unwrap();
    scene.store("bcc.agent.control", "reload");
    Ok(())
}

fn flood_of_orders(scene: &mut Scene) -> Result<(), String> {
    for _ in 0..30 {
        let many = 1 + scene.below(2000) as usize;
        match scene.below(4) {
            0 => scene.store("bcc.agent.control", "reload"),
            1 => scene.store("bcc.agent.control", &"no such order ".repeat(many)),
            2 => scene.store("bcc.agent.module.control", ["start", "stopp", "restart"][many % 3]),
            _ => scene.place.signal_agent(Signal::SIGHUP),
        }
    }
    Ok(())
}

/// The agent of a pmcd that dies in the middle of a request says so in its log, and ends.
fn cut_request(scene: &mut Scene) -> Result<(), String> {
    let home = Home::new(ONE);
    let mut peer = Peer::ready(&home, &["-l", "corebcc.log"]);
    let request = wire::fetch(&[TASKS; 64]);
    let length = scene.below(request.len() as u64) as usize;
    peer.write(&request[..length]);
    scene.pause(20);
    let (status, _) = peer.close();
    assert_eq!(status.success(), length == 0, "{status} after {length} bytes: {}", home.log());
    Ok(())
}

/// A client of pmcd that sends bytes of its own.
fn bent_request(scene: &mut Scene) -> Result<(), String> {
    for _ in 0..10 {
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, scene.place.pmcd.port)).unwrap();
        client.set_read_timeout(Some(SECOND / 5)).unwrap();
        let _ = client.read(&mut [0; 64]);
        let mut bytes = [wire::creds(0), wire::fetch(&[TASKS; 2])].concat();
        let at = scene.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << scene.below(8);
        bytes.truncate(1 + scene.below(bytes.len() as u64) as usize);
        let _ = client.write_all(&bytes);
        let _ = client.read(&mut [0; 64]);
    }
    Ok(())
}

/// Who reads the command line waits until the file system of nobody is gone.
fn no_command_line(scene: &mut Scene) -> Result<(), String> {
    const SCRIPTS: &str = include_str!("../programs/hostile.py");
    let directory = TempDir::new().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "setsid", python(), "-c"]).arg(part(SCRIPTS, "begin") + &part(SCRIPTS, "no answer"));
    let mut child = command.current_dir(directory.path()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = [0; 6];
    let is_ready = child.stdout.take().unwrap().read_exact(&mut line).is_ok();
    let _process = Group(Proc(child));
    if !is_ready {
        return Err("a file of FUSE as a command line".into());
    }
    let _ = scene.place.pmcd.run("pmprobe", &["-v", "bcc"]);
    scene.pause(1000);
    let _ = scene.place.pmcd.run("pmprobe", &["-v", "bcc"]);
    Ok(())
}

fn passing_disk(scene: &mut Scene) -> Result<(), String> {
    let disk = Loop::several(1).ok_or("loop devices")?.pop().unwrap();
    let reads = scene.below(100);
    read_blocks(&disk.open(), (0..reads).map(|read| read % 256));
    let _ = scene.place.pmcd.run("pmprobe", &["-v", "bcc.disk"]);
    Ok(())
}

fn crowd(scene: &mut Scene) -> Result<(), String> {
    let mut crowd: Vec<Proc> = Vec::new();
    for _ in 0..200 {
        crowd.push(Proc(Command::new("true").spawn().unwrap()));
        session();
    }
    scene.pause(100);
    drop(crowd);
    Ok(())
}

#[test]
fn the_agent_serves_right_soon_after_each_fault() {
    let campaign = number("COREBCC_FAULTS");
    let many = campaign.unwrap_or(FAULTS.len() as u64);
    let seed = number("COREBCC_SEED").unwrap_or(1).max(1);
    let Some(place) = Place::new(&pinned(config(&MODULES)), LOG, campaign.is_some()) else { return };
    let mut scene = Scene { place, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
    scene.place.serves_right(Allowed::Nothing).unwrap();
    // How often, how often not possible, and the longest time.
    let mut told = [(0u32, 0u32, Duration::ZERO); FAULTS.len()];
    let mut wrong = Vec::new();
    let begun = Instant::now();
    for at in 0..many {
        // Each kind comes once before the first comes again.
        let kind = if at < FAULTS.len() as u64 { at } else { scene.below(FAULTS.len() as u64) } as usize;
        let (fault, row) = (&FAULTS[kind], &mut told[kind]);
        let cause = (fault.cause)(&mut scene);
        let served = scene.place.serves_right(fault.allowed);
        match cause {
            Ok(()) => row.0 += 1,
            Err(missing) => {
                row.1 += 1;
                println!("skipped: faults::{}: {missing}", fault.name);
            }
        }
        match served {
            Ok(time) => row.2 = row.2.max(time),
            Err(reason) => {
                println!("fault {at}, {}: {reason}\n{}", fault.name, scene.place.log_text("corebcc.log"));
                wrong.push(format!("fault {at}, {}: {reason}", fault.name));
                scene.place.renew_pmcd(Signal::SIGKILL);
                scene.place.forget();
                scene.place.serves_right(Allowed::AnotherBeginning).unwrap();
            }
        }
    }
    println!("{many} faults in {:.0?}, seed {seed}:", begun.elapsed());
    for (fault, (times, impossible, longest)) in FAULTS.iter().zip(told) {
        let impossible = if impossible > 0 { format!(", {impossible} not possible here") } else { String::new() };
        println!("  {:<44} {times:>4}  right after {longest:>7.2?} at most{impossible}", fault.name);
    }
    let Told { began_again, gaps, reads, reads_missing, tasks_missing, restarted } = scene.place.told;
    println!(
        "pinned counts: began again {began_again} times; {gaps} times no program ran before the agent, which said so"
    );
    println!("  reads of the disk: more than {reads}, of which {reads_missing} not counted, as an agent took over");
    println!("  tasks: at most {tasks_missing} not counted since they began");
    println!("agents that told of modules without memory, and were started again: {restarted}");
    for archive in scene.place.end_logging() {
        let dump = scene.place.pmcd.program("pmdumplog").arg("-a").arg(&archive).output().unwrap();
        // One that was killed before its first record leaves none.
        assert!(dump.status.success() || !archive.with_extension("0").exists(), "{}", crate::support::told(&dump));
    }
    assert!(wrong.is_empty(), "{} of {many} faults:\n{}", wrong.len(), wrong.join("\n"));
}
