//! Runs Debian's programs on uiw's libibverbs and librdmacm on the host against the same programs
//! on the kernel's siw in the guest.
//!
//! Neither end is uiw's own program, so a row passes if both ends succeed. perftest and similar
//! programs sometimes hang even on siw alone. A run in which only the guest's program hangs is
//! therefore distinguished from one in which the host's program hangs; it is repeated, and the
//! remark mentions it.

use super::sums::repeat_faults_of_siw;
use crate::bench::Bench;
use crate::case::{Axes, Case, Direction, Setting, Verdict, quirk};
use crate::guest::Job;
use crate::shell::{Output, Process};
use crate::test_vm::SPARE;
use crate::{Error, Result};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for both ends.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Time for which the other end may run after the first one has ended.
const AFTERWARDS: Duration = Duration::from_secs(10);
/// Time after which the guest kills its program in any case.
const LONGEST: Duration = Duration::from_secs(90);
/// Maximum number of runs of a row in which the guest's program hangs.
const ATTEMPTS: usize = 3;
/// Remark for [`is_closing_race`].
const CLOSING_RACE: &str = "siw completed the guest's last Send in error, though it was sent and answered: the FIN came with the answer";
/// Remark for [`ProgramPair::server_speaks_first`].
const PEER_TO_PEER: &str =
    "siw with peer_to_peer=1: without it the responder may not speak first (RFC 5044 7.1.2)";
/// Exit code in [`Output`] for a program that did not end in time.
const HUNG: i32 = 124;

/// Two programs that communicate with each other.
#[derive(Clone)]
struct ProgramPair {
    server: &'static str,
    client: &'static str,
    package: &'static str,
    style: ArgumentStyle,
    /// Options of both programs.
    options: Vec<String>,
    /// True if the server sends first. A responder must not send its first FPDU before the
    /// initiator's. If the initiator's program does not send first, an RTR message is necessary,
    /// and siw's initiator sends one only with `peer_to_peer`.
    server_speaks_first: bool,
}

/// Form of a program's arguments and output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ArgumentStyle {
    /// `rping`: the exit code of a client describes only its teardown; mismatches and errors are
    /// printed.
    Rping,
    /// perftest: the server's address is the last argument, and the output is a table with one line
    /// per size.
    Perftest,
    /// rdmacm-utils: the client has the argument `-s ADDRESS`.
    Rdmacm,
}

/// Results of the two ends.
struct StockEnds {
    host: Output,
    guest: Output,
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (size, rounds, axes, short) in [
        ("64", "100", Axes::Crc, true),
        ("1441", "100", Axes::Crc, false),
        ("4096", "100", Axes::Crc, false),
        ("60000", "100", Axes::All, true),
        ("64", "1000", Axes::Usual, false),
        ("60000", "1000", Axes::Usual, false),
    ] {
        let pair = ProgramPair::new(
            "rping",
            "rping",
            "rdmacm-utils",
            ArgumentStyle::Rping,
            &["-V", "-C", rounds, "-S", size],
        );
        cases.push(pair.case(format!("stock rping -V {size}, {rounds} rounds"), axes, short));
    }
    for (program, iterations, size, short) in [
        ("ib_write_bw", "200", "65536", true),
        ("ib_write_bw", "1000", "64", false),
        ("ib_read_bw", "100", "65536", true),
        ("ib_read_bw", "500", "64", false),
        ("ib_send_bw", "200", "65536", true),
        ("ib_send_bw", "1000", "64", false),
        ("ib_read_lat", "200", "2", true),
        ("ib_read_lat", "100", "65536", false),
    ] {
        let options = ["-R", "-F", "-n", iterations, "-s", size];
        let pair =
            ProgramPair::new(program, program, "perftest", ArgumentStyle::Perftest, &options);
        cases.push(pair.case(
            format!("stock {program} -R -n {iterations} -s {size}"),
            Axes::Crc,
            short,
        ));
    }
    let pair = |server, client, options: &[&str]| {
        ProgramPair::new(server, client, "rdmacm-utils", ArgumentStyle::Rdmacm, options)
    };
    let ucmatose = ProgramPair {
        server_speaks_first: true,
        ..pair("ucmatose", "ucmatose", &["-c", "10", "-C", "30", "-S", "3000"])
    };
    cases.push(ucmatose.case("stock ucmatose, 10 connections".to_owned(), Axes::Crc, true));
    let simple = pair("rdma_server", "rdma_client", &[]);
    cases.push(simple.case("stock rdma_client and rdma_server".to_owned(), Axes::Crc, true));
    let shared = pair("rdma_xserver", "rdma_xclient", &["-c", "r"]);
    for (size, count, axes, short) in [
        ("64", "100", Axes::Crc, true),
        ("4096", "50", Axes::Usual, false),
        ("65536", "20", Axes::Crc, false),
        ("1000000", "10", Axes::Usual, false),
    ] {
        for program in ["rstream", "riostream"] {
            let modes = ["-T", "b", "-T", "v", "-S", size, "-C", count, "-I", "5"];
            let name = format!("stock {program} {size}, verified");
            cases.push(pair(program, program, &modes).case(
                name,
                axes,
                short && program == "rstream",
            ));
        }
    }
    let modes = ["-T", "n", "-T", "v", "-S", "65536", "-C", "20", "-I", "5"];
    let nonblocking = pair("rstream", "rstream", &modes);
    cases.push(nonblocking.case(
        "stock rstream 65536, verified, without waiting".to_owned(),
        Axes::Usual,
        false,
    ));
    cases.push(shared.case("stock rdma_xclient and rdma_xserver, RC".to_owned(), Axes::Crc, false));
    cases
}

