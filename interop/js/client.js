// grpc-js's xDS client: sends RPCs at a constant rate and prints a line for each: "answered by HOST" or "CODE: message".
"use strict";

const { parseArgs } = require("node:util");
const grpc = require("@grpc/grpc-js");
const xds = require("@grpc/grpc-js-xds");

const { values: flags } = parseArgs({
  options: {
    server: { type: "string" }, // the channel's target, xds:///name
    qps: { type: "string", default: "10" },
    timeout: { type: "string", default: "20" }, // deadline of each RPC, in seconds
    secure_mode: { type: "string", default: "false" }, // whether clusters say how connections are secured
  },
});

xds.register();
const plaintext = grpc.credentials.createInsecure();
const credentials = flags.secure_mode === "true" ? new xds.XdsChannelCredentials(plaintext) : plaintext;
const client = new grpc.Client(flags.server, credentials);
const asIs = (message) => message;

function send() {
  const deadline = Date.now() + Number(flags.timeout) * 1000;
  // Empty messages need no stubs: the host that answered is in the headers.
  const method = "/grpc.testing.TestService/UnaryCall";
  let host = "";
  const call = client.makeUnaryRequest(method, asIs, asIs, Buffer.alloc(0), { deadline }, (error) => {
    console.log(error ? `${grpc.status[error.code]}: ${JSON.stringify(error.details)}` : `answered by ${host}`);
  });
  call.on("metadata", (metadata) => {
    host = metadata.get("hostname").join();
  });
}

setInterval(send, 1000 / Number(flags.qps));
