//! kvm against a small guest of the test, and against the kernel's own statistics of its virtual processor.

use crate::common::skip;
use crate::common::tracers::Recorder;
use crate::support::{alone, names, number, Agent};
use corebcc::kit::TableSpec;
use corebcc::modules::find;
use nix::libc;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

// include/uapi/linux/kvm.h
const CREATE_VM: u64 = 0xae01;
const VCPU_MMAP_SIZE: u64 = 0xae04;
const CREATE_VCPU: u64 = 0xae41;
const SET_MEMORY: u64 = 0x4020_ae46;
const RUN: u64 = 0xae80;
const SET_REGS: u64 = 0x4090_ae82;
const GET_SREGS: u64 = 0x8138_ae83;
const SET_SREGS: u64 = 0x4138_ae84;
const GET_STATS_FD: u64 = 0xaece;
const EXIT_IO: u32 = 2;
const EXIT_HLT: u32 = 5;

/// A virtual machine with one page of memory, whose virtual processor writes to a port a number of times and halts.
struct Guest {
    vcpu: File,
    run: *const u32,
    _vm: File,
}

fn call(file: &File, order: u64, argument: u64) -> Result<i32, String> {
    // SAFETY: the argument is a number or the address of a struct of the size that the order says, which lives until the call returns.
    match unsafe { libc::ioctl(file.as_raw_fd(), order, argument) } {
        -1 => Err(format!("{order:#x}: {}", std::io::Error::last_os_error())),
        value => Ok(value),
    }
}

fn opened(file: &File, order: u64) -> Result<File, String> {
    // SAFETY: the call opened the descriptor, and nobody else knows of it.
    Ok(unsafe { File::from_raw_fd(call(file, order, 0)?) })
}

fn map(file: Option<&File>, size: usize) -> *mut u8 {
    let (fd, flags) =
        file.map_or((-1, libc::MAP_SHARED | libc::MAP_ANONYMOUS), |file| (file.as_raw_fd(), libc::MAP_SHARED));
    // SAFETY: a new mapping, which lasts until the test ends.
    unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0).cast() }
}

impl Guest {
    fn new(writes: u16) -> Result<Guest, String> {
        let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm").map_err(|error| error.to_string())?;
        let vm = opened(&kvm, CREATE_VM)?;
        let memory = map(None, 4096);
        let [low, high] = writes.to_le_bytes();
        // mov dx, 3f8h; mov cx, WRITES; again: out dx, al; loop again; hlt
        let code = [0xba, 0xf8, 0x03, 0xb9, low, high, 0xee, 0xe2, 0xfd, 0xf4];
        // SAFETY: the page is as large, and nobody else uses it yet.
        unsafe { memory.copy_from_nonoverlapping(code.as_ptr(), code.len()) };
        // Slot and flags, address in the guest, size, address here.
        let region = [0u64, 0, 4096, memory as u64];
        call(&vm, SET_MEMORY, region.as_ptr() as u64)?;
        let vcpu = opened(&vm, CREATE_VCPU)?;
        let run = map(Some(&vcpu), call(&kvm, VCPU_MMAP_SIZE, 0)? as usize).cast();
        let mut special = [0u64; 39];
        call(&vcpu, GET_SREGS, special.as_mut_ptr() as u64)?;
        // The code segment comes first: its base, and its selector behind the limit.
        special[0] = 0;
        special[1] &= 0xffff_0000_ffff_ffff;
        call(&vcpu, SET_SREGS, special.as_ptr() as u64)?;
        let mut registers = [0u64; 18];
        registers[17] = 2; // flags, of which this one is always set
        call(&vcpu, SET_REGS, registers.as_ptr() as u64)?;
        Ok(Guest { vcpu, run, _vm: vm })
    }

