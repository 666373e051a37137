//! `serve`: the order of a start, and the wiring of pmcd's connection.

use crate::agent::{creds, Agent, Options};
use crate::catalog::{EnabledModule, Help, Registry, ServedTable};
use crate::check::note_without_effect;
use crate::cli::{configuration, ServeOptions};
use crate::collector::{
    foreign_pins, give_back, is_of_pairs, is_of_scripts, pin_for, prepare, status_tables, survey, AgentStatus,
    Collector, DesiredState, Prepared, StatisticsHelper,
};
use crate::host::{Account, SOURCE_OF_ACCOUNTS};
use crate::kit::show_arguments;
use crate::modules::MODULES;
use crate::pcpconf::PcpConf;
use crate::pdu::Frame;
use crate::privilege::{self, confine_to_scripts, confine_to_statistics, hold, limit_calls};
use crate::site::Site;
use crate::state::{keep_secret, Restarts, Writer};
use crate::transport::{self, Connection, End, Endpoint, Handler, Signals, TransportError};
use crate::user::PAIR;
use caps::CapsHashSet;
use log::{error, info, warn};
use nix::sys::eventfd::EventFd;
use nix::sys::prctl::set_keepcaps;
use nix::unistd::{setgid, setuid, Uid};
use std::error::Error;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

const HELP: &str = include_str!("../help");

/// The agent as the handler of pmcd's connection.
struct Server {
    agent: Agent<Registry>,
    ready: Arc<EventFd>,
    /// The number of enabled modules, and the time at which loading began.
    modules: usize,
    begin: Instant,
    /// True once loading is over and pmcd was told so.
    is_ready: bool,
    /// The option `module_failure_fatal`, and whether a module has failed with it on.
    fatal: bool,
    failed: bool,
    restarts: Option<Restarts>,
    writer: Arc<Writer>,
    /// Capabilities that are left, if privileges are dropped.
    capabilities: Option<CapsHashSet>,
}

impl Server {
    /// Limits the system calls of all threads, once the modules are loaded: the collector has dropped its capabilities by now.
    fn give_up_calls(&self) {
        let Some(capabilities) = &self.capabilities else { return };
        let calls = limit_calls().map_or_else(|error| format!("not limited ({error})"), |()| "limited".into());
        let kept = privilege::names(capabilities);
        info!("privileges dropped; kept for the modules: {kept}; system calls {calls}");
    }
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
        let is_loaded = self.agent.source_mut().poll();
        self.agent.notice_changes();
        if is_loaded && !std::mem::replace(&mut self.is_ready, true) {
            let failed = self.agent.source().failed_modules();
            if self.fatal && !failed.is_empty() {
                self.failed = true;
                return;
            }
            self.give_up_calls();
            let (enabled, took) = (self.modules, self.begin.elapsed().as_secs_f64());
            let failures =
                if failed.is_empty() { String::new() } else { format!(", not loaded: {}", failed.join(", ")) };
            info!("ready: {} of {enabled} modules loaded in {took:.2} s{failures}", enabled - failed.len());
            self.agent.ready(out);
        }
    }

    fn reload(&mut self) {
        self.agent.source_mut().reload();
    }

    fn idle(&mut self) {
        self.agent.idle();
        give_back();
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn is_over(&self) -> bool {
        self.failed || self.agent.source().is_lost()
    }

    /// Notes an orderly end: pmcd closes the connection of an agent that owes it no answer. An agent that it dropped for being late
    /// did not end in order.
    fn ended(&mut self, end: &End) {
        if !matches!(end, End::Broken(_)) && !self.agent.source().is_lost() {
            self.restarts.iter().for_each(|restarts| restarts.end(&self.writer));
        }
        // It waits for both.
        self.agent.source_mut().save();
    }
}

