//! A plain GET over HTTP/1.1, which is all that admin ports need.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The body of what is at a path, or why there is none.
pub(crate) async fn get(address: &str, path: &str, timeout: Duration) -> Result<Vec<u8>, String> {
    match tokio::time::timeout(timeout, fetch(address, path)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {timeout:?}")),
    }
}

async fn fetch(address: &str, path: &str) -> Result<Vec<u8>, String> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.map_err(|error| error.to_string())?;
    let end =
        answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or("it ended the talk before it had answered")?;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200") {
        return Err(format!("it answered {status:?}"));
    }
    let body = &answer[end + 4..];
    if head.contains("transfer-encoding: chunked") { unchunk(body) } else { Ok(body.to_vec()) }
}

/// Undoes the chunked encoding.
fn unchunk(mut rest: &[u8]) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    loop {
        let cut = || "the answer is cut off".to_owned();
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n").ok_or_else(cut)?;
        let size = std::str::from_utf8(&rest[..end]).ok().and_then(|text| text.split(';').next()).map(str::trim);
        let size = size.and_then(|text| usize::from_str_radix(text, 16).ok()).ok_or_else(cut)?;
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(rest.get(end + 2..end + 2 + size).ok_or_else(cut)?);
        rest = rest.get(end + 4 + size..).ok_or_else(cut)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_put_together() {
        assert_eq!(unchunk(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n").unwrap(), b"abcde");
        assert!(unchunk(b"5\r\nab").is_err());
        assert!(unchunk(b"zz\r\n").is_err());
    }
}