impl ProgramPair {
    fn new(
        server: &'static str,
        client: &'static str,
        package: &'static str,
        style: ArgumentStyle,
        options: &[&str],
    ) -> Self {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Self { server, client, package, style, options, server_speaks_first: false }
    }

    fn case(self, name: String, axes: Axes, short: bool) -> Case {
        let case = Case::new(name, move |bench, setting, direction| {
            repeat_faults_of_siw(bench, setting, |bench| self.run(bench, setting, direction))
        });
        let case = case.axes(axes);
        if short { case.short() } else { case }
    }

    fn run(&self, bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
        bench.build_libraries();
        let needs_rtr = self.server_speaks_first && direction == Direction::Theirs;
        let (mut hung, mut explained, mut cut) = (0, 0, 0);
        while hung + cut < ATTEMPTS {
            if hung + cut > 0 {
                bench.retry();
            }
            if hung > 0 {
                // If the driver is stuck, another guest is booted.
                bench.renew();
                bench.apply(setting)?;
            }
            let resets = bench.resets_by_close()?;
            if needs_rtr {
                bench.tunable(&[("peer_to_peer", "1")])?;
            }
            let ends = match direction {
                Direction::Ours => match self.serve_guest(bench, setting) {
                    Ok(server) => self.client_here(bench, setting, server)?,
                    // No program of ours has been started yet.
                    Err(Error::Failed(_)) => {
                        hung += 1;
                        explained += usize::from(is_stuck_in_siw(&bench.stuck()));
                        continue;
                    }
                    Err(missing) => return Err(missing),
                },
                Direction::Theirs => self.server_here(bench, setting)?,
            };
            let (ours, theirs) = match direction {
                Direction::Ours => {
                    (self.complaint(&ends.host, true), self.complaint(&ends.guest, false))
                }
                Direction::Theirs => {
                    (self.complaint(&ends.host, false), self.complaint(&ends.guest, true))
                }
            };
            match (ours, theirs) {
                (None, None) if needs_rtr && hung == 0 => {
                    return Ok(Verdict::Pass(PEER_TO_PEER.to_owned()));
                }
                (None, None) => return Ok(Verdict::Pass(remark(hung, cut))),
                (Some(_), None) if is_reset(&ends.host) && bench.resets_by_close()? > resets => {
                    cut += 1;
                }
                (None, Some(_)) if ends.guest.status == HUNG => {
                    hung += 1;
                    explained += usize::from(is_stuck_in_siw(&bench.stuck()));
                }
                // The server of a round-trip test has no table.
                (None, Some(_))
                    if (self.measured(&ends.guest) || self.measured(&ends.host))
                        && is_closing_race(&ends.guest) =>
                {
                    return Ok(Verdict::Pass(CLOSING_RACE.to_owned()));
                }
                (ours, theirs) => return Ok(Verdict::Fail(both(ours, theirs))),
            }
        }
        Ok(if cut > 0 && explained == hung {
            Verdict::known(quirk::RESET_BY_CLOSE, remark(hung, cut))
        } else if explained == hung {
            Verdict::known(quirk::DESTROY_QP, remark(hung, cut))
        } else {
            Verdict::Fail(format!(
                "{}; {explained} of the hangs in siw_destroy_qp",
                remark(hung, cut)
            ))
        })
    }

