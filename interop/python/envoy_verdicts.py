"""What Envoy makes of each case of verdicts/cases that is a cluster, routes or endpoints (OP-13).

Each resource comes from a file of its own, one after the other, so that each has a verdict and an error of its own: within one
response of a control plane Envoy says one word of all. Listeners with an api_listener are nothing to an Envoy that gets them
from a control plane, and no RPC is made.
"""

import json
import os
import re
import urllib.request

from world import Process, Red, World, eventually, expect, free_port

CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
TIMEOUT = 10  # for each resource, in seconds
# What it says of these is about something else than what they are a case of, and would be wrong of others like them.
LEFT_OUT = {
    **dict.fromkeys(["cluster-eds-from-file", "cluster-tls-files", "cluster-tls-crl"], "their files are not there"),
    **dict.fromkeys(["cluster-tls-sds", "cluster-tls-sds-validation"], "nobody serves their secrets"),
    **dict.fromkeys(["cluster-tls-hash", "cluster-tls-spki"], "what they have there is no hash"),
    **dict.fromkeys(
        ["cluster-socket-matches", "cluster-tls-custom-handshaker", "routes-plugin-inline", "routes-plugin-unsupported"],
        "the extension in them stands for any",
    ),
    "cluster-health-checks": "its health check needs HTTP/2, and it has none",
    "cluster-tls-san-bad": "it has no certificate authority that Envoy knows",
    "cluster-type-original-dst": "it has a policy that does not go with its type",
    "endpoints-leds": "the name of its collection is none",
    "routes-plugin-unknown": "the plugin in it stands for any",
}
RECORD = "@@"  # begins each record of the log, which may have many lines
CONSTRAINT = "Proto constraint validation failed"


