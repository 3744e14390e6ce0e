// grpc-java's xDS server: answers UnaryCall with its name in the headers, secured as the control plane says.

import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.xds.XdsServerBuilder;
import io.grpc.xds.XdsServerCredentials;
import java.util.Arrays;
import java.util.Map;
import java.util.stream.Collectors;

public final class Server {
  private static final Metadata.Key<String> HOSTNAME =
      Metadata.Key.of("hostname", Metadata.ASCII_STRING_MARSHALLER);

  public static void main(String[] arguments) throws Exception {
    Map<String, String> flags =
        Arrays.stream(arguments)
            .map(argument -> argument.replaceFirst("^--", "").split("=", 2))
            .collect(Collectors.toMap(flag -> flag[0], flag -> flag[1]));
    int port = Integer.parseInt(flags.get("port"));
    String name = flags.getOrDefault("hostname", "grpc-java");
    MethodDescriptor<byte[], byte[]> method = Client.UNARY_CALL;
    ServerServiceDefinition service =
        ServerServiceDefinition.builder("grpc.testing.TestService").addMethod(method, answer(name)).build();
    System.out.println("on port " + port);
    XdsServerBuilder.forPort(port, XdsServerCredentials.create(InsecureServerCredentials.create()))
        .addService(service)
        .xdsServingStatusListener(new Serving())
        .build()
        .start()
        .awaitTermination();
  }

  private static ServerCallHandler<byte[], byte[]> answer(String name) {
    // SimpleResponse.hostname is field 6, a text.
    byte[] text = name.getBytes(java.nio.charset.StandardCharsets.UTF_8);
    byte[] message = new byte[text.length + 2];
    message[0] = 6 << 3 | 2;
    message[1] = (byte) text.length;
    System.arraycopy(text, 0, message, 2, text.length);
    return (call, headers) -> {
      call.request(2); // a second one would be an error, and is told as one
      return new ServerCall.Listener<>() {
        @Override
        public void onHalfClose() {
          Metadata answer = new Metadata();
          answer.put(HOSTNAME, name);
          call.sendHeaders(answer);
          call.sendMessage(message);
          call.close(Status.OK, new Metadata());
        }
      };
    };
  }

  private static final class Serving implements XdsServerBuilder.XdsServingStatusListener {
    @Override
    public void onServing() {
      System.out.println("serving");
    }

    @Override
    public void onNotServing(Throwable error) {
      System.out.println("not serving: " + error);
    }
  }
}
