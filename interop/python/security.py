"""gRPC's security cases: who may speak to whom, as one control plane says, crossed between all clients and servers."""

import base64
import os
import pathlib
import subprocess
import sys
import time

import grpc
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc

from driver import STATE
from world import (
    GOOGLEAPIS,
    JVM,
    LISTENER,
    ROOT,
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
)

NAME = "gRPC's security cases"
CLIENTS = ["mainstay", "grpc-go", "grpcio", "grpc-java", "grpc-js"]
SERVERS = ["mainstay", "grpc-go", "grpcio", "grpc-java", "grpc-js"]
# Stops serving when its Listener is replaced by a second one (grpc-js 1.14.7 with grpc-js-xds 1.14.1): started anew for each mode.
RESTARTED = "grpc-js"
TLS = f"{GOOGLEAPIS}/envoy.extensions.transport_sockets.tls.v3"
TARGET = "xds:///service"


class Mode:
    """What clusters and listeners say, and what becomes of RPCs."""

    def __init__(self, name: str, upstream: dict | None, downstream: dict | None, works: bool):
        self.name, self.upstream, self.downstream, self.works = name, upstream, downstream, works


def instance() -> dict:
    return {"instanceName": "files"}


def upstream(identity: bool, name: str = "spiffe://mesh.test/server") -> dict:
    validation = {"caCertificateProviderInstance": instance(), "matchSubjectAltNames": [{"exact": name}]}
    common = {"validationContext": validation, **({"tlsCertificateProviderInstance": instance()} if identity else {})}
    return {"@type": f"{TLS}.UpstreamTlsContext", "commonTlsContext": common}


def downstream(mtls: bool) -> dict:
    common: dict = {"tlsCertificateProviderInstance": instance()}
    if mtls:
        common["validationContext"] = {"caCertificateProviderInstance": instance()}
    return {
        "@type": f"{TLS}.DownstreamTlsContext",
        "commonTlsContext": common,
        **({"requireClientCertificate": True} if mtls else {}),
    }


MODES = [
    Mode("mTLS", upstream(identity=True), downstream(mtls=True), works=True),
    Mode("TLS", upstream(identity=False), downstream(mtls=False), works=True),
    Mode("plaintext fallback", None, None, works=True),
    Mode("mTLS error: no client certificate", upstream(identity=False), downstream(mtls=True), works=False),
    Mode("server authz error: another name", upstream(True, "spiffe://mesh.test/nobody"), downstream(True), works=False),
]


def socket_of(context: dict | None) -> dict:
    if context is None:
        return {}
    return {"transportSocket": {"name": "envoy.transport_sockets.tls", "typedConfig": context}}


def server_listener(port: int, context: dict | None) -> dict:
    """As every server asks for it that listens on all addresses of the machine."""
    manager = api_listener("", "", broken=True)["apiListener"]["apiListener"]
    route = {"match": {"prefix": ""}, "nonForwardingAction": {}}
    manager["routeConfig"] = {"name": "route", "virtualHosts": [{"name": "all", "domains": ["*"], "routes": [route]}]}
    chain = {"name": "main", "filters": [{"name": "hcm", "typedConfig": manager}], **socket_of(context)}
    return {
        "@type": LISTENER,
        "name": TEMPLATE.replace("%s", f"0.0.0.0:{port}"),
        "trafficDirection": "INBOUND",
        "address": {"socketAddress": {"address": "0.0.0.0", "portValue": port}},
        "filterChains": [chain],
    }


class Server:
    """A server of one implementation, which is configured by the control plane."""

    def __init__(self, world: World, kind: str, bootstrap: pathlib.Path):
        self.kind, self.port, self.maintenance_port = kind, free_port(), free_port()
        programs = world.programs
        ours = ["--secure_mode=true", f"--maintenance_port={self.maintenance_port}", "--address_type=IPV4"]
        arguments = {
            "mainstay": [programs.server, *ours],
            "grpc-go": [programs.go_server],
            "grpcio": [sys.executable, ROOT / "python" / "server.py"],
            "grpc-java": ["java", *JVM, "-cp", f"{programs.java}{os.pathsep}{programs.java}/*", "Server"],
            "grpc-js": ["node", ROOT / "js" / "server.js"],
        }[kind]
        flags = [f"--port={self.port}", f"--hostname={kind}"]
        self.process = world.run([*arguments, *flags], {"GRPC_XDS_BOOTSTRAP": str(bootstrap)})
        self.process.wait_for("on port")


