//! Any unary method, with a request that is given as JSON.

use std::{error::Error as StdError, fs, path::PathBuf, time::Duration};

use bytes::{Buf as _, BufMut as _, Bytes};
use clap::Args;
use http::uri::PathAndQuery;
use mainstay_testservice::proto::{SimpleRequest, SimpleResponse};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor, prost_types::FileDescriptorProto};
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    client::{Grpc, GrpcService},
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{Body as HttpBody, Bytes as HttpBytes},
    metadata::{AsciiMetadataKey, AsciiMetadataValue, BinaryMetadataKey, BinaryMetadataValue, MetadataMap},
};
use tonic_prost::ProstCodec;
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, ServerReflectionResponse, server_reflection_request::MessageRequest,
    server_reflection_response::MessageResponse,
};

use crate::{
    call::{Answer, Caller},
    connect::{Options, Target, endpoint_of, xds_channel},
    failure::{Failure, causes, told},
};

// Which method, and what is sent to it. Not a doc comment: clap would show it as the help of the command.
#[derive(Args, Debug)]
pub(super) struct MethodFlags {
    /// The method to call, such as /hello.Greeter/SayHello [default: /grpc.testing.TestService/UnaryCall]
    #[arg(long, value_name = "METHOD", value_parser = parse_path)]
    method: Option<PathAndQuery>,

    /// The request as JSON, or @FILE with it; needs --method [default: an empty message]
    #[arg(long, value_name = "JSON", requires = "method")]
    data: Option<String>,

    /// Where the types of --data are: a descriptor set of `protoc --include_imports --descriptor_set_out` [default: the server is
    /// asked, by reflection]
    #[arg(long, value_name = "FILE", requires = "data")]
    descriptors: Option<PathBuf>,

    /// Metadata of each call, such as x-user:42; may be given more than once
    #[arg(short = 'H', long = "header", value_name = "NAME:VALUE", value_parser = parse_header, requires = "method")]
    headers: Vec<(String, String)>,
}

/// What to call.
#[derive(Debug)]
pub(super) struct Method {
    path: PathAndQuery,
    /// As it was typed, and read from its file.
    data: Option<String>,
    pool: Option<DescriptorPool>,
    metadata: MetadataMap,
}

impl MethodFlags {
    pub(super) fn resolve(self) -> Result<Option<Method>, Failure> {
        let Self { method, data, descriptors, headers } = self;
        let Some(path) = method else { return Ok(None) };
        let data = data.map(|data| match data.strip_prefix('@') {
            Some(file) => fs::read_to_string(file).map_err(|error| Failure::failed(format!("--data @{file}: {error}"))),
            None => Ok(data),
        });
        let pool = descriptors.map(|file| {
            let wrong = |error: String| {
                Failure::failed(format!("--descriptors {}: {error}", file.display()))
                    .tip("make it with protoc --include_imports --descriptor_set_out=FILE")
            };
            let bytes = fs::read(&file).map_err(|error| wrong(error.to_string()))?;
            DescriptorPool::decode(bytes.as_slice()).map_err(|error| wrong(error.to_string()))
        });
        let mut metadata = MetadataMap::new();
        for (name, value) in headers {
            let refused = |why: String| Failure::usage(format!("--header {name}: {why}"));
            if name.ends_with("-bin") {
                let name =
                    BinaryMetadataKey::from_bytes(name.as_bytes()).map_err(|error| refused(error.to_string()))?;
                let value =
                    BinaryMetadataValue::try_from(value.as_bytes()).map_err(|error| refused(error.to_string()))?;
                metadata.append_bin(name, value);
            } else {
                let name = AsciiMetadataKey::from_bytes(name.as_bytes()).map_err(|error| refused(error.to_string()))?;
                let value = AsciiMetadataValue::try_from(&*value).map_err(|error| refused(error.to_string()))?;
                metadata.append(name, value);
            }
        }
        Ok(Some(Method { path, data: data.transpose()?, pool: pool.transpose()?, metadata }))
    }
}

