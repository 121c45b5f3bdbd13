//! Settings from environment variables, which are read once. `uiw env` prints the same table.

mod values;

use crate::boundary::Result;
use crate::counters::CounterDestination;
use crate::environment::{self, PrivilegePolicy};
use crate::errno::Errno;
use crate::log;
use crate::persona::Persona;
use crate::tls::TlsFileConfig;
use crate::tls_watch::TlsWatch;
use once_cell::race::OnceBox;
use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use uiw_impair::fault::Faults;
use uiw_llp::capture::PcapConfig;
use uiw_smol::Spec;
use uiw_tls::Tls;
use uiw_verbs::{ConnConfig, FaultPlan, Revision, StableTx};

use values::{
    capability_exchange, depth, exact_or_padded, faults, fpdu, own_or_host, peer_profile, ports,
    rtr_kinds, segment, stable_tx, switch,
};

/// Environment variable. Those that concern connections are also command-line options of the
/// program `uiw`.
#[derive(Debug)]
pub struct Variable {
    /// Name of the variable.
    pub name: &'static str,
    /// Name of the command-line option, if there is one.
    pub option: Option<&'static str>,
    /// Permitted values.
    pub values: &'static str,
    /// Effect of the variable.
    pub what: &'static str,
    /// Programs that obey the variable.
    pub scope: ProgramScope,
    /// Treatment of the variable in programs with more rights than their user.
    pub privileged: PrivilegePolicy,
    set: fn(&mut Settings, &str) -> std::result::Result<(), &'static str>,
}

/// Programs that obey a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramScope {
    /// Only programs that use the C libraries.
    CProgram,
    /// Programs that connect to other hosts.
    Connection,
    /// Any program.
    Process,
}

impl Variable {
    const fn new(
        scope: ProgramScope,
        name: &'static str,
        values: &'static str,
        what: &'static str,
        set: fn(&mut Settings, &str) -> std::result::Result<(), &'static str>,
    ) -> Self {
        Self { name, option: None, values, what, scope, privileged: PrivilegePolicy::Ignored, set }
    }

    const fn option(mut self, option: &'static str) -> Self {
        self.option = Some(option);
        self
    }

    const fn privileged(mut self, privileged: PrivilegePolicy) -> Self {
        self.privileged = privileged;
        self
    }

    /// Parses `value` and changes the setting.
    ///
    /// # Errors
    /// The rule that the value breaks.
    pub fn set(
        &self,
        settings: &mut Settings,
        value: &str,
    ) -> std::result::Result<(), &'static str> {
        (self.set)(settings, value)
    }

    /// Returns the value if it is set and not empty, and if this process obeys the variable.
    fn value(&self) -> Option<OsString> {
        environment::variable(self.name, self.privileged)
    }
}

