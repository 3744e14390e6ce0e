//! Looks at processes again and again.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
};

use super::{
    timeline::{Entry, differences},
    watched::Watched,
};
use crate::{
    inspect::Process,
    source::{Holding, Source},
};

/// What is known at one moment. Cheap to copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// In the order in which they were named.
    pub(super) processes: Vec<Arc<Watched>>,
    /// What happened, the newest first.
    pub(super) timeline: VecDeque<Arc<Entry>>,
}

/// An answer of the process at a place in the list.
type Answer = (usize, Result<Holding, String>);

/// Watches `sources` as long as the future runs.
pub(super) fn watch(
    sources: Vec<Source>,
    interval: Duration,
    timeout: Duration,
) -> (watch::Receiver<Arc<Look>>, impl Future<Output = ()>) {
    let processes = sources.iter().map(|source| Arc::new(Watched::unknown(source.to_string()))).collect();
    let (sender, receiver) = watch::channel(Arc::new(Look { processes, timeline: VecDeque::new() }));
    let watching = async move {
        let (answers, mut answered) = mpsc::channel(AT_ONCE);
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        // They end with this future.
        let mut asking = JoinSet::new();
        for (place, source) in sources.into_iter().enumerate() {
            asking.spawn(ask(place, source, interval, timeout, turns.clone(), answers.clone()));
        }
        let mut batch = Vec::new();
        while answered.recv_many(&mut batch, AT_ONCE).await > 0 {
            let now = SystemTime::now();
            sender.send_modify(|look| {
                let look = Arc::make_mut(look);
                batch.drain(..).for_each(|(place, answer)| look.take_in(place, answer, now));
            });
        }
    };
    (receiver, watching)
}

async fn ask(
    place: usize,
    source: Source,
    interval: Duration,
    timeout: Duration,
    turns: Arc<Semaphore>,
    answers: mpsc::Sender<Answer>,
) {
    let mut beat = tokio::time::interval(interval);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        let answer = {
            let Ok(_turn) = turns.acquire().await else { return };
            source.fetch(timeout).await.map_err(|failure| failure.what().to_owned())
        };
        if answers.send((place, answer)).await.is_err() {
            return;
        }
    }
}

impl Look {
    fn take_in(&mut self, place: usize, answer: Result<Holding, String>, now: SystemTime) {
        let Some(before) = self.processes.get(place).cloned() else { return };
        let answer =
            answer.and_then(|holding| Process::new(&holding, None).map_err(|failure| failure.what().to_owned()));
        let after = match answer {
            Ok(process) => Watched::of(before.address.clone(), process),
            Err(error) => before.lost(error),
        };
        for entry in differences(&before, &after, now) {
            self.timeline.push_front(Arc::new(entry));
        }
        self.timeline.truncate(KEPT_ENTRIES);
        self.processes[place] = Arc::new(after);
    }
}

/// Processes that are asked at once, and answers that are taken in at once.
const AT_ONCE: usize = 64;
const KEPT_ENTRIES: usize = 500;
