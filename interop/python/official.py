"""gRPC's own fallback scenarios, and the client's half of its federation case, with our client and go-control-plane (spec I-40 to I-61)."""

import json

from driver import TestClient
from world import CLUSTER, NODE_ID, Config, GoControlPlane, World, expect, server

TARGET = "xds:///listener_0"
DOWN, READY, NONE = "TRANSIENT_FAILURE", "READY", None


def fallback_on_startup(world: World) -> None:
    """I-40: both down, fallback up, primary up, primary down, both down."""
    one, two = world.backend("server1"), world.backend("server2")
    primary = GoControlPlane(world, Config.simple("cluster_name", one))
    fallback = GoControlPlane(world, Config.simple("fallback_cluster", two))
    client = TestClient(world, TARGET, world.bootstrap([primary.port, fallback.port]))

    client.expect_states({primary.port: DOWN, fallback.port: DOWN})
    stats = client.stats(5)
    expect(stats.num_failures == 5, f"5 failures expected: {stats}")

    fallback.start()
    client.expect_states({primary.port: DOWN, fallback.port: READY})
    client.expect_only("server2", 10, within=20)

    primary.start()
    client.expect_states({primary.port: READY, fallback.port: NONE})
    client.expect_only("server1", 10, within=20)
    client.expect_active(primary.port)

    primary.stop()
    client.expect_states({primary.port: DOWN, fallback.port: NONE})
    client.expect_only("server1", 10, within=60)

    fallback.stop()
    client.expect_states({primary.port: DOWN, fallback.port: NONE})
    client.expect_only("server1", 10, within=60)


def fallback_mid_startup(world: World) -> None:
    """I-44: the primary dies when it is asked for the cluster, and comes back with another one."""
    one, two = world.backend("server1"), world.backend("server2")
    primary = GoControlPlane(world, Config.simple("cluster_name", one))
    fallback = GoControlPlane(world, Config.simple("fallback_cluster", two))
    fallback.start()
    primary.start()
    primary.stop_on_request(CLUSTER, "cluster_name")
    client = TestClient(world, TARGET, world.bootstrap([primary.port, fallback.port]))

    client.expect_states({primary.port: DOWN, fallback.port: READY})
    client.expect_only("server2", 10, within=60)

    primary.set(Config.simple("new_cluster", one))
    primary.start()
    client.expect_states({primary.port: READY, fallback.port: NONE})
    client.expect_only("server1", 10, within=20)


def fallback_mid_update(world: World) -> None:
    """I-47: the primary dies in the middle of an update, and comes back with another one."""
    one, two, three = (world.backend(f"server{number}") for number in (1, 2, 3))
    primary = GoControlPlane(world, Config.simple("test_cluster_1", one))
    fallback = GoControlPlane(world, Config.simple("fallback_cluster", two))
    primary.start()
    fallback.start()
    client = TestClient(world, TARGET, world.bootstrap([primary.port, fallback.port]))

    client.expect_states({primary.port: READY, fallback.port: NONE})
    client.expect_only("server1", 10, within=60)

    primary.stop_on_request(CLUSTER, "test_cluster_2")
    primary.set(Config.simple("test_cluster_2", one))
    client.expect_states({primary.port: DOWN, fallback.port: READY})
    client.expect_only("server2", 10, within=60)

    primary.set(Config.simple("test_cluster_2", three))
    primary.start()
    client.expect_states({primary.port: READY, fallback.port: NONE})
    client.expect_only("server3", 10, within=60)


def federation(world: World) -> None:
    """I-60, I-61: Listener from one authority, cluster and endpoints from another; the default is never contacted.

    The official case has an xDS-enabled server as well, which fetches its own Listener; this one is a plain server.
    """
    one = world.backend("server1")
    cluster = "xdstp://authority2/envoy.config.cluster.v3.Cluster/cluster1"
    service = "xdstp://authority2/envoy.config.endpoint.v3.ClusterLoadAssignment/cluster1"
    listener = "xdstp://authority1/envoy.config.listener.v3.Listener/listener_0"
    first = GoControlPlane(world, Config({listener: cluster}, {}, {}))
    second = GoControlPlane(world, Config({}, {cluster: service}, {service: [one.address]}))
    first.start()
    second.start()
    bootstrap = {
        "xds_servers": [server("invalid.:8080")],
        "node": {"id": NODE_ID},
        "authorities": {
            "authority1": {"xds_servers": [server(f"127.0.0.1:{first.port}")]},
            "authority2": {"xds_servers": [server(f"127.0.0.1:{second.port}")]},
        },
        "server_listener_resource_name_template": "xdstp://authority2/envoy.config.listener.v3.Listener/grpc/server/%s",
    }
    client = TestClient(world, "xds://authority1/listener_0", world.file(json.dumps(bootstrap)))
    client.expect_states({first.port: READY, second.port: READY, 8080: NONE})
    client.expect_only("server1", 10, within=60)
    client.expect_active(first.port)
    client.expect_active(second.port)


SCENARIOS = {
    "fallback on startup": fallback_on_startup,
    "fallback mid startup": fallback_mid_startup,
    "fallback mid update": fallback_mid_update,
    "federation, client half (plain server)": federation,
}
