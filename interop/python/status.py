"""Our admin and control services, read by grpcio's own CSDS and channelz clients."""

import concurrent.futures
import time

import grpc
from envoy.admin.v3 import config_dump_shared_pb2

from driver import STATE, TestClient, pb
from world import NODE_ID, Config, GoControlPlane, Red, World, eventually, expect, free_port

TARGET = "xds:///listener_0"


def csds(world: World) -> None:
    """I-26: one config for one target, every type with version and content; a NACK and its cure show."""
    one = world.backend("server1")
    control_plane, client = start(world, one)
    client.expect_only("server1", 10, within=30)

    response = client.client_status()
    expect(len(response.config) == 1, f"one ClientConfig expected: {response}")
    config = response.config[0]
    expect(config.node.id == NODE_ID, f"node {config.node.id}")
    found = {xds.type_url.rsplit(".", 1)[1]: xds for xds in config.generic_xds_configs}
    expect(set(found) == {"Listener", "Cluster", "ClusterLoadAssignment"}, f"types {sorted(found)}")
    for kind, xds in found.items():
        expect(STATUS.Name(xds.client_status) == "ACKED" and xds.version_info == "1", f"{kind}: {xds}")
        expect(xds.xds_config.type_url == xds.type_url and len(xds.xds_config.value) > 0, f"{kind} has no content")
        expect(xds.HasField("last_updated"), f"{kind} has no time")
    expect(len(client.stream_client_status(2)) == 2, "each request of a stream is answered once")
    bare = client.client_status(exclude_resource_contents=True).config[0].generic_xds_configs
    expect(not any(xds.HasField("xds_config") for xds in bare), "contents were to be left out")

    control_plane.set(Config.simple("cluster_name", one, broken=True))

    def rejected() -> None:
        listener = listener_of(client)
        expect(STATUS.Name(listener.client_status) == "NACKED", f"expected NACKED: {listener}")
        expect(listener.version_info == "1" and listener.error_state.version_info == "2", f"versions: {listener}")
        expect(bool(listener.error_state.details), "the reason is missing")

    eventually(rejected, within=10)
    control_plane.set(Config.simple("cluster_name", one))

    def accepted() -> None:
        listener = listener_of(client)
        expect(STATUS.Name(listener.client_status) == "ACKED" and listener.version_info == "3", f"{listener}")
        expect(not listener.HasField("error_state"), "the error stayed")

    eventually(accepted, within=10)


def channelz(world: World) -> None:
    """I-21 to I-25: the data channel down to its socket, and the ADS channel with its open stream."""
    one = world.backend("server1")
    control_plane, client = start(world, one)
    client.expect_only("server1", 10, within=30)
    client.expect_active(control_plane.port)
    [data] = [channel for channel in client.top_channels() if channel.data.target == TARGET]
    expect(STATE.Name(data.data.state.state) == "READY", f"{data}")
    expect(data.data.calls_succeeded >= 10, f"{data}")
    [reference] = data.subchannel_ref
    subchannel = client.subchannel(reference.subchannel_id)
    expect(STATE.Name(subchannel.data.state.state) == "READY", f"{subchannel}")
    [reference] = subchannel.socket_ref
    socket = client.socket(reference.socket_id)
    expect(socket.remote.tcpip_address.port == one.port, f"{socket}")
    expect(socket.data.streams_started >= 10 and socket.local.tcpip_address.port > 0, f"{socket}")


