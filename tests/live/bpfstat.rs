//! bpfstat against what the kernel tells holders of the objects: bpf_obj_get_info_by_fd and fdinfo, which is what bpftool shows.

use crate::common::skip;
use crate::support::{alone, run_again, Agent, Row};
use corebcc::host::btf_encoding::{encoded_types, member_offset, KERNEL_TYPES};
use corebcc::host::page_size;
use corebcc::kit::{Table, TableSpec};
use corebcc::modules::find;
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts, bpf_prog_info};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, MapInfoIter, ProgInfoIter};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use nix::time::{clock_gettime, ClockId};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn spec(nth: usize) -> &'static TableSpec {
    find("bpfstat").unwrap().tables[nth]
}

fn table(agent: &mut Agent, nth: usize) -> Table {
    match nth {
        0 => agent.table(),
        _ => agent.other(spec(nth)),
    }
}

/// Returns the rows of a table.
fn rows(agent: &mut Agent, nth: usize) -> Vec<Row> {
    Row::all(&table(agent, nth))
}

/// Returns the column of a metric of programs.
fn column(name: &str) -> usize {
    let mut metrics = spec(0).metrics.iter();
    metrics
        .position(|metric| metric.name.strip_prefix("bpf.prog.") == Some(name))
        .unwrap_or_else(|| panic!("no {name}"))
}

/// Returns the row of an object.
fn of(rows: &[Row], id: u32) -> &Row {
    rows.iter().find(|row| row.id == id).unwrap_or_else(|| panic!("no {id} in {rows:?}"))
}

/// Returns a line of the fdinfo of a descriptor.
fn told(of: BorrowedFd<'_>, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", of.as_raw_fd())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{key} in {text}"));
    line.trim().parse().unwrap()
}

fn map(kind: MapType, key: u32, value: u32, entries: u32, flags: u32) -> Option<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: flags,
        ..Default::default()
    };
    MapHandle::create(
        kind,
        Some(format!("t_{kind:?}").chars().take(15).collect::<String>()),
        key,
        value,
        entries,
        &options,
    )
    .ok()
}

/// Returns maps of many kinds, those that the kernel has.
fn maps() -> Vec<MapHandle> {
    const NO_PREALLOC: u32 = 1;
    const MMAPABLE: u32 = 1 << 10;
    let page = page_size() as u32;
    let made = [
        map(MapType::Hash, 4, 24, 1000, 0),
        map(MapType::Hash, 8, 13, 1000, NO_PREALLOC),
        map(MapType::PercpuHash, 8, 12, 100, 0),
        map(MapType::PercpuHash, 8, 12, 100, NO_PREALLOC),
        map(MapType::LruHash, 4, 8, 500, 0),
        map(MapType::LruPercpuHash, 4, 8, 500, 0),
        map(MapType::Array, 4, 40, 300, 0),
        map(MapType::Array, 4, 64, 300, MMAPABLE),
        map(MapType::PercpuArray, 4, 12, 70, 0),
        map(MapType::ProgArray, 4, 4, 10, 0),
        map(MapType::PerfEventArray, 4, 4, 4, 0),
        map(MapType::CgroupArray, 4, 4, 4, 0),
        map(MapType::StackTrace, 4, 80, 128, 0),
        map(MapType::Queue, 0, 24, 33, 0),
        map(MapType::Stack, 0, 24, 33, 0),
        map(MapType::RingBuf, 0, 0, 4 * page, 0),
        map(MapType::LpmTrie, 8, 16, 50, NO_PREALLOC),
        map(MapType::BloomFilter, 0, 8, 1000, 0),
        map(MapType::Devmap, 4, 4, 30, 0),
        map(MapType::DevmapHash, 4, 8, 30, 0),
        map(MapType::Cpumap, 4, 4, 2, 0),
        map(MapType::Sockmap, 4, 4, 30, 0),
        map(MapType::Sockhash, 8, 4, 30, 0),
        map(MapType::ReuseportSockarray, 4, 8, 30, 0),
        map(MapType::Xskmap, 4, 4, 30, 0),
    ];
    made.into_iter().flatten().collect()
}

