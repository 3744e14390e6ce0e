"""`mainstay inspect` and `mainstay check csds:` against running processes of every implementation."""

import json
import subprocess

from world import (
    CLIENTS,
    Client,
    Config,
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

NAME = "mainstay inspect and check csds: against running clients"
KINDS = ["mainstay", "grpc-go", "grpcio", "grpc-java"]


class Script:
    def __init__(self, world: World):
        self.world = world

    def play(self) -> dict:
        backend = self.world.backend("one")
        plane = MainstayControlPlane(self.world, Config.simple("cluster_0", backend))
        plane.start()
        kinds = [kind for kind in CLIENTS if kind in KINDS]
        clients, admin = {}, {}
        for kind in kinds:
            port = free_port()
            bootstrap = self.world.bootstrap([plane.port], node=node_of(kind))
            clients[kind] = Client(self.world, kind, "xds:///listener_0", bootstrap, flags=[f"--admin_port={port}"])
            admin[kind] = clients[kind].stats_port if kind == "mainstay" else port
        table = {"inspect shows target, resources and endpoint": {}, "check csds: finds nothing": {}}
        table |= {"inspect shows a rejected update": {}, "check csds: finds it (MS108)": {}}
        rows = list(table)
        for kind in kinds:
            table[rows[0]][kind] = said(lambda: self.shows(clients[kind], admin[kind], backend))
            table[rows[1]][kind] = said(lambda: self.is_clean(admin[kind]))
        plane.serve_now(broken(Config.simple("cluster_0", backend)))
        for kind in kinds:
            table[rows[2]][kind] = said(lambda: self.shows_rejection(admin[kind]))
            table[rows[3]][kind] = said(lambda: self.finds_rejection(admin[kind]))
        return table

    def mainstay(self, *arguments: str) -> tuple[int, str]:
        command = [self.world.programs.mainstay, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"NO_COLOR": "1"})
        return done.returncode, done.stdout + done.stderr

    def shows(self, client: Client, port: int, backend) -> None:
        client.settles_on("one", since=0)
        code, text = self.mainstay("inspect", f"127.0.0.1:{port}")
        expect(code == 0, f"exit code {code}: {text}")
        for word in ("listener_0", "cluster_0", backend.address):
            expect(word in text, f"no {word} in {text}")
        code, text = self.mainstay("inspect", f"127.0.0.1:{port}", "--json")
        expect(code == 0 and "listener_0" in json.dumps(json.loads(text)), f"exit code {code}: {text}")

    def is_clean(self, port: int) -> None:
        code, text = self.mainstay("check", f"csds:127.0.0.1:{port}")
        expect(code == 0, f"exit code {code}: {text}")

    def shows_rejection(self, port: int) -> None:
        def shown() -> None:
            code, text = self.mainstay("inspect", f"127.0.0.1:{port}")
            expect("NACKED" in text.upper() or "reject" in text.lower(), f"exit code {code}: {text}")

        eventually(shown, within=20)

    def finds_rejection(self, port: int) -> None:
        code, text = self.mainstay("check", f"csds:127.0.0.1:{port}")
        expect(code == 1 and "MS108" in text, f"exit code {code}: {text}")


def broken(config: Config) -> list[dict]:
    """The same with a Listener that nobody takes."""
    resources = [api_listener(name, cluster, True) for name, cluster in config.listeners.items()]
    resources += [eds_cluster(name, service) for name, service in config.clusters.items()]
    return resources + [assignment(name, addresses) for name, addresses in config.endpoints.items()]


def said(check) -> str:
    try:
        check()
        return "pass"
    except Red as red:
        return f"FAIL: {red}"
