//! Findings about the kernel that loading has made, to explain why something is missing. Nothing is tried only to find
//! out.

use super::outcome::{Attempt, Finding, TargetOutcome};
use super::permission::Lockdown;
use super::refusal::Refusal;
use crate::host::tracefs;
use crate::kit::Tier;
use nix::libc::ENOENT;

/// Kinds of attachment, as in the names of sections, each with the prefix of its programs' names.
const WAYS: [(&str, &str); 11] = [
    ("tp_btf", "tp"),
    ("raw_tp", "raw"),
    ("tracepoint", "event"),
    ("fentry", "fentry"),
    ("fexit", "fexit"),
    ("kprobe", "kprobe"),
    ("kretprobe", "kretprobe"),
    ("uprobe", "uprobe"),
    ("uretprobe", "uretprobe"),
    ("perf_event", "perf"),
    ("iter", "iter"),
];

const NOT_TRIED: &str = "not tried: nothing that is enabled asked for it";

/// Returns a finding per kind of attachment, from the first program that used it.
pub(super) fn ways(attempts: &[Attempt], reaches: &[TargetOutcome]) -> Vec<Finding> {
    let way = |(way, prefix): (&'static str, &str)| {
        let goes = |program: &&str| program.trim_start_matches("each_").split("__").next() == Some(prefix);
        let tried = || attempts.iter().filter(|attempt| attempt.programs.iter().any(goes));
        let hooks = tried().map(|attempt| (attempt.hook.to_owned(), attempt.result.as_ref().err()));
        let goes_to = |tier: &Tier| tier.programs.iter().any(goes);
        let targets = reaches.iter().flat_map(|reach| {
            let refused = reach.result.as_ref().err().into_iter().flat_map(|said| &said.0);
            let refused = refused.map(|(tier, refusal)| (*tier, Some(refusal)));
            let tiers = refused.chain(reach.result.as_ref().ok().map(|tier| (*tier, None)));
            tiers.filter(|(tier, _)| goes_to(tier)).map(|(_, refusal)| (reach.target.to_string(), refusal))
        });
        // A program that is only to be copied says less than a copy that is attached.
        let answers: Vec<(String, Option<&Refusal>)> = targets.chain(hooks).collect();
        let first = |is: fn(Option<&Refusal>) -> bool| answers.iter().find(|(_, refusal)| is(*refusal));
        // That the kernel does not have the place says nothing of the way, nor does a way that was not to be tried.
        let refused = |refusal: Option<&Refusal>| refusal.is_some_and(|refusal| ![0, ENOENT].contains(&refusal.errno));
        match (first(|refusal| refusal.is_none()), first(refused), answers.first()) {
            (Some((place, _)), _, _) => Finding::new(way, true, format!("accepted for {place}")),
            (_, Some((place, Some(refusal))), _) => {
                Finding::new(way, false, format!("refused for {place}: {}", refusal.last_words()))
            }
            (_, _, Some((place, Some(refusal)))) => {
                Finding::new(way, None, format!("not tried: {place}: {}", refusal.last_words()))
            }
            _ => Finding::new(way, None, NOT_TRIED),
        }
    };
    WAYS.map(way).into()
}

/// Returns the finding about ring buffers: a ring that was created, or the error of one that was not.
pub(super) fn ring(made: Option<&str>, refused: Option<String>) -> Finding {
    match (made, refused) {
        (Some(ring), _) => Finding::new("ringbuf", true, format!("made for {ring}")),
        (None, Some(words)) => Finding::new("ringbuf", false, words),
        (None, None) => Finding::new("ringbuf", None, NOT_TRIED),
    }
}

/// Returns findings about tracefs and the lockdown.
pub(super) fn surroundings() -> [Finding; 2] {
    let events = match tracefs() {
        Some(place) => Finding::new("tracefs", true, format!("mounted at {place}")),
        None => Finding::new("tracefs", false, "not mounted: `mount -t tracefs tracefs /sys/kernel/tracing`"),
    };
    let lockdown = match Lockdown::read() {
        Lockdown::Unknown(reason) => Finding::new("lockdown", None, reason),
        Lockdown::Level(level) => Finding::new("lockdown", level != "none", level),
    };
    [events, lockdown]
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Refusals;
    use super::*;
    use crate::kit::Target;

    static CODE: Tier = Tier { kind: "uprobe", programs: &["each_uprobe__usdt_hits"] };
    static RETURN: Tier = Tier { kind: "kretprobe", programs: &["each_kretprobe__kprobe_hits"] };

    #[test]
    fn the_first_answer_of_the_kernel_decides() {
        let attempt =
            |hook, programs: &[&'static str], result| Attempt { hook, kind: "", programs: programs.into(), result };
        let refused = |errno, words: &str| Err(Refusal::new(errno, words));
        let attempts = [
            attempt("a", &["tp__a"], refused(0, "passed over")),
            attempt("a", &["raw__a"], Ok(())),
            attempt("f", &["fentry__f"], refused(ENOENT, "no function f")),
            attempt("g", &["fexit__g"], refused(ENOENT, "no function g")),
            attempt("h", &["fentry__h", "fexit__h"], Ok(())),
            attempt("f", &["kprobe__f"], refused(95, "one; two; not supported")),
        ];
        let target = Target::Function("main".into());
        let reach = |result| TargetOutcome { module: "m", template: "t", target: target.clone(), number: 0, result };
        let no_probes = Refusals(vec![(&RETURN, Refusal::new(19, "the kernel has no kprobes"))]);
        let reaches = [reach(Err(no_probes)), reach(Ok(&CODE))];
        let found = ways(&attempts, &reaches);
        let of =
            |way: &str| found.iter().find(|finding| finding.feature == way).map(|way| (way.there, way.said.as_str()));
        assert_eq!(of("tp_btf"), Some((None, "not tried: a: passed over")));
        assert_eq!(of("raw_tp"), Some((Some(true), "accepted for a")));
        assert_eq!(of("fentry"), Some((Some(true), "accepted for h")));
        assert_eq!(of("kprobe"), Some((Some(false), "refused for f: not supported")));
        assert_eq!(of("kretprobe"), Some((Some(false), "refused for main: the kernel has no kprobes")));
        assert_eq!(of("uprobe"), Some((Some(true), "accepted for main")));
        assert_eq!(of("perf_event"), Some((None, "not tried: nothing that is enabled asked for it")));
    }

    #[test]
    fn a_way_that_needs_a_later_kernel_is_refused_and_not_untried() {
        let uprobe = |refusal| {
            let target = Target::Function("main".into());
            let result = Err(Refusals(vec![(&CODE, refusal)]));
            let found = ways(&[], &[TargetOutcome { module: "m", template: "t", target, number: 0, result }]);
            found.into_iter().find(|finding| finding.feature == "uprobe").map(|way| (way.there, way.said)).unwrap()
        };
        let later = uprobe(Refusal::unsupported("it needs Linux 4.20"));
        assert_eq!(later, (Some(false), "refused for main: it needs Linux 4.20".into()));
        let missing = uprobe(Refusal::missing("no function main"));
        assert_eq!(missing, (None, "not tried: main: no function main".into()));
    }
}