#[test]
fn maps_have_the_sizes_that_the_kernel_tells_their_holder() {
    let _alone = alone();
    let maps = maps();
    assert!(maps.len() >= 14, "{maps:?}");
    let is_hash = |map: &&MapHandle| {
        matches!(map.map_type(), MapType::Hash | MapType::PercpuHash | MapType::LruHash | MapType::LruPercpuHash)
    };
    for map in maps.iter().filter(is_hash) {
        for key in 0..7u64 {
            let key = &key.to_ne_bytes()[..map.key_size() as usize];
            let value = vec![1; (map.value_size() as usize).next_multiple_of(8)];
            match map.map_type() {
                MapType::Hash | MapType::LruHash => {
                    map.update(key, &value[..map.value_size() as usize], MapFlags::ANY).unwrap();
                }
                _ => {
                    let cpus = libbpf_rs::num_possible_cpus().unwrap();
                    map.update_percpu(key, &vec![value[..map.value_size() as usize].to_vec(); cpus], MapFlags::ANY)
                        .unwrap();
                }
            }
        }
    }
    let mut agent = Agent::new("bpfstat", "");
    let rows = rows(&mut agent, 1);
    let me = format!("({})", std::process::id());
    let mut counted = 0;
    for map in &maps {
        let row = of(&rows, told(map.as_fd(), "map_id:") as u32);
        let what = format!("{:?} {row:?}", map.info().unwrap().info);
        assert_eq!(row.text(0), map.name().to_string_lossy(), "{what}");
        assert_eq!(row.number(2), u64::from(map.max_entries()), "{what}");
        assert_eq!(row.number(4), told(map.as_fd(), "memlock:"), "{what}");
        assert!(row.text(5).contains(&me), "{what}");
        if row.values[3].is_some() && is_hash(&map) {
            assert_eq!(row.number(3), 7, "{what}");
            counted += 1;
        }
    }
    println!("{} maps, entries in use of {counted}", maps.len());
    // The field is in stable releases of earlier kernels, too, which do not use it. The function for programs came with its use.
    let types = fs::read(KERNEL_TYPES).unwrap();
    let counts_entries = encoded_types(&types).unwrap().any(|of| of.name() == b"bpf_map_sum_elem_count");
    let hashes = maps.iter().filter(is_hash).count();
    assert_eq!(counted, if counts_entries { hashes } else { 0 }, "hash maps whose entries are known");
    assert!(MapInfoIter::default().count().abs_diff(rows.len()) < 20, "{} maps", rows.len());
}

fn program(id: u32) -> Option<OwnedFd> {
    // SAFETY: a number goes in, a descriptor or a negative number comes out.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    // SAFETY: the call opened it, and nobody else knows of it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the runs of a program, their time, and the runs that were left out.
fn runs(program: &OwnedFd) -> [u64; 3] {
    let mut info = bpf_prog_info::default();
    let mut length = size_of::<bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `length` bytes into `info`.
    let failed = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(program.as_raw_fd(), std::ptr::from_mut(&mut info).cast(), &mut length)
    };
    assert_eq!(failed, 0);
    [info.run_cnt, info.run_time_ns, info.recursion_misses]
}

#[test]
fn programs_have_what_the_kernel_tells_their_holder() {
    let _alone = alone();
    let mut agent = Agent::beside("syscount", "bpfstat", "");
    // SAFETY: a number goes in, a descriptor or a negative number comes out.
    let statistics = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    assert!(statistics >= 0);
    // SAFETY: the call opened it, and nobody else knows of it.
    let _statistics = unsafe { OwnedFd::from_raw_fd(statistics) };
    for _ in 0..10_000 {
        fs::metadata("/").unwrap();
    }
    let known: Vec<_> = ProgInfoIter::default().collect();
    let before: Vec<_> = known.iter().map(|of| program(of.id).map(|program| runs(&program))).collect();
    let rows = rows(&mut agent, 0);
    let mut compared = 0;
    let counts_misses = member_offset(&fs::read(KERNEL_TYPES).unwrap(), &[], "bpf_prog_stats", "misses").is_some();
    for (info, before) in known.iter().zip(before) {
        let (Some(program), Some(before)) = (program(info.id), before) else { continue };
        let row = of(&rows, info.id);
        let what = format!("{row:?}: {before:?}, {:?}", info.name);
        assert!(row.text(column("name")).starts_with(&*info.name.to_string_lossy()), "{what}");
        assert_eq!(row.text(column("tag")), info.tag.0.map(|byte| format!("{byte:02x}")).concat(), "{what}");
        assert_eq!(row.text(column("type")).replace('_', ""), format!("{:?}", info.ty).to_lowercase(), "{what}");
        assert_eq!(row.number(column("memory")), told(program.as_fd(), "memlock:"), "{what}");
        let loaded = since_1970(info.load_time).as_millis() as u64;
        assert!(loaded.abs_diff(row.number(column("loaded"))) < 100, "{what}");
        let after = runs(&program);
        for (nth, name) in ["runs.count", "run.time", "misses.count"].into_iter().enumerate() {
            assert_eq!(row.values[column(name)].is_some(), nth < 2 || counts_misses, "{name} of {what}");
            if row.values[column(name)].is_some() {
                assert!((before[nth]..=after[nth]).contains(&row.number(column(name))), "{name} of {what}, {after:?}");
            }
        }
        compared += 1;
    }
    println!("{compared} programs");
    let own: Vec<&Row> = rows.iter().filter(|row| row.number(column("own")) == 1).collect();
    assert!(compared >= 4 && own.iter().any(|row| row.number(column("runs.count")) >= 10_000), "{own:?}");
    let me = format!("({})", std::process::id());
    assert!(own.iter().all(|row| row.text(column("owner")).contains(&me)), "{own:?}");
    let total = &self::rows(&mut agent, 3)[0];
    assert!(total.number(0).abs_diff(rows.len() as u64) < 20 && total.number(3) > 0, "{total:?}");
}

