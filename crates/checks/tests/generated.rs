//! The code generated from our own `.proto` files is committed, so that nobody who builds Mainstay compiles a
//! protobuf compiler, and it is current.

use std::fs;
use std::path::Path;

use mainstay_checks::root;

struct Package {
    /// The crate that has the files in `proto` and what is made of them in `src/generated`.
    directory: &'static str,
    protos: &'static [&'static str],
    /// The name of the generated file.
    stubs: &'static str,
    /// Whether messages of `google.protobuf` are those of envoy-types, so that they fit Envoy's; else those of prost.
    with_envoy_types: bool,
    /// Whether the descriptors are kept, too, for reflection.
    with_descriptors: bool,
}

const PACKAGES: [Package; 4] = [
    Package {
        directory: "crates/mainstay",
        protos: &["channelz.proto"],
        stubs: "grpc.channelz.v1.rs",
        with_envoy_types: true,
        with_descriptors: true,
    },
    Package {
        directory: "crates/testservice",
        protos: &["test.proto", "interop.proto"],
        stubs: "grpc.testing.rs",
        with_envoy_types: false,
        with_descriptors: true,
    },
    Package {
        directory: "examples",
        protos: &["hello.proto"],
        stubs: "hello.rs",
        with_envoy_types: false,
        with_descriptors: false,
    },
    Package {
        directory: "crates/sources",
        protos: &["etcd.proto"],
        stubs: "etcdserverpb.rs",
        with_envoy_types: false,
        with_descriptors: false,
    },
];

#[test]
fn generated_code_is_current() {
    for package in &PACKAGES {
        let directory = root().join(package.directory);
        let mut compiler = protox::Compiler::new([directory.join("proto")]).expect("a directory of protos");
        compiler.include_imports(true).open_files(package.protos).expect("protos that compile");
        let out = tempfile::tempdir().expect("a directory");
        let mut builder = tonic_prost_build::configure().out_dir(out.path());
        if package.with_envoy_types {
            builder = builder
                .compile_well_known_types(true)
                .extern_path(".google.protobuf", "::envoy_types::pb::google::protobuf");
        }
        builder.compile_fds(compiler.file_descriptor_set()).expect("stubs");
        let stubs = fs::read(out.path().join(package.stubs)).expect("the stubs");
        let generated = directory.join("src/generated");
        compare(&generated.join(package.stubs), &stubs);
        if package.with_descriptors {
            compare(&generated.join("descriptors.bin"), &compiler.encode_file_descriptor_set());
        }
    }
}

fn compare(path: &Path, current: &[u8]) {
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(path, current).expect("a writable tree");
    }
    let committed = fs::read(path).unwrap_or_default();
    assert!(committed == current, "{} is stale: run UPDATE=1 cargo test -p mainstay-checks", path.display());
}
