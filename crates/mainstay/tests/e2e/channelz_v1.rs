//! The messages and stubs of `grpc.channelz.v1`, which the public API keeps to itself.
#![allow(dead_code, unreachable_pub, clippy::enum_variant_names, reason = "generated")]

include!("../../src/generated/grpc.channelz.v1.rs");
