"""A real Envoy, configured by `mainstay serve`: RDS, wildcard CDS, EDS, updates, NACKs, outage and return."""

import json
import socket
import time
import urllib.request

from world import (
    ENDPOINTS,
    GOOGLEAPIS,
    LISTENER,
    ROUTES,
    Client,
    MainstayControlPlane,
    Process,
    Red,
    World,
    api_listener,
    assignment,
    eds_cluster,
    eventually,
    expect,
    free_port,
)

NAME = "Envoy"


class Script:
    """Plays the life of a control plane to one Envoy, with RPCs through it all the time."""

    def __init__(self, world: World, api: str = "GRPC"):
        self.world, self.api = world, api
        self.results: dict[str, dict[str, str]] = {}
        self.a, self.b, self.c = (world.backend(name) for name in "abc")
        self.port = free_port()
        self.control_plane = MainstayControlPlane(world)

    def play(self) -> dict[str, dict[str, str]]:
        control_plane = self.control_plane
        self.serve("cluster_1", self.a)
        control_plane.start()
        self.envoy = Envoy(self.world, control_plane.port, self.api)
        eventually(self.listening, within=30)
        self.client = Client(self.world, "grpcio", f"127.0.0.1:{self.port}", self.world.bootstrap([]))
        self.step("start: LDS, RDS, CDS, EDS", "a", strict=False)
        self.step("endpoints change", "b", lambda: self.serve("cluster_1", self.b))
        self.step("route and cluster change together", "c", lambda: self.serve("cluster_2", self.c))
        self.step("old cluster is gone", "c", lambda: self.expect_clusters({"cluster_2"}))
        self.step("unused cluster comes: wildcard CDS", "c", self.add_unused)
        self.step("bad route is rejected", "c", self.reject)
        self.step("good route again", "a", lambda: self.serve("cluster_2", self.a))
        self.step("control plane dies", "a", control_plane.stop, hold=3)
        self.step("control plane returns, changed", "b", self.come_back)
        self.step("and goes on with updates", "c", lambda: self.serve("cluster_4", self.c))
        if self.api == "DELTA_GRPC":
            self.step("endpoints of a glob collection (LEDS)", "a", lambda: self.serve_glob({"1": self.a}))
            self.step("another member comes, and that one goes", "b", lambda: self.serve_glob({"2": self.b}))
            self.step("a member moves", "c", lambda: self.serve_glob({"2": self.c}))
        return self.results

    def step(self, name: str, expected: str, act=lambda: None, strict=True, hold=0.0) -> None:
        """`expected` answers in the end; if `strict`, no RPC fails on the way."""
        since = time.monotonic()
        try:
            act()
            time.sleep(hold)
            self.client.settles_on(expected, since, within=20)
            failed = [outcome for outcome in self.client.outcomes(since) if strict and outcome.startswith("! ")]
            expect(not failed, f"{len(failed)} RPCs failed, first: {failed[:1]}")
            result = "pass"
        except Red as red:
            result = f"FAIL: {red}"
        self.results[name] = {NAME: result}

    def serve(self, cluster: str, backend, unused: tuple = (), broken: bool = False) -> None:
        clusters = [cluster, *unused]
        resources = [socket_listener("listener", self.port, "route"), route("route", cluster, broken)]
        resources += [http2(eds_cluster(name, name, source="ads")) for name in clusters]
        resources += [assignment(name, [backend.address]) for name in clusters]
        self.control_plane.serve(resources)

    def serve_glob(self, members: dict) -> None:
        """A cluster whose endpoints are resources of their own, named by a glob: Envoy follows that over delta only."""
        leds = {"ledsConfig": ADS, "ledsCollectionName": f"{GLOB}/*"}
        locality = {"locality": {"subZone": "subzone"}, "loadBalancingWeight": 1, "ledsClusterLocalityConfig": leds}
        resources = [socket_listener("listener", self.port, "route"), route("route", "cluster_5", broken=False)]
        resources += [http2(eds_cluster("cluster_5", "cluster_5", source="ads"))]
        resources += [{"@type": ENDPOINTS, "clusterName": "cluster_5", "endpoints": [locality]}]
        resources += [member(f"{GLOB}/{id}", backend.address) for id, backend in members.items()]
        self.control_plane.serve(resources)

    def listening(self) -> None:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError as error:
            lines = f"{self.envoy.process.tail()} | {self.control_plane.process.tail()}"
            raise Red(f"Envoy does not listen on port {self.port}: {error}: {lines}") from None

    def add_unused(self) -> None:
        self.serve("cluster_2", self.c, unused=("cluster_3",))
        self.expect_clusters({"cluster_2", "cluster_3"})
        self.serve("cluster_2", self.c)
        self.expect_clusters({"cluster_2"})

    def expect_clusters(self, names: set) -> None:
        def look() -> None:
            seen = self.envoy.clusters()
            expect(seen == names, f"clusters {sorted(names)} expected, seen {sorted(seen)}")

        eventually(look, within=20)

    def reject(self) -> None:
        since = time.monotonic()
        self.serve("cluster_2", self.c, broken=True)
        eventually(lambda: expect(self.control_plane.nacks("envoy", since) > 0, "Envoy rejected nothing"), within=10)
        time.sleep(1)

    def come_back(self) -> None:
        self.serve("cluster_2", self.b)
        self.control_plane.start()


