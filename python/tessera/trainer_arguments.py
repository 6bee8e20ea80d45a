# SPDX-License-Identifier: Apache-2.0
"""transformers.TrainingArguments as a configuration: each argument is followed, idle, or refused by name."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError

_OPTIMIZERS = {
    "adamw_torch": "AdamW",
    "adamw_torch_fused": "AdamW",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "lion_32bit": "Lion",
    "rmsprop": "RMSprop",
}
#: Arguments that config_of() or TesseraTrainer follows.
FOLLOWED = {
    "activation_checkpointing",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "bf16",
    "dataloader_drop_last",
    "deepspeed",
    "eval_on_start",
    "eval_steps",
    "eval_strategy",
    "fp16",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "greater_is_better",
    "label_names",
    "label_smoothing_factor",
    "learning_rate",
    "load_best_model_at_end",
    "logging_first_step",
    "logging_steps",
    "logging_strategy",
    "lr_scheduler_kwargs",
    "lr_scheduler_type",
    "max_grad_norm",
    "max_steps",
    "metric_for_best_model",
    "num_train_epochs",
    "optim",
    "output_dir",
    "per_device_eval_batch_size",
    "per_device_train_batch_size",
    "prediction_loss_only",
    "remove_unused_columns",
    "report_to",
    "resume_from_checkpoint",
    "save_steps",
    "save_strategy",
    "save_total_limit",
    "seed",
    "train_sampling_strategy",
    "warmup_steps",
    "weight_decay",
}
#: Arguments of what tessera does in another way, or always: any value is accepted, and changes nothing.
IDLE = {
    "accelerator_config": "tessera shards and exchanges itself",
    "activation_checkpointing_kwargs": "blocks are always recomputed in the same way",
    "dataloader_in_order": "samples are always read in order",
    "dataloader_multiprocessing_context": "samples are read in the process of the rank",
    "dataloader_num_workers": "samples are read in the process of the rank",
    "dataloader_persistent_workers": "samples are read in the process of the rank",
    "dataloader_pin_memory": "a module trains on the CPU",
    "dataloader_prefetch_factor": "samples are read in the process of the rank",
    "ddp_backend": "tessera exchanges gradients itself",
    "ddp_broadcast_buffers": "tessera exchanges gradients itself",
    "ddp_bucket_cap_mb": "tessera exchanges gradients itself",
    "ddp_find_unused_parameters": "the gradient of an unused parameter is zero",
    "ddp_static_graph": "tessera exchanges gradients itself",
    "ddp_timeout": "a lost rank ends the others at once",
    "disable_tqdm": "no bar is shown",
    "do_eval": "it is for scripts",
    "do_predict": "it is for scripts",
    "do_train": "it is for scripts",
    "eval_accumulation_steps": "predictions are in the memory of the host",
    "eval_use_gather_object": "predictions of all ranks are always gathered",
    "full_determinism": "it is always so",
    "gradient_checkpointing_kwargs": "blocks are always recomputed in the same way",
    "length_column_name": "it is for train_sampling_strategy",
    "local_rank": "the launcher says it",
    "log_level": "messages are Python's warnings",
    "log_level_replica": "messages are Python's warnings",
    "log_on_each_node": "rank 0 reports",
    "logging_dir": "monitors write to the folder of the run",
    "logging_nan_inf_filter": "a loss that is not finite ends the training",
    "overwrite_output_dir": "the same call goes on from the newest checkpoint",
    "project": "it is for trackio",
    "run_name": "a run is called as its folder",
    "save_safetensors": "it is always so",
    "skip_memory_metrics": "the peak memory is in every report",
    "tf32": "a module trains on the CPU",
    "torch_empty_cache_steps": "a module trains on the CPU",
    "use_cache": "training keeps no keys and values",
    "use_cpu": "a module trains on the CPU",
}
_BEST_OF_LOWER = ("loss", "perplexity", "error")


def word(value: Any) -> str:
    """The text of an enumeration's member, or of any value."""
    return str(getattr(value, "value", value))


def _default_of(args: Any, field: dataclasses.Field[Any], usual: Any) -> Any:
    if usual is not None and hasattr(usual, field.name):
        return getattr(usual, field.name)  # as __post_init__() of the class leaves it
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def refuse_others(args: Any) -> None:
    """Raises ConfigError for each argument that is neither followed nor idle and has another value than its default."""
    try:
        usual = type(args)(output_dir=args.output_dir)
    except Exception:  # a class of its own, with arguments that it needs
        usual = None
    for field in dataclasses.fields(args):
        if field.name in FOLLOWED or field.name in IDLE or field.name.startswith("_") or not field.init:
            continue
        value, default = getattr(args, field.name), _default_of(args, field, usual)
        if value is None or value == default or word(value) == word(default):
            continue
        raise ConfigError(
            f"{field.name}={value!r} of TrainingArguments is not supported", f"leave {field.name} at {word(default)!r}"
        )