/// Serves pmcd until the connection or the agent ends.
pub fn run(options: &ServeOptions, signals: &Signals) -> Result<(), Box<dyn Error>> {
    let common = &options.common;
    let conf = PcpConf::load();
    let (config, path) = configuration(common, &conf);
    let enabled = survey(&config, MODULES);
    let count = enabled.modules.len();
    info!(
        "version {}, pid {}, configuration {path}, {count} module{} enabled",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        if count == 1 { "" } else { "s" }
    );
    let Prepared { settings, mut enabled, modules, configuration } = prepare(&config, &path, enabled, MODULES);
    show_arguments(settings.show_arguments);
    configuration.log_errors();
    if configuration.halted {
        error!("no module is loaded; correct the configuration and restart the agent");
    }
    // Errors are told by the agent, which lives on for that; a module that cannot be loaded may end it.
    let fatal = settings.module_failure_fatal && !configuration.is_costly();
    let mut status = AgentStatus::new(configuration.clone(), settings.bpf_stats);
    if let Ok(config) = &config {
        note_without_effect(config, &enabled);
    }

    let (drops, knows_all) = (settings.drop_privileges, !configuration.is_costly());
    let prefix = settings.prefix.clone();
    let caches = conf.path("PCP_VAR_DIR", "config/pmda");
    let writer = Arc::new(Writer::new(caches.clone()));
    let mut site = Site::new(common, &conf, config, settings, configuration, &enabled, &writer);
    // pmcd tells who its clients are to agents that ask, a few PDUs for each client.
    let is_changing = site.loads_later() || site.scripts().is_some();
    // pmcd drops an agent that it does not hear of for five seconds, and a slow disk may hold up what follows. Of a socket pmcd waits as
    // long as it takes; it is made as the account of `-U`.
    let early = match options.endpoint {
        Endpoint::Pipe => Some(meet(options, &conf, signals, is_changing)?),
        _ => None,
    };
    let mut pairs = Vec::new();
    let of_pairs = site.all_pairs();
    for (module, alone) in of_pairs.into_iter().chain(site.all_scripts()) {
        pairs.push(alone);
        enabled.push(module);
    }
    pin_for(common.domain, &caches, knows_all);
    foreign_pins(common.domain, &caches).iter().for_each(|foreign| warn!("{foreign}"));
    let specs = || enabled.iter().map(|module| module.spec);
    let to_run = privilege::to_run(specs());
    // What comes later may be any module, or a pair.
    let later = site.loads_later().then(|| privilege::to_load(MODULES.iter().copied().chain([&PAIR])));
    let to_load = later.clone().unwrap_or_else(|| privilege::to_load(specs()));
    // Before there is another thread, and much memory to share.
    if let Some(scripts) = site.scripts() {
        scripts.start_helper(confine_to_scripts);
    }
    if drops && privilege::loses_statistics(&to_run) {
        let helper = StatisticsHelper::start(confine_to_statistics);
        status.statistics_helper = helper.map_err(|error| warn!("no helper for program statistics: {error}")).ok();
    }
    if let Some(name) = &options.username {
        run_as(name, &to_load)?;
    }
    let owner = drops.then(|| privilege::to_write(&[&caches, &conf.path("PCP_RUN_DIR", "")])).flatten();
    if !drops {
        info!("privileges kept: `drop_privileges = False` in [pmda]");
    }
    let restarts = Restarts::begin(&conf.path("PCP_RUN_DIR", "corebcc.starts"));
    status.restarts.clone_from(&restarts);
    keep_secret(&caches.join(format!("{}.secret", common.domain)));
    let connection = match early.map_or_else(|| meet(options, &conf, signals, is_changing), Ok) {
        Err(TransportError::Signal(signal)) => {
            info!("ended by signal {signal} before pmcd came");
            return Ok(());
        }
        connection => connection?,
    };
    if let Some(scripts) = site.scripts() {
        // It reads pipes.
        scripts.start_thread(move || drop(drops.then(|| held_by(&CapsHashSet::new()))));
    }
    let latest = restarts.clone();
    let confine = move || {
        if let Some(Err(error)) = owner.map(privilege::write_as) {
            warn!("{error}");
        }
        drop(drops.then(|| held_by(&CapsHashSet::new())));
    };
    writer
        .start(confine, move || latest.as_ref().is_none_or(Restarts::is_latest))
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let begin = Instant::now();
    let held = later.clone().unwrap_or_default().union(&to_run).copied().collect();
    if let (true, Some(later)) = (drops, &later) {
        info!(
            "modules and programs may be loaded while the agent runs; kept for the thread that does: {}",
            privilege::names(later)
        );
    }
    let modules = modules.stoppable(later.is_some());
    let (controllers, may_have_pairs) = (site.controllers(), site.may_have_pairs());
    let has_scripts = site.scripts().is_some();
    let supply = (later.is_some() || has_scripts).then(|| Box::new(site) as Box<dyn DesiredState>);
    let collector = Collector::start(modules, pairs, common.btf.clone(), status, supply, move || {
        if drops {
            held_by(&held);
        }
    })
    .map_err(|error| format!("cannot start a thread: {error}"))?;
    // The threads that help out are started by this one, which itself writes no file any more.
    let capabilities = drops.then(|| held_by(&to_run)).flatten();
    let ready = collector.ready();
    let is_served = |table: &ServedTable| match () {
        () if is_of_pairs(table) => may_have_pairs,
        () if is_of_scripts(table) => has_scripts,
        () => true,
    };
    let own = status_tables(&prefix).filter(is_served);
    let tables = enabled.iter().flat_map(EnabledModule::tables).chain(own);
    let mut registry =
        Registry::new(common.domain, tables, Help::parse(HELP), Some(Arc::clone(&writer)), Box::new(collector));
    if is_changing {
        registry.allow(controllers);
    }
    let agent = Agent::new(registry, Options { attributes: is_changing, notready: options.notready });
    let mut server = Server {
        agent,
        ready,
        modules: count,
        begin,
        is_ready: false,
        fatal,
        failed: false,
        restarts,
        writer,
        capabilities,
    };
    let end = transport::run(connection, &[], signals, &mut server);
    match &end {
        Ok(End::Eof) => info!("pmcd closed the connection"),
        Ok(End::Signal(signal)) => info!("ended by signal {signal}"),
        _ => {}
    }
    server.agent.source_mut().stop();
    match end? {
        End::Eof | End::Signal(_) => Ok(()),
        End::Handler if server.agent.source().is_lost() => Err(
            "no values will come any more: the thread that collects them has ended; pmcd has to start the agent again"
                .into(),
        ),
        End::Handler => Err(not_loaded(&server.agent.source().failed_modules(), &path).into()),
        End::Broken(reason) => Err(format!("the conversation with pmcd broke: {reason}").into()),
    }
}

