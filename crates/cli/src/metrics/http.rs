//! A minimal HTTP/1 server for one document.
//!
//! Each connection gets one response and is closed. Receiving the request and sending the response may each take
//! [`CLIENT_TIMEOUT`]; a request may have [`MAX_REQUEST`] bytes; [`MAX_CLIENTS`] are served at once, others wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::format::{OPEN_METRICS, PROMETHEUS, to_prometheus, wants_open_metrics};

/// Serves `document`, in OpenMetrics, at `/metrics` until dropped; in the older format unless a request asks for OpenMetrics.
pub(super) async fn serve<F, D>(listener: TcpListener, document: F)
where
    F: Fn() -> D + Clone + Send + Sync + 'static,
    D: Future<Output = anyhow::Result<String>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(MAX_CLIENTS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let Ok((client, _)) = listener.accept().await else {
            // Most likely out of file descriptors: wait until clients close theirs.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let document = document.clone();
        tokio::spawn(async move {
            answer(client, document).await;
            drop(slot);
        });
    }
}

async fn answer<F, D>(mut client: TcpStream, document: F)
where
    F: Fn() -> D,
    D: Future<Output = anyhow::Result<String>>,
{
    let request = timeout(CLIENT_TIMEOUT, read_request(&mut client)).await;
    let (head_only, (status, kind, body)) = match request {
        Err(_) => (false, error("408 Request Timeout", "expected a request, got none in time")),
        Ok(Err(refusal)) => (false, refusal),
        Ok(Ok(request)) => (request.head_only, respond(&request, document).await),
    };
    let length = body.len();
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\nVary: Accept\r\n\r\n"
    );
    if !head_only {
        text += &body;
    }
    // A client that disconnects or reads too slowly does not get the rest.
    let _ = timeout(CLIENT_TIMEOUT, async {
        client.write_all(text.as_bytes()).await?;
        client.shutdown().await?;
        // Closing with unread bytes would reset the connection before the client has read the response.
        let mut rest = [0; 4096];
        while client.read(&mut rest).await? > 0 {}
        Ok::<_, std::io::Error>(())
    })
    .await;
}

/// Status, content type, body.
type Response = (&'static str, &'static str, String);

struct Request {
    head_only: bool,
    path: String,
    open_metrics: bool,
}

async fn read_request(client: &mut (impl AsyncRead + Unpin)) -> Result<Request, Response> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.unwrap_or_default();
                let path = path.split('?').next().unwrap_or_default().to_owned();
                let accept = request.headers.iter().find(|field| field.name.eq_ignore_ascii_case("Accept"));
                let accept = accept.map(|field| String::from_utf8_lossy(field.value));
                let open_metrics = accept.is_some_and(|accept| wants_open_metrics(&accept));
                return match request.method {
                    Some("GET") => Ok(Request { head_only: false, path, open_metrics }),
                    Some("HEAD") => Ok(Request { head_only: true, path, open_metrics }),
                    _ => Err(error("405 Method Not Allowed", "expected GET or HEAD")),
                };
            }
            Ok(httparse::Status::Partial) if bytes.len() < MAX_REQUEST => {}
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(error("431 Request Header Fields Too Large", "expected a shorter request"));
            }
            Err(_) => return Err(error("400 Bad Request", "expected an HTTP request")),
        }
        let room = (MAX_REQUEST - bytes.len()) as u64;
        match (&mut *client).take(room).read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return Err(error("400 Bad Request", "expected a whole HTTP request")),
            Ok(_) => {}
        }
    }
}

async fn respond<D>(request: &Request, document: impl Fn() -> D) -> Response
where
    D: Future<Output = anyhow::Result<String>>,
{
    match request.path.as_str() {
        "/metrics" => match document().await {
            Ok(text) if request.open_metrics => ("200 OK", OPEN_METRICS, text),
            Ok(text) => ("200 OK", PROMETHEUS, to_prometheus(&text)),
            Err(reason) => error("500 Internal Server Error", &format!("{reason:#}")),
        },
        "/" => ("200 OK", PLAIN, "plait: the metrics are at /metrics\n".into()),
        _ => error("404 Not Found", "expected /metrics"),
    }
}

fn error(status: &'static str, text: &str) -> Response {
    (status, PLAIN, format!("{text}\n"))
}

const PLAIN: &str = "text/plain; charset=utf-8";
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_REQUEST: usize = 8 << 10;
const MAX_CLIENTS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<(bool, String), &'static str> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut client = bytes;
        let request = runtime.block_on(read_request(&mut client));
        request.map(|request| (request.head_only, request.path)).map_err(|(status, ..)| status)
    }

    #[test]
    fn accepts_get_and_head_and_rejects_anything_else() {
        let get = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(parse(get), Ok((false, "/metrics".into())));
        assert_eq!(parse(b"HEAD / HTTP/1.0\r\n\r\n"), Ok((true, "/".into())));
        assert_eq!(parse(b"POST / HTTP/1.1\r\n\r\n"), Err("405 Method Not Allowed"));
        assert_eq!(parse(b"\x16\x03\x01\x02\x00"), Err("400 Bad Request"));
        assert_eq!(parse(b"GET / HT"), Err("400 Bad Request"));
        let long = [b"GET / HTTP/1.1\r\nA: ".as_slice(), &[b'a'; 100_000]].concat();
        assert_eq!(parse(&long), Err("431 Request Header Fields Too Large"));
        let many = [b"GET / HTTP/1.1\r\n".as_slice(), &b"A: b\r\n".repeat(100), b"\r\n"].concat();
        assert_eq!(parse(&many), Err("431 Request Header Fields Too Large"));
    }
}