def _read_base(given: Any) -> dict[str, Any]:
    """A configuration of DeepSpeed or tessera: a dictionary, or a file, which may have comments and commas too many."""
    if not isinstance(given, (str, Path)):
        return json.loads(json.dumps(given or {}))
    path = Path(given)
    if not path.is_file():
        raise ConfigError(f"the configuration {path} is not a file", "name a file, or give a dictionary")
    text = re.sub(r'("(?:[^"\\]|\\.)*")|//[^\n]*', lambda found: found[1] or "", path.read_text(encoding="utf-8"))
    text = re.sub(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', lambda found: found[1] or "", text)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", "mend it: tessera config explain shows what it may contain") from error


def _without_auto(value: Any, filled: Mapping[str, Any]) -> Any:
    """The value with what TrainingArguments say in place of "auto"; what they do not say is left to its default."""
    if not isinstance(value, dict):
        return value
    out = {}
    for key, each in value.items():
        if each == "auto":
            if filled.get(key) is not None:
                out[key] = filled[key]
        else:
            out[key] = _without_auto(each, filled)
    return out


def _optimizer(args: Any) -> dict[str, Any]:
    asked = word(args.optim)
    if asked not in _OPTIMIZERS:
        raise ConfigError(f"optim={asked!r} is not supported", f"use one of {', '.join(_OPTIMIZERS)}")
    kind = _OPTIMIZERS[asked]
    params: dict[str, Any] = {"lr": args.learning_rate, "weight_decay": args.weight_decay}
    if kind in ("AdamW", "Lion"):
        params["betas"] = [args.adam_beta1, args.adam_beta2]
    if kind == "AdamW":
        params["eps"] = args.adam_epsilon
    return {"type": kind, "params": params}


def recomputes(args: Any) -> bool:
    """True if activations are to be recomputed: the argument has had two names."""
    return bool(getattr(args, "gradient_checkpointing", None) or getattr(args, "activation_checkpointing", None))


def _shuffles(args: Any) -> bool:
    strategy = word(getattr(args, "train_sampling_strategy", "random"))
    if strategy not in ("random", "sequential"):
        raise ConfigError(f"train_sampling_strategy={strategy!r} is not supported", 'use "random" or "sequential"')
    return strategy == "random"


def _every(strategy: Any, steps: float, name: str) -> int | str:
    kind = word(strategy)
    if kind == "epoch":
        return "epoch"
    if kind != "steps":
        raise ConfigError(f"{name}={kind!r} is not supported", 'use "steps", "epoch" or "no"')
    if steps < 1:
        raise ConfigError(f"{steps} is a part of the training, which is not supported here", "give a number of steps")
    return int(steps)


def _monitors(args: Any) -> list[str]:
    out = []
    for monitor in args.report_to if isinstance(args.report_to, list) else [args.report_to]:
        if monitor in (None, "none", "all"):
            continue
        if monitor not in ("tensorboard", "wandb"):
            raise ConfigError(f"report_to={monitor!r} is not supported", 'use "tensorboard", "wandb" or "none"')
        out.append(monitor)
    return out


def config_of(args: Any, batch_ranks: int, *, evaluates: bool, base: Any = None) -> dict[str, Any]:
    """The configuration that says what TrainingArguments say, over ``base`` or their ``deepspeed``. Raises ConfigError for
    arguments that are not supported."""
    refuse_others(args)
    optimizer = _optimizer(args)
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * batch_ranks
    sizes = {
        "train_micro_batch_size_per_gpu": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "train_batch_size": rows,
    }
    said = {**optimizer["params"], "warmup_min_lr": 0, "warmup_max_lr": args.learning_rate}
    out = _without_auto(_read_base(base if base is not None else args.deepspeed), said)
    out.setdefault("optimizer", optimizer)
    out.update(sizes)
    out["gradient_clipping"] = args.max_grad_norm or 0.0
    for name in ("bf16", "fp16"):
        if getattr(args, name):
            out[name] = {**out.get(name, {}), "enabled": True}
    if recomputes(args):
        out.setdefault("activation_checkpointing", {"enabled": True})
    out["trainer"] = {"seed": args.seed}
    if args.max_steps > 0:
        out["trainer"]["max_steps"] = args.max_steps
    else:
        out["trainer"]["epochs"] = args.num_train_epochs
    out["data"] = {"drop_last": args.dataloader_drop_last, "shuffle": _shuffles(args)}
    out.setdefault("run", {})["dir"] = str(args.output_dir)
    out["eval"] = {"micro_batch": args.per_device_eval_batch_size}
    if evaluates and word(args.eval_strategy) != "no":
        out["eval"]["every"] = _every(args.eval_strategy, args.eval_steps or args.logging_steps, "eval_strategy")
    saves = word(args.save_strategy)
    out["checkpoint"] = {"final": saves != "no", "every_minutes": 0}
    if saves not in ("no", "best"):
        out["checkpoint"]["every"] = _every(args.save_strategy, args.save_steps, "save_strategy")
    if args.save_total_limit is not None:
        out["checkpoint"]["keep"] = args.save_total_limit
    for monitor in _monitors(args):
        out.setdefault(monitor, {"enabled": True})
    return out


def schedule_of(args: Any, steps: int) -> dict[str, Any]:
    """The schedule of the learning rate for a training of ``steps`` updates."""
    warmup = args.warmup_steps
    if 0 < warmup < 1:
        warmup = -(-warmup * steps // 1)
    params = {"num_warmup_steps": int(warmup), "num_training_steps": steps}
    return {"type": word(args.lr_scheduler_type), "params": {**params, **(args.lr_scheduler_kwargs or {})}}


def best_metric_of(args: Any) -> tuple[str, bool] | None:
    """The metric that decides which evaluation is the best, and whether higher is better; None: nothing asks for it."""
    if not (args.load_best_model_at_end or word(args.save_strategy) == "best" or args.metric_for_best_model):
        return None
    name = args.metric_for_best_model or "loss"
    name = name if name.startswith("eval_") else f"eval_{name}"
    greater = args.greater_is_better
    return name, not name.endswith(_BEST_OF_LOWER) if greater is None else greater
