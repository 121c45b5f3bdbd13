//! Remote calls as `tower` services: the client is a service, and the server calls a service for
//! each request. Both can be combined with tower's layers. A message consists of the number of the
//! call in big-endian order, and the bytes of the request or the answer.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use uiw::{Connection, ConnectionConfig, Device, Listener};

type AnyError = Box<dyn Error + Send + Sync>;
/// Calls that wait for answers.
type Calls = Arc<Mutex<HashMap<u64, oneshot::Sender<Vec<u8>>>>>;

fn message(call: u64, body: &[u8]) -> Vec<u8> {
    [&call.to_be_bytes()[..], body].concat()
}

fn parse(message: &[u8]) -> Option<(u64, &[u8])> {
    let (call, body) = message.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*call), body))
}

/// Answers the requests of a connection, each in its own task, so that a slow one does not delay
/// the others.
async fn serve<S>(connection: Connection, service: S) -> Result<(), AnyError>
where
    S: Service<Vec<u8>, Response = Vec<u8>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    while let Some(request) = connection.recv().await? {
        let (call, body) = parse(&request).ok_or("a request without a number")?;
        let (connection, service, body) = (connection.clone(), service.clone(), body.to_vec());
        tokio::spawn(async move {
            let Ok(answer) = service.oneshot(body).await;
            // This fails if the client has closed the connection. Then the answer is not needed.
            let _ = connection.send_copy(&message(call, &answer)).await;
        });
    }
    Ok(())
}

/// Client, which sends requests on a connection.
#[derive(Clone)]
struct Client {
    connection: Connection,
    calls: Calls,
    next: u64,
}

impl Client {
    fn new(connection: Connection) -> Self {
        let calls = Calls::default();
        let (receiving, waiting) = (connection.clone(), Arc::clone(&calls));
        tokio::spawn(async move {
            while let Ok(Some(answer)) = receiving.recv().await {
                let Some((call, body)) = parse(&answer) else { break };
                if let Some(caller) = waiting.lock().ok().and_then(|mut calls| calls.remove(&call))
                {
                    // A call that was cancelled has no receiver.
                    let _ = caller.send(body.to_vec());
                }
            }
            // Dropping the channels ends the calls that still wait.
            waiting.lock().map(|mut calls| calls.clear()).unwrap_or_default();
        });
        Self { connection, calls, next: 0 }
    }
}

impl Service<Vec<u8>> for Client {
    type Response = Vec<u8>;
    type Error = AnyError;
    type Future = Pin<Box<dyn Future<Output = Result<Vec<u8>, AnyError>> + Send>>;

    /// Always ready, because the connection itself has back-pressure.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), AnyError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Vec<u8>) -> Self::Future {
        self.next += 1;
        let (call, connection, calls) =
            (self.next, self.connection.clone(), Arc::clone(&self.calls));
        Box::pin(async move {
            let (caller, answer) = oneshot::channel();
            {
                let mut waiting = calls.lock().map_err(|_| "a caller panicked")?;
                // Callers that have given up, for example after a time-out, wait for no answer.
                waiting.retain(|_, caller| !caller.is_closed());
                waiting.insert(call, caller);
            }
            connection.send_copy(&message(call, &request)).await?;
            Ok(answer.await.map_err(|_| "the connection has ended")?)
        })
    }
}

async fn upper_case(request: Vec<u8>) -> Result<Vec<u8>, Infallible> {
    Ok(request.to_ascii_uppercase())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let device = Device::open()?;
    let _driver = uiw::with_tokio::drive(&device)?;
    let pd = device.alloc_pd()?;
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
    let address = listener.local_addr();
    tokio::spawn(async move {
        let service = ServiceBuilder::new().concurrency_limit(32).service(service_fn(upper_case));
        while let Ok(connection) = listener.accept().await {
            tokio::spawn(serve(connection, service.clone()));
        }
    });

    let connection = Connection::connect(&pd, address, &ConnectionConfig::default()).await?;
    let client = Client::new(connection.clone());
    let mut client = ServiceBuilder::new().timeout(Duration::from_secs(10)).service(client);
    for word in ["one", "two", "three"] {
        let answer = client.ready().await?.call(word.into()).await?;
        println!("{word} became {}", String::from_utf8_lossy(&answer));
    }
    connection.disconnect().await?;
    Ok(())
}
