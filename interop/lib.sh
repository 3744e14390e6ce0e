# What `run`, `istio/run` and `etcd/run` share; all run in this directory.

need() { # need PROGRAM...: without them nothing can be said, which is an error only where it must be said
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null && continue
    echo "interop: skipped: $program is missing; install it to run the suites" >&2
    [ -z "${CI:-}" ] && exit 0
    exit 1
  done
}

timed() { # timed SECONDS WHAT COMMAND...
  local seconds=$1 what=$2 begun=$SECONDS
  shift 2
  timeout --kill-after=10 "$seconds" "$@" || { echo "interop: failed: $what" >&2; exit 1; }
  echo "interop: $what: $((SECONDS - begun)) s"
}

our_programs() { # and where they are, for commands of their own
  timed 1500 "our programs" cargo build --locked --quiet -p mainstay-cli -p mainstay-interop
  target=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
  export target
}

go_programs() {
  timed 900 "programs in Go" go build -C go -o ../.build/ ./controlplane ./client ./server ./certificates
}

python_packages() {
  cmp --silent python/requirements.txt .venv/installed.txt || timed 600 "Python packages" bash -euc install_python_packages
}

install_python_packages() {
  # One that was broken off halfway has no pip.
  .venv/bin/python -m pip --version >/dev/null 2>&1 || python3 -m venv --clear .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r python/requirements.txt
  cp python/requirements.txt .venv/installed.txt
}
export -f install_python_packages

java_programs() {
  cat java/* | cmp --silent - .build/java/sources || timed 300 "programs on grpc-java" bash -euc build_java_programs
}

build_java_programs() {
  rm -rf .build/java
  mvn --quiet --batch-mode --file java/pom.xml dependency:copy-dependencies
  javac -cp '.build/java/*' -d .build/java java/*.java
  cat java/* >.build/java/sources
}
export -f build_java_programs

node_packages() {
  cmp --silent js/package-lock.json js/node_modules/installed.json || timed 300 "packages of Node" bash -euc install_node_packages
}

install_node_packages() {
  npm ci --prefix js --silent --no-audit --no-fund
  cp js/package-lock.json js/node_modules/installed.json
}
export -f install_node_packages
