//! Properties of the listener that cases depend on.

use super::reply::Reply;
use super::session::{Session, Stop, Target};
use super::values::Values;
use crate::ConformError;
use serde_json::{Value as Json, json};
use uiw::raw::Suspect;
use uiw_cases::CaseCondition;

/// Maximum number of attempts to get a Reply, while the listener does not end the connection.
const MAX_ATTEMPTS: u32 = 3;

/// Properties found before the first case.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Number of outstanding Reads that it accepts, if its Reply has the number.
    ird: Option<u64>,
    enhanced: bool,
    crc_off: bool,
    markers_granted: bool,
    markers_asked: bool,
    partner: bool,
    /// Description of NIC, driver, firmware and kernel by the partner.
    pub(super) about: Option<String>,
    /// Description of the usual Reply, in one line.
    reply: String,
    /// Kinds of peers that the listener may be, judging from the Requests that it ended or
    /// rejected.
    suspects: Vec<Suspect>,
}

/// Finds out what the listener supports.
///
/// # Errors
/// Returns [`ConformError::Unreachable`] if nothing listens, or the listener does not speak iWARP.
pub fn ask(target: &mut Target, partner: bool) -> Result<Listener, ConformError> {
    let begun = |target: &Target, fields: &[(&str, u64)]| {
        let mut values = Values::default();
        fields.iter().for_each(|(name, number)| values.set(name, *number));
        let mut session = Session::new(target);
        let result = session.start(values);
        session.end_connection(false);
        let closed = session.link.is_some_and(|link| link.ended.is_some());
        (result.map_err(|Stop(why)| why), session.reply, closed)
    };
    target.enhanced = true;
    let (mut usual, mut reply, mut closed) = begun(target, &[]);
    // A lost packet says nothing about the supported revision, unlike the end of the connection.
    for _ in 1..MAX_ATTEMPTS {
        if reply.is_some() || closed {
            break;
        }
        (usual, reply, closed) = begun(target, &[]);
    }
    let mut suspects = Vec::new();
    if reply.is_none() {
        target.enhanced = false;
        if closed {
            suspects.push(Suspect::RevisionOne);
        }
        (usual, reply, _) = begun(target, &[]);
    }
    let Some(reply) = reply else {
        let why = usual.err().unwrap_or_default();
        let fix = "start the listener first, and check address, port, firewalls and whether it requires TLS";
        return Err(ConformError::Unreachable {
            what: format!("cannot ask {}", target.address),
            why,
            fix,
        });
    };
    let enhanced = reply.enhanced.is_some();
    if enhanced {
        let (_, client_server, closed) = begun(target, &[("a", 0), ("c", 0), ("d", 0)]);
        if client_server.is_none() && closed {
            suspects.push(Suspect::PeerToPeerRequired);
        }
    }
    let (_, without_crc, _) = begun(target, &[("crc", 0)]);
    // Only the Reply matters here. The cases check the Markers themselves.
    let (_, with_markers, _) = begun(target, &[("markers", 1)]);
    let is_same = |other: &Reply| other.is_request() && other.markers() && !reply.markers();
    if reply.is_request() && with_markers.as_ref().is_some_and(is_same) {
        let why = "it answers each Request with the Request itself: an echo server".to_owned();
        let fix = "name the port of an iWARP listener";
        return Err(ConformError::Unreachable { what: target.address.to_string(), why, fix });
    }
    if with_markers.as_ref().is_some_and(Reply::rejects) {
        suspects.push(Suspect::Markers);
    }
    let granted = with_markers.is_some_and(|reply| !reply.rejects());
    let about = if partner { about(target) } else { None };
    Ok(Listener {
        ird: reply.enhanced.map(|enhanced| u64::from(enhanced.ird)),
        enhanced,
        crc_off: without_crc.is_some_and(|reply| !reply.rejects() && !reply.crc()),
        markers_granted: granted,
        markers_asked: reply.markers(),
        partner,
        about,
        reply: reply.describe(),
        suspects,
    })
}

/// Returns whether the listener still answers Requests.
pub(super) fn still_answers(target: &Target) -> bool {
    let mut session = Session::new(target);
    let started = session.start(Values::default());
    session.end_connection(false);
    started.is_ok() || session.reply.is_some()
}

/// Returns the description that the partner gives of its machine.
fn about(target: &Target) -> Option<String> {
    let mut session = Session::new(target);
    session.start(Values::default()).ok()?;
    let about = session.ask_about().ok();
    session.end_connection(false);
    about
}

/// Returns the description of the suspected peer, with the options to try.
#[must_use]
pub fn suspicion(suspect: Suspect) -> String {
    let options = suspect.options().iter().map(|(name, value)| format!("--{name} {value}"));
    let options: Vec<_> = options.collect();
    format!("{}: try {} (docs/nics.md)", suspect.reason(), options.join(" "))
}

impl Listener {
    /// Returns the reason why the listener does not meet a condition, or `None` if it does.
    pub(super) fn lacks(&self, need: CaseCondition) -> Option<String> {
        let lacks = |has: bool, why: &str| (!has).then(|| why.to_owned());
        match need {
            CaseCondition::Partner => {
                lacks(self.partner, "needs the partner program at the far end (--partner)")
            }
            CaseCondition::CrcOff => lacks(self.crc_off, "the listener requires CRCs"),
            CaseCondition::MarkersGranted => {
                lacks(self.markers_granted, "the listener refuses a Request that asks for Markers")
            }
            CaseCondition::MarkersAsked => {
                lacks(self.markers_asked, "the listener does not ask for Markers")
            }
            CaseCondition::Enhanced => {
                lacks(self.enhanced, "the listener does not answer with enhanced data (RFC 6581)")
            }
            CaseCondition::Ird(reads) => {
                let enough = self.ird.is_none_or(|ird| ird >= reads);
                (!enough).then(|| format!("the listener takes fewer than {reads} Reads at a time"))
            }
        }
    }

    /// Returns the descriptions of the kinds of peers that are known to end or reject the same
    /// Requests, with the options to try.
    pub(super) fn suspicions(&self) -> impl Iterator<Item = String> {
        self.suspects.iter().map(|suspect| suspicion(*suspect))
    }

    pub(super) fn describe(&self) -> String {
        let word = |on: bool, yes: &'static str, no: &'static str| if on { yes } else { no };
        format!(
            "{}; CRCs {}; Markers {}{}",
            self.reply,
            word(self.crc_off, "off where neither end asks for them", "required"),
            word(self.markers_granted, "granted", "refused"),
            self.about.as_ref().map_or_else(String::new, |about| format!("; {about}"))
        )
    }

    pub(super) fn json(&self) -> Json {
        json!({
            "reply": self.reply, "enhanced": self.enhanced, "ird": self.ird, "crc_off": self.crc_off,
            "markers_granted": self.markers_granted, "markers_asked": self.markers_asked, "partner": self.about,
            "suspicions": self.suspicions().collect::<Vec<_>>(),
        })
    }
}
