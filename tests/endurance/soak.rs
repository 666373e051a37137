//! Hours of work with all modules: memory, descriptors and identifiers that do not grow, counters that do not step back, and an archive
//! without a gap.

use crate::number;
use crate::place::{pinned, values_of, Allowed, Place};
use crate::support::loops::{read_blocks, Loop};
use crate::support::script::copy_program;
use crate::support::{all_modules, kernel_memory, programs_of, status_of, wait_seconds};
use corebcc::host::{Cgroups, Controller};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// pmlogger takes the default metrics as often as pcp-zeroconf does.
const INTERVAL: Duration = Duration::from_secs(10);
const LOG: &str = "log mandatory on 10 sec { bcc.proc.sysfork bcc.disk bcc.runq bcc.agent }\n";
/// Names of processes are kept for a day, so that their files grow with time.
const IDENTIFIERS: &str = "bytes of identifiers";
/// Command names that come again and again.
const NAMES: u64 = 500;

/// Memory, descriptors and files of the agent at a moment.
struct Sample {
    seconds: u64,
    resident: u64,
    kernel: u64,
    descriptors: u64,
    threads: u64,
    programs: u64,
    identifiers: u64,
    archive: u64,
}

impl Sample {
    const HEADER: &'static str =
        "seconds,resident_kb,kernel_kb,descriptors,threads,programs,identifiers_bytes,archive_bytes";