/// Every variable that the libraries obey.
pub const VARIABLES: &[Variable] = &[
    Variable::new(ProgramScope::CProgram, "UIW_PERSONA", "iwarp, roce or ib", "the kind of device that the program sees; the wire is the same", |s, v| Persona::from_name(v).map(|persona| s.persona = persona).ok_or("expected iwarp, roce or ib")).privileged(PrivilegePolicy::Obeyed),
    Variable::new(ProgramScope::Connection, "UIW_CRC", "on or off", "ask for CRC32C on every FPDU; it is on if either side asks", |s, v| switch(v).map(|on| s.conn.crc = on)).option("crc"),
    Variable::new(ProgramScope::Connection, "UIW_MARKERS", "on or off", "ask the peer for MPA Markers", |s, v| switch(v).map(|on| s.conn.markers = on)).option("markers"),
    Variable::new(ProgramScope::Connection, "UIW_MPA_REVISION", "1 or 2", "highest MPA revision: 1 is RFC 5044 alone, 2 is RFC 6581", |s, v| match v {
            "1" => {
                s.conn.revision = Revision::One;
                Ok(())
            }
            "2" => Ok(()),
            _ => Err("expected 1 or 2"),
        }).option("revision"),
    Variable::new(ProgramScope::Connection, "UIW_FALLBACK", "on or off", "connect once more at MPA revision 1 when a peer closes on revision 2", |s, v| switch(v).map(|on| s.conn.fallback = on)).option("fallback"),
    Variable::new(ProgramScope::Connection, "UIW_PEER_TO_PEER", "on or off", "ask for the peer-to-peer model of RFC 6581, where either end may send first; at revision 1 send an RTR message unasked", |s, v| switch(v).map(|on| s.conn.peer_to_peer = on)).option("peer-to-peer"),
    Variable::new(ProgramScope::Connection, "UIW_RTR", "write, read, send, separated by commas", "RTR messages that are offered and accepted", |s, v| rtr_kinds(v).map(|kinds| s.conn.rtr = kinds)).option("rtr"),
    Variable::new(ProgramScope::Connection, "UIW_CAPABILITIES", "on, off or assume", "the capability exchange between uiw peers; off: every peer is a foreign one, assume: every peer has RFC 7306", |s, v| capability_exchange(v).map(|mode| s.conn.capabilities = mode)).option("capabilities"),
    Variable::new(ProgramScope::Connection, "UIW_PEER", "rfc or siw-gso", "depart from the RFCs as this kind of peer requires; siw-gso: the Linux siw driver with try_gso may send FPDUs larger than a TCP segment", |s, v| peer_profile(v).map(|profile| s.conn.profile = profile)).option("peer"),
    Variable::new(ProgramScope::Connection, "UIW_FPDU", "auto, segment, large, or a MULPDU from 128 to 64768", "size of the FPDUs that are sent", |s, v| fpdu(v).map(|size| s.conn.fpdu = size)).option("fpdu"),
    Variable::new(ProgramScope::Connection, "UIW_STABLE_TX", "on, off or writes", "copy sources of every request, of none, or of Writes [default] before their CRC is computed: they may be rewritten in flight", |s, v| stable_tx(v).map(|whose| s.stable_tx = Some(whose))).option("stable-tx"),
    Variable::new(ProgramScope::Connection, "UIW_CONGESTION", "a name from net.ipv4.tcp_available_congestion_control, or auto", "congestion control of TCP; auto is bbr where the round trip exceeds 5 ms and the system has it", |s, v| {
            s.conn.stream.congestion = Some(v.to_owned());
            Ok(())
        }).option("congestion"),
    Variable::new(ProgramScope::Connection, "UIW_MSS", "bytes from 88 to 32767", "bytes of a TCP segment at most, for paths that lose larger packets without a message", |s, v| segment(v).map(|bytes| s.conn.stream.max_segment = Some(bytes))).option("mss"),
    Variable::new(ProgramScope::Connection, "UIW_DEAD_AFTER", "a time such as 20s, 5m or 1h; 0 is the system's own", "after how long without any acknowledgement a peer is dead (default: 15m; of `uiw serve` 60s; of C programs from the \
               queue pair's timeout and retry_cnt, at least 20s, without them 60s)", |s, v| v.parse().map(|time| s.dead_after = Some(time))).option("dead-after"),
    Variable::new(ProgramScope::Connection, "UIW_ORD", "a number from 0 to 16382", "most Reads and atomics that this end has outstanding; never more than the peer takes (default: what a C program asks for, otherwise 1024)", |s, v| depth(v).map(|number| s.ord = Some(number))).option("ord"),
    Variable::new(ProgramScope::Connection, "UIW_IRD", "a number from 0 to 16382", "Reads and atomics that the peer may have outstanding here (default: what a C program asks for, otherwise 1024)", |s, v| depth(v).map(|number| s.ird = Some(number))).option("ird"),
    Variable::new(ProgramScope::Connection, "UIW_LLP", "tcp, mptcp, packet:IFACE,ip=ADDR/PREFIX[,gw=ADDR][,mac=MAC][,buffer=BYTES] or xdp:IFACE,ip=..[,mode=MODE]", "the TCP to use: the kernel's, its Multipath TCP, or smoltcp on an interface with addresses of its own; the only device is the interface then", |s, v| {
            let rule = "expected tcp, mptcp, packet:IFACE,ip=ADDR/PREFIX or xdp:IFACE,ip=ADDR/PREFIX: see `uiw doctor`";
            v.parse().map(|llp| s.llp = llp).map_err(|_| rule)
        }),
    Variable::new(ProgramScope::Connection, "UIW_ACK", "on or off", "acknowledged completion: a request completes when the peer has placed it (default: on in personas roce and ib)", |s, v| switch(v).map(|on| s.acknowledged = Some(on))),
    Variable::new(ProgramScope::CProgram, "UIW_UD", "on or off", "offer unreliable datagrams between uiw peers (default: on in personas roce and ib)", |s, v| switch(v).map(|on| s.ud = Some(on))),
    Variable::new(ProgramScope::CProgram, "UIW_PRIVATE_DATA", "exact or padded", "private data of rdma_cm events: the bytes that the peer sent, up to 255 (exact, the default in persona iwarp), or InfiniBand's \
               fields with zeros behind these bytes, and no more than the fields hold (padded, the default in personas roce and ib)", |s, v| exact_or_padded(v).map(|exact| s.exact_private_data = Some(exact))),
    Variable::new(ProgramScope::Connection, "UIW_LOOPBACK", "own or host", "what rdma_bind_addr to 127.0.0.1 or ::1 and port 0 gives: the loopback device (own), or, where there are others, none as with \
               the kernel (host, the default)", |s, v| own_or_host(v).map(|own| s.own_loopback = own)),
    Variable::new(ProgramScope::Process, "UIW_SHARDS", "a number from 1 to 64", "how many threads can move bytes at the same time (default: the process's cores, at most 8)", |s, v| match v.parse::<usize>() {
            Ok(shards @ 1..=64) => {
                s.shards = Some(shards);
                Ok(())
            }
            _ => Err("expected a number from 1 to 64"),
        }),
    Variable::new(ProgramScope::CProgram, "UIW_QP_PORTS", "LO-HI", "TCP and UDP ports of queue pairs that are connected out of band or send datagrams, for firewalls", |s, v| ports(v).map(|range| s.qp_ports = Some(range))),
    Variable::new(ProgramScope::CProgram, "UIW_LID_MAP", "a file of lines `LID ADDRESS`", "addresses of peers that the program names by LID alone", |s, v| {
            s.lid_map = Some(v.into());
            Ok(())
        }),
    Variable::new(ProgramScope::CProgram, "UIW_PORT_OFFSET", "a number from -65535 to 65535", "added to every port that the program gives to rdma_cm and rsockets, for programs that use the same one over TCP", |s, v| match v.parse::<i32>() {
            Ok(offset @ -65535..=65535) => {
                s.port_offset = offset;
                Ok(())
            }
            _ => Err("expected a number from -65535 to 65535"),
        }),
    Variable::new(ProgramScope::CProgram, "UIW_SOCKETS_TCP", "names of programs and numbers of ports, with commas", "what stays on TCP under librspreload.so: the sockets of these programs, and connections to these ports", |s, v| {
            s.sockets_on_tcp = v.split(',').map(|part| part.trim().to_owned()).collect();
            Ok(())
        }),
    Variable::new(ProgramScope::CProgram, "UIW_SOCKETS_TIMEOUT", "a time such as 3s or 1m; 0 is the system's own", "how long librspreload.so waits for the port of rsockets to answer before it connects by TCP, rounded up to 3s, 7s, 15s, 31s or 63s, \
               when TCP has repeated its SYN (default: 7s)", |s, v| v.parse().map(|time| s.sockets_timeout = Some(time))),
    Variable::new(ProgramScope::Process, "UIW_FAULT", "send-split=N, recv-split=N, flip-sent=BYTE:MASK, flip-received=BYTE:MASK, cut-sent=N, cut-received=N, \
                 fin-sent=N, would-block=N, call:CALL@N=ERRNO, wc:OPERATION@N=STATUS, event:EVENT@TIME, cm:CALL@N=OUTCOME, \
                 slow:CALL=TIME, seed=N, several with commas: see docs/faults.md", "faults that are injected into every TCP stream of the program, and into its calls and completions", faults),
    Variable::new(ProgramScope::Process, "UIW_PCAP", "FILE[,snap=BYTES][,rotate=BYTES[,files=N]][,append]", "capture all iWARP traffic of the program there, for Wireshark and `uiw decode`", |s, v| {
            let rule = "expected FILE[,snap=BYTES][,rotate=BYTES[,files=N]][,append]; snap from 96, rotate from 64K, files to 1000";
            v.parse().map(|file| s.pcap = Some(file)).map_err(|_| rule)
        }),
    Variable::new(ProgramScope::Connection, crate::tls::VARIABLE, "a file: see `docs/tls.md`", "encrypt every connection by TLS 1.3, with the identity and the peers that the file names", |s, v| {
            s.tls = Some(v.into());
            Ok(())
        }).privileged(PrivilegePolicy::Refused),
    Variable::new(ProgramScope::CProgram, "UIW_TLS_UD", "clear", "let datagrams pass in the clear although TLS is on, which does not protect them (default: they are refused)", |s, v| match v {
            "clear" => {
                s.tls_options.clear_datagrams = true;
                Ok(())
            }
            _ => Err("expected clear"),
        }),
    Variable::new(ProgramScope::Connection, crate::tls::KEY_LOG, "a file", "append the secrets of TLS connections there, with which Wireshark decrypts a capture: a reader of that file can read everything", |s, v| {
            s.tls_options.key_log = Some(v.into());
            Ok(())
        }),
    Variable::new(ProgramScope::Connection, crate::system_path::VARIABLE, "the path of the system's libibverbs.so.1", "list its devices as well, in front of uiw's, and leave them to it; `uiw run --with-system` finds it", |_, v| crate::system_path::check(v)),
    Variable::new(ProgramScope::Process, crate::counters::VARIABLE, "off, or the absolute path of a directory", "publish counters there, for `uiw stat` (default: uiw in XDG_RUNTIME_DIR, without one /tmp/uiw-UID)", |s, v| CounterDestination::parse(v).map(|counters| s.counters = counters)),
    Variable::new(ProgramScope::Process, log::VARIABLE, "off, error, warn, info, debug, trace, or filters such as uiw_verbs=trace", "log to standard error", |s, v| {
            s.log = Some(v.to_owned());
            Ok(())
        }).privileged(PrivilegePolicy::LevelOnly),
];

