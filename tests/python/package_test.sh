#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 600
# The Python package does what the program does, and its wheel works without the source tree.   usage: package_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
program=$(readlink -f "${1:?usage: package_test.sh PROGRAM}")
build=$(dirname "$(dirname "$program")")
libtorch=$(tools/setup.sh --where)
repository=$PWD
export OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=1
readonly kSystemPython=/usr/bin/python3

# The wheel is tested in a clean virtual environment, where pip installs it; torch, transformers and others come from the
# cache (tools/setup.sh --python). Without these, the tests of torch modules are skipped, and the package is that of the source
# tree. TESSERA_PYTHON: a Python with torch 2.11 and transformers instead, which imports the source tree.
packages=$(tools/setup.sh --where-python)
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
python3 tools/wheel.py "$build" "$work" >"$work/wheel.log" 2>&1 || { cat "$work/wheel.log"; exit 1; }
from_source=(env TESSERA_PROGRAM="$program" PYTHONPATH="$repository/python")

make_environment() {
  local pip
  "$kSystemPython" -m venv --without-pip "$1" || return 1
  printf '%s\n' "$packages" >"$(echo "$1"/lib/python3.*/site-packages)/packages-of-the-cache.pth"
  pip=$("$kSystemPython" -c 'import os, pip; print(os.path.dirname(pip.__file__))') || return 1
  env -u PYTHONPATH -u PYTHONDONTWRITEBYTECODE "$1/bin/python" "$pip" --disable-pip-version-check install --quiet --no-index --no-deps \
    "$work"/tessera_train-*.whl  # this torch has none of the libraries for GPUs that pip would bring with it
}

if [[ -n ${TESSERA_PYTHON:-} ]]; then
  run=("${from_source[@]}" "$TESSERA_PYTHON")
elif [[ -n $packages ]]; then
  make_environment "$work/venv" || { echo 'FAILED  the wheel is installed into a virtual environment'; exit 1; }
  run=(env -u PYTHONPATH -u TESSERA_PROGRAM -u LD_LIBRARY_PATH PATH="$work/venv/bin:$PATH" "$work/venv/bin/python")
else
  echo 'skipped what needs torch: tools/setup.sh --python was not run, or could not download it'
  run=("${from_source[@]}" python3)
fi
"${run[@]}" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { echo 'there is no Python of 3.10 or later'; exit 77; }

# passes LEAST MODULE...: at least as many tests ran, and none was skipped if the packages are there.
passes() {
  cp -r "$repository/python/tests" "$box/tests"  # beside no source tree
  cd "$box/tests" || return 1
  "${run[@]}" -W error::ResourceWarning -m unittest "${@:2}" >"$box/out" 2>&1 || { cat "$box/out"; return 1; }
  expect "$1 tests ran" test "$(sed -nE 's/^Ran ([0-9]+) tests? .*/\1/p' "$box/out")" -ge "$1"
  [[ -z $packages ]] || expect "none was skipped" test "$(grep -c 'skipped=' "$box/out")" = 0
}

# The types of the package hold, also for its users: a wrong argument is found.
types_are_consistent() {
  local site
  site=$("${run[@]}" -c 'import os, tessera; print(os.path.dirname(tessera.__file__))')
  # Without torch's own types, which mypy reads for minutes, what comes of torch is of any type.
  local words=(-m mypy --strict --no-warn-return-any --allow-untyped-decorators --allow-subclassing-any --no-site-packages
    --ignore-missing-imports --python-version 3.10 --cache-dir "$box/cache")
  "${run[@]}" "${words[@]}" "$site" >"$box/out" 2>&1 || { cat "$box/out"; return 1; }
  printf 'import tessera\n\nengine: int = tessera.initialize([], "ds.json")\ntessera.plan(3.5)\n' >"$box/user.py"
  (cd "$box" && MYPYPATH=$(dirname "$site") "${run[@]}" "${words[@]}" user.py >"$box/out" 2>&1)
  expect "the type of an engine" says 'expression has type "Engine"' "$box/out"
  expect "the type of a configuration" says 'Argument 1 to "plan" has incompatible type "float"' "$box/out"
  expect "no complaint besides these two" says "Found 2 errors" "$box/out"
}

# What a person does after pip install: the script, and a training of two ranks under a minute.
the_installed_program_trains() {
  cd "$box" || return 1
  printf 'the cat sat on the mat. %.0s' {1..100} >my.txt
  local begin=$SECONDS
  PATH=$work/venv/bin:$PATH
  unset TESSERA_PROGRAM LD_LIBRARY_PATH
  tessera version >out 2>&1 || { cat out; return 1; }
  expect "the version of the wheel" says "$("$work/venv/bin/python" -c 'import tessera; print(tessera.__version__)')" out
  tessera init nano --data my.txt >my.json 2>err || { cat err; return 1; }
  tessera train my.json -n 2 --set trainer.max_steps=2 >out 2>&1 || { cat out; return 1; }
  expect "the first training takes less than a minute" test $((SECONDS - begin)) -lt 60
  "$work/venv/bin/python" -c 'import tessera; assert "site-packages/tessera/bin" in str(tessera.program()), tessera.program()'
}

