// grpc-js's xDS server: answers UnaryCall with its name in the headers, secured as the control plane says.
"use strict";

const { parseArgs } = require("node:util");
const grpc = require("@grpc/grpc-js");
const xds = require("@grpc/grpc-js-xds");

const { values: flags } = parseArgs({
  options: {
    port: { type: "string" },
    hostname: { type: "string", default: "grpc-js" },
  },
});

// SimpleResponse.hostname is field 6, a text.
const name = Buffer.from(flags.hostname);
const answer = Buffer.concat([Buffer.from([(6 << 3) | 2, name.length]), name]);
const asIs = (message) => message;
const service = {
  UnaryCall: {
    path: "/grpc.testing.TestService/UnaryCall",
    requestStream: false,
    responseStream: false,
    requestDeserialize: asIs,
    responseSerialize: asIs,
  },
};

xds.register();
const server = new xds.XdsServer();
server.addService(service, {
  UnaryCall(call, done) {
    const headers = new grpc.Metadata();
    headers.set("hostname", flags.hostname);
    call.sendMetadata(headers);
    done(null, answer);
  },
});
const credentials = new xds.XdsServerCredentials(grpc.ServerCredentials.createInsecure());
// Called back when it serves, which may be later than the suite is ready for.
server.bindAsync(`0.0.0.0:${flags.port}`, credentials, () => {});
console.log(`on port ${flags.port}`);
