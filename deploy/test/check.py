"""Checks the files in deploy/ with programs that others wrote, and with `mainstay` itself; says what is wrong, and with which file.

    check.py DEPLOY MAINSTAY VERSION

`.ci/deploy` brings what it needs: kustomize or kubectl, promtool, systemd-analyze, and the packages of requirements.txt.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import kubernetes_validate
import yaml

DEPLOY, MAINSTAY, VERSION = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]
ROOT = DEPLOY.parent
# The oldest release of Kubernetes whose API the manifests are held against.
KUBERNETES = "1.31"
# How far a service may be exposed, from 0 to 100, by systemd's own measure.
EXPOSURE = 15
FAULTS = []


def main():
    kubernetes()
    containerfile()
    unit()
    alerts()
    names = series_of_clients() | metrics_of_a_control_plane()
    known_names(names)
    for fault in FAULTS:
        print(fault, file=sys.stderr)
    sys.exit(1 if FAULTS else 0)


def kubernetes():
    """Kustomizations as they would be applied: the schema of each object, strictly, and what no schema sees."""
    for directory in ["base", "etcd", "tls", "example"]:
        where = f"kubernetes/{directory}"
        built = run(where, KUSTOMIZE + [str(DEPLOY / where)])
        objects = [document for document in yaml.safe_load_all(built or "") if document]
        for document in objects:
            try:
                kubernetes_validate.validate(document, KUBERNETES, strict=True)
            except kubernetes_validate.ValidationError as error:
                path = ".".join(str(part) for part in error.path)
                fault(where, f"{document['kind']} {document['metadata']['name']}: {path}: {error.message}")
        examine(where, objects)
        print(f"{where}: {len(objects)} objects")


def examine(where, objects):
    """Names that lead nowhere, and containers that may do more than they need."""
    of = lambda kind: [each for each in objects if each["kind"] == kind]
    pods = [(each["metadata"]["name"], each["spec"]["template"]) for each in of("Deployment")]
    ports = {port["name"] for _, pod in pods for c in pod["spec"]["containers"] for port in c.get("ports", [])}

    def selects(each, labels):
        labels = (labels or {}).items()
        if not labels or not any(labels <= pod["metadata"]["labels"].items() for _, pod in pods):
            fault(where, f"{each['kind']} {each['metadata']['name']} selects no pod")

    def knows(what, port):
        if isinstance(port, str) and port not in ports:
            fault(where, f"{what}: no container has a port {port}")

    for each in of("Deployment"):
        selects(each, each["spec"]["selector"].get("matchLabels"))
    for each in of("Service"):
        selects(each, each["spec"].get("selector"))
        for port in each["spec"]["ports"]:
            knows(f"Service {each['metadata']['name']}", port.get("targetPort"))
    for each in of("PodDisruptionBudget"):
        selects(each, each["spec"].get("selector", {}).get("matchLabels"))
    for each in of("NetworkPolicy"):
        selects(each, each["spec"]["podSelector"].get("matchLabels"))
        for rule in each["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                knows(f"NetworkPolicy {each['metadata']['name']}", port["port"])
    configs = {each["metadata"]["name"] for each in of("ConfigMap")}
    for name, pod in pods:
        spec = pod["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for volume in spec.get("volumes", []):
            if "configMap" in volume and volume["configMap"]["name"] not in configs:
                fault(where, f"{name}: there is no ConfigMap {volume['configMap']['name']}")
        if not spec.get("securityContext", {}).get("runAsNonRoot"):
            fault(where, f"{name} may run as root")
        for container in spec["containers"]:
            own = container.get("securityContext", {})
            if not own.get("readOnlyRootFilesystem") or own.get("allowPrivilegeEscalation") is not False:
                fault(where, f"{name} may write to its root, or gain privileges")
            if "memory" not in container.get("resources", {}).get("limits", {}):
                fault(where, f"{name} has no bound on its memory")
            if container["image"] != f"mainstay:{VERSION}":
                fault(where, f"{name}: the image {container['image']} is not of version {VERSION}")
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    fault(where, f"{name} mounts {mount['name']}, which is no volume")
            for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
                knows(f"{name}: {probe}", container.get(probe, {}).get("httpGet", {}).get("port"))
            understood(where, container["args"])


def understood(where, arguments):
    """Whether `mainstay` takes these flags: after a --help they are parsed no more, so a value that is wrong is put last."""
    command = [str(MAINSTAY), *arguments, "--no-such-flag"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
    if "--no-such-flag" not in said:
        fault(where, f"mainstay {' '.join(arguments)}: {said.strip()}")


def containerfile():
    where = "container/Containerfile"
    # DL3008: what Debian has is newer than what could be pinned here; the builder's image is what is pinned.
    run(where, ["hadolint", "--no-color", "--ignore", "DL3008", str(DEPLOY / where)])
    last = (DEPLOY / where).read_text().rsplit("\nFROM ", 1)[1]
    if not re.search(r"^USER [1-9]", last, re.M):
        fault(where, "it would run as root")
    ignored = (DEPLOY / "container/Containerfile.dockerignore").read_text().splitlines()
    for line in ignored:
        if line.startswith("!") and not (ROOT / line[1:]).exists():
            fault(where + ".dockerignore", f"there is no {line[1:]}")


def unit():
    where = "systemd/mainstay-serve.service"
    with tempfile.TemporaryDirectory() as root:
        for program in ["usr/bin/mainstay", "bin/kill"]:
            path = pathlib.Path(root, program)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
        units = pathlib.Path(root, "etc/systemd/system")
        units.mkdir(parents=True)
        # What every machine with systemd has.
        for name in ["sysinit", "basic", "shutdown", "network-online", "multi-user"]:
            (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\n")
        shutil.copy(DEPLOY / where, units)
        verify = ["systemd-analyze", "verify", f"--root={root}", "--man=no", str(units / "mainstay-serve.service")]
        said = subprocess.run(verify, capture_output=True, text=True, timeout=60)
        # An unknown directive is but a warning to it.
        if said.returncode or said.stderr.strip():
            fault(where, said.stderr.strip())
        run(where, ["systemd-analyze", "security", "--offline=true", f"--root={root}", f"--threshold={EXPOSURE}",
                    "--no-pager", "mainstay-serve.service"])
    line = re.search(r"^ExecStart=/usr/bin/mainstay (.*)$", (DEPLOY / where).read_text(), re.M)
    understood(where, line.group(1).split())


def alerts():
    directory = DEPLOY / "prometheus"
    run("prometheus/prometheus.yaml", ["promtool", "check", "config", str(directory / "prometheus.yaml")])
    run("prometheus/alerts_test.yaml", ["promtool", "test", "rules", str(directory / "alerts_test.yaml")])
    tested = (directory / "alerts_test.yaml").read_text()
    for name in re.findall(r"- alert: (\w+)", (directory / "alerts.yaml").read_text()):
        firing = re.findall(rf"alertname: {name}\n\s+exp_alerts:", tested)
        if not firing or f"alertname: {name} }}" not in tested:
            fault("prometheus/alerts_test.yaml", f"{name} is not shown to fire, and to be quiet")
    # Queries of the dashboard are checked as rules: Prometheus' parser is the one that must understand them.
    rules = [{"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
             for number, expression in enumerate(queries())]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
        file.flush()
        run("grafana/mainstay.json", ["promtool", "check", "rules", file.name])


def queries():
    dashboard = json.loads((DEPLOY / "grafana/mainstay.json").read_text())
    panels = dashboard["panels"]
    if len({panel["id"] for panel in panels}) != len(panels):
        fault("grafana/mainstay.json", "two panels have the same id")
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def metrics_of_a_control_plane():
    """Starts what the Deployment starts, with the resources that it would have, and reads its metrics."""
    where = "kubernetes/base"
    manifest = yaml.safe_load((DEPLOY / where / "deployment.yaml").read_text())
    arguments = manifest["spec"]["template"]["spec"]["containers"][0]["args"]
    with tempfile.TemporaryDirectory() as directory:
        # As a ConfigMap is mounted: names that point into a hidden directory that is swapped as a whole.
        hidden = pathlib.Path(directory, "..data")
        shutil.copytree(DEPLOY / where / "resources", hidden)
        for file in hidden.iterdir():
            pathlib.Path(directory, file.name).symlink_to(pathlib.Path("..data", file.name))
        swap = {"/etc/mainstay/resources": directory, "--listen=0.0.0.0:18000": "--listen=127.0.0.1:0",
                "--admin=0.0.0.0:9901": "--admin=127.0.0.1:0"}
        command = [str(MAINSTAY), *(swap.get(argument, argument) for argument in arguments)]
        serve = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            admin, said = None, []
            for line in serve.stdout:
                said.append(line)
                found = re.search(r"admin[^\n]*?(127\.0\.0\.1:\d+)", line)
                if found:
                    admin = found.group(1)
                    break
            if admin is None:
                fault(where, "it does not start: " + "".join(said) + serve.stderr.read())
                return set()
            get = lambda path: urllib.request.urlopen(f"http://{admin}{path}", timeout=30).read().decode()
            if "3 resources" not in get("/readyz"):
                fault(where, f"it is not ready with its resources: {get('/readyz')}")
            page = get("/metrics")
        finally:
            serve.terminate()
            serve.wait(timeout=60)
        if serve.returncode != 0:
            fault(where, f"it does not end well at SIGTERM: {serve.returncode}")
    # Counters of OpenMetrics are announced without the ending of their samples.
    return set(re.findall(r"^(\w+)(?:\{| )", page, re.M))


def series_of_clients():
    """The table of metrics in the sources, under the names that Prometheus exporters of OpenTelemetry give them."""
    source = (ROOT / "crates/mainstay/src/telemetry/on/instruments.rs").read_text()
    rows = re.findall(r'(?:(\w+)<\w+>[^"\n]*|\w+, o\w+, )"((?:grpc|mainstay)\.[\w.]+)", "([^"]+)"', source)
    names = set()
    for kind, name, unit in rows:
        name = name.replace(".", "_") + {"s": "_seconds", "By": "_bytes"}.get(unit, "")
        endings = {"Histogram": ["_bucket", "_count", "_sum"], "Counter": ["_total"]}.get(kind, [""])
        names |= {name + ending for ending in endings}
    if len(names) < 40:
        fault("crates/mainstay/src/telemetry/on/instruments.rs", f"only {len(names)} series were read")
    return names


def known_names(names):
    """What alerts and panels ask for is there, and so are the labels that they speak of."""
    sources = [*(ROOT / "crates/mainstay/src/telemetry").rglob("*.rs"), *(ROOT / "crates/cli/src/serve").rglob("*.rs")]
    text = "".join(file.read_text() for file in sources)
    labels = {label.replace(".", "_") for label in re.findall(r'const \w+: &str = "(grpc\.[\w.]+)"', text)}
    labels |= set(re.findall(r'\("(\w+)", ', text))
    # Of Prometheus itself.
    labels |= {"instance", "job", "le"}
    expressions = [(f"grafana/mainstay.json: {query}", query) for query in queries()]
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        expressions.append((f"prometheus/alerts.yaml: {rule['alert']}", rule["expr"]))
    for where, expression in expressions:
        for inside in re.findall(r"\{([^}]*)\}", expression):
            missing(where, "label", re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside), labels)
        for inside in re.findall(r"by \(([^)]*)\)", expression):
            missing(where, "label", re.findall(r"\w+", inside), labels)
        bare = re.sub(r'\{[^}]*\}|by \([^)]*\)|"[^"]*"', "", expression)
        missing(where, "metric", re.findall(r"\b(?:mainstay|grpc|process)_\w+", bare), names)


def missing(where, what, asked, there):
    for name in asked:
        if name not in there:
            fault(where, f"there is no {what} {name}")


def run(where, command):
    """What a program prints; that it fails is a fault."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        fault(where, (done.stdout + done.stderr).strip())
        return None
    return done.stdout


def fault(where, what):
    FAULTS.append(f"{where}: {what}")


KUSTOMIZE = os.environ.get("KUSTOMIZE", "kustomize build").split()

if __name__ == "__main__":
    main()
