//! Compiles `proto/channelz.proto` with a compiler written in Rust, so that nobody needs `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["channelz.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Instead of prost-types: the same messages as in the Envoy ones.
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", "::envoy_types::pb::google::protobuf")
        .compile_fds(files)?;
    Ok(())
}
