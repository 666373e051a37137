//! The command line: options that every PCP agent has (PMDA(3), `pmdaGetOptions`), and further options and commands. Reads arguments;
//! returns a [`Command`], or an [`Exit`] with the texts to print.

mod configuration;
mod declared;

pub use clap_complete::Shell;
pub use configuration::{built_in, configuration, programs, read_config, scripts, usual_config};
pub use declared::{command, completions};

use crate::logging::Target;
use crate::transport::{self, Endpoint, PortError};
use clap::{ArgMatches, FromArgMatches};
use declared::{describe, usage, usage_of_show, Cli, Show, Sub, UNEXPECTED};
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// The domain of the BCC agent in PCP's `stdpmid`.
const DOMAIN: u32 = 149;

/// Commands other than the agent itself.
const COMMANDS: [&str; 3] = ["show", "new", "completions"];

/// Highest domain: the field is 9 bits wide, and its highest value marks dynamic names (`DYNAMIC_PMID` in `libpcp.h`).
const MAX_DOMAIN: u32 = 510;

/// A command with its options.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Run as an agent.
    Serve(ServeOptions),
    /// Load the modules once and report the result.
    Check(CheckOptions),
    /// Print the values of metrics without pmcd.
    Show(ShowOptions),
    /// Write the sources of a pair of programs.d with this name.
    New(CommonOptions, String),
    /// Print the completions of a shell.
    Completions(CommonOptions, Shell),
}

/// Options that every command has.
#[derive(Clone, Debug, PartialEq)]
pub struct CommonOptions {
    /// The base name of the program, for messages and the log.
    pub program: String,
    /// The domain of all identifiers, up to 510.
    pub domain: u32,
    /// The log.
    pub log: Target,
    /// Names given to `-D`; any name switches debug lines on.
    pub debug: Vec<String>,
    /// The configuration, if named; else see [`usual_config`].
    pub config: Option<PathBuf>,
    /// Kernel types to use in place of the running kernel's own.
    pub btf: Option<PathBuf>,
    /// The file given to `-h`, which only causes a line in the log: help texts are compiled in.
    pub helpfile: Option<PathBuf>,
}

/// Options of the agent.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeOptions {
    /// Options that every command has.
    pub common: CommonOptions,
    /// The connection to pmcd.
    pub endpoint: Endpoint,
    /// The account to run as.
    pub username: Option<String>,
    /// True if the line in `pmcd.conf` says `notready`: pmcd waits for READY.
    pub notready: bool,
}

/// Options of `--check` and its variants.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckOptions {
    /// Options that every command has; `config` is the file to check.
    pub common: CommonOptions,
    /// True if anything that is configured and not done makes the exit status 1: a module that fails, whatever `module_failure_fatal`
    /// says, a missing target, an unknown option (`--check`, not `--trycompile`).
    pub strict: bool,
    /// True if the modules are loaded (not with `--check-syntax`).
    pub load: bool,
    /// True if each attempt to attach has a row.
    pub verbose: bool,
    /// Text to print on standard output before all else.
    pub announcement: Option<String>,
}

/// Options of `show`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShowOptions {
    /// Options that every command has.
    pub common: CommonOptions,
    /// Names of metrics, of parent nodes and of modules.
    pub names: Vec<String>,
    /// Interval between readings; `None` for a single reading.
    pub interval: Option<Duration>,
    /// Number of readings; `None` for readings until a signal, if there is an interval.
    pub count: Option<u64>,
    /// Form of the output.
    pub form: Form,
    /// Unit of times; `None` for the unit of each metric.
    pub scale: Option<Scale>,
    /// True if counters are shown as rates per second.
    pub rate: bool,
    /// True if rows and buckets that are zero are shown.
    pub zeros: bool,
    /// Column that rows are sorted by.
    pub sort: Option<String>,
    /// Largest number of rows of a table.
    pub rows: Option<usize>,
    /// Restriction of the rows that are shown.
    pub only: Only,
    /// YAML file of a pair whose metrics are shown.
    pub pair: Option<PathBuf>,
    /// Values of module options, `OPTION=VALUE` or `MODULE.OPTION=VALUE`.
    pub set: Vec<String>,
}

