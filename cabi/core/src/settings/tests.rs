use super::*;
use uiw_impair::fault::Flip;
use uiw_verbs::{CapabilityExchange, FpduSize, RtrKinds};

fn read(name: &str, value: &str) -> std::result::Result<Settings, String> {
    Settings::read(|variable| (variable.name == name).then(|| value.to_owned()))
}

#[test]
fn every_variable_is_obeyed() {
    assert_eq!(read("UIW_PERSONA", "roce").unwrap().persona, Persona::Roce);
    assert!(!read("UIW_CRC", "off").unwrap().conn.crc);
    assert!(read("UIW_MARKERS", "on").unwrap().conn.markers);
    assert_eq!(read("UIW_MPA_REVISION", "1").unwrap().conn.revision, Revision::One);
    assert!(!read("UIW_FALLBACK", "off").unwrap().conn.fallback);
    assert!(!read("UIW_PEER_TO_PEER", "off").unwrap().conn.peer_to_peer);
    assert_eq!(
        read("UIW_RTR", "read, write").unwrap().conn.rtr,
        RtrKinds { send: false, ..RtrKinds::ALL }
    );
    assert_eq!(
        read("UIW_CAPABILITIES", "assume").unwrap().conn.capabilities,
        CapabilityExchange::Assume
    );
    assert_eq!(read("UIW_FPDU", "1424").unwrap().conn.fpdu, FpduSize::Fixed(1424));
    assert_eq!(read("UIW_STABLE_TX", "1").unwrap().stable_tx, Some(StableTx::On));
    assert_eq!(read("UIW_STABLE_TX", "writes").unwrap().stable_tx, Some(StableTx::Writes));
    assert_eq!(read("UIW_STABLE_TX", "off").unwrap().stable_tx, Some(StableTx::Off));
    assert_eq!(
        read("UIW_CONGESTION", "bbr").unwrap().conn.stream.congestion.as_deref(),
        Some("bbr")
    );
    assert_eq!(read("UIW_MSS", "1300").unwrap().conn.stream.max_segment, Some(1300));
    assert_eq!(read("UIW_DEAD_AFTER", "0").unwrap().dead_after, Some(DeadAfter(None)));
    assert_eq!(read("UIW_ORD", "1024").unwrap().ord, Some(1024));
    assert_eq!(read("UIW_IRD", "16382").unwrap().ird, Some(0x3FFE));
    assert_eq!(read("UIW_ACK", "on").unwrap().acknowledged, Some(true));
    assert_eq!(read("UIW_UD", "on").unwrap().ud, Some(true));
    assert!(read("UIW_PERSONA", "iwarp").unwrap().exact_private_data());
    assert!(!read("UIW_PERSONA", "ib").unwrap().exact_private_data());
    assert_eq!(read("UIW_PRIVATE_DATA", "exact").unwrap().exact_private_data, Some(true));
    assert!(!read("UIW_PRIVATE_DATA", "padded").unwrap().exact_private_data());
    assert!(read("UIW_PRIVATE_DATA", "255").is_err());
    assert!(
        read("UIW_LOOPBACK", "own").unwrap().own_loopback && read("UIW_LOOPBACK", "eth0").is_err()
    );
    assert_eq!(read("UIW_QP_PORTS", "7000-7010").unwrap().qp_ports, Some(7000..=7010));
    assert_eq!(read("UIW_LID_MAP", "/m").unwrap().lid_map, Some("/m".into()));
    assert_eq!(read("UIW_PORT_OFFSET", "-12").unwrap().port_offset, -12);
    let (seed, faults) =
        read("UIW_FAULT", "seed=4,flip-sent=99:1,cut-received=7").unwrap().faults.unwrap();
    assert_eq!((seed, faults.cut_received), (4, Some(7)));
    assert_eq!(faults.flip_sent, [Flip { byte: 99, mask: 1 }]);
    let (_, faults) = read("UIW_FAULT", "flip-sent=99:0x8f").unwrap().faults.unwrap();
    assert_eq!(faults.flip_sent, [Flip { byte: 99, mask: 0x8F }]);
    let both =
        read("UIW_FAULT", "wc:write@3=RETRY_EXC_ERR,seed=4,would-block=9,call:reg_mr=EIO").unwrap();
    assert_eq!(both.plan, "seed=4,wc:write@3=RETRY_EXC_ERR,call:reg_mr=EIO".parse().unwrap());
    assert_eq!(both.faults.unwrap().1.would_block_every, Some(9));
    assert_eq!(read("UIW_FAULT", "seed=4,call:reg_mr@5%=EIO").unwrap().faults, None);
    assert_eq!(read("UIW_PCAP", "f,append").unwrap().pcap, Some(PcapConfig::new("f").append(true)));
    assert_eq!(read("UIW_TLS", "f").unwrap().tls, Some("f".into()));
    assert!(read("UIW_TLS_UD", "clear").unwrap().tls_options.clear_datagrams);
    assert_eq!(read("UIW_KEYLOG", "f").unwrap().tls_options.key_log, Some("f".into()));
    let llp = read("UIW_LLP", "packet:eth0,ip=10.0.0.7/24").unwrap().llp;
    assert_eq!(llp.own().map(|(name, config)| (name, config.addresses.len())), Some(("eth0", 1)));
    assert_eq!(read("UIW_LOG", "debug").unwrap().log.as_deref(), Some("debug"));
}

