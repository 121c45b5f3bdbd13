//! `/etc/rdma/rsocket/preload_config`, which determines the sockets of programs that become
//! rsockets. Without the file, or if it contains no valid line, all TCP sockets become rsockets and
//! no UDP sockets, because a datagram rsocket cannot reach a peer that uses UDP. For example, a
//! program that resolves names over UDP would get no answer.

use once_cell::race::OnceBox;
use std::ffi::c_int;
use std::fs;

const FILE: &str = "/etc/rdma/rsocket/preload_config";

/// Line of the file: prefix of a program's name, family, type and protocol. `None` stands for `*`.
#[derive(Debug, PartialEq, Eq)]
struct ConfigLine {
    program: Option<String>,
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

/// Parses one of `names`, without the prefixes that C has for them. Returns `None` for an unknown
/// name, and `Some(None)` for `*`.
fn named(word: &str, prefixes: &[&str], names: &[(&str, c_int)]) -> Option<Option<c_int>> {
    if word == "*" {
        return Some(None);
    }
    let word = word.to_ascii_uppercase();
    let word = prefixes.iter().find_map(|prefix| word.strip_prefix(prefix)).unwrap_or(&word);
    names.iter().find(|(name, _)| *name == word).map(|(_, value)| Some(*value))
}

/// Parses the valid lines. All others are ignored, as in rdma-core.
fn parse(text: &str) -> Vec<ConfigLine> {
    // 27 is AF_IB in the kernel.
    const DOMAINS: [(&str, c_int); 3] =
        [("INET", libc::AF_INET), ("INET6", libc::AF_INET6), ("IB", 27)];
    const KINDS: [(&str, c_int); 2] = [("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)];
    const PROTOCOLS: [(&str, c_int); 2] = [("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)];
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let program = words.next().filter(|word| !word.starts_with('#'))?;
        Some(ConfigLine {
            program: (program != "*").then(|| program.to_owned()),
            domain: named(words.next()?, &["AF_", "PF_"], &DOMAINS)?,
            kind: named(words.next()?, &["SOCK_"], &KINDS)?,
            protocol: named(words.next()?, &["IPPROTO_"], &PROTOCOLS)?,
        })
    };
    text.lines().filter_map(line).collect()
}

/// Kind of sockets that become rsockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketKind {
    Stream,
    Datagram,
}

fn has(lines: &[ConfigLine], program: &str, domain: c_int, kind: SocketKind) -> bool {
    let (kind_number, protocol) = match kind {
        SocketKind::Stream => (libc::SOCK_STREAM, libc::IPPROTO_TCP),
        SocketKind::Datagram => (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
    };
    let is = |asked: Option<c_int>, value| asked.is_none_or(|asked| asked == value);
    let named = |name: &str| {
        program.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
    };
    lines.is_empty() && kind == SocketKind::Stream
        || lines.iter().any(|line| {
            line.program.as_deref().is_none_or(named)
                && is(line.domain, domain)
                && is(line.kind, kind_number)
                && is(line.protocol, protocol)
        })
}

/// Returns whether sockets of `domain` and `kind` become rsockets in `program`.
pub(super) fn includes(program: &str, domain: c_int, kind: SocketKind) -> bool {
    static LINES: OnceBox<Vec<ConfigLine>> = OnceBox::new();
    let lines = LINES.get_or_init(|| {
        Box::new(fs::read_to_string(FILE).map_or_else(|_| Vec::new(), |text| parse(&text)))
    });
    has(lines, program, domain, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_configuration_selects_all_streams() {
        assert!(has(&parse(""), "any", libc::AF_INET, SocketKind::Stream));
        let lines = parse("# iperf * * *\nshort line\niperf X * *\n");
        assert!(has(&lines, "any", libc::AF_INET6, SocketKind::Stream));
        assert!(!has(&lines, "any", libc::AF_INET6, SocketKind::Datagram));
    }

    #[test]
    fn lines_select_programs_and_protocols() {
        let lines = parse(
            "iperf AF_INET SOCK_STREAM tcp\n  redis  *   stream  *\n* inet6 * IPPROTO_UDP\n* * DGRAM *",
        );
        assert_eq!(lines.len(), 4);
        let stream = |program, domain| has(&lines, program, domain, SocketKind::Stream);
        assert!(stream("iperf3", libc::AF_INET) && !stream("iperf3", libc::AF_INET6));
        assert!(stream("redis-server", libc::AF_INET6) && stream("REDIS", libc::AF_INET));
        assert!(!stream("red", libc::AF_INET6) && !stream("nginx", libc::AF_INET));
        let datagram =
            |lines: &str, domain| has(&parse(lines), "iperf3", domain, SocketKind::Datagram);
        assert!(
            datagram("* * DGRAM *", libc::AF_INET) && datagram("* inet6 * udp", libc::AF_INET6)
        );
        assert!(
            !datagram("* inet6 * udp", libc::AF_INET)
                && !datagram("iperf * STREAM *", libc::AF_INET)
        );
    }
}
