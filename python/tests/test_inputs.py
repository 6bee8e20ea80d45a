# SPDX-License-Identifier: Apache-2.0
"""What tessera.initialize() takes as data, loss and model, what it refuses, and what importing tessera leaves alone."""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tessera

try:
    import torch

    WHY = "" if torch.__version__.startswith("2.11.") else f"torch is {torch.__version__}, not 2.11"
except ImportError:
    torch = None
    WHY = "torch is not installed"
try:
    import datasets
except ImportError:
    datasets = None

CLOSE = 1e-6
CONFIG = {
    "train_batch_size": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "trainer": {"max_steps": 3},
    "run": {"threads_per_rank": 1},
}

# Prints by how many bytes the memory of rank 0 grows by a training of LAYERS matrices of WIDTH x WIDTH.
LAYERS, WIDTH = 8, 1024
MEMORY = """
import sys, torch, tessera
from tessera import _native
def resident():  # with its share of what ranks share
    with open("/proc/self/smaps_rollup") as file: return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
class Reads(torch.nn.Module):
    def forward(self, batch): return batch["x"]
torch.set_num_threads(1)
torch.nn.Linear(WIDTH, WIDTH)(torch.ones(2, WIDTH)).sum().backward()  # what torch itself needs
_native.library()
before = resident()
blocks = [Reads(), *(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))]
config = {"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "run": {"threads_per_rank": 1},
          "zero_optimization": {"stage": int(sys.argv[1]), "stage3_param_persistence_threshold": 0}}
with tessera.initialize(blocks, config, loss=lambda out, batch: (out ** 2).mean()) as engine:
    for _ in range(2): engine.step({"x": torch.ones(2, WIDTH)})
    if engine.is_leader: print(resident() - before, flush=True)
""".replace("WIDTH", str(WIDTH)).replace("LAYERS", str(LAYERS))


def samples(count=12):
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(3, generator=generator).tolist(), "y": float(at)} for at in range(count)]


if torch is not None:

    class Reads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, batch):
            return self.linear(batch["x"])

    class Tied(torch.nn.Module):
        """A block that uses the weight of another one."""

        def __init__(self, weight):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return torch.tanh(x) @ self.weight


def blocks():
    torch.manual_seed(4)
    first = Reads()
    return [first, Tied(first.linear.weight)]


def loss(output, batch):
    return ((output.sum(-1) - batch["y"]) ** 2).mean()


def in_child(queue):
    try:
        tessera.initialize(blocks(), CONFIG, loss=loss)
        queue.put("no error")
    except tessera.TesseraError as error:
        queue.put(f"{type(error).__name__}: {error}")


