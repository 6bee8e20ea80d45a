# SPDX-License-Identifier: Apache-2.0
"""Under torchrun, accelerate launch and tessera launch, two ranks give the bits of one, and a rank that dies ends the others."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import tessera

try:
    import torch

    WHY = "" if torch.__version__.startswith("2.11.") else f"torch is {torch.__version__}, not 2.11"
except ImportError:
    WHY = "torch is not installed"
try:
    import accelerate
except ImportError:
    accelerate = None

# Each rank trains and writes its part of what it saw; rank 1 ends as told after the second step.
SCRIPT = """
import hashlib, json, os, signal, sys
import torch, tessera
torch.manual_seed(3 + int(os.environ.get("RANK", 0)))  # the weights of rank 0 count
class Reads(torch.nn.Module):
    def forward(self, batch): return batch["x"]
blocks = {"in": Reads(), "first": torch.nn.Linear(6, 16), "tanh": torch.nn.Tanh(), "out": torch.nn.Linear(16, 1)}
config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": int(sys.argv[1])},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "trainer": {"max_steps": 40}, "run": {"threads_per_rank": 1}}
engine = tessera.initialize(blocks, config, loss=lambda out, batch: ((out - batch["y"]) ** 2).mean())
generator = torch.Generator().manual_seed(1)
losses = []
for step in range(int(sys.argv[2])):
    batch = {"x": torch.randn(8, 6, generator=generator), "y": torch.randn(8, 1, generator=generator)}
    losses.append(engine.step(batch))
    if step == 1 and engine.rank == 1 and sys.argv[3:] == ["raises"]:
        raise ZeroDivisionError("of the script")
    if step == 1 and engine.rank == 1 and sys.argv[3:] == ["killed"]:
        os.kill(os.getpid(), signal.SIGKILL)
weights = engine.state_dict()
parts = engine.all_gather(bytes([engine.rank]) * (engine.rank + 1))
engine.close()
if engine.is_leader:
    digest = hashlib.sha256(b"".join(weights[k].numpy().tobytes() for k in sorted(weights))).hexdigest()
    print("RESULT", json.dumps([losses, digest, engine.world_size, [list(p) for p in parts]]), flush=True)
"""
LONG = 20_000
LIMIT_S = 100


def torchrun(ranks):
    # With an address, torchrun works on hosts that cannot resolve their own name.
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]


def accelerate_launch(ranks):
    # With --cpu it starts several ranks by mpirun only; this one starts them where there is no GPU, too.
    words = ["--multi_gpu", f"--num_processes={ranks}", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    return [sys.executable, "-m", "accelerate.commands.launch", *words, "--main_process_port=0"]


def tessera_launch(ranks):
    return [str(tessera.program()), "launch", "-n", str(ranks)]


@unittest.skipIf(WHY, WHY)
class Launchers(unittest.TestCase):
    def setUp(self):
        self._box = tempfile.TemporaryDirectory()
        self.addCleanup(self._box.cleanup)
        self.script = Path(self._box.name) / "train.py"
        self.script.write_text(SCRIPT, encoding="utf-8")

    def start(self, words, *arguments):
        env = {**os.environ, "TESSERA_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [*words, str(self.script), *map(str, arguments)],
            capture_output=True,
            text=True,
            env=env,
            check=False,
            timeout=LIMIT_S,
        )

    def result(self, words, stage):
        done = self.start(words, stage, 3)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        lines = [line for line in done.stdout.splitlines() if "RESULT " in line]
        self.assertEqual(len(lines), 1, done.stdout)
        return json.loads(lines[0].split("RESULT ", 1)[1])

    def test_two_ranks_give_the_bits_of_one_with_accumulation(self):
        losses, digest, ranks, parts = self.result([sys.executable], 0)
        self.assertEqual((ranks, parts), (1, [[0]]))
        launchers = {"torchrun": torchrun(2), "tessera launch": tessera_launch(2)}
        if accelerate is not None:
            launchers["accelerate"] = accelerate_launch(2)
        for stage, (name, words) in enumerate(launchers.items(), 1):
            with self.subTest(launcher=name):
                self.assertEqual(self.result(words, stage), [losses, digest, 2, [[0], [1, 1]]])

    def test_a_rank_that_dies_ends_the_others_and_is_named(self):
        for how, launcher, said in (
            ("raises", torchrun, "ZeroDivisionError: of the script"),
            ("killed", torchrun, "rank: 1"),
            ("raises", tessera_launch, "rank 1"),
            ("killed", tessera_launch, "rank 1"),
        ):
            with self.subTest(how=how, launcher=launcher.__name__):
                begin = time.monotonic()
                done = self.start(launcher(2), 2, LONG, how)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(said, " ".join(done.stderr.split()))
                self.assertNotIn("RESULT", done.stdout)
                self.assertLess(time.monotonic() - begin, LIMIT_S / 2)


if __name__ == "__main__":
    unittest.main()
