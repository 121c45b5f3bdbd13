//! Parsers for values of variables. The error is the rule that the text breaks.

use super::Settings;
use std::ops::RangeInclusive;
use uiw_impair::fault::{Faults, Flip, Split};
use uiw_verbs::{
    CapabilityExchange, FaultPlan, FaultPlanError, FpduSize, PeerProfile, RtrKinds, StableTx,
};

pub(super) fn depth(text: &str) -> Result<u16, &'static str> {
    match text.parse::<u16>() {
        Ok(number @ 0..=0x3FFE) => Ok(number),
        _ => Err("expected a number from 0 to 16382"),
    }
}

pub(super) fn switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" | "1" => Ok(true),
        "off" | "0" => Ok(false),
        _ => Err("expected on or off"),
    }
}

pub(super) fn exact_or_padded(text: &str) -> Result<bool, &'static str> {
    match text {
        "exact" => Ok(true),
        "padded" => Ok(false),
        _ => Err("expected exact or padded"),
    }
}

pub(super) fn own_or_host(text: &str) -> Result<bool, &'static str> {
    match text {
        "own" => Ok(true),
        "host" => Ok(false),
        _ => Err("expected own or host"),
    }
}

/// Parses RTR kinds, such as `write,read`.
pub(super) fn rtr_kinds(text: &str) -> Result<RtrKinds, &'static str> {
    let mut kinds = RtrKinds::NONE;
    for word in text.split(',') {
        match word.trim() {
            "write" => kinds.write = true,
            "read" => kinds.read = true,
            "send" => kinds.send = true,
            _ => return Err("expected write, read, send, separated by commas"),
        }
    }
    Ok(kinds)
}

pub(super) fn capability_exchange(text: &str) -> Result<CapabilityExchange, &'static str> {
    match text {
        "on" | "1" => Ok(CapabilityExchange::On),
        "off" | "0" => Ok(CapabilityExchange::Off),
        "assume" => Ok(CapabilityExchange::Assume),
        _ => Err("expected on, off or assume"),
    }
}

pub(super) fn stable_tx(text: &str) -> Result<StableTx, &'static str> {
    match text {
        "on" | "1" => Ok(StableTx::On),
        "off" | "0" => Ok(StableTx::Off),
        "writes" => Ok(StableTx::Writes),
        _ => Err("expected on, off or writes"),
    }
}

pub(super) fn fpdu(text: &str) -> Result<FpduSize, &'static str> {
    text.parse().map_err(|_| "expected auto, segment, large or 128 to 64768 bytes")
}

pub(super) fn peer_profile(text: &str) -> Result<PeerProfile, &'static str> {
    match text {
        "rfc" => Ok(PeerProfile::Rfc),
        "siw-gso" => Ok(PeerProfile::SiwGso),
        _ => Err("expected rfc or siw-gso"),
    }
}

/// Parses the size of a TCP segment in bytes, in the range that Linux accepts.
pub(super) fn segment(text: &str) -> Result<u16, &'static str> {
    let (digits, unit) =
        text.strip_suffix(['k', 'K']).map_or((text, 1), |digits| (digits, 1 << 10));
    let bytes = digits.parse::<u16>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| (88..=32_767).contains(bytes)).ok_or("expected bytes from 88 to 32767")
}

pub(super) fn ports(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    let rule = "expected LO-HI with ports from 1 to 65535, LO not above HI";
    let (low, high) = text.split_once('-').ok_or(rule)?;
    match (low.trim().parse::<u16>(), high.trim().parse::<u16>()) {
        (Ok(low), Ok(high)) if low > 0 && low <= high => Ok(low..=high),
        _ => Err(rule),
    }
}

pub(super) fn faults(settings: &mut Settings, text: &str) -> Result<(), &'static str> {
    let (rules, streams): (Vec<_>, Vec<_>) =
        text.split(',').partition(|part| FaultPlan::is_rule(part));
    let of_streams = stream_faults(&streams)?;
    if !rules.is_empty() {
        let seed = of_streams.as_ref().map_or(0, |(seed, _)| *seed);
        let text = format!("seed={seed},{}", rules.join(","));
        settings.plan = text.parse().map_err(|error: FaultPlanError| error.problem())?;
    }
    let are_there = streams.iter().any(|part| !part.trim().starts_with("seed="));
    settings.faults = of_streams.filter(|_| are_there);
    Ok(())
}

fn stream_faults(parts: &[&str]) -> Result<Option<(u64, Faults)>, &'static str> {
    let mut faults = Faults::default();
    let mut seed = 0;
    for part in parts.iter().map(|part| part.trim()) {
        let (name, value) =
            part.split_once('=').ok_or("expected NAME=VALUE, several with commas")?;
        let number =
            || value.parse::<u64>().map_err(|_| "expected a number of bytes or calls behind =");
        let small = || value.parse::<u32>().map_err(|_| "expected a number below 2^32 behind =");
        match name {
            "seed" => seed = number()?,
            "send-split" => faults.send_split = split(small()?)?,
            "recv-split" => faults.recv_split = split(small()?)?,
            "flip-sent" => faults.flip_sent.push(flip(value)?),
            "flip-received" => faults.flip_received.push(flip(value)?),
            "cut-sent" => faults.cut_sent = Some(number()?),
            "cut-received" => faults.cut_received = Some(number()?),
            "fin-sent" => faults.fin_sent = Some(number()?),
            "would-block" => faults.would_block_every = Some(small()?),
            _ => return Err("no such fault; `uiw env` lists them"),
        }
    }
    Ok((!parts.is_empty()).then_some((seed, faults)))
}

fn split(most: u32) -> Result<Split, &'static str> {
    if most == 0 {
        Err("a split of 0 bytes would never end")
    } else {
        Ok(Split::Random(most as usize))
    }
}

fn flip(text: &str) -> Result<Flip, &'static str> {
    let rule = "expected BYTE:MASK, MASK from 1 to 255 or 0x01 to 0xff";
    let (byte, mask) = text.split_once(':').ok_or(rule)?;
    let mask = match mask.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => mask.parse(),
    };
    match (byte.parse(), mask) {
        (Ok(byte), Ok(mask)) if mask != 0 => Ok(Flip { byte, mask }),
        _ => Err(rule),
    }
}
