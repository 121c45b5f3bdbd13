//! Text form of a plan.

use super::when::duration;
use super::{
    Call, CmCall, CmFault, FaultAction, FaultPlan, FaultRule, FaultTrigger, FaultyOperation,
};
use crate::event::AsyncEvent;
use crate::wc::WcStatus;
use std::str::FromStr;

/// Invalid rule in the text form of a [`FaultPlan`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {problem}")]
pub struct FaultPlanError {
    /// Text of the rule.
    rule: String,
    problem: &'static str,
}

impl FaultPlanError {
    /// Returns the description of the error, without the text of the rule.
    #[must_use]
    pub fn problem(&self) -> &'static str {
        self.problem
    }
}

/// Defines a function that finds a value by its name. Its error for an unknown name lists all
/// names.
macro_rules! table {
    ($(#[$about:meta])* fn $find:ident -> $of:ty, $what:literal { $first:literal => $value:expr, $($name:literal => $more:expr,)* }) => {
        $(#[$about])*
        fn $find(name: &str) -> Result<$of, &'static str> {
            match name {
                $first => Ok($value),
                $($name => Ok($more),)*
                _ => Err(concat!("no such ", $what, ", expected ", $first, $(", ", $name,)*)),
            }
        }
    };
}

table! {
    fn status -> WcStatus, "status" {
        "LOC_LEN_ERR" => WcStatus::LocalLength,
        "LOC_QP_OP_ERR" => WcStatus::LocalQpOperation,
        "LOC_PROT_ERR" => WcStatus::LocalProtection,
        "WR_FLUSH_ERR" => WcStatus::Flushed,
        "MW_BIND_ERR" => WcStatus::MwBind,
        "BAD_RESP_ERR" => WcStatus::BadResponse,
        "LOC_ACCESS_ERR" => WcStatus::LocalAccess,
        "REM_INV_REQ_ERR" => WcStatus::RemoteInvalidRequest,
        "REM_ACCESS_ERR" => WcStatus::RemoteAccess,
        "REM_OP_ERR" => WcStatus::RemoteOperation,
        "RETRY_EXC_ERR" => WcStatus::RetryExceeded,
        "RNR_RETRY_EXC_ERR" => WcStatus::RnrRetryExceeded,
        "REM_ABORT_ERR" => WcStatus::RemoteAborted,
        "FATAL_ERR" => WcStatus::Fatal,
        "GENERAL_ERR" => WcStatus::General,
    }
}

table! {
    fn event -> AsyncEvent, "event" {
        "PORT_ERR" => AsyncEvent::PortError,
        "PORT_ACTIVE" => AsyncEvent::PortActive,
        "GID_CHANGE" => AsyncEvent::GidChange,
        "DEVICE_FATAL" => AsyncEvent::DeviceFatal,
    }
}

table! {
    fn named_errno -> i32, "error number" {
        "EPERM" => libc::EPERM,
        "EINTR" => libc::EINTR,
        "EIO" => libc::EIO,
        "EAGAIN" => libc::EAGAIN,
        "ENOMEM" => libc::ENOMEM,
        "EACCES" => libc::EACCES,
        "EFAULT" => libc::EFAULT,
        "EBUSY" => libc::EBUSY,
        "ENODEV" => libc::ENODEV,
        "EINVAL" => libc::EINVAL,
        "ENOSPC" => libc::ENOSPC,
        "ENOSYS" => libc::ENOSYS,
        "EOPNOTSUPP" => libc::EOPNOTSUPP,
        "ENOTCONN" => libc::ENOTCONN,
        "ETIMEDOUT" => libc::ETIMEDOUT,
        "ECONNREFUSED" => libc::ECONNREFUSED,
        "EHOSTUNREACH" => libc::EHOSTUNREACH,
    }
}

table! {
    fn call -> Call, "call" {
        "alloc_pd" => Call::AllocPd,
        "reg_mr" => Call::RegMr,
        "create_cq" => Call::CreateCq,
        "create_qp" => Call::CreateQp,
        "create_srq" => Call::CreateSrq,
        "modify_qp" => Call::ModifyQp,
        "post_send" => Call::PostSend,
        "post_recv" => Call::PostRecv,
        "post_srq_recv" => Call::PostSrqRecv,
        "poll_cq" => Call::PollCq,
    }
}

table! {
    fn operation -> FaultyOperation, "operation" {
        "send" => FaultyOperation::Send,
        "write" => FaultyOperation::Write,
        "read" => FaultyOperation::Read,
        "atomic" => FaultyOperation::Atomic,
        "recv" => FaultyOperation::Recv,
        "any" => FaultyOperation::Any,
    }
}

table! {
    /// Parses a call of the connection manager.
    fn cm_call -> CmCall, "call of the connection manager" {
        "connect" => CmCall::Connect,
        "resolve_addr" => CmCall::ResolveAddr,
        "resolve_route" => CmCall::ResolveRoute,
    }
}

table! {
    fn outcome -> CmFault, "outcome" {
        "REJECTED" => CmFault::Rejected,
        "REFUSED" => CmFault::Refused,
        "UNREACHABLE" => CmFault::Unreachable,
        "CONNECT_ERROR" => CmFault::ConnectError,
        "ADDR_ERROR" => CmFault::AddrError,
        "ROUTE_ERROR" => CmFault::RouteError,
    }
}

fn errno(text: &str) -> Result<i32, &'static str> {
    match text.parse::<i32>() {
        Ok(number @ 1..=4095) => Ok(number),
        Ok(_) => Err("error numbers are 1 to 4095"),
        Err(_) => named_errno(text),
    }
}

