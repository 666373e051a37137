//! `pmdacorebcc`: arguments, configuration, agent, run; the only place that exits.

use corebcc::agent::{Agent, Options};
use corebcc::check::{check, warn_of_unknown};
use corebcc::cli::{self, CheckOptions, Command, CommonOptions, ServeOptions, ShowOptions};
use corebcc::collector::{members, Collector, Group};
use corebcc::config::{Config, ConfigError};
use corebcc::kit::{instances, Help, Registry, Table};
use corebcc::modules::MODULES;
use corebcc::pcpconf::PcpConf;
use corebcc::pdu::Frame;
use corebcc::transport::{self, End, Handler, Signals, TransportError};
use corebcc::{logging, show};
use log::{error, info, LevelFilter};
use nix::sys::eventfd::EventFd;
use nix::unistd::{initgroups, setgid, setuid, Uid, User};
use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::Arc;

/// What runs where no configuration file is: the one that is installed.
const DEFAULT_CONFIG: &str = include_str!("../corebcc.conf");
const HELP: &str = include_str!("../help");

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(exit) => {
            print!("{}", exit.stdout);
            eprint!("{}", exit.stderr);
            return ExitCode::from(exit.status as u8);
        }
    };
    let agent = matches!(command, Command::Serve(_)) || matches!(&command, Command::Check(options) if !options.strict);
    let common = match &command {
        Command::Serve(options) => options.common.clone(),
        Command::Check(options) => options.common.clone(),
        Command::Show(options) => options.common.clone(),
    };
    // Before any thread: it applies to those started later.
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
        Command::Show(options) => run_show(options, signals),
    }
}

/// The configuration: the file named, that of the system, or what is compiled in.
fn configuration(common: &CommonOptions, conf: &PcpConf) -> Result<Config, ConfigError> {
    if let Some(path) = &common.config {
        return Config::read(path);
    }
    let exe = std::env::current_exe().unwrap_or_default();
    let path = cli::default_config(conf, &exe);
    if path.exists() {
        return Config::read(&path);
    }
    info!("{}: not there, running the default modules", path.display());
    Config::parse("the built-in configuration", DEFAULT_CONFIG.as_bytes())
}

fn aborting(error: ConfigError) -> String {
    format!("{error}, aborting.")
}

/// The connection's side of the agent.
struct Server {
    agent: Agent<Registry>,
    ready: Arc<EventFd>,
    /// `module_failure_fatal`, and whether it came to that.
    fatal: bool,
    failed: bool,
}

impl Handler for Server {
    fn frame(&mut self, frame: Frame<'_>, out: &mut Vec<u8>) {
        self.agent.handle(&frame, out);
    }

    fn woken(&mut self, out: &mut Vec<u8>) {
        let _ = self.ready.read();
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
        self.failed
    }
}

