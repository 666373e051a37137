//! `pmdacorebcc`: arguments, configuration, agent, run; the only place that exits.

use corebcc::agent::{Agent, Options};
use corebcc::catalog::{EnabledModule, Help, Registry};
use corebcc::check::{check, warn_of_unknown};
use corebcc::cli::{self, CheckOptions, Command, CommonOptions, ServeOptions};
use corebcc::collector::{prepare, status_tables, Collector, Own, Prepared};
use corebcc::config::{Config, ConfigError};
use corebcc::loader::use_one_arena;
use corebcc::modules::MODULES;
use corebcc::pcpconf::PcpConf;
use corebcc::pdu::Frame;
use corebcc::state::Restarts;
use corebcc::transport::{self, End, Endpoint, Handler, Signals, TransportError};
use corebcc::{logging, show};
use log::{error, info, LevelFilter};
use nix::sys::eventfd::EventFd;
use nix::unistd::{initgroups, setgid, setuid, Uid, User};
use std::ffi::CString;
use std::io::{stdin, stdout, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// What runs where no configuration file is: the one that is installed.
const DEFAULT_CONFIG: &str = include_str!("../corebcc.conf");
const HELP: &str = include_str!("../help");

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(exit) => {
            eprint!("{}", exit.stderr);
            return match cli::print(&exit.stdout) {
                Ok(_) => ExitCode::from(exit.status as u8),
                Err(message) => {
                    eprintln!("pmdacorebcc: {message}");
                    ExitCode::FAILURE
                }
            };
        }
    };
    if let Command::Serve(ServeOptions { common, endpoint: Endpoint::Pipe, .. }) = &command {
        if stdin().is_terminal() || stdout().is_terminal() {
            eprint!("{}", cli::not_for_terminals(&common.program));
            return ExitCode::FAILURE;
        }
    }
    let agent = matches!(command, Command::Serve(_)) || matches!(&command, Command::Check(options) if !options.strict);
    let common = match &command {
        Command::Serve(options) => options.common.clone(),
        Command::Check(options) => options.common.clone(),
        Command::Show(options) => options.common.clone(),
    };
    // Both before any thread: they apply to those started later.
    use_one_arena();
    let signals = Signals::block();
    // The log of an agent tells of its stages; a person at a terminal wants to know what went wrong.
    let usual = if agent { LevelFilter::Info } else { LevelFilter::Warn };
    let level = if common.debug.is_empty() { usual } else { LevelFilter::Debug };
    if let Err(error) = logging::start(&common.program, &common.log, level) {
        eprintln!("{}: {error}", common.program);
        return ExitCode::FAILURE;
    }
    let status = signals.map_err(|error| error.to_string()).and_then(|signals| run(command, &signals)).unwrap_or_else(
        |message| {
            error!("{message}");
            1
        },
    );
    logging::finish();
    ExitCode::from(status)
}

fn run(command: Command, signals: &Signals) -> Result<u8, String> {
    match command {
        Command::Serve(options) => serve(options, signals),
        Command::Check(options) => run_check(options),
        Command::Show(mut options) => {
            let usual = || usual_config(&PcpConf::load()).ok();
            options.common.config = options.common.config.or_else(usual);
            show::run(&options, signals).map(|()| 0)
        }
    }
}

/// The configuration: the file named, that of the system, or what is compiled in. And the file, as sentences name it.
fn configuration(common: &CommonOptions, conf: &PcpConf) -> (Result<Config, ConfigError>, String) {
    if let Some(path) = &common.config {
        return (Config::read(path), path.display().to_string());
    }
    match usual_config(conf) {
        Ok(path) => (Config::read(&path), path.display().to_string()),
        Err(path) => {
            info!("{}: not there, running the default modules", path.display());
            let shown = format!("{} (not there: this is the built-in one, which Install puts there)", path.display());
            (Config::parse(&shown, DEFAULT_CONFIG.as_bytes()), shown)
        }
    }
}

/// The file that is read where none is named; an error where it is not there.
fn usual_config(conf: &PcpConf) -> Result<PathBuf, PathBuf> {
    let exe = std::env::current_exe().unwrap_or_default();
    let path = cli::default_config(conf, &exe);
    if cli::is_there(&path) {
        Ok(path)
    } else {
        Err(path)
    }
}

/// The connection's side of the agent.
struct Server {
    agent: Agent<Registry>,
    ready: Arc<EventFd>,
    /// `module_failure_fatal`, and whether it came to that.
    fatal: bool,
    failed: bool,
    restarts: Option<Restarts>,
}

impl Handler for Server {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<u8>) {
        self.agent.handle(&frame, out);
    }

    fn woken(&mut self, out: &mut Vec<u8>) {
        let _ = self.ready.read();
        if self.agent.source().is_lost() {
            return;
        }
        if self.agent.source_mut().poll() {
            if self.fatal && self.agent.source().any_failed() {
                self.failed = true;
                return;
            }
            self.agent.ready(out);
            info!("Ready to process requests.");
        }
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn is_over(&self) -> bool {
        self.failed || self.agent.source().is_lost()
    }

    /// pmcd closes the connection of an agent that owes it no answer. One that it has dropped for being late did not end in order.
    fn ended(&mut self, end: &End) {
        self.agent.source_mut().save();
        if !matches!(end, End::Broken(_)) && !self.agent.source().is_lost() {
            self.restarts.iter().for_each(Restarts::end);
        }
    }
}

