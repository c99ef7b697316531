"""The parts of a cluster, without one: jars, ports, configuration and processes; and what docker/
says, as far as that can be told without building it, as `make images` does."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from recovery.commands import app
from tests.images.__main__ import IMAGES
from tests.integration.hbase import CONTAINER_DATA, PORTS_IN_IMAGE, start_in_container
from txn.clock import SystemClock
from txn.cluster.cluster import RECORD, Cluster, open_cluster, start
from txn.cluster.configuration import list_roles, write_configuration
from txn.cluster.jars import (
    HBASE_VERSION,
    HBASE_VERSIONS,
    Jar,
    JarError,
    fetch,
    read_locked,
)
from txn.cluster.processes import (
    ClusterError,
    Process,
    data_node_is_known,
    end,
    gateway_answers,
    launch,
    log_tail,
    port_answers,
)
from txn.cluster.settings import (
    Settings,
    SettingsError,
    claim_ports,
)

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
CONTENT = b"a jar"
JAR = Jar("some.group:thing:1.0", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository of jars on this machine, as a user's settings would name one."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    folder = tmp_path / "repository"
    jar = folder / "some/group/thing/1.0/thing-1.0.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(CONTENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        settings = tmp_path / "jgo.conf"
        settings.write_text(
            f"[repositories]\ncentral = http://127.0.0.1:{server.server_address[1]}\n"
        )
        monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))
        yield jar
        server.shutdown()
        thread.join()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # jgo does not close the answers that it does not want


def test_locks_name_each_jar_once_by_version_and_hash() -> None:
    """All versions share the cache, in which a jar is known by its name."""
    for version in HBASE_VERSIONS:
        jars = read_locked(version)
        roots = {f"org.apache.hbase:hbase-{name}:{version}" for name in ("server", "thrift")}
        assert roots <= {jar.coordinates for jar in jars}
        assert len({jar.name for jar in jars}) == len(jars)
        assert all(len(jar.sha256) == 64 for jar in jars)
    every = {jar for version in HBASE_VERSIONS for jar in read_locked(version)}
    assert len({jar.name for jar in every}) == len(every)
    numbers = [tuple(map(int, version.split("."))) for version in HBASE_VERSIONS]
    assert numbers == sorted(numbers)


def test_fetches_what_is_missing_and_nothing_twice(repository: Path, tmp_path: Path) -> None:
    cache, seen = tmp_path / "cache", []
    paths = fetch(cache, lambda done, total: seen.append((done, total)), [JAR])
    assert [path.read_bytes() for path in paths] == [CONTENT]
    assert seen == [(0, 1), (1, 1)]
    repository.unlink()
    assert fetch(cache, jars=[JAR]) == paths
    assert os.listdir(cache) == ["thing-1.0.jar"]


@pytest.mark.parametrize("content", [b"", b"a ja", b"another jar"])
def test_jar_that_is_not_the_locked_one_is_refused(
    repository: Path, tmp_path: Path, content: bytes
) -> None:
    repository.write_bytes(content)
    with pytest.raises(JarError, match=r"not as locked jar='thing-1\.0\.jar'"):
        fetch(tmp_path / "cache", jars=[JAR])
    repository.unlink()
    with pytest.raises(JarError, match=r"cannot fetch a jar.*thing-1\.0\.jar"):
        fetch(tmp_path / "cache", jars=[JAR])
    assert os.listdir(tmp_path / "cache") == []


def test_ports_stay_from_start_to_start_unless_taken(tmp_path: Path) -> None:
    settings, rng = Settings(tmp_path), random.Random(1)
    with claim_ports(settings, {}, rng) as first:
        assert len(set(first.values())) == len(first)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", first["thrift1"])))
        second = stack.enter_context(claim_ports(settings, first, rng))
        assert {name for name in first if first[name] != second[name]} == {"thrift1"}
        chosen = replace(settings, ports={"thrift1": server.getsockname()[1]})
        with pytest.raises(SettingsError, match="the port is taken name='thrift1'"):
            stack.enter_context(claim_ports(chosen, first, rng))


def choose_ports(settings: Settings, seed: int) -> dict[str, int]:
    with claim_ports(settings, {}, random.Random(seed)) as ports:
        return ports


def test_clusters_that_start_at_the_same_time_choose_different_ports(tmp_path: Path) -> None:
    """A server listens seconds after its port was chosen. Of two with the same one, one ends."""
    first, second = Settings(tmp_path / "first"), Settings(tmp_path / "second")
    with claim_ports(first, {}, random.Random(5)) as ports:
        with claim_ports(second, {}, random.Random(5)) as others:
            assert not {*ports.values()} & {*others.values()}
        with claim_ports(second, ports, random.Random(6)) as others:
            assert not {*ports.values()} & {*others.values()}
    with claim_ports(second, ports, random.Random(7)) as others:
        assert others == ports


def test_settings_that_make_no_cluster_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="region_servers=2"):
        Settings(tmp_path, region_servers=2)
    with pytest.raises(SettingsError, match="no such ports"):
        Settings(tmp_path, ports={"namenode": 1})
    with pytest.raises(SettingsError, match="not an absolute path"):
        Settings(Path("here"))


@pytest.mark.parametrize("distributed", [False, True])
def test_configuration_is_well_formed_and_complete(tmp_path: Path, distributed: bool) -> None:
    place = tmp_path / "a & b"
    settings = Settings(place, distributed, properties={"hbase.some": "<1>", "hadoop.some": "2"})
    ports = choose_ports(settings, 2)
    settings = Settings(place, distributed, ports=ports, properties=settings.properties)
    write_configuration(settings)
    found: dict[str, str] = {}
    for page in (place / "conf").glob("*.xml"):
        for item in ElementTree.parse(page).getroot().iter("property"):
            found[item.findtext("name") or ""] = item.findtext("value") or ""
    own = found.pop("hbase.local.dir")  # each server unpacks the jars of coprocessors there
    assert own.endswith("${txn.process}")
    assert not [value for value in found.values() if "$" in value]
    assert found["hbase.some"] == "<1>"
    assert "hadoop.some" in (place / "conf" / "core-site.xml").read_text()
    assert "hadoop.some" not in (place / "conf" / "hbase-site.xml").read_text()
    assert found["hbase.rootdir"].startswith("hdfs://" if distributed else f"file://{place}")
    assert found["hbase.cluster.distributed"] == str(distributed).lower()
    used = " ".join([*found.values(), *(" ".join(role.arguments) for role in list_roles(settings))])
    assert all(str(port) in used for port in ports.values())


def running(tmp_path: Path, code: str, mark: str = "mark") -> Process:
    """A stand-in for a server: it says that it is there, and then does what the code says."""
    line = [sys.executable, "-c", f"{code}\nprint('there', flush=True)\ntime.sleep(600)"]
    process = launch(
        "server",
        [*line, f"-Dtxn.process={mark}"],
        port=1,
        mark=mark,
        logs=tmp_path,
        env=dict(os.environ),
    )
    clock = SystemClock()
    while "there" not in log_tail("server", tmp_path):
        assert process.is_alive
        clock.sleep_ms(20)
    return process


def test_process_ends_when_asked_or_is_killed(tmp_path: Path) -> None:
    process = running(tmp_path, "import time")
    assert end([process], SystemClock(), grace_ms=60_000) == []
    assert not process.is_alive
    (tmp_path / "deaf").mkdir()
    code = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: 0)"
    deaf = running(tmp_path / "deaf", code)
    assert end([deaf], SystemClock(), grace_ms=300) == [deaf]
    assert not deaf.is_alive


def test_process_of_somebody_else_is_never_touched(tmp_path: Path) -> None:
    process = running(tmp_path, "import time")
    try:
        stale = Process("server", process.pid, "another mark", 1)
        assert not stale.is_alive
        assert not stale.signal(signal.SIGKILL)
        assert end([stale], SystemClock(), grace_ms=100) == []
        assert process.is_alive
    finally:
        end([process], SystemClock(), grace_ms=0)


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(ClusterError, match="the folder is not a cluster's"):
        start(Settings(tmp_path))
    with pytest.raises(ClusterError, match="no cluster was started here"):
        open_cluster(tmp_path)
    assert (tmp_path / "letters.txt").read_text() == "dear"


def test_probe_takes_silence_and_nonsense_for_a_no(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x80\x01\x00\x03")

        thread = Thread(target=answer)
        thread.start()
        assert not gateway_answers("thrift1", port)
        thread.join()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # held, so that nobody else can come to listen there
        port = silent.getsockname()[1]
        assert not port_answers(port)
        assert not gateway_answers("thrift2", port)
        assert not data_node_is_known(port)
    web = int(Path(os.environ["JGO_CONFIG_FILE"]).read_text().rpartition(":")[2])
    assert port_answers(web)
    assert not data_node_is_known(web)


@pytest.mark.parametrize("name", ["2.7", "2.6.10", "2.", "6.1", "two"])
def test_unknown_version_is_refused_with_those_that_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"no such version.*known=.*'{HBASE_VERSION}'\)"):
        start(Settings(tmp_path / "hbase", version=name))
    assert not (tmp_path / "hbase").exists()


def test_folder_keeps_its_version_until_a_later_one_is_asked_for(tmp_path: Path) -> None:
    """An upgrade cannot be taken back: it must not happen to one who did not ask for it."""
    for asked, last, found in (
        ("", None, HBASE_VERSION),
        ("", "2.5.8", "2.5.8"),
        ("2.5", None, "2.5.8"),
        ("2.6", "2.5.8", "2.6.1"),
        ("2", "2.6.1", "2.6.1"),
    ):
        assert Settings(tmp_path, version=asked).with_version(last).version == found


def test_earlier_version_is_refused_on_what_a_later_one_wrote(tmp_path: Path) -> None:
    ports = dict.fromkeys(Settings(tmp_path).port_names(), 1)
    settings = Settings(tmp_path, ports=ports, version="2.6.1").document()
    (tmp_path / RECORD).write_text(json.dumps({"settings": settings, "processes": []}))
    refused = r"cannot go back to an earlier HBase has='2\.6\.1' asked='2\.5\.8'"
    with pytest.raises(SettingsError, match=refused):
        start(Settings(tmp_path, version="2.5"))
    assert open_cluster(tmp_path).settings.version == "2.6.1"


DOCKERFILES = sorted((ROOT / "docker").glob("*/Dockerfile"))
COMPOSE = ROOT / "docker" / "compose.yaml"


def instructions(path: Path, name: str) -> list[str]:
    """The arguments of every instruction of a name, with lines that were continued joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    return [line.partition(" ")[2] for line in text.splitlines() if line.startswith(f"{name} ")]


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="hadolint comes as a package for linux only")
@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_hadolint_has_no_complaint(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint
    done = subprocess.run([hadolint, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_tests_start_the_image_as_it_starts_itself() -> None:
    (line,) = instructions(ROOT / "docker" / "hbase" / "Dockerfile", "CMD")
    assert start_in_container(PORTS_IN_IMAGE) == json.loads(line)
    (health,) = instructions(ROOT / "docker" / "hbase" / "Dockerfile", "HEALTHCHECK")
    assert CONTAINER_DATA in json.loads(health.partition(" CMD ")[2])


def test_services_build_from_what_exists_and_are_offered_to_this_machine_alone() -> None:
    assert tuple(path.parent.name for path in DOCKERFILES) == IMAGES
    keys = {"build", "init", "ports", "profiles", "stop_grace_period", "volumes"}
    for service in services().values():
        assert set(service) <= keys | {"command", "depends_on", "healthcheck"}
        context = (COMPOSE.parent / service["build"]["context"]).resolve()
        assert context == ROOT
        assert (context / service["build"]["dockerfile"]) in DOCKERFILES
    ports = [*PORTS_IN_IMAGE.values()]
    for name, offset, offered in (("hbase", 0, ports), ("emulator", 100, [9090, 9091, 9092, 9100])):
        exposed = instructions(ROOT / "docker" / name / "Dockerfile", "EXPOSE")[0].split()
        assert exposed == [str(port) for port in offered]
        published = services()[name]["ports"]
        assert published == [f"127.0.0.1:{port + offset}:{port}" for port in offered]


def list_command_lines() -> Iterator[str]:
    """Yield the lines with `txn` that units, and the console's container, run."""
    for unit in sorted((ROOT / "docker" / "systemd").glob("*.service")):
        yield from re.findall(r"^ExecStart=\S*/(txn .*)", unit.read_text(), re.MULTILINE)
    yield from re.findall(r"^exec (txn .*)", services()["console"]["command"][-1], re.MULTILINE)


def test_units_and_the_console_s_container_run_what_there_is() -> None:
    known, names = get_command(app), []
    assert isinstance(known, TyperGroup)
    for line in list_command_lines():
        _, name, *arguments = line.split()
        names.append(name)
        if "--store" not in arguments:
            arguments += ["--store", "embedded:///store"]  # from the unit's environment
        with known.commands[name].make_context(name, arguments) as context:
            assert context.params["store"]
    assert names == ["console", "fsck", "serve", "console"]


def test_start_that_was_killed_while_it_started_a_server_can_be_stopped(tmp_path: Path) -> None:
    """The server is on its way by then, and who started it has not yet been told its id."""
    folder, seen = tmp_path / "hbase", tmp_path / "seen"
    java = tmp_path / "java"
    java.write_text(
        f"#!/bin/sh\ncat '{folder}/{RECORD}' >'{seen}.new'; mv '{seen}.new' '{seen}'\n"
        f"exec '{sys.executable}' -S -c 'import time; time.sleep(600)' \"$@\"\n"
    )
    java.chmod(0o755)
    ports = choose_ports(Settings(folder), 4)
    cluster = Cluster(Settings(folder, ports=ports), {})
    write_configuration(cluster.settings)

    def killed_at_the_first(step: str) -> None:
        if step == "starting thrift1":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        cluster.start_processes(java, [], killed_at_the_first)
    clock, master = SystemClock(), cluster.processes["master"]
    try:
        while not seen.exists():
            assert master.is_alive
            clock.sleep_ms(20)
        record = json.loads(seen.read_text())
        record["processes"][0]["pid"] = 0  # if the record came late, and the id was known
        (folder / RECORD).write_text(json.dumps(record))
        assert open_cluster(folder).processes["master"] == master
        open_cluster(folder).stop(grace_ms=0)
        assert not master.is_alive
    finally:
        end([master], clock, grace_ms=0)
