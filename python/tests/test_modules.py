# SPDX-License-Identifier: Apache-2.0
"""Torch modules in training: the same losses as torch's own loop and as tessera train, and the same bits in every layout.

Run: PYTHONPATH=python TESSERA_PROGRAM=build/release/bin/tessera python3 -m unittest discover -s python/tests
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
from pathlib import Path

import tessera

try:
    import torch

    WHY = "" if torch.__version__.startswith("2.11.") else f"torch is {torch.__version__}, not 2.11"
except ImportError:
    torch = None
    WHY = "torch is not installed"
try:
    import transformers
except ImportError:
    transformers = None

# Sums of fp32 in another order than torch's: relative to losses of about 4.
CLOSE = 1e-6
STEPS = 10
LENGTH = 32
VOCAB = 256
TEXT = "".join(f"the cat {i} sat on mat {i * 7 % 13}. " for i in range(400))


def gpt2(dropout=0.0, layers=2):
    torch.manual_seed(3)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=layers,
            n_embd=32,
            n_head=2,
            vocab_size=VOCAB,
            n_positions=LENGTH,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def config(stage=0, micro=2, **changes):
    return {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": micro,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "trainer": {"max_steps": STEPS},
        "run": {"threads_per_rank": 1},
        **changes,
    }


def batch_of(step):
    """Windows of the text as tessera train cuts them: the label of a token is the one after it."""
    tokens = torch.tensor(list(TEXT.encode()))
    rows = [tokens[i * LENGTH : i * LENGTH + LENGTH + 1] for i in range(step * 8, step * 8 + 8)]
    whole = torch.stack(rows)
    return {"input_ids": whole[:, :-1], "labels": whole[:, :-1], "shift_labels": whole[:, 1:].contiguous()}


def mlp():
    torch.manual_seed(5)
    return [torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)]


def square(output, batch):
    return ((output - batch[1]) ** 2).mean()


# What every rank of the layouts below runs: a training for each "stage:dropout". Writes its losses and a digest of its weights.
SCRIPT = """
import hashlib, json, sys
sys.path.insert(0, sys.argv[1])
import test_modules as t
import tessera
made = []
for layout in sys.argv[2:]:
    stage, dropout = layout.split(":")
    engine = tessera.initialize(t.gpt2(float(dropout)), t.config(int(stage)))
    losses = [engine.step(t.batch_of(step)) for step in range(4)]
    weights = engine.state_dict()
    engine.close()
    digest = hashlib.sha256(b"".join(weights[k].numpy().tobytes() for k in sorted(weights))).hexdigest()
    made.append([losses, digest])
if engine.is_leader:
    print(json.dumps(made))