fn serve(options: ServeOptions, signals: &Signals) -> Result<u8, String> {
    let common = &options.common;
    info!("Initializing, currently in 'notready' state.");
    let conf = PcpConf::load();
    let config = configuration(common, &conf).map_err(aborting)?;
    let (settings, instances) = instances(&config, MODULES).map_err(aborting)?;
    let names: Vec<&str> = instances.iter().map(|instance| instance.settings.section.as_str()).collect();
    info!("Enabled modules:");
    info!("['{}']", names.join("', '"));
    warn_of_unknown(&config, &instances);
    staged("Configuring modules:", "Modules configured.", &names);
    let (members, constants) = members(&config, &instances, settings.process_refresh).map_err(aborting)?;
    staged("Initializing modules:", "Modules initialized.", &names);

    if let Some(name) = &options.username {
        run_as(name)?;
    }
    let connection = match transport::connect(&options.endpoint, &conf, signals) {
        Err(TransportError::Signal(signal)) => {
            info!("ended by signal {signal} before pmcd came");
            return Ok(0);
        }
        connection => connection.map_err(|error| error.to_string())?,
    };
    let collector = Collector::start(members, constants, common.btf.clone())
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let ready = collector.ready();
    let caches = Some(conf.path("PCP_VAR_DIR", "config/pmda"));
    let registry = Registry::new(common.domain, instances, Help::parse(HELP), caches, Box::new(collector));
    let agent = Agent::new(registry, Options { attributes: false, notready: options.notready });
    let greeting = agent.creds(std::process::id());
    let mut server = Server { agent, ready, fatal: settings.module_failure_fatal, failed: false };
    let end = transport::run(connection, &greeting, signals, &mut server);
    server.agent.source_mut().stop();
    match end.map_err(|error| error.to_string())? {
        End::Handler => Err(server.agent.source().failures()),
        End::Eof => {
            info!("pmcd closed the connection");
            Ok(0)
        }
        End::Signal(signal) => {
            info!("ended by signal {signal}");
            Ok(0)
        }
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
        println!("{announcement}");
    }
    let config = configuration(&options.common, &PcpConf::load()).map_err(aborting)?;
    let report = check(&config, options.common.btf).map_err(aborting)?;
    print!("{}", report.table);
    Ok(u8::from(!report.passed && (options.strict || report.fatal)))
}

fn run_show(options: ShowOptions, signals: &Signals) -> Result<u8, String> {
    // Everything there is can be shown, whatever the configuration enables: options come from it where it has the section.
    let mut text = String::from("[pmda]\nmodules = ");
    let paths: Vec<&str> = MODULES.iter().map(|spec| spec.name).collect();
    text += &paths.join(",");
    for spec in MODULES {
        text += &format!("\n[{}]\nmodule = {}\ncluster = {}\n", spec.name, spec.path, spec.cluster);
    }
    let config = match &options.common.config {
        Some(path) => Config::read(path),
        None => Config::parse("show", text.as_bytes()),
    }
    .map_err(|error| error.to_string())?;
    let (settings, mut instances) = instances(&config, MODULES).map_err(|error| error.to_string())?;
    let wanted: Vec<usize> = show::select(&instances, &options.metric).iter().map(|(index, ..)| *index).collect();
    if wanted.is_empty() {
        let names: Vec<String> = instances
            .iter()
            .flat_map(|instance| {
                instance.spec.metrics.iter().map(|metric| format!("{}{}", instance.settings.prefix, metric.name))
            })
            .collect();
        return Err(format!("no metric `{}`; there are {}", options.metric, names.join(", ")));
    }
    let mut index = 0;
    instances.retain(|_| {
        index += 1;
        wanted.contains(&(index - 1))
    });
    let selected = show::select(&instances, &options.metric);
    let (members, constants) =
        members(&config, &instances, settings.process_refresh).map_err(|error| error.to_string())?;
    let mut group = Group::load(members, &constants, options.common.btf.clone());
    if let Some(Err(failure)) = group.fates().into_iter().find(Result::is_err) {
        return Err(failure.reason);
    }
    if options.interval.is_none() {
        eprintln!("Counting... Ctrl-C ends and shows.");
    }
    let mut tables: Vec<(Table, Table)> = instances
        .iter()
        .map(|instance| (Table::new(instance.spec.metrics.len()), Table::new(instance.spec.metrics.len())))
        .collect();
    let mut round = 0;
    loop {
        let ended = signals.wait(options.interval).map_err(|error| error.to_string())?;
        group.tick();
        for (index, instance, columns) in &selected {
            let (table, earlier) = &mut tables[*index];
            std::mem::swap(table, earlier);
            group.refresh(*index, table)?;
            let drawn = show::draw(instance, columns, table, (round > 0).then_some(&*earlier));
            // A reader that has seen enough (`| head`) is no error.
            if writeln!(std::io::stdout(), "\n{drawn}").is_err() {
                return Ok(0);
            }
        }
        round += 1;
        if ended || options.interval.is_none() || options.count == Some(round) {
            return Ok(0);
        }
    }
}
