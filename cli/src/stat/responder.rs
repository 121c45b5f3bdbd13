//! HTTP server for Prometheus: hyper on one thread, with one request for each connection. Slow
//! clients are disconnected. If there are too many clients, a new one replaces the oldest one.

use super::{collect, metrics};
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::stop::StopFlag;
use crate::shared::text;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Maximum length of the headers of a request, in bytes.
const MAX_REQUEST: usize = 8 << 10;
/// Maximum time from the connection to the last byte of the headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time from the connection to the last byte of the answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of clients.
const MAX_CLIENTS: usize = 16;
/// Pause after an error before the next client is accepted: descriptors may be exhausted.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`.
pub(super) fn serve(address: SocketAddr, stop: &Arc<StopFlag>) -> Result<()> {
    let failed = |error: io::Error| {
        Failure::new(
            Exit::Failed,
            format!("cannot listen on {address}"),
            error,
            "choose another address, or port 0 for a free one",
        )
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        text::line(format!("listening on {}", listener.local_addr().map_err(failed)?));
        let mut clients = VecDeque::<AbortHandle>::new();
        while let Some(accepted) = accept(&listener, stop).await {
            match accepted {
                Ok(client) => {
                    clients.retain(|client| !client.is_finished());
                    if clients.len() >= MAX_CLIENTS
                        && let Some(oldest) = clients.pop_front()
                    {
                        oldest.abort();
                    }
                    clients.push_back(tokio::spawn(answer(client)).abort_handle());
                }
                Err(error) => {
                    note!("warning: {address}: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        Ok(())
    })
}

/// Accepts the next client, or returns `None` once `stop` is set.
async fn accept(listener: &TcpListener, stop: &StopFlag) -> Option<io::Result<TcpStream>> {
    poll_fn(|cx| match stop.poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => listener.poll_accept(cx).map_ok(|(client, _)| client).map(Some),
    })
    .await
}

async fn answer(client: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| async move {
        Ok::<_, Infallible>(respond(request.method(), request.uri().path()))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_REQUEST)
        .keep_alive(false)
        .half_close(true)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(client), service);
    match tokio::time::timeout(TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::info!(%error, "metrics client not answered"),
        Err(_) => tracing::info!("metrics client does not read its answer"),
    }
}

fn respond(method: &Method, path: &str) -> Response<String> {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let (status, kind, body) = match (method, path) {
        (&Method::GET, "/metrics") => match collect::collect_devices(None) {
            Ok(collected) => {
                let text = metrics::format(&collected);
                (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
            }
            Err(failure) => (StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{failure}\n")),
        },
        (&Method::GET, _) => {
            (StatusCode::NOT_FOUND, PLAIN, "the counters are at /metrics\n".to_owned())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET\n".to_owned()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_requests_answered() {
        let status = |method, path| respond(&method, path).status().as_u16();
        assert_eq!(status(Method::POST, "/metrics"), 405);
        assert_eq!(status(Method::GET, "/"), 404);
        assert_eq!(status(Method::GET, "/metrics"), 200);
    }
}
