//! What the client sends, and the service that changes it while it runs (I-14, I-15).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mainstay_testservice::proto::client_configure_request::RpcType;
use mainstay_testservice::proto::xds_update_client_configure_service_server::XdsUpdateClientConfigureService;
use mainstay_testservice::proto::{ClientConfigureRequest, ClientConfigureResponse};
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::{Request, Response, Status};

use super::call::{Method, Plan};
use super::settings::Settings;

/// What to send from now on.
#[derive(Debug)]
pub(crate) struct Configuration {
    default_timeout: Duration,
    request_size: usize,
    response_size: i32,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    methods: Vec<Method>,
    metadata: Vec<(Method, MetadataKey<Ascii>, MetadataValue<Ascii>)>,
    timeout: Duration,
}

impl Configuration {
    /// That of the command line.
    pub(crate) fn new(settings: &Settings) -> Self {
        let metadata = settings.metadata.iter().filter_map(|(method, key, value)| {
            entry(*method, key, value).inspect_err(|error| eprintln!("ignored: --metadata: {}", error.message())).ok()
        });
        let current =
            Current { methods: settings.methods.clone(), metadata: metadata.collect(), timeout: settings.rpc_timeout };
        Self {
            default_timeout: settings.rpc_timeout,
            request_size: settings.request_payload_size,
            response_size: settings.response_payload_size,
            current: Mutex::new(current),
        }
    }

    /// The RPCs of one round.
    pub(crate) fn round(&self) -> Vec<Plan> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = |&method: &Method| {
            let mut metadata = MetadataMap::new();
            for (_, key, value) in current.metadata.iter().filter(|(of, ..)| *of == method) {
                metadata.append(key.clone(), value.clone());
            }
            let (request_size, response_size) = (self.request_size, self.response_size);
            Plan { method, metadata, timeout: current.timeout, request_size, response_size }
        };
        current.methods.iter().map(plan).collect()
    }
}

#[tonic::async_trait]
impl XdsUpdateClientConfigureService for Configuration {
    async fn configure(
        &self,
        request: Request<ClientConfigureRequest>,
    ) -> Result<Response<ClientConfigureResponse>, Status> {
        let request = request.into_inner();
        let methods = request.types.iter().map(|&kind| method(kind)).collect::<Result<_, _>>()?;
        let metadata = request
            .metadata
            .iter()
            .map(|item| entry(method(item.r#type)?, &item.key, &item.value))
            .collect::<Result<_, _>>()?;
        let timeout = match u64::try_from(request.timeout_sec) {
            Ok(0) => self.default_timeout,
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                return Err(Status::invalid_argument(format!(
                    "timeout_sec {}: expected 0 or more",
                    request.timeout_sec
                )));
            }
        };
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Current { methods, metadata, timeout };
        Ok(Response::new(ClientConfigureResponse {}))
    }
}

fn method(kind: i32) -> Result<Method, Status> {
    match RpcType::try_from(kind) {
        Ok(RpcType::EmptyCall) => Ok(Method::Empty),
        Ok(RpcType::UnaryCall) => Ok(Method::Unary),
        Err(_) => Err(Status::invalid_argument(format!("RPC type {kind}: expected EMPTY_CALL (0) or UNARY_CALL (1)"))),
    }
}

fn entry(method: Method, key: &str, value: &str) -> Result<(Method, MetadataKey<Ascii>, MetadataValue<Ascii>), Status> {
    let invalid = |what: &str| Status::invalid_argument(format!("metadata {key:?}: {value:?}: not {what}"));
    let name = MetadataKey::from_bytes(key.as_bytes()).map_err(|_| invalid("a text key"))?;
    Ok((method, name, value.parse().map_err(|_| invalid("an ASCII value"))?))
}

#[cfg(test)]
mod tests {
    use mainstay_testservice::proto::client_configure_request::Metadata;

    use super::*;

    #[tokio::test]
    async fn a_new_configuration_replaces_the_whole_old_one() {
        // I-14, I-15
        let flags = ["--rpc=UnaryCall", "--metadata=UnaryCall:old:1", "--rpc_timeout_sec=9"];
        let settings = Settings::from_flags(flags.map(str::to_owned)).unwrap();
        let configuration = Configuration::new(&settings);
        assert_eq!(configuration.round().len(), 1);
        let metadata =
            Metadata { r#type: RpcType::EmptyCall.into(), key: "rpc-behavior".into(), value: "keep-open".into() };
        let types = vec![RpcType::EmptyCall.into(), RpcType::UnaryCall.into()];
        let request = ClientConfigureRequest { types, metadata: vec![metadata], timeout_sec: 3 };
        configuration.configure(Request::new(request)).await.unwrap();
        let [empty, unary] = &configuration.round()[..] else { panic!("two kinds") };
        assert_eq!((empty.method, empty.timeout), (Method::Empty, Duration::from_secs(3)));
        assert_eq!(empty.metadata.get("rpc-behavior").unwrap(), "keep-open");
        assert_eq!((unary.method, unary.metadata.len()), (Method::Unary, 0));

        let types = vec![RpcType::UnaryCall.into()];
        let request = ClientConfigureRequest { types, ..Default::default() };
        configuration.configure(Request::new(request)).await.unwrap();
        assert_eq!(configuration.round()[0].timeout, Duration::from_secs(9));
    }

    #[tokio::test]
    async fn what_cannot_be_sent_changes_nothing() {
        let configuration = Configuration::new(&Settings::from_flags([]).unwrap());
        for request in [
            ClientConfigureRequest { types: vec![7], ..Default::default() },
            ClientConfigureRequest { timeout_sec: -1, ..Default::default() },
            ClientConfigureRequest {
                metadata: vec![Metadata { key: "Not A Key".into(), ..Default::default() }],
                ..Default::default()
            },
        ] {
            let status = configuration.configure(Request::new(request)).await.unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
        }
        assert_eq!(configuration.round().len(), 1);
    }
}
