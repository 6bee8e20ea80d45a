#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A torch module in tessera.initialize() compared with torch's own loop: the time of a step at several widths by turns, the peak
# memory of two ranks compared with DistributedDataParallel, and the time of `import tessera`.
#
# usage: bench/run_torch_module.sh [ROUNDS]     PEERS: a Python that has torch 2.11 and transformers (default ~/peers/bin/python)
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-15}
source bench/by_turns.sh
ours tessera
theirs torch transformers
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} TESSERA_PROGRAM=$PWD/$bench OMP_NUM_THREADS=1

for width in 256 768; do
  printf 'width %s: ' "$width"
  "$peers" bench/peers/torch_module.py --width "$width" --rounds "$rounds"
done
for mode in ddp 0 1 2 3; do
  "$peers" -m torch.distributed.run --standalone --nproc-per-node 2 bench/peers/torch_module_memory.py "$mode" | grep ' at the peak'
done
"$peers" - <<'END'
import statistics, subprocess, sys
code = "import time; begin = time.process_time(); import tessera; print(time.process_time() - begin)"
seconds = [float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout) for _ in range(9)]
print(f"import tessera: {1e3 * statistics.median(seconds):.0f} ms of CPU time")
END
