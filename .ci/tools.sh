# Sourced by the scripts here: programs from the registry, each of one version, built once and kept in target/tools.

TOOLS=${TOOLS:-$PWD/target/tools}
export PATH="$TOOLS/bin:$PATH"

tool() { # tool NAME VERSION: a subcommand of cargo
  [ "$("$TOOLS/bin/$1" "${1#cargo-}" --version 2>/dev/null | head -n 1)" = "$1 $2" ] && return
  echo "==> $1 $2 is built, once"
  # They run for seconds: what a better optimized build would save there, it costs several times over.
  CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    CARGO_TARGET_DIR=$TOOLS/build cargo install --quiet --locked --root "$TOOLS" --version "=$2" "$1"
  rm -rf "$TOOLS/build"
}

published() { # the packages that are published
  cargo metadata --no-deps --format-version 1 --locked |
    python3 -c 'import json, sys; [print(p["name"]) for p in json.load(sys.stdin)["packages"] if p["publish"] is None]'
}

version() { # of all packages
  sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1
}
