//! Streams that lead nowhere outside: the same events, without a connection (FB-2).

use bytes::Bytes;
use futures_channel::mpsc::UnboundedReceiver;
use futures_util::StreamExt;
use mainstay_xds::client::{CloseCause, Event, Sign};

use super::{Command, Service, StreamInput, StreamTask, gone};
use crate::local_stream::LocalStream;
use crate::queue::Closed;

impl<I: StreamInput> StreamTask<I> {
    /// Runs a stream to a server of this process to its end.
    pub(super) async fn run_local(&self, mut queue: UnboundedReceiver<Command>) -> CloseCause {
        if self.service == Service::Lrs {
            let _ = self.swallow(queue).await; // It ends with the channel.
            return gone();
        }
        let call = self.channelz.counters.begin();
        let mut stream = match LocalStream::open(&self.local, &self.peer.server).await {
            Ok(stream) => stream,
            Err(cause) => return CloseCause::ConnectFailed(cause),
        };
        if self.tell(Event::Opened(self.id)).await.is_err() {
            return gone();
        }
        call.succeed();
        loop {
            let told = tokio::select! {
                biased;
                Some(command) = queue.next() => match command {
                    Command::Probe { .. } => self.tell(Event::Alive(self.id, Sign::Data)).await,
                    Command::Send(request) => match stream.handle_request(&request) {
                        Ok(response) => self.answer(response).await,
                        Err(error) => return CloseCause::Ended { code: INTERNAL, message: error },
                    },
                },
                news = stream.news() => self.tell_all(news).await,
            };
            if told.is_err() {
                return gone();
            }
        }
    }

    async fn answer(&self, response: Option<Bytes>) -> Result<(), Closed> {
        self.tell(Event::Sent(self.id)).await?;
        self.tell_all(response).await
    }

    async fn tell_all(&self, responses: impl IntoIterator<Item = Bytes>) -> Result<(), Closed> {
        for response in responses {
            self.tell(Event::Received(self.id, response)).await?;
        }
        Ok(())
    }

    /// Nobody reads load reports here, and nobody wants any.
    async fn swallow(&self, mut queue: UnboundedReceiver<Command>) -> Result<(), Closed> {
        self.tell(Event::Opened(self.id)).await?;
        while let Some(command) = queue.next().await {
            if let Command::Send(_) = command {
                self.tell(Event::Sent(self.id)).await?;
            }
        }
        Ok(())
    }
}

/// gRPC status code.
const INTERNAL: u16 = 13;
