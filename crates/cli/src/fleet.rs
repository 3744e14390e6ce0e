//! What processes hold, a row for each xDS client in them: the data of `status` and `top` (OP-16 to OP-18).

use std::{collections::BTreeMap, time::Duration};

use mainstay::view::ResourceState;
use serde::Serialize;

use crate::{
    failure::Failure,
    get::clean,
    output::{BAD, DIM, styled},
    source::{Holding, Scope, Source},
};

/// One xDS client of a process. What it does not tell is absent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) address: String,
    /// The target, `#server`, or nothing if the client does not tell.
    pub(crate) target: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) user_agent: Option<String>,
    /// The state of the channel.
    pub(crate) channel: Option<&'static str>,
    /// The xDS servers with their states.
    pub(crate) servers: Option<BTreeMap<String, String>>,
    /// The server that the resources in use are from.
    pub(crate) in_charge: Option<String>,
    /// Whether that is not the one that it should be.
    pub(crate) fallback: Option<bool>,
    /// How long ago the last resource came.
    pub(crate) age_ms: Option<u64>,
    /// How many resources are in which state.
    pub(crate) resources: BTreeMap<&'static str, usize>,
    pub(crate) last_error: Option<String>,
    pub(crate) calls: Option<Calls>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Calls {
    pub(crate) started: i64,
    pub(crate) failed: i64,
    pub(crate) in_flight: u32,
}

/// Asks every process at once: rows, or why there are none.
pub(crate) async fn ask(sources: &[Source], timeout: Duration) -> Vec<Result<Vec<Row>, (String, Failure)>> {
    let asked: Vec<_> = sources
        .iter()
        .cloned()
        .map(|source| tokio::spawn(async move { (source.to_string(), source.fetch(timeout).await) }))
        .collect();
    let mut answers = Vec::new();
    for one in asked {
        answers.push(match one.await {
            Ok((_, Ok(holding))) => Ok(rows(&holding)),
            Ok((name, Err(failure))) => Err((name, failure)),
            Err(error) => Err((String::new(), Failure::failed(error.to_string()))),
        });
    }
    answers
}

/// The rows of a process: at least one.
pub(crate) fn rows(holding: &Holding) -> Vec<Row> {
    let rows: Vec<Row> = holding.scopes.iter().map(|scope| Row::new(holding, scope)).collect();
    if rows.is_empty() { vec![Row::new(holding, &Scope::default())] } else { rows }
}

impl Row {
    fn new(holding: &Holding, scope: &Scope) -> Self {
        let told = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let target = told(&scope.scope).or_else(|| told(&scope.targets().join(", ")));
        let channels = holding.channels.as_ref();
        let channel = channels.zip(target.as_ref()).and_then(|(channels, target)| channels.channel(target));
        let mut resources = BTreeMap::new();
        for resource in &scope.resources {
            *resources.entry(state_name(resource.state)).or_default() += 1;
        }
        let used = scope.resources.iter().filter(|resource| resource.encoded.is_some());
        let in_charge = used.clone().find_map(|resource| told(&resource.server));
        let servers: BTreeMap<_, _> = scope.servers.iter().cloned().collect();
        let fallback = in_charge.as_ref().filter(|_| !servers.is_empty()).map(|in_charge| {
            servers.iter().any(|(uri, state)| uri != in_charge && state.starts_with("TRANSIENT_FAILURE"))
        });
        let troubles = servers.iter().filter(|(_, state)| state.contains(": "));
        let troubles = troubles.map(|(uri, state)| format!("{uri}: {state}"));
        let errors = scope.resources.iter().filter_map(|resource| {
            let message = resource.type_url.rsplit('.').next().unwrap_or_default();
            Some(format!("{message} {:?}: {}", resource.name, resource.error.as_ref()?))
        });
        Self {
            address: holding.name.clone(),
            node: told(&scope.node),
            user_agent: told(&scope.user_agent),
            channel: channel.map(|channel| channel.data.state.name()),
            fallback,
            age_ms: used.map(|resource| resource.age.as_millis()).min().and_then(|age| u64::try_from(age).ok()),
            last_error: errors.chain(troubles).next(),
            calls: channel.map(|channel| Calls {
                started: channel.data.started,
                failed: channel.data.failed,
                in_flight: channel.data.in_flight(),
            }),
            servers: (!servers.is_empty()).then_some(servers),
            target,
            in_charge,
            resources,
        }
    }

