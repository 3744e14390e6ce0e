"""Istio's control plane, configured by files as its users write them, and all clients as parts of its mesh.

Clients tell it that they are gRPC without a proxy (`GENERATOR`), as the bootstrap of Istio's agent does.
"""

import json
import os
import urllib.request

import differences
from differential import DIFFERS, Steps
from world import CLIENTS, Client, Process, Red, World, eventually, expect, free_port, server

NAME = "istiod"
HOST, PORT = "greeter.mesh.test", 8080
TARGET = f"xds:///{HOST}:{PORT}"
REJECTED = "nothing is rejected"


class Script(Steps):
    """Plays what happens in a mesh, with RPCs all the time."""

    def __init__(self, world: World):
        super().__init__(world)
        self.istiod = Istiod(world)

    def play(self) -> dict[str, dict[str, str]]:
        istiod = self.istiod
        istiod.serve(service(v1=self.a))
        istiod.start()
        self.clients = [Client(self.world, kind, TARGET, self.bootstrap(kind)) for kind in CLIENTS]
        self.step("start: a ServiceEntry", "a", strict=False)
        self.step("its endpoint moves", "b", lambda: istiod.serve(service(v1=self.b)))

        both = service(v1=self.a, v2=self.b)
        self.step("a second endpoint", {"a", "b"}, lambda: istiod.serve(both))
        self.step("route to one subset", "b", lambda: istiod.serve(both, subsets(), routes(to("v2"))))
        split = routes({"route": [{**weighted, "weight": 50} for weighted in to("v1")["route"] + to("v2")["route"]]})
        self.step("weights of two subsets", {"a", "b"}, lambda: istiod.serve(both, subsets(), split))
        method = {"match": [{"uri": {"prefix": "/grpc.testing.TestService/"}}], **to("v1")}
        self.step("route by method", "a", lambda: istiod.serve(both, subsets(), routes(method, to("v2"))))
        careful = {**to("v2"), "timeout": "5s", "retries": {"attempts": 3, "retryOn": "unavailable,cancelled"}}
        self.step("timeout and retries", "b", lambda: istiod.serve(both, subsets(), routes(careful)))
        least = {"simple": "LEAST_REQUEST"}
        self.step("policy: least request", {"a", "b"}, lambda: istiod.serve(both, policy(loadBalancer=least)))
        abort = {"abort": {"percentage": {"value": 100}, "grpcStatus": "UNAVAILABLE"}}
        aborted = routes({**to("v2"), "fault": abort})
        self.step("fault: every RPC aborted", None, lambda: istiod.serve(both, subsets(), aborted), strict=False)
        self.step("no fault any more", "a", lambda: istiod.serve(both, subsets(), routes(to("v1"))), strict=False)

        by_header = policy(loadBalancer={"consistentHash": {"httpHeaderName": "user-agent"}})
        self.step("subsets go, policy: ring hash", "a", lambda: istiod.serve(service(v1=self.a), by_header))
        limit = {"http": {"http2MaxRequests": 1000}}
        self.step("circuit breaker", "b", lambda: istiod.serve(service(v1=self.b), policy(connectionPool=limit)))
        mutual = {"mode": "ISTIO_MUTUAL"}
        self.step("mutual TLS, plaintext channel", "a", lambda: istiod.serve(service(v1=self.a), policy(tls=mutual)))

        self.step("istiod dies", "a", istiod.stop, hold=3)
        self.step("istiod returns, changed", "c", self.come_back)
        self.step("and goes on with updates", "b", lambda: istiod.serve(service(v1=self.b)))
        # Istio says so by routes without a virtual host for it, which are in force like any others (L-31).
        self.step("the service goes", None, istiod.serve, strict=False)
        self.step("the service comes back", "a", lambda: istiod.serve(service(v1=self.a)), strict=False)
        self.results[REJECTED] = {client.kind: self.rejected(client.kind) for client in self.clients}
        return self.results

    def step(self, *arguments, within=15.0, **settings) -> None:
        super().step(*arguments, within=within, **settings)

    def bootstrap(self, kind: str):
        """As Istio's agent writes it, without the agent in between."""
        node = {
            "id": f"sidecar~127.0.0.1~{kind}.default~default.svc.cluster.local",
            "locality": {"zone": "zone"},
            "metadata": {"GENERATOR": "grpc", "NAMESPACE": "default", "ISTIO_VERSION": "1.31.0"},
        }
        files = {name: f"/etc/certs/{name}" for name in ("private_key_file", "certificate_file", "ca_certificate_file")}
        providers = {"default": {"plugin_name": "file_watcher", "config": {**files, "refresh_interval": "900s"}}}
        content = {
            "xds_servers": [server(f"127.0.0.1:{self.istiod.port}")],
            "node": node,
            "certificate_providers": providers,
            "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
        }
        return self.world.file(json.dumps(content))

    def rejected(self, kind: str) -> str:
        nacks = [line for line in self.istiod.nacks if f" {kind}.default-" in line]
        if nacks and (REJECTED, kind) in differences.RULES:
            return DIFFERS
        return f"FAIL: {len(nacks)} responses, first: {nacks[0]}" if nacks else "pass"

    def come_back(self) -> None:
        self.istiod.serve(service(v1=self.c))
        self.istiod.start()