impl Method {
    /// Something that calls it at `target`. Only reflection makes a call for that.
    pub(super) async fn connect(
        &self,
        target: &Target,
        options: &Options,
        timeout: Duration,
    ) -> Result<Box<dyn Caller>, Failure> {
        match target {
            Target::Xds(name) => self.through(xds_channel(name, options)?, timeout).await,
            Target::Plain(..) => {
                let endpoint = endpoint_of(target, options)?;
                self.through(endpoint.connect_lazy(), timeout).await
            }
        }
    }

    async fn through<S>(&self, service: S, timeout: Duration) -> Result<Box<dyn Caller>, Failure>
    where
        S: GrpcService<Body> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn StdError + Send + Sync>>,
        S::ResponseBody: HttpBody<Data = HttpBytes> + Send + 'static,
        <S::ResponseBody as HttpBody>::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
    {
        let request = match &self.data {
            None => Bytes::new(),
            Some(data) => {
                let method = match &self.pool {
                    Some(pool) => self.find(pool)?,
                    None => {
                        let asked = tokio::time::timeout(timeout, reflect(service.clone(), self.service()));
                        let asked = asked.await.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")));
                        self.find(&asked.map_err(|status| unreflected(self.service(), &status))?)?
                    }
                };
                encode(&method, data)?
            }
        };
        Ok(Box::new(Raw { service, path: self.path.clone(), request, metadata: self.metadata.clone() }))
    }

    /// The full name of the service.
    fn service(&self) -> &str {
        self.path.path().trim_start_matches('/').split('/').next().unwrap_or_default()
    }

    fn find(&self, pool: &DescriptorPool) -> Result<MethodDescriptor, Failure> {
        let name = self.path.path().rsplit('/').next().unwrap_or_default();
        let service = pool.get_service_by_name(self.service()).ok_or_else(|| {
            let known: Vec<_> = pool.services().map(|service| service.full_name().to_owned()).collect();
            Failure::failed(format!("there is no service {}", self.service()))
                .tip(format!("there is {}", known.join(", ")))
        })?;
        let method = service.methods().find(|method| method.name() == name).ok_or_else(|| {
            let known: Vec<_> = service.methods().map(|method| method.name().to_owned()).collect();
            Failure::failed(format!("{} has no method {name}", service.full_name()))
                .tip(format!("it has {}", known.join(", ")))
        })?;
        match method.is_client_streaming() || method.is_server_streaming() {
            true => Err(Failure::failed(format!("{} streams, and only unary methods can be called", self.path.path()))),
            false => Ok(method),
        }
    }
}

/// The bytes of a request.
fn encode(method: &MethodDescriptor, data: &str) -> Result<Bytes, Failure> {
    let input = method.input();
    let name = input.full_name().to_owned();
    let mut reader = serde_json::Deserializer::from_str(data);
    let message = DynamicMessage::deserialize(input, &mut reader).and_then(|message| reader.end().map(|()| message));
    let message = message.map_err(|error| Failure::usage(format!("--data is no {name}: {error}")))?;
    Ok(message.encode_to_vec().into())
}

/// Asks a server for its types, by the reflection of today or by the one before, which is all that some languages have. Their
/// messages are the same.
async fn reflect<S>(service: S, symbol: &str) -> Result<DescriptorPool, Status>
where
    S: GrpcService<Body> + Clone,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    S::ResponseBody: HttpBody<Data = HttpBytes> + Send + 'static,
    <S::ResponseBody as HttpBody>::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
{
    match reflect_by(service.clone(), REFLECTION, symbol).await {
        Err(status) if status.code() == Code::Unimplemented => reflect_by(service, REFLECTION_BEFORE, symbol).await,
        done => done,
    }
}