impl FaultPlan {
    /// Returns whether a part of a list of faults is a rule of a plan, rather than a fault of the
    /// byte stream.
    #[must_use]
    pub fn is_rule(part: &str) -> bool {
        ["call:", "wc:", "event:", "cm:", "slow:"]
            .iter()
            .any(|kind| part.trim_start().starts_with(kind))
    }

    fn rule(text: &str) -> Result<(FaultAction, FaultTrigger), &'static str> {
        let (kind, rest) =
            text.split_once(':').ok_or("expected call:, wc:, event:, cm: or slow:, or seed=N")?;
        let (subject, value) = match rest.split_once('=') {
            Some((subject, value)) => (subject, Some(value)),
            None => (rest, None),
        };
        let (name, at) = match subject.split_once('@') {
            Some((name, at)) => (name, Some(at)),
            None => (subject, None),
        };
        if kind == "event" {
            let at = at.ok_or("expected a time behind @: event:PORT_ERR@2s")?;
            if value.is_some() {
                return Err("an event has no value");
            }
            return Ok((
                FaultAction::Event { event: event(name)?, at: duration(at)? },
                FaultTrigger::Always,
            ));
        }
        let when = at.map_or(Ok(FaultTrigger::Always), str::parse)?;
        let value = value.ok_or("expected a value behind =")?;
        let fault = match kind {
            "call" => match call(name)? {
                Call::PollCq => return Err("a poll cannot fail: slow:poll_cq=TIME delays it"),
                call => FaultAction::Call { call, errno: errno(value)? },
            },
            "wc" => FaultAction::Completion { of: operation(name)?, status: status(value)? },
            "cm" => {
                let (call, outcome) = (cm_call(name)?, outcome(value)?);
                if !outcome.is_of(call) {
                    return Err("the call does not have that outcome");
                }
                FaultAction::Cm { call, outcome }
            }
            "slow" => FaultAction::Slow { call: call(name)?, time: duration(value)? },
            _ => return Err("no such kind of fault, expected call, wc, event, cm, slow"),
        };
        Ok((fault, when))
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let mut plan = Self::default();
        for part in text.split(',').map(str::trim) {
            let refused = |problem| FaultPlanError { rule: part.to_owned(), problem };
            if let Some(seed) = part.strip_prefix("seed=") {
                plan.seed = seed.parse().map_err(|_| refused("expected a number behind ="))?;
                continue;
            }
            let (fault, when) = Self::rule(part).map_err(refused)?;
            plan.rules.push(FaultRule { fault, when, text: part.to_owned() });
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn only(text: &str) -> (FaultAction, FaultTrigger) {
        let plan: FaultPlan = text.parse().unwrap();
        let [rule] = &plan.rules[..] else { panic!("{plan:?}") };
        assert_eq!(rule.text, text);
        (rule.fault.clone(), rule.when)
    }

    #[test]
    fn rules() {
        let refused = FaultAction::Call { call: Call::RegMr, errno: libc::ENOMEM };
        assert_eq!(only("call:reg_mr=ENOMEM"), (refused.clone(), FaultTrigger::Always));
        assert_eq!(only("call:reg_mr@3=12"), (refused.clone(), FaultTrigger::Nth(3)));
        assert_eq!(only("call:reg_mr@3+=ENOMEM"), (refused.clone(), FaultTrigger::From(3)));
        assert_eq!(only("call:reg_mr@0.5%=ENOMEM"), (refused.clone(), FaultTrigger::Chance(5_000)));
        assert_eq!(
            only("call:reg_mr@2s=ENOMEM"),
            (refused, FaultTrigger::After(Duration::from_secs(2)))
        );
        let lost =
            FaultAction::Completion { of: FaultyOperation::Write, status: WcStatus::RetryExceeded };
        assert_eq!(only("wc:write@100=RETRY_EXC_ERR"), (lost, FaultTrigger::Nth(100)));
        let down =
            FaultAction::Event { event: AsyncEvent::PortError, at: Duration::from_millis(1500) };
        assert_eq!(only("event:PORT_ERR@1500ms"), (down, FaultTrigger::Always));
        let rejected = FaultAction::Cm { call: CmCall::Connect, outcome: CmFault::Rejected };
        assert_eq!(only("cm:connect@1=REJECTED"), (rejected, FaultTrigger::Nth(1)));
        let slow = FaultAction::Slow { call: Call::PollCq, time: Duration::from_millis(5) };
        assert_eq!(only("slow:poll_cq=5ms"), (slow, FaultTrigger::Always));
        let plan: FaultPlan = "seed=7, call:alloc_pd=EIO,slow:post_send@1=1m".parse().unwrap();
        assert_eq!((plan.seed, plan.rules.len()), (7, 2));
    }

    #[test]
    fn invalid_rule_named() {
        for (text, problem) in [
            ("", "expected call:"),
            ("call:alloc_pd", "expected a value behind ="),
            ("call:alloc_dp=ENOMEM", "no such call, expected alloc_pd, reg_mr"),
            ("call:alloc_pd=ENOMEMORY", "no such error number, expected EPERM"),
            ("call:alloc_pd=0", "1 to 4095"),
            ("call:poll_cq=EIO", "a poll cannot fail"),
            ("call:alloc_pd@0=EIO", "expected behind @"),
            ("call:alloc_pd@101%=EIO", "expected behind @"),
            ("call:alloc_pd@NaN%=EIO", "expected behind @"),
            ("call:alloc_pd@-1s=EIO", "expected behind @"),
            ("wc:writes=RETRY_EXC_ERR", "no such operation, expected send, write"),
            ("wc:write=SUCCESS", "no such status, expected LOC_LEN_ERR"),
            ("event:PORT_ERR", "expected a time behind @"),
            ("event:PORT_ERR@2s=1", "an event has no value"),
            ("cm:connect=ADDR_ERROR", "does not have that outcome"),
            ("slow:poll_cq=fast", "expected a time such as"),
            ("slow:poll_cq=99999999999s", "expected a time such as"),
            ("drop:poll_cq=1", "no such kind of fault"),
            ("seed=x", "expected a number"),
        ] {
            let error = text.parse::<FaultPlan>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{text}: ")) && error.contains(problem),
                "{text}: {error}"
            );
        }
    }
}
