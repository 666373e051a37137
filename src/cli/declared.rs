//! The options as `clap` declares them: parsing, the usage text and the manual page come from here.

use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use std::path::PathBuf;

#[derive(Parser)]
#[command(disable_help_flag = true, disable_version_flag = true, disable_help_subcommand = true)]
#[command(args_override_self = true, max_term_width = 100)]
#[command(help_template = "Usage: {usage}\n\nServes the bcc.* metrics of Performance Co-Pilot from BPF programs.\n\
    \nCommands:\n{subcommands}\n\nOptions:\n{options}\n\n{after-help}")]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) common: Common,
    /// Talk to pmcd over standard input and output (the default)
    #[arg(short, long)]
    pub(super) pipe: bool,
    /// Wait for pmcd on an IPv4 loopback port, by number or service name
    #[arg(short, long, value_name = "PORT", value_hint = ValueHint::Other)]
    pub(super) inet: Option<String>,
    /// Wait for pmcd on an IPv6 loopback port, by number or service name
    #[arg(short = '6', long, value_name = "PORT", value_hint = ValueHint::Other)]
    pub(super) ipv6: Option<String>,
    /// Wait for pmcd on a Unix-domain socket, replacing an old one
    #[arg(short, long, value_name = "PATH")]
    pub(super) unix: Option<PathBuf>,
    /// Run as this account, with only the capabilities that the modules need
    #[arg(short = 'U', long, value_name = "USER", value_hint = ValueHint::Username)]
    pub(super) username: Option<String>,
    /// Tell pmcd when the modules are loaded; use it if, and only if, the pmcd.conf line says notready
    #[arg(long)]
    pub(super) notready: bool,
    /// Check FILE (or the usual configuration), load its modules, detach them and exit with 0, 1 after any error, or 2 if FILE may not be tried
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "trycompile")]
    pub(super) check: Option<Option<PathBuf>>,
    /// Like --check, but without loading; needs neither root nor BPF
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["trycompile", "check"])]
    pub(super) check_syntax: Option<Option<PathBuf>>,
    /// Like --check, but a module that fails to load is an error only with module_failure_fatal = True, as in pmdabcc
    #[arg(long, value_name = "FILE", require_equals = true)]
    pub(super) trycompile: Option<PathBuf>,
    /// With --check: list every way to attach that was tried, with the reasons of those that were refused
    #[arg(long)]
    pub(super) verbose: bool,
    #[command(subcommand)]
    pub(super) command: Option<Sub>,
}

#[derive(Args)]
pub(super) struct Common {
    /// Use domain N in all identifiers [default: 149]
    #[arg(short, long, value_name = "N", global = true, allow_hyphen_values = true, value_hint = ValueHint::Other)]
    pub(super) domain: Option<String>,
    /// Log to FILE; - is standard error [default: corebcc.log for an agent, else -]
    #[arg(short, long, value_name = "FILE", global = true)]
    pub(super) log: Option<PathBuf>,
    /// Log to the system log
    #[arg(long, global = true, conflicts_with = "log")]
    pub(super) syslog: bool,
    /// Log debugging output; SPEC is a list such as pdu,fetch
    #[arg(short = 'D', long, value_name = "SPEC", global = true, value_hint = ValueHint::Other, value_delimiter = ',')]
    pub(super) debug: Vec<String>,
    /// Read the configuration from FILE [default: corebcc/corebcc.conf in $PCP_SYSCONF_DIR, else beside the program]
    #[arg(short, long, value_name = "FILE", global = true)]
    pub(super) config: Option<PathBuf>,
    /// Read kernel types (BTF) from FILE, for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE", global = true)]
    pub(super) btf: Option<PathBuf>,
    /// Ignored; accepted for compatibility (the help texts are compiled in)
    #[arg(short = 'h', long, value_name = "FILE")]
    pub(super) helpfile: Option<PathBuf>,
    /// Print the version and exit
    #[arg(long, global = true)]
    pub(super) version: bool,
    /// Print this text and exit
    #[arg(short = '?', long, global = true)]
    pub(super) help: bool,
}

