"""Programs under test, as processes: backends, control planes, clients."""

import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import grpc

ROOT = pathlib.Path(__file__).resolve().parent.parent
NODE_ID = "test-id"  # I-27
EDS_SUFFIX = "_eds_service"


class Red(Exception):
    """Something is not as it must be; the text says what."""


def eventually(check, within: float, every: float = 0.3):
    """Calls `check` until it raises no `Red`; answers with what it returns."""
    deadline = time.monotonic() + within
    while True:
        try:
            return check()
        except Red as red:
            if time.monotonic() > deadline:
                raise Red(f"not within {within:.0f} s: {red}") from None
        time.sleep(every)


def expect(truth: bool, otherwise: str) -> None:
    if not truth:
        raise Red(otherwise)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Programs:
    """Where the programs are."""

    def __init__(self, rust: pathlib.Path, go: pathlib.Path):
        self.client = rust / "xds_interop_client"
        self.server = rust / "xds_interop_server"
        self.verdicts = rust / "xds_verdicts"
        self.mainstay = rust / "mainstay"
        self.go_control_plane = go / "controlplane"
        self.go_client = go / "client"
        self.go_server = go / "server"
        self.go_certificates = go / "certificates"
        self.envoy = go / "envoy"
        self.istiod = go / "istiod"
        self.java = go / "java"


