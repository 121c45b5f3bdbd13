//! `clients [PAIRS] [CLIENTS]`: requests and answers of 64 bytes between tokio tasks, by default
//! 100 clients and their server, compared with the same program on tokio's TCP.
//!
//! The server is a thread with its own runtime, and all clients are another one.
//! `with_tokio::drive` drives the devices. Slices of a second alternate over loopback. Prints the
//! requests per second of each pair: ours, TCP's, and TCP's again (`cargo xtask bench clients`).

use std::error::Error;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use uiw::{Connection, ConnectionConfig, Device, Listener, with_tokio};

const SLICE: Duration = Duration::from_secs(1);
const MESSAGE: [u8; 64] = [7; 64];

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Function that returns the requests per second of a server and a number of clients.
type Measure = fn(usize) -> Result<f64>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|number| number.parse());
    let pairs: usize = args.next().transpose()?.unwrap_or(15);
    let clients: usize = args.next().transpose()?.unwrap_or(100);
    for pair in 0..pairs {
        // The order changes from pair to pair.
        let order: [Measure; 2] = if pair % 2 == 0 { [uiw, tcp] } else { [tcp, uiw] };
        let mut both = [order[0](clients)?, order[1](clients)?];
        if pair % 2 == 1 {
            both.reverse();
        }
        let [of_uiw, of_tcp] = both;
        println!("{{\"requests\": [{of_uiw}, {of_tcp}, {}]}}", tcp(clients)?);
    }
    Ok(())
}

/// Runs a future on a runtime of this thread.
fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// Returns the requests per second of all clients.
async fn sum(mut tasks: JoinSet<Result<u64>>) -> Result<f64> {
    let mut count = 0;
    while let Some(one) = tasks.join_next().await {
        count += one??;
    }
    Ok(count as f64 / SLICE.as_secs_f64())
}

/// Runs a server in a new thread, and the clients in this one.
fn beside<S, C>(
    serve: fn(mpsc::Sender<SocketAddr>, usize) -> S,
    clients: usize,
    ask: C,
) -> Result<f64>
where
    S: Future<Output = Result<()>>,
    C: AsyncFnOnce(SocketAddr) -> Result<f64>,
{
    thread::scope(|scope| {
        let (told, address) = mpsc::channel();
        let server = scope.spawn(move || block_on(serve(told, clients)));
        let rate = match address.recv() {
            Ok(address) => block_on(ask(address)),
            Err(gone) => Err(gone.into()),
        };
        server.join().map_err(|_| "the server panicked")??;
        rate
    })
}

fn uiw(clients: usize) -> Result<f64> {
    async fn serve(address: mpsc::Sender<SocketAddr>, clients: usize) -> Result<()> {
        let device = Device::open()?;
        let driver = with_tokio::drive(&device)?;
        let listener =
            Listener::bind(&device.alloc_pd()?, loopback()?, &ConnectionConfig::default())?;
        address.send(listener.local_addr())?;
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let connection = listener.accept().await?;
            tasks.spawn(async move {
                while let Some(request) = connection.recv().await? {
                    connection.send_copy(&request).await?;
                }
                Result::Ok(())
            });
        }
        while let Some(one) = tasks.join_next().await {
            one??;
        }
        drop(driver);
        Ok(())
    }
    beside(serve, clients, async |address| {
        let device = Device::open()?;
        let driver = with_tokio::drive(&device)?;
        let (pd, settings) = (device.alloc_pd()?, ConnectionConfig::default());
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(Connection::connect(&pd, address, &settings).await?);
        }
        let (mut tasks, until) = (JoinSet::new(), Instant::now() + SLICE);
        for connection in connections {
            tasks.spawn(async move {
                let mut count = 0;
                while Instant::now() < until {
                    connection.send_copy(&MESSAGE).await?;
                    let answer = connection.recv().await?.ok_or("closed")?;
                    if answer[..] != MESSAGE {
                        return Err("another answer".into());
                    }
                    count += 1;
                }
                connection.disconnect().await?;
                Ok(count)
            });
        }
        let rate = sum(tasks).await;
        drop(driver);
        rate
    })
}

fn tcp(clients: usize) -> Result<f64> {
    async fn serve(address: mpsc::Sender<SocketAddr>, clients: usize) -> Result<()> {
        let listener = TcpListener::bind(loopback()?).await?;
        address.send(listener.local_addr()?)?;
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (mut stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tasks.spawn(async move {
                let mut request = MESSAGE;
                while stream.read_exact(&mut request).await.is_ok() {
                    stream.write_all(&request).await?;
                }
                Result::Ok(())
            });
        }
        while let Some(one) = tasks.join_next().await {
            one??;
        }
        Ok(())
    }
    beside(serve, clients, async |address| {
        let mut streams = Vec::new();
        for _ in 0..clients {
            streams.push(TcpStream::connect(address).await?);
        }
        let (mut tasks, until) = (JoinSet::new(), Instant::now() + SLICE);
        for mut stream in streams {
            stream.set_nodelay(true)?;
            tasks.spawn(async move {
                let (mut count, mut answer) = (0, [0; 64]);
                while Instant::now() < until {
                    stream.write_all(&MESSAGE).await?;
                    stream.read_exact(&mut answer).await?;
                    if answer != MESSAGE {
                        return Err("another answer".into());
                    }
                    count += 1;
                }
                Ok(count)
            });
        }
        sum(tasks).await
    })
}

fn loopback() -> Result<SocketAddr> {
    Ok("127.0.0.1:0".parse()?)
}
