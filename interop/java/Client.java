// grpc-java's xDS client: sends RPCs at a constant rate and prints a line for each: "answered by HOST" or "CODE: message".
// With --targets it sends one to each of them instead, and prints the target before each line.

import io.grpc.CallOptions;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.services.AdminInterface;
import io.grpc.xds.XdsChannelCredentials;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

public final class Client {
  // Empty messages need no stubs: the host that answered is in the headers.
  static final MethodDescriptor<byte[], byte[]> UNARY_CALL =
      MethodDescriptor.<byte[], byte[]>newBuilder()
          .setType(MethodDescriptor.MethodType.UNARY)
          .setFullMethodName("grpc.testing.TestService/UnaryCall")
          .setRequestMarshaller(new Bytes())
          .setResponseMarshaller(new Bytes())
          .build();
  private static final List<ManagedChannel> CHANNELS = new ArrayList<>();
  private static final Metadata.Key<String> HOSTNAME =
      Metadata.Key.of("hostname", Metadata.ASCII_STRING_MARSHALLER);

  public static void main(String[] arguments) throws Exception {
    Map<String, String> flags =
        Arrays.stream(arguments)
            .map(argument -> argument.replaceFirst("^--", "").split("=", 2))
            .collect(Collectors.toMap(flag -> flag[0], flag -> flag[1]));
    long qps = Long.parseLong(flags.getOrDefault("qps", "10"));
    long timeout = Long.parseLong(flags.getOrDefault("timeout", "20")); // deadline of each RPC, in seconds
    ChannelCredentials credentials = InsecureChannelCredentials.create();
    if (flags.getOrDefault("secure_mode", "false").equals("true")) { // as the control plane says
      credentials = XdsChannelCredentials.create(credentials);
    }
    if (flags.containsKey("admin_port")) { // CSDS and channelz
      serveAdmin(Integer.parseInt(flags.get("admin_port")));
    }
    if (flags.containsKey("targets")) {
      for (String target : flags.get("targets").split(",")) {
        ManagedChannel channel = Grpc.newChannelBuilder(target, credentials).build();
        CHANNELS.add(channel); // what it holds is asked for afterwards
        send(channel, timeout, target + " ");
      }
      Thread.currentThread().join(); // until it is killed
    }
    ManagedChannel channel = Grpc.newChannelBuilder(flags.get("server"), credentials).build();
    Executors.newSingleThreadScheduledExecutor()
        .scheduleAtFixedRate(() -> send(channel, timeout, ""), 0, 1_000_000 / qps, TimeUnit.MICROSECONDS);
  }

  private static void serveAdmin(int port) throws java.io.IOException {
    NettyServerBuilder builder = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", port));
    for (ServerServiceDefinition service : AdminInterface.getStandardServices()) {
      builder.addService(service);
    }
    builder.build().start();
  }

  private static void send(ManagedChannel channel, long timeout, String before) {
    CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(timeout, TimeUnit.SECONDS);
    ClientCall<byte[], byte[]> call = channel.newCall(UNARY_CALL, options);
    call.start(new Printer(before), new Metadata());
    call.request(2); // a second one would be an error, and is told as one
    call.sendMessage(new byte[0]);
    call.halfClose();
  }

  private static final class Printer extends ClientCall.Listener<byte[]> {
    private final String before;
    private String host = "";

    Printer(String before) {
      this.before = before;
    }

    @Override
    public void onHeaders(Metadata headers) {
      host = headers.get(HOSTNAME);
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      System.out.println(
          before + (status.isOk() ? "answered by " + host : status.getCode() + ": " + oneLine(status.getDescription())));
    }
  }

  private static String oneLine(String text) {
    return text == null ? "" : text.replace("\n", " | ");
  }

  private static final class Bytes implements MethodDescriptor.Marshaller<byte[]> {
    @Override
    public InputStream stream(byte[] message) {
      return new ByteArrayInputStream(message);
    }

    @Override
    public byte[] parse(InputStream stream) {
      try {
        return stream.readAllBytes();
      } catch (java.io.IOException error) {
        throw new java.io.UncheckedIOException(error);
      }
    }
  }
}
