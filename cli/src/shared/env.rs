//! Environment variables. `uiw env` shows those that programs with our C libraries obey. Commands
//! that make connections obey the same variables, or refuse them.

use crate::shared::fail::{Failure, Result};
use crate::shared::text;
use serde_json::json;
use std::env;
use std::path::PathBuf;
use std::sync::OnceLock;
use uiw_cabi_core::settings::{ProgramScope, Settings, VARIABLES, Variable};

/// The variables that a command obeys if it makes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VariableScope {
    /// All variables for connections.
    Connections,
    /// Only variables that do not concern one end of a connection, because the command chooses the
    /// options of both ends.
    BothEnds,
    /// Only the log and the counters, because the command generates every byte itself.
    Log,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Returns the settings for connections that [`obey`] has read from the environment.
pub(crate) fn settings() -> &'static Settings {
    SETTINGS.get_or_init(Settings::default)
}

/// Reads the environment for a command that makes connections. Refuses variables that the command
/// cannot obey.
pub(crate) fn obey(obeys: VariableScope) -> Result<()> {
    for variable in VARIABLES {
        let Some(value) = value(variable) else { continue };
        let why = match obeys {
            _ if variable.scope == ProgramScope::CProgram => {
                "only programs on the C libraries obey this variable"
            }
            VariableScope::BothEnds if variable.scope == ProgramScope::Connection => {
                "both ends of this command are on this machine's own TCP and choose their options"
            }
            VariableScope::Log if variable.name != "UIW_LOG" && variable.name != "UIW_COUNTERS" => {
                "this command makes every byte of its connections itself"
            }
            _ => continue,
        };
        return Err(Failure::usage(
            format!("{}={value}", variable.name),
            why,
            "unset it for this command",
        ));
    }
    // The settings are set once, because a process runs one command.
    let _ = SETTINGS.set(read()?);
    Ok(())
}

/// Show the environment variables.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// One JSON object a variable
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    for variable in VARIABLES {
        let now = value(variable);
        if args.json {
            text::json(&json!({
                "name": variable.name,
                "values": variable.values,
                "what": variable.what,
                "now": now,
            }));
        } else {
            text::line(match &now {
                Some(now) => format!("{}={now}", variable.name),
                None => variable.name.to_owned(),
            });
            text::line(format!("    {}", variable.what));
            text::line(format!("    {}", variable.values));
        }
    }
    // Also check the values.
    read().map(drop)
}

/// Returns the value of a variable in the environment, if it is set and not empty.
fn value(variable: &Variable) -> Option<String> {
    env::var(variable.name).ok().filter(|value| !value.is_empty())
}

/// Returns the path in a variable of the environment, if it is set and not empty.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Reads the settings that the environment makes.
pub(crate) fn read() -> Result<Settings> {
    Settings::read(value).map_err(|line| variable_failure(&line))
}

/// Creates the error for a bad variable from the message that programs with the libraries get.
pub(crate) fn variable_failure(line: &str) -> Failure {
    let line = line.strip_prefix("uiw: ").unwrap_or(line);
    let (what, why) = line.split_once(": ").unwrap_or((line, "a bad value"));
    Failure::usage(what, why, "change or unset it")
}
