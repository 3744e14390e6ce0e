//! `mainstay demo`: a mesh in one process, and what it does when things die.

mod account;
mod narrator;
mod play;
mod said;
mod script;
mod secured;
mod stage;

use std::{
    io::{self, IsTerminal as _},
    net::SocketAddr,
    time::Duration,
};

use clap::Args;

use crate::{
    admin,
    failure::Failure,
    listen,
    output::Output,
    signals::Signals,
    traffic::{Schedule, Traffic},
};
use narrator::{Narrator, Telling};
use play::{Ending, Play};
use script::SCRIPT;
use stage::Mesh;

/// Watch a small mesh survive the death of its parts, in one process and without any setup
///
/// Starts two control planes, eight backends and a client that sends 50 RPCs per second, kills and restores them on a
/// script, and tells what is done, what the xDS client says and what is seen. In the end two more servers, which the control
/// planes configure, are called over mTLS. It takes about 30 seconds. SIGINT or
/// SIGTERM end it early. The exit code is 3 if RPCs failed that should not have, if traffic did not get where the
/// configuration sends it, or if the client did not go from one control plane to the other as it should.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Serve CSDS and channelz of the client at this HOST:PORT, for `mainstay dash`, `inspect` and `status`
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,

    /// Stay up after the last scene, until SIGINT or SIGTERM
    #[arg(long)]
    keep: bool,

    /// Print a line of JSON for each scene and one for the whole, instead of text
    #[arg(long)]
    json: bool,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    admin: Option<SocketAddr>,
    keep: bool,
    telling: Telling,
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let admin = self.admin.map(|address| listen::resolve("--admin", &address)).transpose()?;
        let live = io::stderr().is_terminal();
        let telling = if self.json { Telling::Json } else { Telling::Text { live } };
        Ok(Settings { admin, keep: self.keep, telling })
    }
}

/// Plays the script.
pub(crate) async fn run(settings: Settings, mut signals: Signals, output: Output) -> Result<(), Failure> {
    let _admin = match settings.admin {
        Some(address) => Some(admin::serve(address).await?),
        None => None,
    };
    let mut narrator = Narrator::new(output, settings.telling);
    let mut mesh = Mesh::start().await?;
    narrator.remark(&mesh.describe())?;
    let mut traffic = Traffic::start(Schedule::new(RATE, None), vec![mesh.client()?], RPC_TIMEOUT);
    let mut ending = Ending::new();
    let play = Play { stage: &mut mesh, traffic: &mut traffic, narrator: &mut narrator, ending: &mut ending };
    let finished = tokio::select! {
        played = play.run(SCRIPT) => played.map(|()| true)?,
        () = signals.next() => false,
    };
    if finished && settings.keep {
        narrator.remark("\nEverything stays up until SIGINT or SIGTERM.")?;
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                Some(event) = traffic.next() => ending.account.record(&event),
                now = ticks.tick() => narrator.live(&ending.account.rates(now), &ending.account),
                () = signals.next() => break,
            }
        }
    }
    traffic.stop();
    while let Some(event) = traffic.next().await {
        ending.account.record(&event);
    }
    narrator.end(&ending.account)?;
    ending.judge()
}

/// RPCs per second: enough to see a failure of a fiftieth of a second, little enough for any machine.
const RATE: f64 = 50.0;
const RPC_TIMEOUT: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(250);