/// A restriction of rows to a process, a command or a cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Identifier of the process.
    pub pid: Option<u32>,
    /// Name of the command.
    pub comm: Option<String>,
    /// Path of the cgroup, or a component of it.
    pub cgroup: Option<String>,
}

/// A form of the output of `show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Histograms and tables, one reading below the other.
    Tables,
    /// Histograms and tables, each reading in place of the one before.
    Top,
    /// The modules and their metrics, without values.
    List,
    /// Histograms over time.
    Heatmap,
    /// Lines for flame graph programs.
    Folded,
    /// JSON objects.
    Json,
    /// Comma-separated values.
    Csv,
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
}

/// The end of the program because of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit status.
    pub status: i32,
    /// Text for standard output.
    pub stdout: String,
    /// Text for standard error.
    pub stderr: String,
}

/// An error in the options.
#[derive(Debug, Error)]
enum UsageError {
    #[error("-d requires a domain number from 0 to {most}, got {0}", most = MAX_DOMAIN)]
    Domain(i64),
    #[error("-d requires numeric domain number")]
    DomainIsNoNumber,
    #[error("{0} option clashes with {1} option")]
    Clash(&'static str, &'static str),
    #[error("{0} option: {1}")]
    Port(&'static str, PortError),
    #[error("a check cannot be combined with show, new or completions")]
    CommandAndCheck,
    #[error(
        "show requires a metric or a module, such as bcc.disk.all.latency or biolatency; show --list has them all"
    )]
    NoMetric,
    #[error("new requires a NAME for the pair, such as opens")]
    NoName,
    #[error("the metric stands before the interval: show {0}")]
    IntervalFirst(String),
    #[error("show expects nothing after INTERVAL and COUNT, got `{0}`; metrics come first")]
    Surplus(String),
    #[error("show -p requires a process id, got `{0}`")]
    Pid(String),
    #[error("show -n requires a number of rows, 1 or more, got `{0}`")]
    Rows(String),
    #[error("completions requires a shell (bash, zsh or fish), got `{0}`")]
    Shell(String),
    #[error("show --list takes no INTERVAL, got `{0}`")]
    ListInterval(String),
    #[error("show requires an INTERVAL of 0.001 to 86400 seconds, got `{0}`")]
    Interval(String),
    #[error("show requires a COUNT of 1 or more, got `{0}`")]
    Count(String),
}

/// Reason why standard output does not take a text.
#[derive(Debug, Error)]
#[error("cannot write to standard output: {0}")]
pub struct PrintError(std::io::Error);

/// Parses `args`, of which the first is the program's path.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, Exit> {
    let args = args.into_iter().collect::<Vec<_>>();
    let program = args.first().and_then(|path| Path::new(path).file_name());
    let program = program.map_or_else(|| "pmdacorebcc".to_owned(), |name| name.to_string_lossy().into_owned());
    let words = std::iter::once(OsString::from(&program)).chain(args.into_iter().skip(1));
    let words: Vec<OsString> = words.collect();
    let refuse = refusal(&program, &words);
    let matches = command(&program).try_get_matches_from(&words).map_err(|error| refuse(&describe(&error)))?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| refuse(&describe(&error)))?;
    if cli.common.help || matches!(cli.command, Some(Sub::Show(Show { short_help: true, .. }))) {
        let stdout = if matches!(cli.command, Some(Sub::Show(_))) { usage_of_show(&program) } else { usage(&program) };
        return Err(Exit { status: 0, stdout, stderr: String::new() });
    }
    if cli.common.version {
        let stdout = format!("{program} {}\n", env!("CARGO_PKG_VERSION"));
        return Err(Exit { status: 0, stdout, stderr: String::new() });
    }
    read(cli, &matches, &program).map_err(|error| refuse(&error.to_string()))
}

/// Prints on standard output. Returns false if the reader has gone (`| head`), which is no error.
pub fn print(text: &str) -> Result<bool, PrintError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(PrintError(error)),
    }
}