# As pip lays packages out; the installed torch is the one of the build.
a_wheel_trains_beside_an_installed_torch() {
  local site=$box/site
  python3 -m zipfile -e "$work"/tessera_train-*.whl "$site"
  chmod +x "$site/tessera/bin/tessera"
  expect "no path of this machine" test -z "$(readelf -d "$site/tessera/lib/libtessera.so" | grep -i runpath | grep "$libtorch")"
  cd "$box" || return 1
  local use=(env -u LD_LIBRARY_PATH -u TESSERA_PROGRAM PYTHONPATH="$site" python3 -S -c)
  "${use[@]}" 'import tessera; tessera.version()' >"$box/out" 2>&1
  expect "the missing torch is named" says "pip install torch==2.11.0" "$box/out"
  mkdir "$site/torch"
  ln -s "$libtorch/torch/lib" "$site/torch/lib"
  ln -s "$libtorch/nvidia" "$site/nvidia"
  printf "__version__ = '2.10.1+cpu'\n" | tee "$site/torch/version.py" >"$site/torch/__init__.py"
  "${use[@]}" 'import tessera; tessera.version()' >"$box/out" 2>&1
  expect "the wrong torch is named" says "torch is 2.10.1+cpu" "$box/out"
  printf "__version__ = '2.11.0+cpu'\n" >"$site/torch/version.py"
  printf 'the cat sat on the mat. %.0s' {1..100} >my.txt
  "${use[@]}" '
import tessera
config = {"model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2}, "data": {"train": "my.txt", "sequence_length": 8},
          "train_batch_size": 2, "trainer": {"max_steps": 2}}
run = tessera.train(config, ranks=2)
assert [step["step"] for step in run.steps] == [1, 2], run.steps
assert "site/tessera/bin" in str(tessera.program()), tessera.program()
' >"$box/out" 2>&1 || { cat "$box/out"; return 1; }
}

# Each library of the wheel has its licence, as its Debian package has it.
the_wheel_has_the_licences_of_its_libraries() {
  local site=$box/site library name file package number=0
  python3 -m zipfile -e "$work"/tessera_train-*.whl "$site"
  local licences=("$site"/tessera_train-*.dist-info/licenses)
  expect "our own" cmp "$repository/LICENSE" "${licences[0]}/LICENSE"
  for library in "$site"/tessera/lib/*.so.*; do
    name=$(basename "$library")
    if [[ $name == libdnnl.so* ]]; then
      expect "the licence of oneDNN" says "Apache License" "${licences[0]}/onednn/LICENSE"
      continue
    fi
    file=$(readlink -f "$(ldconfig -p | awk -v name="$name" '$1 == name {print $NF; exit}')")
    package=$(dpkg -S "$file" "${file#/usr}" 2>/dev/null | head -n 1 | cut -d: -f1)
    expect "the licence of $name, of $package" cmp "/usr/share/doc/$package/copyright" "${licences[0]}/$package/copyright"
    number=$((number + 1))
  done
  expect "there are such libraries" test "$number" -ge 5
}

# notebook_runs NAME EXPECTED: runs a copy of the notebook in a folder of its own.
notebook_runs() {
  cd "$box" || return 1
  "${run[@]}" "$repository/tests/python/run_notebook.py" "$repository/examples/notebooks/$1.ipynb" >out 2>err || { cat out err; return 1; }
  expect "what it shows" says "$2" out
}

claim "layer one passes its tests" passes 11 test_errors test_training
claim "layer two passes its tests" passes 30 test_modules test_trainer test_launchers test_inputs
claim "a wheel trains beside an installed torch, and names one that is missing or of another version" \
  a_wheel_trains_beside_an_installed_torch
if type dpkg >/dev/null 2>&1; then
  claim "the wheel has the licences of its libraries" the_wheel_has_the_licences_of_its_libraries
fi
if [[ -x $work/venv/bin/tessera ]]; then claim "the installed program trains" the_installed_program_trains; fi
if "${run[@]}" -m mypy --version >/dev/null 2>&1; then claim "the types of the package hold" types_are_consistent; fi
claim "the notebook that pretrains runs" notebook_runs pretrain "model.safetensors"
claim "the notebook that fine-tunes on a csv runs" notebook_runs classify_a_csv "good"
if "${run[@]}" -c 'import torch, sys; sys.exit(not torch.__version__.startswith("2.11."))' 2>/dev/null; then
  claim "the notebook that trains a torch module runs" notebook_runs own_torch_module "table.weight"
else
  echo "skipped the notebook that trains a torch module: torch 2.11 is not installed"
fi
claims_done
