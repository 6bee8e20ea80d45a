#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# The Python package does what the program does, and its wheel works without the source tree.   usage: package_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
program=$(readlink -f "${1:?usage: package_test.sh PROGRAM}")
build=$(dirname "$(dirname "$program")")
libtorch=$(tools/setup.sh --where)
repository=$PWD
export OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=1

# TESSERA_PYTHON: one with torch 2.11 and transformers, without which the tests of torch modules are skipped.
python=${TESSERA_PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { echo 'there is no Python of 3.10 or later'; exit 77; }

the_package_passes_its_tests() {
  TESSERA_PROGRAM=$program PYTHONPATH=$repository/python "$python" -W error::ResourceWarning -m unittest discover -s python/tests \
    >"$box/out" 2>&1 || { cat "$box/out"; return 1; }
  expect "tests ran" grep -qE '^Ran [1-9][0-9]+ tests' "$box/out"
}

# As pip lays packages out; the installed torch is the one of the build.
a_wheel_trains_beside_an_installed_torch() {
  python3 tools/wheel.py "$build" "$box" >"$box/out" 2>&1 || { cat "$box/out"; return 1; }
  local site=$box/site
  python3 -m zipfile -e "$box"/tessera_train-*.whl "$site"
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

# notebook_runs NAME EXPECTED: runs a copy of the notebook in a folder of its own.
notebook_runs() {
  cd "$box" || return 1
  TESSERA_PROGRAM=$program PYTHONPATH=$repository/python "$python" "$repository/tests/python/run_notebook.py" \
    "$repository/examples/notebooks/$1.ipynb" >out 2>err || { cat out err; return 1; }
  expect "what it shows" says "$2" out
}

claim "the package passes its tests" the_package_passes_its_tests
claim "a wheel trains beside an installed torch, and names one that is missing or of another version" \
  a_wheel_trains_beside_an_installed_torch
claim "the notebook that pretrains runs" notebook_runs pretrain "model.safetensors"
claim "the notebook that fine-tunes on a csv runs" notebook_runs classify_a_csv "good"
if "$python" -c 'import torch, sys; sys.exit(not torch.__version__.startswith("2.11."))' 2>/dev/null; then
  claim "the notebook that trains a torch module runs" notebook_runs own_torch_module "table.weight"
else
  echo "skipped the notebook that trains a torch module: torch 2.11 is not installed"
fi
claims_done
