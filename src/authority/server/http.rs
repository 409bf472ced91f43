//! The endpoints of docs/openapi.yaml.

use super::driver::{Handle, Unavailable};
use super::tokens::{Denied, Tokens};
use crate::authority::book::{Book, Now, Refusal, RefusalKind};
use crate::lease::id::{DomainId, NodeId};
use crate::protocol::{ErrorAnswer, MAX_BODY, MAX_LIST};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How long a request's body may take to arrive, however slowly it drips.
const BODY_TIME: Duration = Duration::from_secs(10);
/// How long a watch is held.
const WATCH_TIME: Duration = Duration::from_secs(30);
/// The longest a wait is held.
const WAIT_TIME: Duration = Duration::from_secs(60);

struct App {
    book: Handle,
    tokens: Tokens,
}

type Shared = State<Arc<App>>;
type Answer = Result<Response, Failure>;

/// The routes over a running book.
pub fn router(book: Handle, tokens: Tokens) -> Router {
    Router::new()
        .route("/v1/nodes/{node}/renew", post(renew))
        .route("/v1/nodes/{node}/watch", get(watch))
        .route("/v1/nodes", get(nodes))
        .route("/v1/nodes/{node}", get(node))
        .route("/v1/nodes/{node}/{action}", post(node_action))
        .route("/v1/nodes/{node}/wait", get(node_wait))
        .route("/v1/leases", get(leases))
        .route("/v1/leases/{domain}", get(lease).delete(forget))
        .route("/v1/leases/{domain}/grant", post(grant))
        .route("/v1/leases/{domain}/move", post(move_to))
        .route("/v1/leases/{domain}/{action}", post(lease_action))
        .route("/v1/leases/{domain}/wait", get(lease_wait))
        .route("/v1/health", get(async || json(&serde_json::json!({ "ok": true }))))
        .fallback(async || {
            Failure(StatusCode::NOT_FOUND, "there is no such endpoint; see docs/openapi.yaml".to_owned())
        })
        .method_not_allowed_fallback(async || {
            Failure(
                StatusCode::METHOD_NOT_ALLOWED,
                "this endpoint takes another method; see docs/openapi.yaml".to_owned(),
            )
        })
        .with_state(Arc::new(App { book, tokens }))
}

// --- node side ------------------------------------------------------------------------------------------------

async fn renew(State(app): Shared, Named(node): Named<NodeId>, headers: HeaderMap, body: Body) -> Answer {
    app.node(&node, &headers)?;
    let question = read(body).await?;
    answer(app.book.ask_in_doubt(move |book, now| book.renew(now, &node, question)).await)
}

#[derive(Deserialize)]
struct WatchQuery {
    seen: Option<u64>,
}

async fn watch(State(app): Shared, Named(node): Named<NodeId>, headers: HeaderMap, query: Asked<WatchQuery>) -> Answer {
    app.node(&node, &headers)?;
    let seen = query.0.seen;
    let waited = app.book.wait(WATCH_TIME, move |book, _, last| {
        let watch = book.watch(&node);
        (last || Some(watch.version) != seen).then_some(watch)
    });
    Ok(json(&waited.await?))
}

// --- controller side ------------------------------------------------------------------------------------------

#[derive(Deserialize)]
struct ListQuery {
    after: Option<String>,
    limit: Option<usize>,
    name: Option<String>,
}

impl ListQuery {
    fn after<T: FromStr<Err: ToString>>(&self) -> Result<Option<T>, Failure> {
        let parsed = self.after.as_deref().map(str::parse).transpose();
        parsed.map_err(|e: T::Err| Failure(StatusCode::BAD_REQUEST, e.to_string()))
    }

    fn limit(&self) -> usize {
        self.limit.unwrap_or(1000).clamp(1, MAX_LIST)
    }
}

async fn leases(State(app): Shared, headers: HeaderMap, query: Asked<ListQuery>) -> Answer {
    app.controller(&headers)?;
    let (after, limit, name) = (query.0.after()?, query.0.limit(), query.0.name);
    let list = app.view(move |book, now| book.leases(now, after, limit, name.as_deref())).await?;
    Ok(json(&list))
}

