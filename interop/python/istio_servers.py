"""Servers that Istio's control plane configures: plaintext, mutual TLS, authorization.

Istio names an inbound Listener after the address that a server listens on, and makes one for each port of a service that
has an endpoint at the address of the node. PERMISSIVE is plaintext for servers without a proxy; STRICT is mutual TLS.
"""

import json
import subprocess
import time

import istio
from security import Server
from world import Client, Red, World, server

NAME = "istiod configures servers"
SERVERS = ["mainstay", "grpc-go"]


class Script:
    """The same steps for each server, with one client of ours."""

    def __init__(self, world: World):
        self.world, self.istiod = world, istio.Istiod(world)
        self.certificates = world.directory / "certificates"
        self.certificates.mkdir()
        subprocess.run([world.programs.go_certificates, self.certificates, "server", "client"], check=True, timeout=60)
        self.results: dict[str, dict[str, str]] = {}

    def play(self) -> dict[str, dict[str, str]]:
        self.istiod.serve()
        self.istiod.start()
        self.client = Client(
            self.world, "mainstay", istio.TARGET, self.bootstrap("client", "client"), flags=["--secure_mode=true"]
        )
        for kind in SERVERS:
            self.kind = kind
            self.withdraw()
            peer = Server(self.world, kind, self.bootstrap(f"server-{kind}", "server"))
            here = istio.service(v1=peer)
            strict, mutual = mode("STRICT"), istio.policy(tls={"mode": "ISTIO_MUTUAL", "subjectAltNames": [SERVER]})
            self.step("no PeerAuthentication: plaintext", None, here)
            self.step("STRICT: mutual TLS", None, here, strict, mutual)
            self.step("STRICT, a client in plaintext", "UNAVAILABLE", here, strict)
            self.step("STRICT again", None, here, strict, mutual)
            refused = "PERMISSIONDENIED"
            self.step("ALLOW this client", None, here, strict, mutual, rule("ALLOW", principal("mesh.test/client")))
            self.step("ALLOW another one", refused, here, strict, mutual, rule("ALLOW", principal("mesh.test/other")))
            denied = {"to": [{"operation": {"paths": ["/grpc.testing.TestService/*"]}}]}
            self.step("DENY the method", refused, here, strict, mutual, rule("DENY", denied))
            self.step("no AuthorizationPolicy", None, here, strict, mutual)
            self.step("DISABLE: plaintext", None, here, mode("DISABLE"))
            nacks = [line for line in self.istiod.nacks if f" server-{kind}.default-" in line]
            self.note("nothing is rejected", f"FAIL: {nacks[0]}" if nacks else "pass")
            peer.process.kill()
        return self.results

    def withdraw(self) -> None:
        """Takes the service of the server before away. istiod finds out which ports are a node's own when services come, not
        when only their endpoints change."""
        begun = time.monotonic()
        self.istiod.serve()
        self.client.fails(since=begun, within=30, code="UNAVAILABLE")

    def step(self, name: str, refused: str | None, *resources: dict) -> None:
        """RPCs are answered, or refused with this code, once these resources are there."""
        begun = time.monotonic()
        self.istiod.serve(*resources)
        try:
            if refused is None:
                self.client.settles_on(self.kind, since=begun, within=30)
            else:
                self.client.fails(since=begun, within=30, code=refused)
            self.note(name, f"pass ({time.monotonic() - begun:.1f} s)")
        except Red as red:
            self.note(name, f"FAIL: {red}")

    def note(self, step: str, result: str) -> None:
        self.results.setdefault(step, {})[self.kind] = result

    def bootstrap(self, node: str, identity: str):
        """As Istio's agent writes it, with certificates as the agent would fetch them."""
        files = {
            "ca_certificate_file": str(self.certificates / "ca.pem"),
            "certificate_file": str(self.certificates / f"{identity}.pem"),
            "private_key_file": str(self.certificates / f"{identity}.key"),
            "refresh_interval": "900s",
        }
        content = {
            "xds_servers": [server(f"127.0.0.1:{self.istiod.port}")],
            "node": {
                "id": f"sidecar~127.0.0.1~{node}.default~default.svc.cluster.local",
                "locality": {"zone": "zone"},
                "metadata": {"GENERATOR": "grpc", "NAMESPACE": "default", "ISTIO_VERSION": "1.31.0"},
            },
            "certificate_providers": {"default": {"plugin_name": "file_watcher", "config": files}},
            "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
        }
        return self.world.file(json.dumps(content))


def security(kind: str, spec: dict) -> dict:
    return {**istio.resource(kind, spec), "apiVersion": "security.istio.io/v1"}


def mode(name: str) -> dict:
    return security("PeerAuthentication", {"mtls": {"mode": name}})


def rule(action: str, matches: dict) -> dict:
    return security("AuthorizationPolicy", {"action": action, "rules": [matches]})


def principal(name: str) -> dict:
    return {"from": [{"source": {"principals": [name]}}]}


SERVER = "spiffe://mesh.test/server"
