//! Keeps the driver of a hub running, and says what became of it when it does not run.
//!
//! ```text
//!              RPC, or a look at the configuration
//!   ┌─────────────────────────────────────────────── IDLE: no RPC for the idle timeout (L-127)
//!   ▼                                                  ▲
//! RUNNING ─────────────────────────────────────────────┤
//!   ▲  │ panic                                         └── ended with its RUNTIME
//!   │  ▼                                                    (an RPC on another runtime starts it there)
//!   └ CRASHED, until its backoff is over
//! ```
//!
//! Each start is a new one: nothing of what a driver knew outlives it, as that may be what it died of.

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_channel::mpsc::{UnboundedSender, unbounded};
use mainstay_lb::ChannelCore;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::ads::AdsStreams;
use crate::driver::{Driver, End, QUEUE};
use crate::guard;
use crate::intern::Interner;
use crate::last_good::Recorder;
use crate::local_stream::LocalContext;
use crate::logs::{EndpointLog, ReportLog};
use crate::orca_oob::BaseUri;
use crate::queue;
use crate::random::Random;
use crate::shared::{Command, Halt, Plan, Shared};
use crate::subchannel::{Audience, Subchannels};
use crate::telemetry::{LbObserver, XdsObserver};
use crate::tls::ChannelSecurity;

/// Everything that a driver is made of.
#[derive(Clone)]
pub(crate) struct Supervisor {
    pub(crate) plan: Arc<Plan>,
    pub(crate) security: ChannelSecurity,
    pub(crate) base_uri: BaseUri,
    pub(crate) shared: Arc<Shared>,
    /// Where commands to the present driver go.
    pub(crate) commands: Arc<ArcSwap<UnboundedSender<Command>>>,
    pub(crate) runtime: runtime::Id,
}

/// Says that nothing runs any more, unless somebody has said why.
struct Running(Option<Arc<Shared>>);

impl Supervisor {
    /// Begins to run drivers on `runtime`, until `closed`.
    pub(crate) fn start(self, runtime: &runtime::Handle, closed: oneshot::Receiver<()>) {
        // Made here and now, so that it can be asked something at once.
        let first = self.driver();
        // So is this: a runtime that is about to end drops what is spawned, and never polls it.
        let running = Running(Some(self.shared.clone()));
        runtime.spawn(self.run(first, running, closed));
    }

    async fn run(self, first: Box<Driver>, mut running: Running, mut closed: oneshot::Receiver<()>) {
        let mut first = Some(first);
        let mut crashes = 0;
        loop {
            let began = Instant::now();
            let run = async {
                let driver = first.take().unwrap_or_else(|| self.driver());
                self.shared.resume();
                driver.run(&mut closed).await
            };
            let panic = match guard::caught(run).await {
                Ok(End::Closed) => return running.halt(None),
                Ok(End::Idle) => return running.halt(Some(Halt::Idle)),
                Err(panic) => panic.to_string(),
            };
            let backoff = self.plan.connect.backoff;
            crashes = if began.elapsed() > CALM { 0 } else { crashes };
            let pause = backoff.delay(crashes, &mut Random);
            crashes += 1;
            let target = &*self.plan.target.canonical;
            tracing::error!(target, panic, ?pause, "the driver of a channel panicked, and is started again");
            self.shared.halt(Halt::Crashed(panic));
            tokio::select! {
                _ = &mut closed => return running.halt(None),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn driver(&self) -> Box<Driver> {
        let Self { plan, security, base_uri, shared, commands, runtime } = self;
        let (input_sender, inputs) = queue::bounded(QUEUE);
        let (news, connection_news) = unbounded();
        let (ask, asked) = unbounded();
        commands.store(Arc::new(ask));
        let start = Instant::now();
        let recorder = Recorder::new(&plan.bootstrap, plan.last_good_key.clone(), start);
        let local = LocalContext {
            last_good: recorder.as_ref().map(|recorder| recorder.store().clone()),
            node_id: plan.bootstrap.node.id.as_str().into(),
            federation: plan.bootstrap.guards.federation,
        };
        Box::new(Driver {
            core: ChannelCore::new(&plan.target, plan.bootstrap.clone(), plan.client.clone(), plan.deps.clone())
                .with_warm_switching(plan.warm_switching)
                .with_security(plan.xds_security()),
            subchannels: Subchannels::new(
                *runtime,
                security.clone(),
                base_uri.clone(),
                plan.connect,
                Interner::of(&plan.bootstrap),
                news,
                Audience {
                    observer: LbObserver::new(plan.telemetry.as_ref(), &plan.target.canonical),
                    log: EndpointLog::new(&plan.target.canonical, start),
                },
            ),
            streams: AdsStreams::new(plan.dns.clone(), plan.ads, local, input_sender.clone()),
            lookups: Default::default(),
            inputs,
            input_sender,
            connection_news,
            commands: asked,
            shared: shared.clone(),
            observer: XdsObserver::new(plan.telemetry.as_ref(), &plan.target.canonical),
            log: ReportLog::default(),
            client_stirred: true,
            connected: false,
            plan: plan.clone(),
            recorder,
            start,
        })
    }
}

// === impl Running ===

impl Running {
    fn halt(&mut self, halt: Option<Halt>) {
        if let (Some(shared), Some(halt)) = (self.0.take(), halt) {
            shared.halt(halt);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.halt(Some(Halt::RuntimeEnded));
    }
}

impl std::fmt::Display for Halt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Idle => f.write_str("the channel is idle"),
            Self::RuntimeEnded => f.write_str(
                "the tokio runtime that the channel ran on has ended, and there is no other one here to go on with",
            ),
            Self::Crashed(panic) => write!(f, "the driver of the channel panicked, and is started again soon: {panic}"),
        }
    }
}

/// A driver that has run for so long did not die of how it began.
const CALM: std::time::Duration = std::time::Duration::from_secs(60);