    /// Runs it until it halts; sleeps at so many writes. Returns the number of writes.
    fn run(&self, mut sleeps: u32) -> u64 {
        let mut writes = 0;
        loop {
            call(&self.vcpu, RUN, 0).unwrap();
            // SAFETY: the kernel has written why it returned to the third word of the mapping.
            match unsafe { self.run.add(2).read_volatile() } {
                EXIT_IO => writes += 1,
                EXIT_HLT => return writes,
                other => panic!("exit for reason {other}"),
            }
            if sleeps > 0 {
                sleeps -= 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Returns the exits that the kernel counted (Documentation/virt/kvm/api.rst, KVM_GET_STATS_FD); `None` before 5.14.
    fn exits(&self) -> Option<u64> {
        let statistics = opened(&self.vcpu, GET_STATS_FD).ok()?;
        let word = |at: u64| {
            let mut word = [0; 4];
            statistics.read_exact_at(&mut word, at).ok().map(|()| u64::from(u32::from_ne_bytes(word)))
        };
        let [name_size, count, descriptions, values] = [word(4)?, word(8)?, word(16)?, word(20)?];
        (0..count).find_map(|nth| {
            let at = descriptions + nth * (16 + name_size);
            let mut name = vec![0; name_size as usize];
            statistics.read_exact_at(&mut name, at + 16).ok()?;
            let mut value = [0; 8];
            statistics.read_exact_at(&mut value, values + word(at + 8)?).ok()?;
            name.starts_with(b"exits\0").then(|| u64::from_ne_bytes(value))
        })
    }
}

fn table(nth: usize) -> &'static TableSpec {
    find("kvm").unwrap().tables[nth]
}

fn exits_are_counted(start: impl FnOnce() -> Option<Agent>) {
    const WRITES: u16 = 1000;
    let guest = match Guest::new(WRITES) {
        Ok(guest) => guest,
        Err(error) => return skip(&format!("/dev/kvm ({error})")),
    };
    let Some(mut agent) = start() else { return };
    let recorder = Recorder::start(&["kvm/kvm_exit"]);
    let before = guest.exits();
    let begin = Instant::now();
    assert_eq!(guest.run(20), u64::from(WRITES));
    let elapsed = begin.elapsed().as_nanos() as u64;
    let recorded = recorder.map(|recorder| recorder.end().len() as u64);
    let kept = guest.exits().zip(before).map(|(after, before)| after - before);
    agent.tick();
    let own = format!("{}::", std::process::id());
    let machines = agent.table();
    let row = names(&machines).iter().position(|name| name.starts_with(&own)).unwrap();
    let [exits, time, user, user_time] = [0, 1, 2, 3].map(|column| number(&machines, row, column));
    println!(
        "{exits} exits of {time} ns, {user} of {user_time} ns to the process, in {elapsed} ns; {recorded:?}, {kept:?}"
    );
    agent.assert_counted([user], [u64::from(WRITES) + 1]);
    if recorded == Some(0) && kept != Some(0) {
        skip("a KVM that tells of exits to the kernel (kvm_exit)");
    } else {
        agent.assert_counted([exits], [kept.or(recorded).unwrap_or(exits)]);
        // The last exit is not followed by an entry.
        assert!((20_000_000..=time).contains(&user_time) && time < elapsed, "{user_time} {time}");
    }
    let reasons = agent.other(table(1));
    let of_reason = |reason: &str| {
        let is = |name: &String| name.starts_with(&own) && name.ends_with(&format!("::{reason}"));
        names(&reasons).iter().position(is).map_or(0, |row| number(&reasons, row, 0))
    };
    agent.assert_counted(["IO", "HLT"].map(of_reason), [WRITES.into(), 1]);
    agent.assert_complete();
}

#[test]
fn exits_of_a_guest_are_those_that_the_kernel_counts() {
    let _alone = alone();
    exits_are_counted(|| Agent::where_possible("KVM", "kvm", ""));
}

#[test]
fn exits_of_a_guest_count_the_same_by_raw_tracepoints() {
    let _alone = alone();
    exits_are_counted(|| Agent::where_possible_avoiding("tp_btf", "KVM", "kvm", ""));
}
