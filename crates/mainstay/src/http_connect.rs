//! A way through an HTTP proxy: `CONNECT`, then bytes in both directions (A86).

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Why a proxy does not lead to an endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    #[error("cannot be reached: {0}")]
    Connect(#[source] io::Error),
    #[error("broke off before it had answered CONNECT: {0}")]
    BrokenOff(#[source] io::Error),
    #[error("does not speak HTTP/1.1: it answered CONNECT with {0:?}")]
    NotHttp(String),
    #[error("refused CONNECT with {0:?}")]
    Refused(String),
    #[error("answered CONNECT with more than {MAX_HEAD} bytes of headers")]
    TooLong,
}

/// Has `proxy` connect to `endpoint`. What the endpoint says from the start may come along with the proxy's answer: the
/// reader keeps it.
pub(crate) async fn open(proxy: SocketAddr, endpoint: SocketAddr) -> Result<BufReader<TcpStream>, ProxyError> {
    let mut stream = TcpStream::connect(proxy).await.map_err(ProxyError::Connect)?;
    stream.set_nodelay(true).map_err(ProxyError::Connect)?;
    let request = format!("CONNECT {endpoint} HTTP/1.1\r\nHost: {endpoint}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(ProxyError::BrokenOff)?;
    let mut reader = BufReader::with_capacity(MAX_HEAD, stream);
    let mut left = MAX_HEAD;
    let status = read_line(&mut reader, &mut left).await?;
    while !read_line(&mut reader, &mut left).await?.is_empty() {}
    let mut words = status.split(' ');
    let (version, code) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    match code.as_bytes() {
        _ if !version.starts_with("HTTP/1.") => Err(ProxyError::NotHttp(status)),
        // Any 2xx means that the tunnel is there (RFC 9110 section 9.3.6).
        [b'2', _, _] => Ok(reader),
        _ => Err(ProxyError::Refused(status)),
    }
}

/// The next line without its end, of which there may be `left` bytes.
async fn read_line(reader: &mut BufReader<TcpStream>, left: &mut usize) -> Result<String, ProxyError> {
    let mut line = Vec::new();
    reader.take(*left as u64).read_until(b'\n', &mut line).await.map_err(ProxyError::BrokenOff)?;
    if line.pop() != Some(b'\n') {
        let over = line.len() + 1 >= *left;
        return Err(if over {
            ProxyError::TooLong
        } else {
            ProxyError::BrokenOff(io::ErrorKind::UnexpectedEof.into())
        });
    }
    *left -= line.len() + 1;
    Ok(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned())
}

/// More than any proxy says.
const MAX_HEAD: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_tunnel_begins_after_the_answer_and_loses_nothing() {
        let (asked, opened) = proxy(b"HTTP/1.1 200 Connection established\r\nVia: proxy\r\n\r\nhello").await;
        assert_eq!(asked, "CONNECT 10.0.0.1:80 HTTP/1.1\r\nHost: 10.0.0.1:80\r\n\r\n", "A86");
        let mut text = String::new();
        opened.unwrap().read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
    }

    #[tokio::test]
    async fn any_other_answer_is_an_error_that_says_which() {
        for (answer, error) in [
            ("HTTP/1.1 403 Forbidden\r\n\r\n", "refused CONNECT with \"HTTP/1.1 403 Forbidden\""),
            ("HTTP/1.1 2000 OK\r\n\r\n", "refused CONNECT with \"HTTP/1.1 2000 OK\""),
            ("SSH-2.0-server\r\n\r\n", "does not speak HTTP/1.1: it answered CONNECT with \"SSH-2.0-server\""),
            ("", "broke off before it had answered CONNECT: unexpected end of file"),
            ("HTTP/1.1 200 OK\r\nVia: pro", "broke off before it had answered CONNECT: unexpected end of file"),
        ] {
            let (_, opened) = proxy(answer.as_bytes()).await;
            assert_eq!(opened.map(|_| ()).unwrap_err().to_string(), error);
        }
        let (_, opened) = proxy(format!("HTTP/1.1 200 OK\r\nVia: {}\r\n\r\n", "x".repeat(MAX_HEAD)).as_bytes()).await;
        assert!(matches!(opened, Err(ProxyError::TooLong)));
    }

    /// Asks a proxy that answers `answer` and closes; what it was asked, and what came of it.
    async fn proxy(answer: &[u8]) -> (String, Result<BufReader<TcpStream>, ProxyError>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer).await.unwrap();
            String::from_utf8(asked).unwrap()
        };
        tokio::join!(serve, open(address, "10.0.0.1:80".parse().unwrap()))
    }
}
