//! The environment: `uiw env` shows the variables that programs on our C libraries obey, and
//! commands that make connections obey the same ones or refuse them.

use crate::shared::fail::{Failure, Result};
use crate::shared::text;
use serde_json::json;
use std::env;
use std::sync::OnceLock;
use uiw_cabi_core::settings::{ProgramScope, Settings, VARIABLES, Variable};

/// What a command that makes connections does with the variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VariableScope {
    /// All that are about connections.
    Connections,
    /// Those that are not about one end or the other: both ends are of this command.
    BothEnds,
    /// The log: every byte is this command's own.
    Log,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// What the environment has for connections, as [`obey`] has read it.
pub(crate) fn settings() -> &'static Settings {
    SETTINGS.get_or_init(Settings::default)
}

/// Reads the environment for a command that makes connections: a variable that it cannot obey is
/// refused.
pub(crate) fn obey(obeys: VariableScope) -> Result<()> {
    let value = |variable: &Variable| env::var(variable.name).ok().filter(|value| !value.is_empty());
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
        return Err(Failure::usage(format!("{}={value}", variable.name), why, "unset it for this command"));
    }
    let settings = Settings::read(value).map_err(|line| wrong(&line))?;
    // The first one stays: a process runs one command.
    let _ = SETTINGS.set(settings);
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
    let value = |variable: &Variable| env::var(variable.name).ok().filter(|value| !value.is_empty());
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
    // What is set must also be right.
    Settings::read(value).map(drop).map_err(|line| wrong(&line))
}

/// The messages that programs on the libraries would get about a variable.
pub(crate) fn wrong(line: &str) -> Failure {
    let line = line.strip_prefix("uiw: ").unwrap_or(line);
    let (what, why) = line.split_once(": ").unwrap_or((line, "a bad value"));
    Failure::usage(what, why, "change or unset it")
}