    fn serve_guest(&self, bench: &Bench, setting: &Setting) -> Result<Job> {
        let own = bench.guest_own(setting.family)?;
        let command = format!("{} {}", self.server, self.server_arguments(&own, SPARE).join(" "));
        bench.serve_guest(&command, SPARE, LONGEST)
    }

    /// Runs the client on the host against `server` in the guest.
    fn client_here(&self, bench: &mut Bench, setting: &Setting, server: Job) -> Result<StockEnds> {
        let mut client = bench.stock(self.client, self.package, setting)?;
        let at = bench.net().guest(setting.family, SPARE)?;
        client.args(self.client_arguments(
            &at.ip().to_string(),
            at.port(),
            Some(bench.net().device()),
        ));
        Ok(finish(Process::start(&mut client)?, server))
    }

    /// Runs the server on the host and the client in the guest.
    fn server_here(&self, bench: &mut Bench, setting: &Setting) -> Result<StockEnds> {
        let mut command = bench.stock(self.server, self.package, setting)?;
        if self.style == ArgumentStyle::Perftest {
            command.args(["-d", bench.net().device()]);
        }
        let own = bench.net().listen(setting.family)?.to_string();
        let (server, port) =
            bench.serve_stock(command, |port| self.server_arguments(&own, port))?;
        let host = bench.host(setting.family)?;
        let script =
            format!("{} {}", self.client, self.client_arguments(&host, port, None).join(" "));
        let client = bench.guest().start(&script, LONGEST)?;
        Ok(finish(server, client))
    }

    fn server_arguments(&self, own: &str, port: u16) -> Vec<String> {
        let port = port.to_string();
        let role: &[&str] = match self.style {
            ArgumentStyle::Rping => &["-s", "-a", own, "-p", &port],
            ArgumentStyle::Perftest | ArgumentStyle::Rdmacm => &["-p", &port],
        };
        role.iter().map(|word| (*word).to_owned()).chain(self.options.iter().cloned()).collect()
    }

    fn client_arguments(&self, to: &str, port: u16, device: Option<&str>) -> Vec<String> {
        let port = port.to_string();
        let mut words: Vec<&str> = match self.style {
            ArgumentStyle::Rping => vec!["-c", "-a", to, "-p", &port],
            ArgumentStyle::Perftest => vec!["-p", &port],
            ArgumentStyle::Rdmacm => vec!["-s", to, "-p", &port],
        };
        words.extend(self.options.iter().map(String::as_str));
        if self.style == ArgumentStyle::Perftest {
            words.extend(device.iter().flat_map(|device| ["-d", device]));
            words.push(to);
        }
        words.into_iter().map(str::to_owned).collect()
    }

    /// Returns the reason for which the output of an end is wrong, if it is.
    fn complaint(&self, output: &Output, client: bool) -> Option<String> {
        let program = if client { self.client } else { self.server };
        if output.status == HUNG {
            return Some(format!("{program} did not end: {}", output.last_line()));
        }
        let unusual = match self.style {
            ArgumentStyle::Rping => lines(output).find(|line| !is_usual_of_rping(line, client)),
            ArgumentStyle::Perftest if client && !self.measured(output) => {
                let said: Vec<_> = lines(output).filter(|line| !line.is_empty()).collect();
                return Some(format!(
                    "{program}: no measurement, exit code {}: {}",
                    output.status,
                    said.join(" / ")
                ));
            }
            ArgumentStyle::Perftest | ArgumentStyle::Rdmacm => None,
        };
        match unusual {
            Some(line) => Some(format!("{program}: {line}")),
            None if output.is_ok() => None,
            None => Some(format!("{program}: exit code {}: {}", output.status, output.last_line())),
        }
    }

