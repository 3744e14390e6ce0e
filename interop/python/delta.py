"""Our client over delta, the script of all clients: with our control plane and with both caches of go-control-plane."""

import differential
from world import Client, Red, expect, node_of

KIND = "mainstay"
FEATURES = ("mainstay_delta",)


class Script(differential.Script):
    """The differential script with one client, which speaks nothing but delta."""

    def play(self) -> dict[str, dict[str, str]]:
        results = super().play()
        results["it was delta"] = {KIND: self.was_delta()}
        return results

    def new_clients(self) -> None:
        for client in self.clients:
            client.process.kill()
        bootstrap = self.world.bootstrap(self.ports, node=node_of(KIND), features=FEATURES)
        self.clients = [Client(self.world, KIND, differential.TARGET, bootstrap)]

    def was_delta(self) -> str:
        """What the control plane itself says, where it says anything."""
        try:
            lines = [line for _, line in self.primary.process.lines]
            says = hasattr(self.primary, "flags")  # go-control-plane; `mainstay serve` does not print streams
            expect(not says or any(line.startswith("delta stream of ") for line in lines), "no delta stream was opened")
            return "pass"
        except Red as red:
            return f"FAIL: {red}"