    /// Whether something is wrong.
    pub(crate) fn is_troubled(&self) -> bool {
        self.last_error.is_some() || self.fallback == Some(true)
    }

    /// How many resources there are, by state.
    pub(crate) fn counts(&self) -> String {
        match self.resources.is_empty() {
            true => "-".to_owned(),
            false => {
                self.resources.iter().map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

/// A state in words.
pub(crate) fn state_name(state: ResourceState) -> &'static str {
    match state {
        ResourceState::Requested => "requested",
        ResourceState::DoesNotExist => "absent",
        ResourceState::Acked => "acked",
        ResourceState::Nacked => "NACKed",
        ResourceState::ReceivedError => "error",
        ResourceState::TimedOut => "timed out",
        _ => "unknown",
    }
}

/// A table: columns as wide as what is in them, the last one cut where the line ends. Where not even the others fit, each row is a
/// list with the names of the columns.
pub(crate) fn table(head: &[&str], rows: &[(bool, Vec<String>)], width: usize) -> String {
    let (head, blocks) = blocks(head, rows, width);
    head.into_iter().chain(blocks.into_iter().flatten()).collect::<Vec<_>>().join("\n")
}

/// The head of a table, if it is one, and the lines of each row.
pub(crate) fn blocks(head: &[&str], rows: &[(bool, Vec<String>)], width: usize) -> (Option<String>, Vec<Vec<String>>) {
    let cell = |text: &str| clean(text).chars().count();
    let widths: Vec<usize> = (0..head.len())
        .map(|column| rows.iter().map(|(_, row)| cell(&row[column])).chain([head[column].len()]).max().unwrap_or(0))
        .collect();
    let fixed: usize = widths.iter().take(head.len().saturating_sub(1)).map(|width| width + 2).sum();
    if fixed > width {
        return (None, rows.iter().map(|row| list(head, row)).collect());
    }
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{:width$}", clean(text), width = *width));
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        match line.char_indices().nth(width.saturating_sub(1)) {
            Some((at, _)) if line.chars().count() > width => format!("{}…", &line[..at]),
            _ => line.to_owned(),
        }
    };
    let head: Vec<String> = head.iter().map(|text| (*text).to_owned()).collect();
    let lines = rows.iter().map(|(bad, row)| vec![if *bad { styled(BAD, line(row)) } else { line(row) }]);
    (Some(styled(DIM, line(&head))), lines.collect())
}

/// A row as a list: what it is about, and below it what is known.
fn list(head: &[&str], (bad, row): &(bool, Vec<String>)) -> Vec<String> {
    let widest = head.iter().map(|name| name.len()).max().unwrap_or(0);
    let title = row.first().map_or_else(String::new, |text| clean(text));
    let told = head.iter().zip(row).skip(1).filter(|(_, text)| *text != "-");
    let told = told.map(|(name, text)| format!("  {}  {}", styled(DIM, format_args!("{name:widest$}")), clean(text)));
    let title = if *bad { styled(BAD, title) } else { title };
    [title].into_iter().chain(told).collect()
}

/// What is not known.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Whole seconds are enough for people.
pub(crate) fn age(age_ms: u64) -> String {
    humantime::format_duration(Duration::from_secs(age_ms / 1000)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_cut_where_the_line_ends() {
        let rows = [(false, vec!["a".to_owned(), "long text".to_owned()])];
        assert_eq!(table(&["X", "Y"], &rows, 6).lines().last(), Some("a  lo…"));
        assert_eq!(table(&["X", "Y"], &rows, usize::MAX).lines().last(), Some("a  long text"));
    }

    #[test]
    fn a_table_that_does_not_fit_is_a_list() {
        let row = |a: &str, b: &str, c: &str| vec![a.to_owned(), b.to_owned(), c.to_owned()];
        let rows = [(false, row("127.0.0.1:1", "xds:///a", "-")), (false, row("127.0.0.1:2", "-", "refused"))];
        let text = table(&["ADDRESS", "TARGET", "ERROR"], &rows, 20);
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(plain, "127.0.0.1:1\n  TARGET   xds:///a\n127.0.0.1:2\n  ERROR    refused");
    }
}