class Istiod:
    """A running istiod that watches a directory."""

    def __init__(self, world: World):
        self.world, self.port = world, free_port()
        self.directory = world.directory / "config"
        self.directory.mkdir()
        self.processes: list[Process] = []

    def start(self) -> None:
        http = free_port()
        arguments = [f"--config={self.directory}", f"--listen=127.0.0.1:{self.port}", f"--http=127.0.0.1:{http}"]
        # Certificates would need a cluster to be kept in.
        process = self.world.run([self.world.programs.istiod, *arguments], {"ENABLE_CA_SERVER": "false"})
        self.processes.append(process)

        def ready() -> None:
            expect(process.alive(), f"istiod ended: {process.tail()}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{http}/ready", timeout=5).close()
            except OSError as error:
                raise Red(f"istiod is not ready: {error}: {process.tail()}") from None

        eventually(ready, within=60)

    def stop(self) -> None:
        self.processes[-1].kill()

    def serve(self, *resources: dict) -> None:
        # Renamed into place: a reader sees the old file or the new one.
        unfinished = self.world.directory / "config.new"
        unfinished.write_text("\n---\n".join(json.dumps(resource) for resource in resources) + "\n")
        os.replace(unfinished, self.directory / "config.yaml")

    @property
    def nacks(self) -> list[str]:
        return [line for process in self.processes for _, line in process.lines if "ACK ERROR" in line]


def resource(kind: str, spec: dict) -> dict:
    metadata = {"name": "greeter", "namespace": "default"}
    return {"apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def service(**backends) -> dict:
    """A service with one endpoint for each version."""
    endpoints = [
        {"address": "127.0.0.1", "ports": {"grpc": backend.port}, "labels": {"version": version}}
        for version, backend in backends.items()
    ]
    ports = [{"number": PORT, "name": "grpc", "protocol": "GRPC"}]
    where = {"hosts": [HOST], "location": "MESH_INTERNAL", "resolution": "STATIC"}
    return resource("ServiceEntry", {**where, "ports": ports, "endpoints": endpoints})


def policy(**settings) -> dict:
    return resource("DestinationRule", {"host": HOST, "trafficPolicy": settings})


def subsets() -> dict:
    versions = [{"name": version, "labels": {"version": version}} for version in ("v1", "v2")]
    return resource("DestinationRule", {"host": HOST, "subsets": versions})


def routes(*http: dict) -> dict:
    return resource("VirtualService", {"hosts": [HOST], "http": list(http)})


def to(subset: str) -> dict:
    return {"route": [{"destination": {"host": HOST, "subset": subset}}]}
