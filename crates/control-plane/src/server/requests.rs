//! The requests of a stream, as they come over the wire.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;

use bytes::{Buf as _, BytesMut};
use hyper::body::{Body as _, Incoming};
use tonic::Status;

use crate::server::MAX_REQUEST_SIZE;

/// The requests of a stream. What was read is given back as soon as it is understood, as a request may list thousands of names.
pub(super) struct Requests<T> {
    body: Incoming,
    buffer: BytesMut,
    message: PhantomData<fn() -> T>,
}

impl<T: prost::Message + Default> Requests<T> {
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, buffer: BytesMut::new(), message: PhantomData }
    }

    /// The next request; `None` at the end. Nothing is lost when this is dropped.
    pub(super) async fn message(&mut self) -> Result<Option<T>, Status> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            match poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(Status::unavailable(error.to_string())),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Status::internal("the stream ends in the middle of a request")),
            }
        }
    }

    /// Takes a whole message out of what was read: a flag, four bytes of length, and so many bytes.
    fn take(&mut self) -> Result<Option<T>, Status> {
        let Some((&[flag, a, b, c, d], rest)) = self.buffer.split_first_chunk() else { return Ok(None) };
        if flag != 0 {
            return Err(Status::unimplemented("the request is compressed, which was not offered"));
        }
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > MAX_REQUEST_SIZE {
            let text = format!("a request of {length} bytes, where {MAX_REQUEST_SIZE} are allowed");
            return Err(Status::out_of_range(text));
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let message = T::decode(message);
        let message = message.map_err(|error| Status::internal(format!("cannot decode the request: {error}")))?;
        self.buffer.advance(HEAD + length);
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
        Ok(Some(message))
    }
}

/// What comes before each message.
const HEAD: usize = 5;