/// Returns the message for a user who starts the agent by hand, where it would read requests from the keyboard.
pub fn not_for_terminals(program: &str) -> String {
    refuse(program, "standard input and output are for pmcd, not for a terminal; try one of the examples below").stderr
}

fn read(cli: Cli, matches: &ArgMatches, program: &str) -> Result<Command, UsageError> {
    let domain = match cli.common.domain.as_deref() {
        None => DOMAIN,
        Some(text) => match text.trim().parse::<i64>() {
            Ok(number) => {
                u32::try_from(number).ok().filter(|&domain| domain <= MAX_DOMAIN).ok_or(UsageError::Domain(number))?
            }
            Err(_) => return Err(UsageError::DomainIsNoNumber),
        },
    };
    let endpoint = endpoint(&cli, matches)?;
    let trycompile = cli.trycompile.is_some();
    let check = cli.check.as_ref().or(cli.check_syntax.as_ref());
    let agent = check.is_none() && cli.command.is_none();
    let log = match cli.common.log {
        _ if cli.common.syslog => Target::Syslog,
        Some(path) if path == Path::new("-") => Target::Stderr,
        Some(path) => Target::File(path),
        None if agent => Target::File("corebcc.log".into()),
        None if check.is_some() => Target::Terminal,
        None => Target::Stderr,
    };
    let mut common = CommonOptions {
        program: program.to_owned(),
        domain,
        log,
        debug: cli.common.debug,
        config: cli.common.config,
        btf: cli.common.btf,
        helpfile: cli.common.helpfile,
    };
    if cli.command.is_some() && (trycompile || check.is_some()) {
        return Err(UsageError::CommandAndCheck);
    }
    match cli.command {
        Some(Sub::Show(declared)) => return show(common, declared).map(Command::Show),
        Some(Sub::New { name }) => return name.map(|name| Command::New(common, name)).ok_or(UsageError::NoName),
        Some(Sub::Completions { shell }) => {
            let shell = shell.unwrap_or_default();
            return shell
                .parse()
                .map(|shell| Command::Completions(common, shell))
                .map_err(|_| UsageError::Shell(shell));
        }
        None => {}
    }
    if let Some(file) = cli.trycompile {
        let announcement = Some(format!("Trying to compile config {} ...", file.display()));
        common.config = Some(file);
        return Ok(Command::Check(CheckOptions {
            common,
            strict: false,
            load: true,
            verbose: cli.verbose,
            announcement,
        }));
    }
    if let Some(file) = check {
        common.config = file.clone().or(common.config);
        let load = cli.check.is_some();
        return Ok(Command::Check(CheckOptions {
            common,
            strict: true,
            load,
            verbose: cli.verbose,
            announcement: None,
        }));
    }
    Ok(Command::Serve(ServeOptions { common, endpoint, username: cli.username, notready: cli.notready }))
}

