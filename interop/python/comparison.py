"""What RPCs see of the same control plane's behaviour: ours and others side by side.

Every scenario is served by `mainstay serve` to all clients at once, between two spells of a plain configuration. Where
clients differ from ours, `differences.txt` must say by which rule; see `differences.py`.
"""

import copy
import time

import differences
from world import (
    CLIENTS,
    GOOGLEAPIS,
    Client,
    MainstayControlPlane,
    Red,
    World,
    api_listener,
    assignment,
    eds_cluster,
    eventually,
    expect,
    free_port,
    node_of,
)

TARGET = "xds:///listener_0"
SETTLE_SECONDS = 2.0
PATIENCE_SECONDS = 8.0
# We have A88 always; others, where they have it, behind this.
A88 = {"GRPC_EXPERIMENTAL_XDS_DATA_ERROR_HANDLING": "true"}


class Script:
    """Plays all scenarios; the table says what the last RPCs of each saw, and what failed on the way there."""

    def __init__(self, world: World):
        self.world = world
        self.a, self.b = world.backend("a"), world.backend("b")
        self.dead = f"127.0.0.1:{free_port()}"
        self.control_plane = MainstayControlPlane(world)
        self.clients: list[Client] = []

    def play(self) -> dict[str, dict[str, str]]:
        self.control_plane.serve(self.plain())
        self.control_plane.start()
        self.clients = [self.client(kind) for kind in CLIENTS]
        results: dict[str, dict[str, str]] = {}
        self.back_to_plain({})
        for name, change in SCENARIOS.items():
            resources = copy.deepcopy(self.plain())
            change(self, Resources(resources))
            since = time.monotonic()
            self.control_plane.serve_now(resources)
            row = results[name] = {}
            for client in self.clients:
                expected = None if (name, client.kind) in differences.RULES else row.get(differences.OURS)
                row[client.kind] = self.seen_at_last(client, since, expected)
            self.back_to_plain(results[name])
        return results

    def client(self, kind: str) -> Client:
        bootstrap = self.world.bootstrap([self.control_plane.port], node=node_of(kind))
        return Client(self.world, kind, TARGET, bootstrap, A88)

    def back_to_plain(self, row: dict[str, str]) -> None:
        """Until every client is back. One that does not recover is noted, and replaced."""
        since = time.monotonic()
        self.control_plane.serve(self.plain())
        for index, client in enumerate(self.clients):
            try:
                client.settles_on("a", since, within=12)
            except Red:
                row[client.kind] = f"{row.get(client.kind, '')} (and does not recover)"
                client.process.kill()
                self.clients[index] = self.client(client.kind)
                self.clients[index].settles_on("a", time.monotonic(), within=20)

    def plain(self) -> list[dict]:
        return [
            api_listener("listener_0", "cluster", broken=False),
            eds_cluster("cluster", "cluster"),
            assignment("cluster", [self.a.address]),
        ]

    def seen_at_last(self, client: Client, since: float, expected: str | None) -> str:
        """What it sees; a slow one is given time to see what is expected."""
        deadline = time.monotonic() + (PATIENCE_SECONDS if expected else 0)
        while True:
            seen = self.seen(client, since)
            if seen == expected or time.monotonic() > deadline:
                return seen
            time.sleep(0.5)

    def seen(self, client: Client, since: float) -> str:
        """What the RPCs of the last second of a spell saw, and which errors came before, in the order of names."""

        def settled() -> list[str]:
            last = client.outcomes(max(since + SETTLE_SECONDS, time.monotonic() - 2))
            expect(client.process.alive() and len(last) >= 10, f"only {len(last)} RPCs ended")
            return [code(outcome) for outcome in last]

        try:
            last = set(eventually(settled, within=12, every=0.1))
        except Red:
            return "RPCs hang" if client.process.alive() else "the client crashes"
        rejected = " (rejected)" if self.control_plane.nacks(client.node, since) else ""
        failed = [outcome for outcome in client.outcomes(since) if outcome.startswith("! ")]
        before = {code(outcome) for outcome in failed if not differences.is_known_race(client.kind, outcome)} - last
        way = "".join(f" (on the way: {error})" for error in sorted(before))
        return ", ".join(sorted(last)) + rejected + way


