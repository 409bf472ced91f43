#![allow(missing_docs)]
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;
pub struct Client { base: String, token: Option<String>, agent: ureq::Agent }
pub type HttpError = String;
impl Client {
    pub fn new(base: &str, token: Option<String>) -> Client { let agent = ureq::Agent::new_with_config(ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build()); Client { base: base.into(), token, agent } }
    fn done<T: DeserializeOwned>(r: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<T, String> { let mut r = r.map_err(|e| e.to_string())?; let s = r.status(); let t = r.body_mut().read_to_string().map_err(|e| e.to_string())?; if s != 200 { return Err(format!("{s}: {t}")); } serde_json::from_str(&t).map_err(|e| e.to_string()) }
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize, timeout: Duration) -> Result<T, HttpError> {
        let mut q = self.agent.post(format!("{}{path}", self.base)).config().timeout_global(Some(timeout)).build();
        if let Some(t) = &self.token { q = q.header("Authorization", format!("Bearer {t}")); }
        Self::done(q.header("Content-Type", "application/json").send(serde_json::to_vec(body).unwrap()))
    }
    pub fn get<T: DeserializeOwned>(&self, path: &str, timeout: Duration) -> Result<T, HttpError> {
        let mut q = self.agent.get(format!("{}{path}", self.base)).config().timeout_global(Some(timeout)).build();
        if let Some(t) = &self.token { q = q.header("Authorization", format!("Bearer {t}")); }
        Self::done(q.call())
    }
}
