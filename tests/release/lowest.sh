#!/usr/bin/env bash
# The fast tests with the oldest of everything that pyproject.toml allows, in an environment of their own.
#
#   lowest.sh [PYTHON...]      each a path or a version; 3.11 unless others are named
#
# uv is taken from PATH. Of PySpark the oldest is 4.1, whose streams have no sources of ours: the tests
# of the change feed, which is for 4.2 and later, are left out.
set -euo pipefail
cd "$(dirname "$0")/../.."

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
[ $# -gt 0 ] || set -- 3.11
for python in "$@"; do
  echo "== the lowest versions on $python"
  rm -rf "${made:?}/venv"
  uv venv --quiet --python "$python" "$made/venv"
  uv pip install --quiet --python "$made/venv" --resolution lowest-direct --editable '.[dev]'
  "$made/venv/bin/python" -m pytest -q -m fast -n 2 --dist loadfile -p no:cacheprovider \
    --ignore=tests/unit/test_spark_source_changes.py --ignore=tests/integration/test_spark_changes.py
done
