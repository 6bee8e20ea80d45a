# SPDX-License-Identifier: Apache-2.0
"""Plans, trains and uses a tiny model through the program."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import tessera


def config_of(box: Path, **changes):
    text = box / "my.txt"
    if not text.exists():
        text.write_text("the cat sat on the mat and ran. " * 200, encoding="utf-8")
    return {
        "model": {"family": "gpt2", "num_layers": 1, "hidden_size": 16, "num_heads": 2, "max_positions": 32},
        "data": {"train": str(text), "sequence_length": 32, "validation_fraction": 0.2},
        "train_batch_size": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "trainer": {"max_steps": 6},
        "eval": {"every": 3, "batches": 1},
        "run": {"dir": str(box / "run"), "threads_per_rank": 1},
        **changes,
    }


class Training(unittest.TestCase):
    def setUp(self):
        self._box = tempfile.TemporaryDirectory()
        self.addCleanup(self._box.cleanup)
        self.box = Path(self._box.name)

    def test_a_plan_starts_nothing(self):
        plan = tessera.plan(config_of(self.box), ranks=2, set={"trainer.seed": 5})
        # Tied embeddings, positions, one layer of 12 h^2 + 13 h, the last norm.
        self.assertEqual(plan.parameters, 256 * 16 + 32 * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16)
        self.assertEqual(plan.config["trainer"]["seed"], 5)
        self.assertIn("2 ranks", str(plan))
        self.assertFalse(plan.run_dir.exists())

    def test_steps_arrive_in_order_and_the_run_has_them(self):
        seen = []
        run = tessera.train(config_of(self.box), ranks=2, on_step=seen.append, progress=False)
        steps = [step["step"] for step in seen if "loss" in step]
        self.assertEqual(steps, [1, 2, 3, 4, 5, 6])
        self.assertEqual(run.steps, seen)
        self.assertTrue(any("eval_loss" in step for step in seen))
        self.assertEqual(run.status["state"], "finished")
        self.assertEqual(len(run.checkpoints) > 0, True)
        text = run.generate("the cat", max_new_tokens=3, temperature=0)
        self.assertEqual(run.generate(["the cat", "the mat"], max_new_tokens=3, temperature=0)[0], text)
        scores = run.score(["the cat", "sat on"])
        self.assertEqual([score["tokens"] for score in scores], [6, 5])
        template = self.box / "plain.jinja"
        template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8")
        answer = run.chat([{"role": "user", "content": "the cat"}], max_new_tokens=3, temperature=0, template=template)
        self.assertEqual(answer, text)
        ids = run.tokenizer.encode(["the cat", "s"])
        self.assertEqual(ids, [list(b"the cat"), list(b"s")])
        self.assertEqual(run.tokenizer.decode(ids), ["the cat", "s"])
        self.assertEqual(run.tokenizer.decode(run.tokenizer.encode("mat")), "mat")
        self.assertEqual(len(run.tokenizer), run.tokenizer.size)
        with self.assertRaisesRegex(tessera.DataError, "99999 is not an id"):
            run.tokenizer.decode([99999])
        folder = run.export(self.box / "hf")
        self.assertTrue((folder / "config.json").exists())

    def test_a_classifier_predicts_and_embeds(self):
        rows = [(word * 8, label) for word, label in (("a", "first"), ("z", "last"))] * 20
        table = self.box / "rows.csv"
        table.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows), encoding="utf-8")
        config = config_of(
            self.box,
            task="classify",
            data={"train": str(table), "sequence_length": 16},
            train_batch_size=8,
            optimizer={"type": "AdamW", "params": {"lr": 1e-2}},
            trainer={"max_steps": 20},
            eval={},
        )
        run = tessera.train(config, progress=False)
        said = run.predict([{"text": "zzzzzzzz"}, {"text": "aaaaaaaa"}])
        self.assertEqual([each["label"] for each in said], ["last", "first"], said)
        if importlib.util.find_spec("numpy") is None:
            self.skipTest("numpy is not installed")
        found = run.embed(["aaaa", "zzzz", "aaaa"], pooling="mean", normalize=True)
        self.assertEqual(found.shape, (3, 16))
        for row in found:
            self.assertAlmostEqual(float(row @ row), 1.0, places=5)
        self.assertEqual(found[0].tolist(), found[2].tolist())
        self.assertNotEqual(found[0].tolist(), found[1].tolist())

    def test_mistakes_are_exceptions_with_their_places(self):
        config = config_of(self.box, modle={}, trainer={"max_steps": -1})
        with self.assertRaises(tessera.ConfigError) as caught:
            tessera.train(config)
        self.assertEqual({problem.key for problem in caught.exception.problems}, {"modle", "trainer.max_steps"})
        self.assertTrue(all(problem.place.endswith(tuple("0123456789")) for problem in caught.exception.problems))
        with self.assertRaises(tessera.DataError):
            tessera.plan(config_of(self.box, data={"train": str(self.box / "none.txt"), "validation_fraction": 0.2}))
        with self.assertRaises(tessera.FormatError):
            tessera.Run(self.box / "none")

    def test_a_callback_that_raises_stops_the_training_after_it_saved_and_the_same_call_resumes(self):
        config = config_of(self.box, trainer={"max_steps": 4000})

        class Enough(Exception):
            pass

        def until(step):
            if step.get("step", 0) >= 3:
                raise Enough

        with self.assertRaises(Enough):
            tessera.train(config, on_step=until, progress=False)
        saved = tessera.Run(self.box / "run")
        reached = saved.steps[-1]["step"]
        self.assertLess(reached, 4000)
        self.assertGreater(len(saved.checkpoints), 0)
        seen = []
        tessera.train(config, set={"trainer.max_steps": reached + 2}, on_step=seen.append, progress=False)
        self.assertEqual([step["step"] for step in seen if "loss" in step], [reached + 1, reached + 2])

    def test_an_interrupt_saves_and_leaves_no_process(self):
        config = config_of(self.box, trainer={"max_steps": 100000})
        (self.box / "c.json").write_text(json.dumps(config), encoding="utf-8")
        code = (
            "import sys, tessera\n"
            "def show(step): print(step['step'], flush=True)\n"
            "try: tessera.train(sys.argv[1], on_step=show, progress=False)\n"
            "except KeyboardInterrupt: print('stopped', flush=True)\n"
        )
        script = subprocess.Popen(
            [sys.executable, "-c", code, str(self.box / "c.json")], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        script.stdout.readline()
        script.send_signal(signal.SIGINT)
        with script:
            rest = script.communicate(timeout=100)[0].split()
        self.assertTrue(rest[-1].endswith("stopped"), rest[-1])  # after a number whose line it interrupted
        self.assertGreater(len(tessera.Run(self.box / "run").checkpoints), 0)

    def test_a_notebook_shows_a_bar_if_ipywidgets_is_there(self):
        from tessera.progress import progress_for

        shown = []
        bars = SimpleNamespace(
            IntProgress=lambda **named: SimpleNamespace(value=0, **named),
            Label=lambda: SimpleNamespace(value=""),
            HBox=lambda parts: parts,
        )
        notebook = {
            "IPython": SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())),
            "IPython.display": SimpleNamespace(display=shown.append),
        }
        (self.box / "config.json").write_text('{"trainer": {"max_steps": 40}}', encoding="utf-8")
        with mock.patch.dict(sys.modules, {**notebook, "ipywidgets": bars}):
            progress = progress_for(self.box)
            progress.show({"step": 7, "loss": 1.5})
            progress.show({"step": 7, "eval_loss": 1.0})
        bar, label = shown[0]
        self.assertEqual((bar.max, bar.value, label.value), (40, 7, "step 7, loss 1.5000"))
        with mock.patch.dict(sys.modules, {**notebook, "ipywidgets": None}):
            progress_for(self.box).show({"step": 1, "loss": 1.0})  # nothing
        self.assertEqual(len(shown), 1)

    def test_importing_takes_a_few_hundredths_of_a_second(self):
        took = []
        for _ in range(5):
            code = "import time; b = time.process_time(); import tessera; print(time.process_time() - b)"
            took.append(float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout))
        self.assertLess(min(took), 0.3)

    def test_importing_starts_no_thread_and_loads_no_torch(self):
        code = (
            "import sys, threading, tessera\n"
            "from tessera import *\n"
            "assert 'initialize' in dir(tessera)\n"
            "assert threading.active_count() == 1\n"
            "assert not {'torch', 'numpy', 'pandas'} & set(sys.modules), 'a library was loaded'\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
        # Trainings leave none either; progress bars of other libraries have one that watches them.
        left = [thread.name for thread in threading.enumerate() if not type(thread).__module__.startswith("tqdm")]
        self.assertEqual(left, ["MainThread"])


if __name__ == "__main__":
    unittest.main()
