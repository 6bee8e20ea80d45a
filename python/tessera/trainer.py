# SPDX-License-Identifier: Apache-2.0
"""TesseraTrainer: the constructor and the common arguments of transformers.Trainer, over tessera.initialize()."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .batches import default_collate, shifts_labels
from .engine import Engine, initialize
from .errors import ConfigError
from .predictions import Predictions
from .trainer_arguments import best_metric_of, config_of, schedule_of, word

_STATE = "trainer_state.json"


class TesseraTrainer:
    """Trains as transformers.Trainer does: TesseraTrainer(model, args, train_dataset=..., data_collator=...).train().

    ``args``: transformers.TrainingArguments. Those that have no effect in tessera are refused unless they have their
    defaults. ``output_dir`` is a run folder, from whose newest checkpoint the same call goes on. ``compute_metrics``: called
    on every rank with the predictions of all of them; ``preprocess_logits_for_metrics(logits, labels)``: what is kept of them.
    ``config``: a configuration with further keys, tessera's or DeepSpeed's, for which TrainingArguments(deepspeed=...) needs
    DeepSpeed installed; "auto" is what ``args`` say.
    ``compute_loss(output, batch)`` and ``count(batch)``: as loss and count of tessera.initialize(). ``callbacks``: objects of
    transformers.TrainerCallback, of whose points those around substeps and the optimizer are not called; they may set
    should_log, should_evaluate, should_save and should_training_stop of the control.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: Any,
        data_collator: Callable[[list[Any]], Mapping[str, Any]] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_metrics: Callable[[Any], Mapping[str, float]] | None = None,
        callbacks: Sequence[Any] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        config: str | Path | dict[str, Any] | None = None,
        compute_loss: Callable[[Any, Mapping[str, Any]], torch.Tensor] | None = None,
        count: Callable[[Mapping[str, Any]], float] | None = None,
    ):
        if train_dataset is None:
            raise ConfigError("there is no train_dataset", "give anything with len() and [i], or any iterable of dictionaries")
        if isinstance(eval_dataset, Mapping):
            raise ConfigError("eval_dataset is several datasets, which is not supported", "give one of them")
        self.model = model
        self.args = args
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.processing_class = processing_class
        self.compute_metrics = None if args.prediction_loss_only else compute_metrics
        self.callbacks = [callback() if isinstance(callback, type) else callback for callback in callbacks or []]
        self._collator = data_collator or self._default_collator()
        self._columns = self._known_columns()
        self._best = best_metric_of(args)
        if self._best is not None and (eval_dataset is None or word(args.eval_strategy) == "no"):
            raise ConfigError(
                "the best model is asked for, and nothing is evaluated", "give eval_dataset and set eval_strategy"
            )
        written = config_of(args, _ranks(), evaluates=eval_dataset is not None, base=config)
        if "scheduler" not in written:
            written["scheduler"] = schedule_of(args, self._planned_steps(written))
        self.engine: Engine = initialize(
            model,
            written,
            dataset=train_dataset,
            validation=eval_dataset,
            collate=self._collate,
            loss=compute_loss or self._smoothed_loss(),
            count=count,
            name="TrainingArguments",
        )
        self._predictions = Predictions(
            args.label_names or ["labels"],
            getattr(getattr(model, "config", None), "keys_to_ignore_at_inference", None) or (),
            preprocess_logits_for_metrics,
        )
        if self.compute_metrics is not None:
            self.engine._seen = self._predictions.add
        self._evaluations = 0  #: inside steps
        self._saved_step = 0
        self.state, self.control = self._first_state()
        if args.resume_from_checkpoint not in (None, False, True, ""):
            self.engine.load(args.resume_from_checkpoint)
        self._tell("on_init_end")

    # What the constructor makes of its arguments --------------------------------------------------------------------------

    def _default_collator(self) -> Callable[[list[Any]], Mapping[str, Any]]:
        if self.processing_class is None:
            return default_collate
        from transformers import DataCollatorWithPadding

        return DataCollatorWithPadding(self.processing_class)

    def _known_columns(self) -> set[str] | None:
        parameters = inspect.signature(self.model.forward).parameters
        if not self.args.remove_unused_columns:
            return None
        return {*parameters, "label", "label_ids", "labels", *(self.args.label_names or [])}

    def _collate(self, samples: list[Any]) -> Mapping[str, Any]:
        if self._columns is not None and samples and isinstance(samples[0], Mapping):
            samples = [{key: value for key, value in sample.items() if key in self._columns} for sample in samples]
        batch = dict(self._collator(samples))
        if "label" in batch and "labels" not in batch:
            batch["labels"] = batch.pop("label")
        return batch

    def _smoothed_loss(self) -> Callable[[Any, Mapping[str, Any]], torch.Tensor] | None:
        if not self.args.label_smoothing_factor:
            return None
        from transformers.trainer_pt_utils import LabelSmoother

        smoother, shifts = LabelSmoother(epsilon=self.args.label_smoothing_factor), shifts_labels(self.model)
        return lambda output, batch: smoother(output, batch["labels"], shift_labels=shifts)

    def _planned_steps(self, written: dict[str, Any]) -> int:
        if self.args.max_steps > 0:
            return self.args.max_steps
        if not hasattr(self.train_dataset, "__len__"):
            raise ConfigError("train_dataset has no length, and max_steps is not set", "set max_steps")
        samples, batch = len(self.train_dataset), written["train_batch_size"]
        each = samples // batch if self.args.dataloader_drop_last else -(-samples // batch)
        return max(1, int(each * self.args.num_train_epochs))

    def _first_state(self) -> tuple[Any, Any]:
        from transformers.trainer_callback import TrainerControl, TrainerState

        engine, path = self.engine, Path(self.args.output_dir) / _STATE
        state = TrainerState()
        if engine.steps > 0 and path.exists():  # the training goes on
            state = TrainerState.load_from_json(str(path))
        state.is_world_process_zero = state.is_local_process_zero = engine.is_leader
        state.max_steps = engine.max_steps or 0
        state.num_train_epochs = self.args.num_train_epochs
        state.train_batch_size = self.args.per_device_train_batch_size
        state.global_step = engine.steps
        return state, TrainerControl()

    # Training ---------------------------------------------------------------------------------------------------------

    def _tell(self, point: str, **more: Any) -> None:
        for callback in self.callbacks:
            function = getattr(callback, point, None)
            if function is None:
                continue
            changed = function(
                self.args, self.state, self.control, model=self.model, processing_class=self.processing_class, **more
            )
            self.control = self.control if changed is None else changed

    def train(self, resume_from_checkpoint: str | Path | bool | None = None) -> dict[str, Any]:
        """Trains to the end and returns the report of the last step. The model has the trained weights after close(); those of
        the best evaluation with load_best_model_at_end. ``resume_from_checkpoint``: a checkpoint in place of the newest one
        in output_dir. Collective."""
        if resume_from_checkpoint and not isinstance(resume_from_checkpoint, bool):
            self.engine.load(resume_from_checkpoint)
            self.state.global_step = self.engine.steps
        self._tell("on_train_begin")
        if self.args.eval_on_start and self.engine.steps == 0 and self.eval_dataset is not None:
            self.evaluate()
        epoch = None
        while not self.engine.done and not self.control.should_training_stop:
            if epoch is None:
                self._tell("on_epoch_begin")
            self.control.should_log = self.control.should_evaluate = self.control.should_save = False
            self._tell("on_step_begin")
            self._predictions.clear()
            self.engine.step()
            report = self.engine.last
            before = epoch if epoch is not None else _epochs(report["epoch"]) - (1 if _ends_epoch(report["epoch"]) else 0)
            epoch = _epochs(report["epoch"])
            self.state.global_step, self.state.epoch = report["step"], report["epoch"]
            self._tell("on_step_end")
            self._after_step(report)
            if epoch > before:
                self._tell("on_epoch_end")
                if not self.engine.done:
                    self._tell("on_epoch_begin")
        self._tell("on_train_end")
        last = self.engine.last
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            self.engine.finish()
            self.engine.load(self.state.best_model_checkpoint)
        return last

    def _after_step(self, report: dict[str, Any]) -> None:
        if self.control.should_log or self._logs_now(report["step"]):
            logs = {name: report[key] for name, key in _LOGGED}
            self.state.log_history.append({**logs, "step": report["step"]})
            self._tell("on_log", logs=logs)
        if report["evaluations"] > self._evaluations:
            self._evaluations = report["evaluations"]
            self._evaluated(report["eval_loss"])
        elif self.control.should_evaluate and self.eval_dataset is not None:
            self.evaluate()
        if self.control.should_save and report["saved_step"] != report["step"]:
            self.engine.save(Path(self.args.output_dir) / "checkpoints")
            self._tell("on_save")
        elif report["saved_step"] not in (0, self._saved_step):
            self._tell("on_save")
        self._saved_step = report["saved_step"]

    def _logs_now(self, step: int) -> bool:
        if word(self.args.logging_strategy) == "epoch":
            return _ends_epoch(self.state.epoch)
        if word(self.args.logging_strategy) != "steps":
            return False
        return (self.args.logging_first_step and step == 1) or step % max(1, int(self.args.logging_steps)) == 0

    # Evaluation -------------------------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """The loss over eval_dataset, and what compute_metrics makes of the predictions: {"eval_loss": ..., ...}.
        Collective."""
        self._predictions.clear()
        found = self.engine.evaluate()
        self._evaluations = found["evaluations"]
        return self._evaluated(found["loss"])

    def _evaluated(self, loss: float) -> dict[str, float]:
        metrics = {"eval_loss": loss}
        if self.compute_metrics is not None:
            from transformers import EvalPrediction

            predicted, labels = self._predictions.of_all_ranks(self.engine)
            self._predictions.clear()
            made = self.compute_metrics(EvalPrediction(predictions=predicted, label_ids=labels))
            metrics.update({f"eval_{key.removeprefix('eval_')}": value for key, value in made.items()})
        self.state.log_history.append({**metrics, "step": self.engine.steps})
        self._tell("on_evaluate", metrics=metrics)  # a callback compares them with the best ones before
        if self._best is not None:
            self._note_best(metrics)
        self._save_state()
        return metrics

    def _note_best(self, metrics: Mapping[str, float]) -> None:
        assert self._best is not None
        name, greater = self._best
        if name not in metrics:
            raise ConfigError(
                f"metric_for_best_model is {name}, and an evaluation gives {', '.join(metrics)}",
                "name one of these, or return it from compute_metrics",
            )
        best, found = self.state.best_metric, metrics[name]
        if best is not None and not (found > best if greater else found < best):
            return
        self.state.best_metric, self.state.best_global_step = found, self.engine.steps
        if not (self.args.load_best_model_at_end or word(self.args.save_strategy) == "best"):
            return
        folder = self.engine.save(Path(self.args.output_dir) / "best")
        self.state.best_model_checkpoint = str(folder)
        if self.engine.is_leader:
            for other in folder.parent.glob("step-*"):
                if other != folder:
                    shutil.rmtree(other)

    def _save_state(self) -> None:
        if self.engine.is_leader and word(self.args.save_strategy) != "no":
            path = Path(self.args.output_dir) / _STATE
            draft = path.with_suffix(".draft")
            self.state.save_to_json(str(draft))
            os.replace(draft, path)

    def save_model(self, output_dir: str | Path | None = None) -> Path:
        """Writes the model for Hugging Face, and the tokenizer if it was given. Call it on every rank, before close()."""
        path = self.engine.save_pretrained(output_dir or Path(self.args.output_dir) / "model")
        if self.processing_class is not None and self.engine.is_leader:
            self.processing_class.save_pretrained(path)
        return path

    def close(self) -> int:
        """Ends the training; the model has its trained weights."""
        self._save_state()
        return self.engine.close()


_LOGGED = (("loss", "loss"), ("grad_norm", "grad_norm"), ("learning_rate", "lr"), ("epoch", "epoch"))
_NEARLY = 1e-9


def _epochs(epoch: float) -> int:
    """The epochs that are over."""
    return int(epoch + _NEARLY)


def _ends_epoch(epoch: float) -> bool:
    return abs(epoch - round(epoch)) < _NEARLY


def _ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))
