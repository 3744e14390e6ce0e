"""Two replicas of `mainstay serve --etcd` on three etcd that die, freeze, forget and lose their disks, under load.

Prints what happened in each act, and fails unless no RPC failed, both replicas end with the same hashes, and no client saw an
older generation after a newer one from a replica that did not call itself stale.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import grpc
from envoy.config.route.v3 import route_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from engine import Etcd, Passage, installed, pause
from world import GOOGLEAPIS, Process, Programs, Red, World, eventually, expect, free_port

TYPES = {
    "LDS": ("envoy.config.listener.v3.Listener", "greeter"),
    "RDS": ("envoy.config.route.v3.RouteConfiguration", "greeter-routes"),
    "CDS": ("envoy.config.cluster.v3.Cluster", "greeter-backends"),
    "EDS": ("envoy.config.endpoint.v3.ClusterLoadAssignment", "greeter-backends"),
}


class Spans:
    """How long things last: as the rules say, or shorter with the same order among them."""

    def __init__(self, full: bool):
        self.behind, self.stale = (15, 60) if full else (4, 8)
        self.health, self.quorum_lost, self.frozen, self.cut = (60, 60, 30, 30) if full else (10, 18, 10, 10)
        # The quorum must be away for longer than both together, or nobody is ever stale.
        if full:
            self.quorum_lost = self.behind + self.stale + 15


class Replica:
    """One `mainstay serve --etcd`."""

    def __init__(self, world: World, name: str, spans: Spans, members: list[int], directory: pathlib.Path):
        self.world, self.name, self.port = world, name, free_port()
        uris = ",".join(f"http://127.0.0.1:{port}" for port in members)
        self.command = [
            *(world.programs.mainstay, "serve", f"--etcd={uris}", "--scope=test", f"--listen=127.0.0.1:{self.port}"),
            *(f"--view-file={directory / name / 'view'}", f"--behind-after={spans.behind}", f"--stale-after={spans.stale}"),
        ]
        self.lines: list[tuple[float, str]] = []
        self.process: Process | None = None

    def start(self) -> None:
        if self.process is not None:
            self.lines += self.process.lines
        self.process = self.world.run(self.command, {"RUST_LOG": "mainstay_sources=info", "NO_COLOR": "1"})
        self.process.wait_for("serving")

    def said(self) -> list[tuple[float, str]]:
        return self.lines + self.process.lines

    def stale_spans(self) -> list[tuple[float, float]]:
        """When it called itself stale: until it was well again, or ended."""
        spans, since = [], None
        for at, line in self.said():
            if "stale, and served all the same" in line:
                since = at if since is None else since
            elif since is not None and re.match(r"(reloaded|serving)", line):
                spans.append((since, at + 1))
                since = None
        return spans + ([(since, time.monotonic())] if since is not None else [])

    def differences(self) -> list[str]:
        return [line for _, line in self.said() if "not as it should have been" in line]


class Watcher:
    """A raw ADS client that follows the routes of whoever is behind a port, and notes each generation that it is sent."""

    def __init__(self, port: int):
        self.seen: list[tuple[float, int]] = []
        self.refused: list[float] = []
        self._port, self._ended = port, False
        threading.Thread(target=self._follow, daemon=True).start()

    def end(self) -> None:
        self._ended = True

    def _follow(self) -> None:
        while not self._ended:
            try:
                for _, _, response in stream(self._port, "RDS"):
                    for resource in response.resources:
                        routes = route_pb2.RouteConfiguration.FromString(resource.value)
                        self.seen.append((time.monotonic(), int(routes.virtual_hosts[0].name.removeprefix("generation-"))))
            except grpc.RpcError as error:
                if "replica" in (error.details() or ""):
                    self.refused.append(time.monotonic())
            time.sleep(0.1)


def stream(port: int, kind: str, timeout: float | None = None):
    """Responses for one resource, each acknowledged."""
    message, name = TYPES[kind]
    url = f"{GOOGLEAPIS}/{message}"
    turn, latest = threading.Semaphore(1), {"version": "", "nonce": ""}

    def requests():
        while True:
            turn.acquire()
            request = discovery_pb2.DiscoveryRequest(
                type_url=url, resource_names=[name], version_info=latest["version"], response_nonce=latest["nonce"]
            )
            request.node.id = "watcher"
            yield request

    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
        for response in stub.StreamAggregatedResources(requests(), timeout=timeout):
            latest["version"], latest["nonce"] = response.version_info, response.nonce
            yield kind, response.version_info, response
            turn.release()


def versions(port: int) -> dict:
    """The hash of each type that a replica serves."""
    return {kind: next(iter(stream(port, kind, timeout=10)))[1] for kind in TYPES}


class Publisher:
    """Publishes a new generation every second."""

    def __init__(self, programs: Programs, uris: str, backends: list[int], directory: pathlib.Path):
        self.directory, self.backends = directory, backends
        self.command = [
            *(str(programs.mainstay), "publish", str(directory), f"--etcd={uris}", "--scope=test"),
            *("--keep=20s", "--timeout=4s"),
        ]
        self.done: dict[int, float] = {}
        self.failed: list[str] = []
        self.removed = 0
        self._number, self._ended = 0, threading.Event()
        self.publish()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._ended.wait(timeout=1):
            self.publish()

    def publish(self) -> bool:
        """What fails is not published later: the next one has a higher number."""
        self._number += 1
        number = self._number
        self.directory.mkdir(exist_ok=True)
        (self.directory / "all.json").write_text(json.dumps({"resources": resources(number, self.backends)}))
        run = subprocess.run(self.command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}, check=False)
        if run.returncode != 0:
            self.failed.append(run.stderr.strip())
            return False
        self.done[number] = time.monotonic()
        self.removed += "removed old generations" in run.stdout
        return True


def resources(number: int, backends: list[int]) -> list[dict]:
    """The name of the virtual host says which generation it is; two of three backends take turns."""
    chosen = [backends[(number + n) % len(backends)] for n in range(2)]
    ads = {"ads": {}, "resourceApiVersion": "V3"}
    router = {"@type": f"{GOOGLEAPIS}/envoy.extensions.filters.http.router.v3.Router"}
    manager = {
        "@type": f"{GOOGLEAPIS}/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "rds": {"routeConfigName": "greeter-routes", "configSource": ads},
        "httpFilters": [{"name": "router", "typedConfig": router}],
    }
    route = {"match": {"prefix": ""}, "route": {"cluster": "greeter-backends"}}
    host = {"name": f"generation-{number}", "domains": ["*"], "routes": [route]}
    endpoint = [{"endpoint": {"address": {"socketAddress": {"address": "127.0.0.1", "portValue": port}}}} for port in chosen]
    locality = {"locality": {"region": "local"}, "loadBalancingWeight": 1, "lbEndpoints": endpoint}
    content = {
        "LDS": {"apiListener": {"apiListener": manager}},
        "RDS": {"virtualHosts": [host]},
        "CDS": {"type": "EDS", "edsClusterConfig": {"edsConfig": ads}},
        "EDS": {"endpoints": [locality]},
    }
    name = {"EDS": "clusterName"}
    return [
        {"@type": f"{GOOGLEAPIS}/{TYPES[kind][0]}", name.get(kind, "name"): TYPES[kind][1], **fields}
        for kind, fields in content.items()
    ]


class Play:
    """The acts, one after the other."""

    def __init__(self, world: World, spans: Spans, directory: pathlib.Path):
        self.world, self.spans = world, spans
        self.etcd = Etcd(world, directory / "etcd")
        uris = ",".join(member.url for member in self.etcd.members)
        ports = [free_port() for _ in range(3)]
        for port in ports:
            world.run([world.programs.mainstay, "backend", f"--listen=127.0.0.1:{port}", f"--id={port}"]).wait_for("listening")
        self.publisher = Publisher(world.programs, uris, ports, directory / "published")
        expect(self.publisher.done, f"the first generation was not published: {self.publisher.failed}")
        members = [member.port for member in self.etcd.members]
        self.passages = [Passage(port) for port in members]
        self.a = Replica(world, "a", spans, members, directory)
        self.b = Replica(world, "b", spans, [passage.port for passage in self.passages], directory)
        for replica in (self.a, self.b):
            replica.start()
        self.front = Passage(self.a.port, self.b.port)
        self.watchers = {"a": Watcher(self.a.port), "b": Watcher(self.b.port), "front": Watcher(self.front.port)}
        bootstrap = {"GRPC_XDS_BOOTSTRAP": str(world.bootstrap([self.front.port]))}
        eventually(lambda: expect(self.watchers["front"].seen, "no replica serves"), within=20)
        self.load = world.run([world.programs.mainstay, "load", "xds:///greeter", "--qps=100", "--json"], bootstrap)
        self.go = None
        if world.programs.go_client.exists():
            self.go = world.run([world.programs.go_client, "--server=xds:///greeter", "--qps=20"], bootstrap)
        self.latencies: dict[str, list[float]] = {}
        self._shaking = threading.Event()

    def run(self) -> None:
        self.publisher.start()
        threading.Thread(target=self._shake, daemon=True).start()
        spans, etcd = self.spans, self.etcd
        self.act("health", lambda: pause(spans.health))
        leader = etcd.leader()
        self.act("the leader is killed", lambda: (leader.kill(), pause(8)))
        leader.again()
        self.act("the old leader returns", lambda: pause(3))
        follower = etcd.follower()
        self.act("a follower is killed", lambda: (follower.kill(), pause(5)))
        follower.again()
        self.act("the follower returns", lambda: pause(3))
        self.act("the quorum is lost", self.lose_quorum)
        frozen = etcd.leader()
        self.act("the leader is frozen", lambda: (frozen.stop(), pause(spans.frozen)))
        frozen.go_on()
        self.act("it goes on", lambda: pause(3))
        self.act("history is compacted, disks defragmented", lambda: (etcd.compact(), pause(4)))
        self.act("a member loses its disk and is replaced", lambda: (etcd.replace(etcd.follower()), pause(5)))
        self.act("one replica is cut off", self.cut_off)
        self._shaking.set()
        self.publisher.end()
        expect(self.publisher.publish(), f"the last generation was not published: {self.publisher.failed[-1:]}")

    def lose_quorum(self) -> None:
        """Both replicas become stale; one of them dies meanwhile, and serves what its disk has."""
        gone = self.etcd.members[:2]
        begun = len(self.publisher.failed)
        for member in gone:
            member.kill()
        pause(self.spans.quorum_lost / 2)
        self.b.process.kill()
        self.b.start()
        self.b.process.wait_for("is from the disk")
        for replica in (self.a, self.b):
            replica.process.wait_for("stale, and served all the same", within=self.spans.quorum_lost + 30)
        expect(versions(self.b.port), "a stale replica serves nothing")
        for member in gone:
            member.again()
        eventually(lambda: self.etcd.leader(), within=30)
        refused = self.publisher.failed[begun:]
        expect(refused, "publishing did not fail without a quorum")
        expect(all("etcd could not be written to" in text for text in refused), f"unclear: {refused[:1]}")
        for replica in (self.a, self.b):
            eventually(lambda replica=replica: self._is_well(replica), within=30)
        pause(3)

    @staticmethod
    def _is_well(replica: Replica) -> None:
        lines = [line for _, line in replica.process.lines]
        last_stale = max((n for n, line in enumerate(lines) if "stale, and" in line), default=-1)
        expect(any(line.startswith("reloaded") for line in lines[last_stale + 1 :]), f"{replica.name} is not well again")

    def cut_off(self) -> None:
        """The replica that is cut off refuses new streams, or calls itself stale; the other goes on."""
        for passage in self.passages:
            passage.cut()
        pause(self.spans.cut)
        for passage in self.passages:
            passage.heal()
        pause(4)

    def act(self, name: str, play) -> None:
        begun, published, failed = time.monotonic(), len(self.publisher.done), len(self.publisher.failed)
        play()
        waits = self.waits(begun)
        self.latencies[name] = waits
        slowest = f", seen within {max(waits):.2f} s" if waits else ""
        count, lost = len(self.publisher.done) - published, len(self.publisher.failed) - failed
        print(f"{name}: {time.monotonic() - begun:.0f} s, {count} generations published, {lost} could not be{slowest}", flush=True)

    def waits(self, since: float) -> list[float]:
        """From each publication to the last of the watchers that sees it, or something newer."""
        waits = []
        for number, at in list(self.publisher.done.items()):
            # What was published a moment ago may be on its way.
            if at < since or at > time.monotonic() - 1:
                continue
            for name in ("a", "b"):
                first = next((when for when, seen in self.watchers[name].seen if seen >= number), time.monotonic())
                waits.append(max(0.0, first - at))
        return waits

    def _shake(self) -> None:
        """Clients are moved from replica to replica all the time."""
        while not self._shaking.wait(timeout=3):
            self.front.shake()

    def judge(self) -> list[str]:
        wrong = []
        ends = eventually(self._equal, within=30)
        print(f"both replicas end with {ends['RDS']} (RDS), {ends['EDS']} (EDS)")
        for watcher in self.watchers.values():
            watcher.end()
        stale = self.a.stale_spans() + self.b.stale_spans()
        for name, watcher in self.watchers.items():
            newest, back, excused = 0, 0, 0
            for at, number in watcher.seen:
                if number < newest:
                    is_stale = any(begin <= at <= end for begin, end in stale)
                    excused, back = excused + is_stale, back + (not is_stale)
                newest = max(newest, number)
            print(f"watcher of {name}: {len(watcher.seen)} generations seen, {len(watcher.refused)} streams refused, "
                  f"{back} times back, {excused} more from a replica that said it was stale")
            if back:
                wrong.append(f"the watcher of {name} saw {back} older generations after newer ones")
        for replica in (self.a, self.b):
            # The watch of a member that was killed or frozen may have to be given up; nothing else may differ.
            print(f"replica {replica.name}: {len(replica.differences())} differences found {replica.differences()[:3]}")
        wrong += self._rpcs()
        healthy = sorted(self.latencies["health"])
        if not healthy or healthy[int(len(healthy) * 0.99)] >= 1:
            wrong.append(f"in health it took {healthy[-1:]} s from publication to all watchers")
        if max(self.latencies["the leader is killed"], default=0) >= 10:
            wrong.append("across a change of leaders it took 10 s or more")
        if not self.publisher.removed:
            wrong.append("no old generation was ever removed")
        return wrong

    def _equal(self) -> dict:
        one, other = versions(self.a.port), versions(self.b.port)
        expect(one == other, f"replicas differ: {one} and {other}")
        return one

    def _rpcs(self) -> list[str]:
        wrong = []
        calls = [json.loads(line) for _, line in self.load.lines if line.startswith("{")]
        failed = [call for call in calls if not call.get("ok")]
        print(f"Mainstay: {len(calls)} RPCs, {len(failed)} failed")
        if len(calls) < 1000 or failed:
            wrong.append(f"of {len(calls)} RPCs of Mainstay {len(failed)} failed: {failed[:1]}")
        if self.go is None:
            print("grpc-go: its client is not built, so it was not run")
            return wrong
        lines = [line for _, line in self.go.lines]
        failed = [line for line in lines if not line.startswith("answered by")]
        print(f"grpc-go: {len(lines)} RPCs, {len(failed)} failed")
        if len(lines) < 200 or failed:
            wrong.append(f"of {len(lines)} RPCs of grpc-go {len(failed)} failed: {failed[:1]}")
        return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rust", type=pathlib.Path, required=True)
    parser.add_argument("--go", type=pathlib.Path, required=True)
    parser.add_argument("--full", action="store_true", help="outages as long as the rules say")
    flags = parser.parse_args()
    if not installed():
        sys.exit("etcd is missing: apt-get install etcd-server")
    programs = Programs(flags.rust.resolve(), flags.go.resolve())
    with tempfile.TemporaryDirectory() as name, World(programs, pathlib.Path(name)) as world:
        try:
            play = Play(world, Spans(flags.full), pathlib.Path(name))
            play.run()
            wrong = play.judge()
        except Red as red:
            wrong = [str(red)]
    for text in wrong:
        print(f"WRONG: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
