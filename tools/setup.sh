#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what a build needs and is missing: Debian or Ubuntu packages (packages.txt), the parts of libtorch's and oneDNN's
# PyPI wheels that tessera links (wheels.txt), and PyPI's cmake (wheels-cmake.txt) where the system's is too old. What is
# already installed is never downloaded or changed again.
#
#   tools/setup.sh                   set up; quiet when there is nothing to do
#   tools/setup.sh --where           print the folder that holds libtorch, and do nothing
#   tools/setup.sh --python          bring torch and other Python packages, which only the tests of the Python package need
#   tools/setup.sh --where-python    print the folder that holds them, if there is one, and do nothing
#   tools/setup.sh --cuda            also install the CUDA libraries of libtorch (wheels-cuda.txt), for training on GPUs. Six
#                                    libraries that it names and never calls become empty ones; --cuda --full installs these too.
#                                    986 MB more to download where libtorch is not there yet either, else torch's wheel again
#
# libtorch is stored in the first of these folders that is set and writable: $TESSERA_CACHE, $XDG_CACHE_HOME/tessera,
# ~/.cache/tessera, .cache/ in this clone. An entry is created in a temporary folder under a lock and renamed when
# complete, so that an interruption leaves no incomplete entry. Exit codes: 0 ready, 8 something is missing
# (the message names it and the command that installs it), 130 and 143 interrupted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kVersion=2.11.0
readonly kEntry=libtorch-$kVersion
readonly kDownloadMb=585 kUnpackedMb=575
# pip stores a wheel twice while it downloads; afterwards the wheel and the unpacked files exist at the same time.
readonly kNeededMb=1250
readonly kPythonDownloadMb=700 kPythonUnpackedMb=550 kPythonNeededMb=2000
readonly kTorchWheelMb=531
readonly kCudaEntry=$kEntry-cuda
readonly kCudaParts=(torch/lib/libtorch_cuda.so torch/lib/libc10_cuda.so torch/lib/libtorch_nvshmem.so torch/version.py
                     nvidia/cu13/lib/libcublas.so.13 nvidia/cu13/lib/libcublasLt.so.13 nvidia/cudnn/lib/libcudnn.so.9
                     nvidia/nccl/lib/libnccl.so.2 nvidia/cu13/lib/libcufft.so.12 nvidia/nvshmem/lib/libnvshmem_host.so.3)
readonly kPython=/usr/bin/python3  # the system's Python: a virtual environment may lack pip
readonly kParts=(torch/lib/libc10.so torch/lib/libtorch_cpu.so torch/lib/libgomp.so.1
                 nvidia/cu13/lib/libcudart.so.13 nvidia/cu13/lib/libcupti.so.13
                 torch/include/ATen/ATen.h torch/include/c10/core/TensorImpl.h torch/include/torch/csrc/autograd/custom_function.h
                 onednn/lib/libdnnl.so.3 onednn/include/oneapi/dnnl/dnnl.hpp)

say() { printf '%s\n' "$*"; }

# fail WHAT FIX: prints what is missing and the command that installs it, and exits.
fail() {
  printf 'tessera set-up: %s\n  fix: %s\n' "$1" "$2" >&2
  exit 8
}

# shellcheck source=tools/toolchain.sh
source tools/toolchain.sh

# ---- Debian packages ------------------------------------------------------------------------------------------

# The systems that were tried, or whose packages have the versions that are needed.
readonly kKnownSystems=" debian-12 debian-13 ubuntu-22.04 ubuntu-24.04 "

# Prints the system as in packages.txt, e.g. debian-12; "unknown" without /etc/os-release.
system_name() {
  local file=${OS_RELEASE:-/etc/os-release}
  if [[ ! -r $file ]]; then say unknown; return; fi
  (ID="" VERSION_ID="" && source "$file" && say "${ID:-unknown}${VERSION_ID:+-$VERSION_ID}")
}