/// Returns whether a variable of this name is in the table.
pub(crate) fn is_variable(name: &str) -> bool {
    VARIABLES.iter().any(|variable| variable.name == name)
}

/// Returns a warning that names the variables of the environment that begin with `UIW_` and that
/// nothing reads; `None` if there are none.
#[must_use]
pub fn unknown_variables() -> Option<String> {
    environment::unknown_variables(is_variable)
}

/// Values of all settings.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The device profile that programs see.
    pub persona: Persona,
    /// TCP implementation that the engine uses.
    pub llp: Spec,
    /// Options of every connection.
    pub conn: ConnConfig,
    /// Time after which a silent peer is considered dead, if set.
    pub dead_after: Option<DeadAfter>,
    /// ORD, if set.
    pub ord: Option<u16>,
    /// IRD, if set.
    pub ird: Option<u16>,
    /// True if requests complete only after the peer has placed their data, if set.
    pub acknowledged: Option<bool>,
    /// Requests whose payload is copied before its CRC is computed, if set.
    pub stable_tx: Option<StableTx>,
    /// True if unreliable datagrams are offered, if set.
    pub ud: Option<bool>,
    /// True if events report private data in the length that the peer sent, if set.
    pub exact_private_data: Option<bool>,
    /// True if an id that is bound to a loopback address uses the loopback device even if there are
    /// other devices.
    pub own_loopback: bool,
    /// Number of shards of the device, if set.
    pub shards: Option<usize>,
    /// Range of the TCP and UDP ports of queue pairs that are connected out of band or send
    /// datagrams.
    pub qp_ports: Option<RangeInclusive<u16>>,
    /// File that maps LIDs to addresses.
    pub lid_map: Option<PathBuf>,
    /// Number that is added to every port of rdma_cm and rsockets.
    pub port_offset: i32,
    /// Programs and ports whose sockets stay on TCP instead of becoming rsockets.
    pub sockets_on_tcp: Vec<String>,
    /// Maximum time in which the port of rsockets has to answer before TCP is tried, if set.
    pub sockets_timeout: Option<DeadAfter>,
    /// Injected faults of TCP streams, with the seed of the random ones.
    pub faults: Option<(u64, Faults)>,
    /// Injected faults of calls, completions and events.
    pub plan: FaultPlan,
    /// File to which the traffic is captured.
    pub pcap: Option<PcapConfig>,
    /// TLS configuration file.
    pub tls: Option<PathBuf>,
    /// TLS options that are not in the configuration file.
    pub tls_options: TlsFileConfig,
    /// Destination of counters.
    pub counters: CounterDestination,
    /// Filter of the log.
    pub log: Option<String>,
    /// True if the program has more rights than its user. The TLS file is not read in that case,
    /// and no device is opened if one is set.
    is_privileged: bool,
}

