//! Regular expressions as a table of states that a program in the kernel can walk over a command line, byte by byte.

use regex_automata::dfa::{dense, Automaton as _, StartKind};
use regex_automata::nfa::thompson;
use regex_automata::util::{primitives::StateID, syntax};
use regex_automata::{Anchored, Input, MatchKind};
use std::collections::HashMap;

/// A finite automaton for the expressions of several filters at once.
#[derive(Clone, Debug)]
pub struct Automaton {
    /// Class of each byte.
    pub classes: [u8; 256],
    /// States: the first is that of no more matches, the second the start.
    pub states: Vec<State>,
}

/// A state.
#[derive(Clone, Debug)]
pub struct State {
    /// Next state, by the class of the next byte.
    pub next: [u16; Automaton::CLASSES],
    /// Filters that match a text that ends here, a bit each.
    pub filters: u64,
}

impl Automaton {
    /// Number of classes that a state has room for.
    pub const CLASSES: usize = 64;
    /// Highest number of states: `.*-jar /opt/[a-z]+[.]jar.*` takes twenty, and some expressions double them with every
    /// letter.
    pub const STATES: usize = 512;
    const START: usize = 1;
    /// Memory limit for building, in bytes.
    const MEMORY: usize = 4 << 20;

    /// Builds it from expressions that are searched for (`regex::bytes`), each with the bits of its filters. `None` if
    /// they depend on more than bytes (`\b`), or take too many states.
    pub fn new(expressions: &[(&str, u64)]) -> Option<Automaton> {
        // What is searched for may have anything before and behind it.
        let patterns: Vec<String> =
            expressions.iter().map(|(text, _)| format!("(?s-u:.)*(?:{text})(?s-u:.)*")).collect();
        let limits = dense::Config::new()
            .dfa_size_limit(Some(Automaton::MEMORY))
            .determinize_size_limit(Some(Automaton::MEMORY))
            .start_kind(StartKind::Anchored)
            .match_kind(MatchKind::All);
        let dfa = dense::Builder::new()
            .configure(limits)
            .syntax(syntax::Config::new().utf8(false))
            .thompson(thompson::Config::new().utf8(false))
            .build_many(&patterns)
            .ok()?;
        let mut classes = [0; 256];
        let mut first = Vec::new();
        for byte in 0..=u8::MAX {
            let class = dfa.byte_classes().get(byte);
            classes[usize::from(byte)] = class;
            if usize::from(class) == first.len() {
                first.push(byte);
            }
        }
        if first.len() > Automaton::CLASSES {
            return None;
        }
        let matched = |id: StateID| match dfa.is_match_state(id) {
            true => {
                (0..dfa.match_len(id)).fold(0, |bits, at| bits | expressions[dfa.match_pattern(id, at).as_usize()].1)
            }
            false => 0,
        };
        let mut found = vec![dfa.start_state_forward(&Input::new("").anchored(Anchored::Yes)).ok()?];
        let mut places = HashMap::from([(found[0], Automaton::START)]);
        let mut states = vec![State { next: [0; Automaton::CLASSES], filters: 0 }];
        while let Some(&id) = found.get(states.len() - Automaton::START) {
            let mut state = State { next: [0; Automaton::CLASSES], filters: matched(dfa.next_eoi_state(id)) };
            for (next, &byte) in state.next.iter_mut().zip(&first) {
                let id = dfa.next_state(id, byte);
                if dfa.is_quit_state(id) {
                    return None;
                }
                if !dfa.is_dead_state(id) {
                    *next = *places.entry(id).or_insert_with(|| {
                        found.push(id);
                        found.len() - 1 + Automaton::START
                    }) as u16;
                }
            }
            states.push(state);
            if found.len() >= Automaton::STATES {
                return None;
            }
        }
        // Where nothing can match any more the walk may end: an expression that says how a line begins is soon decided.
        let mut hopeful: Vec<bool> = states.iter().map(|state| state.filters != 0).collect();
        loop {
            let before = hopeful.clone();
            for (at, state) in states.iter().enumerate().rev() {
                hopeful[at] |= state.next.iter().any(|&next| hopeful[usize::from(next)]);
            }
            if hopeful == before {
                break;
            }
        }
        let next = states.iter_mut().flat_map(|state| &mut state.next);
        next.filter(|next| !hopeful[usize::from(**next)]).for_each(|next| *next = 0);
        Some(Automaton { classes, states })
    }

    /// Returns the filters that a text matches, like the program in the kernel.
    #[cfg(test)]
    fn walk(&self, text: &[u8]) -> u64 {
        let next = |state: &State, byte: &u8| state.next[usize::from(self.classes[usize::from(*byte)])];
        let last = text.iter().fold(Automaton::START, |state, byte| usize::from(next(&self.states[state], byte)));
        self.states[last].filters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::bytes::Regex;

    #[test]
    fn each_filter_gets_what_its_expressions_match() {
        let automaton =
            Automaton::new(&[("^.*-jar x[.]jar$", 1), ("^/usr/sbin/sshd$", 2), ("^a|b$", 4), ("^(?i)java .*$", 2)]);
        let automaton = automaton.unwrap();
        assert!(automaton.states.len() < 100, "{}", automaton.states.len());
        for (text, filters) in [
            ("java -jar x.jar", 3),
            ("java -jar xyjar", 2),
            ("JAVA ", 2),
            ("/usr/sbin/sshd", 2),
            ("/usr/sbin/sshd -D", 0),
            ("aaaa", 4),
            ("cab", 4),
            ("cabc", 0),
            ("", 0),
        ] {
            assert_eq!(automaton.walk(text.as_bytes()), filters, "{text}");
        }
    }

    #[test]
    fn where_nothing_can_match_any_more_is_the_first_state() {
        let automaton = Automaton::new(&[("^/usr/sbin/sshd -D.*$", 1)]).unwrap();
        let second =
            &automaton.states[usize::from(automaton.states[1].next[usize::from(automaton.classes[b'/' as usize])])];
        let after = |state: &State, byte: u8| state.next[usize::from(automaton.classes[usize::from(byte)])];
        assert_eq!([after(&automaton.states[1], b'u'), after(second, b'/')], [0, 0]);
        assert_ne!(after(second, b'u'), 0);
    }

    #[test]
    fn what_bytes_cannot_tell_and_what_takes_too_much_is_none() {
        assert!(Automaton::new(&[(r"^.*\bjava\b.*$", 1)]).is_none());
        assert!(Automaton::new(&[("^.*a.{20}b.*$", 1)]).is_none());
        assert!(Automaton::new(&[("^.*[a-m].{12}[n-z]$", 1)]).is_none());
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(64))]
        #[test]
        fn it_finds_what_the_expression_does(
            text in "[abé. -]{0,12}",
            raw: Vec<u8>,
            one in "[ab.]{1,4}[*+?]?[ab]?|a[.]c|[ab]*é|a\\|b",
            other in "[ab .]{1,6}",
        ) {
            let (one, other) = (format!("^{one}$"), format!("^{other}$"));
            let automaton = Automaton::new(&[(&one, 1), (&other, 2)]).unwrap();
            let is = |expression: &str, text: &[u8]| u64::from(Regex::new(expression).unwrap().is_match(text));
            for text in [text.as_bytes(), &raw] {
                proptest::prop_assert_eq!(automaton.walk(text), is(&one, text) | is(&other, text) << 1);
            }
        }
    }
}