#[test]
fn bad_value_shown_escaped() {
    let error = |value: &str| read("UIW_CRC", value).unwrap_err();
    assert_eq!(
        error("a\x1b[2J\u{9b}\u{202e}"),
        "uiw: UIW_CRC=a\\u{1b}[2J\\u{9b}\\u{202e}: expected on or off"
    );
    let long = error(&"x".repeat(100_000));
    assert!(long.len() < 300 && long.ends_with(": expected on or off"), "{long}");
}

#[test]
fn datagrams_and_tls() {
    let offers = |tls: Option<&str>, clear: bool| {
        let mut settings = read("UIW_UD", "on").unwrap();
        (settings.tls, settings.tls_options.clear_datagrams) = (tls.map(PathBuf::from), clear);
        settings.offers_ud()
    };
    assert!(offers(None, false) && offers(Some("f"), true) && !offers(Some("f"), false));
}

#[test]
fn dead_time_from_attributes_or_variable() {
    let (seconds, unset) = (Duration::from_secs, Settings::default());
    assert_eq!(unset.dead_after(None), Some(seconds(60)));
    assert_eq!(unset.dead_after(Some(seconds(8))), Some(seconds(20)));
    assert_eq!(unset.dead_after(Some(seconds(400))), Some(seconds(400)));
    assert_eq!(
        read("UIW_DEAD_AFTER", "5m").unwrap().dead_after(Some(seconds(8))),
        Some(seconds(300))
    );
    assert_eq!(read("UIW_DEAD_AFTER", "0").unwrap().dead_after(Some(seconds(8))), None);
}

#[test]
fn syn_repetitions_follow_variable() {
    let of = |value| read("UIW_SOCKETS_TIMEOUT", value).unwrap().sockets_syn_retries();
    assert_eq!(Settings::default().sockets_syn_retries(), Some(2));
    assert_eq!(["2s", "3s", "4s", "7s", "8s", "1m"].map(of), [1, 1, 2, 2, 3, 5].map(Some));
    assert_eq!(["64s", "0"].map(of), [None; 2]);
}

#[test]
fn bad_values_named_with_rule() {
    for (name, value) in [
        ("UIW_PERSONA", "quantum"),
        ("UIW_CRC", "maybe"),
        ("UIW_MPA_REVISION", "3"),
        ("UIW_FALLBACK", "once"),
        ("UIW_PEER_TO_PEER", "yes"),
        ("UIW_RTR", "write,atomic"),
        ("UIW_CAPABILITIES", "some"),
        ("UIW_FPDU", "127"),
        ("UIW_ORD", "16383"),
        ("UIW_MSS", "87"),
        ("UIW_IRD", "16383"),
        ("UIW_DEAD_AFTER", "20"),
        ("UIW_DEAD_AFTER", "1s"),
        ("UIW_DEAD_AFTER", "99999h"),
        ("UIW_DEAD_AFTER", "\u{e9}"),
        ("UIW_QP_PORTS", "9-8"),
        ("UIW_SOCKETS_TIMEOUT", "soon"),
        ("UIW_QP_PORTS", "0-8"),
        ("UIW_PORT_OFFSET", "70000"),
        ("UIW_LLP", "packet:eth0"),
        ("UIW_FAULT", "flip-sent=1"),
        ("UIW_FAULT", "flip-sent=1:0x100"),
        ("UIW_FAULT", "flip-sent=1:0x0"),
        ("UIW_FAULT", "send-split=0"),
        ("UIW_FAULT", "gremlins=3"),
        ("UIW_FAULT", "call:reg_mr@0=EIO"),
        ("UIW_FAULT", "wc:write=SUCCESS"),
    ] {
        let line = read(name, value).unwrap_err();
        assert!(
            line.starts_with(&format!("uiw: {name}={value}: ")) && line.lines().count() == 1,
            "{line}"
        );
    }
}
