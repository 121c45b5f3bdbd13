//! Runs stock programs with injected faults of verbs, and checks that they report the planned
//! fault.

use uiw_interop::stock::{Libraries, ProcessEnd, Running, User, free_port};

/// Runs a client without a server.
fn alone(program: &str, arguments: &[&str], plan: &str) -> ProcessEnd {
    let libraries = Libraries::get();
    let mut command = libraries.command(User::Same, program);
    command.args(arguments).env("UIW_FAULT", plan);
    Running::start(command).end()
}

#[test]
fn calls_and_outcomes() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let port = free_port().to_string();
    let client = ["-c", "-a", "127.0.0.1", "-C", "1", "-p", &port];
    for (plan, said) in [
        ("call:reg_mr@2=ENOMEM", "send_buf reg_mr failed"),
        ("call:alloc_pd=ENOMEM", "rdma_resolve_addr: Cannot allocate memory"),
        ("call:alloc_pd@2=ENOMEM", "ibv_alloc_pd failed"),
        ("call:create_cq=EINVAL", "ibv_create_cq failed"),
        ("cm:resolve_addr=ADDR_ERROR", "RDMA_CM_EVENT_ADDR_ERROR, error -110"),
        ("cm:resolve_route=ROUTE_ERROR", "RDMA_CM_EVENT_ROUTE_ERROR, error -110"),
        ("cm:connect=REJECTED", "RDMA_CM_EVENT_REJECTED"),
        ("cm:connect=UNREACHABLE", "RDMA_CM_EVENT_UNREACHABLE"),
    ] {
        let ended = alone("rping", &client, plan);
        assert_eq!(ended.count(said), 1, "{plan}: {ended:?}");
        assert_eq!(ended.count(&format!("fault injected rule=\"{plan}\"")), 1, "{plan}: {ended:?}");
        assert_ne!(ended.code, 0, "{plan}: {ended:?}");
    }
}

#[test]
fn planned_status_between_messages() {
    let Some(_) = uiw_interop::require("ibv_rc_pingpong") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let number = port.to_string();
    let arguments = ["-d", "uiw_lo", "-g", "0", "-n", "100", "-p", &number];
    let command = |plan: Option<&str>| {
        let mut command = libraries.command(User::Same, "ibv_rc_pingpong");
        command.args(arguments).env("UIW_PERSONA", "roce");
        command.envs(plan.map(|plan| ("UIW_FAULT", plan)));
        command
    };
    // The server waits for messages indefinitely, as it would on a real network, and is killed at
    // the end.
    let mut server = Running::start(command(None));
    server.wait_listening(port);
    let mut client = command(Some("wc:send@40=REM_ACCESS_ERR"));
    client.arg("127.0.0.1");
    let client = Running::start(client).end();
    assert_eq!(client.count("Failed status remote access error (10)"), 1, "{client:?}");
    assert_ne!(client.code, 0, "{client:?}");
}

#[test]
fn invalid_rule_refused_with_known_rules() {
    let Some(_) = uiw_interop::require("ibv_devinfo") else { return };
    let ended = alone("ibv_devinfo", &[], "call:reg_rm=ENOMEM");
    assert_eq!(
        ended.count("uiw: UIW_FAULT=call:reg_rm=ENOMEM: no such call, expected alloc_pd, reg_mr"),
        1,
        "{ended:?}"
    );
}
