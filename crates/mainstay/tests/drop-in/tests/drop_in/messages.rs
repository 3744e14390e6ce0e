//! What goes through a channel: one message or many, in each direction, compressed, limited, with metadata.

use mainstay_testservice::proto::test_service_client::TestServiceClient;
use mainstay_testservice::proto::{
    Payload, ResponseParameters, SimpleRequest, StreamingInputCallRequest, StreamingOutputCallRequest,
};
use mainstay_testservice::{BEHAVIOR_KEY, HOSTNAME_KEY};
use tokio_stream::StreamExt;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::{Code, Request};

use crate::{on_both, who};

on_both! {
    async fn one_message_each_way(channel) {
        let mut client = TestServiceClient::new(channel);
        let answer = client.unary_call(SimpleRequest { response_size: 1000, ..who() }).await.unwrap();
        assert_eq!(answer.metadata().get(HOSTNAME_KEY).unwrap(), "one");
        assert_eq!(answer.into_inner().payload.unwrap().body.len(), 1000);
    }

    async fn many_messages_back(channel) {
        let mut client = TestServiceClient::new(channel);
        let answers = client.streaming_output_call(sizes([1, 20, 300])).await.unwrap().into_inner();
        let sizes: Vec<_> = answers.map(|answer| answer.unwrap().payload.unwrap().body.len()).collect().await;
        assert_eq!(sizes, [1, 20, 300]);
    }

    async fn many_messages_there(channel) {
        let mut client = TestServiceClient::new(channel);
        let answer = client.streaming_input_call(tokio_stream::iter([1, 20, 300].map(input))).await.unwrap();
        assert_eq!(answer.into_inner().aggregated_payload_size, 321);
    }

    async fn many_messages_each_way_in_turn(channel) {
        let mut client = TestServiceClient::new(channel);
        let (requests, sent) = tokio::sync::mpsc::channel(1);
        let sent = tokio_stream::wrappers::ReceiverStream::new(sent);
        let mut answers = client.full_duplex_call(sent).await.unwrap().into_inner();
        for size in [5, 6, 7] {
            requests.send(sizes([size])).await.unwrap();
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!(answer.payload.unwrap().body.len(), usize::try_from(size).unwrap());
        }
        drop(requests);
        assert!(answers.message().await.unwrap().is_none());
        assert!(answers.trailers().await.unwrap().is_some());
    }

    async fn messages_are_compressed_both_ways(channel) {
        let mut client = TestServiceClient::new(channel).send_compressed(Gzip).accept_compressed(Gzip);
        let answer = client.unary_call(SimpleRequest { response_size: 10_000, ..who() }).await.unwrap();
        assert_eq!(answer.metadata().get("grpc-encoding").unwrap(), "gzip");
        assert_eq!(answer.into_inner().payload.unwrap().body, vec![b'0'; 10_000]);
        let answer = client.streaming_input_call(tokio_stream::iter([10_000; 3].map(input))).await.unwrap();
        assert_eq!(answer.into_inner().aggregated_payload_size, 30_000);
    }

    /// A message that is too large to be sent is tonic's INTERNAL; here the status of the codec, which says why, is kept.
    async fn messages_over_a_limit_are_refused(channel) {
        let mut client = TestServiceClient::new(channel.clone()).max_decoding_message_size(1000);
        let status = client.unary_call(SimpleRequest { response_size: 2000, ..who() }).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange);
        let mut client = TestServiceClient::new(channel).max_encoding_message_size(1000);
        let payload = Some(Payload { body: vec![0; 2000], ..Default::default() });
        let status = client.unary_call(SimpleRequest { payload, ..who() }).await.unwrap_err();
        assert!(matches!(status.code(), Code::OutOfRange | Code::Internal), "{status}");
        assert_eq!(status.code() == Code::OutOfRange, status.message().contains("1000 bytes"), "{status}");
    }

    async fn a_status_of_the_backend_comes_back_whole(channel) {
        let mut request = Request::new(who());
        request.metadata_mut().insert(BEHAVIOR_KEY, "error-code-9".parse().unwrap());
        let status = TestServiceClient::new(channel).unary_call(request).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().starts_with("one: "), "{status}");
    }

    /// tonic says CANCELLED where gRPC says DEADLINE_EXCEEDED; whoever reads the code must know both.
    async fn a_deadline_ends_a_call(channel) {
        let mut request = Request::new(who());
        request.metadata_mut().insert(BEHAVIOR_KEY, "keep-open".parse().unwrap());
        request.set_timeout(std::time::Duration::from_millis(50));
        let status = TestServiceClient::new(channel).unary_call(request).await.unwrap_err();
        assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    }
}

fn sizes<const N: usize>(sizes: [i32; N]) -> StreamingOutputCallRequest {
    let parameters = sizes.map(|size| ResponseParameters { size, ..Default::default() });
    StreamingOutputCallRequest { response_parameters: parameters.into(), ..Default::default() }
}

fn input(size: usize) -> StreamingInputCallRequest {
    let payload = Some(Payload { body: vec![0; size], ..Default::default() });
    StreamingInputCallRequest { payload, ..Default::default() }
}
