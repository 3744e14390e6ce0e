"""grpcio's xDS client: sends RPCs at a constant rate and prints a line for each: "answered by HOST" or "CODE: message".

With --targets it sends one to each of them instead, and prints the target before each line.
"""

import argparse
import concurrent.futures
import queue
import threading
import time

import grpc
import grpc.experimental
import grpc_csds
from grpc_channelz.v1 import channelz


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="", help="the channel's target, xds:///name")
    parser.add_argument("--qps", type=float, default=10)
    parser.add_argument("--secure_mode", default="false", help="true: secured as the control plane says")
    parser.add_argument("--timeout", type=float, default=20, help="deadline of each RPC, in seconds")
    parser.add_argument("--targets", default="", help="one RPC to each of these, separated by commas")
    parser.add_argument("--admin_port", type=int, default=0, help="CSDS and channelz")
    flags = parser.parse_args()

    if flags.admin_port:
        admin = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        channelz.add_channelz_servicer(admin)
        grpc_csds.add_csds_servicer(admin)
        admin.add_insecure_port(f"127.0.0.1:{flags.admin_port}")
        admin.start()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=send, args=(flags, lines), daemon=True).start()
    while True:
        print(lines.get(), flush=True)


def send(flags: argparse.Namespace, lines: "queue.SimpleQueue[str]") -> None:
    def connect(target: str) -> grpc.Channel:
        if flags.secure_mode == "true":
            credentials = grpc.xds_channel_credentials(grpc.experimental.insecure_channel_credentials())
            return grpc.secure_channel(target, credentials)
        return grpc.insecure_channel(target)

    def call(channel: grpc.Channel, before: str) -> None:
        def report(rpc: grpc.Future) -> None:
            if rpc.code() is grpc.StatusCode.OK:
                lines.put(before + "answered by " + dict(rpc.initial_metadata()).get("hostname", ""))
            else:
                lines.put(f"{before}{rpc.code().name}: {rpc.details()!r}")

        # Empty messages need no stubs: the host that answered is in the headers.
        method = channel.unary_unary("/grpc.testing.TestService/UnaryCall")
        method.future(b"", timeout=flags.timeout).add_done_callback(report)

    if flags.targets:
        channels = [(target, connect(target)) for target in flags.targets.split(",")]
        for target, channel in channels:
            call(channel, target + " ")
        threading.Event().wait()
    channel = connect(flags.server)
    due = time.monotonic()
    while True:
        call(channel, "")
        due += 1 / flags.qps
        time.sleep(max(0, due - time.monotonic()))


if __name__ == "__main__":
    main()
