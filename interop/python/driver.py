"""What the official framework asks of a client under test: statistics, channelz, CSDS (I-6)."""

import sys
import time

import grpc
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc

from world import ROOT, Red, World, eventually, expect, free_port

# The stubs of the interop services are made from the files that our programs are made from.
sys.path.insert(0, str(ROOT.parent / "crates" / "testservice" / "proto"))
pb, services = grpc.protos_and_services("interop.proto")


class TestClient:
    """Our interop client, started as the official local suites start it (I-32)."""

    def __init__(self, world: World, target: str, bootstrap, flags: tuple = ()):
        self.port = free_port()
        env = {
            "GRPC_XDS_BOOTSTRAP": str(bootstrap),
            "GRPC_EXPERIMENTAL_XDS_FALLBACK": "true",
            "GRPC_EXPERIMENTAL_XDS_FEDERATION": "true",
        }
        arguments = [world.programs.client, f"--server={target}", f"--stats_port={self.port}", *flags]
        self.process = world.run(arguments, env)
        self.process.wait_for("stats on port")
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        self._stats = services.LoadBalancerStatsServiceStub(self.channel)
        self._configure = services.XdsUpdateClientConfigureServiceStub(self.channel)
        self._channelz = channelz_pb2_grpc.ChannelzStub(self.channel)
        self._csds = csds_pb2_grpc.ClientStatusDiscoveryServiceStub(self.channel)

    def stats(self, num_rpcs: int, timeout_sec: int = 300):
        request = pb.LoadBalancerStatsRequest(num_rpcs=num_rpcs, timeout_sec=timeout_sec)
        return self._stats.GetClientStats(request, timeout=timeout_sec + 5)

    def accumulated(self):
        return self._stats.GetClientAccumulatedStats(pb.LoadBalancerAccumulatedStatsRequest(), timeout=5)

    def configure(self, types: list, metadata: tuple = (), timeout_sec: int = 0) -> None:
        entries = [pb.ClientConfigureRequest.Metadata(type=t, key=k, value=v) for t, k, v in metadata]
        request = pb.ClientConfigureRequest(types=types, metadata=entries, timeout_sec=timeout_sec)
        self._configure.Configure(request, timeout=5)

    def top_channels(self) -> list:
        channels, start = [], 0
        while True:
            request = channelz_pb2.GetTopChannelsRequest(start_channel_id=start)
            page = self._channelz.GetTopChannels(request, timeout=5)
            channels.extend(page.channel)
            if page.end:
                return channels
            start = channels[-1].ref.channel_id + 1

    def xds_channel(self, port: int):
        """The channel whose target ends with the port (I-22)."""
        return next((c for c in self.top_channels() if c.data.target.endswith(f":{port}")), None)

    def state(self, port: int) -> str | None:
        channel = self.xds_channel(port)
        return channel and STATE.Name(channel.data.state.state)

    def subchannel(self, subchannel_id: int):
        request = channelz_pb2.GetSubchannelRequest(subchannel_id=subchannel_id)
        return self._channelz.GetSubchannel(request, timeout=5).subchannel

    def socket(self, socket_id: int):
        return self._channelz.GetSocket(channelz_pb2.GetSocketRequest(socket_id=socket_id), timeout=5).socket

    def client_status(self, **fields):
        return self._csds.FetchClientStatus(csds_pb2.ClientStatusRequest(**fields), timeout=5)

    def stream_client_status(self, count: int) -> list:
        requests = (csds_pb2.ClientStatusRequest() for _ in range(count))
        return list(self._csds.StreamClientStatus(requests, timeout=5))

    # What the fallback suite checks, with its own timeouts (section 7).

    def expect_states(self, states: dict) -> None:
        """Each of the ports has the state, within 15 s per look and 3 min in all."""

        def look() -> None:
            for port, wanted in states.items():
                state = self.state(port)
                expect(state == wanted, f"channel to :{port} is {state}, expected {wanted}")

        eventually(look, within=180)

    def expect_active(self, port: int) -> None:
        """READY with an open stream, on two reads 2 s apart (I-24)."""
        reads = []
        for pause in (2, 0):
            channel = self.xds_channel(port)
            expect(channel is not None, f"no channel to :{port}")
            data = channel.data
            expect(STATE.Name(data.state.state) == "READY", f"channel to :{port} is not READY")
            open_streams = data.calls_started - data.calls_succeeded - data.calls_failed
            expect(open_streams > 0, f"channel to :{port} has no open stream")
            reads.append(data.calls_started)
            time.sleep(pause)
        expect(reads[0] == reads[1], f"channel to :{port} opened streams meanwhile")

    def expect_only(self, name: str, count: int, within: float) -> None:
        """A block of `count` RPCs without failures, all to `name`."""

        def block() -> None:
            stats = self.stats(count)
            seen = dict(stats.rpcs_by_peer)
            if stats.num_failures or seen != {name: count}:
                raise Red(f"{count} RPCs to {name} expected, seen {seen} and {stats.num_failures} failures")

        eventually(block, within)


STATE = channelz_pb2.ChannelConnectivityState.State
