//! Injects the faults of a plan on a device.

use super::{Call, CmCall, CmFault, FaultAction, FaultPlan, FaultRule, FaultTrigger};
use crate::error::{Error, Result};
use crate::event::AsyncEvent;
use crate::notify::{EventQueue, Wakes};
use crate::wc::{WcOpcode, WcStatus};
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use uiw_impair::Random;

/// Destinations of injected events: one queue for each handle of the device that has its own.
type Queues = Arc<Mutex<Vec<Weak<EventQueue<AsyncEvent>>>>>;

/// Plan of one device, with its counts.
#[derive(Debug)]
pub(crate) struct Faults {
    rules: Vec<CountedRule>,
    opened: Instant,
    /// Random numbers for rules with a probability.
    random: Mutex<Random>,
    queues: Queues,
    /// Sender whose drop ends the thread that raises events.
    events: OnceLock<mpsc::Sender<()>>,
}

#[derive(Debug)]
struct CountedRule {
    rule: FaultRule,
    /// Number of matching calls so far.
    calls: AtomicU64,
    /// True if a rule that applies once was applied.
    is_over: AtomicBool,
}

impl Faults {
    /// Creates the faults of a device; `None` for a plan without rules.
    pub(crate) fn new(plan: FaultPlan) -> Option<Arc<Self>> {
        if plan.rules.is_empty() {
            return None;
        }
        let counted =
            |rule| CountedRule { rule, calls: AtomicU64::new(0), is_over: AtomicBool::new(false) };
        Some(Arc::new(Self {
            rules: plan.rules.into_iter().map(counted).collect(),
            opened: Instant::now(),
            random: Mutex::new(Random::new(plan.seed)),
            queues: Queues::default(),
            events: OnceLock::new(),
        }))
    }

    /// Starts the thread that raises the planned events, if there are any. Called after the device
    /// has its first event queue, which receives all of them.
    ///
    /// # Errors
    /// [`Error::Io`] if the thread cannot be started.
    pub(crate) fn start_events(&self) -> Result<()> {
        let events = self.rules.iter().filter_map(|CountedRule { rule, .. }| match &rule.fault {
            FaultAction::Event { event, at } => Some((*at, event.clone(), rule.text.clone())),
            _ => None,
        });
        let mut events: Vec<_> = events.collect();
        if events.is_empty() {
            return Ok(());
        }
        events.sort_by_key(|(at, ..)| *at);
        let (end, ended) = mpsc::channel();
        let (opened, queues) = (self.opened, Arc::clone(&self.queues));
        let body = move || {
            for (at, event, rule) in events {
                let wait = at.saturating_sub(opened.elapsed());
                if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                tracing::warn!(rule, "fault injected");
                let queues: Vec<_> = queues.lock().iter().filter_map(Weak::upgrade).collect();
                for queue in queues {
                    let mut wakes = Wakes::default();
                    queue.raise(event.clone(), &mut wakes);
                    wakes.give();
                }
            }
        };
        crate::thread::spawn("uiw-faults", body)
            .map_err(Error::io("starting the thread of injected events"))?;
        let _ = self.events.set(end);
        Ok(())
    }

