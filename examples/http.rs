//! HTTP/1.1 over RDMA: unmodified hyper as server and client over [`ByteStream`], which implements
//! tokio's `AsyncRead` and `AsyncWrite`. All requests use one connection.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, client, server};
use hyper_util::rt::TokioIo;
use std::error::Error;
use uiw::{ByteStream, Connection, ConnectionConfig, Device, Listener};

type AnyError = Box<dyn Error + Send + Sync>;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/large") => (StatusCode::OK, Bytes::from(vec![b'x'; 1_000_000])),
        (&Method::POST, "/echo") => {
            (StatusCode::OK, request.into_body().collect().await?.to_bytes())
        }
        _ => (StatusCode::NOT_FOUND, Bytes::new()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    Ok(response)
}

async fn serve(connection: Connection) -> Result<(), AnyError> {
    let stream = TokioIo::new(ByteStream::new(connection)?);
    Ok(server::conn::http1::Builder::new().serve_connection(stream, service_fn(answer)).await?)
}

async fn accept(listener: Listener) {
    while let Ok(connection) = listener.accept().await {
        tokio::spawn(async move {
            if let Err(error) = serve(connection).await {
                eprintln!("a client: {error}");
            }
        });
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let device = Device::open()?;
    let _driver = uiw::with_tokio::drive(&device)?;
    let pd = device.alloc_pd()?;
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
    let address = listener.local_addr();
    tokio::spawn(accept(listener));

    let connection = Connection::connect(&pd, address, &ConnectionConfig::default()).await?;
    let stream = TokioIo::new(ByteStream::new(connection)?);
    let (mut requests, stream) = client::conn::http1::handshake(stream).await?;
    let stream = tokio::spawn(stream);
    for (method, path, body) in [
        (Method::GET, "/large", ""),
        (Method::POST, "/echo", "good day"),
        (Method::GET, "/elsewhere", ""),
    ] {
        let request =
            Request::builder().method(&method).uri(path).header("host", address.to_string());
        let response = requests.send_request(request.body(Full::new(Bytes::from(body)))?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        match std::str::from_utf8(&body) {
            Ok(text @ "good day") => println!("{method} {path}: {status}, {text:?}"),
            _ => println!("{method} {path}: {status}, {} bytes", body.len()),
        }
    }
    // hyper shuts down the client's direction of the stream, and then the server shuts down its
    // own.
    drop(requests);
    stream.await??;
    Ok(())
}
