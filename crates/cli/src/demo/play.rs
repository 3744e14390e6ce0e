//! The script engine: does the acts, watches the traffic, judges.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::{
    account::{Account, Kill, WINDOW},
    narrator::{Narrator, Seen, Settled},
    said::{Heard, Said},
    script::{Act, Scene, Sight},
};
use crate::{
    call::Outcome,
    failure::Failure,
    traffic::{Event, Traffic},
};

/// The mesh in which the script is played.
pub(super) trait Stage {
    /// Does something to the mesh; returns when it is done.
    fn act(&mut self, act: Act) -> impl Future<Output = Result<(), Failure>>;

    /// What the xDS client says next; `None` if it says nothing more. Nothing is lost by giving up waiting.
    fn said(&mut self) -> impl Future<Output = Option<Said>>;

    /// Whether this can be seen now.
    fn shows(&self, sight: Sight) -> bool;
}

/// A performance.
pub(super) struct Play<'a, S> {
    pub(super) stage: &'a mut S,
    pub(super) traffic: &'a mut Traffic,
    pub(super) narrator: &'a mut Narrator,
    /// What came of it so far; valid also when the performance is broken off.
    pub(super) ending: &'a mut Ending,
}

/// What came of a performance.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) account: Account,
    /// The scenes in which not everything got where it belongs, by number.
    pub(super) astray: Vec<usize>,
}

impl Ending {
    pub(super) fn new() -> Self {
        Self { account: Account::new(), astray: Vec::new() }
    }

    /// Whether everything went as it should.
    pub(super) fn judge(&self) -> Result<(), Failure> {
        let unexcused = self.account.unexcused();
        if unexcused > 0 {
            return Err(Failure::calls(format!("{unexcused} RPCs failed that should not have")));
        }
        match self.astray.first() {
            Some(scene) => Err(Failure::calls(format!("in scene {scene} not everything got where it belongs"))),
            None => Ok(()),
        }
    }
}