"""


@unittest.skipIf(WHY, WHY)
class Modules(unittest.TestCase):
    def setUp(self):
        self._box = tempfile.TemporaryDirectory()
        self.addCleanup(self._box.cleanup)
        self.box = Path(self._box.name)
        warnings.simplefilter("error", UserWarning)
        torch.set_num_threads(1)

    def layouts(self, ranks, *layouts):
        script = self.box / "train.py"
        script.write_text(SCRIPT, encoding="utf-8")
        words = [str(tessera.program()), "launch", "-n", str(ranks), str(script), str(Path(__file__).parent)]
        done = subprocess.run(
            [*words, *layouts],
            capture_output=True,
            text=True,
            env={**os.environ, "TESSERA_PYTHON": sys.executable},
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1])

    def test_a_list_of_blocks_learns_as_in_torch(self):
        generator = torch.Generator().manual_seed(1)
        x, y = torch.randn(80, 6, generator=generator), torch.randn(80, 1, generator=generator)
        ours, theirs = mlp(), torch.nn.Sequential(*mlp())
        sgd = torch.optim.SGD(theirs.parameters(), lr=0.1)
        named = {"in": _Reads(ours[0]), "tanh": ours[1], "out": ours[2]}
        changes = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "gradient_clipping": 0}
        with tessera.initialize(named, config(**changes), loss=lambda out, b: ((out - b["y"]) ** 2).mean()) as engine:
            for step in range(STEPS):
                rows = slice(step * 8, step * 8 + 8)
                loss = engine.step({"x": x[rows], "y": y[rows]})
                sgd.zero_grad()
                expected = ((theirs(x[rows]) - y[rows]) ** 2).mean()
                expected.backward()
                sgd.step()
                self.assertAlmostEqual(loss, expected.item(), delta=CLOSE)
            self.assertTrue(engine.done)
        for mine, other in zip([*ours[0].parameters(), *ours[2].parameters()], theirs.parameters(), strict=True):
            self.assertLess((mine - other).abs().max().item(), CLOSE)

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_gpt2_is_cut_at_its_layers_and_learns_as_tessera_train(self):
        folder, text = self.box / "gpt2", self.box / "text.txt"
        model = gpt2()
        model.save_pretrained(folder)
        text.write_text(TEXT, encoding="utf-8")
        run = tessera.train(
            config(
                model={"from": str(folder)},
                tokenizer={"type": "byte"},
                data={"train": str(text), "sequence_length": LENGTH, "shuffle": False},
                run={"threads_per_rank": 1, "dir": str(self.box / "run")},
            ),
            progress=False,
        )
        expected = [step["loss"] for step in run.steps if "loss" in step]
        with tessera.initialize(model, config()) as engine:
            self.assertEqual([block.name for block in engine.parts.blocks], ["embedding", "transformer.h.0", "transformer.h.1", "head"])
            losses = [engine.step(batch_of(step)) for step in range(STEPS)]
        for ours, theirs in zip(losses, expected, strict=True):
            self.assertAlmostEqual(ours, theirs, delta=CLOSE * 4)
        with torch.no_grad():
            after = model(**batch_of(0)).loss.item()
        self.assertLess(after, losses[0])

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_models_are_cut_at_their_layers_by_structure(self):
        from tessera import parts

        sizes = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "vocab_size": 64,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        ids = {"input_ids": torch.tensor([[7, 6, 1, 2, 3]])}
        pixels = {"pixel_values": torch.ones(1, 3, 16, 16)}
        of = transformers
        cases = [
            (of.LlamaForCausalLM(of.LlamaConfig(**sizes)), ids, "model.layers", 0),
            (of.Gemma2ForCausalLM(of.Gemma2Config(**sizes, num_key_value_heads=1, head_dim=8)), ids, "model.layers", 1),
            (of.BertForMaskedLM(of.BertConfig(**sizes)), ids, "bert.encoder.layer", 1),
            (of.ViTForImageClassification(of.ViTConfig(**sizes, image_size=16, patch_size=8)), pixels, None, 0),
        ]
        for model, example, layers, tied in cases:
            with self.subTest(model=type(model).__name__):
                cut = parts.of_model(model, None, None, example)
                self.assertEqual(cut.why, "")
                self.assertEqual(len(cut.blocks), 4)
                self.assertEqual(len(cut.tied), tied)
                if layers is not None:
                    self.assertEqual(cut.blocks[1].name, f"{layers}.0")
                own = {name for block in cut.blocks for name, _ in block.params}
                self.assertEqual(own, {name for name, _ in model.named_parameters()})
        t5 = of.T5ForConditionalGeneration(of.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2))
        whole = parts.of_model(t5, None, None, t5.dummy_inputs)
        self.assertEqual(len(whole.blocks), 1)
        self.assertIn("2 lists of layers", whole.why)

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_every_layout_gives_the_same_bits(self):
        plain, dropped = self.layouts(1, "0:0", "3:0.1")
        self.assertNotEqual(plain, dropped)
        self.assertEqual(self.layouts(2, "0:0", "1:0", "2:0", "3:0", "1:0.1", "3:0.1"), [plain] * 4 + [dropped] * 2)
        self.assertEqual(self.layouts(4, "3:0", "0:0.1"), [plain, dropped])

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_recomputed_blocks_and_16_bits_train(self):
        plain = self.losses(gpt2(0.1), config())
        again = self.losses(gpt2(0.1), config(activation_checkpointing={"enabled": True}))
        self.assertEqual(again, plain)
        half = self.losses(gpt2(), config(bf16={"enabled": True}))
        self.assertLess(abs(half[-1] - self.losses(gpt2(), config())[-1]), 0.1)

    def losses(self, model, written, **named):
        with tessera.initialize(model, written, **named) as engine:
            return [engine.step(batch_of(step)) for step in range(4)]

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_the_three_calls_make_the_update_of_a_step(self):
        expected = self.losses(gpt2(), config(stage=1))
        with tessera.initialize(gpt2(), config(stage=1)) as engine:
            for step in range(4):
                batch = batch_of(step)
                losses = []
                for micro in range(4):
                    self.assertFalse(engine.is_gradient_accumulation_boundary())
                    loss = engine({key: value[micro * 2 : micro * 2 + 2] for key, value in batch.items()}).loss
                    engine.backward(loss)
                    losses.append(loss.item())
                    made = engine.step()
                self.assertAlmostEqual(made, sum(losses) / 4, delta=CLOSE)
                self.assertAlmostEqual(made, expected[step], delta=CLOSE * 4)
        with tessera.initialize(gpt2(), config(stage=3)) as engine, self.assertRaises(tessera.ConfigError) as caught:
            engine(batch_of(0))
        self.assertIn("stage 3", caught.exception.what)

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_a_run_folder_has_checkpoints_and_goes_on(self):
        run = {"threads_per_rank": 1, "dir": str(self.box / "run")}
        expected = self.losses(gpt2(), config())
        with tessera.initialize(gpt2(), config(stage=3, run=run), set={"trainer.max_steps": 2}) as engine:
            first = [engine.step(batch_of(step)) for step in range(2)]
            self.assertTrue(engine.done)
        with tessera.initialize(gpt2(), config(run=run), set={"trainer.max_steps": 4}) as engine:
            self.assertEqual(engine.steps, 2)
            second = [engine.step(batch_of(step)) for step in range(2, 4)]
        self.assertEqual(first + second, expected)
        self.assertEqual([step["loss"] for step in tessera.Run(self.box / "run").steps], expected)
        self.assertEqual(tessera.Run(self.box / "run").status["state"], "finished")

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_datasets_are_read_in_the_order_of_the_seed_and_evaluated(self):
        batches = [batch_of(step) for step in range(10)]
        samples = [{key: value[row] for key, value in batch.items()} for batch in batches for row in range(8)]
        seen = []
        with tessera.initialize(gpt2(), config(stage=3), dataset=samples, validation=samples[:6]) as engine:
            before = engine.evaluate()
            engine.fit(on_step=seen.append)
            after = engine.evaluate()
            folder = engine.save(self.box / "saved")
            weights = engine.state_dict()
            engine.save_pretrained(self.box / "hf")
        self.assertEqual([report["step"] for report in seen], list(range(1, STEPS + 1)))
        self.assertEqual(before["samples"], 6)
        self.assertLess(after["loss"], before["loss"])
        self.assertTrue((folder / "manifest.json").exists() or any(folder.iterdir()))
        again = transformers.GPT2LMHeadModel.from_pretrained(self.box / "hf")
        for name, value in again.state_dict().items():
            self.assertTrue(torch.equal(value, weights[name]), name)

    def test_mistakes_are_exceptions_that_say_what_and_how(self):
        linear = torch.nn.Linear(4, 4)
        with torch.device("meta"):
            meta = torch.nn.Linear(4, 4)
        cases = [
            (lambda: tessera.initialize(meta, config()), "weight is on meta", "to_empty"),
            (lambda: tessera.initialize(torch.nn.BatchNorm1d(4), config()), "running statistics", "LayerNorm"),
            (lambda: tessera.initialize([], config()), "is empty", "at least one"),
            (lambda: tessera.initialize(linear, config(), layers="layer"), "layers='layer'", "leave it out"),
            (lambda: tessera.initialize(linear, config(), optimizer=torch.optim.SGD(linear.parameters(), lr=0.5)), "SGD", '"lr": 0.5'),
            (lambda: tessera.initialize([linear], config(optimizer={"type": "AdamX"})), "AdamX", ""),
            (lambda: tessera.initialize([linear], config(tokenizer={"type": "byte"})), "tokenizer", "remove"),
            (lambda: tessera.initialize([linear], config(parallel={"pipeline": {"stages": 2}})), "pipeline", ""),
            (lambda: tessera.initialize([linear], config(run={"device": "cuda"})), "run.device", "remove"),
        ]
        for call, what, fix in cases:
            with self.subTest(what=what), self.assertRaises(tessera.ConfigError) as caught:
                call()
            self.assertIn(what, str(caught.exception))
            self.assertIn(fix, str(caught.exception))

    def test_a_module_without_a_loss_and_errors_of_a_module_reach_the_caller(self):
        class Breaks(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(2))

            def forward(self, batch):
                raise ZeroDivisionError("of the module")

        class Vector(Breaks):
            def forward(self, batch):
                return batch["x"] * self.weight

        batch = {"x": torch.ones(8, 2)}
        with tessera.initialize([Vector()], config()) as engine, self.assertRaises(tessera.ConfigError) as caught:
            engine.step(batch)
        self.assertIn("returns no loss", caught.exception.what)
        with tessera.initialize([Breaks()], config()) as engine:
            with self.assertRaisesRegex(ZeroDivisionError, "of the module"):
                engine.step(batch)
            with self.assertRaisesRegex(tessera.ConfigError, "the batch has 4 samples"):
                engine.step({"x": torch.ones(4, 2)})

    def test_another_torch_is_named(self):
        from unittest import mock

        from tessera import _native

        with mock.patch.object(_native, "_loaded", None), mock.patch("torch.__version__", "2.10.1+cpu"):
            with self.assertRaisesRegex(tessera.SystemFailure, r"torch is 2\.10\.1.*2\.11"):
                tessera.initialize([torch.nn.Linear(4, 4)], config())

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_frozen_parameters_stay_and_are_no_hindrance_to_a_cut(self):
        expected = None
        for stage in (0, 3):
            model = gpt2()
            for name, param in model.named_parameters():
                param.requires_grad = "wpe" not in name and "h.0." not in name
            before = {name: value.clone() for name, value in model.state_dict().items()}
            losses = self.losses(model, config(stage))
            expected = expected or losses
            self.assertEqual(losses, expected)
            for name, param in model.named_parameters():
                self.assertEqual(torch.equal(param, before[name]), not param.requires_grad, name)

    def test_nothing_is_forked_and_the_allocator_stays(self):
        before = threading.active_count()
        with tessera.initialize([torch.nn.Linear(4, 4)], config(), loss=lambda out, b: out.mean()):
            self.assertEqual(threading.active_count(), before)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="utf-8")
        self.assertEqual(children, "")


class _Reads(torch.nn.Module if torch else object):
    """The first block of a list: it reads its input from the batch."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, batch):
        return self.module(batch["x"])


if __name__ == "__main__":
    unittest.main()