    /// Adds the event queue of a handle of the device.
    pub(crate) fn add_queue(&self, queue: &Arc<EventQueue<AsyncEvent>>) {
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    /// Applies the plan to a call: delays it if that is planned.
    ///
    /// # Errors
    /// [`Error::Injected`] if the plan makes the call fail.
    #[cold]
    pub(crate) fn call(&self, call: Call) -> Result<()> {
        self.delay(call);
        let errno = self.due(|fault| match fault {
            FaultAction::Call { call: of, errno } if *of == call => Some(*errno),
            _ => None,
        });
        match errno {
            Some(errno) => Err(Error::Injected {
                call: call.name(),
                source: io::Error::from_raw_os_error(errno),
            }),
            None => Ok(()),
        }
    }

    /// Like [`Faults::call`], for a call that cannot fail.
    #[cold]
    pub(crate) fn delay(&self, call: Call) {
        let time = self.due(|fault| match fault {
            FaultAction::Slow { call: of, time } if *of == call => Some(*time),
            _ => None,
        });
        if let Some(time) = time {
            std::thread::sleep(time);
        }
    }

    /// Returns the status that replaces success for a request with this operation, if a rule is
    /// due.
    #[cold]
    pub(crate) fn completion(&self, opcode: WcOpcode) -> Option<WcStatus> {
        self.due(|fault| match fault {
            FaultAction::Completion { of, status } if of.includes(opcode) => Some(*status),
            _ => None,
        })
    }

    /// Returns the planned outcome of a call, if any.
    pub(crate) fn cm(&self, call: CmCall) -> Option<CmFault> {
        self.due(|fault| match fault {
            FaultAction::Cm { call: of, outcome } if *of == call => Some(*outcome),
            _ => None,
        })
    }

    /// Counts a call for each matching rule, those for which `effect` returns a value, and returns
    /// the effect of the first rule that is due.
    fn due<T>(&self, effect: impl Fn(&FaultAction) -> Option<T>) -> Option<T> {
        let mut first = None;
        for counted in &self.rules {
            let Some(effect) = effect(&counted.rule.fault) else { continue };
            if self.counts(counted) && first.is_none() {
                tracing::warn!(rule = counted.rule.text, "fault injected");
                first = Some(effect);
            }
        }
        first
    }

    /// Counts a call for a rule, and returns whether the rule is due at this call.
    fn counts(&self, counted: &CountedRule) -> bool {
        let number = counted.calls.fetch_add(1, Ordering::Relaxed) + 1;
        match counted.rule.when {
            FaultTrigger::Always => true,
            FaultTrigger::Nth(nth) => number == nth,
            FaultTrigger::From(first) => number >= first,
            FaultTrigger::Chance(of_a_million) => {
                self.random.lock().below(1_000_000) < of_a_million as usize
            }
            FaultTrigger::After(time) => {
                self.opened.elapsed() >= time && !counted.is_over.swap(true, Ordering::Relaxed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn of(plan: &str) -> Arc<Faults> {
        Faults::new(plan.parse().unwrap()).unwrap()
    }

    /// Returns which of `count` calls of `alloc_pd` are refused, counted from 1.
    fn refused(faults: &Faults, count: usize) -> Vec<usize> {
        (1..=count).filter(|_| faults.call(Call::AllocPd).is_err()).collect()
    }

    #[test]
    fn calls_are_counted_by_rule() {
        assert_eq!(refused(&of("call:alloc_pd@3=EIO"), 5), [3]);
        assert_eq!(refused(&of("call:alloc_pd@3+=EIO"), 5), [3, 4, 5]);
        assert_eq!(refused(&of("call:alloc_pd=EIO"), 2), [1, 2]);
        assert_eq!(refused(&of("call:reg_mr=EIO"), 2), [0usize; 0]);
        assert_eq!(refused(&of("call:alloc_pd@2=EIO,call:alloc_pd@4=ENOMEM"), 5), [2, 4]);
        assert_eq!(refused(&of("call:alloc_pd@0s=EIO"), 3), [1]);
        assert!(Faults::new(FaultPlan::default()).is_none());
    }

    #[test]
    fn same_seed_same_choices() {
        let run = |seed: u32| refused(&of(&format!("seed={seed},call:alloc_pd@10%=EIO")), 1000);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!((50..200).contains(&run(3).len()), "{}", run(3).len());
    }

    #[test]
    fn first_due_rule_wins() {
        let faults = of("call:alloc_pd@2=EIO,call:alloc_pd=ENOMEM");
        let errno = || match faults.call(Call::AllocPd) {
            Err(Error::Injected { source, .. }) => source.raw_os_error().unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!([errno(), errno(), errno()], [libc::ENOMEM, libc::EIO, libc::ENOMEM]);
    }

    #[test]
    fn event_thread_ends_with_device() {
        let faults = of("event:PORT_ERR@60m");
        faults.start_events().unwrap();
        let queues = Arc::downgrade(&faults.queues);
        drop(faults);
        let began = Instant::now();
        while queues.strong_count() > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "the thread is left");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
