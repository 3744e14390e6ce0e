//! Last-good files that somebody else wrote.

use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::local::{Expected, LastGoodFile, LocalServer, file_name};
use ring::digest::{SHA256, digest};

/// Any bytes are a file or a reason, first as they are, then with the head and the checksum of a good file around them: no
/// fuzzer guesses those. What is read is written the same way, and can be served.
pub(super) fn last_good(bytes: &[u8]) {
    let mut sealed = b"MSTAYLG\n\0\0\0\x01".to_vec();
    sealed.extend(bytes);
    let checksum = digest(&SHA256, &sealed);
    sealed.extend(checksum.as_ref());
    for bytes in [bytes, &sealed] {
        match LastGoodFile::decode(bytes) {
            Ok(file) => use_it(file),
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        }
    }
}

fn use_it(file: LastGoodFile) {
    assert_eq!(LastGoodFile::decode(&file.encode()).as_ref(), Ok(&file), "what is written is read");
    let expected = Expected {
        key: file.key.clone(),
        authority: file.authority.clone(),
        node_id: file.node_id.clone(),
        servers: file.servers,
    };
    assert!(file_name(&expected).bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.'));
    for now in [Duration::ZERO, file.created_at, Duration::MAX] {
        match file.check(&expected, now, Some(Duration::from_secs(1))) {
            Ok(age) => assert!(!age.to_string().is_empty()),
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        }
    }
    let names: Vec<_> = file.resources.iter().map(|stored| stored.value.clone()).collect();
    let mut server = LocalServer::new("last-good://fuzz", Arc::new(file.resources.into_iter().collect()));
    for request in names {
        // Values are requests as good as any.
        if let Err(error) = server.handle_request(&request) {
            assert!(!error.is_empty());
        }
    }
}