async fn lease(State(app): Shared, Named(domain): Named<DomainId>, headers: HeaderMap) -> Answer {
    app.controller(&headers)?;
    answer(app.view(move |book, now| book.lease(now, domain)).await)
}

async fn grant(State(app): Shared, Named(domain): Named<DomainId>, headers: HeaderMap, body: Body) -> Answer {
    app.controller(&headers)?;
    let request = read(body).await?;
    answer(app.book.ask(move |book, now| book.grant(now, domain, &request)).await)
}

async fn move_to(State(app): Shared, Named(domain): Named<DomainId>, headers: HeaderMap, body: Body) -> Answer {
    app.controller(&headers)?;
    let request: crate::protocol::MoveRequest = read(body).await?;
    answer(app.book.ask(move |book, now| book.move_to(now, domain, &request.to)).await)
}

async fn lease_action(
    State(app): Shared,
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
    headers: HeaderMap,
) -> Answer {
    app.controller(&headers)?;
    let (domain, action): (DomainId, String) = both(path)?;
    match action.as_str() {
        "revoke" => answer(app.book.ask(move |book, now| book.revoke(now, domain)).await),
        "moved" => answer(app.book.ask(move |book, now| book.moved(now, domain)).await),
        "abort" => answer(app.book.ask(move |book, now| book.abort(now, domain)).await),
        _ => Err(Failure(StatusCode::NOT_FOUND, format!("a lease has no action '{}'", action.escape_debug()))),
    }
}