class Script:
    """One Envoy, and what it says of one resource after the other."""

    def __init__(self, world: World):
        self.world = world
        self.directory = world.directory / "envoy-verdicts"
        self.directory.mkdir()

    def measure(self, cases: dict[str, dict]) -> dict[str, dict]:
        """Verdicts by the name of the case; none of listeners."""
        self.start([*cases, *(other for case in cases.values() for other in case.get("also", []))])
        found = {}
        for name, case in cases.items():
            kind = case["resource"]["@type"].rsplit(".", 1)[-1]
            asked = {
                "Cluster": self.of_cluster,
                "RouteConfiguration": self.of_routes,
                "ClusterLoadAssignment": self.of_endpoints,
            }.get(kind)
            if asked and name not in LEFT_OUT:
                found[name] = asked(name, by_ads(case["resource"]))
        return found

    def of_cluster(self, name: str, resource: dict) -> dict:
        return self.verdict("cluster_manager.cds", {"cds": [resource]})

    def of_routes(self, name: str, resource: dict) -> dict:
        asking = listener(name, self.path(name))
        return self.verdict(f"http.{name}.rds.{name}", {name: [resource], "lds": [asking]})

    def of_endpoints(self, name: str, resource: dict) -> dict:
        source = {"path_config_source": {"path": self.path(name)}, "resource_api_version": "V3"}
        eds = {"eds_config": source, "service_name": name}
        asking = {"@type": CLUSTER, "name": name, "type": "EDS", "eds_cluster_config": eds}
        return self.verdict(f"cluster.{name}", {name: [resource], "cds": [asking]})

    def verdict(self, counter: str, files: dict[str, list]) -> dict:
        """What becomes of the update that these files are, by what Envoy counts there."""
        before, lines = self.counts(counter), len(self.process.lines)
        for name, resources in files.items():
            self.write(name, resources)

        def counted() -> tuple[int, int]:
            now = self.counts(counter)
            expect(self.process.alive(), f"Envoy ended: {self.process.tail()}")
            expect(now != before, f"Envoy has said nothing of {counter}")
            return now

        taken, refused = eventually(counted, within=TIMEOUT, every=0.02)
        if refused == before[1]:
            return {"ack": taken > before[0]}
        told = eventually(lambda: self.refusal(lines), within=TIMEOUT, every=0.02)
        return {"ack": False, "error": told.replace(str(self.directory), "DIR")[:400]}

    def refusal(self, since: int) -> str:
        """The last one in the log, without the resource that stands before its fault."""
        records = "\n".join(line for _, line in list(self.process.lines)[since:]).split(RECORD)
        found = [re.match(r"Filesystem config update (?:rejected|failure): (.*)", one, re.DOTALL) for one in records]
        found = [match[1] for match in found if match]
        expect(bool(found), "Envoy has not said why")
        *_, fault = found[-1].rpartition(f": {CONSTRAINT} (")
        if fault != found[-1]:
            return f"{CONSTRAINT}: {fault.rsplit('caused by ', 1)[-1].strip().removesuffix(')')}"
        return " ".join(re.sub(r"^Error adding/updating cluster\(s\) [^:]*: ", "", fault).split())

    def counts(self, counter: str) -> tuple[int, int]:
        """How many updates were taken and refused."""
        url = f"http://127.0.0.1:{self.admin}/stats?format=json&filter=^{counter}[.]update_"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
                stats = json.load(response)["stats"]
        except OSError as error:
            raise Red(f"Envoy's admin port: {error}; {self.process.tail()}") from None
        values = {stat["name"].rsplit(".", 1)[-1]: stat["value"] for stat in stats if "name" in stat}
        refused = values.get("update_rejected", 0) + values.get("update_failure", 0)
        return values.get("update_success", 0), refused

    def start(self, names: list[str]) -> None:
        """Starts it, with a cluster of each name that routes may have."""
        self.admin = free_port()
        self.write("lds", [])
        self.write("cds", [])
        # A control plane that is not there: clusters may name it, and wait.
        endpoint = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}}}
        options = {"explicit_http_config": {"http2_protocol_options": {}}}
        http2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        xds = {
            "name": "xds",
            "type": "STATIC",
            "typed_extension_protocol_options": {http2: {"@type": f"type.googleapis.com/{http2}", **options}},
            "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [endpoint]}]},
        }
        clusters = [{"name": name, "type": "STATIC"} for name in names if name.startswith("routes-")]
        service = {"envoy_grpc": {"cluster_name": "xds"}}
        watched = {
            f"{kind}_config": {"path_config_source": {"path": self.path(kind)}, "resource_api_version": "V3"}
            for kind in ("lds", "cds")
        }
        ads = {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": [service]}
        config = self.world.file(json.dumps({
            "node": {"id": "envoy", "cluster": "interop"},
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": self.admin}}},
            "static_resources": {"clusters": [xds, *clusters]},
            "dynamic_resources": {"ads_config": ads, **watched},
        }))
        arguments = [self.world.programs.envoy, "-c", config, "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning"]
        self.process: Process = self.world.run([*arguments, "--log-format", f"{RECORD}%v"])
        eventually(lambda: expect(self.counts("cluster_manager.cds")[0] > 0, "Envoy is not there"), within=60)

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.json")

    def write(self, name: str, resources: list) -> None:
        """Puts a file in place of another: that is what Envoy watches."""
        draft = self.directory / ".draft"
        draft.write_text(json.dumps({"resources": resources}))
        os.replace(draft, self.path(name))


def by_ads(resource: dict) -> dict:
    """The sources that gRPC calls `self` are `ads` to Envoy, which knows no other word for it."""

    def walk(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            if key in ("eds_config", "config_source") and "self" in value:
                value = {**{name: part for name, part in value.items() if name != "self"}, "ads": {}}
            return {name: walk(part, name) for name, part in value.items()}
        return [walk(part, key) for part in value] if isinstance(value, list) else value

    return walk(resource)


def listener(name: str, routes: str) -> dict:
    router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
    source = {"path_config_source": {"path": routes}, "resource_api_version": "V3"}
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "rds": {"route_config_name": name, "config_source": source},
        "http_filters": [{"name": "router", "typed_config": router}],
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    # Nobody connects to it.
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    return {"@type": LISTENER, "name": name, "address": address, "filter_chains": [chain]}
