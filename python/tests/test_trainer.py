# SPDX-License-Identifier: Apache-2.0
"""TesseraTrainer does what the TrainingArguments say, and refuses those that it does not follow."""

import dataclasses
import json
import os
import subprocess
import sys
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

# What each rank runs: writes the metrics of two evaluations.
METRICS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import test_trainer as t
import tessera, transformers

seen = {"eval_sum": []}

def metrics(prediction):
    seen["shape"], seen["labels"] = list(prediction.predictions.shape), prediction.label_ids.tolist()
    return {"sum": float(abs(prediction.predictions).sum())}

args = transformers.TrainingArguments(
    output_dir=sys.argv[2] + "/run-" + t.os.environ["WORLD_SIZE"], per_device_train_batch_size=4, max_steps=4, eval_strategy="steps",
    gradient_accumulation_steps=4 // int(t.os.environ["WORLD_SIZE"]), eval_steps=2, per_device_eval_batch_size=2, save_strategy="no",
    report_to="none", use_cpu=True, learning_rate=1e-2, lr_scheduler_type="constant")
trainer = tessera.TesseraTrainer(
    t.classifier(), args, train_dataset=t.data(64), eval_dataset=t.data(13), compute_metrics=metrics)
trainer.train()
seen["eval_sum"] = [line["eval_sum"] for line in trainer.state.log_history if "eval_sum" in line]
trainer.close()
if trainer.engine.is_leader:
    print(json.dumps(seen))
