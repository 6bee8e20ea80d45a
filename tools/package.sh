#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes packages of a build.
#
#   tools/package.sh wheel [OUT]     the Python wheel tessera_train-*.whl (default: build/packages)
#   tools/package.sh deb [OUT]       the Debian package tessera-train_*.deb, which holds libtorch too
#
# The release build is brought up to date first. The wheel needs torch 2.11 where it is installed, and no compiler. The Debian
# package fits the release of Debian or Ubuntu on which it is made: apt-get install ./tessera-train_*.deb.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
usage() { sed -n '3,10s/^# \{0,1\}//p' "$0"; }
out=${2:-build/packages}
case ${1:-} in
  wheel)
    tools/build.sh release tessera_program
    python3 tools/wheel.py build/release "$out"
    ;;
  deb)
    tools/build.sh release tessera_program
    python3 tools/deb.py build/release "$out"
    ;;
  -h | --help) usage ;;
  *) usage >&2; exit 2 ;;
esac