/// Connects to pmcd, and introduces the agent at once.
fn meet(
    options: &ServeOptions,
    conf: &PcpConf,
    signals: &Signals,
    attributes: bool,
) -> Result<Connection, TransportError> {
    let connection = transport::connect(&options.endpoint, conf, signals)?;
    connection.greet(&creds(std::process::id(), attributes))?;
    Ok(connection)
}

/// Returns the message for the end of an agent that runs with all of its modules or not at all.
fn not_loaded(failed: &[&str], path: &str) -> String {
    format!(
        "the agent ends, since {} could not be loaded (see above) and `module_failure_fatal` is True, the default; to run the \
         other modules, set `module_failure_fatal = False` in [pmda] of {path}",
        failed.join(", ")
    )
}

/// Drops all capabilities of this thread but these. Logs a warning and returns `None` if that fails.
fn held_by(capabilities: &CapsHashSet) -> Option<CapsHashSet> {
    hold(capabilities).map_err(|error| warn!("privileges are not dropped: {error}")).ok()
}

/// Changes the account as `-U` says, like `pmdaSetUser` of PCP's own agents, but keeps these capabilities. The log is open by now;
/// later steps that need root report their own errors.
fn run_as(name: &str, capabilities: &CapsHashSet) -> Result<(), Box<dyn Error>> {
    let failed = |error: &dyn std::fmt::Display| format!("-U {name}: cannot run as this account: {error}");
    let user = Account::named(name).ok_or_else(|| failed(&format_args!("{SOURCE_OF_ACCOUNTS} has no such account")))?;
    if user.uid == Uid::effective() {
        return Ok(());
    }
    user.take_groups().map_err(|error| failed(&error))?;
    setgid(user.gid).map_err(|error| failed(&error))?;
    set_keepcaps(true)?;
    setuid(user.uid).map_err(|error| failed(&error))?;
    hold(capabilities).map_err(|error| failed(&error))?;
    Ok(())
}