/// The file with the service, and those that it needs.
async fn reflect_by<S>(service: S, method: &'static str, symbol: &str) -> Result<DescriptorPool, Status>
where
    S: GrpcService<Body>,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    S::ResponseBody: HttpBody<Data = HttpBytes> + Send + 'static,
    <S::ResponseBody as HttpBody>::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
{
    let mut client = Grpc::new(service).max_decoding_message_size(usize::MAX);
    let (mut files, mut wanted) = (Vec::<FileDescriptorProto>::new(), Vec::new());
    let mut question = Some(MessageRequest::FileContainingSymbol(symbol.to_owned()));
    while let Some(asked) = question {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(asked) };
        client.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let codec = ProstCodec::<ServerReflectionRequest, ServerReflectionResponse>::default();
        let asked = Request::new(tokio_stream::once(request));
        let mut answers = client.streaming(asked, PathAndQuery::from_static(method), codec).await?.into_inner();
        let answer = answers.message().await?.and_then(|answer| answer.message_response);
        match answer {
            Some(MessageResponse::FileDescriptorResponse(answer)) => {
                for file in answer.file_descriptor_proto {
                    let file = FileDescriptorProto::decode(file.as_slice())
                        .map_err(|error| Status::internal(format!("its descriptors cannot be read: {error}")))?;
                    if files.iter().all(|known| known.name() != file.name()) {
                        wanted.extend(file.dependency.iter().cloned());
                        files.push(file);
                    }
                }
            }
            Some(MessageResponse::ErrorResponse(error)) => {
                return Err(Status::new(error.error_code.into(), error.error_message));
            }
            _ => return Err(Status::internal("it answers something else than it was asked")),
        }
        if files.len() > MOST_FILES {
            return Err(Status::out_of_range("its descriptors have no end"));
        }
        wanted.retain(|name| files.iter().all(|file| file.name() != name));
        question = wanted.pop().map(MessageRequest::FileByFilename);
    }
    let set = prost_reflect::prost_types::FileDescriptorSet { file: files };
    DescriptorPool::from_file_descriptor_set(set)
        .map_err(|error| Status::internal(format!("its descriptors make no sense: {error}")))
}

fn unreflected(service: &str, status: &Status) -> Failure {
    let failure = Failure::failed(format!("the server does not tell the types of {service}: {}", told(status)));
    match status.code() {
        Code::Unimplemented => failure
            .tip("it has no reflection service; --descriptors FILE does without, and a request without --data needs no types"),
        Code::NotFound => failure.tip("it has no such service, or its reflection service does not know it"),
        _ => failure,
    }
}

const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const REFLECTION_BEFORE: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// Sends the same bytes each time.
struct Raw<S> {
    service: S,
    path: PathAndQuery,
    request: Bytes,
    metadata: MetadataMap,
}

impl<S> Caller for Raw<S>
where
    S: GrpcService<Body> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    S::ResponseBody: HttpBody<Data = HttpBytes> + Send + 'static,
    <S::ResponseBody as HttpBody>::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
{
    /// Of the request that it is given only the metadata count, in which the deadline is.
    fn unary_call(&self, request: Request<SimpleRequest>) -> Answer {
        let mut metadata = request.metadata().clone();
        for entry in self.metadata.iter() {
            match entry {
                tonic::metadata::KeyAndValueRef::Ascii(name, value) => _ = metadata.append(name.clone(), value.clone()),
                tonic::metadata::KeyAndValueRef::Binary(name, value) => {
                    _ = metadata.append_bin(name.clone(), value.clone())
                }
            }
        }
        let request = Request::from_parts(metadata, tonic::Extensions::new(), self.request.clone());
        let (mut client, path) = (Grpc::new(self.service.clone()), self.path.clone());
        Box::pin(async move {
            client.ready().await.map_err(|error| {
                let error: Box<dyn StdError + Send + Sync> = error.into();
                Status::unavailable(causes(&*error))
            })?;
            let response = client.unary(request, path, BytesCodec).await?;
            // Whoever answered does not say its name; its address will do.
            let peer = response.extensions().get::<mainstay::Peer>().map(|peer| peer.address().to_string());
            let server_id = peer.unwrap_or_else(|| "the server".to_owned());
            Ok(Response::new(SimpleResponse { server_id, ..SimpleResponse::default() }))
        })
    }
}

/// Messages as they are.
#[derive(Clone, Copy, Debug)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

fn parse_path(text: &str) -> Result<PathAndQuery, String> {
    let expected = || "expected a method such as /hello.Greeter/SayHello".to_owned();
    let parts = text.strip_prefix('/').and_then(|rest| rest.split_once('/'));
    match parts {
        Some((service, method)) if !service.is_empty() && !method.is_empty() && !method.contains(['/', '?', '#']) => {
            text.parse().map_err(|_| expected())
        }
        _ => Err(expected()),
    }
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected metadata such as x-user:42")?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

/// More files than any service needs.
const MOST_FILES: usize = 10_000;
