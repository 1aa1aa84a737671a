//! HTTP proxying: CONNECT (RFC 9110, section 9.3.6), and requests in absolute form (RFC 9112, section 3.2.2) for `http` URIs,
//! with Basic proxy authentication (RFC 7617).
//!
//! A client's connection carries one request in absolute form: its head is rewritten for the origin server, which is asked
//! to close the connection after its response. What follows in both directions is not interpreted.

use std::io;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;

use super::credentials::Credentials;
use super::proxy_error::ProxyError;
use crate::outbound::open::{OpenError, Opened};
use crate::outbound::target::Target;
use crate::socket::{close_on_drop, reset_on_drop};
use crate::stream::Stream;

/// The longest request head.
const MAX_HEAD_LEN: usize = 16 << 10;

const MAX_HEADERS: usize = 64;

/// The port of `http` URIs without one.
const DEFAULT_PORT: u16 = 80;

/// A request, not yet answered.
pub(super) struct Request {
    pub(super) target: Target,
    /// In absolute form: the head for the origin server. `None`: CONNECT.
    head: Option<Vec<u8>>,
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
            Ok((target, head)) => Ok(Request { target, head, near }),
            Err(RequestError::Credentials) => {
                let status = "407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"plait\"";
                answer(&mut near, status, "").await?;
                Err(ProxyError::Credentials)
            }
            Err(RequestError::Malformed(why)) => refuse(near, "400 Bad Request", why).await,
        }
    }

    /// Returns the connection to carry, and what forwards a request in absolute form to it meanwhile.
    pub(super) async fn grant(
        mut self,
        opened: &Opened,
    ) -> Result<(TcpStream, Option<Forwarding>), ProxyError> {
        let Some(head) = self.head else {
            self.near.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
            return Ok((self.near, None));
        };
        let (stream, near) = Stream::pair(opened.peer(), opened.protection(), None).await?;
        Ok((near, Some(Forwarding { client: self.near, head, origin: stream.into_socket() })))
    }

    pub(super) async fn deny(mut self, why: &OpenError) -> Result<(), ProxyError> {
        let status = match why {
            OpenError::Connect(error) if error.kind() == io::ErrorKind::TimedOut => "504 Gateway Timeout",
            OpenError::Connect(error) if error.kind() == io::ErrorKind::PermissionDenied => "403 Forbidden",
            OpenError::Connect(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                "503 Service Unavailable"
            }
            OpenError::Local(_) => "403 Forbidden",
            _ => "502 Bad Gateway",
        };
        Ok(answer(&mut self.near, status, &why.to_string()).await?)
    }
}

/// A request in absolute form, on its way to the origin server.
pub(super) struct Forwarding {
    client: TcpStream,
    head: Vec<u8>,
    origin: TcpStream,
}

impl Forwarding {
    /// Carries the request and its response, to the end of both directions. If one is reset, so is the other.
    pub(super) async fn run(mut self) -> io::Result<()> {
        reset_on_drop(&self.client)?;
        reset_on_drop(&self.origin)?;
        self.origin.write_all(&self.head).await?;
        copy_bidirectional(&mut self.client, &mut self.origin).await?;
        close_on_drop(&self.client)?;
        close_on_drop(&self.origin)
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
    Credentials,
}

/// The destination, and for a request in absolute form the head for the origin server.
fn parse(head: &[u8], credentials: Option<&Credentials>) -> Result<(Target, Option<Vec<u8>>), RequestError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        _ => return Err(RequestError::Malformed("expected an HTTP/1 request")),
    }
    if let Some(credentials) = credentials {
        let given =
            request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("proxy-authorization"));
        if !given.is_some_and(|header| is_authorized(header.value, credentials)) {
            return Err(RequestError::Credentials);
        }
    }
    let uri = request.path.unwrap_or_default();
    if request.method == Some("CONNECT") {
        let target = target(uri).ok_or(RequestError::Malformed("expected CONNECT HOST:PORT"))?;
        return Ok((target, None));
    }
    let expected = RequestError::Malformed("expected CONNECT HOST:PORT, or a request for http://HOST/...");
    let (authority, path) = split_uri(uri).ok_or(expected)?;
    let with_port = format!("{authority}:{DEFAULT_PORT}");
    let named = target(authority).or_else(|| target(&with_port));
    let named = named.ok_or(RequestError::Malformed("expected http://HOST/... or http://HOST:PORT/..."))?;
    Ok((named, Some(origin_head(&request, authority, path))))
}

