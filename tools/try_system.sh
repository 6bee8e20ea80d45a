#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries the README's commands on a Debian system with nothing installed, in a root that debootstrap makes.
#
#   tools/try_system.sh bookworm                 Debian 12: ./quickstart in a clone of the last commit
#   tools/try_system.sh trixie ./check           Debian 13: another command
#   tools/try_system.sh trixie --remove          unmounts and removes the root
#
# Needs root and debootstrap. The root is kept, so that a second call installs nothing again: TRY_ROOT, or
# /var/tmp/tessera-SUITE. TRY_CCACHE=FOLDER shares a compiler cache with it.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
usage() { sed -n '3,10s/^# \{0,1\}//p' "$0"; }
case ${1:-} in
  bookworm | trixie) suite=$1 ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
command=${2:-./quickstart}
root=${TRY_ROOT:-/var/tmp/tessera-$suite}

unmount() {
  local folder
  for folder in dev/shm dev/pts dev proc root/.cache/ccache; do
    ! mountpoint -q "$root/$folder" || umount "$root/$folder"
  done
}

if [[ $command == --remove ]]; then
  unmount
  rm -rf --one-file-system -- "$root"
  exit
fi
fail() { printf 'try_system: %s\n  fix: %s\n' "$1" "$2" >&2; exit 8; }
(($(id -u) == 0)) || fail "a root can be made by root only" "sudo $0 $*"
command -v debootstrap >/dev/null || fail "debootstrap is not installed" "apt-get install -y debootstrap"

# The archive, the settings of apt and pip, and the certificates are those of this machine.
archive=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\).*/\2/p' /etc/apt/sources.list \
  /etc/apt/sources.list.d/* 2>/dev/null | grep -v security | head -n 1 || true)
if [[ ! -e $root/.complete ]]; then
  unmount
  rm -rf --one-file-system -- "$root"
  mkdir -p "$(dirname "$root")"
  log=$(mktemp)
  debootstrap --variant=minbase "$suite" "$root" "${archive:-http://deb.debian.org/debian}" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    rm -f "$log"
    fail "debootstrap ended without a root; its last lines stand above" "repeat the command; $root is begun again"
  }
  rm -f "$log"
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  for file in /etc/apt/apt.conf.d/99*; do [[ ! -f $file ]] || cp "$file" "$root/etc/apt/apt.conf.d/"; done
  [[ ! -f /etc/pip.conf ]] || cp /etc/pip.conf "$root/etc/pip.conf"
  chroot "$root" apt-get update -q >/dev/null
  chroot "$root" apt-get install -y -q --no-install-recommends ca-certificates git >/dev/null
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  : >"$root/.complete"
fi
mountpoint -q "$root/proc" || mount --bind /proc "$root/proc"
mountpoint -q "$root/dev" || mount --bind /dev "$root/dev"
mountpoint -q "$root/dev/pts" || mount --bind /dev/pts "$root/dev/pts"
mountpoint -q "$root/dev/shm" || mount -t tmpfs tmpfs "$root/dev/shm"
if [[ -n ${TRY_CCACHE:-} ]]; then
  mkdir -p "$root/root/.cache/ccache"
  mountpoint -q "$root/root/.cache/ccache" || mount --bind "$TRY_CCACHE" "$root/root/.cache/ccache"
fi

rm -rf -- "$root/root/tessera"
git clone -q . "$root/root/tessera"
code=0
time chroot "$root" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
  SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt ${CI:+CI="$CI"} \
  bash -c "cd /root/tessera && $command" </dev/null || code=$?
unmount
exit "$code"
