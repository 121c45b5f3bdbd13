// Two queue pairs that are connected, for the examples of the documentation.

/// The names by which programs reach this crate.
#[allow(unused_imports, unreachable_pub)]
mod uiw {
    pub use uiw_verbs as raw;
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// A queue pair with what it needs.
#[allow(dead_code)]
struct End {
    device: uiw_verbs::Device,
    pd: uiw_verbs::Pd,
    cq: std::sync::Arc<uiw_verbs::Cq>,
    qp: uiw_verbs::Qp,
    channel: std::sync::Arc<uiw_verbs::cm::CmChannel>,
    memory: uiw_verbs::RawMr,
}

#[allow(dead_code)]
impl End {
    fn new() -> Result<Self, AnyError> {
        Self::on(uiw_verbs::Device::open()?)
    }

    fn on(device: uiw_verbs::Device) -> Result<Self, AnyError> {
        use uiw_verbs::{Access, CqConfig, Memory, QpInit};
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(64, CqConfig::default())?;
        let qp = pd.create_qp(QpInit::new(&cq, &cq))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::MW_BIND;
        let memory = pd.register_raw(Memory::owned(4096)?, 0, access)?;
        Ok(Self { device, pd, cq, qp, channel: Default::default(), memory })
    }

    fn sge(&self, offset: u64, length: u32) -> uiw_verbs::Sge {
        uiw_verbs::Sge { addr: self.memory.addr() + offset, length, lkey: self.memory.lkey() }
    }

    fn event(&self) -> uiw_verbs::cm::CmEventKind {
        self.device.block_on(std::future::poll_fn(|cx| self.channel.poll_pop(cx))).kind
    }

    /// The next completion.
    fn completion(&self) -> uiw_verbs::Wc {
        let mut found = Vec::new();
        while self.cq.poll(&mut found, 1) == 0 {
            self.device.block_on(std::future::poll_fn(|cx| self.cq.poll_ready(cx)));
        }
        found[0]
    }
}

#[allow(dead_code)]
fn raw() -> Result<[End; 2], AnyError> {
    connected(End::new()?, End::new()?)
}

#[allow(dead_code)]
fn connected(client: End, server: End) -> Result<[End; 2], AnyError> {
    use uiw_verbs::ConnConfig;
    use uiw_verbs::cm::{self, CmEventKind};
    let options = std::sync::Arc::new(ConnConfig::default());
    let any = "127.0.0.1:0".parse()?;
    let listener = cm::Listener::bind(&server.device, any, 16, &options, &server.channel)?;
    cm::connect(&client.qp, None, listener.local_addr(), &options, b"", &client.channel)?;
    let CmEventKind::ConnectRequest(request) = server.event() else { return Err("no request".into()) };
    request.accept(&server.qp, Some(&options), b"", Some(&server.channel))?;
    for end in [&client, &server] {
        match end.event() {
            CmEventKind::Established(_) => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok([client, server])
}