class Process:
    """A running program whose output is kept, line by line."""

    def __init__(self, arguments: list, env: dict | None = None):
        self.lines: list[tuple[float, str]] = []
        self.popen = subprocess.Popen(
            [str(argument) for argument in arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.popen.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def say(self, line: str) -> None:
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def wait_for(self, text: str, within: float = 30, since: int = 0) -> str:
        def seen() -> str:
            for _, line in self.lines[since:]:
                if text in line:
                    return line
            expect(self.alive(), f"{self.popen.args[0]} ended: {self.tail()}")
            raise Red(f"no line with {text!r}: {self.tail()}")

        return eventually(seen, within, every=0.02)

    def alive(self) -> bool:
        return self.popen.poll() is None

    def tail(self) -> str:
        return " | ".join(line for _, line in self.lines[-5:])

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait(timeout=10)
        self._reader.join(timeout=10)


class World:
    """Everything that a suite starts; all of it ends with the suite."""

    def __init__(self, programs: Programs, directory: pathlib.Path):
        self.programs = programs
        self.directory = directory
        self._processes: list[Process] = []
        self._files = 0

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_) -> None:
        for process in self._processes:
            if process.alive():
                process.kill()

    def run(self, arguments: list, env: dict | None = None) -> Process:
        process = Process(arguments, env)
        self._processes.append(process)
        return process

    def file(self, content: str) -> pathlib.Path:
        self._files += 1
        path = self.directory / f"{self._files}.json"
        path.write_text(content)
        return path

    def backend(self, name: str) -> "Backend":
        return Backend(self, name)

    def bootstrap(self, ports: list[int], node: str = NODE_ID, features: tuple = (), **more) -> pathlib.Path:
        """The bootstrap of the official local suites (I-31), with more features of servers."""
        content = {
            "xds_servers": [server(f"127.0.0.1:{port}", *features) for port in ports],
            "node": {"id": node, "locality": {"zone": "zone"}},
            "authorities": {},
            **more,
        }
        return self.file(json.dumps(content))


def node_of(kind: str) -> str:
    """The node id of a client that others share control planes with, which must tell them apart."""
    return f"{NODE_ID}-{kind}"


def server(uri: str, *features: str) -> dict:
    return {"server_uri": uri, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3", *features]}


class Backend:
    """An interop server of ours."""

    def __init__(self, world: World, name: str):
        self.name = name
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process = world.run([world.programs.server, f"--port={self.port}", f"--hostname={name}"])
        self.process.wait_for("on port")


@dataclasses.dataclass
class Config:
    """What a control plane serves."""

    listeners: dict  # name: cluster
    clusters: dict  # name: name of its endpoints
    endpoints: dict  # name: addresses
    broken: bool = False

    @staticmethod
    def simple(cluster: str, backend: Backend, broken: bool = False) -> "Config":
        """Listener `listener_0`, one cluster, one endpoint (I-29)."""
        service = cluster + EDS_SUFFIX
        return Config({"listener_0": cluster}, {cluster: service}, {service: [backend.address]}, broken)


class GoControlPlane:
    """go-control-plane's snapshot cache."""

    name = "go-control-plane"
    flags: tuple = ()

    def __init__(self, world: World, config: Config | None = None):
        self.world, self.config, self.port = world, config, free_port()
        self.process: Process | None = None
        self._version = 0

    def start(self) -> None:
        self.process = self.world.run(
            [self.world.programs.go_control_plane, f"--port={self.port}", *self.flags]
        )
        self.process.wait_for("listening")
        # A new process knows nothing of the one before, and counts from 1 again; so does `mainstay serve`.
        self._version = 0
        if self.config:
            self.set(self.config)

    def set(self, config: Config) -> None:
        """Serves `config` from now on, or from the next start on."""
        self.config = config
        if self.process and self.process.alive():
            self._version += 1
            self._command(op="set", version=str(self._version), **dataclasses.asdict(config))

    def stop_on_request(self, type_url: str, name: str) -> None:
        self._command(op="stop_on_request", type_url=type_url, name=name)

    def stop(self) -> None:
        self.process.kill()

    def nacks(self, node: str, since: float = 0) -> int:
        """How often this node has rejected something."""
        return sum(at >= since and line.startswith(f"nack {node} ") for at, line in self.process.lines)

    def _command(self, **fields) -> None:
        seen = len(self.process.lines)
        self.process.say(json.dumps(fields))
        self.process.wait_for("ok", since=seen)


class LinearGoControlPlane(GoControlPlane):
    """go-control-plane's linear caches."""

    name = "go-control-plane, linear caches"
    flags = ("--linear",)


class MainstayControlPlane:
    """`mainstay serve`."""

    name = "mainstay serve"

    def __init__(self, world: World, config: Config | None = None):
        self.world, self.port = world, free_port()
        self.directory = world.directory / f"serve-{self.port}"
        self.directory.mkdir()
        self.process: Process | None = None
        if config:
            self.set(config)

    def start(self) -> None:
        self.process = self.world.run(
            # Scenarios take nearly everything away on purpose, and serve what clients reject.
            [
                self.world.programs.mainstay,
                "serve",
                self.directory,
                "--listen",
                f"127.0.0.1:{self.port}",
                "--allow-mass-deletion",
                "--no-check",
            ],
            {"NO_COLOR": "1"},
        )
        self.process.wait_for(str(self.port))

    def stop(self) -> None:
        self.process.kill()

    def nacks(self, node: str, since: float = 0) -> int:
        """How often this node has rejected something."""
        return sum(at >= since and line.startswith(f"node {node} rejects ") for at, line in self.process.lines)

    def set(self, config: Config) -> None:
        """Serves `config` from now on, or from the next start on."""
        resources = [api_listener(name, cluster, config.broken) for name, cluster in config.listeners.items()]
        resources += [eds_cluster(name, service) for name, service in config.clusters.items()]
        resources += [assignment(name, addresses) for name, addresses in config.endpoints.items()]
        self.serve(resources)

    def serve(self, resources: list[dict]) -> None:
        # Renamed into place: a reader sees the old file or the new one.
        unfinished = self.directory.parent / f"{self.directory.name}.new"
        unfinished.write_text(json.dumps({"resources": resources}))
        os.replace(unfinished, self.directory / "config.json")

    def serve_now(self, resources: list[dict]) -> None:
        """Serves something else, and fails if the control plane itself refuses it: clients would see nothing."""
        seen = len(self.process.lines)
        self.serve(resources)

        def followed() -> None:
            news = [line for _, line in self.process.lines[seen:]]
            expect(not any(line.startswith("rejected") for line in news), f"refused: {self.process.tail()}")
            expect(any(line.startswith("reloaded") for line in news), f"not followed: {self.process.tail()}")

        eventually(followed, within=10, every=0.05)


class MainstayMirror:
    """`mainstay serve --mirror-of`."""

    def __init__(self, world: World, primary: int, config: str):
        self.world, self.primary, self.port = world, primary, free_port()
        self.config = world.file(config)
        self.kept = world.directory / f"mirror-{self.port}"
        self.process: Process | None = None

    def start(self) -> None:
        self.process = self.world.run(
            [
                self.world.programs.mainstay,
                "serve",
                "--mirror-of",
                f"127.0.0.1:{self.primary}",
                "--mirror-config",
                self.config,
                "--mirror-last-good",
                self.kept,
                "--listen",
                f"127.0.0.1:{self.port}",
            ],
            {"NO_COLOR": "1"},
        )
        self.process.wait_for("mirroring")

    def wait_until_complete(self) -> None:
        """Something whole is served, of the primary or of the files."""
        self._wait(lambda line: " resources" in line and "not complete" not in line)

    def wait_until_confirmed(self) -> None:
        """The primary answers, and nothing is held back."""
        self._wait(lambda line: "the primary answers" in line)

    def _wait(self, is_so) -> None:
        def last() -> None:
            said = [line for _, line in self.process.lines if line.startswith("class ")]
            expect(bool(said) and is_so(said[-1]), f"{said[-1:]}")

        eventually(last, within=60, every=0.05)

    def stop(self) -> None:
        self.process.kill()


def api_listener(name: str, cluster: str, broken: bool) -> dict:
    route = {"match": {"prefix": ""}, "route": {"cluster": cluster}}
    routes = {"name": "route", "virtualHosts": [{"name": "all", "domains": ["*"], "routes": [route]}]}
    manager = {
        "@type": f"{GOOGLEAPIS}/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "httpFilters": [
            {
                "name": "router",
                "typedConfig": {"@type": f"{GOOGLEAPIS}/envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
        **({} if broken else {"routeConfig": routes}),
    }
    return {"@type": LISTENER, "name": name, "apiListener": {"apiListener": manager}}


def eds_cluster(name: str, service: str, source: str = "self") -> dict:
    config = {"edsConfig": {source: {}, "resourceApiVersion": "V3"}, "serviceName": service}
    return {"@type": CLUSTER, "name": name, "type": "EDS", "edsClusterConfig": config}


def assignment(name: str, addresses: list[str]) -> dict:
    endpoints = []
    for address in addresses:
        host, port = address.rsplit(":", 1)
        socket_address = {"address": host, "portValue": int(port)}
        endpoint = {"endpoint": {"address": {"socketAddress": socket_address}}}
        endpoints.append({**endpoint, "healthStatus": "HEALTHY", "loadBalancingWeight": 1})
    locality = {"locality": {"subZone": "subzone"}, "loadBalancingWeight": 1, "lbEndpoints": endpoints}
    return {"@type": ENDPOINTS, "clusterName": name, "endpoints": [locality]}


class Client:
    """An xDS client that prints what becomes of each RPC."""

    def __init__(
        self,
        world: World,
        kind: str,
        target: str,
        bootstrap: pathlib.Path,
        more_env: dict | None = None,
        flags: list | None = None,
    ):
        self.kind, self.node, self.stats_port = kind, node_of(kind), free_port()
        programs = world.programs
        arguments = {
            "mainstay": [programs.client, f"--stats_port={self.stats_port}", "--print_response=true"],
            "grpc-go": [programs.go_client],
            "grpcio": [sys.executable, ROOT / "python" / "client.py"],
            "grpc-java": ["java", *JVM, "-cp", f"{programs.java}{os.pathsep}{programs.java}/*", "Client"],
            "grpc-js": ["node", ROOT / "js" / "client.js"],
        }[kind]
        env = {
            "GRPC_XDS_BOOTSTRAP": str(bootstrap),
            "GRPC_EXPERIMENTAL_XDS_FALLBACK": "true",
            "GRPC_EXPERIMENTAL_XDS_FEDERATION": "true",
            **(more_env or {}),
        }
        self.process = world.run([*arguments, f"--server={target}", f"--qps={QPS}", *(flags or [])], env)

    def outcomes(self, since: float) -> list[str]:
        """The host that answered, or the error, of each RPC that ended since then."""
        found = []
        for at, line in list(self.process.lines):
            if at < since:
                continue
            if line.startswith("answered by "):
                found.append(line.removeprefix("answered by "))
            elif line.split(":")[0].replace("_", "").upper() in CODES:
                found.append("! " + line)
        return found

    def settles_on(self, names: str | set, since: float, within: float = 60) -> None:
        """The last ten RPCs went to this backend, or to all of these and no other."""
        wanted = {names} if isinstance(names, str) else names

        def settled() -> None:
            expect(self.process.alive(), f"ended: {self.process.tail()}")
            last = self.outcomes(since)[-10:]
            expect(len(last) == 10, f"only {len(last)} RPCs ended")
            expect(set(last) == wanted, f"{' and '.join(sorted(wanted))} expected, seen {sorted(set(last))}")

        eventually(settled, within, every=0.1)

    def fails(self, since: float, within: float = 60, code: str = "UNAVAILABLE") -> None:
        """The last five RPCs failed with this code: they do not hang."""

        def failing() -> None:
            last = self.outcomes(since)[-5:]
            expect(len(last) == 5, f"only {len(last)} RPCs ended")
            codes = {outcome.split(":")[0].replace("_", "").upper() for outcome in last}
            expect(codes == {f"! {code}"}, f"{code} expected, seen {sorted(set(last))}")

        eventually(failing, within, every=0.1)


QPS = 10
CODES = {code.name.replace("_", "") for code in grpc.StatusCode}
CLIENTS = ["mainstay", "grpc-go", "grpcio", "grpc-java", "grpc-js"]
# Several of them share few cores: no compiler and no collector beside the program.
JVM = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
GOOGLEAPIS = "type.googleapis.com"
LISTENER = f"{GOOGLEAPIS}/envoy.config.listener.v3.Listener"
CLUSTER = f"{GOOGLEAPIS}/envoy.config.cluster.v3.Cluster"
ROUTES = f"{GOOGLEAPIS}/envoy.config.route.v3.RouteConfiguration"
ENDPOINTS = f"{GOOGLEAPIS}/envoy.config.endpoint.v3.ClusterLoadAssignment"
