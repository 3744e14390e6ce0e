//! `mainstay mirror`: what a running mirror holds back, and what becomes of it.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    failure::Failure,
    output::{BAD, DIM, GOOD, Output, TITLE, styled},
    progress, span,
};

/// Look at a mirror, and decide about updates that it holds back
///
/// A mirror is `mainstay serve --mirror-of URI --admin ADDR`. An update of the primary that removes more than half of the
/// endpoints of a cluster, or of the clusters or routes of a class, is held back for 5 minutes (`brake` in mirror.yaml).
#[derive(Args, Debug)]
pub(crate) struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show each class: what is in force, how old it is, and whether the primary answers
    ///
    /// The exit code is 4 if a class is not ready.
    Status(At),
    /// Show what is held back, and why
    Held(At),
    /// Put into force what is held back for a class
    Accept(Of),
    /// Hold it back until it is accepted, or until the primary says something else
    Refuse(Of),
}

#[derive(Args, Debug)]
struct At {
    /// The admin port of the mirror
    #[arg(long, value_name = "ADDR")]
    admin: String,

    /// Print each class as a line of JSON
    #[arg(long)]
    json: bool,

    /// How long to wait for an answer
    #[arg(long, value_name = "T", default_value = "5s", value_parser = span::parse)]
    timeout: Duration,
}

#[derive(Args, Debug)]
struct Of {
    /// The class
    #[arg(value_name = "CLASS")]
    class: String,

    /// The admin port of the mirror
    #[arg(long, value_name = "ADDR")]
    admin: String,

    /// How long to wait for an answer
    #[arg(long, value_name = "T", default_value = "5s", value_parser = span::parse)]
    timeout: Duration,
}

pub(crate) async fn run(flags: Flags, mut output: Output) -> Result<(), Failure> {
    match flags.command {
        Command::Status(at) => {
            let classes = classes(&at).await?;
            show(&at, &classes, &mut output)?;
            let waiting: Vec<_> =
                classes.iter().filter(|class| class["ready"] != true).map(|c| text(c, "class")).collect();
            match waiting.is_empty() {
                true => Ok(()),
                false => Err(Failure::partial(format!("not complete yet: {}", waiting.join(", ")))),
            }
        }
        Command::Held(at) => {
            let mut classes = classes(&at).await?;
            classes.retain(|class| !class["held"].is_null());
            if classes.is_empty() && !at.json {
                return output.line("nothing is held back");
            }
            show(&at, &classes, &mut output)
        }
        Command::Accept(of) => {
            command(&of, "accept").await?;
            output.line(format_args!("accepted for class {}", styled(TITLE, &of.class)))
        }
        Command::Refuse(of) => {
            command(&of, "refuse").await?;
            output.line(format_args!("refused for class {}", styled(TITLE, &of.class)))
        }
    }
}

async fn classes(at: &At) -> Result<Vec<Value>, Failure> {
    let body =
        progress::shown(format!("waiting for {}", at.admin), ask(&at.admin, "GET", "/mirror", at.timeout)).await?;
    serde_json::from_str(&body).map_err(|error| Failure::failed(format!("{} is no mirror: {error}", at.admin)))
}

async fn command(of: &Of, verb: &str) -> Result<(), Failure> {
    let path = format!("/mirror/{}/{verb}", of.class);
    let asked = ask(&of.admin, "POST", &path, of.timeout);
    progress::shown(format!("waiting for {}", of.admin), asked).await.map(|_| ())
}

fn show(at: &At, classes: &[Value], output: &mut Output) -> Result<(), Failure> {
    for class in classes {
        if at.json {
            output.json(class)?;
            continue;
        }
        let ready = if class["ready"] == true { styled(GOOD, "ready") } else { styled(BAD, "not complete") };
        let primary = match class["unreachable_because"].as_str() {
            None => "the primary answers".to_owned(),
            Some(cause) => format!("no answer of the primary for {} s: {cause}", class["unreachable_for_s"]),
        };
        let name = styled(TITLE, text(class, "class"));
        output.line(format_args!(
            "{name}  {ready}, {} resources, {} s old, {primary}",
            class["resources"], class["age_s"]
        ))?;
        for target in class["targets"].as_array().into_iter().flatten() {
            let problem = target["problem"].as_str().map(|problem| format!(": {problem}")).unwrap_or_default();
            let state = if target["complete"] == true { "complete" } else { "not complete" };
            output.line(styled(DIM, format!("  {} {state}{problem}", text(target, "target"))))?;
        }
        let held = &class["held"];
        if !held.is_null() {
            let until = match held["passes_in_s"].as_u64() {
                Some(seconds) => format!("passes in {seconds} s"),
                None => "refused".to_owned(),
            };
            output.line(format_args!("  {} for {} s, {until}", styled(BAD, "held back"), held["for_s"]))?;
            for reason in held["because"].as_array().into_iter().flatten() {
                output.line(format_args!("    {}", reason.as_str().unwrap_or_default()))?;
            }
        }
    }
    Ok(())
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

/// One request over HTTP/1.0, whose answer is not in chunks; its body.
async fn ask(address: &str, method: &str, path: &str, timeout: Duration) -> Result<String, Failure> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let failed =
        |why: String| Failure::failed(format!("cannot ask {address}: {why}")).tip("give the address of serve --admin");
    let answer = match tokio::time::timeout(timeout, asked).await {
        Ok(answer) => answer.map_err(|error| failed(error.to_string()))?,
        Err(_) => return Err(failed(format!("no answer within {timeout:?}"))),
    };
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| failed("it is no HTTP server".to_owned()))?;
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some("404" | "409") if !body.is_empty() => Err(Failure::failed(body)),
        _ => Err(failed(format!("it answered {status:?}"))),
    }
}