impl<S: Stage> Play<'_, S> {
    /// Plays the scenes in order.
    pub(super) async fn run(mut self, script: &[Scene]) -> Result<(), Failure> {
        let mut before: &[&str] = &[];
        for (number, scene) in (1..).zip(script) {
            self.scene(number, scene, before).await?;
            before = scene.expect;
        }
        Ok(())
    }

    /// Plays one scene. `before` is where the traffic was until now.
    async fn scene(&mut self, number: usize, scene: &Scene, before: &[&str]) -> Result<(), Failure> {
        let (mut account, mut heard) = (Account::new(), Heard::default());
        let begin = Instant::now();
        self.narrator.scene(number, scene)?;
        for &act in scene.acts {
            self.narrator.act(act)?;
            let from = Instant::now();
            self.stage.act(act).await?;
            if let Act::KillBackend(_) = act {
                let kill = Kill { from, to: Instant::now() };
                account.excuse(kill);
                self.ending.account.excuse(kill);
            }
        }
        let settled = match self.watch(scene, begin, &mut account, &mut heard).await? {
            Some(_) if before == scene.expect => Settled::Stayed,
            Some(after) => Settled::After(after),
            None => {
                self.ending.astray.push(number);
                Settled::Never
            }
        };
        let rates = account.rates(Instant::now());
        self.narrator.seen(&Seen { number, scene, account: &account, heard: &heard, rates: &rates, settled })
    }

    /// Watches until the traffic has been for a while where the scene wants it and all else is as it should be; tells
    /// when the traffic got there.
    async fn watch(
        &mut self,
        scene: &Scene,
        begin: Instant,
        account: &mut Account,
        heard: &mut Heard,
    ) -> Result<Option<Duration>, Failure> {
        let mut ticks = tokio::time::interval(TICK);
        let mut unseen: BTreeSet<_> = scene.expect.iter().copied().collect();
        let mut arrived = begin;
        loop {
            tokio::select! {
                // What has happened is written down before it is judged.
                biased;
                event = self.traffic.next() => {
                    let Some(event) = event else { return Ok(None) };
                    account.record(&event);
                    self.ending.account.record(&event);
                    if let Event::Ended(Outcome { start, took, result: Ok(name), .. }) = event {
                        let is_stray = !scene.expect.contains(&name.as_str());
                        if is_stray || unseen.remove(name.as_str()) {
                            arrived = arrived.max(start + took);
                        }
                    }
                }
                Some(said) = self.stage.said() => {
                    if let Some(text) = heard.note(said) {
                        self.narrator.said(text)?;
                    }
                }
                now = ticks.tick() => {
                    self.narrator.live(&account.rates(now), account);
                    let elapsed = now.saturating_duration_since(begin);
                    let is_in_place =
                        account.is_at(scene.expect, now) && scene.sight.is_none_or(|sight| self.stage.shows(sight));
                    if elapsed >= scene.at_least.max(WINDOW) && is_in_place {
                        return Ok(Some(arrived.saturating_duration_since(begin)));
                    }
                    if elapsed >= scene.at_most {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

/// How often the traffic is looked at.
const TICK: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
    use tonic::Code;

    use super::*;
    use crate::{
        call::{
            Caller,
            fake::{Fake, answered, failed},
        },
        demo::{
            narrator::Telling,
            script::{Cluster, NOWHERE, SCRIPT},
        },
        output::Output,
        traffic::Schedule,
    };

    #[tokio::test(start_paused = true)]
    async fn the_whole_script_passes_in_a_world_that_obeys() {
        let (ending, told) = play(FakeMesh::new(Flaw::None), Telling::Text { live: false }).await;
        ending.judge().expect("nothing must fail");
        assert_eq!(ending.account.tally().failed(), 0);
        let (head, end) = told.split_once("The end: ").expect("the end must be told");
        assert_eq!(head.trim_start(), NARRATION);
        assert!(end.contains(" RPCs sent, 0 failed\n   eight "), "{end}");
    }

    #[tokio::test(start_paused = true)]
    async fn json_has_a_line_for_each_scene_and_one_for_the_whole() {
        let (ending, told) = play(FakeMesh::new(Flaw::None), Telling::Json).await;
        let lines: Vec<serde_json::Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), SCRIPT.len() + 1);
        assert_eq!(lines[1]["acts"][0], "EDS update: cluster blue is now one, two, four");
        assert_eq!((&lines[1]["settled"], &lines[1]["failed"]), (&true.into(), &0.into()));
        assert_eq!(lines[7]["events"], serde_json::json!(["connected to primary", "returned to primary"]));
        assert_eq!(lines[7]["expected_sight"], "the fallback has 0 connections");
        assert_eq!((&lines[11]["end"], &lines[11]["sent"]), (&true.into(), &ending.account.tally().sent().into()));
    }

    #[tokio::test(start_paused = true)]
    async fn traffic_that_needs_the_control_plane_fails_the_demo() {
        let (ending, told) = play(FakeMesh::new(Flaw::NeedsControlPlane), Telling::Text { live: false }).await;
        assert!(ending.account.unexcused() > 0);
        assert!(format!("{}", ending.judge().unwrap_err()).contains("RPCs failed that should not have"));
        assert!(told.contains("expected traffic at one, two, four and nowhere else"), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn traffic_that_does_not_follow_the_configuration_fails_the_demo() {
        let (ending, _) = play(FakeMesh::new(Flaw::IgnoresEndpoints), Telling::Json).await;
        assert_eq!(ending.account.unexcused(), 0);
        assert_eq!(ending.astray.first(), Some(&2));
        assert!(ending.judge().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_fallback_that_is_not_let_go_fails_the_demo() {
        // A71
        let (ending, told) = play(FakeMesh::new(Flaw::KeepsFallback), Telling::Text { live: false }).await;
        assert_eq!((ending.account.unexcused(), &*ending.astray), (0, &[8][..]));
        assert!(ending.judge().is_err());
        let expected = "expected traffic at seven, eight and nowhere else, and that the fallback has 0 connections";
        assert!(told.contains(expected), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_die_with_their_backend_are_told_and_excused() {
        let (ending, told) = play(FakeMesh::new(Flaw::SlowToNotice), Telling::Text { live: false }).await;
        ending.judge().expect("calls on a dying connection cannot be saved");
        assert!(ending.account.excused() > 0);
        assert!(told.contains("failed (under way when their backend was killed)"), "{told}");
    }

    const NARRATION: &str = "\
1. Traffic over three backends
   xDS:  connected to primary
   seen: one 17/s, three 16/s, two 17/s; 125 RPCs, 0 failed
         in place after 0.04 s

2. A backend is replaced by configuration: no RPC may fail
   done: EDS update: cluster blue is now one, two, four
   seen: four 17/s, one 17/s, two 16/s; 125 RPCs, 0 failed
         in place after 0.04 s

3. A backend dies: the others take over
   done: backend two is killed
   seen: four 25/s, one 25/s; 125 RPCs, 0 failed
         in place after 0.02 s

4. It returns: traffic finds it again
   done: backend two is started again on its port
   seen: four 16/s, one 17/s, two 17/s; 125 RPCs, 0 failed
         in place after 0.04 s

5. Every control plane dies: traffic goes on as if nothing had happened
   done: both control planes are killed
   xDS:  primary cannot be reached; next attempt in 1 s
   seen: four 17/s, one 16/s, two 17/s; 175 RPCs, 0 failed

6. They return with new routes: traffic moves to another cluster
   done: both control planes return; their route now leads to cluster green
   xDS:  connected to primary
   seen: five 25/s, six 25/s; 125 RPCs, 0 failed
         in place after 0.02 s

7. The primary announces a new cluster and dies before it sends it: the fallback takes over
   done: the primary control plane will die when it is asked for cluster amber
   done: RDS update: the route now leads to a new cluster, amber: seven, eight
   xDS:  primary cannot be reached; next attempt in 1 s
   xDS:  fell back to fallback
   seen: eight 25/s, seven 25/s; 100 RPCs, 0 failed
         in place after 0.02 s
         the fallback has 1 connection

8. The primary returns: the client goes back to it, the fallback is let go
   done: the primary control plane is started again on its port
   xDS:  connected to primary
   xDS:  returned to primary
   seen: eight 25/s, seven 25/s; 100 RPCs, 0 failed
         the fallback has 0 connections

9. The control planes announce nonsense: it is rejected, traffic stays
   done: EDS update: cluster amber is now nowhere
   xDS:  rejected nonsense of primary
   seen: eight 25/s, seven 25/s; 100 RPCs, 0 failed
         the primary was told of the rejection

10. Servers that the control planes configure, with mTLS on both sides: traffic moves to them
   done: RDS update: the route now leads to a new cluster, violet: nine, ten
   seen: nine 25/s, ten 25/s; 100 RPCs, 0 failed
         in place after 0.02 s

11. Certificates are rotated, and a server of another identity is refused: no RPC may fail
   done: client and servers get new certificates, and server ten is started again
   done: EDS update: cluster violet is now nine, ten, mallory
   seen: nine 25/s, ten 25/s; 125 RPCs, 0 failed
         servers were shown the new certificate of the client, and mallory got no request

";

    async fn play(mut mesh: FakeMesh, telling: Telling) -> (Ending, String) {
        let told = Shared::default();
        let mut narrator = Narrator::new(Output::new(told.clone()), telling);
        let mut traffic = Traffic::start(Schedule::new(50.0, None), vec![mesh.caller()], Duration::from_secs(5));
        let mut ending = Ending::new();
        let play = Play { stage: &mut mesh, traffic: &mut traffic, narrator: &mut narrator, ending: &mut ending };
        play.run(SCRIPT).await.expect("nothing can go wrong here");
        narrator.end(&ending.account).expect("nothing can go wrong here");
        let told = String::from_utf8(told.0.lock().unwrap().clone()).unwrap();
        (ending, anstream::adapter::strip_str(&told).to_string())
    }

    /// A mesh by round robin over the backends that are announced and alive.
    struct FakeMesh {
        flaw: Flaw,
        state: Arc<Mutex<State>>,
        says: UnboundedSender<Said>,
        said: UnboundedReceiver<Said>,
        doomed: Option<Cluster>,
        fallback_connections: u64,
        rejected: bool,
        rotated: bool,
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Flaw {
        None,
        NeedsControlPlane,
        IgnoresEndpoints,
        KeepsFallback,
        SlowToNotice,
    }

    struct State {
        route: Cluster,
        blue: &'static [&'static str],
        dead: Vec<&'static str>,
        killed: Option<Instant>,
        control_planes: bool,
    }

    impl FakeMesh {
        fn new(flaw: Flaw) -> Self {
            let blue = Cluster::Blue.first_endpoints();
            let state = State { route: Cluster::Blue, blue, dead: Vec::new(), killed: None, control_planes: true };
            let state = Arc::new(Mutex::new(state));
            let (says, said) = mpsc::unbounded_channel();
            let (rejected, rotated) = (false, false);
            let mesh = Self { flaw, state, says, said, doomed: None, fallback_connections: 0, rejected, rotated };
            mesh.say("connected to primary");
            mesh
        }

        fn caller(&self) -> Box<dyn Caller> {
            let (state, flaw, turn) = (Arc::clone(&self.state), self.flaw, AtomicUsize::new(0));
            Box::new(Fake(move || {
                let state = state.lock().unwrap();
                let slow = flaw == Flaw::SlowToNotice
                    && state.killed.is_some_and(|killed| killed.elapsed() < Duration::from_millis(100));
                if slow || (flaw == Flaw::NeedsControlPlane && !state.control_planes) {
                    return failed(Code::Unavailable);
                }
                let announced = if state.route == Cluster::Blue { state.blue } else { state.route.first_endpoints() };
                let alive: Vec<_> = announced.iter().filter(|name| !state.dead.contains(name)).collect();
                let name = alive[turn.fetch_add(1, Ordering::Relaxed) % alive.len()];
                answered(name, Duration::from_millis(1))
            }))
        }

        fn say(&self, text: &str) {
            self.says.send(Said::always(text.to_owned())).unwrap();
        }

        /// As the client does it: again and again.
        fn say_unreachable(&self) {
            for seconds in 1..=3 {
                let text = format!("primary cannot be reached; next attempt in {seconds} s");
                self.says.send(Said::once("primary".to_owned(), text)).unwrap();
            }
        }
    }

    impl Stage for FakeMesh {
        async fn act(&mut self, act: Act) -> Result<(), Failure> {
            let mut state = self.state.lock().unwrap();
            match act {
                Act::Endpoints(_, &[NOWHERE]) => {
                    self.rejected = true;
                    self.say("rejected nonsense of primary");
                }
                Act::Endpoints(_, _) if self.flaw == Flaw::IgnoresEndpoints => {}
                Act::Endpoints(Cluster::Violet, _) => {} // The impostor is refused.
                Act::Endpoints(_, backends) => state.blue = backends,
                Act::Rotate(_) => self.rotated = true,
                Act::KillBackend(name) => {
                    state.dead.push(name);
                    state.killed = Some(Instant::now());
                }
                Act::RestoreBackend(name) => state.dead.retain(|dead| *dead != name),
                Act::KillControlPlanes => {
                    state.control_planes = false;
                    self.say_unreachable();
                }
                Act::RestoreControlPlanes(cluster) => {
                    (state.control_planes, state.route) = (true, cluster);
                    self.say("connected to primary");
                }
                Act::DoomPrimary(cluster) => self.doomed = Some(cluster),
                Act::Announce(cluster) => {
                    state.route = cluster;
                    if self.doomed == Some(cluster) {
                        self.fallback_connections = 1;
                        self.say_unreachable();
                        self.say("fell back to fallback");
                    }
                }
                Act::RestorePrimary => {
                    if self.flaw != Flaw::KeepsFallback {
                        self.fallback_connections = 0;
                    }
                    self.say("connected to primary");
                    self.say("returned to primary");
                }
            }
            Ok(())
        }

        async fn said(&mut self) -> Option<Said> {
            self.said.recv().await
        }

        fn shows(&self, sight: Sight) -> bool {
            match sight {
                Sight::FallbackConnections(count) => self.fallback_connections == count,
                Sight::Rejection => self.rejected,
                Sight::Identities => self.rotated,
            }
        }
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