class Resources:
    """The plain resources, to be changed by a scenario."""

    def __init__(self, resources: list[dict]):
        self.all = resources
        self.listener, self.cluster, self.endpoints = resources

    @property
    def manager(self) -> dict:
        return self.listener["apiListener"]["apiListener"]

    @property
    def host(self) -> dict:
        return self.manager["routeConfig"]["virtualHosts"][0]

    @property
    def route(self) -> dict:
        return self.host["routes"][0]

    @property
    def localities(self) -> list[dict]:
        return self.endpoints["endpoints"]

    def remove(self, resource: dict) -> None:
        self.all.remove(resource)


def code(outcome: str) -> str:
    """`a`, or `UNAVAILABLE`: codes have other names elsewhere, and texts are everybody's own."""
    return outcome.removeprefix("! ").split(":")[0].replace("_", "").upper() if outcome.startswith("! ") else outcome


def endpoint_health(health: str):
    def change(_: Script, resources: Resources) -> None:
        resources.localities[0]["lbEndpoints"][0]["healthStatus"] = health

    return change


def bad_and_good_endpoint(script: Script, resources: Resources) -> None:
    both = assignment("cluster", [script.dead, script.b.address])
    resources.endpoints["endpoints"] = both["endpoints"]


def failover(script: Script, resources: Resources) -> None:
    first = assignment("cluster", [script.dead])["endpoints"][0]
    second = {**assignment("cluster", [script.b.address])["endpoints"][0], "priority": 1}
    resources.endpoints["endpoints"] = [first, second]


def gap_in_priorities(script: Script, resources: Resources) -> None:
    resources.endpoints["endpoints"] = [{**assignment("cluster", [script.b.address])["endpoints"][0], "priority": 1}]


def zero_locality_weight(script: Script, resources: Resources) -> None:
    other = assignment("cluster", [script.b.address])["endpoints"][0]
    other["locality"] = {"subZone": "other"}
    resources.localities[0]["loadBalancingWeight"] = 0
    resources.localities.append(other)


def aggregate(script: Script, resources: Resources) -> None:
    kind = f"{GOOGLEAPIS}/envoy.extensions.clusters.aggregate.v3.ClusterConfig"
    config = {"@type": kind, "clusters": ["first", "second"]}
    resources.cluster.pop("type")
    resources.cluster.pop("edsClusterConfig")
    resources.cluster |= {
        "clusterType": {"name": "envoy.clusters.aggregate", "typedConfig": config},
    }
    resources.all += [eds_cluster("first", "first"), eds_cluster("second", "second")]
    resources.all += [assignment("first", [script.dead]), assignment("second", [script.b.address])]


def aggregate_with_policy(script: Script, resources: Resources) -> None:
    aggregate(script, resources)
    resources.cluster["lbPolicy"] = "CLUSTER_PROVIDED"


def logical_dns(script: Script, resources: Resources) -> None:
    resources.cluster.pop("edsClusterConfig")
    resources.cluster |= {"type": "LOGICAL_DNS", "loadAssignment": {"endpoints": [
        {"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {
            "address": "localhost", "portValue": script.b.port}}}}]}]}}


def with_listener(change):
    """Besides, the routes lead to the other backend: who takes the Listener is seen there."""

    def both(script: Script, resources: Resources) -> None:
        resources.route["route"]["cluster"] = "moved"
        resources.all += [eds_cluster("moved", "moved"), assignment("moved", [script.b.address])]
        change(script, resources)

    return both


def with_cluster(change):
    """Besides, the cluster has the other backend: who takes it is seen there."""

    def both(script: Script, resources: Resources) -> None:
        resources.cluster["edsClusterConfig"]["serviceName"] = "moved"
        resources.all += [assignment("moved", [script.b.address])]
        change(script, resources)

    return both


