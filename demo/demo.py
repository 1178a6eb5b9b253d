"""Shows Tidegate behind a real Envoy, in two regions, with Redis and MariaDB: `make demo`.

It starts everything on free ports with temporary data, and leaves nothing behind. On a terminal it keeps running until
Ctrl-C, so that you can send your own requests.
"""

import contextlib
import getpass
import http.client
import http.server
import os
import pathlib
import random
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIDEGATE = os.environ.get("TIDEGATE", ROOT / "target/release/tidegate")
ENVOY = os.environ.get("ENVOY", ROOT / ".venv/bin/envoy")
PATIENCE_S = 60


def say(text=""):
    print(text, flush=True)


def free_port():
    """Returns a port below 32768: the system hands out those above to anyone who asks for any port."""
    while True:
        port = random.randrange(12000, 32000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def wait(what, look, process=None, log=None):
    """Waits until `look` finds something, and returns it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        found = look()
        if found:
            return found
        time.sleep(0.05)
    sys.exit(f"waited in vain: {what}\n{log.read_text() if log else ''}")


def ask(port, method, path, headers=(), source="127.0.0.1"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S, source_address=(source, 0))
    connection.request(method, path, headers=dict(headers))
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


class Service(http.server.BaseHTTPRequestHandler):
    """The protected service: answers ok to everything."""

    protocol_version = "HTTP/1.1"
    # Sends head and body together: separately, the second would wait for an acknowledgement.
    wbufsize = 65536

    def answer(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("content-length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


class Started:
    """Processes that share a directory and are stopped together."""

    def __init__(self, directory):
        self.directory = directory
        self.processes = []

    def run(self, name, command, env=None):
        log = self.directory / f"{name}.log"
        command = [str(part) for part in command]
        with log.open("w") as out:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)
        self.processes.append(process)
        return process, log

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


class Redis:
    def __init__(self, started, region):
        self.started, self.name, self.port = started, f"redis-{region}", free_port()
        self.start()

    def start(self):
        command = ["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process, log = self.started.run(self.name, command + ["--maxmemory-policy", "noeviction"])
        wait("Redis answers", lambda: is_open(self.port), self.process, log)

    def kill(self):
        self.process.kill()
        self.process.wait()


def is_open(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def start_mariadb(started):
    """Starts a server with a database and a user, and returns its URL."""
    data, sock, port = started.directory / "mysql", started.directory / "mysql.sock", free_port()
    # A server that starts deletes the temporary tables of others in the same directory.
    basics = ["--no-defaults", f"--datadir={data}", f"--tmpdir={started.directory}"] + (["--user=root"] if getpass.getuser() == "root" else [])
    command = ["mariadb-install-db", *basics, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    command = ["mariadbd", *basics, f"--socket={sock}", f"--port={port}", "--bind-address=127.0.0.1"]
    process, log = started.run("mariadb", command + ["--skip-name-resolve", f"--pid-file={started.directory}/mysql.pid"])
    password = secrets.token_hex(8)
    statements = f"CREATE DATABASE limits; CREATE USER tidegate IDENTIFIED BY '{password}'; GRANT ALL ON limits.* TO tidegate"
    client = ["mariadb", "--no-defaults", "--user=root", f"--socket={sock}", "--execute", statements]
    wait("MariaDB answers", lambda: subprocess.run(client, capture_output=True).returncode == 0, process, log)
    return f"mysql://tidegate:{password}@127.0.0.1:{port}/limits"


class Region:
    """A Redis, a Tidegate and an Envoy."""

    def __init__(self, started, name, mysql_url, secret, service_port):
        self.name = name
        self.redis = Redis(started, name)
        env = dict(os.environ, REDIS_URL=f"127.0.0.1:{self.redis.port}", MYSQL_URL=mysql_url, REGION=name)
        env.update(TIDEGATE_REGIONS="eu,us", TIDEGATE_SECRET_FILE=str(secret), RESPONSE_DYNAMIC_METADATA="true")
        command = [TIDEGATE, "serve", "--rules", "envoy/rules/edge.yaml", "--host", "127.0.0.1", "--grpc-host", "127.0.0.1"]
        for flag in ["--port", "--grpc-port", "--debug-port"]:
            command += [flag, "0"]
        process, log = started.run(f"tidegate-{name}", command, env)
        serving = wait("Tidegate serves", lambda: re.search(r"serving .*", log.read_text()), process, log).group()
        ports = {word: int(port) for port, word in re.findall(r":(\d+) \((\w+)\)", serving)}
        self.admin = ports["admin"]
        self.start_envoy(started, ports["gRPC"], service_port)

    def start_envoy(self, started, tidegate_port, service_port):
        """Uses envoy/edge.yaml unchanged, except for the ports."""
        config = (ROOT / "envoy/edge.yaml").read_text()
        self.front, admin = free_port(), free_port()
        for written, used in [(10000, self.front), (9901, admin), (8081, tidegate_port), (8000, service_port)]:
            config, count = re.subn(rf"port_value: {written}\b", f"port_value: {used}", config)
            if count != 1:
                sys.exit(f"envoy/edge.yaml has {count} times 'port_value: {written}', not once")
        self.access_log = started.directory / f"access-{self.name}.log"
        path = started.directory / f"envoy-{self.name}.yaml"
        path.write_text(config.replace("/dev/stdout", str(self.access_log)))
        command = [ENVOY, "-c", path, "--concurrency", "1", "--disable-hot-restart", "--file-flush-interval-msec", "50"]
        process, log = started.run(f"envoy-{self.name}", command)
        wait("Envoy is ready", lambda: is_ready(admin), process, log)

    def get(self, path, headers=(), method="GET", source="127.0.0.1"):
        return ask(self.front, method, path, headers, source)

    def page(self, path):
        return ask(self.admin, "GET", path)[2]

    def explain(self, descriptor):
        return self.page(f"/explain?domain=edge&descriptor={descriptor}")

    def send(self, count, key):
        """Sends requests with an API key from many addresses. Returns how many passed, and how long the slowest took."""
        passed, slowest = 0, 0.0
        for number in range(count):
            begin = time.monotonic()
            status = self.get("/", {"x-api-key": key}, source=f"127.0.0.{2 + number % 100}")[0]
            slowest = max(slowest, time.monotonic() - begin)
            if status not in (200, 429):
                sys.exit(f"HTTP {status} from {self.name}")
            passed += status == 200
        return passed, slowest * 1000


def is_ready(admin):
    """Whether Envoy is ready, and sees Tidegate as healthy."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        if ask(admin, "GET", "/ready")[0] == 200:
            return re.search(r"^tidegate::.*::health_flags::healthy$", ask(admin, "GET", "/clusters")[2], re.MULTILINE)
    return False


def show_limits(region):
    say("Ten orders per minute and address, whatever the query (envoy/rules/edge.yaml):")
    for number in range(12):
        path = f"/api/orders?x={number}"
        status, headers, _ = region.get(path, method="POST")
        shown = [f"{name}: {headers[name]}" for name in ["x-ratelimit-remaining", "retry-after"] if headers[name]]
        say(f"  POST {path:18} {status}  {'  '.join(shown)}")
    say("\nOther paths are not affected, and health is never limited:")
    for path in ["/api/orders", "/healthz"]:
        say(f"  GET  {path:18} {region.get(path)[0]}")
    say("\nEnvoy's access log says why:")
    log = region.access_log
    wait("the log is written", lambda: log.exists() and " 429 " in log.read_text())
    denied = next(line for line in log.read_text().splitlines() if " 429 " in line)
    say(f"  {denied.split(' ', 1)[1]}")
    say("\nSo does Tidegate, with the rule and the time left:")
    for line in region.explain("path=/api/orders,method=POST,remote_address=127.0.0.1").splitlines():
        if re.match(r"  rule |    (limit|now):", line):
            say(line)


def show_regions(eu, us):
    say("\nA hundred requests per minute and API key, across both regions. 60 in eu:")
    say(f"  eu: {eu.send(60, 'alice')[0]} of 60 passed")
    us.send(1, "alice")
    wait("us has learned of them all", lambda: count(us, "alice") >= count(eu, "alice"))
    say("us has learned of them, through MariaDB. 60 there:")
    say(f"  us: {1 + us.send(59, 'alice')[0]} of 60 passed")


def count(region, key):
    """The count of the last minute."""
    now = re.search(r"now: (\d+) of", region.explain(f"api_key={key}"))
    return int(now.group(1)) if now else 0


def show_outage(eu):
    eu.send(20, "bob")
    eu.redis.kill()
    say("\nAfter 20 requests with another key, the Redis of eu is killed. 20 more:")
    passed, slowest_ms = eu.send(20, "bob")
    say(f"  eu: {passed} of 20 passed, the slowest in {slowest_ms:.0f} ms")
    eu.redis.start()
    known = r'^tidegate_regional_pending_hits 0$'
    wait("Redis knows of all hits", lambda: re.search(known, eu.page("/metrics"), re.MULTILINE))
    say("Redis is back, empty, and gets all counts again. Nothing is lost:")
    say(f"  {re.search(r'now: [^;]*', eu.explain('api_key=bob')).group()}")


def show_metrics(eu):
    say("\nFor dashboards (/metrics):")
    for line in eu.page("/metrics").splitlines():
        if re.match(r"tidegate_(decisions_total|regional_decisions_total|global_published_rows_total)", line):
            say(f"  {line}")


def main():
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as directory:
        started = Started(pathlib.Path(directory))
        service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        try:
            say("Starting MariaDB, and for each of two regions Redis, Tidegate and Envoy ...\n")
            mysql_url = start_mariadb(started)
            env = dict(os.environ, MYSQL_URL=mysql_url)
            subprocess.run([TIDEGATE, "migrate"], cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
            secret = started.directory / "secret"
            secret.write_text(secrets.token_hex(16))
            eu, us = (Region(started, name, mysql_url, secret, service.server_port) for name in ["eu", "us"])
            show_limits(eu)
            show_regions(eu, us)
            show_outage(eu)
            show_metrics(eu)
            if sys.stdout.isatty():
                say(f"\nEnvoy is on http://localhost:{eu.front} (eu) and :{us.front} (us) until Ctrl-C,")
                say(f"and Tidegate's own pages on http://localhost:{eu.admin}. Change envoy/rules/edge.yaml: Tidegate reloads it.")
                threading.Event().wait()
        except KeyboardInterrupt:
            pass
        finally:
            started.stop()


if __name__ == "__main__":
    main()