/// Returns the time since 1970 of a time since the start of the machine.
fn since_1970(boot: Duration) -> Duration {
    let up = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap());
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - up + boot
}

#[test]
fn links_say_what_they_attach_to() {
    let _alone = alone();
    let mut agent = Agent::beside("sysfork", "bpfstat", "");
    if !agent.is_attached("bpf_iter_bpf_link") {
        return skip("the kernel has no iterator over links (Linux 5.19)");
    }
    let rows = rows(&mut agent, 2);
    let mut compared = Vec::new();
    for info in LinkInfoIter::default() {
        let target = match &info.info {
            LinkTypeInfo::RawTracepoint(link) => link.name.clone(),
            LinkTypeInfo::Iter(_) => "iter".into(),
            _ => continue,
        };
        let row = of(&rows, info.id);
        assert_eq!(row.number(2), u64::from(info.prog_id), "{info:?} {row:?}");
        match &*row.text(0) {
            "iter" => assert!(["bpf_prog", "bpf_map", "bpf_link", "task_file"].contains(&&*row.text(1)), "{row:?}"),
            _ => assert_eq!(row.text(1), target, "{info:?}"),
        }
        assert!(!row.text(3).is_empty(), "{row:?}");
        compared.push(target);
    }
    assert!(compared.iter().filter(|target| *target == "iter").count() >= 4, "{compared:?}");
    assert!(compared.iter().any(|target| target == "task_newtask"), "{compared:?}");
}

#[test]
fn a_pinned_map_that_nobody_holds_has_its_path() {
    const HERE: &str = "COREBCC_BPF_MOUNTED";
    if std::env::var_os(HERE).is_none() {
        let mut unshare = Command::new("unshare");
        unshare.env(HERE, "1");
        return run_again("a BPF file system", "mount -t bpf -o mode=0700 bpf /sys/fs/bpf", unshare);
    }
    let mut map = map(MapType::Array, 4, 8, 1, 0).unwrap();
    let id = told(map.as_fd(), "map_id:") as u32;
    fs::create_dir("/sys/fs/bpf/below").unwrap();
    map.pin("/sys/fs/bpf/below/map").unwrap();
    drop(map);
    let mut agent = Agent::new("bpfstat", "");
    assert_eq!(of(&rows(&mut agent, 1), id).text(5), "/sys/fs/bpf/below/map");
}

/// Loads a program of two instructions so many times.
fn idle_programs(count: usize) -> Vec<OwnedFd> {
    let code = [0xb7, 0x95].map(|code| libbpf_sys::bpf_insn { code, ..Default::default() }); // r0 = 0; exit
    let load = |_| {
        // SAFETY: the strings end in NUL, and the code is valid for the call.
        let fd = unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_RAW_TRACEPOINT,
                c"idle".as_ptr(),
                c"GPL".as_ptr(),
                code.as_ptr(),
                2,
                std::ptr::null_mut(),
            )
        };
        assert!(fd >= 0, "{fd}");
        // SAFETY: the call opened it, and nobody else knows of it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    (0..count).map(load).collect()
}

#[test]
fn five_hundred_programs_are_five_hundred_rows() {
    let _alone = alone();
    let programs = idle_programs(500);
    let mut agent = Agent::new("bpfstat", "");
    let rows = rows(&mut agent, 0);
    let named = rows.iter().filter(|row| row.text(column("name")) == "idle").count();
    assert!(named >= programs.len(), "{named}");
    for (nth, what) in [(3, "the totals"), (0, "the rows of programs")] {
        let begin = Instant::now();
        (0..20).for_each(|_| drop(table(&mut agent, nth)));
        println!("{:?} for {what}", begin.elapsed() / 20);
    }
}