    fn of(place: &Place, begun: Instant) -> Sample {
        let agent = place.agent().unwrap();
        let size = |directory: &Path| -> u64 {
            let files = fs::read_dir(directory).into_iter().flatten().flatten();
            files.filter_map(|file| file.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum()
        };
        Sample {
            seconds: begun.elapsed().as_secs(),
            resident: status_of(agent, "VmRSS"),
            kernel: kernel_memory(agent) / 1024,
            descriptors: fs::read_dir(format!("/proc/{agent}/fd")).unwrap().count() as u64,
            threads: status_of(agent, "Threads"),
            programs: programs_of(agent).len() as u64,
            identifiers: size(&place.pmcd.home.path("config/pmda")),
            archive: size(place.archives.path()),
        }
    }

    /// Amounts that must not grow: name, amount, and how much it may differ for a moment. Resident memory differs by megabytes from
    /// sample to sample, since the pages of a ring count while it is being read, twice.
    fn bounded(&self) -> [(&'static str, u64, u64); 5] {
        [
            ("resident memory in kB", self.resident, 1536),
            ("kernel memory in kB", self.kernel, 64),
            ("descriptors", self.descriptors, 4),
            ("threads", self.threads, 2),
            (IDENTIFIERS, self.identifiers, 4096),
        ]
    }
}

impl Display for Sample {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Sample { seconds, resident, kernel, descriptors, threads, programs, identifiers, archive } = self;
        write!(f, "{seconds},{resident},{kernel},{descriptors},{threads},{programs},{identifiers},{archive}")
    }
}

/// A cgroup that lives for one process.
fn passing_cgroup(above: &Path, round: u64) {
    let cgroup = above.join(format!("corebcc-soak-{}", round % NAMES));
    if fs::create_dir(&cgroup).is_err() {
        return;
    }
    let join = format!("echo $$ >{}/cgroup.procs; exec true", cgroup.display());
    let _ = Command::new("sh").args(["-c", &join]).status();
    wait_seconds(60, "the cgroup to be empty", || fs::remove_dir(&cgroup).ok());
}

/// Names of all metrics whose values only grow.
fn counters(place: &Place) -> Vec<String> {
    let text = place.pmcd.ask("pminfo", &["-d", "bcc"]);
    let mut names = Vec::new();
    let mut name = "";
    for line in text.lines() {
        if line.starts_with("bcc.") {
            name = line.split(' ').next().unwrap();
        } else if line.contains("Semantics: counter") {
            names.push(name.to_owned());
        }
    }
    names
}

/// Holds counters against those before; instances that are gone may begin again.
fn no_step_back(place: &Place, names: &[String], before: &mut BTreeMap<(String, String), f64>) -> usize {
    let mut arguments = vec!["-f"];
    arguments.extend(names.iter().map(String::as_str));
    let output = place.pmcd.run("pminfo", &arguments);
    let of = values_of(&String::from_utf8_lossy(&output.stdout));
    let values = of.into_iter().flat_map(|(metric, values)| {
        values.into_iter().filter_map(move |(name, value)| Some(((metric.clone(), name), value.parse().ok()?)))
    });
    let now: BTreeMap<(String, String), f64> = values.collect();
    for (key, value) in &now {
        // A process identifier is used again, and its counts begin anew with it.
        let is_process = key.1.len() > 7 && key.1.as_bytes()[..6].iter().all(u8::is_ascii_digit);
        let is_right = is_process || before.get(key).is_none_or(|then| then <= value);
        assert!(is_right, "{key:?}: {value} after {}", before[key]);
    }
    *before = now;
    before.len()
}

/// Seconds of each record of a metric in an archive, and whether a mark says that records are missing.
fn records(place: &Place, archive: &Path, metric: &str) -> (Vec<f64>, bool) {
    let output = place.pmcd.program("pmdumplog").arg(archive).arg(metric).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let seconds = |line: &str| {
        let mut parts = line.split(' ').next()?.split(':');
        let mut part = || parts.next()?.parse::<f64>().ok();
        Some(part()? * 3600. + part()? * 60. + part()?)
    };
    let is_record = |line: &&str| line.contains(" metric") || line.contains(" metrics");
    (text.lines().filter(is_record).filter_map(seconds).collect(), text.contains("<mark>"))
}

/// Prints the most in a quarter of the time, the second or the one after half an hour, and the most in the last one. Returns what grew.
fn grown(samples: &[Sample], minutes: u64) -> Vec<String> {
    // In percent: in its first minutes the agent still learns names.
    let allowed = match minutes {
        60.. => 1,
        20.. => 25,
        _ => 100,
    };
    let quarter = samples.len() / 4;
    let settled = samples.iter().position(|sample| sample.seconds > 1800).filter(|_| minutes >= 60);
    let begin = settled.unwrap_or(quarter);
    let (early, last) = (&samples[begin..begin + quarter], &samples[samples.len() - quarter..]);
    let ends = [early, last].map(|of| of[quarter - 1].seconds.max(1));
    let mut grown = Vec::new();
    for (which, (name, _, slack)) in samples[0].bounded().into_iter().enumerate() {
        let most = |of: &[Sample]| of.iter().map(|sample| sample.bounded()[which].1).max().unwrap();
        let (then, now) = (most(early), most(last));
        let as_the_time = name == IDENTIFIERS && minutes >= 60;
        let allowed = if as_the_time { 100 * (ends[1] - ends[0]) / ends[0] } else { allowed };
        println!("{name}: at most {then} from second {} on, {now} in the last quarter", early[0].seconds);
        if now > then + then * allowed / 100 + slack {
            grown.push(format!("{name}: {then} to {now}"));
        }
    }
    grown
}

#[test]
fn hours_of_work_take_no_more_than_the_first() {
    let campaign = number("COREBCC_MINUTES");
    let minutes = campaign.unwrap_or(1);
    // An emulated processor spends all of its time on what a real one does in a tenth.
    let pace = number("COREBCC_PACE").unwrap_or(1) as u32;
    let Some(mut place) = Place::new(&pinned(all_modules()), LOG, campaign.is_some()) else { return };
    let begun = Instant::now();
    let (cgroups, names) = (Cgroups::of(Controller::Unified).ok(), counters(&place));
    let cgroups = cgroups.as_ref().map(Cgroups::mount);
    println!("{} counters; cgroups in {cgroups:?}\n{}", names.len(), Sample::HEADER);
    let (mut samples, mut before, mut compared) = (Vec::new(), BTreeMap::new(), 0);
    let (mut round, mut next) = (0, Instant::now());
    let agents = BTreeSet::from([place.agent()]);
    while begun.elapsed() < Duration::from_secs(60 * minutes) || samples.len() < 4 {
        round += 1;
        place.work();
        if let Some(above) = cgroups {
            passing_cgroup(above, round);
        }
        let command = place.archives.path().join(format!("name-{}", round % NAMES));
        copy_program("/bin/true", &command);
        assert!(Command::new(&command).status().unwrap().success());
        fs::remove_file(command).unwrap();
        if round % 30 == 0 {
            let passing = Loop::several(1).unwrap();
            read_blocks(&passing[0].open(), 0..10);
        }
        if Instant::now() >= next {
            next += INTERVAL * pace;
            place.serves_right(Allowed::Nothing).unwrap();
            compared += no_step_back(&place, &names, &mut before);
            let sample = Sample::of(&place, begun);
            println!("{sample}");
            samples.push(sample);
        }
        std::thread::sleep(Duration::from_millis(200) * pace);
    }
    assert_eq!(BTreeSet::from([place.agent()]), agents, "the agent has ended meanwhile");

    println!("{round} rounds; {compared} counters compared with those before; {:?}", place.told);
    let grown = grown(&samples, minutes);
    let archives = place.end_logging();
    assert_eq!(archives.len(), 1, "pmlogger has ended meanwhile");
    let (records, has_mark) = records(&place, &archives[0], "bcc.proc.sysfork");
    let longest = records.windows(2).map(|pair| (pair[1] - pair[0]).rem_euclid(86400.)).fold(0., f64::max);
    println!("{} records of pmlogger, at most {longest:.1} s apart", records.len());
    // Beside other tests pmlogger may be late.
    let is_late = longest > f64::from(25 * pace) || (records.len() as u64) < minutes * 60 / INTERVAL.as_secs() - 1;
    assert!(!has_mark && records.len() >= 2 && !(campaign.is_some() && is_late), "{records:?}");
    assert!(grown.is_empty(), "{grown:?}");
}