fn show(common: CommonOptions, mut declared: Show) -> Result<ShowOptions, UsageError> {
    // No metric and no module begins with anything but a letter.
    let is_name = |word: &String| word.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let split = declared.words.iter().position(|word| !is_name(word)).unwrap_or(declared.words.len());
    let mut names = std::mem::take(&mut declared.words);
    let numbers = names.split_off(split);
    if names.is_empty() && numbers.iter().any(is_name) {
        let (names, numbers): (Vec<_>, Vec<_>) = numbers.into_iter().partition(is_name);
        return Err(UsageError::IntervalFirst([names, numbers].concat().join(" ")));
    }
    let names: Vec<String> = names.iter().flat_map(|words| words.split(',')).map(plain).collect();
    let mut numbers = numbers.into_iter();
    let form = match &declared {
        Show { list: true, .. } => Form::List,
        Show { top: true, .. } => Form::Top,
        Show { heatmap: true, .. } => Form::Heatmap,
        Show { folded: true, .. } => Form::Folded,
        Show { json: true, .. } => Form::Json,
        Show { csv: true, .. } => Form::Csv,
        _ => Form::Tables,
    };
    let scale = match &declared {
        Show { milliseconds: true, .. } => Some(Scale::Milliseconds),
        Show { microseconds: true, .. } => Some(Scale::Microseconds),
        _ => None,
    };
    let interval = numbers.next();
    match (form, &interval) {
        (Form::List, Some(text)) => return Err(UsageError::ListInterval(text.clone())),
        (Form::List, None) => {}
        _ if names.is_empty() && declared.pair.is_none() => return Err(UsageError::NoMetric),
        _ => {}
    }
    let is_drawn_over_time = matches!(form, Form::Top | Form::Heatmap);
    let interval = interval.as_deref().map(seconds).transpose()?;
    let interval = interval.or(is_drawn_over_time.then_some(Duration::from_secs(1)));
    let positive = |text: String, error: fn(String) -> UsageError| {
        text.parse::<u64>().ok().filter(|&number| number > 0).ok_or_else(|| error(text))
    };
    let count = numbers.next().map(|text| positive(text, UsageError::Count)).transpose()?;
    if let Some(text) = numbers.next() {
        return Err(UsageError::Surplus(text));
    }
    let pid = declared.pid.map(|text| text.parse().map_err(|_| UsageError::Pid(text))).transpose()?;
    let rows = declared.rows.map(|text| positive(text, UsageError::Rows)).transpose()?;
    Ok(ShowOptions {
        common,
        names,
        interval,
        count,
        form,
        scale,
        rate: declared.rate,
        zeros: declared.zeros,
        sort: declared.sort,
        rows: rows.map(|rows| usize::try_from(rows).unwrap_or(usize::MAX)),
        only: Only { pid, comm: declared.comm, cgroup: declared.cgroup },
        pair: declared.pair,
        set: declared.set,
    })
}

/// Reads the connection from at most one of `-p -i -6 -u`; the error names the later one first, as `pmdaGetOptions` does.
fn endpoint(cli: &Cli, matches: &ArgMatches) -> Result<Endpoint, UsageError> {
    let given = [("pipe", "-p"), ("inet", "-i"), ("ipv6", "-6"), ("unix", "-u")];
    // A flag that is not given has an index too, for its default value.
    let is_given = |id: &str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    let mut given = given.into_iter().filter(|(id, _)| is_given(id)).collect::<Vec<_>>();
    given.sort_by_key(|(id, _)| matches.index_of(id));
    if let [(_, first), (_, second), ..] = given[..] {
        return Err(UsageError::Clash(second, first));
    }
    let port = |option, text: &str| transport::port(text).map_err(|error| UsageError::Port(option, error));
    match (&cli.inet, &cli.ipv6, &cli.unix) {
        (Some(text), ..) => Ok(Endpoint::Inet(port("-i", text)?)),
        (_, Some(text), _) => Ok(Endpoint::Inet6(port("-6", text)?)),
        (.., Some(path)) => Ok(Endpoint::Unix(path.clone())),
        _ => Ok(Endpoint::Pipe),
    }
}

/// Removes a final `.*` from a name: it means the same as the node above.
fn plain(name: &str) -> String {
    name.trim().trim_end_matches(".*").to_owned()
}

/// Reads a duration in seconds, from a millisecond to a day.
fn seconds(text: &str) -> Result<Duration, UsageError> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..=86400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| UsageError::Interval(text.into()))
}

/// Returns the way to refuse arguments: for a command one sentence, for the agent a sentence with the usage text, as PCP's agents do.
fn refusal<'a>(program: &'a str, words: &[OsString]) -> impl Fn(&str) -> Exit + 'a {
    let command = words.iter().filter_map(|word| word.to_str()).find(|word| COMMANDS.contains(word));
    let help = match command {
        Some("show") => Some(format!("{program} show --help")),
        Some(_) => Some(format!("{program} --help")),
        None => None,
    };
    move |message| match &help {
        Some(help) => one_sentence(program, message, help),
        None if message.starts_with(UNEXPECTED) => one_sentence(program, message, &format!("{program} --help")),
        None => refuse(program, message),
    }
}

fn one_sentence(program: &str, message: &str, help: &str) -> Exit {
    let stderr = format!("{program}: {message} ({help} has the options)\n");
    Exit { status: 1, stdout: String::new(), stderr }
}

