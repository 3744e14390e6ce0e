"""An etcd cluster as processes, and sockets between programs that can be cut."""

import json
import pathlib
import shutil
import signal
import socket
import threading
import time
import urllib.request

from world import Process, Red, World, eventually, free_port


class Etcd:
    """Three members on loopback, spoken to over the JSON gateway of etcd itself."""

    def __init__(self, world: World, directory: pathlib.Path):
        self.world, self.directory = world, directory
        self.members = [Member(world, directory, number) for number in range(3)]
        for member in self.members:
            member.start(self.peers(), "new")
        eventually(lambda: self.leader(), within=60)

    def peers(self) -> str:
        return ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    def leader(self) -> "Member":
        for member in self.members:
            try:
                status = member.ask("maintenance/status")
            except OSError:
                continue
            if status.get("leader", "0") == status["header"]["member_id"]:
                return member
        raise Red("etcd has no leader")

    def follower(self) -> "Member":
        leader = self.leader()
        return next(member for member in self.members if member is not leader and member.alive())

    def compact(self) -> None:
        """Forgets all history, and gives the space back."""
        revision = self.leader().ask("kv/range", {"key": "AA=="})["header"]["revision"]
        self.leader().ask("kv/compaction", {"revision": revision, "physical": True}, timeout=30)
        for member in self.members:
            member.ask("maintenance/defragment", timeout=30)

    def replace(self, old: "Member") -> None:
        """A member dies with its disk, and another one takes its place with an empty one."""
        old.kill()
        other = next(member for member in self.members if member is not old and member.alive())
        listed = eventually(lambda: self._listed(other), within=20)
        gone = next(entry["ID"] for entry in listed if entry.get("name") == old.name)
        other.ask("cluster/member/remove", {"ID": gone}, timeout=20)
        new = Member(self.world, self.directory, len(list(self.directory.iterdir())), old.port)
        eventually(lambda: self._add(other, new), within=20)
        self.members[self.members.index(old)] = new
        new.start(self.peers(), "existing")

    @staticmethod
    def _listed(member: "Member") -> list:
        try:
            return member.ask("cluster/member/list")["members"]
        except OSError as error:
            raise Red(f"no list of members: {error}") from None

    @staticmethod
    def _add(through: "Member", new: "Member") -> None:
        try:
            through.ask("cluster/member/add", {"peerURLs": [new.peer_url]}, timeout=20)
        except OSError as error:
            # The rest of the cluster must be well before it takes one more.
            raise Red(f"cannot be added: {error}") from None


class Member:
    """One etcd."""

    def __init__(self, world: World, directory: pathlib.Path, number: int, port: int | None = None):
        self.world, self.name = world, f"member-{number}"
        self.data = directory / self.name
        self.port, self.peer = port or free_port(), free_port()
        self.url, self.peer_url = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer}"
        self.process: Process | None = None

    def start(self, peers: str, state: str) -> None:
        flags = {
            "name": self.name,
            "data-dir": self.data,
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": peers,
            "initial-cluster-state": state,
            "logger": "zap",
            "log-level": "error",
        }
        self.data.mkdir(parents=True, exist_ok=True)
        self._flags = [f"--{name}={value}" for name, value in flags.items()]
        self.again()

    def again(self) -> None:
        self.process = self.world.run(["etcd", *self._flags])

    def alive(self) -> bool:
        return self.process is not None and self.process.alive()

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.process.popen.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.popen.send_signal(signal.SIGCONT)

    def ask(self, method: str, body: dict | None = None, timeout: float = 3) -> dict:
        request = urllib.request.Request(f"{self.url}/v3/{method}", json.dumps(body or {}).encode())
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)


class Passage:
    """A port that leads to the first of several others that takes a connection, until it is cut."""

    def __init__(self, *targets: int):
        self.targets = list(targets)
        self._open: set[socket.socket] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Breaks every connection, and takes no more."""
        self._closed = True
        self.shake()

    def heal(self) -> None:
        self._closed = False

    def shake(self) -> None:
        """Breaks every connection. Whoever comes again is led to another target than before."""
        with self._lock:
            self.targets = [*self.targets[1:], *self.targets[:1]]
            broken, self._open = self._open, set()
        for end in broken:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if self._closed:
                near.close()
                continue
            threading.Thread(target=self._lead, args=(near,), daemon=True).start()

    def _lead(self, near: socket.socket) -> None:
        for target in list(self.targets):
            try:
                far = socket.create_connection(("127.0.0.1", target), timeout=2)
            except OSError:
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            threading.Thread(target=self._copy, args=(near, far), daemon=True).start()
            self._copy(far, near)
            return
        near.close()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        with self._lock:
            self._open -= {source, sink}
        # Both directions end here; the second close does nothing.
        sink.close()


def installed() -> bool:
    return shutil.which("etcd") is not None


def pause(seconds: float) -> None:
    """For as long as an outage lasts; not to wait for something."""
    time.sleep(seconds)
