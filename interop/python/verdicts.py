"""What each client makes of each case of verdicts/cases: ACK or NACK, in which words, and whether an RPC passes (OP-12).

All cases are served at once, each under a name of its own, and each client is one process with a channel for each. Envoy, which
is no client of gRPC, is asked in its own way.
"""

import datetime
import json
import os
import re
import sys

import grpc
import yaml
from envoy.admin.v3 import config_dump_shared_pb2
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc

import envoy_verdicts
import proxy
from world import CLIENTS, CODES, JVM, ROOT, MainstayControlPlane, Red, World, eventually, expect, free_port, node_of

NAME = "verdicts on each case, as committed"
CASES = ROOT / "verdicts" / "cases"
DATA = ROOT.parent / "crates" / "check" / "data" / "verdicts.json"
# What the command line calls them.
NAMES = {"mainstay": "mainstay", "grpc-go": "go", "grpcio": "cpp", "grpc-java": "java", proxy.NAME: "envoy"}
KINDS = {"Listener": "listener", "RouteConfiguration": "routes", "Cluster": "cluster", "ClusterLoadAssignment": "endpoints"}
TIMEOUT = 20  # of each RPC, in seconds


class Script:
    def __init__(self, world: World, versions: list[str], record: bool):
        self.world, self.versions, self.record = world, versions, record
        self.cases = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(CASES.glob("*.yaml"))}

    def play(self) -> dict:
        backend = self.world.backend("backend")
        plane = MainstayControlPlane(self.world)
        resources = []
        for name, case in self.cases.items():
            resources += resources_of(name, case, backend.port)
        plane.serve(resources)
        plane.start()
        kinds = [kind for kind in CLIENTS if kind in NAMES]
        found = {kind: self.ask(kind, plane.port) for kind in kinds}
        found[proxy.NAME] = envoy_verdicts.Script(self.world).measure(self.cases)
        measured = {
            name: {
                "type": KINDS[case["resource"]["@type"].rsplit(".", 1)[-1]],
                "about": case["about"],
                "when": case.get("when", []),
                "verdicts": {NAMES[kind]: verdicts[name] for kind, verdicts in found.items() if name in verdicts},
            }
            for name, case in self.cases.items()
        }
        if self.record:
            self.write(measured)
        committed = json.loads(DATA.read_text())["cases"]
        return {f"{len(self.cases)} cases": {kind: compare(measured, committed, NAMES[kind]) for kind in found}}

    def write(self, measured: dict) -> None:
        """A line for each case, so that differences can be read."""
        date, versions = datetime.date.today().isoformat(), dict(version.split(" ", 1) for version in self.versions)
        cases = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in measured.items())
        head = f'"date": {json.dumps(date)},\n"versions": {json.dumps(versions)}'
        DATA.parent.mkdir(exist_ok=True)
        DATA.write_text(f'{{{head},\n"cases": {{\n{cases}\n}}}}\n')

    def ask(self, kind: str, port: int) -> dict:
        """What one client makes of all cases."""
        admin = free_port()
        providers = {"good": {"plugin_name": "file_watcher", "config": {"ca_certificate_file": "/nowhere"}}}
        bootstrap = self.world.bootstrap([port], node=node_of(kind), certificate_providers=providers)
        programs = self.world.programs
        program = {
            "mainstay": [programs.verdicts],
            "grpc-go": [programs.go_client],
            "grpcio": [sys.executable, ROOT / "python" / "client.py"],
            "grpc-java": ["java", *JVM, "-Xmx512m", "-cp", f"{programs.java}{os.pathsep}{programs.java}/*", "Client"],
        }[kind]
        timeout = f"{TIMEOUT}s" if kind == "grpc-go" else TIMEOUT
        targets = ",".join(f"xds:///{name}" for name in self.cases)
        flags = [f"--targets={targets}", f"--admin_port={admin}", f"--timeout={timeout}"]
        process = self.world.run([*program, *flags], {"GRPC_XDS_BOOTSTRAP": str(bootstrap)})
        rpcs = {}

        def all_ended() -> None:
            if not process.alive():
                raise RuntimeError(f"{kind} ended: {process.tail()}")
            for _, line in list(process.lines):
                target, _, outcome = line.partition(" ")
                if target.startswith("xds:///") and outcome:
                    rpcs[target.removeprefix("xds:///")] = code_of(outcome)
            missing = [name for name in self.cases if name not in rpcs]
            expect(not missing, f"{kind}: no outcome for {len(missing)}, such as {missing[:3]}")

        try:
            eventually(all_ended, within=240, every=0.5)
            held = csds(admin)
        finally:
            process.kill()
        return {name: verdict(name, case, held, rpcs[name]) for name, case in self.cases.items()}


