#!/usr/bin/env bash
# Known vulnerabilities of what every extra installs, newest versions; uv is taken from PATH.
#
#   audit.sh [OPTION...]      options of pip-audit, such as --vulnerability-service osv
# What the service does not know is an error, too: it was not looked at.
set -euo pipefail
cd "$(dirname "$0")/../.."

resolved=$(mktemp)
trap 'rm -f "$resolved"' EXIT
uv pip compile --quiet --all-extras --generate-hashes --output-file "$resolved" pyproject.toml
echo "== $(grep -c '^[a-z0-9]' "$resolved") distributions"
uv tool run pip-audit --requirement "$resolved" --disable-pip --require-hashes --strict --progress-spinner off "$@"