class Script:
    """All modes with each server; all clients at once."""

    def __init__(self, world: World):
        self.world = world
        self.certificates = world.directory / "certificates"
        self.certificates.mkdir()
        subprocess.run([world.programs.go_certificates, self.certificates, "server", "client"], check=True, timeout=60)
        self.control_plane = MainstayControlPlane(world)
        self.control_plane.serve([])
        self.control_plane.start()
        self.servers = [self.server(kind) for kind in SERVERS]
        self.clients: list[Client] = []

    def server(self, kind: str) -> Server:
        return Server(self.world, kind, self.bootstrap(f"server-{kind}", "server"))

    def bootstrap(self, node: str, identity: str) -> pathlib.Path:
        files = {
            "ca_certificate_file": str(self.certificates / "ca.pem"),
            "certificate_file": str(self.certificates / f"{identity}.pem"),
            "private_key_file": str(self.certificates / f"{identity}.key"),
            "refresh_interval": "60s",
        }
        return self.world.bootstrap(
            [self.control_plane.port],
            node,
            certificate_providers={"files": {"plugin_name": "file_watcher", "config": files}},
            server_listener_resource_name_template=TEMPLATE,
        )

    def play(self) -> dict:
        table: dict[str, dict[str, str]] = {}
        for mode in MODES:
            for place, peer in enumerate(self.servers):
                if peer.kind == RESTARTED:
                    peer.process.kill()
                    peer = self.servers[place] = self.server(peer.kind)
                row = f"{mode.name}; server {peer.kind}"
                begun = time.monotonic()
                self.configure(mode, peer)
                if not self.clients:
                    self.start_clients()
                table[row] = {client.kind: self.judge(mode, peer, client, begun) for client in self.clients}
        return table

    def configure(self, mode: Mode, peer: Server) -> None:
        """All servers get the mode; RPCs go to one of them."""
        name = f"{MODES.index(mode)}-{peer.kind}"  # A cluster of its own, so that no connection of another is used.
        resources = [server_listener(one.port, mode.downstream) for one in self.servers]
        resources.append(api_listener("service", name, broken=False))
        resources.append({**eds_cluster(name, name), **socket_of(mode.upstream)})
        resources.append(assignment(name, [f"127.0.0.1:{peer.port}"]))
        self.control_plane.serve_now(resources)

    def start_clients(self) -> None:
        for kind in CLIENTS:
            bootstrap = self.bootstrap(f"client-{kind}", "client")
            self.clients.append(Client(self.world, kind, TARGET, bootstrap, flags=["--secure_mode=true"]))

    def judge(self, mode: Mode, peer: Server, client: Client, begun: float) -> str:
        try:
            if mode.works:
                client.settles_on(peer.kind, since=begun, within=60)  # with the start of five clients, on a busy machine
            else:
                client.fails(since=begun, within=30)
                calm = time.monotonic()
                eventually(lambda: expect(len(client.outcomes(calm)) >= 10, "too few RPCs"), within=15, every=0.1)
                answered = [outcome for outcome in client.outcomes(calm) if not outcome.startswith("! ")]
                expect(not answered, f"answered by {answered}")
            if client.kind == "mainstay":
                self.look_at_sockets(mode, peer, client)
            return f"pass ({time.monotonic() - begun:.1f} s)"
        except Red as red:
            return f"FAIL: {red}"

    def look_at_sockets(self, mode: Mode, peer: Server, client: Client) -> None:
        """What the official suite reads in channelz: certificates where RPCs work, one failing subchannel where not."""
        channelz = channelz_pb2_grpc.ChannelzStub(grpc.insecure_channel(f"127.0.0.1:{client.stats_port}"))
        channels = channelz.GetTopChannels(channelz_pb2.GetTopChannelsRequest(), timeout=5).channel
        [channel] = [channel for channel in channels if channel.data.target == TARGET]

        def subchannels() -> list:
            request = channelz_pb2.GetChannelRequest(channel_id=channel.ref.channel_id)
            found = channelz.GetChannel(request, timeout=5).channel.subchannel_ref
            asked = [channelz_pb2.GetSubchannelRequest(subchannel_id=one.subchannel_id) for one in found]
            return [channelz.GetSubchannel(one, timeout=5).subchannel for one in asked]

        if not mode.works:
            [subchannel] = subchannels()
            # Between two attempts it is for a moment CONNECTING.
            state = STATE.Name(subchannel.data.state.state)
            expect(state in ("TRANSIENT_FAILURE", "CONNECTING", "IDLE"), f"the subchannel is {state}")
            return
        [reference] = [socket for one in subchannels() for socket in one.socket_ref]
        request = channelz_pb2.GetSocketRequest(socket_id=reference.socket_id)
        socket = channelz.GetSocket(request, timeout=5).socket
        seen = (socket.security.tls.local_certificate, socket.security.tls.remote_certificate)
        ours, theirs = self.der("client"), self.der("server")
        expected = {"mTLS": (ours, theirs), "TLS": (b"", theirs), "plaintext fallback": (b"", b"")}[mode.name]
        expect(seen == expected, "channelz of the client shows other certificates")
        if peer.kind == "mainstay":
            self.look_at_server(peer, socket.local.tcpip_address.port, expected)

    def look_at_server(self, peer: Server, client_port: int, of_client: tuple) -> None:
        """The socket of the same connection at the server: the same certificates, the other way around."""
        channelz = channelz_pb2_grpc.ChannelzStub(grpc.insecure_channel(f"127.0.0.1:{peer.maintenance_port}"))
        for one in channelz.GetServers(channelz_pb2.GetServersRequest(), timeout=5).server:
            request = channelz_pb2.GetServerSocketsRequest(server_id=one.ref.server_id)
            for reference in channelz.GetServerSockets(request, timeout=5).socket_ref:
                request = channelz_pb2.GetSocketRequest(socket_id=reference.socket_id)
                socket = channelz.GetSocket(request, timeout=5).socket
                if socket.remote.tcpip_address.port == client_port:
                    tls = socket.security.tls
                    seen = (tls.remote_certificate, tls.local_certificate)
                    expect(seen == of_client, "channelz of the server shows other certificates")
                    return
        raise Red(f"no socket with the client's port {client_port} in channelz of the server")

    def der(self, name: str) -> bytes:
        lines = (self.certificates / f"{name}.pem").read_text().splitlines()
        return base64.b64decode("".join(line for line in lines if not line.startswith("-----")))


TEMPLATE = "grpc/server?xds.resource.listening_address=%s"