/// Approximate maximum size of an invalid value in a message, in bytes.
const MAX_SHOWN: usize = 200;

/// Reason why variables are ignored or refused.
const MORE_RIGHTS: &str =
    "this program has more rights than its user (setuid, setgid or capabilities)";

/// Time without any acknowledgement after which a peer is considered dead: `20s`, `5m`, `1h`, or
/// `0` for the system's own time.
///
/// ```
/// use std::time::Duration;
/// use uiw_cabi_core::settings::DeadAfter;
/// assert_eq!("5m".parse(), Ok(DeadAfter(Some(Duration::from_secs(300)))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadAfter(pub Option<Duration>);

impl FromStr for DeadAfter {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        // The longest time that the kernel accepts for watching an idle connection.
        const LONGEST: u64 = 65_534;
        let rule = "expected a time from 2s to 65534s such as 20s, 5m or 1h, or 0";
        if text == "0" {
            return Ok(Self(None));
        }
        let (at, unit) = text.char_indices().next_back().ok_or(rule)?;
        let unit = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return Err(rule),
        };
        let seconds = text[..at]
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(unit))
            .ok_or(rule)?;
        if (2..=LONGEST).contains(&seconds) {
            Ok(Self(Some(Duration::from_secs(seconds))))
        } else {
            Err(rule)
        }
    }
}

