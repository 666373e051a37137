//! Properties that hold for any bytes. Called by the fuzz targets, and by tests/wire.rs, which replays the corpus.

use corebcc::catalog::enabled_modules;
use corebcc::collector::{prepare, prepared_modules, survey};
use corebcc::config::Config;
use corebcc::host::{btf_encoding, each_kernel_symbol, inputs, series_name, Cgroup, NamesByAddress};
use corebcc::loader::{OpenPair, PairOptions};
use corebcc::modules::MODULES;
use corebcc::pdu::{Deframer, Frame, Pdu, PduType};
use corebcc::script::{Kind, ScriptState, Source, MAX_ROWS};
use corebcc::state::{Cache, Clusters};
use corebcc::user::{decode, CounterSeries, HistogramSeries, Label, Names, PairConfig, Scale, Served};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// The frames of a stream contain all of its bytes, however it is split into reads (the first byte decides).
pub fn frames(data: &[u8]) {
    let Some((&read, stream)) = data.split_first() else { return };
    let (mut deframer, mut seen) = (Deframer::new(), 0);
    for chunk in stream.chunks(usize::from(read).max(1)) {
        deframer.spare()[..chunk.len()].copy_from_slice(chunk);
        deframer.filled(chunk.len());
        while let Some(frame) = match deframer.next() {
            Ok(frame) => frame,
            Err(_) => return,
        } {
            let len = frame.body.len() + 12;
            assert_eq!(stream[seen..][..4], (len as u32).to_be_bytes());
            assert_eq!(stream[seen + 12..][..len - 12], *frame.body);
            seen += len;
        }
    }
    assert_eq!(deframer.is_empty(), seen == stream.len());
}

/// A decoded PDU is the same after encoding and decoding. The length in the header is ignored.
pub fn requests(data: &[u8]) {
    let Some((header, body)) = data.split_at_checked(12) else { return };
    let word = |at: usize| i32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let Ok(pdu) = Pdu::decode(&Frame { ty: PduType(word(4)), from: word(8), body }) else { return };
    let mut bytes = Vec::new();
    pdu.encode(word(8), &mut bytes);
    assert_eq!(bytes[..4], (bytes.len() as u32).to_be_bytes());
    assert_eq!(bytes[4..12], header[4..]);
    let again = Frame { ty: PduType(word(4)), from: word(8), body: &bytes[12..] };
    assert_eq!(Pdu::decode(&again), Ok(pdu));
}

/// A pair's YAML is refused with messages that name the file, or all of its labels can decode the bytes after the first
/// NUL.
pub fn pair(data: &[u8]) {
    let text = data.split(|&byte| byte == 0).next().unwrap_or_default();
    let key = data.get(text.len() + 1..).unwrap_or_default();
    let config = match PairConfig::parse("fuzz.yaml", text) {
        Ok(config) => config,
        Err(errors) => {
            assert!(!errors.is_empty());
            return errors.iter().for_each(|error| assert!(error.to_string().starts_with("fuzz.yaml: "), "{error}"));
        }
    };
    let mut names = Names::below(Path::new("/nonexistent"));
    for counter in &config.counters {
        let mut series = CounterSeries::default();
        for by_cpu in [false, true] {
            series.add(counter, by_cpu, key, &[1, u64::MAX], &mut names, &Served::new(10));
        }
    }
    for histogram in &config.histograms {
        let (scale, mut series) = (Scale::of(histogram), HistogramSeries::default());
        let mut served = Served::new(10);
        series.add(histogram, false, key, &[u64::MAX], &mut names, &served);
        series.finish(&mut served);
        for keys in series.values.values() {
            assert!((1..=scale.bounds.len()).contains(&scale.counts(keys).len()));
            scale.sum(keys);
        }
    }
}

/// An object is refused with a sentence, or its maps and programs can be listed.
pub fn object(data: &[u8]) {
    match OpenPair::open("fuzz", data.to_vec(), &PairOptions::default()) {
        Ok(opened) => assert!(opened.maps().len() <= 1024 && opened.programs() < data.len()),
        Err(refusal) => assert!(!refusal.message.is_empty()),
    }
}

/// Chains of decoders as in the examples of the format's authors, together all 18.
const CHAINS: [&str; 17] = [
    "{name: uint}",
    "{name: uint}, {name: cgroup}",
    "{name: uint}, {name: errno}",
    "{name: uint}, {name: syscall}",
    "{name: uint}, {name: static_map, static_map: {1: read}}",
    "{name: uint}, {name: static_map, static_map: {1: read}, allow_unknown: true}",
    "{name: dname}",
    "{name: string}, {name: dname}",
    "{name: inet_ip}",
    "{name: kstack}",
    "{name: majorminor}",
    "{name: ksym}",
    "{name: string}, {name: regexp, regexps: ['^(k.*)d', '(a)(b)', '.*']}",
    "{name: hex}, {name: ifname}",
    "{name: uint}, {name: pci_vendor}",
    "{name: uint}, {name: pci_device}",
    "{name: uint}, {name: pci_class}, {name: pci_subclass}",
];

/// Any bytes after the first, which chooses a chain, become text or a refusal that names the label.
pub fn decoders(data: &[u8]) {
    thread_local! {
        static LABELS: Vec<Label> = CHAINS.map(label).into();
    }
    let Some((&chain, key)) = data.split_first() else { return };
    LABELS.with(|labels| {
        let label = &labels[usize::from(chain) % labels.len()];
        if let Err(why) = decode(label, key, &mut Names::below(Path::new("/nonexistent"))) {
            assert!(why.to_string().contains("label fuzz") || why.to_string() == "no expression matched", "{why}");
        }
    });
}