#[derive(Subcommand)]
#[command(disable_help_flag = true)]
pub(super) enum Sub {
    /// Print metrics without pmcd, whether or not their modules are enabled
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Show(Show),
    /// Write the sources of a BPF program of your own: NAME.bpf.c, NAME.yaml and a Makefile
    #[command(disable_help_flag = true, disable_version_flag = true)]
    New {
        /// The name of the pair and of its metrics, bcc.user.NAME
        name: Option<String>,
    },
    /// Print completions for bash, zsh or fish
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Completions {
        /// The shell
        shell: Option<String>,
    },
}

#[derive(Args)]
#[command(group = ArgGroup::new("form").args(["list", "top", "heatmap", "folded", "json", "csv"]))]
#[command(group = ArgGroup::new("scale").args(["milliseconds", "microseconds"]))]
pub(super) struct Show {
    /// Print this text and exit; only the agent takes a file of help texts by -h
    #[arg(short = 'h', hide = true)]
    pub(super) short_help: bool,
    /// Metrics, parent nodes of metrics, or modules; then the interval in seconds and the number of readings
    #[arg(value_name = "METRIC", allow_negative_numbers = true)]
    pub(super) words: Vec<String>,
    /// List the modules and their metrics, which are enabled, and (as root) which this kernel can load
    #[arg(long)]
    pub(super) list: bool,
    /// Redraw the screen with each reading until Ctrl-C
    #[arg(long)]
    pub(super) top: bool,
    /// Draw histograms over time, one column per reading
    #[arg(long)]
    pub(super) heatmap: bool,
    /// Print folded stacks for flame graph tools: frames separated by semicolons, then the count
    #[arg(long)]
    pub(super) folded: bool,
    /// Print one JSON object per line, for each table and reading
    #[arg(long)]
    pub(super) json: bool,
    /// Print comma-separated values; the metrics must share one table
    #[arg(long)]
    pub(super) csv: bool,
    /// Show times in milliseconds
    #[arg(short, long)]
    pub(super) milliseconds: bool,
    /// Show times in microseconds
    #[arg(short = 'u', long)]
    pub(super) microseconds: bool,
    /// Show counters as rates per second
    #[arg(short, long)]
    pub(super) rate: bool,
    /// Also show rows and buckets that are zero
    #[arg(short, long)]
    pub(super) zeros: bool,
    /// Sort rows by this column: numbers descending, text ascending [default: the first counter]
    #[arg(long, value_name = "COLUMN", value_hint = ValueHint::Other)]
    pub(super) sort: Option<String>,
    /// Show at most N rows of a table
    #[arg(short = 'n', long, value_name = "N", value_hint = ValueHint::Other)]
    pub(super) rows: Option<String>,
    /// Show only rows of the process with this id
    #[arg(short, long, value_name = "PID", value_hint = ValueHint::Other)]
    pub(super) pid: Option<String>,
    /// Show only rows of processes with this command name
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other)]
    pub(super) comm: Option<String>,
    /// Show only rows of the cgroup with this path, or with this name in its path, such as sshd.service
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other)]
    pub(super) cgroup: Option<String>,
    /// Show the metrics of the pair of FILE, a program of your own that need not be in programs.d
    #[arg(long = "program", value_name = "FILE.yaml")]
    pub(super) pair: Option<PathBuf>,
    /// Override a module option of the configuration; use MODULE.OPTION=VALUE if several modules have it
    #[arg(long, value_name = "OPTION=VALUE", value_hint = ValueHint::Other)]
    pub(super) set: Vec<String>,
}

/// Declares the options, under the name by which the program was started, for parsing, the usage text and the manual page.
pub fn command(program: &str) -> clap::Command {
    let usage = format!(
        "{program} [options]\n       {program} show [options] METRIC... [INTERVAL [COUNT]]\n       \
         {program} new NAME\n       {program} completions bash|zsh|fish"
    );
    let examples = format!(
        "Examples:\n  \
        {program} --check                            try the configuration and report failures\n  \
        {program} show bcc.disk.all.latency 2 5      five readings, two seconds apart\n  \
        {program} show --list                        all modules and metrics, and what this kernel can load\n  \
        {program} show --help                        the options of show\n  \
        {program} -l - -i 4321 -c test.conf          an agent for a pmcd.conf line with `socket inet 4321`\n\n\
        pmcd starts the agent by itself; see pmdacorebcc(1).\n"
    );
    Cli::command().name("pmdacorebcc").override_usage(usage).after_help(examples)
}

