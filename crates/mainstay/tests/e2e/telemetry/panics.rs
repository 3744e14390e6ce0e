//! Telemetry that panics costs nothing but what it would have told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainstay::Telemetry;
use opentelemetry::metrics::{
    Counter, Histogram, HistogramBuilder, InstrumentBuilder, InstrumentProvider, Meter, MeterProvider, SyncInstrument,
    UpDownCounter,
};
use opentelemetry::{InstrumentationScope, KeyValue};

use crate::common::{Client, backends, builder, call, control_plane, service, until_answered_by};

/// Every measurement panics: those of RPCs in the task of the caller, those of the xDS client and of connections in ours.
#[tokio::test]
async fn telemetry_that_panics_fails_no_call() {
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one])).await;
    let panicking = Panicking::default();
    let telemetry = Telemetry::builder().meter_provider(&panicking).build();
    let channel = builder(&[&server]).telemetry(telemetry).build().unwrap();
    let mut client = Client::new(channel);
    for _ in 0..3 {
        assert_eq!(call(&mut client).await.unwrap(), "one");
    }
    server.control_plane().set(service(&[&two]));
    until_answered_by(&mut client, "two").await;
    assert!(panicking.0.load(Ordering::Relaxed) > 3, "it was asked, and panicked");
}

/// How often something was measured.
#[derive(Clone, Default)]
struct Panicking(Arc<AtomicUsize>);

impl MeterProvider for Panicking {
    fn meter_with_scope(&self, _scope: InstrumentationScope) -> Meter {
        Meter::new(Arc::new(self.clone()))
    }
}

impl InstrumentProvider for Panicking {
    fn u64_counter(&self, _builder: InstrumentBuilder<'_, Counter<u64>>) -> Counter<u64> {
        Counter::new(Arc::new(self.clone()))
    }

    fn i64_up_down_counter(&self, _builder: InstrumentBuilder<'_, UpDownCounter<i64>>) -> UpDownCounter<i64> {
        UpDownCounter::new(Arc::new(self.clone()))
    }

    fn f64_histogram(&self, _builder: HistogramBuilder<'_, Histogram<f64>>) -> Histogram<f64> {
        Histogram::new(Arc::new(self.clone()))
    }

    fn u64_histogram(&self, _builder: HistogramBuilder<'_, Histogram<u64>>) -> Histogram<u64> {
        Histogram::new(Arc::new(self.clone()))
    }
}

impl<T> SyncInstrument<T> for Panicking {
    fn measure(&self, _measurement: T, _attributes: &[KeyValue]) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("the exporter is broken");
    }
}
