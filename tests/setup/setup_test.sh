#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: fast
# Set-up does nothing when nothing is missing, and otherwise names what is missing and the command that installs it.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
setup=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tools/setup.sh

# A cache that looks complete; set-up checks that the parts are there, the linker checks what is in them.
fill_cache() {
  local root=$1/libtorch-2.11.0 part
  for part in torch/lib/{libc10.so,libtorch_cpu.so,libgomp.so.1} nvidia/cu13/lib/{libcudart.so.13,libcupti.so.13} \
      torch/include/{ATen/ATen.h,c10/core/TensorImpl.h,torch/csrc/autograd/custom_function.h} \
      onednn/lib/libdnnl.so.3 onednn/include/oneapi/dnnl/dnnl.hpp; do
    mkdir -p "$root/$(dirname "$part")"
    : >"$root/$part"
  done
}

# Simulates that all Debian packages are installed, whatever this machine has.
all_installed='shift 2; for p; do echo "installed $p"; done'
no_network=(env -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL=http://127.0.0.1:9/simple)

present_cache() {
  fill_cache "$box/cache"
  for name in apt-get sudo pip curl wget; do shim "$box/shims" $name; done
  shim "$box/shims" dpkg-query "$all_installed"

  local begin=${EPOCHREALTIME/./}
  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache bash -x "$setup" >"$box/out" 2>"$box/trace"
  local code=$? took_ms=$(((${EPOCHREALTIME/./} - begin) / 1000))

  expect "exit code 0, not $code" test $code = 0
  expect "nothing to say" test ! -s "$box/out"
  expect "only dpkg-query is called" test "$(cut -d' ' -f1 "$box/shims/calls" | sort -u)" = dpkg-query
  expect "no pip and no download" test -z "$(grep -E '^\++ ([^ ]*python3|apt-get|sudo|attended|download) ' "$box/trace")"
  expect "under one second, not $took_ms ms" test "$took_ms" -lt 1000
}

offline_without_cache() {
  shim "$box/shims" dpkg-query "$all_installed"

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "${no_network[@]}" "$setup" >"$box/out" 2>"$box/err"
  local code=$?

  expect "exit code 8, not $code" test $code = 8
  expect "the words" says "offline without a cache" "$box/err"
  expect "the missing thing" says "libtorch 2.11.0" "$box/err"
  expect "the command" says "tools/setup.sh" "$box/err"
  expect "size and free disk first" says "MB free there" "$box/out"
  expect "nothing half-made" test -z "$(find "$box/cache" -mindepth 1 -not -name '*.lock')"
}

missing_package_without_sudo() {
  fill_cache "$box/cache"
  shim "$box/shims" dpkg-query 'shift 2; for p; do [[ $p == lld ]] || echo "installed $p"; done'
  shim "$box/shims" id 'echo 1000'
  shim "$box/shims" sudo 'exit 1'
  shim "$box/shims" apt-get

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "$setup" >"$box/out" 2>"$box/err" </dev/null
  local code=$?

  expect "exit code 8, not $code" test $code = 8
  expect "the apt line" says "apt-get install -y --no-install-recommends lld" "$box/err"
  expect "apt is not called" test -z "$(grep apt-get "$box/shims/calls")"
}

missing_package_as_root() {
  fill_cache "$box/cache"
  shim "$box/shims" dpkg-query "shift 2; for p; do [[ \$p == lld && ! -e $box/installed ]] || echo \"installed \$p\"; done"
  shim "$box/shims" id 'echo 0'
  shim "$box/shims" sudo
  shim "$box/shims" apt-get "[[ \$* != *install* ]] || : >$box/installed"

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "$setup" >"$box/out" 2>"$box/err" </dev/null
  local code=$?

  expect "exit code 0, not $code: $(cat "$box/err")" test $code = 0
  expect "it is installed without what is only recommended" \
    says "apt-get -q install -y --no-install-recommends lld" "$box/shims/calls"
  expect "sudo is not called" test -z "$(grep '^sudo' "$box/shims/calls")"
}

failing_apt() {
  shim "$box/shims" dpkg-query 'shift 2; for p; do [[ $p == lld ]] || echo "installed $p"; done'
  shim "$box/shims" id 'echo 0'
  shim "$box/shims" apt-get 'exit 100'

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "$setup" >"$box/out" 2>"$box/err" </dev/null
  local code=$?

  expect "exit code 8, not $code" test $code = 8
  expect "the package" says "could not install: lld" "$box/err"
}

unwritable_cache() {
  shim "$box/shims" dpkg-query "$all_installed"
  : >"$box/file"  # a folder below a file cannot be made, not even by root

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/file/a XDG_CACHE_HOME=$box/second "${no_network[@]}" "$setup" >"$box/out" 2>"$box/err"

  expect "the next cache folder is taken" says "$box/second/tessera" "$box/out"
}

full_disk() {
  shim "$box/shims" dpkg-query "$all_installed"
  shim "$box/shims" df 'echo head; echo "disk 1 1 4096 1% /"'

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "${no_network[@]}" "$setup" >"$box/out" 2>"$box/err"
  local code=$?

  expect "exit code 8, not $code" test $code = 8
  expect "both numbers" says "4 MB free; set-up needs 1250 MB" "$box/err"
}

# A package index that accepts connections and never answers, so that set-up is interrupted during its download.
ctrl_c() {
  shim "$box/shims" dpkg-query "$all_installed"
  python3 -c '
import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(8); print(s.getsockname()[1], flush=True); time.sleep(60)' >"$box/port" &
  local index=$!
  until [[ -s $box/port ]]; do sleep 0.05; done

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache env -u PIP_FIND_LINKS --default-signal=INT PIP_CONFIG_FILE=/dev/null \
    PIP_INDEX_URL="http://127.0.0.1:$(cat "$box/port")/simple" "$setup" >"$box/out" 2>"$box/err" &
  local running=$!
  until compgen -G "$box/cache/.libtorch-2.11.0.partial.*/wheels/pip.log" >/dev/null; do sleep 0.05; done
  kill -INT $running
  wait $running
  local code=$?
  kill $index

  expect "exit code 130, not $code" test $code = 130
  expect "it says so" says "nothing half-made is left behind" "$box/err"
  expect "nothing half-made" test -z "$(find "$box/cache" -mindepth 1 -not -name '*.lock')"
}

killed_before() {
  fill_cache "$box/cache"
  rm "$box/cache/libtorch-2.11.0/torch/lib/libc10.so"
  mkdir -p "$box/cache/.libtorch-2.11.0.partial.abcdef"
  shim "$box/shims" dpkg-query "$all_installed"

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "${no_network[@]}" "$setup" >"$box/out" 2>"$box/err"

  expect "an incomplete entry counts as missing" says "offline without a cache" "$box/err"
  expect "the remains of a killed set-up are gone" test ! -e "$box/cache/.libtorch-2.11.0.partial.abcdef"
}

# The packages that set-up asks for on a system, with everything installed.
packages_of() {  # packages_of ID VERSION
  fill_cache "$box/cache"
  printf 'ID=%s\nVERSION_ID="%s"\n' "$1" "$2" >"$box/os-release"
  rm -f "$box/shims/calls"
  shim "$box/shims" dpkg-query "$all_installed"
  OS_RELEASE=$box/os-release PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "$setup" >"$box/out" 2>"$box/err"
  local code=$?
  expect "exit code 0, not $code: $(cat "$box/err")" test $code = 0
  tr ' ' '\n' <"$box/shims/calls"
}

packages_by_system() {
  packages_of debian 12 >"$box/debian-12"
  packages_of debian 13 >"$box/debian-13"
  packages_of ubuntu 24.04 >"$box/ubuntu-24.04"
  packages_of ubuntu 22.04 >"$box/ubuntu-22.04"

  for system in debian-12 debian-13 ubuntu-24.04; do
    expect "g++ and cmake on $system" test "$(grep -cxE 'g\+\+|cmake|libjpeg-dev' "$box/$system")" -ge 3
  done
  expect "g++ 12 on Ubuntu 22.04" says "g++-12" "$box/ubuntu-22.04"
  expect "no old g++ and cmake there" test -z "$(grep -xE 'g\+\+|cmake' "$box/ubuntu-22.04")"
}

unknown_system() {
  fill_cache "$box/cache"
  printf 'ID=strange\nVERSION_ID=1\n' >"$box/os-release"
  shim "$box/shims" dpkg-query "shift 2; for p; do [[ \$p == lld && ! -e $box/installed ]] || echo \"installed \$p\"; done"
  shim "$box/shims" id 'echo 0'
  shim "$box/shims" apt-get "[[ \$* != *install* ]] || : >$box/installed"

  OS_RELEASE=$box/os-release PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "$setup" >"$box/out" 2>"$box/err" </dev/null
  local code=$?

  expect "exit code 0, not $code: $(cat "$box/err")" test $code = 0
  expect "one sentence" test "$(grep -c 'has not been tried on this system (strange-1)' "$box/out")" = 1
}

# A clone of set-up that looks for programs in PATH alone.
clone_without_system() {
  mkdir -p "$box/clone/tools"
  cp "$(dirname "$setup")"/../{packages.txt,wheels.txt,wheels-cmake.txt} "$box/clone/"
  cp "$setup" "$box/clone/tools/"
  sed 's|^readonly kSystemPrograms=.*|readonly kSystemPrograms=/nowhere|' "$(dirname "$setup")/toolchain.sh" >"$box/clone/tools/toolchain.sh"
}

# A PATH with the programs that set-up needs, and nothing of /usr/bin: a system without dpkg.
without_dpkg() {
  fill_cache "$box/cache"
  mkdir "$box/bin"
  local name
  for name in bash awk cat chmod cmake comm cut df dirname env flock grep head id ls mkdir mktemp mv paste readlink rm sed sort tail \
      tr uname g++ c++; do
    ln -s "$(type -P "$name")" "$box/bin/$name"
  done
  clone_without_system
  PATH=$box/bin TESSERA_CACHE=$box/cache bash "$box/clone/tools/setup.sh" >"$box/out" 2>"$box/err" </dev/null
  local code=$?

  expect "exit code 0, not $code: $(cat "$box/err")" test $code = 0
  expect "one sentence" says "has no Debian packages: set-up installs none" "$box/out"
}

# Programs of these versions stand before the system's.
old_programs() {
  fill_cache "$box/cache"
  shim "$box/old" cmake 'echo "cmake version 3.22.1"'
  shim "$box/old" c++ 'echo 11.4.0'
  shim "$box/old" g++ 'echo 11.4.0'
  shim "$box/old" g++-12 'echo 12.3.0'
  shim "$box/cache/cmake-3.31.6/bin" cmake 'echo "cmake version 3.31.6"'
  cat >"$box/try.sh" <<'END'
source "$1/toolchain.sh"
PATH=$2 usable_cmake "$3"
PATH=$2 usable_compiler
END
  ln -s "$(type -P bash)" "$(type -P sed)" "$(type -P sort)" "$(type -P head)" "$(type -P grep)" "$box/old/"

  bash "$box/try.sh" "$(dirname "$setup")" "$box/old" "$box/cache" >"$box/out"

  expect "cmake of the cache" says "$box/cache/cmake-3.31.6/bin/cmake" "$box/out"
  expect "the newer compiler" test "$(tail -n 1 "$box/out")" = g++-12
}

no_new_compiler() {
  fill_cache "$box/cache"
  shim "$box/old" g++ 'echo 9.4.0'
  ln -s "$(type -P bash)" "$(type -P sed)" "$(type -P sort)" "$(type -P head)" "$(type -P grep)" "$box/old/"
  bash -c "source '$(dirname "$setup")/toolchain.sh' && PATH=$box/old usable_compiler"
  local code=$?
  expect "no compiler is named" test $code = 1
}

old_cmake_is_fetched() {
  fill_cache "$box/cache"
  shim "$box/shims" dpkg-query "$all_installed"
  clone_without_system
  # Only the stand-in is found.
  sed -i 's|type -ap cmake;|type -P cmake;|' "$box/clone/tools/toolchain.sh"
  shim "$box/shims" cmake 'echo "cmake version 3.22.1"'

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "${no_network[@]}" bash "$box/clone/tools/setup.sh" >"$box/out" 2>"$box/err"
  local code=$?

  expect "exit code 8, not $code" test $code = 8
  expect "why and what" says "cmake 3.22.1 is older than 3.25: downloading cmake 3.31.6" "$box/out"
  expect "the words" says "offline without a cache: cmake 3.31.6 is not in" "$box/err"
  expect "nothing half-made" test -z "$(find "$box/cache" -mindepth 1 -maxdepth 1 -name '*partial*')"
}

# The packages of the Python tests are asked for by name only, and are no reason for a build to fail.
python_packages_offline() {
  fill_cache "$box/cache"
  shim "$box/shims" dpkg-query "$all_installed"

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "${no_network[@]}" "$setup" --python >"$box/out" 2>"$box/err"
  local code=$?

  expect "exit code 8, not $code" test $code = 8
  expect "the words" says "offline without a cache" "$box/err"
  expect "the command" says "tools/setup.sh --python" "$box/err"
  expect "size and free disk first" says "MB free there" "$box/out"
  expect "nothing half-made" test -z "$(find "$box/cache" -mindepth 1 -maxdepth 1 -name '*python*' -not -name '*.lock')"
  expect "no folder to import from" test -z "$(TESSERA_CACHE=$box/cache "$setup" --where-python)"
}

python_packages_present() {
  fill_cache "$box/cache"
  shim "$box/shims" dpkg-query "$all_installed"
  local entry
  entry=$box/cache/python-$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  mkdir -p "$entry"/site-packages/{torch,nvidia}
  cp "$(dirname "$setup")/../wheels-python.txt" "$entry"

  PATH=$box/shims:$PATH TESSERA_CACHE=$box/cache "${no_network[@]}" "$setup" --python >"$box/out" 2>&1
  expect "exit code 0" test $? = 0
  expect "nothing to say" test ! -s "$box/out"
  expect "the folder" test "$(TESSERA_CACHE=$box/cache "$setup" --where-python)" = "$entry/site-packages"
  echo 'numpy==1' >>"$entry/wheels-python.txt"
  expect "none that was made from another list" test -z "$(TESSERA_CACHE=$box/cache "$setup" --where-python)"
}

claim "the packages follow the system" packages_by_system
claim "a system that was not tried is named in one sentence, and tried" unknown_system
claim "a system without dpkg is named in one sentence, and tried" without_dpkg
claim "a cmake or compiler that is too old gives way to a newer one" old_programs
claim "no compiler is chosen where all are too old" no_new_compiler
claim "a newer cmake is fetched where the system's is too old" old_cmake_is_fetched
claim "with everything present set-up calls neither apt nor sudo nor pip, and is quick" present_cache
claim "offline without a cache is said in those words" offline_without_cache
claim "a missing package without sudo names the apt line and calls nothing" missing_package_without_sudo
claim "root installs what is missing, and only that" missing_package_as_root
claim "a failing apt-get names the packages" failing_apt
claim "an unwritable cache folder gives way to the next" unwritable_cache
claim "too little disk is said with both numbers before the download" full_disk
claim "Ctrl-C in the middle of the download leaves nothing half-made" ctrl_c
claim "what a killed set-up left behind is cleared away" killed_before
claim "packages of the Python tests that cannot be downloaded are named" python_packages_offline
claim "packages of the Python tests that are there are found, unless another list made them" python_packages_present
claims_done