/// Returns the usage text, which `-?` prints and each refusal ends with.
pub(super) fn usage(program: &str) -> String {
    command(program).render_help().to_string()
}

/// Returns the usage text of `show`.
pub(super) fn usage_of_show(program: &str) -> String {
    let mut command = command(program);
    command.build();
    let show = command.find_subcommand("show").expect("it is declared above").clone();
    let examples = format!(
        "Examples:\n  \
        {program} show biolatency 2 5                    five histograms, two seconds apart\n  \
        {program} show -m --set queued=true biolatency   in milliseconds, with the time in the queue\n  \
        {program} show execsnoop 1                       new programs, every second\n  \
        {program} show --top -n 20 syscount 2            redraw the screen, as top does\n  \
        {program} show --heatmap runq.latency 1          one column per second\n  \
        {program} show --json bcc.disk 1 | jq .rows      one object per line\n  \
        {program} show --folded bcc.proc.stacks 10 1     ten seconds of stacks, for flamegraph.pl\n"
    );
    let show = show.override_usage(format!("{program} show [options] METRIC... [INTERVAL [COUNT]]"));
    let show = show.help_template("Usage: {usage}\n\n{about}.\n\nOptions:\n{options}\n\n{after-help}");
    show.after_help(examples).render_help().to_string()
}

/// Returns the completions of a shell. `names` completes the words of `show`.
pub fn completions(shell: Shell, program: &str, names: Vec<String>) -> String {
    // What is generated for fish leaves out the values of arguments that are no options.
    const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];
    let values = |command: &str, values: &str| {
        format!("complete -c {program} -n \"__fish_seen_subcommand_from {command}\" -f -a \"{values}\"\n")
    };
    let for_fish = values("show", &names.join(" ")) + &values("completions", &SHELLS.join(" "));
    let mut command = Cli::command().mut_subcommand("show", |show| {
        show.mut_arg("words", |words| words.value_parser(PossibleValuesParser::new(names)))
    });
    command = command.mut_subcommand("completions", |completions| {
        completions.mut_arg("shell", |shell| shell.value_parser(PossibleValuesParser::new(SHELLS)))
    });
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, program, &mut text);
    let text = String::from_utf8_lossy(&text);
    match shell {
        Shell::Fish => format!("{text}{for_fish}"),
        Shell::Bash => text.lines().map(words_before_options).collect(),
        _ => text.into_owned(),
    }
}

/// Changes a line that was generated for bash, so that options are offered only after a `-`, otherwise commands and names.
fn words_before_options(line: &str) -> String {
    let all = line.trim_start().strip_prefix("opts=\"").and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
    let (options, words): (Vec<&str>, Vec<&str>) = all.split_whitespace().partition(|word| word.starts_with('-'));
    match words.is_empty() {
        true => format!("{line}\n"),
        false => format!(
            "            opts=\"{}\"\n            [[ ${{cur}} == -* ]] && opts=\"{}\"\n",
            words.join(" "),
            options.join(" ")
        ),
    }
}

/// First words of the message about an argument that is no command.
pub(super) const UNEXPECTED: &str = "unexpected argument";

/// Describes an error of the argument parser in one line; the parser itself would print several and exit with 2.
pub(super) fn describe(error: &clap::Error) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    match (error.kind(), context(ContextKind::InvalidArg), context(ContextKind::InvalidSubcommand)) {
        (ErrorKind::UnknownArgument, Some(argument), _) if argument.starts_with('-') => {
            let near = context(ContextKind::SuggestedArg);
            let near = near.map_or_else(String::new, |near| format!(" (did you mean {near}?)"));
            format!("unrecognized option {argument}{near}")
        }
        (ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument, argument, sub) => {
            let word = sub.or(argument).unwrap_or_default();
            let near = match word.as_str() {
                "list" => "--list",
                "help" => "--help",
                word => word,
            };
            format!("{UNEXPECTED} {word}; did you mean `show {near}`?")
        }
        (ErrorKind::InvalidValue | ErrorKind::WrongNumberOfValues | ErrorKind::NoEquals, Some(argument), _) => {
            match argument.starts_with("--helpfile") {
                true => "-h requires the FILE that PCP's agents take; --help prints the options".to_owned(),
                false => format!("option {argument} requires its argument"),
            }
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        }
    }
}
