#!/usr/bin/env bash
# Build the sdist, and the wheel from it, into dist/ or the given folder: from the last commit, whatever lies in the
# checkout. The same commit and tools give the same bytes. uv is taken from PATH.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=$(realpath -m "${1:-dist}")
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
umask 022
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
git archive HEAD | tar -x -C "$tree"
rm -rf "$out"
uv build --quiet --sdist --out-dir "$out" "$tree"
python3 tests/release/repack.py "$out"/*.tar.gz
uv build --quiet --wheel --out-dir "$out" "$out"/*.tar.gz
uv tool run --quiet twine check --strict "$out"/*.tar.gz "$out"/*.whl