fn serve(options: ServeOptions, signals: &Signals) -> Result<u8, String> {
    let common = &options.common;
    info!("Initializing, currently in 'notready' state.");
    let conf = PcpConf::load();
    let (config, path) = configuration(common, &conf);
    let Prepared { settings, modules, members, configuration } = prepare(&config, &path, MODULES);
    configuration.errors.iter().for_each(|error| error!("{error}"));
    // Errors are told by the agent, which lives on for that; a module that cannot be loaded may end it.
    let fatal = settings.module_failure_fatal && configuration.errors.is_empty();
    let mut own = Own::new(configuration, settings.bpf_stats);
    let names: Vec<&str> = modules.iter().map(|module| module.settings.section.as_str()).collect();
    info!("Enabled modules:");
    info!("['{}']", names.join("', '"));
    if let Ok(config) = &config {
        warn_of_unknown(config, &modules);
    }
    staged("Configuring modules:", "Modules configured.", &names);
    info!("Initializing modules:");
    for name in &names {
        info!("{name}");
        info!("{name}: Initialized.");
    }
    info!("Modules initialized.");

    if let Some(name) = &options.username {
        run_as(name)?;
    }
    let restarts = Restarts::begin(&conf.path("PCP_RUN_DIR", "corebcc.starts"));
    own.restarts.clone_from(&restarts);
    let connection = match transport::connect(&options.endpoint, &conf, signals) {
        Err(TransportError::Signal(signal)) => {
            info!("ended by signal {signal} before pmcd came");
            return Ok(0);
        }
        connection => connection.map_err(|error| error.to_string())?,
    };
    staged("Registering metrics:", "Metrics registered.", &names);
    staged("Registering helpers:", "Helpers registered.", &names);
    let collector = Collector::start(members, common.btf.clone(), own)
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let ready = collector.ready();
    let caches = Some(conf.path("PCP_VAR_DIR", "config/pmda"));
    let tables = modules.iter().flat_map(EnabledModule::tables).chain(status_tables(&settings.prefix));
    let registry = Registry::new(common.domain, tables, Help::parse(HELP), caches, Box::new(collector));
    let registry = match restarts.clone() {
        Some(restarts) => registry.writing_while(move || restarts.is_latest()),
        None => registry,
    };
    let agent = Agent::new(registry, Options { attributes: false, notready: options.notready });
    let greeting = agent.creds(std::process::id());
    let mut server = Server { agent, ready, fatal, failed: false, restarts };
    let end = transport::run(connection, &greeting, signals, &mut server);
    match &end {
        Ok(End::Eof) => info!("pmcd closed the connection"),
        Ok(End::Signal(signal)) => info!("ended by signal {signal}"),
        _ => {}
    }
    server.agent.source_mut().stop();
    match end.map_err(|error| error.to_string())? {
        End::Eof | End::Signal(_) => Ok(0),
        End::Handler if server.agent.source().is_lost() => Err(
            "no values will come any more: the thread that collects them has ended; pmcd has to start the agent again"
                .into(),
        ),
        End::Handler => Err(server.agent.source().failures()),
        End::Broken(reason) => Err(format!("the conversation with pmcd broke: {reason}")),
    }
}

/// `-U`, as `pmdaSetUser` of PCP's own agents. The log is open; what takes root comes after, and says so if it is refused.
fn run_as(name: &str) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("-U {name}: cannot run as this account: {error}");
    let user =
        User::from_name(name).map_err(|error| failed(&error))?.ok_or_else(|| failed(&"there is none of this name"))?;
    if user.uid == Uid::effective() {
        return Ok(());
    }
    let c_name = CString::new(name).map_err(|error| failed(&error))?;
    initgroups(&c_name, user.gid).map_err(|error| failed(&error))?;
    setgid(user.gid).map_err(|error| failed(&error))?;
    setuid(user.uid).map_err(|error| failed(&error))
}

/// The log lines of a stage, which scripts of the Python agent's users look for.
fn staged(begin: &str, end: &str, names: &[&str]) {
    info!("{begin}");
    for name in names {
        info!("{name}");
    }
    info!("{end}");
}

fn run_check(options: CheckOptions) -> Result<u8, String> {
    if let Some(announcement) = &options.announcement {
        cli::print(&format!("{announcement}\n"))?;
    }
    let (config, path) = configuration(&options.common, &PcpConf::load());
    let report = check(&config, &path, options.common.btf);
    cli::print(&report.table)?;
    let incomplete = options.strict && !report.missing.is_empty();
    if incomplete {
        error!("not attached to: {}", report.missing.join(", "));
    }
    Ok(u8::from(!report.is_right || incomplete || !report.passed && (options.strict || report.fatal)))
}
