"""Where clients differ from ours, and by which rule: an unexplained difference is red."""

from world import CLIENTS, ROOT

OURS = CLIENTS[0]


def read_rules() -> dict[tuple[str, str], str]:
    """From `differences.txt`: lines "scenario | client | rule", and comments."""
    found = {}
    for line in (ROOT / "differences.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            scenario, client, rule = (part.strip() for part in line.split("|"))
            found[(scenario, client)] = rule
    return found


def differing(table: dict) -> list[tuple[str, str]]:
    """Who saw something else than ours, in which scenario."""
    return [(name, client) for name, row in table.items() for client, seen in row.items() if seen != row.get(OURS, seen)]


def unexplained(table: dict) -> list[str]:
    """Red: what differs and has no rule."""
    missing = [key for key in differing(table) if key not in RULES]
    return [
        f"OURS: {name}: {client} sees {table[name][client]!r}, we see {table[name][OURS]!r}: say why in differences.txt"
        for name, client in missing
    ]


def outdated(table: dict) -> list[str]:
    """Rules for differences that are no more."""
    seen = set(differing(table))
    return [f"{name}: {client} sees what we see; differences.txt says otherwise" for name, client in RULES
            if client in table.get(name, {}) and (name, client) not in seen]


def explained(table: dict) -> list[str]:
    """Each difference with its rule, for people."""
    return [f"- {name}, {client}: {RULES[name, client]}" for name, client in differing(table) if (name, client) in RULES]


def is_known_race(client: str, outcome: str) -> bool:
    """Whether an RPC failed by a defect of that client that shows now and then."""
    return client in RACES and RACES[client] in outcome


# grpc-go puts new routes and new pickers into force one after the other, so an RPC in between may find no cluster.
# grpc-java and grpc-js give up a cluster that is deleted although the routes that replace it are on their way (no A88).
# Ours come in one snapshot and are not excused.
RACES = {
    "grpc-go": "unknown cluster selected for RPC",
    "grpc-java": "does not exist",
    "grpc-js": "does not exist",
}
RULES = read_rules()
