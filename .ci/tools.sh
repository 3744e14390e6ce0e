# Sourced by the scripts here: what they fetch is kept in target/tools.

TOOLS=${TOOLS:-$PWD/target/tools}
export PATH="$TOOLS/bin:$PATH"

version() { # of all packages
  sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1
}