    fn measured(&self, output: &Output) -> bool {
        self.style == ArgumentStyle::Perftest && lines(output).any(|line| self.is_measurement(line))
    }

    /// Returns whether a line of perftest's table has the size and the number of iterations asked
    /// for.
    fn is_measurement(&self, line: &str) -> bool {
        let asked = |option: &str| {
            self.options.iter().skip_while(move |word| *word != option).nth(1).map(String::as_str)
        };
        let mut words = line.split_whitespace();
        words.next() == asked("-s") && words.next() == asked("-n")
    }
}

/// Waits for both programs, and kills those that hang. Whether the guest's program hangs is
/// determined before the host's program is killed, because the end of one often ends the other,
/// which then seems to have succeeded.
fn finish(mut host: Process, mut guest: Job) -> StockEnds {
    let wait = |timeout: Duration, done: &mut dyn FnMut() -> bool| {
        let deadline = Instant::now() + timeout;
        while !done() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    };
    wait(TIMEOUT, &mut || !host.is_running() || !guest.is_running());
    wait(AFTERWARDS, &mut || !host.is_running() && !guest.is_running());
    let guest_hangs = guest.is_running();
    let host = host.finish(Duration::ZERO);
    let mut guest = guest.kill();
    if guest_hangs {
        guest.status = HUNG;
    }
    StockEnds { host, guest }
}

fn lines(output: &Output) -> impl Iterator<Item = &str> {
    output.out.lines().chain(output.err.lines()).map(str::trim)
}

/// Returns whether rping prints the line in a successful run, in which it reports that the other
/// end has left. A server also reports the state in which it waited for the next round.
fn is_usual_of_rping(line: &str, client: bool) -> bool {
    line.is_empty()
        || line.contains("DISCONNECT")
        || line == "guest is listening"
        || !client && line.ends_with("wait for RDMA_READ_ADV state 10")
}

/// Returns whether a program in the guest cannot be killed, because it waits in the driver for the
/// release of a queue pair reference that never happens.
fn is_stuck_in_siw(stuck: &str) -> bool {
    stuck.contains("siw_destroy_qp")
}

/// Returns whether perftest in the guest completed its measurement but found an error in its last
/// Send. siw completes a Send with an error (2: `IBV_WC_LOC_QP_OP_ERR`), although its last byte was
/// sent, if the peer's FIN arrives before siw has checked this (QUIRKS.md).
fn is_closing_race(output: &Output) -> bool {
    ["Bad wc status 2", "Failed to close connection"]
        .iter()
        .all(|said| lines(output).any(|line| line.contains(said)))
}

/// Returns whether the connection of the host's program was reset.
fn is_reset(output: &Output) -> bool {
    lines(output).any(|line| line.contains("Connection reset by peer"))
}

fn remark(hung: usize, cut: usize) -> String {
    let hangs = (hung > 0).then(|| {
        format!(
            "the guest's program hung {hung} times by itself: ours had ended well, or not begun"
        )
    });
    let cuts = (cut > 0).then(|| {
        format!(
            "the guest's program ended well {cut} times, and its end reset the connection with bytes that it had sent (TCPAbortOnClose, TCPAbortOnData)"
        )
    });
    hangs.into_iter().chain(cuts).collect::<Vec<_>>().join("; ")
}

fn both(ours: Option<String>, theirs: Option<String>) -> String {
    let text =
        [ours.map(|what| format!("ours: {what}")), theirs.map(|what| format!("siw's: {what}"))];
    text.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::is_stuck_in_siw;

    #[test]
    fn hang_explained_by_guest_stack() {
        let stack = "rdma_xserver [<0>] siw_destroy_qp+0x1b1/0x2b0 [siw] [<0>] ib_destroy_qp_user+0x8b/0x160";
        assert!(is_stuck_in_siw(stack));
        assert!(!is_stuck_in_siw("rdma_xserver [<0>] ep_poll+0x2f0/0x3a0"));
    }
}
