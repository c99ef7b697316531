"""What docker/ says, as far as that can be told without building it, as `make images` does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from recovery.commands import app
from tests.images.__main__ import IMAGES
from tests.integration.hbase import CONTAINER_DATA, PORTS_IN_IMAGE, start_in_container
from txn import Engine, Key, Mutation
from txn.stores import open_store
from txn.testing.counting import CountingStore

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*/Dockerfile"))
COMPOSE = ROOT / "docker" / "compose.yaml"


def instructions(path: Path, name: str) -> list[str]:
    """The arguments of every instruction of a name, with lines that were continued joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    return [line.partition(" ")[2] for line in text.splitlines() if line.startswith(f"{name} ")]


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_the_health_check_reads_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = instructions(ROOT / "docker" / "emulator" / "Dockerfile", "HEALTHCHECK")
    command = json.loads(line.partition(" CMD ")[2])
    for is_used in (False, True):
        store = CountingStore(open_store("memory://"))
        if is_used:
            engine = Engine(store, table="data")
            engine.ensure_table("data", ["d"])
            for _ in range(5):
                engine.commit([Mutation(Key("x", "d", "v"), "1")])
        store.reset()
        monkeypatch.setattr("recovery.opening.open_store", lambda uri, clock, s=store, **_: s)
        result = CliRunner().invoke(app, command[1:])
        assert result.exit_code == 0, result.output
        assert set(store.calls) <= {"describe", "read", "close"}
        assert store.items["read"] == is_used


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
    """The gateways ask for no password. Both services may run at once."""
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


def test_compose_starts_what_the_documents_say() -> None:
    names = ("hbase", "emulator", "console")
    said = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in names}
    asked = {
        name: re.findall(r"docker compose -f docker/compose.yaml up --build(?: (\w+))?`", text)
        for name, text in said.items()
    }
    assert asked == {"hbase": [""], "emulator": ["emulator"], "console": ["console"]}
    assert [name for name, each in services().items() if "profiles" not in each] == ["hbase"]
    assert services()["emulator"]["profiles"] == ["emulator", "console"]
    assert services()["console"]["profiles"] == ["console"]


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