fn label(decoders: &str) -> Label {
    let text = format!(
        "metrics: {{counters: [{{name: a, help: a, labels: [{{name: fuzz, size: 8, decoders: [{decoders}]}}]}}]}}"
    );
    let config = PairConfig::parse("fuzz.yaml", text.as_bytes()).expect("the chains are right");
    config.counters.into_iter().flat_map(|counter| counter.labels).next().expect("it has a label")
}

/// Any script is parsed, and any output of bpftrace, after the first NUL.
pub fn script(data: &[u8]) {
    let text = data.split(|&byte| byte == 0).next().unwrap_or_default();
    let output = data.get(text.len() + 1..).unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let source = Source::parse(&text);
    assert!(source.program(&text).starts_with(&*text));
    let mut state = ScriptState::new(text.into_owned(), source.clone());
    state.start(1);
    for line in output.split(|&byte| byte == b'\n') {
        state.line(line);
        state.complain(line, "fuzz.bt");
    }
    for map in &source.maps {
        let rows = state.rows(map, Instant::now()).unwrap_or_default();
        let names: HashSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert!(names.len() == rows.len() && rows.len() <= MAX_ROWS);
        assert!(map.keys > 0 || map.kind == Kind::Histogram || rows.len() <= 1);
    }
    state.end(0, None);
}

/// A configuration is refused with messages that name the file, or every module it enables can be made from it.
pub fn config(data: &[u8]) {
    let named = |message: String| assert!(message.contains("fuzz.conf"), "{message}");
    let config = match Config::parse("fuzz.conf", data) {
        Ok(config) => config,
        Err(error) => return named(error.to_string()),
    };
    for section in config.sections() {
        for key in section.keys() {
            if let Err(error) = section.get(key) {
                named(error.to_string());
            }
        }
    }
    let config = Ok(config);
    let configuration = prepare(&config, "fuzz.conf", survey(&config, MODULES), MODULES).configuration;
    let Ok(config) = config else { return };
    // What is prepared tells an error if and only if the strict way does.
    let strict = enabled_modules(&config, MODULES)
        .and_then(|(settings, modules)| prepared_modules(&config, &modules, &settings).map(drop));
    assert_eq!(strict.is_err(), configuration.is_costly(), "{:?}", configuration.errors);
    configuration.errors.into_iter().for_each(|(_, error)| named(error));
}

/// An executable file of somebody else has probes and functions within their bounds, whatever is in it.
pub fn elf(data: &[u8]) {
    let Some(elf) = inputs::elf(data) else { return };
    elf.is_go();
    elf.function("main@GLIBC_2.2.5");
    let probes = elf.probes();
    assert!(probes.len() <= 4096);
    for probe in &probes {
        assert!(probe.arguments().len() <= probe.arguments.len());
    }
    for offset in [0, 64, data.len() as u64 / 2, u64::MAX] {
        if let Some((name, _)) = inputs::function_at(&elf, offset) {
            assert!((1..=inputs::LONGEST_NAME).contains(&name.len()));
        }
    }
}

/// Files of /proc, perf maps, names of cgroups and of functions, command lines and types of the kernel; the first byte chooses. What is
/// made of them is as short as its readers take it.
pub fn host(data: &[u8]) {
    let Some((&which, bytes)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match which % 7 {
        0 => {
            for address in [0, 0x1000, u64::MAX] {
                if let Some(function) = inputs::perf_map(bytes, address) {
                    // A byte that is not UTF-8 becomes a character of three.
                    assert!(function.name.len() <= 3 * inputs::LONGEST_NAME);
                }
            }
        }
        1 => text.lines().for_each(|line| drop(inputs::mapping(line))),
        2 => assert!(inputs::demangled(&text).len() <= inputs::LONGEST_NAME.max(text.len())),
        3 => {
            assert!((1..=6).contains(&inputs::labels_of_cgroup(bytes)));
            let name = series_name(&Cgroup { id: 7, path: bytes.to_vec() });
            assert!(!name.contains(&b' ') && !name.contains(&0));
        }
        4 => drop(inputs::guest(bytes)),
        5 => {
            let names = NamesByAddress::read(bytes, |symbol, names| {
                names.push_str(symbol.name);
                symbol.is_function
            });
            each_kernel_symbol(bytes, |symbol| {
                let named = names.at(symbol.address).is_some_and(|(start, ..)| start == symbol.address);
                assert!(named || !symbol.is_function || symbol.address == 0);
                true
            });
        }
        _ => {
            let half = bytes.len() / 2;
            btf_encoding::member_offset(&bytes[..half], &bytes[half..], "file", "f_inode");
            btf_encoding::enumerators(bytes, "bpf_map_type");
            if let Some(types) = btf_encoding::encoded_types(bytes) {
                types.for_each(|one| assert!(one.name().len() <= bytes.len()));
            }
        }
    }
}

/// Files that an earlier agent, or somebody else, left: identifiers of instances and clusters of names. What was taken from one is the same
/// after it was written and read, and no identifier has two names.
pub fn state(data: &[u8]) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    let path = Path::new("/nonexistent/149.0");
    let mut cache = Cache::load(path, Ok(data.to_vec()), 100, now).expect("the file was read");
    let known: BTreeMap<u32, Vec<u8>> = cache.latest().map(|(id, name)| (id, name.to_vec())).collect();
    assert!(known.len() <= 100);
    for (id, name) in &known {
        assert_eq!(cache.id(name, now), Some(*id), "{}", name.escape_ascii());
    }
    if let Some(new) = cache.id(b"no such name yet", now) {
        assert!(known.get(&new).is_none_or(|name| name == b"no such name yet" || known.len() == 100));
    }
    let clusters = Clusters::read(data, 700..=731);
    let text = clusters.text();
    let again = Clusters::read(text.as_bytes(), 700..=731);
    assert_eq!(again.text(), text);
}