def resources_of(name: str, case: dict, port: int) -> list[dict]:
    """The resource of a case, and plain ones for what is around it."""
    own = case["resource"]
    kind = KINDS[own["@type"].rsplit(".", 1)[-1]]
    plain = {
        "listener": listener(name, by_rds=kind == "routes"),
        "cluster": cluster(name),
        "endpoints": endpoints(name),
    }
    plain[kind] = own
    more = [resource for other in case.get("also", []) for resource in (cluster(other), endpoints(other))]
    # Files name a port; the backend has one of its own.
    text = json.dumps([*plain.values(), *more]).replace('"port_value": 50051', f'"port_value": {port}')
    return json.loads(text)


def listener(name: str, by_rds: bool) -> dict:
    route = {"match": {"prefix": ""}, "route": {"cluster": name}}
    routes = {"route_config": {"name": name, "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]}}
    rds = {"rds": {"config_source": {"self": {}, "resource_api_version": "V3"}, "route_config_name": name}}
    router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
    manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    http = {"@type": manager, "http_filters": [{"name": "router", "typed_config": router}], **(rds if by_rds else routes)}
    return {"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": name, "api_listener": {"api_listener": http}}


def cluster(name: str) -> dict:
    eds = {"eds_config": {"self": {}, "resource_api_version": "V3"}, "service_name": name}
    return {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": name, "type": "EDS", "eds_cluster_config": eds}


def endpoints(name: str) -> dict:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 50051}}
    locality = {"locality": {"sub_zone": "a"}, "load_balancing_weight": 1, "lb_endpoints": [{"endpoint": {"address": address}}]}
    kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    return {"@type": kind, "cluster_name": name, "endpoints": [locality]}


def csds(port: int) -> dict:
    """Status and error by type and name. A process has a client for each target."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)]) as channel:
        stub = csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel)
        response = stub.FetchClientStatus(csds_pb2.ClientStatusRequest(), timeout=60)
    held = {}
    for config in response.config:
        for resource in config.generic_xds_configs:
            kind = resource.type_url.rsplit(".", 1)[-1]
            held[kind, resource.name] = (resource.client_status, resource.error_state.details)
    return held


def verdict(name: str, case: dict, held: dict, rpc: str) -> dict:
    status, details = held.get((case["resource"]["@type"].rsplit(".", 1)[-1], name), (0, ""))
    word = config_dump_shared_pb2.ClientResourceStatus.Name(status)
    expect(word != "UNKNOWN" or rpc != "OK", f"{name} is not held, and an RPC passed")
    found = {"ack": word == "ACKED", "rpc": rpc}
    return found if word == "ACKED" else {**found, "status": word, "error": plain(details)}


def plain(text: str) -> str:
    """An error without what is different each time."""
    text = re.sub(r"127\.0\.0\.1:\d+", "SERVER", text.replace("\n", " | "))
    text = re.sub(r"node ID: ?\S+|node_id: ?\S+|\(node ID:[^)]*\)", "", text)
    return text[:400]


def code_of(outcome: str) -> str:
    if outcome.startswith("answered by "):
        return "OK"
    word = outcome.split(":")[0].replace("_", "").upper()
    if word not in CODES:
        raise Red(f"not an outcome: {outcome}")
    return next(code.name for code in grpc.StatusCode if code.name.replace("_", "") == word)


def compare(measured: dict, committed: dict, who: str) -> str:
    """Whether the verdicts are those that are committed: what `mainstay check --for` says must be true."""
    wrong, count = [], 0
    for name, case in measured.items():
        now, before = case["verdicts"].get(who), committed.get(name, {}).get("verdicts", {}).get(who)
        count += now is not None
        facts = [verdict and (verdict["ack"], verdict.get("rpc")) for verdict in (now, before)]
        if facts[0] != facts[1]:
            wrong.append(f"{name}: {now}, and {before} is committed")
    return f"pass ({count})" if not wrong else f"FAIL: {len(wrong)} differ: {'; '.join(wrong[:8])}"