class Envoy:
    """A running Envoy with dynamic listeners and clusters."""

    def __init__(self, world: World, xds_port: int, api: str):
        self.admin = free_port()
        config = world.file(json.dumps(envoy_bootstrap(xds_port, self.admin, api)))
        self.process: Process = world.run(
            [world.programs.envoy, "-c", config, "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning"]
        )

    def clusters(self) -> set:
        """The names of the clusters that came by CDS and are in force."""
        url = f"http://127.0.0.1:{self.admin}/config_dump?resource=dynamic_active_clusters"
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                dump = json.load(response)
        except OSError as error:
            raise Red(f"Envoy's admin port: {error}; {self.process.tail()}") from None
        return {entry["cluster"]["name"] for entry in dump.get("configs", [])}


def envoy_bootstrap(xds_port: int, admin_port: int, api: str) -> dict:
    endpoint = {"endpoint": {"address": socket_address(xds_port)}}
    xds_cluster = http2({
        "name": "xds",
        "type": "STATIC",
        "loadAssignment": {"clusterName": "xds", "endpoints": [{"lbEndpoints": [endpoint]}]},
    })
    service = {"envoyGrpc": {"clusterName": "xds"}}
    return {
        "node": {"id": "envoy", "cluster": "interop"},
        "admin": {"address": socket_address(admin_port)},
        "staticResources": {"clusters": [xds_cluster]},
        "dynamicResources": {
            "adsConfig": {"apiType": api, "transportApiVersion": "V3", "grpcServices": [service]},
            "ldsConfig": ADS,
            "cdsConfig": ADS,
        },
    }


def socket_listener(name: str, port: int, routes: str) -> dict:
    """The HTTP connection manager of a gRPC Listener, behind a port and with its routes by RDS."""
    manager = api_listener(name, "", broken=True)["apiListener"]["apiListener"]
    manager |= {"statPrefix": name, "rds": {"configSource": ADS, "routeConfigName": routes}}
    filters = [{"name": "http", "typedConfig": manager}]
    return {"@type": LISTENER, "name": name, "address": socket_address(port), "filterChains": [{"filters": filters}]}


def route(name: str, cluster: str, broken: bool) -> dict:
    host = {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": ""}, "route": {"cluster": cluster}}]}
    # Without domains no virtual host is valid.
    return {"@type": ROUTES, "name": name, "virtualHosts": [{**host, "domains": []} if broken else host]}


def member(name: str, address: str) -> dict:
    """An endpoint, which has no name of its own."""
    [locality] = assignment("", [address])["endpoints"]
    [endpoint] = locality["lbEndpoints"]
    endpoint = {"@type": f"{GOOGLEAPIS}/envoy.config.endpoint.v3.LbEndpoint", **endpoint}
    return {"@type": f"{GOOGLEAPIS}/envoy.service.discovery.v3.Resource", "name": name, "resource": endpoint}


def http2(cluster: dict) -> dict:
    options = {
        "@type": f"{GOOGLEAPIS}/{HTTP_OPTIONS}",
        "explicitHttpConfig": {"http2ProtocolOptions": {}},
    }
    return {**cluster, "connectTimeout": "1s", "typedExtensionProtocolOptions": {HTTP_OPTIONS: options}}


def socket_address(port: int) -> dict:
    return {"socketAddress": {"address": "127.0.0.1", "portValue": port}}


ADS = {"ads": {}, "resourceApiVersion": "V3"}
GLOB = "xdstp://interop.test/envoy.config.endpoint.v3.LbEndpoint/service"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
