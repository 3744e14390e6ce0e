//! What is counted, in the text form of Prometheus (OP-27). No label holds what clients choose: there may be any number of
//! them.

use std::{fmt, time::Instant};

use mainstay_control_plane::{FeedStatus, Stats, Waits};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::{MetricType, exemplar::Exemplar},
    registry::Registry,
};

use crate::{cost, serve::subject::Subject};

/// All of it, as it is now.
pub(super) fn text(subject: &Subject) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Process));
    let now = Now { stats: subject.server.stats(), feeds: subject.intake.feeds() };
    registry.sub_registry_with_prefix("mainstay_cp").register_collector(Box::new(now));
    let mut page = String::new();
    match text::encode(&mut page, &registry) {
        Ok(()) => page,
        // A string takes everything; to serve half of it would be worse than nothing.
        Err(error) => format!("# {error}\n"),
    }
}

/// What the process costs, under the names that all programs use.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(time) = cost::processor_time() {
            let help = "Processor time of the process";
            let mut counter = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            counter.encode_counter(&time.as_secs_f64(), None::<&Exemplar<NoLabelSet, f64>>)?;
        }
        if let Some(bytes) = cost::resident_memory() {
            let help = "Resident memory of the process";
            encoder
                .encode_descriptor("process_resident_memory_bytes", help, None, MetricType::Gauge)?
                .encode_gauge(&bytes)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Now {
    stats: Stats,
    feeds: Vec<FeedStatus>,
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self { stats, feeds } = self;
        let mut gauge = |name: &str, help: &str, value: u64| {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
        };
        gauge("streams", "ADS streams that are open", stats.open_streams)?;
        gauge("connections", "Connections that are open", stats.open_connections)?;

        let opens = [
            ("accepted", stats.streams),
            ("busy", stats.refused_busy),
            ("draining", stats.refused_draining),
            ("closed", stats.refused_closed),
        ];
        let help = "ADS streams that clients asked for, by what became of it";
        let mut family = encoder.encode_descriptor("stream_opens", help, None, MetricType::Counter)?;
        opens.iter().try_for_each(|(result, count)| counter(family.encode_family(&[("result", *result)])?, *count))?;

        let types = || Stats::TYPES.into_iter().zip(stats.by_type);
        let mut family =
            encoder.encode_descriptor("responses", "Responses that were sent", None, MetricType::Counter)?;
        types().try_for_each(|(name, of)| counter(family.encode_family(&[("type", name)])?, of.responses))?;
        let mut family =
            encoder.encode_descriptor("nacks", "Responses that clients rejected", None, MetricType::Counter)?;
        types().try_for_each(|(name, of)| counter(family.encode_family(&[("type", name)])?, of.nacks))?;

        for (name, help, count) in [
            ("response_bytes", "Bytes of responses, without those of HTTP/2", stats.response_bytes),
            ("encodings", "Responses that were encoded; the others shared their bytes", stats.encodings),
            ("requests", "Requests that were read", stats.requests),
            ("asked_too_much", "Streams that ended because their client asked for too much", stats.asked_too_much),
            ("slow_readers", "Connections that were cut because their client did not read", stats.slow_readers),
        ] {
            counter(encoder.encode_descriptor(name, help, None, MetricType::Counter)?, count)?;
        }

        let help = "From the opening of a stream to its first response";
        let histogram = encoder.encode_descriptor("first_response_seconds", help, None, MetricType::Histogram)?;
        waits(histogram, &stats.first_responses)?;

        let seconds = |since: Option<Instant>| since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        let help = "How long ago what is served was last brought";
        let mut family = encoder.encode_descriptor("view_age_seconds", help, None, MetricType::Gauge)?;
        for feed in feeds.iter().filter(|feed| feed.brought.is_some()) {
            family.encode_family(&[("class", feed.name.as_str())])?.encode_gauge(&seconds(feed.brought))?;
        }
        let help = "For how long a source has been behind what it follows";
        let mut family = encoder.encode_descriptor("source_behind_seconds", help, None, MetricType::Gauge)?;
        for feed in feeds {
            family.encode_family(&[("source", feed.name.as_str())])?.encode_gauge(&seconds(feed.behind))?;
        }
        Ok(())
    }
}

fn counter(mut encoder: MetricEncoder<'_>, count: u64) -> fmt::Result {
    encoder.encode_counter(&count, None::<&Exemplar<NoLabelSet, f64>>)
}

fn waits(mut encoder: MetricEncoder<'_>, waits: &Waits) -> fmt::Result {
    let bounds = Waits::BOUNDS.into_iter().chain([f64::MAX]);
    let buckets: Vec<_> = bounds.zip(waits.counts).collect();
    let seconds = std::time::Duration::from_micros(waits.micros).as_secs_f64();
    encoder.encode_histogram::<NoLabelSet>(seconds, waits.counts.iter().sum(), &buckets, None)
}
