//! Calls on a schedule that no slow call can delay: an open loop (I-3).

use std::time::Duration;

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};

use crate::call::{self, Caller, Outcome};

/// When calls begin: the n-th round n/rate seconds after the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Schedule {
    rate: f64,
    limit: Option<Duration>,
}

impl Schedule {
    /// `rate` rounds per second; without a limit it never ends.
    pub(crate) fn new(rate: f64, limit: Option<Duration>) -> Self {
        Self { rate, limit }
    }

    /// When round `n` begins, as time since the start; nothing if the schedule has ended by then.
    pub(crate) fn start_of(&self, n: u64) -> Option<Duration> {
        let start = Duration::try_from_secs_f64(n as f64 / self.rate).ok()?;
        self.limit.is_none_or(|limit| start < limit).then_some(start)
    }
}

/// What happens to the traffic.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A call to a target has begun, so much later than the schedule wanted.
    Began { target: usize, late: Duration },
    /// A call has ended.
    Ended(Outcome),
}

/// Calls under way in the background. Dropping it abandons them.
#[derive(Debug)]
pub(crate) struct Traffic {
    events: mpsc::UnboundedReceiver<Event>,
    stop: Option<oneshot::Sender<()>>,
}

impl Traffic {
    /// Begins to call: in each round of the schedule once through each of the callers.
    pub(crate) fn start(schedule: Schedule, callers: Vec<Box<dyn Caller>>, timeout: Duration) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(drive(schedule, callers, timeout, sender, stopped));
        Self { events, stop: Some(stop) }
    }

    /// The next event; none after the last call.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Begins no more calls. Those under way have a moment to end; what has not ended then never will.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }
}

/// Begins the calls. This task never waits for one, only for the clock.
async fn drive(
    schedule: Schedule,
    callers: Vec<Box<dyn Caller>>,
    timeout: Duration,
    events: mpsc::UnboundedSender<Event>,
    mut stopped: oneshot::Receiver<()>,
) {
    let begin = Instant::now();
    let mut calls = JoinSet::new();
    let mut patience = timeout + MARGIN;
    for start in (0..).map_while(|n| schedule.start_of(n)) {
        let due = begin + start;
        tokio::select! {
            biased;
            _ = &mut stopped => {
                patience = patience.min(MOMENT);
                break;
            }
            // Whoever hears the events has left.
            () = events.closed() => return,
            () = tokio::time::sleep_until(due) => {}
        }
        for (target, caller) in callers.iter().enumerate() {
            if events.send(Event::Began { target, late: due.elapsed() }).is_err() {
                return;
            }
            let call = call::begin(&**caller, target, timeout);
            let events = events.clone();
            calls.spawn(async move {
                let outcome = call.await;
                // Nobody may be left to hear it.
                let _ = events.send(Event::Ended(outcome));
            });
        }
        while calls.try_join_next().is_some() {}
    }
    let ended = async { while calls.join_next().await.is_some() {} };
    tokio::select! {
        _ = tokio::time::timeout(patience, ended) => {}
        () = events.closed() => {}
    }
}

/// How much longer than its deadline a call may take before it is given up: time for its timer to fire.
const MARGIN: Duration = Duration::from_secs(1);

/// How long calls may go on after a stop.
const MOMENT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::call::fake::{Fake, answered, failed, unanswered};

    #[test]
    fn rounds_are_evenly_spaced_and_end_before_the_limit() {
        let schedule = Schedule::new(4.0, Some(Duration::from_secs(1)));
        let starts: Vec<_> = (0..).map_while(|n| schedule.start_of(n)).map(|start| start.as_millis()).collect();
        assert_eq!(starts, [0, 250, 500, 750]);
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_does_not_drift() {
        let schedule = Schedule::new(3.0, None);
        assert_eq!(schedule.start_of(3 * 3600), Some(Duration::from_secs(3600)));
        assert_eq!(Schedule::new(0.5, None).start_of(2), Some(Duration::from_secs(4)));
        assert_eq!(Schedule::new(0.001, None).start_of(u64::MAX), None, "the end of time is an end, not a panic");
    }

    #[test]
    fn duration_times_rate_is_the_number_of_rounds() {
        for (rate, seconds, rounds) in [(10.0, 3, 30), (100.0, 10, 1000), (7.0, 2, 14), (0.5, 3, 2)] {
            let schedule = Schedule::new(rate, Some(Duration::from_secs(seconds)));
            assert_eq!((0..).map_while(|n| schedule.start_of(n)).count(), rounds, "{rate}/s for {seconds} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_hang_delay_nothing() {
        // I-3: open loop. Every call hangs to its deadline, which is after the last start.
        let start = Instant::now();
        let schedule = Schedule::new(10.0, Some(Duration::from_secs(1)));
        let mut traffic = Traffic::start(schedule, vec![Box::new(Fake(unanswered))], Duration::from_secs(5));
        let mut began = Vec::new();
        let mut ended = Vec::new();
        while let Some(event) = traffic.next().await {
            match event {
                Event::Began { late, .. } => {
                    assert!(late < Duration::from_millis(2), "{late:?}");
                    began.push((start.elapsed() - late).as_millis());
                }
                Event::Ended(outcome) => ended.push(outcome.result.unwrap_err().code),
            }
        }
        assert_eq!(began, (0..10).map(|n| n * 100).collect::<Vec<_>>());
        assert_eq!(ended, [Code::DeadlineExceeded; 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn every_target_is_called_in_every_round() {
        let schedule = Schedule::new(5.0, Some(Duration::from_secs(2)));
        let callers: Vec<Box<dyn Caller>> = vec![
            Box::new(Fake(|| answered("one", Duration::from_millis(1)))),
            Box::new(Fake(|| failed(Code::Internal))),
        ];
        let mut traffic = Traffic::start(schedule, callers, Duration::from_secs(5));
        let mut ended = [0, 0];
        while let Some(event) = traffic.next().await {
            if let Event::Ended(outcome) = event {
                assert_eq!(outcome.result.is_ok(), outcome.target == 0);
                ended[outcome.target] += 1;
            }
        }
        assert_eq!(ended, [10, 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_stop_calls_have_a_moment_and_no_more() {
        let start = Instant::now();
        let delays = [Duration::from_millis(300), Duration::from_secs(10)];
        let callers = delays.map(|delay| Box::new(Fake(move || answered("one", delay))) as Box<dyn Caller>);
        let mut traffic = Traffic::start(Schedule::new(1.0, None), callers.into(), Duration::from_secs(20));
        for _ in 0..2 {
            assert!(matches!(traffic.next().await, Some(Event::Began { .. })));
        }
        traffic.stop();
        let Some(Event::Ended(outcome)) = traffic.next().await else { panic!("the quick call must end") };
        assert_eq!(outcome.target, 0);
        assert!(traffic.next().await.is_none());
        assert_eq!(start.elapsed().as_millis() / 100, MOMENT.as_millis() / 100);
    }
}