/// Default if neither [`DeadAfter`] nor attributes of the queue pair specify a time.
const DEAD_AFTER: Duration = Duration::from_secs(60);
/// Minimum for times that follow from attributes. The attributes of InfiniBand assume a network
/// that loses almost nothing, but TCP needs seconds to recover from repeated losses.
const MIN_DEAD_AFTER: Duration = Duration::from_secs(20);

/// Default of `UIW_SOCKETS_TIMEOUT`, which permits two repetitions of the SYN. With only one
/// repetition, one connection in 600 would fall back to TCP on a path that loses a packet in fifty.
const SOCKETS_TIMEOUT: Duration = Duration::from_secs(7);

/// Time for which refused connections are retried. Some programs announce a port after binding it
/// and listen only a moment later (for example qperf). With other implementations, resolving
/// addresses and routes takes longer than that.
const REFUSED_RETRY_TIME: Duration = Duration::from_millis(200);

impl Settings {
    /// Returns the configuration of a connection with `ird` and `ord` Reads and atomics, for a
    /// queue pair whose attributes give up after `retries`.
    pub fn conn_config(&self, ird: u8, ord: u8, retries: Option<Duration>) -> ConnConfig {
        let mut options = self.conn.clone();
        (options.ird, options.ord) =
            (self.ird.unwrap_or(ird.into()), self.ord.unwrap_or(ord.into()));
        if self.acknowledged() {
            // Peers other than uiw acknowledge by Reads of no bytes, so both sides need at least
            // one.
            options.acknowledged = true;
            (options.ird, options.ord) = (options.ird.max(1), options.ord.max(1));
        }
        options.stream.dead_after = self.dead_after(retries);
        options.stable_tx = self.stable_tx();
        options.refused_retry_time = REFUSED_RETRY_TIME;
        options
    }

