//! The command line: what every PCP agent understands (PMDA(3), `pmdaGetOptions`) and what only this one does. Reads
//! arguments; yields a [`Command`], or an [`Exit`] that says what to print where.

mod configuration;
mod declared;

pub use configuration::{configuration, usual_config};
pub use declared::command;

use crate::logging::Target;
use crate::transport::{self, Endpoint, PortError};
use clap::{ArgMatches, FromArgMatches};
use declared::{describe, usage, Cli, Sub};
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// The domain of the BCC agent in PCP's `stdpmid`.
const DOMAIN: u32 = 149;

/// The domain field is 9 bits wide and its highest value marks dynamic names (`DYNAMIC_PMID` in `libpcp.h`).
const MAX_DOMAIN: u32 = 510;

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Be an agent.
    Serve(ServeOptions),
    /// Load everything once and tell how it went.
    Check(CheckOptions),
    /// Print the values of a metric without pmcd.
    Show(ShowOptions),
}

/// What every command can be told.
#[derive(Clone, Debug, PartialEq)]
pub struct CommonOptions {
    /// The base name of the program, for messages and the log.
    pub program: String,
    /// The domain of all identifiers, up to 510.
    pub domain: u32,
    /// The log.
    pub log: Target,
    /// Names given to `-D`; any asks for debug lines.
    pub debug: Vec<String>,
    /// The configuration, if named; else see [`usual_config`].
    pub config: Option<PathBuf>,
    /// Kernel types to use in place of the running kernel's own.
    pub btf: Option<PathBuf>,
    /// The file given to `-h`; texts are compiled in, so it is only worth a line in the log.
    pub helpfile: Option<PathBuf>,
}

/// How to be an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeOptions {
    /// What is not special to serving.
    pub common: CommonOptions,
    /// Where to meet pmcd.
    pub endpoint: Endpoint,
    /// The account to run as.
    pub username: Option<String>,
    /// The line in `pmcd.conf` says `notready`: pmcd waits for READY.
    pub notready: bool,
}

/// How to check.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckOptions {
    /// What is not special to checking; `config` is the file to check.
    pub common: CommonOptions,
    /// Whatever the configuration says and is not done makes the status 1: a module that fails whatever `module_failure_fatal` says, a
    /// target that is missing, an option that no module has (`--check`, not `--trycompile`).
    pub strict: bool,
    /// Whether the modules are loaded (not with `--check-syntax`).
    pub load: bool,
    /// What to print on standard output before anything else.
    pub announcement: Option<String>,
}

/// What to show.
#[derive(Clone, Debug, PartialEq)]
pub struct ShowOptions {
    /// What is not special to showing.
    pub common: CommonOptions,
    /// A metric or a node above several.
    pub metric: String,
    /// The time between two readings; `None`: read once.
    pub interval: Option<Duration>,
    /// How many readings; `None` with an interval: until stopped.
    pub count: Option<u64>,
    /// Lines for flame graph programs.
    pub folded: bool,
}

/// The end of the program before it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit status.
    pub status: i32,
    /// For standard output.
    pub stdout: String,
    /// For standard error.
    pub stderr: String,
}

/// What is wrong with the options.
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
    #[error("show and a check exclude each other")]
    ShowAndCheck,
    #[error("show requires a metric, such as bcc.disk.all.latency")]
    NoMetric,
    #[error("show requires an INTERVAL of 0.001 to 86400 seconds, got `{0}`")]
    Interval(String),
    #[error("show requires a COUNT of 1 or more, got `{0}`")]
    Count(String),
}

/// Why standard output does not take a text.
#[derive(Debug, Error)]
#[error("cannot write to standard output: {0}")]
pub struct PrintError(std::io::Error);

/// Parses `args`, the program's path first.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, Exit> {
    let args = args.into_iter().collect::<Vec<_>>();
    let program = args.first().and_then(|path| Path::new(path).file_name());
    let program = program.map_or_else(|| "pmdacorebcc".to_owned(), |name| name.to_string_lossy().into_owned());
    let words = std::iter::once(OsString::from(&program)).chain(args.into_iter().skip(1));
    let matches = command(&program).try_get_matches_from(words).map_err(|error| refuse(&program, &describe(&error)))?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| refuse(&program, &describe(&error)))?;
    if cli.common.help {
        return Err(Exit { status: 0, stdout: usage(&program), stderr: String::new() });
    }
    if cli.common.version {
        let stdout = format!("{program} {}\n", env!("CARGO_PKG_VERSION"));
        return Err(Exit { status: 0, stdout, stderr: String::new() });
    }
    read(cli, &matches, &program).map_err(|error| refuse(&program, &error.to_string()))
}

