//! Sets of tests from the arrays in `runfabtests.sh`, by kind of endpoint.

/// Kind of endpoint of the verbs provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// Connected endpoint: an RC queue pair.
    Msg,
    /// Reliable datagrams: the provider `ofi_rxm` on top of connected endpoints.
    Rxm,
    /// Datagram endpoint: a UD queue pair.
    Dgram,
}

impl Endpoint {
    pub(super) fn provider(self) -> &'static str {
        match self {
            Self::Rxm => "verbs;ofi_rxm",
            Self::Msg | Self::Dgram => "verbs",
        }
    }

    /// Returns whether a test applies to the endpoint. Tests that name no endpoint are run for both
    /// reliable kinds.
    fn takes(self, test: &str) -> bool {
        match self {
            Self::Msg => !test.contains("rdm") && !test.contains("dgram"),
            Self::Rxm => {
                !test.starts_with("fi_msg") && !test.contains("-e msg") && !test.contains("dgram")
            }
            Self::Dgram => test.contains("dgram"),
        }
    }

    /// Returns whether a test runs on `ofi_rxm`. Some programs in the set for connected endpoints
    /// also request reliable datagrams.
    pub(super) fn is_above_rxm(self, test: &str) -> bool {
        self == Self::Rxm
            || self == Self::Msg
                && ["fi_poll ", "fi_msg_inject "].iter().any(|name| test.starts_with(name))
    }

    /// Returns the configurations of `fi_ubertest` that run for a short time, with their directory.
    /// The other configurations take hours.
    pub(super) fn configurations(self) -> &'static [&'static str] {
        match self {
            Self::Msg => &["verbs/quick"],
            Self::Rxm | Self::Dgram => &[],
        }
    }
}

/// Kind of programs started by the command line of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One program.
    Unit,
    /// One program that must end with `FI_ENODATA`.
    Negative,
    /// A server and a client.
    Pair,
}

/// Programs that compare their data with `-v`; the script runs some of them without it.
const VERIFY: [&str; 9] = [
    "fi_msg_pingpong",
    "fi_msg_bw",
    "fi_rma_bw",
    "fi_rdm_cntr_pingpong",
    "fi_rdm_pingpong",
    "fi_rdm_tagged_pingpong",
    "fi_rdm_tagged_bw",
    "fi_multi_recv",
    "fi_dgram_pingpong",
];

/// Returns the tests for an endpoint in the order of the script's set "quick", followed by its
/// regression tests.
pub(super) fn tests(script: &str, endpoint: Endpoint) -> Vec<(Kind, String)> {
    let arrays = [
        ("unit_tests", Kind::Unit),
        ("neg_unit_tests", Kind::Negative),
        ("regression_tests", Kind::Unit),
        ("functional_tests", Kind::Pair),
        ("short_tests", Kind::Pair),
    ];
    let mut tests = Vec::new();
    for (array, kind) in arrays {
        for line in lines(script, array).into_iter().filter(|line| endpoint.takes(line)) {
            let test = (kind, verified(line));
            if !tests.contains(&test) {
                tests.push(test);
            }
        }
    }
    tests
}

/// Returns the command line of the test with comparison of the data.
fn verified(test: &str) -> String {
    let words: Vec<_> = test.split(' ').collect();
    let without = VERIFY.contains(&words[0]) && !words.contains(&"-v");
    if without { format!("{test} -v") } else { test.to_owned() }
}

/// Returns the elements of an array in the script, which are quoted and on separate lines.
fn lines<'a>(script: &'a str, array: &str) -> Vec<&'a str> {
    let begin = format!("\n{array}=(");
    let (_, rest) =
        script.split_once(&begin).unwrap_or_else(|| panic!("runfabtests.sh has no {array}"));
    let (elements, _) = rest.split_once(')').expect("an array ends");
    let lines = elements.lines().map(|line| line.trim().trim_matches('"'));
    let lines: Vec<_> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(!lines.is_empty(), "{array} of runfabtests.sh is empty");
    lines
}

#[test]
fn tests_are_read_from_the_script() {
    let script = "\nunit_tests=(\n\t\"fi_av_test -e rdm\"\n)\nneg_unit_tests=(\n\t\"fi_msg g00n13s\"\n)\n\
                  regression_tests=(\n\t\"x\"\n)\nfunctional_tests=(\n\t\"fi_cm_data\"\n\t\"fi_bw -e dgram\"\n)\n\
                  short_tests=(\n\t\"fi_msg_bw -I 5\"\n\t\"fi_msg_bw -I 5 -v\"\n)\n";
    let of = |endpoint| tests(script, endpoint);
    let test = |kind, name: &str| (kind, name.to_owned());
    let (cm_data, sighandler) = (test(Kind::Pair, "fi_cm_data"), test(Kind::Unit, "x"));
    let msg = [test(Kind::Negative, "fi_msg g00n13s"), sighandler.clone(), cm_data.clone()];
    assert_eq!(of(Endpoint::Msg), [&msg[..], &[test(Kind::Pair, "fi_msg_bw -I 5 -v")]].concat());
    assert_eq!(of(Endpoint::Rxm), [test(Kind::Unit, "fi_av_test -e rdm"), sighandler, cm_data]);
    assert_eq!(of(Endpoint::Dgram), [test(Kind::Pair, "fi_bw -e dgram")]);
}
