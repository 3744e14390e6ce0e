//! Metrics over OTLP to a collector, as Prometheus 3 and the OpenTelemetry collector take them. Here the collector is in the process, and
//! prints what it was sent.

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay::{Channel, Telemetry};
use mainstay_examples::hello::greeter_client::GreeterClient;
use mainstay_examples::{Error, bootstrap, control_plane, greeter, request};
use opentelemetry_otlp::{MetricExporter, WithExportConfig as _};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let (collector, mut names) = collector().await?;
    let plane = control_plane(&[greeter("one").await?]).await?;

    // Yours: the address of your collector, and the interval that you want.
    let exporter = MetricExporter::builder().with_tonic().with_endpoint(collector).build()?;
    let reader = PeriodicReader::builder(exporter).with_interval(Duration::from_secs(60)).build();
    let meters = SdkMeterProvider::builder().with_reader(reader).build();

    let telemetry = Telemetry::builder().meter_provider(&meters).metric("grpc.xds_client.connected", true).build();
    let channel = Channel::builder("xds:///hello").bootstrap(bootstrap(&plane)?).telemetry(telemetry).build()?;
    let mut client = GreeterClient::new(channel);
    client.say_hello(request("world")).await?;

    // At the end of a program what was not sent yet is, with the gauges of channels that are still there.
    tokio::task::spawn_blocking(move || meters.shutdown()).await??;
    drop(client);
    for name in names.recv().await.ok_or("nothing was sent")? {
        println!("{name}");
    }
    Ok(())
}

/// A collector, and the names of the metrics of each export.
async fn collector() -> Result<(String, mpsc::Receiver<BTreeSet<String>>), Error> {
    let (names, received) = mpsc::channel(8);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tonic::transport::Server::builder().add_service(MetricsServiceServer::new(Collector(names)));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Ok((format!("http://{address}"), received))
}

struct Collector(mpsc::Sender<BTreeSet<String>>);

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let scopes = request.into_inner().resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        let names = scopes.flat_map(|scope| scope.metrics).map(|metric| metric.name).collect();
        self.0.send(names).await.map_err(|_| Status::unavailable("nobody listens"))?;
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}