/// Prints on standard output; false if the reader has gone (`| head`), which is no error.
pub fn print(text: &str) -> Result<bool, PrintError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(PrintError(error)),
    }
}

/// What somebody gets who starts the agent by hand, where it would read requests from the keyboard.
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
    if let Some(Sub::Show { metric, interval, count, folded }) = cli.command {
        if trycompile || check.is_some() {
            return Err(UsageError::ShowAndCheck);
        }
        let metric = metric.ok_or(UsageError::NoMetric)?;
        let interval = interval.as_deref().map(seconds).transpose()?;
        let count = count.map(|text| {
            let count = text.parse().ok().filter(|&count| count > 0);
            count.ok_or(UsageError::Count(text))
        });
        return Ok(Command::Show(ShowOptions { common, metric, interval, count: count.transpose()?, folded }));
    }
    if let Some(file) = cli.trycompile {
        let announcement = Some(format!("Trying to compile config {} ...", file.display()));
        common.config = Some(file);
        return Ok(Command::Check(CheckOptions { common, strict: false, load: true, announcement }));
    }
    if let Some(file) = check {
        common.config = file.clone().or(common.config);
        let load = cli.check.is_some();
        return Ok(Command::Check(CheckOptions { common, strict: true, load, announcement: None }));
    }
    Ok(Command::Serve(ServeOptions { common, endpoint, username: cli.username, notready: cli.notready }))
}

/// At most one of `-p -i -6 -u`; the complaint names the later one first, as `pmdaGetOptions` does.
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

/// From a millisecond to a day.
fn seconds(text: &str) -> Result<Duration, UsageError> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..=86400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| UsageError::Interval(text.into()))
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
        assert_eq!(message("frob"), "unexpected argument frob");
        assert!(message("-h").contains("-h"), "{}", message("-h"));
        assert!(message("-i 70000").contains("from 1 to 65535, got `70000`"));
        assert!(message("-l a --syslog").contains("--syslog"));
        assert!(message("--trycompile").contains("--trycompile"));
    }

    #[test]
    fn help_goes_to_standard_output_and_fits_the_page() {
        for line in ["-?", "--help", "show --help", "-? -p"] {
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
        assert!(check("--check").load && !check("--check-syntax").load && check("--check-syntax").strict);
        assert_eq!(check("--check-syntax=a").common.config, Some("a".into()));
        assert!(message("--check --check-syntax").contains("--check-syntax"));
        assert_eq!(message("--check-syntax=a show bcc.x"), "show and a check exclude each other");
        let original = check("--trycompile=a.conf");
        assert_eq!(original.announcement.as_deref(), Some("Trying to compile config a.conf ..."));
        assert_eq!(original.common.log, Target::File("corebcc.log".into()));
        assert!(!original.strict);
    }

    #[test]
    fn show_takes_an_interval_and_a_count() {
        let show = |line: &str| match run(line) {
            Ok(Command::Show(options)) => options,
            other => panic!("{line}: {other:?}"),
        };
        let options = show("-c a show bcc.x 0.5 3");
        assert_eq!(options, show("show -c a bcc.x 0.5 3"));
        assert_eq!((options.interval, options.count), (Some(Duration::from_millis(500)), Some(3)));
        assert_eq!((show("show bcc.x").interval, show("show bcc.x").count), (None, None));
        assert!(show("show --folded bcc.x 10 1").folded && !options.folded);
        assert!(message("show").contains("requires a metric"));
        for bad in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(run(&format!("show bcc.x -- {bad}")).is_err(), "{bad}");
        }
        assert!(message("show bcc.x 1 0").contains("COUNT of 1 or more"));
    }

    #[test]
    fn the_usual_configuration_is_the_systems_or_the_programs() {
        let exe = Path::new("/opt/bin/pmdacorebcc");
        let conf = configuration::default_config(&PcpConf::default(), exe);
        let system = Path::new("/etc/pcp/corebcc/corebcc.conf");
        assert_eq!(conf, if system.exists() { system } else { Path::new("/opt/bin/corebcc.conf") });
    }
}
