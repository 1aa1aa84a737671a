//! HTTP CONNECT (RFC 9110, section 9.3.6), with Basic proxy authentication (RFC 7617).

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::credentials::Credentials;
use super::target::{ProxyError, Target};
use crate::outbound::open::OpenError;

/// The longest request head.
const MAX_HEAD_LEN: usize = 16 << 10;

const MAX_HEADERS: usize = 64;

/// A CONNECT request, not yet answered.
pub(super) struct Request {
    pub(super) target: Target,
    near: TcpStream,
}

impl Request {
    /// Reads the head and no byte beyond it: what follows belongs to the connection.
    pub(super) async fn read(
        mut near: TcpStream,
        credentials: Option<&Credentials>,
    ) -> Result<Request, ProxyError> {
        let head = match read_head(&mut near).await? {
            Some(head) => head,
            None => {
                return refuse(near, "431 Request Header Fields Too Large", "the request head is too long")
                    .await;
            }
        };
        match parse(&head, credentials) {
            Ok(target) => Ok(Request { target, near }),
            Err(RequestError::Credentials) => {
                let status = "407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"plait\"";
                answer(&mut near, status, "").await?;
                Err(ProxyError::Credentials)
            }
            Err(RequestError::Method) => {
                refuse(near, "405 Method Not Allowed\r\nAllow: CONNECT", "expected CONNECT").await
            }
            Err(RequestError::Malformed(why)) => refuse(near, "400 Bad Request", why).await,
        }
    }

    pub(super) async fn grant(mut self) -> Result<TcpStream, ProxyError> {
        self.near.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
        Ok(self.near)
    }

    pub(super) async fn deny(mut self, why: &OpenError) -> Result<(), ProxyError> {
        let status = match why {
            OpenError::Connect(error) if error.kind() == io::ErrorKind::TimedOut => "504 Gateway Timeout",
            OpenError::Local(_) => "403 Forbidden",
            _ => "502 Bad Gateway",
        };
        Ok(answer(&mut self.near, status, &why.to_string()).await?)
    }
}

/// The head up to and with its empty line; `None` when it is longer than [`MAX_HEAD_LEN`].
async fn read_head(near: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while head.len() < MAX_HEAD_LEN {
        let peeked = near.peek(&mut chunk).await?;
        if peeked == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = head.len();
        head.extend_from_slice(&chunk[..peeked]);
        let search_from = before.saturating_sub(3);
        let end = head[search_from..].windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.map(|position| search_from + position + 4);
        near.read_exact(&mut chunk[..end.map_or(peeked, |end| end - before)]).await?;
        if let Some(end) = end {
            head.truncate(end);
            return Ok(Some(head));
        }
    }
    Ok(None)
}

#[derive(Debug, PartialEq, Eq)]
enum RequestError {
    Malformed(&'static str),
    Method,
    Credentials,
}

fn parse(head: &[u8], credentials: Option<&Credentials>) -> Result<Target, RequestError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        _ => return Err(RequestError::Malformed("expected an HTTP/1 request")),
    }
    if request.method != Some("CONNECT") {
        return Err(RequestError::Method);
    }
    if let Some(credentials) = credentials {
        let given =
            request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("proxy-authorization"));
        if !given.is_some_and(|header| is_authorized(header.value, credentials)) {
            return Err(RequestError::Credentials);
        }
    }
    target(request.path.unwrap_or_default()).ok_or(RequestError::Malformed("expected CONNECT HOST:PORT"))
}

fn target(authority: &str) -> Option<Target> {
    if let Ok(address) = authority.parse() {
        return Some(Target::Address(address));
    }
    let (name, port) = authority.rsplit_once(':')?;
    let is_name =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !b":[]/@".contains(&byte));
    is_name.then_some(Target::Name(name.to_owned(), port.parse().ok()?))
}

fn is_authorized(value: &[u8], credentials: &Credentials) -> bool {
    let decoded = std::str::from_utf8(value)
        .ok()
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))
        .and_then(|(_, token)| BASE64.decode(token.trim()).ok())
        .map(zeroize::Zeroizing::new);
    let text = decoded.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
    let pair = text.and_then(|text| text.split_once(':'));
    pair.is_some_and(|(user, password)| credentials.verify(user, password))
}

async fn answer(near: &mut TcpStream, status: &str, why: &str) -> io::Result<()> {
    let body = if why.is_empty() { String::new() } else { format!("plait: {why}\n") };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    near.write_all(text.as_bytes()).await
}

async fn refuse(mut near: TcpStream, status: &str, why: &str) -> Result<Request, ProxyError> {
    answer(&mut near, status, why).await?;
    Err(ProxyError::Request(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str) -> Result<Target, RequestError> {
        parse(head.as_bytes(), None)
    }

    #[test]
    fn destination_is_an_address_or_a_name() {
        let name = Target::Name("example.org".into(), 443);
        assert_eq!(parsed("CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n"), Ok(name));
        let six = Target::Address("[2001:db8::1]:80".parse().unwrap());
        assert_eq!(parsed("CONNECT [2001:db8::1]:80 HTTP/1.1\r\n\r\n"), Ok(six));
    }

    #[test]
    fn other_requests_are_rejected() {
        assert_eq!(parsed("GET / HTTP/1.1\r\n\r\n"), Err(RequestError::Method));
        for authority in ["example.org", ":80", "a:b", "a:99999", "[::1:80", "user@host:80", "a/b:80"] {
            let head = format!("CONNECT {authority} HTTP/1.1\r\n\r\n");
            assert!(matches!(parsed(&head), Err(RequestError::Malformed(_))), "{authority}");
        }
        assert!(matches!(parsed("\x01\x02\r\n\r\n"), Err(RequestError::Malformed(_))));
    }

    proptest::proptest! {
        #[test]
        fn no_request_head_panics(head: Vec<u8>) {
            let _ = parse(&head, None);
        }
    }
}
