#!/usr/bin/env bash
# The fast tests on several Pythons, each in an environment of its own that is removed afterwards.
#
#   pythons.sh [--lowest] [PYTHON...]      each a version or a path
#
# Without names: 3.11 to 3.14, each that uv finds on this machine or fetches. With --lowest they have the
# oldest of everything that pyproject.toml allows, and 3.11 is tried unless others are named. Of PySpark
# the oldest is 4.1, which has no change feed: its tests are left out there. uv is taken from PATH.
set -euo pipefail
cd "$(dirname "$0")/../.."

pythons=(3.11 3.12 3.13 3.14)
options=()
tests=(-q -m "fast and not long" -n 2 --dist loadfile -p no:cacheprovider)
if [ "${1:-}" = --lowest ]; then
  shift
  pythons=(3.11)
  options=(--resolution lowest-direct)
  tests+=(--ignore=tests/unit/test_spark_source.py
    --ignore=tests/integration/test_spark_changes.py)
fi
[ $# -eq 0 ] || pythons=("$@")

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
passed=() failed=() absent=()
for python in "${pythons[@]}"; do
  rm -rf "${made:?}/venv"
  # pyenv's stubs run nothing unless the variable names a version.
  if ! PYENV_VERSION=$python uv venv --quiet --python "$python" "$made/venv"; then
    absent+=("$python")
    continue
  fi
  echo "== $("$made/venv/bin/python" --version) ${options[*]}"
  if uv pip install --quiet --python "$made/venv" "${options[@]}" --editable '.[dev]' &&
    "$made/venv/bin/python" -m pytest "${tests[@]}"; then
    passed+=("$python")
  else
    failed+=("$python")
  fi
done
echo "== passed: ${passed[*]:-none}; failed: ${failed[*]:-none}; not to be had here: ${absent[*]:-none}"
[ ${#failed[@]} -eq 0 ] && [ ${#passed[@]} -gt 0 ]
