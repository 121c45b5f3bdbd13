//! `uiw env`: the environment variables that programs on our C libraries obey.

use crate::fail::{Failure, Result};
use crate::text;
use serde_json::json;
use std::env;
use uiw_cabi::settings::{Settings, VARIABLES};

/// Show the environment variables.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// One JSON object a variable
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let value = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    for variable in VARIABLES {
        let now = value(variable.name);
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
