# SPDX-License-Identifier: Apache-2.0
"""TesseraTrainer: the constructor and the common arguments of transformers.Trainer, over tessera.initialize()."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .engine import Engine, default_collate, initialize
from .errors import ConfigError

_OPTIMIZERS = {
    "adamw_torch": "AdamW",
    "adamw_torch_fused": "AdamW",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "lion_32bit": "Lion",
    "rmsprop": "RMSprop",
}
# Arguments that are followed, and those that concern only what tessera does in another way.
_FOLLOWED = {
    "output_dir",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "optim",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "bf16",
    "fp16",
    "seed",
    "gradient_checkpointing",
    "logging_strategy",
    "logging_steps",
    "logging_first_step",
    "eval_strategy",
    "eval_steps",
    "save_strategy",
    "save_steps",
    "save_total_limit",
    "report_to",
    "deepspeed",
    "dataloader_drop_last",
    "remove_unused_columns",
    "label_names",
    "do_train",
    "do_eval",
    "do_predict",
}
_IDLE = {
    "use_cpu",
    "disable_tqdm",
    "local_rank",
    "log_level",
    "log_level_replica",
    "log_on_each_node",
    "run_name",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "dataloader_persistent_workers",
    "dataloader_prefetch_factor",
    "ddp_backend",
    "ddp_bucket_cap_mb",
    "ddp_find_unused_parameters",
    "ddp_broadcast_buffers",
    "ddp_timeout",
    "prediction_loss_only",
    "skip_memory_metrics",
    "torch_empty_cache_steps",
    "average_tokens_across_devices",
    "use_cache",
    "overwrite_output_dir",
    "gradient_checkpointing_kwargs",
    "accelerator_config",
    "logging_dir",
    "logging_nan_inf_filter",
    "save_safetensors",
}


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))


def _refuse_others(args: Any) -> None:
    """Refuses arguments that have another value than their default and are not followed."""
    for field in dataclasses.fields(args):
        if field.name in _FOLLOWED | _IDLE or field.name.startswith("_") or not field.init:
            continue
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        value = getattr(args, field.name)
        if value in (None, False, "", [], {}) or value == default or _word(value) == _word(default):
            continue
        if isinstance(default, (dict, type(None))) and not isinstance(value, (bool, int, float, str)):
            continue  # made by TrainingArguments itself from its defaults
        raise ConfigError(
            f"{field.name}={value!r} of TrainingArguments is not supported", f"leave {field.name} at its default"
        )


def config_of(args: Any, batch_ranks: int, *, evaluates: bool) -> dict[str, Any]:
    """The configuration that says what TrainingArguments say. Raises ConfigError for arguments that are not supported."""
    _refuse_others(args)
    optimizer = _word(args.optim)
    if optimizer not in _OPTIMIZERS:
        raise ConfigError(f"optim={optimizer!r} is not supported", f"use one of {', '.join(_OPTIMIZERS)}")
    params: dict[str, Any] = {"lr": args.learning_rate, "weight_decay": args.weight_decay}
    if _OPTIMIZERS[optimizer] in ("AdamW", "Lion"):
        params["betas"] = [args.adam_beta1, args.adam_beta2]
    if _OPTIMIZERS[optimizer] == "AdamW":
        params["eps"] = args.adam_epsilon
    base = args.deepspeed or {}
    if isinstance(base, (str, Path)):
        base = json.loads(Path(base).read_text(encoding="utf-8"))
    out: dict[str, Any] = json.loads(json.dumps(base))
    out.setdefault("optimizer", {"type": _OPTIMIZERS[optimizer], "params": params})
    out["train_micro_batch_size_per_gpu"] = args.per_device_train_batch_size
    out["gradient_accumulation_steps"] = args.gradient_accumulation_steps
    out["train_batch_size"] = args.per_device_train_batch_size * args.gradient_accumulation_steps * batch_ranks
    out["gradient_clipping"] = args.max_grad_norm or 0.0
    for name in ("bf16", "fp16"):
        if getattr(args, name):
            out[name] = {**out.get(name, {}), "enabled": True}
    if args.gradient_checkpointing:
        out.setdefault("activation_checkpointing", {"enabled": True})
    out["trainer"] = {"seed": args.seed}
    if args.max_steps > 0:
        out["trainer"]["max_steps"] = args.max_steps
    else:
        out["trainer"]["epochs"] = args.num_train_epochs
    out["data"] = {"drop_last": args.dataloader_drop_last}
    out.setdefault("run", {})["dir"] = str(args.output_dir)
    out["eval"] = {"micro_batch": args.per_device_eval_batch_size}
    if evaluates and _word(args.eval_strategy) != "no":
        out["eval"]["every"] = _every(args.eval_strategy, args.eval_steps or args.logging_steps)
    saves = _word(args.save_strategy)
    out["checkpoint"] = {"final": saves != "no", "every_minutes": 0}
    if saves != "no":
        out["checkpoint"]["every"] = _every(args.save_strategy, args.save_steps)
    if args.save_total_limit is not None:
        out["checkpoint"]["keep"] = args.save_total_limit
    shown = args.report_to if isinstance(args.report_to, list) else [args.report_to]
    for monitor in shown:
        if monitor in (None, "none", "all"):
            continue
        if monitor not in ("tensorboard", "wandb"):
            raise ConfigError(f"report_to={monitor!r} is not supported", 'use "tensorboard", "wandb" or "none"')
        out.setdefault(monitor, {"enabled": True})
    return out


def _every(strategy: Any, steps: float) -> int | str:
    word = _word(strategy)
    if word == "epoch":
        return "epoch"
    if word != "steps":
        raise ConfigError(f"the strategy {word!r} is not supported", 'use "steps", "epoch" or "no"')
    if steps < 1:
        raise ConfigError(f"{steps} is a part of the training, which is not supported here", "give a number of steps")
    return int(steps)


def _schedule(args: Any, steps: int) -> dict[str, Any]:
    warmup = args.warmup_steps
    if 0 < warmup < 1:
        warmup = -(-warmup * steps // 1)
    params = {"num_warmup_steps": int(warmup), "num_training_steps": steps}
    extra = args.lr_scheduler_kwargs or {}
    return {"type": _word(args.lr_scheduler_type), "params": {**params, **extra}}


class TesseraTrainer:
    """Trains as transformers.Trainer does: TesseraTrainer(model, args, train_dataset=..., data_collator=...).train().

    ``args``: transformers.TrainingArguments. Those that have no effect in tessera are refused unless they have their
    defaults. ``output_dir`` is a run folder, from whose newest checkpoint the same call goes on. ``compute_loss(output,
    batch)`` and ``count(batch)``: as loss and count of tessera.initialize(). ``callbacks``: objects of
    transformers.TrainerCallback; the points on_train_begin, on_step_end, on_log, on_evaluate and on_train_end are called.
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
        *,
        compute_loss: Callable[[Any, Mapping[str, Any]], torch.Tensor] | None = None,
        count: Callable[[Mapping[str, Any]], float] | None = None,
    ):
        if train_dataset is None:
            raise ConfigError("there is no train_dataset", "give anything with len() and [i], or any iterable of dictionaries")
        self.model = model
        self.args = args
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.processing_class = processing_class
        self.compute_metrics = compute_metrics
        self.callbacks = [callback() if isinstance(callback, type) else callback for callback in callbacks or []]
        self._collator = data_collator or self._default_collator()
        self._columns = self._known_columns()
        self._ranks = _ranks()
        if compute_metrics is not None and self._ranks > 1:
            raise ConfigError(
                "compute_metrics needs the predictions of all ranks in one process, which is not supported",
                "train on one rank, or leave it out: the loss is evaluated on all ranks",
            )
        written = config_of(args, self._ranks, evaluates=eval_dataset is not None and compute_metrics is None)
        if "scheduler" not in written:
            written["scheduler"] = _schedule(args, self._planned_steps(written))
        self.engine: Engine = initialize(
            model,
            written,
            dataset=train_dataset,
            validation=eval_dataset,
            collate=self._collate,
            loss=compute_loss,
            count=count,
            name="TrainingArguments",
        )
        self.state, self.control = _state_of(self.engine)

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

    def _planned_steps(self, written: dict[str, Any]) -> int:
        if self.args.max_steps > 0:
            return self.args.max_steps
        if not hasattr(self.train_dataset, "__len__"):
            raise ConfigError("train_dataset has no length, and max_steps is not set", "set max_steps")
        samples, batch = len(self.train_dataset), written["train_batch_size"]
        each = samples // batch if self.args.dataloader_drop_last else -(-samples // batch)
        return max(1, int(each * self.args.num_train_epochs))

    def _tell(self, point: str, **more: Any) -> None:
        for callback in self.callbacks:
            function = getattr(callback, point, None)
            if function is not None:
                function(self.args, self.state, self.control, model=self.model, **more)

    def train(self) -> dict[str, Any]:
        """Trains to the end and returns the report of the last step. Weights are in the model afterwards."""
        self._tell("on_train_begin")
        while not self.engine.done and not self.control.should_training_stop:
            self.engine.step()
            report = self.engine.last
            self.state.global_step, self.state.epoch = report["step"], report["epoch"]
            self._tell("on_step_end")
            first = self.args.logging_first_step and report["step"] == 1
            if _word(self.args.logging_strategy) == "steps" and (first or report["step"] % max(1, int(self.args.logging_steps)) == 0):
                logs = {"loss": report["loss"], "grad_norm": report["grad_norm"], "learning_rate": report["lr"], "epoch": report["epoch"]}
                self.state.log_history.append({**logs, "step": report["step"]})
                self._tell("on_log", logs=logs)
            if self.compute_metrics is not None and self._evaluates_now(report):
                self.evaluate()
        self._tell("on_train_end")
        return self.engine.last

    def _evaluates_now(self, report: dict[str, Any]) -> bool:
        word = _word(self.args.eval_strategy)
        if self.eval_dataset is None or word == "no":
            return False
        if word == "steps":
            return report["step"] % int(self.args.eval_steps or self.args.logging_steps) == 0
        return report["epoch"] == int(report["epoch"])

    def evaluate(self) -> dict[str, float]:
        """The loss over eval_dataset, and what compute_metrics makes of the predictions: {"eval_loss": ..., ...}."""
        outputs: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

        def seen(micro: Any, samples: Sequence[int]) -> None:
            logits = micro.output["logits"] if isinstance(micro.output, Mapping) else micro.output.logits
            labels = micro.batch.get("labels")
            for row, sample in enumerate(samples):
                outputs[sample] = (logits[row].float(), None if labels is None else labels[row])

        self.engine._seen = seen if self.compute_metrics is not None else None
        try:
            found = self.engine.evaluate()
        finally:
            self.engine._seen = None
        metrics = {"eval_loss": found["loss"]}
        if self.compute_metrics is not None:
            from transformers import EvalPrediction

            rows = [outputs[sample] for sample in sorted(outputs)]
            labels = None if rows[0][1] is None else torch.stack([label for _, label in rows]).numpy()
            prediction = EvalPrediction(predictions=torch.stack([logits for logits, _ in rows]).numpy(), label_ids=labels)
            metrics.update({f"eval_{key.removeprefix('eval_')}": value for key, value in self.compute_metrics(prediction).items()})
        self.state.log_history.append({**metrics, "step": self.engine.steps})
        self._tell("on_evaluate", metrics=metrics)
        return metrics

    def save_model(self, output_dir: str | Path | None = None) -> Path:
        """Writes the model for Hugging Face, and the tokenizer if it was given. Call it on every rank, before close()."""
        path = self.engine.save_pretrained(output_dir or Path(self.args.output_dir) / "model")
        if self.processing_class is not None and self.engine.is_leader:
            self.processing_class.save_pretrained(path)
        return path

    def close(self) -> int:
        """Ends the training; the model has its trained weights."""
        return self.engine.close()


def _ranks() -> int:
    import os

    return int(os.environ.get("WORLD_SIZE", "1"))


def _state_of(engine: Engine) -> tuple[Any, Any]:
    from transformers.trainer_callback import TrainerControl, TrainerState

    state = TrainerState(is_world_process_zero=engine.is_leader, is_local_process_zero=engine.is_leader)
    state.max_steps = engine.max_steps or 0
    state.global_step = engine.steps
    return state, TrainerControl()
