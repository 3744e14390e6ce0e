//! What an HTTP status means to gRPC.

/// The gRPC status code of an RPC that got this HTTP status and no gRPC status, as gRPC maps them.
pub fn code_of_http_status(status: u16) -> u8 {
    match status {
        400 => 13,                   // INTERNAL
        401 => 16,                   // UNAUTHENTICATED
        403 => 7,                    // PERMISSION_DENIED
        404 => 12,                   // UNIMPLEMENTED
        429 | 502 | 503 | 504 => 14, // UNAVAILABLE
        _ => 2,                      // UNKNOWN, also for 200 (S-52)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_statuses_have_the_codes_of_the_table() {
        let table =
            [(400, 13), (401, 16), (403, 7), (404, 12), (429, 14), (502, 14), (503, 14), (504, 14), (200, 2), (500, 2)];
        for (status, code) in table {
            assert_eq!(code_of_http_status(status), code, "S-52: {status}");
        }
    }
}
