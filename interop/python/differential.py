"""One script of a control plane's life, seen by all clients at once."""

import time

import differences
from world import CLIENTS, Backend, Client, Config, Red, World, eventually, expect, node_of

TARGET = "xds:///listener_0"
DIFFERS = "differs"


class Steps:
    """Plays steps to several clients at once and notes what each of them made of each step."""

    def __init__(self, world: World):
        self.world = world
        self.results: dict[str, dict[str, str]] = {}
        self.a, self.b, self.c = (world.backend(name) for name in "abc")
        self.clients: list[Client] = []

    def step(self, name: str, expected: str | set | None, act=lambda: None, strict=True, hold=0.0, within=60.0) -> None:
        """`expected` answer in the end, or nobody does; if `strict`, no RPC fails on the way."""
        since = time.monotonic()
        shared = None
        try:
            act()
        except Red as red:
            shared = str(red)
        time.sleep(hold)
        row = self.results.setdefault(name, {})
        for client in self.clients:
            if (name, client.kind) in differences.RULES:
                row[client.kind] = DIFFERS
                continue
            try:
                if shared:
                    raise Red(shared)
                if expected is None:
                    client.fails(since, within)
                else:
                    client.settles_on(expected, since, within)
                failed = [outcome for outcome in client.outcomes(since) if strict and outcome.startswith("! ")]
                excused = [outcome for outcome in failed if differences.is_known_race(client.kind, outcome)]
                expect(failed == excused, f"{len(failed)} RPCs failed, first: {failed[:1]}")
                passed = f"pass ({time.monotonic() - since:.1f} s, {len(client.outcomes(since))} RPCs)"
                row[client.kind] = f"{passed}, {len(excused)} RPCs lost to its known race" if excused else passed
            except Red as red:
                row[client.kind] = f"FAIL: {red}"


class Script(Steps):
    """Plays the script against one kind of control plane."""

    def __init__(self, world: World, control_plane):
        super().__init__(world)
        self.primary = control_plane(world, Config.simple("cluster_1", self.a))
        self.fallback = control_plane(world, Config.simple("fallback_cluster", self.c))
        self.ports = [self.primary.port, self.fallback.port]

    def play(self) -> dict[str, dict[str, str]]:
        primary, fallback = self.primary, self.fallback
        primary.start()
        fallback.start()
        self.new_clients()
        self.step("start", "a", strict=False)
        self.step("endpoints change", "b", lambda: primary.set(Config.simple("cluster_1", self.b)))
        self.step("cluster changes", "c", lambda: primary.set(Config.simple("cluster_2", self.c)))
        self.step("bad Listener is rejected", "c", self.reject)
        self.step("good Listener again", "a", lambda: primary.set(Config.simple("cluster_2", self.a)))
        self.step("control planes die", "a", self.die, hold=3)
        self.step("primary returns, changed", "b", lambda: self.start_primary_with(self.b))
        # The process that goes has said version 1 only, and the one that comes says version 1 of other contents.
        primary.stop()
        self.step("primary returns, other contents of the same version", "c", lambda: self.start_primary_with(self.c))

        primary.stop()
        primary.set(Config.simple("cluster_2", self.b))
        fallback.start()
        self.new_clients()
        self.step("start on the fallback", "c", strict=False)
        self.step("primary takes over", "b", primary.start)

        # Both have resources of the same names, which only their contents tell apart.
        primary.stop()
        fallback.set(Config.simple("cluster_2", self.c))
        self.new_clients()
        self.step("start on the fallback, same names", "c", strict=False)
        self.step("primary takes over, same names", "b", primary.start)

        # A control plane whose cache is cold has nothing to say at first.
        primary.stop()
        fallback.stop()
        primary.set(Config({}, {}, {}))
        primary.start()
        self.new_clients()
        time.sleep(2)
        filled = lambda: primary.set(Config.simple("cluster_2", self.b))
        self.step("cold control plane is filled", "b", filled, strict=False)

        primary.stop()
        fallback.stop()
        self.new_clients()
        self.step("no control plane: RPCs fail", None, strict=False)
        self.step("primary comes up at last", "b", primary.start, strict=False, within=120)
        return self.results

    def new_clients(self) -> None:
        for client in self.clients:
            client.process.kill()
        bootstraps = {kind: self.world.bootstrap(self.ports, node=node_of(kind)) for kind in CLIENTS}
        self.clients = [Client(self.world, kind, TARGET, bootstraps[kind]) for kind in CLIENTS]

    def reject(self) -> None:
        since = time.monotonic()
        self.primary.set(Config.simple("cluster_2", self.c, broken=True))

        def all_rejected() -> None:
            silent = [client.kind for client in self.clients if not self.primary.nacks(client.node, since)]
            expect(not silent, f"not rejected by {', '.join(silent)}")

        eventually(all_rejected, within=10)
        time.sleep(1)

    def die(self) -> None:
        self.primary.stop()
        self.fallback.stop()

    def start_primary_with(self, backend: Backend) -> None:
        self.primary.set(Config.simple("cluster_2", backend))
        self.primary.start()
