//! What it costs to match a route and to pick an endpoint.

use std::time::Instant;

use http::HeaderMap;
use mainstay_control_plane::resources;
use mainstay_lb::{Decision, Rpc};

use crate::core::{Core, Random, response};
use crate::plot::{Plot, number};
use crate::report::Report;
use crate::{Options, Result, alloc, stats};

const ROUTES: [usize; 4] = [10, 100, 1_000, 10_000];

pub(crate) fn measure(options: &Options) -> Result<Report> {
    let mut report = Report::new("route", &["routes", "ns per decision", "allocations"]);
    let mut plot = Plot::new("Route match and pick", "ns");
    let (turns, calls) = if options.quick { (20, 2_000) } else { (100, 10_000) };
    let tables = ROUTES.into_iter().map(table).collect::<Result<Vec<_>>>()?;
    let mut nanos = vec![Vec::new(); tables.len()];
    let mut allocations = vec![u64::MAX; tables.len()];
    for _ in 0..turns {
        for (place, table) in tables.iter().enumerate() {
            let before = alloc::calls();
            nanos[place].push(table.nanos_per_decision(calls)?);
            allocations[place] = allocations[place].min(alloc::calls() - before);
        }
    }
    for ((routes, nanos), allocations) in ROUTES.iter().zip(nanos).zip(&allocations) {
        let least = stats::least(nanos);
        report.set(&["ns", &routes.to_string()], least);
        plot.bar(format!("{routes} routes"), least, true);
        report.row([routes.to_string(), number(least), number(*allocations as f64 / f64::from(calls))]);
    }
    report.set(&["allocations"], allocations.iter().max().copied().unwrap_or(0) as f64 / f64::from(calls));
    report.plot(plot);
    report.note("paths over all routes in turn, 16 endpoints in the cluster; the best of many turns");
    Ok(report)
}

/// A core with many routes to one cluster.
struct Table {
    core: Core,
    paths: Vec<String>,
}

fn table(routes: usize) -> Result<Table> {
    let prefixes = || (0..routes).map(|n| format!("/shop.v1.Service{n:05}/"));
    let table = prefixes().map(|prefix| resources::prefix_route(prefix, "service"));
    let addresses = (1..=16).map(|n| format!("10.0.0.{n}:80"));
    let mut core = Core::new([
        response("1", [resources::listener("service", resources::rds("service"))]),
        response("1", [resources::route_table("service", table)]),
        response("1", [resources::eds_cluster("service")]),
        response("1", [resources::endpoints("service", addresses)]),
    ])?;
    core.connect_all();
    // Jumping around, as real calls do.
    let paths: Vec<String> = prefixes().map(|prefix| prefix + "Method").collect();
    let paths = (0..routes).map(|n| paths[n * 7919 % routes].clone()).collect();
    Ok(Table { core, paths })
}

impl Table {
    fn nanos_per_decision(&self, calls: u32) -> Result<f64> {
        let snapshot = self.core.snapshot.as_ref().ok_or("no snapshot was published")?;
        let headers = HeaderMap::new();
        let mut paths = self.paths.iter().cycle();
        let start = Instant::now();
        for _ in 0..calls {
            let path = paths.next().ok_or("no paths")?;
            match snapshot.decide(Rpc { path, headers: &headers }, &mut Random) {
                Decision::Send(to) => drop(std::hint::black_box(to)),
                other => return Err(format!("{path} is not sent: {other:?}").into()),
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(calls))
    }
}
