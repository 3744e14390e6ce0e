//! What an RPC costs with each LB policy, beside round_robin: the same requests, answers and endpoints.

use std::net::SocketAddr;

use clap::Args;
use mainstay_testservice::proto::SimpleRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};

use crate::plot::{Plot, number};
use crate::policy::{Policy, USER};
use crate::report::Report;
use crate::rpc::{self, IN_FLIGHT};
use crate::servers::{Servers, bootstrap};
use crate::{Options, Result, callgrind, stats};

/// What the child under callgrind does.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    #[arg(long)]
    policy: Policy,
    #[arg(long)]
    control_plane: SocketAddr,
    /// Unary calls, one after the other.
    #[arg(long)]
    calls: u32,
}

/// Instructions per call with each of these policies, against the first.
pub(crate) fn instructions(
    options: &Options,
    policies: &[Policy],
    servers: &Servers,
    report: &mut Report,
) -> Result<()> {
    if !callgrind::is_there() {
        return Ok(());
    }
    report.begin_table(&["LB policy", "instructions per unary call", "to round_robin"]);
    let mut plot = Plot::new("Instructions per unary call by LB policy, client side", "instructions");
    let mut base = None;
    for policy in policies {
        let per_call = rpc::instructions_per_call(options, &std::env::current_exe()?, |calls| {
            vec![
                "policy-client".to_owned(),
                format!("--policy={}", policy.name()),
                format!("--control-plane={}", servers.control_plane),
                format!("--calls={calls}"),
            ]
        })?;
        let ratio = per_call / *base.get_or_insert(per_call);
        report.set(&["policies", policy.name(), "instructions"], per_call);
        report.set(&["policies", policy.name(), "ratio_to_round_robin"], ratio);
        report.row([policy.name().to_owned(), number(per_call), format!("{ratio:.3}")]);
        plot.bar(policy.name(), per_call, true);
    }
    report.plot(plot);
    report.note(
        "policies: four endpoints that report their load with each answer; every request has a header to hash and a cookie",
    );
    Ok(())
}

/// Calls per second with a policy and with round_robin, in turns.
pub(crate) fn throughput(
    options: &Options,
    policy: Policy,
    runtime: &Runtime,
    servers: &Servers,
    report: &mut Report,
) -> Result<()> {
    let connect = |policy| runtime.block_on(Client::connect(policy, servers.control_plane));
    let clients = [connect(policy)?, connect(Policy::RoundRobin)?];
    report.begin_table(&["unary calls/s", policy.name(), Policy::RoundRobin.name(), "ratio"]);
    for in_flight in IN_FLIGHT {
        let rates = rpc::rates_in_turns(options, runtime, in_flight, &clients, |client| {
            let mut client = client.clone();
            async move || client.call().await.map(drop)
        })?;
        let ratio = stats::median(rates[0].iter().zip(&rates[1]).map(|(ours, base)| ours / base));
        let [ours, base] = [0, 1].map(|place: usize| stats::median(rates[place].iter().copied()));
        let number_in_flight = in_flight.to_string();
        for (policy, rate) in [(policy, ours), (Policy::RoundRobin, base)] {
            report.set(&["policies", policy.name(), "throughput", &number_in_flight, "calls_per_second"], rate);
        }
        report.set(&["policies", policy.name(), "throughput", &number_in_flight, "ratio_to_round_robin"], ratio);
        report.row([format!("{in_flight} in flight"), number(ours), number(base), format!("{ratio:.3}")]);
    }
    Ok(())
}

/// Runs calls to one policy's target and nothing else.
pub(crate) fn run_client(args: &ClientArgs) -> Result<()> {
    rpc::runtime()?.block_on(async {
        let mut client = Client::connect(args.policy, args.control_plane).await?;
        for _ in 0..args.calls {
            client.call().await?;
        }
        Ok(())
    })
}

/// A connected client of a policy's target. What it sends is the same for all policies.
#[derive(Clone)]
pub(crate) struct Client {
    stub: TestServiceClient<mainstay::Channel>,
    user: MetadataValue<Ascii>,
    cookie: MetadataValue<Ascii>,
}

impl Client {
    pub(crate) async fn connect(policy: Policy, control_plane: SocketAddr) -> Result<Self> {
        let target = format!("xds:///{}", policy.name());
        let channel = mainstay::Channel::builder(target).bootstrap(bootstrap(&[control_plane])?).build()?;
        let (user, cookie) = (MetadataValue::from_static("user-1"), MetadataValue::from_static(NO_COOKIE));
        let mut client = Self { stub: TestServiceClient::new(channel), user, cookie };
        // Until every endpoint is connected, so that connecting is not counted with the calls.
        for _ in 0..CALLS_TO_SETTLE {
            let set = client.call().await?;
            if let Some(cookie) = set.as_ref().and_then(|set| set.split(';').next()) {
                client.cookie = cookie.parse()?;
            }
        }
        Ok(client)
    }

    /// One unary call; the cookie that its answer brings.
    pub(crate) async fn call(&mut self) -> Result<Option<String>, Status> {
        let mut request = tonic::Request::new(SimpleRequest::default());
        request.metadata_mut().insert(USER, self.user.clone());
        request.metadata_mut().insert("cookie", self.cookie.clone());
        let response = self.stub.unary_call(request).await?;
        let cookie = response.metadata().get("set-cookie");
        Ok(cookie.and_then(|cookie| cookie.to_str().ok()).map(str::to_owned))
    }
}

/// As long as a cookie of override_host, and of no session.
const NO_COOKIE: &str = "visitor=MTI3LjAuMC4xOjUwMDUxO2NsdXN0ZXI6b3ZlcnJpZGVfaG9zdA==";

const CALLS_TO_SETTLE: u32 = 100;
