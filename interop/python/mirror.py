"""gRPC's fallback scenarios with a mirror as the second server, seen by all clients with A71 at once (I-40, I-44, I-47, FB-13 to FB-19).

The official ones have a fallback with a backend of its own; a mirror has what the primary had, so who answers tells less
and what must not happen tells more: no RPC fails while clients go from one to the other.
"""

import json

from differential import TARGET, Steps
from world import CLIENTS, CLUSTER, NODE_ID, Client, Config, GoControlPlane, MainstayMirror, World, node_of

NAME = "gRPC's fallback scenarios, the mirror as second server"


class Script(Steps):
    """The primary is go-control-plane; what it tells is mirrored for one class, that of all clients."""

    def __init__(self, world: World):
        super().__init__(world)
        self.primary = GoControlPlane(world, Config.simple("cluster_1", self.a))
        self.mirror = MainstayMirror(world, self.primary.port, MIRROR)

    def play(self) -> dict[str, dict[str, str]]:
        primary, mirror = self.primary, self.mirror
        self.new_clients()
        self.step("startup: both down, RPCs fail", None, strict=False)
        primary.start()
        mirror.start()
        mirror.wait_until_complete()
        self.step("startup: primary up", "a", strict=False)
        primary.stop()
        self.new_clients()
        self.step("startup: primary down, clients start on the mirror", "a", strict=False)
        # Under another name, as in the official one: under the same, grpc-go never asks the primary (differences.txt).
        primary.set(Config.simple("cluster_2", self.b))
        self.step("startup: primary returns, changed", "b", primary.start)
        self.step("startup: primary down again", "b", primary.stop, hold=2)
        self.step("startup: mirror down, too", "b", mirror.stop, hold=2)

        # The mirror comes back while the primary is down, and has what was in force.
        mirror.start()
        mirror.wait_until_complete()
        self.new_clients()
        self.step("startup: mirror restarted in the outage", "b", strict=False)

        primary.set(Config.simple("cluster_1", self.a))
        primary.start()
        mirror.wait_until_confirmed()
        primary.stop_on_request(CLUSTER, "cluster_1")
        self.new_clients()
        self.step("mid startup: primary dies when asked for the cluster", "a", strict=False)
        primary.set(Config.simple("new_cluster", self.b))
        self.step("mid startup: primary returns with another", "b", primary.start)
        mirror.wait_until_confirmed()

        primary.stop_on_request(CLUSTER, "next_cluster")
        update = lambda: primary.set(Config.simple("next_cluster", self.c))
        self.step("mid update: primary dies, the mirror has the last whole one", "b", update, hold=3)
        self.step("mid update: primary returns", "c", primary.start)
        mirror.wait_until_confirmed()

        # Clients of the primary get it at once; who starts on the mirror later does not.
        seen = len(mirror.process.lines)
        primary.set(Config({"listener_0": "next_cluster"}, {"next_cluster": "service"}, {"service": []}))
        mirror.process.wait_for("an update is held back", since=seen)
        primary.stop()
        self.new_clients()
        self.step("mass removal: held back, then the primary dies", "c", strict=False)
        return self.results

    def new_clients(self) -> None:
        for client in self.clients:
            client.process.kill()
        ports = [self.primary.port, self.mirror.port]
        # grpc-js has no A71: only the first control plane is used.
        kinds = [kind for kind in CLIENTS if kind != "grpc-js"]
        bootstraps = {kind: self.world.bootstrap(ports, node=node_of(kind)) for kind in kinds}
        self.clients = [Client(self.world, kind, TARGET, bootstraps[kind]) for kind in kinds]


MIRROR = json.dumps(
    {
        "classes": [
            {
                "name": "clients",
                "node": {"id": "mirror"},
                "match": {"id": {"prefix": f"{NODE_ID}-"}},
                "targets": [TARGET],
            }
        ]
    }
)
