//! `pmdacorebcc`: from arguments to one of serve, check and show; the only place that exits.

use corebcc::cli::{self, Command, ServeOptions};
use corebcc::loader::{allow_descriptors, use_one_arena};
use corebcc::pcpconf::PcpConf;
use corebcc::transport::{Endpoint, Signals};
use corebcc::{check, logging, new, serve, show};
use log::{error, LevelFilter};
use std::error::Error;
use std::io::{stdin, stdout, IsTerminal};
use std::process::ExitCode;

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
        Command::New(common, _) | Command::Completions(common, _) => common.clone(),
    };
    // Before any thread: they apply to those started later.
    use_one_arena();
    allow_descriptors();
    // Elsewhere nobody reads them, and what takes long ends by them.
    let reads_signals = matches!(command, Command::Serve(_) | Command::Show(_));
    let signals = reads_signals.then(Signals::block).transpose();
    // The log of an agent tells of its stages; a person at a terminal wants to know what went wrong.
    let usual = if agent { LevelFilter::Info } else { LevelFilter::Warn };
    let level = if common.debug.is_empty() { usual } else { LevelFilter::Debug };
    if let Err(error) = logging::start(&common.program, &common.log, level) {
        eprintln!("{}: {error}", common.program);
        return ExitCode::FAILURE;
    }
    let for_person = matches!(command, Command::Show(_) | Command::New(..) | Command::Completions(..));
    let status =
        signals.map_err(Into::into).and_then(|signals| run(command, signals.as_ref())).unwrap_or_else(|error| {
            match for_person {
                true => eprintln!("{}: {error}", common.program),
                false => error!("{error}"),
            }
            1
        });
    logging::finish();
    ExitCode::from(status)
}

fn run(command: Command, signals: Option<&Signals>) -> Result<u8, Box<dyn Error>> {
    let signals = || signals.ok_or("no signals are read");
    match command {
        Command::Serve(options) => serve::run(&options, signals()?).map(|()| 0),
        Command::Check(options) => Ok(check::run(&options)?),
        Command::Show(mut options) => {
            let usual = || cli::usual_config(&PcpConf::load()).ok();
            options.common.config = options.common.config.or_else(usual);
            show::run(&options, signals()?)?;
            Ok(0)
        }
        Command::New(_, name) => {
            new::run(&name)?;
            Ok(0)
        }
        Command::Completions(common, shell) => {
            cli::print(&cli::completions(shell, &common.program, show::names().into_iter().collect()))?;
            Ok(0)
        }
    }
}