/// The authority of an `http` URI, and its path and query.
fn split_uri(uri: &str) -> Option<(&str, &str)> {
    const SCHEME: &str = "http://";
    let rest = uri.get(SCHEME.len()..)?;
    uri[..SCHEME.len()].eq_ignore_ascii_case(SCHEME).then(|| {
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        (authority, path.split('#').next().unwrap_or_default())
    })
}

/// The head in origin form, without what concerns only the connection to the proxy (RFC 9110, section 7.6.1).
fn origin_head(request: &httparse::Request<'_, '_>, authority: &str, path: &str) -> Vec<u8> {
    let values = |name: &'static str| {
        let named = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.filter_map(|header| std::str::from_utf8(header.value).ok())
    };
    let options: Vec<&str> =
        values("connection").chain(values("proxy-connection")).flat_map(|value| value.split(',')).collect();
    let is_option = |name: &str| options.iter().any(|option| option.trim().eq_ignore_ascii_case(name));
    // The protocol that the client upgrades to ends with the connection.
    let upgrades = is_option("upgrade");
    let is_of_hop = |name: &str| {
        let fixed = ["connection", "host", "keep-alive", "proxy-authorization", "proxy-connection"];
        fixed.iter().any(|other| name.eq_ignore_ascii_case(other))
            || (is_option(name) && !name.eq_ignore_ascii_case("upgrade"))
    };
    let method = request.method.unwrap_or_default();
    let slash = if path.starts_with('/') { "" } else { "/" };
    let version = request.version.unwrap_or(1);
    let connection = if upgrades { "upgrade" } else { "close" };
    let mut head = Vec::new();
    // Into memory, which does not fail.
    let _ = write!(
        head,
        "{method} {slash}{path} HTTP/1.{version}\r\nHost: {authority}\r\nConnection: {connection}\r\n"
    );
    for header in request.headers.iter().filter(|header| !is_of_hop(header.name)) {
        let _ = write!(head, "{}: ", header.name);
        head.extend_from_slice(header.value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
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
        parse(head.as_bytes(), None).map(|(target, _)| target)
    }

    fn forwarded(head: &str) -> (Target, String) {
        let (target, head) = parse(head.as_bytes(), None).expect("a request");
        (target, String::from_utf8(head.expect("absolute form")).expect("text"))
    }

    #[test]
    fn absolute_form_becomes_origin_form_without_the_fields_of_the_hop() {
        let (target, head) = forwarded(
            "GET http://example.org/a?b=c HTTP/1.1\r\nHost: other\r\nProxy-Connection: keep-alive\r\n\
             Proxy-Authorization: Basic eDp5\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nAccept: */*\r\n\r\n",
        );
        assert_eq!(target, Target::Name("example.org".into(), 80));
        assert_eq!(
            head,
            "GET /a?b=c HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\nAccept: */*\r\n\r\n"
        );
        let (target, head) =
            forwarded("POST HTTP://[2001:db8::1]:8080?q HTTP/1.0\r\nContent-Length: 1\r\n\r\n");
        assert_eq!(target, Target::Address("[2001:db8::1]:8080".parse().unwrap()));
        assert!(head.starts_with("POST /?q HTTP/1.0\r\nHost: [2001:db8::1]:8080\r\n"), "{head}");
        let (target, head) = forwarded(
            "GET http://[2001:db8::1]/#x HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        assert_eq!(target, Target::Address("[2001:db8::1]:80".parse().unwrap()));
        assert_eq!(
            head,
            "GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
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
        for uri in
            ["/", "*", "https://example.org/", "http://", "http://a@b/", "http://:80/", "ftp://a/", "http:é"]
        {
            let head = format!("GET {uri} HTTP/1.1\r\n\r\n");
            assert!(matches!(parsed(&head), Err(RequestError::Malformed(_))), "{uri}");
        }
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
