"""The plugin of pytest, in test runs of its own that find it as every installed plugin is found."""

from __future__ import annotations

import pytest

from tests.integration.installed import install_plugin

pytest_plugins = ["pytester"]

STORE = """
    import pytest
    from txn import Key, Mutation

    KEY = Key("row", "d", "x")

    @pytest.mark.parametrize("number", range(2))
    @pytest.mark.txn_store(table="t")
    def test_is_fresh(txn_engine, number, tmp_path):
        txn_engine.ensure_table("t", ["d"])
        assert txn_engine.read([KEY]) == {KEY: None}
        txn_engine.commit([Mutation(KEY, "1")])
        print("files:", any(tmp_path.rglob("data.mdb")))

    @pytest.mark.txn_store("memory://", protocol="fenced")
    def test_marker(txn_engine, tmp_path):
        txn_engine.ensure_table("t", ["d"])
        print("marked:", txn_engine.context.rules.name, any(tmp_path.iterdir()))
"""
EMULATOR = """
    import happybase
    import pytest
    from txn import Key, Mutation, connect

    @pytest.mark.parametrize("number", range(3))
    def test_all_three_services_have_the_same_rows(hbase_emulator, number):
        with connect(hbase_emulator.transactional_uri, table="t") as engine:
            engine.ensure_table("t", ["d"])
            engine.commit([Mutation(Key("row", "d", "x"), "1")])
        plain = happybase.Connection(hbase_emulator.host, hbase_emulator.thrift1_port)
        assert sorted(plain.tables()) == [b"t", b"txn"]
        assert plain.table("t").row(b"row")[b"d:x"] == b"1"
        with connect(hbase_emulator.thrift2_uri, table="t") as engine:
            assert engine.read([Key("row", "d", "x")])[Key("row", "d", "x")].value == b"1"

    @pytest.fixture(scope="module")
    def shared(hbase_emulator_factory):
        return hbase_emulator_factory()

    def test_one_of_the_factory_is_another(shared, hbase_emulator):
        ports = {shared.thrift1_port, shared.thrift2_port, shared.transactional_port}
        assert hbase_emulator.thrift1_port not in ports

    def test_one_of_the_factory_outlives_a_test(shared):
        happybase.Connection(shared.host, shared.thrift1_port).close()
"""
THREADS = """
    import threading

    def pytest_unconfigure(config):
        print("threads:", [each.name for each in threading.enumerate()])
"""
UNUSED = """
    import sys

    def test_no_driver_of_an_extra_was_imported():
        drivers = {"happybase", "kazoo", "pyspark", "re2", "sqlalchemy", "thriftpy2", "typer"}
        assert not drivers & set(sys.modules)
"""


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project beside a distribution that has our entry point."""
    monkeypatch.setenv("PYTHONPATH", install_plugin(pytester.mkdir("site")))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")  # slow to import, and not needed
    return pytester


@pytest.mark.parametrize(
    ("setting", "arguments", "has_files"),
    [
        ("", [], False),
        ("txn_store = embedded:", [], True),
        ("txn_store = nonsense://", ["--txn-store", "embedded:"], True),
    ],
    ids=["by itself", "ini", "option"],
)
def test_each_test_gets_an_engine_on_a_store_of_its_own(
    installed: pytest.Pytester, setting: str, arguments: list[str], has_files: bool
) -> None:
    """The option goes before the ini file, and the marker before both."""
    installed.makeini(f"[pytest]\n{setting}\n")
    installed.makepyfile(STORE)
    ran = installed.runpytest_subprocess("-rP", "--strict-markers", *arguments)
    ran.assert_outcomes(passed=3)
    ran.stdout.fnmatch_lines([f"files: {has_files}", "marked: fenced False"])


@pytest.mark.parametrize("arguments", [["-s"], ["-n", "2"]], ids=["one process", "xdist"])
def test_the_emulator_serves_clients_of_hbase_and_is_empty_for_each_test(
    installed: pytest.Pytester, arguments: list[str]
) -> None:
    installed.makeconftest(THREADS)
    installed.makepyfile(EMULATOR)
    ran = installed.runpytest_subprocess("-W", "error", *arguments)
    ran.assert_outcomes(passed=5)
    ran.stdout.fnmatch_lines(["threads: ?'MainThread'?"])


def test_where_the_extra_is_missing_the_fixture_names_it(installed: pytest.Pytester) -> None:
    """The tests that need none of it go on."""
    installed.makeconftest("import sys\nsys.modules['thriftpy2'] = None\n")
    installed.makepyfile("def test_a(hbase_emulator): ...\ndef test_b(txn_engine): ...\n")
    ran = installed.runpytest_subprocess()
    ran.assert_outcomes(passed=1, errors=1)
    ran.stdout.fnmatch_lines(
        ["install hbase-txn?emulator?, or in a checkout .?emulator? missing='thriftpy2*'"]
    )


def test_a_project_that_uses_no_fixture_imports_nothing_of_the_library(
    installed: pytest.Pytester,
) -> None:
    installed.makepyfile(UNUSED)
    installed.runpytest_subprocess("-W", "error").assert_outcomes(passed=1)