def control_services(world: World) -> None:
    """I-7 to I-15: what is configured is sent, and its fate is told; health and reflection answer."""
    one = world.backend("server1")
    _, client = start(world, one)
    client.expect_only("server1", 10, within=30)
    empty, unary = pb.ClientConfigureRequest.EMPTY_CALL, pb.ClientConfigureRequest.UNARY_CALL

    client.configure([empty, unary])
    stats = client.stats(10)
    by_method = {method: dict(peers.rpcs_by_peer) for method, peers in stats.rpcs_by_method.items()}
    expect(by_method == {"EmptyCall": {"server1": 5}, "UnaryCall": {"server1": 5}}, f"{by_method}")

    client.configure([unary], ((unary, "rpc-behavior", "error-code-2"),))
    expect(client.stats(5).num_failures == 5, "RPCs were to fail")
    expect(client.accumulated().stats_per_method["UNARY_CALL"].result[2] >= 5, "UNKNOWN is not counted")

    client.configure([unary], ((unary, "rpc-behavior", "keep-open"),), timeout_sec=60)

    def in_flight() -> None:
        unary_stats = client.accumulated().stats_per_method["UNARY_CALL"]
        waiting = unary_stats.rpcs_started - sum(unary_stats.result.values())
        expect(waiting >= 5, f"{waiting} RPCs in flight")

    eventually(in_flight, within=10)
    client.configure([unary])
    client.expect_only("server1", 10, within=10)

    health = client.channel.unary_unary("/grpc.health.v1.Health/Check")
    expect(health(b"", timeout=5) == b"\x08\x01", "SERVING expected")
    reflection = client.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    listed = b"".join(reflection(iter([b"\x3a\x00"]), timeout=5))
    for service in (b"grpc.testing.LoadBalancerStatsService", b"grpc.channelz.v1.Channelz"):
        expect(service in listed, f"{service} is not listed")

    # The server's side (I-18).
    backend = grpc.insecure_channel(one.address)
    backend_health = backend.unary_unary("/grpc.health.v1.Health/Check")
    backend.unary_unary("/grpc.testing.XdsUpdateHealthService/SetNotServing")(b"", timeout=5)
    expect(backend_health(b"", timeout=5) == b"\x08\x02", "NOT_SERVING expected")
    backend.unary_unary("/grpc.testing.XdsUpdateHealthService/SetServing")(b"", timeout=5)
    expect(backend_health(b"", timeout=5) == b"\x08\x01", "SERVING expected")


def keepalive(world: World) -> None:
    """A8: a server of grpcio closes connections that are pinged without calls. Ours are not, unless that is asked for."""

    class Echo(grpc.GenericRpcHandler):
        def service(self, _):
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    class Backend:
        address = f"127.0.0.1:{free_port()}"

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[Echo()])
    server.add_insecure_port(Backend.address)
    server.start()
    try:
        often = ("--qps=1", "--keep_alive_ms=100")
        quiet = start(world, Backend, often)[1]
        noisy = start(world, Backend, (*often, "--keep_alive_without_calls=true"))[1]
        sockets = {client: {eventually(lambda: socket_of(client), within=30)} for client in (quiet, noisy)}
        for _ in range(60):
            time.sleep(0.1)
            for client, seen in sockets.items():
                try:
                    seen.add(socket_of(client))
                except Red:  # Between two connections.
                    pass
        expect(len(sockets[quiet]) == 1, f"{len(sockets[quiet])} connections in 6 s, pinged while there are calls")
        # Otherwise it would not show that pings are counted. After each complaint there are half as many.
        expect(1 < len(sockets[noisy]) < 8, f"{len(sockets[noisy])} connections in 6 s, pinged without calls")
        for client in sockets:
            result = client.accumulated().stats_per_method["UNARY_CALL"].result
            expect(result[0] >= 3 and set(result) == {0}, f"RPCs failed: {dict(result)}")
    finally:
        server.stop(0)


def socket_of(client: TestClient) -> int:
    """The connection of the only endpoint."""
    data = [channel for channel in client.top_channels() if channel.data.target == TARGET]
    expect(len(data) == 1 and len(data[0].subchannel_ref) == 1, f"one subchannel expected: {data}")
    sockets = client.subchannel(data[0].subchannel_ref[0].subchannel_id).socket_ref
    expect(len(sockets) == 1, f"no connection: {sockets}")
    return sockets[0].socket_id


def start(world: World, backend, flags: tuple = ("--qps=10",)) -> tuple[GoControlPlane, TestClient]:
    control_plane = GoControlPlane(world, Config.simple("cluster_name", backend))
    control_plane.start()
    return control_plane, TestClient(world, TARGET, world.bootstrap([control_plane.port]), flags)


def listener_of(client: TestClient):
    configs = client.client_status().config[0].generic_xds_configs
    return next(xds for xds in configs if xds.type_url.endswith(".Listener"))


STATUS = config_dump_shared_pb2.ClientResourceStatus
SCENARIOS = {
    "CSDS": csds,
    "channelz": channelz,
    "control services": control_services,
    "keepalive at a server of grpcio": keepalive,
}