fn refuse(program: &str, message: &str) -> Exit {
    Exit { status: 1, stdout: String::new(), stderr: format!("{program}: {message}\n{}", usage(program)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcpconf::PcpConf;

    fn run(line: &str) -> Result<Command, Exit> {
        parse(["/x/pmdacorebcc"].into_iter().chain(line.split_whitespace()).map(OsString::from))
    }

    fn serve(line: &str) -> ServeOptions {
        match run(line) {
            Ok(Command::Serve(options)) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn message(line: &str) -> String {
        let exit = run(line).unwrap_err();
        assert_eq!((exit.status, exit.stdout.as_str()), (1, ""), "{line}");
        let (message, usage) = exit.stderr.split_once('\n').unwrap();
        assert!(usage.starts_with("Usage: pmdacorebcc [options]\n"), "{usage}");
        message.strip_prefix("pmdacorebcc: ").unwrap().to_owned()
    }

    #[test]
    fn the_declaration_is_sound() {
        command("pmdacorebcc").debug_assert();
    }

    #[test]
    fn no_arguments_serve_over_the_pipe() {
        let options = serve("");
        assert_eq!((options.common.domain, options.endpoint), (149, Endpoint::Pipe));
        assert_eq!(options.common.log, Target::File("corebcc.log".into()));
        assert_eq!(options.common.program, "pmdacorebcc");
        assert!(!options.notready && options.common.config.is_none());
    }

    #[test]
    fn every_option_has_its_short_and_long_form() {
        let short = serve("-d 250 -l - -D pdu,fetch -i 4321 -U pcp -h help -c f.conf --notready --btf vmlinux");
        let long = "--domain=250 --log=- --debug=pdu --debug=fetch --inet=4321 --username=pcp --helpfile=help";
        assert_eq!(short, serve(&format!("{long} --config=f.conf --notready --btf=vmlinux")));
        assert_eq!(short.common.debug, ["pdu", "fetch"]);
        assert_eq!((short.common.log, short.endpoint), (Target::Stderr, Endpoint::Inet(4321)));
        assert_eq!(serve("-p").endpoint, serve("--pipe").endpoint);
        assert_eq!(serve("-6 99").endpoint, serve("--ipv6=99").endpoint);
        assert_eq!(serve("-u /s").endpoint, Endpoint::Unix("/s".into()));
        assert_eq!(serve("--unix=/s -lx").common.log, Target::File("x".into()));
        assert_eq!(serve("--syslog").common.log, Target::Syslog);
        assert_eq!(serve("-d 1 -d 2 -i 1 -i 2").endpoint, Endpoint::Inet(2), "the last one counts");
    }

    #[test]
    fn endpoints_clash() {
        assert_eq!(message("-p -i 1"), "-i option clashes with -p option");
        assert_eq!(message("-i 1 -p"), "-p option clashes with -i option");
        assert_eq!(message("-u x -6 1"), "-6 option clashes with -u option");
    }

    #[test]
    fn refusals_name_the_option() {
        assert_eq!(message("-d abc"), "-d requires numeric domain number");
        assert_eq!(message("-d 12x"), "-d requires numeric domain number");
        assert_eq!(message("-d -1"), "-d requires a domain number from 0 to 510, got -1");
        assert_eq!(message("-d 511"), "-d requires a domain number from 0 to 510, got 511");
        assert_eq!(message("--frob"), "unrecognized option --frob");
        assert_eq!(message("-z"), "unrecognized option -z");
        assert_eq!(message("--dommain=1"), "unrecognized option --dommain (did you mean --domain?)");
        assert_eq!(message("-h"), "-h requires the FILE that PCP's agents take; --help prints the options");
        assert!(message("-i 70000").contains("from 1 to 65535, got `70000`"));
        assert!(message("-l a --syslog").contains("--syslog"));
        assert!(message("--trycompile").contains("--trycompile"));
    }

    /// Returns the one sentence with which a command other than the agent is refused.
    fn short_message(line: &str) -> String {
        let exit = run(line).unwrap_err();
        assert_eq!((exit.status, exit.stderr.lines().count()), (1, 1), "{line}: {}", exit.stderr);
        let message = exit.stderr.strip_prefix("pmdacorebcc: ").unwrap();
        message.strip_suffix(" (pmdacorebcc --help has the options)\n").unwrap().to_owned()
    }

    #[test]
    fn a_word_that_is_no_command_is_refused_in_one_sentence() {
        assert_eq!(short_message("biolatency"), "unexpected argument biolatency; did you mean `show biolatency`?");
        assert_eq!(short_message("list"), "unexpected argument list; did you mean `show --list`?");
        assert_eq!(short_message("new"), "new requires a NAME for the pair, such as opens");
    }

    #[test]
    fn help_goes_to_standard_output_and_fits_the_page() {
        for line in ["-?", "--help", "-? -p"] {
            let exit = run(line).unwrap_err();
            assert_eq!((exit.status, exit.stderr.as_str()), (0, ""), "{line}");
            assert!(exit.stdout.starts_with("Usage: pmdacorebcc [options]\n"), "{}", exit.stdout);
            assert!(exit.stdout.contains("show bcc.disk.all.latency 2 5"));
            assert!(exit.stdout.lines().all(|line| line.len() <= 100));
        }
        assert_eq!(run("--version").unwrap_err().stdout, format!("pmdacorebcc {}\n", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn checks_take_their_file_or_the_usual_one() {
        let check = |line: &str| match run(line) {
            Ok(Command::Check(options)) => options,
            other => panic!("{line}: {other:?}"),
        };
        assert!(check("--check").strict && check("--check").common.config.is_none());
        assert_eq!(check("--check=a").common.config, Some("a".into()));
        assert_eq!(check("--check a").common.config, Some("a".into()));
        assert_eq!(check("-c b --check").common.config, Some("b".into()));
        assert_eq!(check("--check").common.log, Target::Terminal);
        assert_eq!(check("--check -l -").common.log, Target::Stderr);
        assert!(check("--check a --verbose").verbose && !check("--check").verbose);
        assert!(check("--check").load && !check("--check-syntax").load && check("--check-syntax").strict);
        assert_eq!(check("--check-syntax=a").common.config, Some("a".into()));
        assert!(message("--check --check-syntax").contains("--check-syntax"));
        let both = run("--check-syntax=a show bcc.x").unwrap_err().stderr;
        assert!(both.starts_with("pmdacorebcc: a check cannot be combined with show, new or completions"), "{both}");
        let original = check("--trycompile=a.conf");
        assert_eq!(original.announcement.as_deref(), Some("Trying to compile config a.conf ..."));
        assert_eq!(original.common.log, Target::File("corebcc.log".into()));
        assert!(!original.strict);
    }

    fn shown(line: &str) -> ShowOptions {
        match run(line) {
            Ok(Command::Show(options)) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    /// Returns the one sentence with which a line of `show` is refused.
    fn show_message(line: &str) -> String {
        let exit = run(line).unwrap_err();
        assert_eq!((exit.status, exit.stdout.as_str(), exit.stderr.lines().count()), (1, "", 1), "{line}");
        let message = exit.stderr.strip_prefix("pmdacorebcc: ").unwrap();
        message.strip_suffix(" (pmdacorebcc show --help has the options)\n").unwrap().to_owned()
    }

    #[test]
    fn show_takes_an_interval_and_a_count() {
        let options = shown("-c a show bcc.x 0.5 3");
        assert_eq!(options, shown("show -c a bcc.x 0.5 3"));
        assert_eq!((options.interval, options.count), (Some(Duration::from_millis(500)), Some(3)));
        assert_eq!((shown("show bcc.x").interval, shown("show bcc.x").count), (None, None));
        for bad in ["0", "-1", "1e9", "86401", ".0001"] {
            assert!(show_message(&format!("show bcc.x {bad}")).contains("INTERVAL of 0.001 to 86400"), "{bad}");
        }
        assert!(show_message("show bcc.x 1 0").contains("COUNT of 1 or more"));
        assert!(show_message("show bcc.x 1 2 3").contains("nothing after INTERVAL and COUNT, got `3`"));
        assert!(show_message("show bcc.x 1 biolatency").contains("COUNT of 1 or more, got `biolatency`"));
        assert_eq!(show_message("show 1 5 biolatency"), "the metric stands before the interval: show biolatency 1 5");
    }

    #[test]
    fn show_takes_several_metrics_and_one_form() {
        assert_eq!(shown("show a.b biolatency c 1").names, ["a.b", "biolatency", "c"]);
        assert_eq!(shown("show a.b,biolatency disk.* 1").names, ["a.b", "biolatency", "disk"]);
        assert!(show_message("show").contains("requires a metric"));
        assert!(show_message("show 1").contains("requires a metric"));
        let forms = ["", "--list", "--top", "--heatmap", "--folded", "--json", "--csv"];
        let found: Vec<Form> = forms.iter().map(|form| shown(&format!("show {form} x")).form).collect();
        use Form::*;
        assert_eq!(found, [Tables, List, Top, Heatmap, Folded, Json, Csv]);
        assert!(shown("show --list").names.is_empty());
        assert_eq!(shown("show --top x").interval, Some(Duration::from_secs(1)), "a screen wants to be refreshed");
        assert!(show_message("show --json --csv x").contains("--json"), "{}", show_message("show --json --csv x"));
        assert!(show_message("show --list 5").contains("takes no INTERVAL"));
    }

    #[test]
    fn show_takes_units_rows_and_settings() {
        let options = shown("show -m -r -z -n 5 --sort count --set a=b --set c.d=e x");
        assert_eq!((options.scale, options.rows), (Some(Scale::Milliseconds), Some(5)));
        assert!(options.rate && options.zeros);
        assert_eq!((options.sort.as_deref(), options.set), (Some("count"), vec!["a=b".to_owned(), "c.d=e".into()]));
        assert_eq!(shown("show -u x").scale, Some(Scale::Microseconds), "and no socket");
        let only = shown("show -p 77 --comm sshd --cgroup a.service x").only;
        assert_eq!(
            (only.pid, only.comm.as_deref(), only.cgroup.as_deref()),
            (Some(77), Some("sshd"), Some("a.service"))
        );
        assert_eq!(show_message("show -p sshd x"), "show -p requires a process id, got `sshd`");
        assert!(show_message("show -n 0 x").contains("1 or more, got `0`"));
        assert!(
            show_message("show --sroot x x").contains("did you mean --sort"),
            "{}",
            show_message("show --sroot x x")
        );
    }

    #[test]
    fn show_has_a_usage_text_of_its_own() {
        assert_eq!(run("show -h"), run("show --help"));
        let exit = run("show --help").unwrap_err();
        assert!(exit.stdout.starts_with("Usage: pmdacorebcc show [options] METRIC..."), "{}", exit.stdout);
        for option in
            ["--list", "--top", "--heatmap", "--json", "--csv", "-m, --milliseconds", "-n, --rows <N>", "--set"]
        {
            assert!(exit.stdout.contains(option), "{option}: {}", exit.stdout);
        }
        assert!(exit.stdout.lines().all(|line| line.len() <= 100), "{}", exit.stdout);
    }

    #[test]
    fn completions_name_the_options_metrics_and_modules() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = completions(shell, "pmdacorebcc", vec!["bcc.x.y".into()]);
            for word in ["pmdacorebcc", "heatmap", "bcc.x.y", "check"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
        assert!(matches!(run("completions zsh"), Ok(Command::Completions(_, Shell::Zsh))));
        assert_eq!(short_message("completions tcsh"), "completions requires a shell (bash, zsh or fish), got `tcsh`");
        assert_eq!(short_message("completions"), "completions requires a shell (bash, zsh or fish), got ``");
    }

    #[test]
    fn the_usual_configuration_is_the_systems_or_the_programs() {
        let exe = Path::new("/opt/bin/pmdacorebcc");
        let conf = configuration::default_config(&PcpConf::default(), exe);
        let system = Path::new("/etc/pcp/corebcc/corebcc.conf");
        assert_eq!(conf, if system.exists() { system } else { Path::new("/opt/bin/corebcc.conf") });
    }
}