# Prints the packages of this system, one per line.
packages() {
  awk -v on="$(system_name)" '
    { sub(/#.*/, "") }
    NF { name = $1
         for (i = 2; i <= NF; ++i) { split($i, other, "="); if (other[1] == on) name = other[2] }
         if (name != "-") print name }' packages.txt
}

# Prints the packages of packages.txt that are not installed, one per line.
missing_packages() {
  local installed
  # dpkg-query exits with 1 if it does not know one of the names, but still lists the others.
  # shellcheck disable=SC2046  # one word per package
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' $(packages) 2>/dev/null | sed -n 's/^installed //p' || true)
  comm -23 <(packages | sort) <(sort -u <<<"$installed")
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "This system ($(system_name)) has no Debian packages: set-up installs none, and the build needs the equivalents of packages.txt."
    return
  fi
  local missing=() line become=()
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  [[ $kKnownSystems == *" $(system_name) "* ]] ||
    say "tessera has not been tried on this system ($(system_name)); set-up tries the packages of Debian."
  line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if (($(id -u) != 0)); then
    if ! command -v sudo >/dev/null; then
      fail "these Debian packages are missing, and there is no sudo here: ${missing[*]}" "as root: $line"
    elif sudo -n true 2>/dev/null; then
      become=(sudo -n)
    elif [[ -t 0 && -t 1 ]]; then
      become=(sudo)
    else
      fail "these Debian packages are missing, and sudo would ask for a password without a terminal to ask on: ${missing[*]}" \
           "sudo sh -c '$line'"
    fi
  fi
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  local apt=("${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q)
  if ! { "${apt[@]}" update </dev/null && "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null; }; then
    fail "apt-get could not install: ${missing[*]} (its own message stands above)" "${become:+sudo }sh -c '$line'"
  fi
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} == 0)) || fail "still missing after apt-get: ${missing[*]}" "${become:+sudo }sh -c '$line'"
}

# ---- libtorch -------------------------------------------------------------------------------------------------

cache_folders() {
  [[ -z ${TESSERA_CACHE:-} ]] || say "$TESSERA_CACHE"
  [[ -z ${XDG_CACHE_HOME:-} ]] || say "$XDG_CACHE_HOME/tessera"
  [[ -z ${HOME:-} ]] || say "$HOME/.cache/tessera"
  say "$PWD/.cache"
}

has_parts() {  # has_parts FOLDER PARTS...: true if every part exists
  local part
  for part in "${@:2}"; do [[ -e $1/$part ]] || return 1; done
}
complete() { has_parts "$1" "${kParts[@]}"; }
cuda_complete() {  # cuda_complete FOLDER FULL: true if every part exists, and with FULL no library is empty
  has_parts "$1" "${kCudaParts[@]}" && { ! $2 || [[ -e $1/full ]]; }
}

writable() { mkdir -p "$1" 2>/dev/null && [[ -w $1 ]]; }

# Sets `cache` to the first folder that contains libtorch or is writable, and `present` to whether it contains it.
choose_cache() {
  local folder
  present=false
  while IFS= read -r folder; do
    cache=$folder
    if complete "$folder/$kEntry"; then present=true; return; fi
    if writable "$folder"; then return; fi
  done < <(cache_folders)
  fail "no cache folder is writable: $(cache_folders | paste -sd' ')" "TESSERA_CACHE=/some/writable/folder $0"
}

temporary=""
kept_wheels=""  # torch's wheel, which fetch_cuda unpacks too
child=""
clean_up() {
  trap - EXIT INT TERM HUP
  if [[ -n $child ]]; then
    kill -TERM "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  [[ -z $temporary ]] || rm -rf -- "$temporary"
  [[ -z $kept_wheels ]] || rm -rf -- "$kept_wheels"
}
interrupted() {
  clean_up
  printf '\ntessera set-up: interrupted; nothing half-made is left behind\n' >&8  # 2 may be pip's log now
  exit "$1"
}

# Runs a command in such a way that a signal is handled at once, not after the command has ended.
attended() {
  "$@" 9>&- </dev/null &
  child=$!
  local code=0
  wait "$child" || code=$?
  child=""
  return "$code"
}

download_for() {  # download_for PYTHON FOLDER WHEELS.TXT: downloads the wheels of the list for 3.11, or for the system's python
  local bar=off kind=() minor
  [[ ! -t 1 ]] || bar=on
  if [[ $1 != python ]]; then
    kind=(--python-version "$1" --implementation cp --abi "cp${1/./}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64)
    for minor in {28..17}; do kind+=(--platform "manylinux_2_${minor}_x86_64"); done  # one does not include the older ones
  fi
  [[ -z $kept_wheels ]] || kind+=(--find-links "$kept_wheels")
  TMPDIR=$2 attended "$kPython" -m pip --disable-pip-version-check download --progress-bar "$bar" \
    --no-cache-dir --retries 2 --timeout 30 --dest "$2" --requirement "$3" \
    --require-hashes --no-deps --only-binary=:all: "${kind[@]}" 2>"$2/pip.log"
}
download() { download_for 3.11 "$@"; }

# explain_download LOG WHAT NEEDED_MB [COMMAND [ENTRY]]: prints pip's log and explains why pip failed to bring WHAT, the entry ENTRY.
explain_download() {
  cat "$1" >&2
  local again=${4:-tools/setup.sh} what=$2 entry=${5:-${2/ /-}}
  if grep -qE 'NewConnectionError|ConnectTimeoutError|name resolution|Name or service|Network is unreachable|Connection refused|ProxyError|Cannot connect to proxy|Read timed out|No matching distribution' "$1"; then
    fail "offline without a cache: $what is not in $cache, and the Python package index cannot be reached" \
         "connect and run: $again   (or copy the folder $entry from a machine that has it into $cache)"
  elif grep -q 'DO NOT MATCH THE HASHES' "$1"; then
    fail "a downloaded wheel is not the one that the list of wheels names (its hash differs): a proxy or mirror changed it" \
         "use the original index: PIP_INDEX_URL=https://pypi.org/simple $again"
  elif grep -q 'No space left' "$1"; then
    fail "the disk of $cache filled up during the download" "free $3 MB there, or: TESSERA_CACHE=/a/roomier/folder $again"
  fi
  fail "pip could not download $what (its own message stands above)" "$again"
}

# Takes the lock on an entry of the cache, on descriptor 9.
lock_entry() {
  exec 9>"$cache/.$1.lock"
  if ! flock -n 9; then
    say "Another set-up is filling $cache; waiting for it."
    flock 9
  fi
}

# Fetches PyPI's cmake if every cmake here is too old or broken.
fetch_cmake() {
  ! (PATH=$kSystemPrograms:$PATH && usable_cmake "$cache" >/dev/null) || return 0
  lock_entry "$kCmakeWheel"
  ! usable_cmake "$cache" >/dev/null || return 0
  local have
  have=$(PATH=$kSystemPrograms:$PATH version_of_cmake cmake || true)
  say "cmake ${have:-is missing or does not work}${have:+ is older than $kLeastCmake}: downloading ${kCmakeWheel/-/ } (28 MB) to $cache"
  temporary=$(mktemp -d "$cache/.$kCmakeWheel.partial.XXXXXX")
  mkdir "$temporary/wheels"
  download "$temporary/wheels" wheels-cmake.txt || explain_download "$temporary/wheels/pip.log" "${kCmakeWheel/-/ }" 200
  attended "$kPython" -m zipfile -e "$temporary"/wheels/cmake-*.whl "$temporary/unpacked" ||
    fail "the downloaded cmake could not be unpacked into $cache (the reason stands above)" tools/setup.sh
  chmod 755 "$temporary"/unpacked/cmake/data/bin/*
  rm -rf -- "${cache:?}/$kCmakeWheel"
  mv -- "$temporary/unpacked/cmake/data" "$cache/$kCmakeWheel"
  rm -rf -- "$temporary"
  temporary=""
  exec 9>&-
}

compiler() { (PATH=$kSystemPrograms:$PATH && usable_compiler); }
check_compiler() {
  compiler >/dev/null ||
    fail "no C++ compiler here is GCC $kLeastCompiler or later, or clang" "apt-get install -y g++-12, or set CXX to a newer compiler"
}

fetch_libtorch() {
  [[ $(uname -m) == x86_64 ]] || fail "this machine is $(uname -m); the pinned libtorch is built for x86_64" "use an x86_64 machine"
  lock_entry "$kEntry"
  if complete "$cache/$kEntry"; then return 0; fi
  rm -rf -- "$cache/.$kEntry.partial."*  # left by a killed set-up: we hold the lock, so no process uses it
  local free_mb
  free_mb=$(df -Pk "$cache" | awk 'NR == 2 {print int($4 / 1024)}')
  say "libtorch $kVersion: downloading $kDownloadMb MB, keeping $kUnpackedMb MB in $cache/$kEntry ($free_mb MB free there)"
  ((free_mb >= kNeededMb)) ||
    fail "the disk of $cache has $free_mb MB free; set-up needs $kNeededMb MB while it unpacks" \
         "free some, or: TESSERA_CACHE=/a/roomier/folder tools/setup.sh"
  temporary=$(mktemp -d "$cache/.$kEntry.partial.XXXXXX")
  mkdir "$temporary/wheels"
  download "$temporary/wheels" wheels.txt || explain_download "$temporary/wheels/pip.log" "libtorch $kVersion" $kNeededMb
  attended "$kPython" tools/unpack_libtorch.py "$temporary/wheels" "$temporary/$kEntry" ||
    fail "the downloaded wheels could not be unpacked into $cache (the reason stands above)" tools/setup.sh
  complete "$temporary/$kEntry" || fail "the unpacked wheels lack a file that tessera links" tools/setup.sh
  if $cuda; then
    kept_wheels=$(mktemp -d "$cache/.$kEntry.partial.wheel.XXXXXX")
    mv -- "$temporary"/wheels/torch-*.whl "$kept_wheels"
  fi
  rm -rf -- "${cache:?}/$kEntry"  # only an incomplete entry can exist here
  chmod 755 "$temporary/$kEntry"
  mv -- "$temporary/$kEntry" "$cache/$kEntry"
  rm -rf -- "$temporary"
  temporary=""
  exec 9>&-
  say "libtorch $kVersion is ready in $cache/$kEntry"
}

# ---- Python packages of the tests -----------------------------------------------------------------------------

# The entry depends on the version of the system's Python, and is complete if it was made from the present list.
python_entry() { "$kPython" -c 'import sys; print(f"python-%d.%d" % sys.version_info[:2])'; }
python_complete() { [[ -d $1/site-packages/torch && -d $1/site-packages/nvidia ]] && cmp -s wheels-python.txt "$1/wheels-python.txt"; }

where_python() {
  local entry
  entry=$(python_entry 2>/dev/null) || return 0
  ! python_complete "$cache/$entry" || say "$cache/$entry/site-packages"
}

fetch_python() {
  local entry free_mb
  entry=$(python_entry) || fail "there is no $kPython" "apt-get install -y python3 python3-pip"
  ! python_complete "$cache/$entry" || return 0
  lock_entry "$entry"
  ! python_complete "$cache/$entry" || return 0
  rm -rf -- "$cache/.$entry.partial."*
  free_mb=$(df -Pk "$cache" | awk 'NR == 2 {print int($4 / 1024)}')
  say "Python packages of the tests: downloading $kPythonDownloadMb MB, keeping $kPythonUnpackedMb MB in $cache/$entry ($free_mb MB free there)"
  ((free_mb >= kPythonNeededMb)) ||
    fail "the disk of $cache has $free_mb MB free; the Python packages of the tests need $kPythonNeededMb MB while they are unpacked" \
         "free some, or: TESSERA_CACHE=/a/roomier/folder tools/setup.sh --python"
  temporary=$(mktemp -d "$cache/.$entry.partial.XXXXXX")
  mkdir "$temporary/wheels" "$temporary/entry"
  download_for python "$temporary/wheels" wheels-python.txt ||
    explain_download "$temporary/wheels/pip.log" "$entry" $kPythonNeededMb "tools/setup.sh --python"
  attended "$kPython" tools/unpack_python.py "$temporary/wheels" "$temporary/entry/site-packages" "$cache/$kEntry" "$(compiler)" ||
    fail "the downloaded Python packages could not be unpacked into $cache (the reason stands above)" "tools/setup.sh --python"
  cp wheels-python.txt "$temporary/entry/wheels-python.txt"
  rm -rf -- "${cache:?}/$entry"
  chmod 755 "$temporary/entry"
  mv -- "$temporary/entry" "$cache/$entry"
  rm -rf -- "$temporary"
  temporary=""
  say "the Python packages of the tests are ready in $cache/$entry"
}

# ---- CUDA libraries ------------------------------------------------------------------------------------------

# fetch_cuda FULL: fetches the CUDA libraries beside libtorch, for which the program looks there.
fetch_cuda() {
  local full=$1 list=wheels-cuda.txt download_mb=1517 kept_mb=1790 needed_mb=3400 free_mb again="tools/setup.sh --cuda"
  if $full; then list=wheels-cuda-full.txt download_mb=2168 kept_mb=2660 needed_mb=4900 again+=" --full"; fi
  if [[ -n $kept_wheels ]]; then download_mb=$((download_mb - kTorchWheelMb)); fi
  lock_entry "$kCudaEntry"
  if cuda_complete "$cache/$kCudaEntry" "$full"; then exec 9>&-; return 0; fi
  rm -rf -- "$cache/.$kCudaEntry.partial."*
  free_mb=$(df -Pk "$cache" | awk 'NR == 2 {print int($4 / 1024)}')
  say "CUDA libraries of libtorch $kVersion: downloading $download_mb MB, keeping $kept_mb MB in $cache/$kCudaEntry ($free_mb MB free there)"
  ((free_mb >= needed_mb)) ||
    fail "the disk of $cache has $free_mb MB free; set-up needs $needed_mb MB while it unpacks" \
         "free some, or: TESSERA_CACHE=/a/roomier/folder $again"
  temporary=$(mktemp -d "$cache/.$kCudaEntry.partial.XXXXXX")
  mkdir "$temporary/wheels"
  download "$temporary/wheels" "$list" ||
    explain_download "$temporary/wheels/pip.log" "libtorch $kVersion with CUDA" "$needed_mb" "$again" "$kCudaEntry"
  attended env CXX="$(compiler)" "$kPython" tools/unpack_cuda.py "$temporary/wheels" "$temporary/$kCudaEntry" ||
    fail "the downloaded wheels could not be unpacked into $cache (the reason stands above)" "$again"
  if $full; then : >"$temporary/$kCudaEntry/full"; fi
  cuda_complete "$temporary/$kCudaEntry" "$full" || fail "the unpacked wheels lack a library" "$again"
  rm -rf -- "${cache:?}/$kCudaEntry"
  chmod 755 "$temporary/$kCudaEntry"
  mv -- "$temporary/$kCudaEntry" "$cache/$kCudaEntry"
  rm -rf -- "$temporary"
  temporary=""
  exec 9>&-
  say "the CUDA libraries are ready in $cache/$kCudaEntry; the plugin: tools/build.sh cuda"
}

main() {
  local present cache with_python=false cuda=false full=false
  case "$*" in
    "") ;;
    --python) with_python=true ;;
    --cuda) cuda=true ;;
    "--cuda --full" | "--full --cuda") cuda=true full=true ;;
    --where) choose_cache; say "$cache/$kEntry"; return ;;
    --where-python) choose_cache; where_python; return ;;
    *) printf 'usage: tools/setup.sh [--where | --python | --where-python | --cuda [--full]]\n' >&2; exit 2 ;;
  esac
  exec 8>&2
  trap clean_up EXIT
  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM HUP
  install_packages
  choose_cache
  check_compiler
  fetch_cmake
  if ! $present; then fetch_libtorch; fi
  if $with_python; then fetch_python; fi
  if $cuda; then fetch_cuda $full; fi
}

main "$@"