    /// Returns the time without any acknowledgement after which a peer is considered dead, for a
    /// queue pair whose attributes give up after `retries`.
    pub fn dead_after(&self, retries: Option<Duration>) -> Option<Duration> {
        let default = || Some(retries.map_or(DEAD_AFTER, |time| time.max(MIN_DEAD_AFTER)));
        self.dead_after.map_or_else(default, |DeadAfter(time)| time)
    }

    /// Returns the settings of the process. The first call starts the log. An invalid value is
    /// reported once on standard error.
    ///
    /// # Errors
    /// EINVAL if a variable has an invalid value.
    pub fn get() -> Result<&'static Self> {
        static SETTINGS: OnceBox<std::result::Result<Settings, String>> = OnceBox::new();
        let settings = SETTINGS.get().unwrap_or_else(|| {
            // A value that is not UTF-8 is converted and then rejected as invalid. If it were
            // ignored, UIW_TLS would be off.
            let value =
                |variable: &Variable| Some(variable.value()?.to_string_lossy().into_owned());
            let mut read = Self::read(value);
            if environment::is_privileged()
                && let Ok(settings) = &mut read
            {
                settings.is_privileged = true;
                // The environment must not determine where a privileged process writes counters.
                settings.counters = CounterDestination::Off;
            }
            let is_first = SETTINGS.set(Box::new(read)).is_ok();
            let settings =
                SETTINGS.get_or_init(|| unreachable!("set by this thread or by an earlier one"));
            match settings {
                Ok(settings) if is_first => settings.log_filter().map_or((), log::start),
                Err(line) if is_first => crate::log::note!("{line}"),
                _ => {}
            }
            if is_first
                && !environment::is_privileged()
                && let Some(warning) = unknown_variables()
            {
                crate::log::note!("uiw: warning: {warning}");
            }
            let ignored: Vec<_> = VARIABLES
                .iter()
                .filter(|variable| {
                    is_first && environment::is_ignored(variable.name, variable.privileged)
                })
                .map(|variable| variable.name)
                .collect();
            if !ignored.is_empty() {
                crate::log::note!("uiw: ignored, because {MORE_RIGHTS}: {}", ignored.join(", "));
            }
            settings
        });
        settings.as_ref().map_err(|_| Errno::INVAL)
    }

    /// Returns the configuration of the program's own connections: [`Settings::conn`], with the
    /// settings that are stored in other fields if these are set.
    pub fn connection(&self) -> ConnConfig {
        let mut options = self.conn.clone();
        if let Some(DeadAfter(time)) = self.dead_after {
            options.stream.dead_after = time;
        }
        options.ord = self.ord.unwrap_or(options.ord);
        options.ird = self.ird.unwrap_or(options.ird);
        options.acknowledged = self.acknowledged.unwrap_or(options.acknowledged);
        options.stable_tx = self.stable_tx.unwrap_or(options.stable_tx);
        options
    }

    /// Returns the filter of the log. Without `UIW_LOG`, only the injected faults that occur are
    /// logged.
    pub fn log_filter(&self) -> Option<&str> {
        const FAULTS: &str = "off,uiw_verbs::faults=warn";
        self.log.as_deref().or_else(|| (self.plan != FaultPlan::default()).then_some(FAULTS))
    }

    /// Reads the settings from the values that `value` returns.
    ///
    /// # Errors
    /// One line that names the variable, its value and the rule.
    pub fn read(value: impl Fn(&Variable) -> Option<String>) -> std::result::Result<Self, String> {
        let mut settings = Self::default();
        for variable in VARIABLES {
            if let Some(value) = value(variable) {
                variable.set(&mut settings, &value).map_err(|rule| {
                    format!("uiw: {}={}: {rule}", variable.name, log::shown(&value, MAX_SHOWN))
                })?;
            }
        }
        Ok(settings)
    }

    /// Returns whether the sockets of the program `name` stay on TCP, or, if `name` is a port
    /// number, the connections to that port.
    pub fn stays_on_tcp(&self, name: &str) -> bool {
        self.sockets_on_tcp.iter().any(|listed| listed == name)
    }

    /// Returns the number of repetitions of the SYN to a port of rsockets before the plain port is
    /// tried. `None` means the default of the system.
    pub fn sockets_syn_retries(&self) -> Option<i32> {
        let DeadAfter(time) = self.sockets_timeout.unwrap_or(DeadAfter(Some(SOCKETS_TIMEOUT)));
        let time = time?;
        // The first repetition is sent after one second, and each interval is twice as long as the
        // one before.
        (1..=5).find(|retries| Duration::from_secs((2 << retries) - 1) >= time)
    }

    /// Returns whether queue pairs complete requests only after the peer has placed their data.
    pub fn acknowledged(&self) -> bool {
        self.acknowledged.unwrap_or(self.persona != Persona::Iwarp)
    }

    /// Returns whether events report private data in the length that the peer sent, instead of the
    /// length of InfiniBand's fields.
    pub fn exact_private_data(&self) -> bool {
        self.exact_private_data.unwrap_or(self.persona == Persona::Iwarp)
    }

    /// Returns the requests whose payload is copied before its CRC is computed. Without
    /// `UIW_STABLE_TX` these are Writes, because some programs transfer memory that changes
    /// meanwhile (as in QEMU's live migration), which works with RDMA adapters.
    pub fn stable_tx(&self) -> StableTx {
        self.stable_tx.unwrap_or(StableTx::Writes)
    }

    /// Returns whether programs can create UD queue pairs.
    pub fn offers_ud(&self) -> bool {
        self.no_datagrams().is_none()
    }

    /// Returns the reason why programs cannot use datagrams, or `None` if they can.
    pub fn no_datagrams(&self) -> Option<&'static str> {
        if !self.ud.unwrap_or(self.persona != Persona::Iwarp) {
            Some("an iWARP device has no datagrams, unless UIW_UD=on")
        } else if self.tls.is_some() && !self.tls_options.clear_datagrams {
            Some(
                "TLS does not protect datagrams, so there are none with UIW_TLS, unless UIW_TLS_UD=clear",
            )
        } else {
            None
        }
    }

    /// Returns the reason why the program must not read the TLS file, if there is one. Opening a
    /// device fails in that case, because the user did not ask for unencrypted connections.
    pub fn refused_tls(&self) -> Option<String> {
        let is_refused = self.is_privileged && self.tls.is_some();
        is_refused.then(|| {
            format!(
                "uiw: {} is refused, because {MORE_RIGHTS}: no device is opened",
                crate::tls::VARIABLE
            )
        })
    }

    /// Returns the TLS configuration, if there is one. Every call reads the file.
    ///
    /// # Errors
    /// One line that names the file and the mistake.
    pub fn tls(&self) -> std::result::Result<Option<Tls>, String> {
        let Some(file) = &self.tls else { return Ok(None) };
        if let Some(why) = self.refused_tls() {
            return Err(why);
        }
        let tls = crate::tls::read(file, &self.tls_options).and_then(Tls::new);
        tls.map(Some).map_err(|error| wrong_tls(file, &error))
    }

    /// Like [`Settings::tls`], but also starts a thread that reads the files again when they have
    /// changed, until the end of the process.
    ///
    /// # Errors
    /// One line that names the file and the mistake.
    pub fn watched_tls(&self) -> std::result::Result<Option<Tls>, String> {
        let Some(file) = &self.tls else { return Ok(None) };
        // The watch is created before the files are read, so that it detects changes made
        // meanwhile.
        let watch =
            TlsWatch::new(file, &self.tls_options).map_err(|error| wrong_tls(file, &error))?;
        let tls = self.tls()?;
        if let Some(tls) = &tls {
            watch.start(tls.clone()).map_err(|error| wrong_tls(file, &error))?;
        }
        Ok(tls)
    }
}

/// Returns the message about an invalid TLS file.
fn wrong_tls(file: &Path, error: &dyn Display) -> String {
    log::shown(&format!("uiw: {}={}: {error}", crate::tls::VARIABLE, file.display()), log::MAX_LINE)
}

#[cfg(test)]
mod tests;
