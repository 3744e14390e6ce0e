//! How long the first RPC takes while the first xDS server is in trouble and the second is not.

use std::time::{Duration, Instant};

use mainstay::Channel;
use mainstay_control_plane::{ControlPlane, Server, TypeUrl};
use mainstay_testservice::Backend;
use mainstay_testservice::proto::SimpleRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;

use crate::plot::{Plot, number};
use crate::report::Report;
use crate::servers::{TARGET, bootstrap, service};
use crate::{Options, Result, stats};

/// What is wrong with the first server.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Nothing listens.
    Refused,
    /// It dies when it is asked for endpoints, after it has sent everything else.
    MidUpdate,
    /// It accepts connections and never says a word.
    BlackHole,
}

impl Trouble {
    fn key(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::MidUpdate => "mid_update",
            Self::BlackHole => "black_hole",
        }
    }

    async fn befall(self, server: &Server) {
        match self {
            Self::Refused => server.refuse().await,
            Self::MidUpdate => server.faults().die_on_request(TypeUrl::ENDPOINTS, "service"),
            Self::BlackHole => server.faults().black_hole(true),
        }
    }
}

pub(crate) fn measure(options: &Options) -> Result<Report> {
    let mut report = Report::new("fallback", &["first xDS server", "ms to the first answer", "slowest"]);
    let mut plot = Plot::new("First answer with the first xDS server in trouble", "ms");
    // Each black hole takes as long as a connection attempt may, 5 s.
    let turns = if options.quick { [9, 9, 1] } else { [25, 25, 3] };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for (trouble, turns) in [Trouble::Refused, Trouble::MidUpdate, Trouble::BlackHole].into_iter().zip(turns) {
        let mut times = Vec::new();
        for _ in 0..turns {
            let time = runtime.block_on(async { tokio::spawn(first_answer(trouble)).await? })?;
            times.push(time.as_secs_f64() * 1e3);
        }
        let slowest = times.iter().copied().fold(0.0, f64::max);
        let time = stats::median(times);
        report.set(&["ms", trouble.key()], time);
        report.row([trouble.key().to_owned(), number(time), number(slowest)]);
        plot.bar(trouble.key(), time, true);
    }
    report.plot(plot);
    report.note("from the making of a channel, with two xDS servers and a backend on the loopback interface; medians");
    Ok(report)
}

/// From the making of a channel to the answer of its first RPC.
async fn first_answer(trouble: Trouble) -> Result<Duration> {
    let backend = Backend::spawn("127.0.0.1:0", "backend").await?;
    let serve = || async {
        let control_plane = ControlPlane::new();
        control_plane.set(service(backend.addr()));
        control_plane.serve("127.0.0.1:0").await
    };
    let (first, second) = (serve().await?, serve().await?);
    trouble.befall(&first).await;
    let bootstrap = bootstrap(&[first.addr(), second.addr()])?;
    let start = Instant::now();
    let channel = Channel::builder(TARGET).bootstrap(bootstrap).build()?;
    let mut request = tonic::Request::new(SimpleRequest::default());
    request.set_timeout(Duration::from_secs(30));
    TestServiceClient::new(channel).unary_call(request).await?;
    Ok(start.elapsed())
}
