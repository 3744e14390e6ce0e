//! Prints cases of authorization for another implementation to judge: see `interop/go/authz`.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let cases = std::env::args().nth(1).and_then(|cases| cases.parse().ok()).unwrap_or(1_000);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for seed in 0..cases {
        out.write_all(mainstay_sim::authz::case(seed).as_bytes())?;
    }
    out.flush()
}
