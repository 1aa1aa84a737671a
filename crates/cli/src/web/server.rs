//! The page over HTTP: its files, a stream of updates, and captures.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::{fs, io};

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Path, Query, Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use futures_util::stream::{self, Stream, StreamExt as _};
use plait_trace::{STYLE, TEXT_SCRIPT, UPLOT_SCRIPT, UPLOT_STYLE};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::access::{Access, Client, Permission, Refusal};
use super::captures::Captures;
use super::sampler::{Sampler, Subscription};

/// Pages that may be open at once.
const MAX_PAGES: usize = 32;

/// What all requests share.
struct Server {
    access: Access,
    sampler: Sampler,
    captures: Arc<Captures>,
    pages: Arc<Semaphore>,
}

/// Serves until dropped.
pub(super) async fn serve(
    listener: TcpListener,
    access: Access,
    sampler: Sampler,
    captures: Arc<Captures>,
) -> io::Result<()> {
    let pages = Arc::new(Semaphore::new(MAX_PAGES));
    let server = Arc::new(Server { access, sampler, captures, pages });
    let data = Router::new()
        .route("/updates", get(updates))
        .route("/captures", post(start_capture))
        .route("/captures/end", post(end_capture))
        .route("/captures/{number}", get(report))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&server), check));
    let app = Router::new()
        .route("/", get(|| page_file("text/html; charset=utf-8", include_str!("page/live.html"))))
        .route("/live.css", get(|| page_file(CSS, &STYLES)))
        .route("/live.js", get(|| page_file(JS, include_str!("page/live.js"))))
        .route("/text.js", get(|| page_file(JS, TEXT_SCRIPT)))
        .route("/uplot.js", get(|| page_file(JS, UPLOT_SCRIPT)))
        .merge(data)
        .with_state(server);
    axum::serve(listener, app.into_make_service_with_connect_info::<Client>()).await
}

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// The styles of uPlot, of reports, and of this page.
static STYLES: LazyLock<String> =
    LazyLock::new(|| [UPLOT_STYLE, STYLE, include_str!("page/live.css")].concat());

impl Connected<IncomingStream<'_, TcpListener>> for Client {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Client {
        let remote = *stream.remote_addr();
        // Without the local address, whose socket it is remains unknown.
        let local = stream.io().local_addr().unwrap_or(remote);
        Client { remote, local }
    }
}

/// Refuses requests that [`Access`] does not allow.
async fn check(
    State(server): State<Arc<Server>>,
    ConnectInfo(client): ConnectInfo<Client>,
    Query(query): Query<TokenQuery>,
    request: Request,
    next: Next,
) -> Response {
    match server.allows(client, query.token.as_deref(), request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => (StatusCode::FORBIDDEN, format!("{refusal}\n")).into_response(),
    }
}

impl Server {
    /// The token is in a header, or in the query if a browser opens a report in a tab.
    fn allows(
        &self,
        client: Client,
        in_query: Option<&str>,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = header(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        let permission = if method == Method::GET { Permission::Read } else { Permission::Change };
        let token = bearer.or(in_query.filter(|_| permission == Permission::Read));
        self.access.check(client, header(HOST), token, permission)
    }
}

#[derive(Deserialize)]
struct TokenQuery {
    token: Option<String>,
}

async fn page_file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let policy = "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'";
    (
        headers([
            (CONTENT_TYPE, kind),
            (CONTENT_SECURITY_POLICY, policy),
            (CACHE_CONTROL, "no-cache"),
            (REFERRER_POLICY, "no-referrer"),
        ]),
        text,
    )
}

fn headers<const N: usize>(fields: [(HeaderName, &'static str); N]) -> [(HeaderName, HeaderValue); N] {
    fields.map(|(name, value)| (name, HeaderValue::from_static(value)))
}

/// What happened before, as event `past`, then each update as event `update`. The stream ends if the page does not keep up: opened
/// again, it gets what it has missed as `past`.
async fn updates(State(server): State<Arc<Server>>) -> Response {
    let Ok(place) = Arc::clone(&server.pages).try_acquire_owned() else {
        let text = format!("expected at most {MAX_PAGES} open pages, got one more: close others\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    match server.sampler.subscribe() {
        Ok(Subscription { past, last, updates }) => {
            let past = Event::default().event("past").data(past);
            let last = last.map(|update| update_event(&update));
            // The place is free when the stream is dropped.
            let updates = stream::unfold((updates, place), |(mut updates, place)| async move {
                let update = updates.recv().await.ok()?;
                Some((update_event(&update), (updates, place)))
            });
            sse(stream::iter([past]).chain(stream::iter(last)).chain(updates)).into_response()
        }
        Err(error) => failure(&error),
    }
}

fn update_event(update: &str) -> Event {
    Event::default().event("update").data(update)
}

fn sse(events: impl Stream<Item = Event> + Send + 'static) -> impl IntoResponse {
    Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default())
}

async fn start_capture(State(server): State<Arc<Server>>) -> Response {
    match server.captures.start().await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => (StatusCode::CONFLICT, format!("{error:#}\n")).into_response(),
    }
}

/// Returns when the report is written.
async fn end_capture(State(server): State<Arc<Server>>) -> Response {
    server.captures.stop().await;
    StatusCode::NO_CONTENT.into_response()
}

/// The report of a capture, which has its own content security policy.
async fn report(State(server): State<Arc<Server>>, Path(number): Path<u32>) -> Response {
    let Some(file) = server.captures.report_file(number) else {
        return (StatusCode::NOT_FOUND, "expected the number of a capture on the page\n").into_response();
    };
    match tokio::task::spawn_blocking(|| fs::read(file)).await.map_err(io::Error::from).flatten() {
        Ok(html) => (headers([(CONTENT_TYPE, "text/html; charset=utf-8")]), html).into_response(),
        Err(error) => failure(&error.into()),
    }
}

fn failure(error: &anyhow::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")).into_response()
}
