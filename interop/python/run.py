"""Runs every suite, prints who passes what, and fails if anything red is ours."""

import argparse
import concurrent.futures
import pathlib
import sys
import tempfile
import time
import traceback

import differential
import official
import status
from world import CLIENTS, ROOT, GoControlPlane, MainstayControlPlane, Programs, Red, World

OFFICIAL = "gRPC's scenarios: our client, go-control-plane"
STATUS = "our services, read by grpcio"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rust", type=pathlib.Path, required=True, help="directory of our programs")
    parser.add_argument("--go", type=pathlib.Path, required=True, help="directory of the programs in Go")
    parser.add_argument("--matrix", action="store_true", help="write the matrix into MATRIX.md")
    parser.add_argument("--only", choices=["official", "status", "differential"], help="run only these suites")
    flags = parser.parse_args()
    programs = Programs(flags.rust, flags.go)

    tables: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(8) as pool:
        base = pathlib.Path(directory)
        if flags.only in (None, "status"):
            tables[STATUS] = run_scenarios(pool, programs, base, status.SCENARIOS)
        if flags.only in (None, "official"):
            tables[OFFICIAL] = run_scenarios(pool, programs, base, official.SCENARIOS)
        if flags.only in (None, "differential"):
            kinds = (MainstayControlPlane, GoControlPlane)
            plays = {kind: pool.submit(play, programs, base, kind) for kind in kinds}
            for kind, played in plays.items():
                tables[f"three clients, one control plane: {kind.name}"] = played.result()

    red = [reason for title, table in tables.items() for reason in reds(title, table)]
    print(markdown(tables))
    if flags.matrix:
        (ROOT / "MATRIX.md").write_text(f"# Who passes what\n\nWritten by `interop/run --matrix`.\n\n{markdown(tables)}")
    for reason in red:
        print(reason, file=sys.stderr)
    return 1 if any(reason.startswith("OURS") for reason in red) else 0


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


def play(programs: Programs, base: pathlib.Path, kind) -> dict:
    directory = base / kind.name.replace(" ", "-")
    directory.mkdir()
    with World(programs, directory) as world:
        return differential.Script(world, kind).play()


def reds(title: str, table: dict) -> list[str]:
    """What failed. Others' clients with others' control plane are there to compare with."""
    found = []
    for scenario, row in table.items():
        for client, result in row.items():
            if not result.startswith("pass"):
                ours = client == "mainstay" or GoControlPlane.name not in title
                found.append(f"{'OURS' if ours else 'theirs'}: {title}: {scenario}: {client}: {result}")
    return found


def markdown(tables: dict) -> str:
    lines = []
    for title, table in tables.items():
        clients = [client for client in CLIENTS if any(client in row for row in table.values())]
        lines += [f"## {title}", "", "| scenario | " + " | ".join(clients) + " |", "|---" * (len(clients) + 1) + "|"]
        for scenario, row in table.items():
            cells = [row.get(client, "").split(":")[0] for client in clients]
            lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