def with_endpoints(change):
    """Besides, the endpoint is the other backend: who takes it is seen there."""

    def both(script: Script, resources: Resources) -> None:
        resources.endpoints["endpoints"] = assignment("cluster", [script.b.address])["endpoints"]
        change(script, resources)

    return both


def http_filter(config: dict, **more):
    def change(_: Script, resources: Resources) -> None:
        resources.manager["httpFilters"].insert(0, {"name": "extra", "typedConfig": config, **more})

    return change


def on_route(**fields):
    return lambda _, resources: resources.route["route"].update(fields)


def on_match(**fields):
    def change(_: Script, resources: Resources) -> None:
        resources.route["match"] = fields

    return change


def on_host(**fields):
    return lambda _, resources: resources.host.update(fields)


def on_cluster(**fields):
    return lambda _, resources: resources.cluster.update(fields)


def on_endpoints(**fields):
    return lambda _, resources: resources.endpoints.update(fields)


def weighted(script: Script, resources: Resources) -> None:
    resources.route["route"] = {"weightedClusters": {"clusters": [
        {"name": "cluster", "weight": 0}, {"name": "other", "weight": 100}]}}
    resources.all += [eds_cluster("other", "other"), assignment("other", [script.b.address])]


def fault(percentage: int, status: int) -> dict:
    return {
        "@type": f"{GOOGLEAPIS}/envoy.extensions.filters.http.fault.v3.HTTPFault",
        "abort": {"grpcStatus": status, "percentage": {"numerator": percentage}},
    }


UNKNOWN_FILTER = {"@type": f"{GOOGLEAPIS}/google.protobuf.Struct", "value": {}}
SCENARIOS = {
    "Listener goes": lambda _, resources: resources.remove(resources.listener),
    "Listener without routes": with_listener(lambda _, resources: resources.manager.pop("routeConfig")),
    "unknown HTTP filter": with_listener(http_filter(UNKNOWN_FILTER)),
    "unknown optional HTTP filter": with_listener(http_filter(UNKNOWN_FILTER, isOptional=True)),
    "fault: every RPC aborted": http_filter(fault(100, 9)),
    "no virtual host for the authority": on_host(domains=["elsewhere"]),
    "no route for the path": on_match(prefix="/other.Service/"),
    "path in another case, sensitive": on_match(path="/GRPC.testing.TestService/UnaryCall"),
    "path in another case, insensitive": with_listener(
        on_match(path="/GRPC.testing.TestService/UnaryCall", caseSensitive=False)
    ),
    "header that is absent, inverted": with_listener(
        on_match(prefix="", headers=[{"name": "absent", "presentMatch": True, "invertMatch": True}])
    ),
    "route with an unused action": lambda _, resources: (
        resources.route.pop("route"),
        resources.route.update(nonForwardingAction={}),
    ),
    "route to a cluster that is not there": on_route(cluster="nowhere"),
    "weights 0 and 100": weighted,
    "cluster goes": lambda _, resources: resources.remove(resources.cluster),
    "cluster of an unknown LB policy": with_cluster(on_cluster(lbPolicy="MAGLEV")),
    "cluster with ring hash": with_cluster(on_cluster(lbPolicy="RING_HASH")),
    "cluster with least request": with_cluster(on_cluster(lbPolicy="LEAST_REQUEST")),
    "aggregate cluster, first one dead": aggregate,
    "aggregate cluster with the policy that Envoy wants": aggregate_with_policy,
    "logical DNS cluster": logical_dns,
    "endpoints go": lambda _, resources: resources.remove(resources.endpoints),
    "no endpoints": on_endpoints(endpoints=[]),
    "endpoint unhealthy": endpoint_health("UNHEALTHY"),
    "endpoint draining": endpoint_health("DRAINING"),
    "endpoint of unknown health": with_endpoints(endpoint_health("UNKNOWN")),
    "one endpoint dead, one alive": bad_and_good_endpoint,
    "first priority dead": failover,
    "priority 0 missing": gap_in_priorities,
    "locality of weight 0": zero_locality_weight,
    "every RPC dropped": on_endpoints(
        policy={"dropOverloads": [{"category": "all", "dropPercentage": {"numerator": 100}}]}
    ),
}
