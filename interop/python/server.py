"""grpcio's xDS server: answers UnaryCall with its name, in the message and in the headers, secured as the control plane says."""

import argparse
import concurrent.futures

import grpc


class Service(grpc.GenericRpcHandler):
    def __init__(self, name: str):
        self.name = name

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        context.send_initial_metadata((("hostname", self.name),))
        name = self.name.encode()
        return bytes([6 << 3 | 2, len(name)]) + name  # SimpleResponse.hostname is field 6, a text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", required=True)
    parser.add_argument("--hostname", default="grpcio")
    flags = parser.parse_args()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), [Service(flags.hostname)], xds=True)
    credentials = grpc.xds_server_credentials(grpc.insecure_server_credentials())
    server.add_secure_port(f"0.0.0.0:{flags.port}", credentials)
    print(f"on port {flags.port}", flush=True)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
