//! Tests that always or sometimes fail, each with the reason.

use super::outcome::Outcome;
use super::sets::Endpoint;

/// Test that always or sometimes fails.
pub(super) struct Known {
    endpoint: Endpoint,
    /// Persona to which the entry applies; `None` for all personas.
    persona: Option<&'static str>,
    test: &'static str,
    /// Names of the possible outcomes.
    outcomes: &'static [&'static str],
    pub(super) reason: &'static str,
}

impl Known {
    fn is_of(&self, endpoint: Endpoint, persona: &str, test: &str) -> bool {
        self.endpoint == endpoint
            && self.persona.is_none_or(|own| own == persona)
            && self.test == test
    }
}

/// Returns the entry for a test, if there is one.
pub(super) fn of(endpoint: Endpoint, persona: &str, test: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.is_of(endpoint, persona, test))
}

/// Returns a message if an outcome was not expected.
pub(super) fn surprise(known: Option<&Known>, outcome: &Outcome) -> Option<String> {
    let expected = known.map_or(&["pass"][..], |known| known.outcomes);
    (!expected.contains(&outcome.word())).then(|| format!("{} was expected", expected.join(" or ")))
}

const fn unsupported(
    endpoint: Endpoint,
    persona: Option<&'static str>,
    test: &'static str,
    reason: &'static str,
) -> Known {
    Known { endpoint, persona, test, outcomes: &["unsupported"], reason }
}

const fn fails(
    endpoint: Endpoint,
    persona: Option<&'static str>,
    test: &'static str,
    reason: &'static str,
) -> Known {
    Known { endpoint, persona, test, outcomes: &["fail"], reason }
}

/// Returns the entry of a test that fails in some runs.
const fn races(
    endpoint: Endpoint,
    persona: Option<&'static str>,
    test: &'static str,
    reason: &'static str,
) -> Known {
    Known { endpoint, persona, test, outcomes: &["pass", "fail"], reason }
}

const SIGNAL: &str = "over TCP without uiw as well: its child does not end by SIGINT";
const SHARED: &str = "libfabric: the provider shares receive contexts of connected endpoints alone";
const SCALABLE: &str = "libfabric: the provider has no scalable endpoints";
const NO_DATA: &str = "libfabric gives iWARP devices no completion data";
const CAPABILITY: &str = "libfabric: the provider does not have the capability";
const CONNECTED: &str = "a test of connected endpoints";
const IWARP: Option<&str> = Some("iwarp");

const KNOWN: &[Known] = {
    use Endpoint::{Dgram, Msg, Rxm};
    &[
        fails(Msg, None, "sighandler_test", SIGNAL),
        fails(Rxm, None, "sighandler_test", SIGNAL),
        unsupported(Msg, None, "fi_shared_ctx", SHARED),
        unsupported(Msg, None, "fi_shared_ctx --no-tx-shared-ctx", SHARED),
        unsupported(Msg, None, "fi_shared_ctx --no-rx-shared-ctx", SHARED),
        unsupported(Msg, None, "fi_shared_ctx -e msg", SHARED),
        unsupported(Msg, None, "fi_shared_ctx -e msg --no-rx-shared-ctx", SHARED),
        unsupported(Msg, None, "fi_scalable_ep", SCALABLE),
        unsupported(Msg, None, "fi_multi_mr -e msg -V", CAPABILITY),
        unsupported(Msg, None, "fi_unexpected_msg -e msg -I 10", CAPABILITY),
        unsupported(Msg, None, "fi_multi_recv -e msg -I 5 -v", CAPABILITY),
        unsupported(Msg, IWARP, "fi_cq_data -e msg", NO_DATA),
        unsupported(Msg, IWARP, "fi_rma_bw -e msg -o writedata -I 5 -v", NO_DATA),
        races(
            Msg,
            IWARP,
            "fi_bw -e msg -v -T 1",
            "its Sends wait for a receive for a second, which is the limit, as iWARP has no retries",
        ),
        unsupported(Rxm, None, "fi_cm_data", CONNECTED),
        unsupported(Rxm, None, "fi_rdm_rma_event", CAPABILITY),
        unsupported(Rxm, None, "fi_rdm_rma_trigger", CAPABILITY),
        unsupported(Rxm, None, "fi_shared_ctx", SHARED),
        unsupported(Rxm, None, "fi_shared_ctx --no-tx-shared-ctx", SHARED),
        unsupported(Rxm, None, "fi_shared_ctx --no-rx-shared-ctx", SHARED),
        unsupported(Rxm, None, "fi_scalable_ep", SCALABLE),
        unsupported(Rxm, None, "fi_rdm_shared_av", CAPABILITY),
        unsupported(Rxm, None, "fi_multi_mr -e rdm -V", CAPABILITY),
        fails(Rxm, IWARP, "fi_cq_data -e rdm", NO_DATA),
        unsupported(Dgram, None, "fi_shared_ctx -e dgram", SHARED),
        fails(Dgram, None, "fi_shared_ctx -e dgram --no-tx-shared-ctx", SHARED),
        unsupported(Dgram, None, "fi_shared_ctx -e dgram --no-rx-shared-ctx", SHARED),
        unsupported(
            Dgram,
            None,
            "fi_av_test -g GOOD_ADDR -n 1 -s SERVER_ADDR -e dgram",
            "it asks for IP addresses, and the provider's datagrams have those of InfiniBand",
        ),
        fails(Dgram, None, "fi_dgram", "it takes the prefix of a message for a part of it"),
        fails(Dgram, None, "fi_dgram_waitset", "libfabric: the provider has no wait sets"),
    ]
};