async fn forget(State(app): Shared, Named(domain): Named<DomainId>, headers: HeaderMap) -> Answer {
    app.controller(&headers)?;
    match app.book.ask(move |book, now| book.forget(now, domain)).await?? {
        Some(view) => Ok((StatusCode::ACCEPTED, json(&view)).into_response()),
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

#[derive(Deserialize)]
struct WaitQuery {
    timeout_ms: Option<u64>,
}

impl WaitQuery {
    fn span(&self) -> Duration {
        self.timeout_ms.map_or(WAIT_TIME, Duration::from_millis).min(WAIT_TIME)
    }
}

async fn lease_wait(
    State(app): Shared,
    Named(domain): Named<DomainId>,
    headers: HeaderMap,
    query: Asked<WaitQuery>,
) -> Answer {
    app.controller(&headers)?;
    let waited = app.book.wait(query.0.span(), move |book, now, last| match book.wait_lease(now, domain) {
        Ok(wait) if !wait.safe && !last => None,
        said => Some(said),
    });
    answer(waited.await)
}

async fn nodes(State(app): Shared, headers: HeaderMap, query: Asked<ListQuery>) -> Answer {
    app.controller(&headers)?;
    let (after, limit) = (query.0.after::<NodeId>()?, query.0.limit());
    Ok(json(&app.view(move |book, now| book.nodes(now, after.as_ref(), limit)).await?))
}

async fn node(State(app): Shared, Named(node): Named<NodeId>, headers: HeaderMap) -> Answer {
    app.controller(&headers)?;
    answer(app.view(move |book, now| book.node(now, &node)).await)
}

async fn node_action(
    State(app): Shared,
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
    headers: HeaderMap,
) -> Answer {
    app.controller(&headers)?;
    let (node, action): (NodeId, String) = both(path)?;
    match action.as_str() {
        "fence" => answer(app.book.ask(move |book, now| book.fence(now, &node)).await),
        "unfence" => answer(app.book.ask(move |book, now| book.unfence(now, &node)).await),
        "accept" => answer(app.book.ask(move |book, now| book.accept(now, &node)).await),
        _ => Err(Failure(StatusCode::NOT_FOUND, format!("a node has no action '{}'", action.escape_debug()))),
    }
}

async fn node_wait(
    State(app): Shared,
    Named(node): Named<NodeId>,
    headers: HeaderMap,
    query: Asked<WaitQuery>,
) -> Answer {
    app.controller(&headers)?;
    let waited = app.book.wait(query.0.span(), move |book, now, last| {
        // A whole node's list is made only to be sent.
        (last || book.is_clear(&node)).then(|| book.wait_node(now, &node))
    });
    answer(waited.await)
}

// --- the plumbing ---------------------------------------------------------------------------------------------

impl App {
    async fn view<T: Send + 'static>(
        &self,
        view: impl FnOnce(&mut Book, Now<'_>) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let read = move |book: &mut Book, now: Now<'_>| {
            let answer = view(book, now);
            book.read(answer)
        };
        self.book.ask_in_doubt(read).await
    }

    fn node(&self, node: &NodeId, headers: &HeaderMap) -> Result<(), Failure> {
        self.tokens.node(node, bearer(headers)).map_err(|denied| match denied {
            Denied::Unknown => {
                Failure(StatusCode::UNAUTHORIZED, format!("this request carries no token of node {node}"))
            }
            Denied::NotThisNode => Failure(
                StatusCode::FORBIDDEN,
                format!("this token is another node's; it may not speak for node {node}"),
            ),
        })
    }

    fn controller(&self, headers: &HeaderMap) -> Result<(), Failure> {
        self.tokens.controller(bearer(headers)).map_err(|_| {
            Failure(StatusCode::UNAUTHORIZED, "this request does not carry the controllers' token".to_owned())
        })
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Failure> {
    let late = |_| {
        let text = format!("the request's body took more than {} s to arrive", BODY_TIME.as_secs());
        Failure(StatusCode::REQUEST_TIMEOUT, text)
    };
    let bytes = tokio::time::timeout(BODY_TIME, to_bytes(body, MAX_BODY)).await.map_err(late)?.map_err(|e| {
        let over = std::error::Error::source(&e).is_some_and(|source| source.to_string().contains("limit"));
        let status = if over { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
        Failure(status, format!("cannot read the request's body (at most {MAX_BODY} bytes): {e}"))
    })?;
    serde_json::from_slice(&bytes).map_err(|e| {
        Failure(StatusCode::BAD_REQUEST, format!("the request's body is not what this endpoint takes: {e}"))
    })
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => ([(CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(e) => Failure(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the answer: {e}")).into_response(),
    }
}

fn answer<T: Serialize>(said: Result<Result<T, Refusal>, Unavailable>) -> Answer {
    Ok(json(&said??))
}

fn both<T: FromStr<Err: ToString>>(
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
) -> Result<(T, String), Failure> {
    let Path((id, action)) = path.map_err(|e| Failure(StatusCode::BAD_REQUEST, e.to_string()))?;
    Ok((id.parse().map_err(|e: T::Err| Failure(StatusCode::BAD_REQUEST, e.to_string()))?, action))
}

/// A status and its sentence.
struct Failure(StatusCode, String);

impl From<Unavailable> for Failure {
    fn from(Unavailable(text): Unavailable) -> Failure {
        Failure(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let status = match refusal.kind {
            RefusalKind::Bad => StatusCode::BAD_REQUEST,
            RefusalKind::Unknown => StatusCode::NOT_FOUND,
            RefusalKind::Conflict => StatusCode::CONFLICT,
            RefusalKind::InDoubt => StatusCode::SERVICE_UNAVAILABLE,
            RefusalKind::Full => StatusCode::INSUFFICIENT_STORAGE,
        };
        Failure(status, refusal.text)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.0, json(&ErrorAnswer { error: self.1 })).into_response();
        if matches!(self.0, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::REQUEST_TIMEOUT) {
            // A stranger keeps no connection.
            response.headers_mut().insert(CONNECTION, axum::http::HeaderValue::from_static("close"));
        }
        response
    }
}

/// The one id in the path.
struct Named<T>(T);

impl<S: Send + Sync, T: FromStr<Err: ToString>> FromRequestParts<S> for Named<T> {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let bad = |text: String| Failure(StatusCode::BAD_REQUEST, text);
        let Path(text) = Path::<String>::from_request_parts(parts, state).await.map_err(|e| bad(e.to_string()))?;
        text.parse().map(Named).map_err(|e: T::Err| bad(e.to_string()))
    }
}

/// The query, with its errors as sentences.
struct Asked<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Asked(query)).map_err(|e| Failure(StatusCode::BAD_REQUEST, e.body_text()))
    }
}
