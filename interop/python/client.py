"""grpcio's xDS client: sends RPCs at a constant rate and prints a line for each: "answered by HOST" or "CODE: message"."""

import argparse
import queue
import threading
import time

import grpc
import grpc.experimental


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, help="the channel's target, xds:///name")
    parser.add_argument("--qps", type=float, default=10)
    parser.add_argument("--secure_mode", default="false", help="true: secured as the control plane says")
    parser.add_argument("--timeout", type=float, default=20, help="deadline of each RPC, in seconds")
    flags = parser.parse_args()

    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=send, args=(flags, lines), daemon=True).start()
    while True:
        print(lines.get(), flush=True)


def send(flags: argparse.Namespace, lines: "queue.SimpleQueue[str]") -> None:
    if flags.secure_mode == "true":
        credentials = grpc.xds_channel_credentials(grpc.experimental.insecure_channel_credentials())
        channel = grpc.secure_channel(flags.server, credentials)
    else:
        channel = grpc.insecure_channel(flags.server)
    # Empty messages need no stubs: the host that answered is in the headers.
    call = channel.unary_unary("/grpc.testing.TestService/UnaryCall")

    def report(rpc: grpc.Future) -> None:
        if rpc.code() is grpc.StatusCode.OK:
            lines.put("answered by " + dict(rpc.initial_metadata()).get("hostname", ""))
        else:
            lines.put(f"{rpc.code().name}: {rpc.details()!r}")

    due = time.monotonic()
    while True:
        call.future(b"", timeout=flags.timeout).add_done_callback(report)
        due += 1 / flags.qps
        time.sleep(max(0, due - time.monotonic()))


if __name__ == "__main__":
    main()