@unittest.skipIf(WHY, WHY)
class Inputs(unittest.TestCase):
    def setUp(self):
        self._box = tempfile.TemporaryDirectory()
        self.addCleanup(self._box.cleanup)
        self.box = Path(self._box.name)
        torch.set_num_threads(1)

    def losses(self, dataset, **named):
        with tessera.initialize(blocks(), {**CONFIG, "data": {"shuffle": False}}, dataset=dataset, loss=loss, **named) as engine:
            return [engine.step() for _ in range(3)]

    def by_torch(self):
        model, out = blocks(), []
        whole = torch.nn.Sequential(*model)
        sgd = torch.optim.SGD(whole.parameters(), lr=0.1)
        for step in range(3):
            rows = samples()[4 * step : 4 * step + 4]
            batch = {"x": torch.tensor([row["x"] for row in rows]), "y": torch.tensor([row["y"] for row in rows])}
            sgd.zero_grad()
            found = loss(whole(batch), batch)
            found.backward()
            sgd.step()
            out.append(found.item())
        return out

    def assertClose(self, found, expected):
        for mine, other in zip(found, expected, strict=True):
            self.assertAlmostEqual(mine / other, 1, delta=CLOSE)

    def test_lists_iterables_and_datasets_of_dictionaries_are_data_and_a_weight_may_be_tied(self):
        expected = self.by_torch()
        self.assertClose(self.losses(samples()), expected)
        self.assertClose(self.losses(each for each in samples()), expected)
        with self.subTest("collate"):
            collate = lambda rows: {key: torch.tensor([row[key] for row in rows]) for key in ("x", "y")}  # noqa: E731
            self.assertClose(self.losses(samples(), collate=collate), expected)
        if datasets is not None:
            table = datasets.Dataset.from_list(samples())
            self.assertClose(self.losses(table), expected)
            self.assertClose(self.losses(table.with_format("torch")), expected)
            self.assertClose(self.losses(table.to_iterable_dataset()), expected)
        with self.assertRaisesRegex(tessera.ConfigError, "the data ended after 6 samples"):
            self.losses(each for each in samples(6))

    def test_every_mistake_says_what_where_and_fix(self):
        half = torch.nn.Linear(3, 3)
        half.register_parameter("steps", torch.nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False))
        lazy = torch.nn.LazyLinear(3)
        file = self.box / "ds.json"
        file.write_text('{"train_batch_size": 4,\n "optimizr": {}}', encoding="utf-8")
        cases = [
            (lambda: tessera.initialize(blocks(), file, loss=loss), "ds.json:2:", "optimizer"),
            (lambda: tessera.initialize(blocks(), self.box / "none.json"), "none.json is not a file", "name a configuration"),
            (lambda: tessera.initialize([half], CONFIG), "steps is torch.int64", "buffer"),
            (lambda: tessera.initialize([lazy], CONFIG), "has no shape yet", "run the module once"),
            (lambda: tessera.initialize([3], CONFIG), "block 0 is a int", "torch.nn.Module"),
            (lambda: tessera.initialize(torch.nn.Tanh(), CONFIG), "has no parameters", "the module to train"),
            (lambda: self.with_config(parallel={"tensor": {"size": 1}, "pipeline": {"stages": 1}}, task="sft"), "task", "remove"),
            (lambda: self.with_config(data={"train": "my.txt"}), "data.train", "remove"),
            (lambda: self.with_config(scheduler={"type": "cosine"}, trainer={}), "needs the number of steps", "max_steps"),
            (lambda: self.losses([]), "", ""),
        ]
        for call, what, fix in cases:
            with self.subTest(what=what), self.assertRaises(tessera.TesseraError) as caught:
                call()
            self.assertIn(what, str(caught.exception))
            self.assertIn(fix, str(caught.exception))

    def with_config(self, **changes):
        return tessera.initialize(blocks(), {**CONFIG, **changes}, loss=loss)

    def test_parallelism_without_declared_axes_is_refused_by_name(self):
        script = self.box / "train.py"
        script.write_text(
            "import sys, torch, tessera\n"
            "try: tessera.initialize([torch.nn.Linear(4, 4)], {'train_batch_size': 4, 'parallel': {sys.argv[1]: int(sys.argv[2])}})\n"
            "except tessera.TesseraError as error: print(type(error).__name__, error, flush=True)\n",
            encoding="utf-8",
        )
        for key, said in (("tensor", "parallel.tensor"), ("pipeline", "parallel.pipeline"), ("context", "parallel.context")):
            done = subprocess.run(
                [str(tessera.program()), "launch", "-n", "2", str(script), key, "2"],
                capture_output=True,
                text=True,
                env={**os.environ, "TESSERA_PYTHON": sys.executable},
                check=False,
            )
            with self.subTest(key=key):
                self.assertIn(said, done.stdout + done.stderr)
                self.assertIn("fix: ", done.stdout + done.stderr)

    def test_a_fork_of_a_process_that_uses_tessera_is_refused(self):
        with tessera.initialize(blocks(), CONFIG, loss=loss):
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            child = context.Process(target=in_child, args=(queue,))
            child.start()
            said = queue.get(timeout=60)
            child.join()
        self.assertIn("SystemFailure: this process was forked", said)
        self.assertIn("tessera launch", said)

    def test_the_memory_of_stage_3_shrinks(self):
        script = self.box / "memory.py"
        script.write_text(MEMORY, encoding="utf-8")
        found = {}
        for stage in (0, 3):
            done = subprocess.run(
                [str(tessera.program()), "launch", "-n", "2", str(script), str(stage)],
                capture_output=True,
                text=True,
                # Freed blocks go back to the system, so that only what is used is counted.
                env={**os.environ, "TESSERA_PYTHON": sys.executable, "MALLOC_MMAP_THRESHOLD_": "131072"},
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            found[stage] = int(done.stdout.split()[-1])
        # Weights, gradients and two moments in fp32; stage 3 holds half of each, and whole weights and gradients of some of its
        # blocks.
        whole = 4 * LAYERS * WIDTH * WIDTH * 4
        self.assertGreater(found[0], whole)
        self.assertLess(found[3], 0.8 * found[0])

    def test_importing_leaves_threads_and_the_allocator_alone(self):
        code = (
            "import ctypes, os, torch, tessera, tessera.engine, tessera.trainer\n"
            "assert 'libtessera' not in open('/proc/self/maps').read(), 'the library was loaded'\n"
            "c10 = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), 'lib', 'libc10.so'))\n"
            "allocator = c10._ZN3c1015GetCPUAllocatorEv\n"
            "allocator.restype = ctypes.c_void_p\n"
            "torch.set_num_threads(1)\n"
            "before = allocator(), len(os.listdir('/proc/self/task')), torch.get_num_threads()\n"
            "assert before[0]\n"
            "from tessera import _native\n"
            "_native.library()\n"
            "assert (allocator(), len(os.listdir('/proc/self/task')), torch.get_num_threads()) == before\n"
            "config = {'train_batch_size': 2, 'run': {'threads_per_rank': 1}}\n"
            "with tessera.initialize([torch.nn.Linear(4, 4)], config, loss=lambda out, batch: out.mean()) as engine:\n"
            "    engine.step(torch.ones(2, 4))\n"
            "    assert allocator() == before[0], 'the allocator was replaced'\n"
            "assert not open(f'/proc/self/task/{os.getpid()}/children').read(), 'a process was started'\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_arguments_of_deepspeeds_launcher_are_added_once(self):
        import argparse

        parser = tessera.add_config_arguments(argparse.ArgumentParser())
        found = parser.parse_args(["--deepspeed", "--deepspeed_config", "ds.json", "--local_rank", "1"])
        self.assertEqual((found.deepspeed, found.deepspeed_config, found.local_rank), (True, "ds.json", 1))
        self.assertEqual(vars(parser.parse_args([]))["local_rank"], -1)


class Tensors(unittest.TestCase):
    def test_tensors_of_files_are_read_and_damaged_ones_refused(self):
        with tempfile.TemporaryDirectory() as box:
            path = Path(box) / "a.safetensors"
            header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
            body = len(header).to_bytes(8, "little") + header + b"\0\0\x80\x3f\0\0\0\x40"
            path.write_bytes(body)
            try:
                found = tessera.load_tensors(path)["w"]
            except ImportError:
                self.skipTest("numpy is not installed")
            self.assertEqual(found.tolist(), [1.0, 2.0])
            if torch is not None:
                self.assertEqual(torch.from_dlpack(found).tolist(), [1.0, 2.0])
            for damage in (b"", body[:4], body[:-1], b"\xff" * 16, (1 << 40).to_bytes(8, "little") + header, body[:8] + b"{" * len(header)):
                path.write_bytes(damage)
                with self.subTest(damage=damage[:12]), self.assertRaises(tessera.FormatError):
                    tessera.load_tensors(path)


if __name__ == "__main__":
    unittest.main()
