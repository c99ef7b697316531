#!/usr/bin/env bash
# Build the sdist, and the wheel from it, into dist/: from the last commit, whatever lies in the checkout.
# uv is taken from PATH.
set -euo pipefail
cd "$(dirname "$0")/../.."

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
git archive HEAD | tar -x -C "$tree"
rm -rf dist
uv build --quiet --out-dir "$PWD/dist" "$tree"
uv tool run --quiet twine check --strict dist/*