"""


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

    def test_every_argument_is_followed_or_idle_or_refused_by_name(self):
        from tessera import trainer_arguments as of

        fields = {field.name for field in dataclasses.fields(transformers.TrainingArguments) if field.init}
        self.assertFalse(of.FOLLOWED & set(of.IDLE))
        for name in sorted(fields - of.FOLLOWED - set(of.IDLE)):
            args = self.arguments()
            object.__setattr__(args, name, "another value")
            with self.subTest(name=name), self.assertRaisesRegex(tessera.ConfigError, f"^{name}='another value'"):
                of.config_of(args, 1, evaluates=False)
        for name, value in (("optim", "galore_adamw"), ("train_sampling_strategy", "group_by_length"), ("report_to", "mlflow")):
            with self.subTest(name=name), self.assertRaisesRegex(tessera.ConfigError, name):
                of.config_of(self.arguments(**{name: value}), 1, evaluates=False)
        args = self.arguments()
        args.average_tokens_across_devices = False  # the default is True
        with self.assertRaisesRegex(tessera.ConfigError, "average_tokens_across_devices"):
            of.config_of(args, 1, evaluates=False)

    def test_what_arguments_say_is_in_the_configuration(self):
        from tessera import trainer_arguments as of

        cases = [
            ({"learning_rate": 0.5}, "optimizer.params.lr", 0.5),
            ({"weight_decay": 0.1}, "optimizer.params.weight_decay", 0.1),
            ({"adam_beta1": 0.8, "adam_beta2": 0.9}, "optimizer.params.betas", [0.8, 0.9]),
            ({"adam_epsilon": 1e-6}, "optimizer.params.eps", 1e-6),
            ({"optim": "sgd"}, "optimizer.type", "SGD"),
            ({"per_device_train_batch_size": 3}, "train_micro_batch_size_per_gpu", 3),
            ({"gradient_accumulation_steps": 5}, "gradient_accumulation_steps", 5),
            ({"per_device_train_batch_size": 3, "gradient_accumulation_steps": 5}, "train_batch_size", 30),
            ({"max_grad_norm": 2.5}, "gradient_clipping", 2.5),
            ({"bf16": True}, "bf16.enabled", True),
            ({"gradient_checkpointing": True}, "activation_checkpointing.enabled", True),
            ({"seed": 9}, "trainer.seed", 9),
            ({"max_steps": 7}, "trainer.max_steps", 7),
            ({"num_train_epochs": 2.5}, "trainer.epochs", 2.5),
            ({"dataloader_drop_last": True}, "data.drop_last", True),
            ({"train_sampling_strategy": "sequential"}, "data.shuffle", False),
            ({"per_device_eval_batch_size": 6}, "eval.micro_batch", 6),
            ({"eval_strategy": "steps", "eval_steps": 4}, "eval.every", 4),
            ({"eval_strategy": "epoch"}, "eval.every", "epoch"),
            ({"save_strategy": "steps", "save_steps": 3}, "checkpoint.every", 3),
            ({"save_strategy": "no"}, "checkpoint.final", False),
            ({"save_total_limit": 2}, "checkpoint.keep", 2),
            ({"report_to": "tensorboard"}, "tensorboard.enabled", True),
            ({"deepspeed": {"zero_optimization": {"stage": 2}}}, "zero_optimization.stage", 2),
            (
                {"learning_rate": 0.25, "deepspeed": {"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}}},
                "optimizer.params",
                {"lr": 0.25, "betas": [0.9, 0.999]},
            ),
            ({"deepspeed": {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}}, "zero_optimization", {"stage": 3}),
        ]
        for changes, path, expected in cases:
            with self.subTest(changes=changes):
                base = changes.pop("deepspeed", None)  # as the argument, it needs DeepSpeed
                found = of.config_of(self.arguments(**changes), 2, evaluates=True, base=base)
                for key in path.split("."):
                    found = found[key]
                self.assertEqual(found, expected)
        file = self.box / "ds.json"
        file.write_text('{"zero_optimization": {"stage": 1,}, // as in many samples\n "steps_per_print": 5}', encoding="utf-8")
        self.assertEqual(of.config_of(self.arguments(), 1, evaluates=False, base=file)["zero_optimization"], {"stage": 1})
        args = self.arguments()
        args.deepspeed = {"zero_optimization": {"stage": 2}}
        self.assertEqual(of.config_of(args, 1, evaluates=False)["zero_optimization"], {"stage": 2})

    def test_label_smoothing_is_that_of_transformers(self):
        from transformers.trainer_pt_utils import LabelSmoother

        samples = data(16)
        trainer = tessera.TesseraTrainer(
            classifier(), self.arguments(max_steps=1, label_smoothing_factor=0.2), train_dataset=samples
        )
        loss = trainer.train()["loss"]
        trainer.close()
        x, labels = torch.tensor([each["x"] for each in samples]), torch.tensor([each["label"] for each in samples])
        expected = LabelSmoother(epsilon=0.2)(classifier()(x, labels), labels).item()
        self.assertAlmostEqual(loss, expected, delta=CLOSE)

    def test_the_best_model_is_kept_and_a_callback_ends_the_training(self):
        seen = []

        class Points(transformers.TrainerCallback):
            pass

        for point in ("init_end", "train_begin", "epoch_begin", "epoch_end", "evaluate", "save", "train_end"):
            setattr(Points, f"on_{point}", lambda self, args, state, control, point=point, **more: seen.append(point))

        values = iter([0.5, 0.9, 0.7, 0.6])
        trainer = tessera.TesseraTrainer(
            classifier(),
            self.arguments(
                num_train_epochs=8,
                eval_strategy="epoch",
                save_strategy="epoch",
                load_best_model_at_end=True,
                metric_for_best_model="score",
                greater_is_better=True,
            ),
            train_dataset=data(64),
            eval_dataset=data(6),
            compute_metrics=lambda prediction: {"score": next(values)},
            callbacks=[Points, transformers.EarlyStoppingCallback(early_stopping_patience=2)],
        )
        last = trainer.train()
        self.assertEqual(last["step"], 16)  # four epochs: two without a gain
        self.assertEqual((trainer.state.best_metric, trainer.state.best_global_step), (0.9, 8))
        self.assertEqual(trainer.engine.steps, 8)
        self.assertEqual(seen.count("epoch_begin"), 5)
        self.assertEqual([seen.count(each) for each in ("evaluate", "epoch_end", "save", "train_end")], [4, 4, 4, 1])
        self.assertEqual(seen[:3], ["init_end", "train_begin", "epoch_begin"])
        trainer.close()
        self.assertEqual([path.name for path in (self.box / "run" / "best").glob("step-*")], ["step-00000008"])

    def test_metrics_are_of_the_predictions_of_all_ranks(self):
        script = self.box / "metrics.py"
        script.write_text(METRICS, encoding="utf-8")
        found = []
        for ranks in (1, 2):
            done = subprocess.run(
                [str(tessera.program()), "launch", "-n", str(ranks), str(script), str(Path(__file__).parent), str(self.box)],
                capture_output=True,
                text=True,
                env={**os.environ, "TESSERA_PYTHON": sys.executable},
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr[-4000:])
            found.append(json.loads(done.stdout.strip().splitlines()[-1]))
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0]["shape"], [13, 3])
        self.assertEqual(found[0]["labels"], [sample["label"] for sample in data(13)])
        self.assertEqual(len(found[0]["eval_sum"]), 2)

    def test_evaluations_inside_steps_are_without_dropout(self):
        class Drops(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(2)
                self.linear = torch.nn.Linear(4, 3)
                self.drop = torch.nn.Dropout(0.5)

            def forward(self, x, labels=None):
                return {"loss": torch.nn.functional.cross_entropy(self.linear(self.drop(x)), labels)}

        trainer = tessera.TesseraTrainer(
            Drops(),
            self.arguments(max_steps=2, eval_strategy="steps", eval_steps=2),
            train_dataset=data(32),
            eval_dataset=data(8),
        )
        inside = trainer.train()["eval_loss"]
        self.assertEqual(inside, trainer.evaluate()["eval_loss"])
        self.assertTrue(trainer.model.training)
        trainer.close()


if __name__ == "__main__":
    unittest.main()
