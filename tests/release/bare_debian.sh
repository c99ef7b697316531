#!/usr/bin/env bash
# Try the checkout's last commit on a bare Debian: what README asks for is installed, and nothing else.
#
#   bare_debian.sh [SUITE [TARGET...]]      as root, with debootstrap, git and unshare
#
# SUITE is trixie (Python 3.13) unless another is named; testing has 3.14. The targets of make are `run`
# and `check` unless others are named. MIRROR is where Debian's packages come from, if not from where
# debootstrap takes them; TMPDIR has room for 4 GB. Proxies, certificates, the settings of pip and those
# of apt's downloads are the host's. All of it lives in one temporary folder and in namespaces of its
# own, so that nothing stays mounted and no process stays behind, however this ends.
set -euo pipefail

SUITE=${1:-trixie}
TARGETS=("${@:2}")
[ ${#TARGETS[@]} -gt 0 ] || TARGETS=(run check)
PACKAGES=(make python3 python3-venv gcc libc6-dev)
PASSED=(http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL
  PIP_TRUSTED_HOST PIP_CERT PIP_DEFAULT_TIMEOUT SSL_CERT_FILE REQUESTS_CA_BUNDLE)

fail() {
  echo "error: $*" >&2
  exit 2
}

say() { printf '== %s\n' "$*"; }

outside() {
  [ "$(id -u)" = 0 ] || fail "only root makes a Debian in a folder: run it with sudo"
  for tool in debootstrap git unshare; do
    command -v "$tool" >/dev/null || fail "no $tool: apt install debootstrap git util-linux"
  done
  child=
  TREE=$(mktemp -d)
  chmod 755 "$TREE" # apt reads in it as a user of its own
  export TREE
  trap 'finish' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  unshare --mount --pid --fork --kill-child bash "$0" "$SUITE" "${TARGETS[@]}" &
  child=$!
  local status=0
  wait "$child" || status=$?
  child=
  exit "$status"
}

finish() {
  # The end of unshare ends all that runs in its namespaces, and with them go the mounts.
  [ -z "$child" ] || { kill "$child" 2>/dev/null || true; wait "$child" 2>/dev/null || true; }
  rm -rf --one-file-system "$TREE"
}

make_tree() {
  say "debootstrap $SUITE"
  debootstrap --variant=minbase "$SUITE" "$TREE" ${MIRROR:+"$MIRROR"} >"$TREE.log" 2>&1 ||
    { tail -20 "$TREE.log" >&2; rm -f "$TREE.log"; fail "debootstrap $SUITE did not end well"; }
  rm -f "$TREE.log"
  cp -L /etc/resolv.conf "$TREE/etc/resolv.conf"
  cp -L /etc/hosts "$TREE/etc/hosts"
  apt-config dump 2>/dev/null | grep '^Acquire::' >"$TREE/etc/apt/apt.conf.d/99host" || true
  mount -t proc proc "$TREE/proc"
  mount --rbind /dev "$TREE/dev"
}

copy_settings() {
  local file name
  for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt "${HOME:-/root}/.config/pip/pip.conf"; do
    copy_file "$file" "${file/#${HOME:-/root}\//\/root/}"
  done
  for name in PIP_CERT SSL_CERT_FILE REQUESTS_CA_BUNDLE; do
    [ -z "${!name:-}" ] || copy_file "${!name}" "${!name}"
  done
}

copy_file() {
  [ -f "$1" ] || return 0
  mkdir -p "$TREE$(dirname "$2")"
  cp -L "$1" "$TREE$2"
}

inside() {
  local settings=(HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin CI=true) name
  for name in "${PASSED[@]}"; do
    [ -z "${!name:-}" ] || settings+=("$name=${!name}")
  done
  in_tree() { chroot "$TREE" env -i "${settings[@]}" "$@"; }

  make_tree
  say "apt-get install ${PACKAGES[*]}"
  in_tree apt-get update -qq
  in_tree env DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 \
    install -y -qq --no-install-recommends "${PACKAGES[@]}" >/dev/null
  copy_settings # now, as Debian's own certificates came with a package
  local top
  top=$(cd "$(dirname "$0")/../.." && pwd)
  local trusted=(-c "safe.directory=$top")
  mkdir "$TREE/src"
  git -C "$top" "${trusted[@]}" archive HEAD | tar -x -C "$TREE/src"
  say "commit $(git -C "$top" "${trusted[@]}" rev-parse --short HEAD), $(in_tree python3 --version)"

  local target began failed=()
  for target in "${TARGETS[@]}"; do
    say "make $target"
    began=$SECONDS
    in_tree make -C /src "$target" </dev/null || failed+=("$target")
    say "make $target took $((SECONDS - began)) s"
  done
  [ ${#failed[@]} -eq 0 ] || { say "failed on $SUITE: ${failed[*]}"; exit 1; }
  say "passed on $SUITE: ${TARGETS[*]}"
}

if [ -z "${TREE:-}" ]; then outside; else inside; fi
