//! The options as `clap` declares them: parsing, the usage text and the manual page come from here.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};
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
    #[arg(short, long, value_name = "PORT")]
    pub(super) inet: Option<String>,
    /// Wait for pmcd on an IPv6 loopback port, by number or service name
    #[arg(short = '6', long, value_name = "PORT")]
    pub(super) ipv6: Option<String>,
    /// Wait for pmcd on a Unix-domain socket, replacing an old one
    #[arg(short, long, value_name = "PATH")]
    pub(super) unix: Option<PathBuf>,
    /// Run as this account (loading BPF programs takes root or CAP_BPF and CAP_PERFMON)
    #[arg(short = 'U', long, value_name = "USER")]
    pub(super) username: Option<String>,
    /// Tell pmcd when ready: for a pmcd.conf line with the word notready, and only for one
    #[arg(long)]
    pub(super) notready: bool,
    /// Check FILE (or the usual configuration), load its modules, detach them and exit: 0 if all is right, else 1
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "trycompile")]
    pub(super) check: Option<Option<PathBuf>>,
    /// As --check, but only read the file: needs no root and no BPF
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["trycompile", "check"])]
    pub(super) check_syntax: Option<Option<PathBuf>>,
    /// As --check, but a failure counts only where module_failure_fatal says so, as with pmdabcc
    #[arg(long, value_name = "FILE", require_equals = true)]
    pub(super) trycompile: Option<PathBuf>,
    #[command(subcommand)]
    pub(super) command: Option<Sub>,
}

#[derive(Args)]
pub(super) struct Common {
    /// Use domain N in all identifiers [default: 149]
    #[arg(short, long, value_name = "N", global = true, allow_hyphen_values = true)]
    pub(super) domain: Option<String>,
    /// Log to FILE, or with - to standard error [default: corebcc.log for an agent, else -]
    #[arg(short, long, value_name = "FILE", global = true)]
    pub(super) log: Option<PathBuf>,
    /// Log to the system log
    #[arg(long, global = true, conflicts_with = "log")]
    pub(super) syslog: bool,
    /// Log more; SPEC is a list such as pdu,fetch
    #[arg(short = 'D', long, value_name = "SPEC", global = true, value_delimiter = ',')]
    pub(super) debug: Vec<String>,
    /// Read the configuration from FILE [default: corebcc/corebcc.conf in $PCP_SYSCONF_DIR, else beside the program]
    #[arg(short, long, value_name = "FILE", global = true)]
    pub(super) config: Option<PathBuf>,
    /// Take kernel types from FILE, for kernels that do not carry their own in /sys/kernel/btf
    #[arg(long, value_name = "FILE", global = true)]
    pub(super) btf: Option<PathBuf>,
    /// Accepted for compatibility and not read: the help texts are compiled in
    #[arg(short = 'h', long, value_name = "FILE", global = true)]
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
    /// Print the values of METRIC, or of all metrics below it, every INTERVAL seconds, COUNT times; needs no pmcd, and the
    /// module need not be enabled
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Show {
        /// A metric such as bcc.disk.all.latency, or a node above several
        metric: Option<String>,
        /// Seconds between readings, such as 2 or 0.5; without it there is one reading
        interval: Option<String>,
        /// The number of readings
        count: Option<String>,
        /// Lines as flame graph programs read them: a stack, its frames parted by semicolons, and the count
        #[arg(long)]
        folded: bool,
    },
}

/// The declaration with the name the program was started by, for parsing, the usage text and the manual page.
pub fn command(program: &str) -> clap::Command {
    let usage = format!("{program} [options]\n       {program} [options] show [--folded] METRIC [INTERVAL [COUNT]]");
    let examples = format!(
        "Examples:\n  \
        {program} --check                            try the configuration, then say what failed\n  \
        {program} show bcc.disk.all.latency 2 5      five readings, two seconds apart\n  \
        {program} show --folded bcc.proc.stacks 10 1 ten seconds of stacks, for flamegraph.pl\n  \
        {program} -l - -i 4321 -c test.conf          an agent for a pmcd.conf line with `socket inet 4321`\n\n\
        pmcd starts the agent by itself; see pmdacorebcc(1).\n"
    );
    Cli::command().name("pmdacorebcc").override_usage(usage).after_help(examples)
}

/// What `-?` prints and each refusal ends with.
pub(super) fn usage(program: &str) -> String {
    command(program).render_help().to_string()
}

/// One line for an error of the argument parser, which would by itself print several and exit with 2.
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
            format!("unexpected argument {}", sub.or(argument).unwrap_or_default())
        }
        (ErrorKind::InvalidValue | ErrorKind::WrongNumberOfValues | ErrorKind::NoEquals, Some(argument), _) => {
            format!("option {argument} requires its argument")
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        }
    }
}
