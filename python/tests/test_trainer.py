# SPDX-License-Identifier: Apache-2.0
"""TesseraTrainer does what the TrainingArguments say, and refuses those that it does not follow."""

import tempfile
import unittest
import warnings
from pathlib import Path

import tessera

try:
    import torch
    import transformers

    WHY = "" if torch.__version__.startswith("2.11.") else f"torch is {torch.__version__}, not 2.11"
except ImportError as missing:
    torch = None
    WHY = f"{missing.name} is not installed"

CLOSE = 1e-6


def classifier():
    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.first = torch.nn.Linear(4, 16)
            self.second = torch.nn.Linear(16, 3)

        def forward(self, x, labels=None):
            logits = self.second(torch.tanh(self.first(x)))
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    return Classifier()


def data(count):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, 4, generator=generator)
    return [{"x": row.tolist(), "label": int(row[:3].argmax()), "unused": "text"} for row in x]


@unittest.skipIf(WHY, WHY)
class Trainer(unittest.TestCase):
    def setUp(self):
        self._box = tempfile.TemporaryDirectory()
        self.addCleanup(self._box.cleanup)
        self.box = Path(self._box.name)
        warnings.simplefilter("ignore")

    def arguments(self, **changes):
        return transformers.TrainingArguments(
            **{
                "output_dir": str(self.box / "run"),
                "per_device_train_batch_size": 8,
                "gradient_accumulation_steps": 2,
                "learning_rate": 1e-2,
                "num_train_epochs": 3,
                "lr_scheduler_type": "linear",
                "warmup_steps": 2,
                "logging_steps": 2,
                "save_strategy": "no",
                "report_to": "none",
                "use_cpu": True,
                **changes,
            }
        )

    def test_it_learns_with_the_schedule_of_the_arguments_and_calls_back(self):
        class Counts(transformers.TrainerCallback):
            steps, logs, metrics = 0, [], []

            def on_step_end(self, args, state, control, **more):
                Counts.steps += 1

            def on_log(self, args, state, control, logs=None, **more):
                Counts.logs.append(logs)

            def on_evaluate(self, args, state, control, metrics=None, **more):
                Counts.metrics.append(metrics)

        def accuracy(prediction):
            return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}

        model = classifier()
        trainer = tessera.TesseraTrainer(
            model,
            self.arguments(eval_strategy="epoch"),
            train_dataset=data(160),
            eval_dataset=data(30),
            compute_metrics=accuracy,
            callbacks=[Counts],
        )
        before = trainer.evaluate()
        last = trainer.train()
        after = trainer.evaluate()
        trainer.close()

        self.assertEqual(last["step"], 30)
        self.assertEqual(Counts.steps, 30)
        self.assertEqual(len(Counts.logs), 15)
        # Linear with two steps of warm-up: update k has the rate after k - 1 steps of the schedule.
        self.assertAlmostEqual(Counts.logs[0]["learning_rate"], 1e-2 / 2, delta=CLOSE)
        self.assertAlmostEqual(last["lr"], 1e-2 / 28, delta=CLOSE)
        self.assertEqual(len(Counts.metrics), 5)  # three epochs, and the two calls above
        self.assertLess(after["eval_loss"], before["eval_loss"])
        self.assertGreater(after["eval_accuracy"], before["eval_accuracy"])
        with torch.no_grad():
            held = data(30)
            x = torch.tensor([sample["x"] for sample in held])
            labels = torch.tensor([sample["label"] for sample in held])
            self.assertAlmostEqual(model(x, labels)["loss"].item(), after["eval_loss"], delta=CLOSE)

    def test_saves_go_on_and_evaluations_are_in_the_run(self):
        changes = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 2}
        for steps in (4, 6):
            trainer = tessera.TesseraTrainer(
                classifier(),
                self.arguments(max_steps=steps, lr_scheduler_type="constant", **changes),
                train_dataset=data(160),
                eval_dataset=data(30),
            )
            trainer.train()
            trainer.close()
        run = tessera.Run(self.box / "run")
        self.assertEqual([step["step"] for step in run.steps if "loss" in step], [1, 2, 3, 4, 5, 6])
        self.assertEqual([step["step"] for step in run.steps if "eval_loss" in step][:2], [2, 4])
        self.assertGreater(len(run.checkpoints), 0)

    def test_any_iterable_of_dictionaries_is_data(self):
        samples = data(64)
        trainer = tessera.TesseraTrainer(classifier(), self.arguments(max_steps=4), train_dataset=(each for each in samples))
        self.assertEqual(trainer.train()["step"], 4)
        with self.assertRaisesRegex(tessera.ConfigError, "max_steps is not set"):
            tessera.TesseraTrainer(classifier(), self.arguments(), train_dataset=(each for each in samples))
        trainer.close()

    def test_arguments_that_it_does_not_follow_are_refused_by_name(self):
        for name, value in (("label_smoothing_factor", 0.1), ("neftune_noise_alpha", 5.0), ("optim", "galore_adamw")):
            with self.subTest(name=name), self.assertRaisesRegex(tessera.ConfigError, name):
                tessera.TesseraTrainer(classifier(), self.arguments(**{name: value}), train_dataset=data(16))


if __name__ == "__main__":
    unittest.main()
