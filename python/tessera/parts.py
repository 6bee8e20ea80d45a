# SPDX-License-Identifier: Apache-2.0
"""A torch module as the list of blocks that tessera trains: a list as it is, a transformers model cut at its layers, or any
other module as one block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .errors import ConfigError

Loss = Callable[[Any, Mapping[str, Any]], torch.Tensor]


class Micro:
    """A micro-batch, and what its blocks keep until its backward pass is done."""

    def __init__(self, batch: Mapping[str, Any], rows: int):
        self.batch = batch
        self.rows = rows
        self.count: float | None = None
        self.flows: dict[int, Any] = {}  #: by block: its input with numbers in place of its tensors
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []  #: of the layers, without their hidden states
        self.shapes: list[list[tuple[torch.Size, torch.dtype]]] = []  #: outputs of the modules before the layers
        self.saved: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}  #: by block: inputs and outputs
        self.output: Any = None  #: of the last block, kept only where it is asked for


@dataclass
class Block:
    """One block: ``run(inputs, micro)`` returns its output as a list of tensors; that of the last block is its loss."""

    name: str
    run: Callable[[list[torch.Tensor], Micro], list[torch.Tensor]]
    params: list[tuple[str, nn.Parameter]]


@dataclass
class Parts:
    """The blocks of a model. ``why``: the reason if a module could not be cut into its layers."""

    module: nn.Module
    blocks: list[Block]
    why: str = ""
    tied: set[int] = field(default_factory=set)  #: ids of parameters that several blocks use

    def __post_init__(self) -> None:
        seen: set[int] = set()
        for block in self.blocks:
            for _, param in block.params:
                (self.tied if id(param) in seen else seen).add(id(param))


class _Place:
    """Stands for tensor number ``at`` in the input of a block."""

    def __init__(self, at: int):
        self.at = at


def pack(value: Any) -> tuple[list[torch.Tensor], Any]:
    """The floating-point tensors of a value, and the value with places for them."""
    leaves, form = tree_flatten(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    numbers = iter(range(len(tensors)))
    places = [
        _Place(next(numbers)) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf for leaf in leaves
    ]
    return tensors, tree_unflatten(places, form)


def unpack(packed: Any, tensors: list[torch.Tensor]) -> Any:
    return tree_map(lambda leaf: tensors[leaf.at] if isinstance(leaf, _Place) else leaf, packed)


def loss_of(output: Any, batch: Mapping[str, Any], loss: Loss | None, name: str) -> torch.Tensor:
    """The loss of a model's output: what ``loss`` makes of it, its ``loss``, or the output itself if it is one number."""
    if loss is not None:
        found = loss(output, batch)
    elif isinstance(output, torch.Tensor):
        found = output
    elif isinstance(output, Mapping):
        found = output.get("loss")
    else:
        found = getattr(output, "loss", None)
        if found is None and isinstance(output, (tuple, list)) and output:
            found = output[0]
    if not isinstance(found, torch.Tensor) or found.dim() != 0 or not found.is_floating_point():
        got = f"a tensor of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        keys = ", ".join(batch) if isinstance(batch, Mapping) else type(batch).__name__
        raise ConfigError(
            f"{name} returns no loss: {got}, where one number is needed (the batch has {keys})",
            'give tessera.initialize() loss=lambda output, batch: ..., or put "labels" into the batch',
        )
    return found


def _named(module: nn.Module) -> dict[int, str]:
    return {id(param): name for name, param in module.named_parameters()}


def check(module: nn.Module) -> None:
    """Refuses modules that cannot be trained, by name."""
    for name, param in module.named_parameters():
        if param.is_meta:
            raise ConfigError(
                f"the parameter {name} is on meta: it has no values",
                "build the module on the CPU, or call module.to_empty(device='cpu') and initialize it",
            )
        if param.device.type != "cpu":
            raise ConfigError(f"the parameter {name} is on {param.device}", "move the module to the CPU: module.cpu()")
        if not param.is_floating_point():
            raise ConfigError(
                f"the parameter {name} is {param.dtype}, which has no gradient", "register it as a buffer instead"
            )
        if isinstance(param, nn.parameter.UninitializedParameter):
            raise ConfigError(f"the parameter {name} has no shape yet", "run the module once before tessera.initialize()")
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
            raise ConfigError(
                f"{name or type(part).__name__} keeps running statistics, which would depend on the ranks",
                "use LayerNorm or GroupNorm, or track_running_stats=False",
            )
    if next(module.parameters(), None) is None:
        raise ConfigError(f"{type(module).__name__} has no parameters", "give tessera.initialize() the module to train")


# Blocks that the caller lists -----------------------------------------------------------------------------------------


def of_list(modules: Sequence[nn.Module] | Mapping[str, nn.Module], loss: Loss | None) -> Parts:
    """A list of modules: the first is called with the batch, each other one with the output of the one before it; a tuple
    becomes its arguments. The last one is called with the batch besides, and returns the loss, unless ``loss`` makes it of
    its output."""
    named = dict(modules) if isinstance(modules, Mapping) else {str(i): module for i, module in enumerate(modules)}
    if not named:
        raise ConfigError("the list of blocks is empty", "give at least one module")
    for name, module in named.items():
        if not isinstance(module, nn.Module):
            raise ConfigError(f"block {name} is a {type(module).__name__}", "give torch.nn.Module objects")
    whole = nn.ModuleDict({name.replace(".", "_"): module for name, module in named.items()})
    names = _named(whole)
    last = len(named) - 1

    def runner(at: int, name: str, module: nn.Module) -> Callable[[list[torch.Tensor], Micro], list[torch.Tensor]]:
        def run(inputs: list[torch.Tensor], micro: Micro) -> list[torch.Tensor]:
            given = () if at == 0 else unpack(micro.flows[at], inputs)
            arguments = given if isinstance(given, tuple) else (given,)
            if at == 0:
                arguments = (micro.batch,)
            elif at == last and loss is None:
                arguments = (*arguments, micro.batch)
            output = module(*arguments)
            if at == last:
                micro.output = output
                return [loss_of(output, micro.batch, loss, f"block {name}")]
            tensors, micro.flows[at + 1] = pack(output)
            return tensors

        return run

    blocks = [
        Block(name, runner(at, name, module), [(names[id(p)], p) for p in module.parameters()])
        for at, (name, module) in enumerate(named.items())
    ]
    return Parts(whole, blocks)


# A module as a whole --------------------------------------------------------------------------------------------------


def _call(module: nn.Module, batch: Mapping[str, Any]) -> Any:
    return module(**batch) if isinstance(batch, Mapping) else module(batch)


def of_module(module: nn.Module, loss: Loss | None, why: str = "") -> Parts:
    """The module as one block."""

    def run(_inputs: list[torch.Tensor], micro: Micro) -> list[torch.Tensor]:
        output = _call(module, micro.batch)
        micro.output = output
        return [loss_of(output, micro.batch, loss, type(module).__name__)]

    return Parts(module, [Block("model", run, list(module.named_parameters()))], why)


# A model with layers --------------------------------------------------------------------------------------------------


class _Stop(Exception):
    """Ends a pass that has computed what it is for."""


class _CannotCut(Exception):
    pass


@contextmanager
def _instead(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replaces the forward of modules."""
    before = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, forward in before.items():
            if forward is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = forward


class _Touched(TorchDispatchMode):
    """Collects which of some tensors operations read."""

    def __init__(self, params: Mapping[int, str]):
        super().__init__()
        self.params = params
        self.found: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_flatten((args, kwargs or {}))[0]:
            if id(leaf) in self.params:
                self.found.add(id(leaf))
        return func(*args, **(kwargs or {}))


class _Cut:
    """A model as embedding, layers and head. Each of them is a pass of the model's own forward in which the other parts are
    replaced: the embedding's pass ends at the first layer, and records how the layers are called; the head's pass begins
    after the last one."""

    def __init__(self, module: nn.Module, layers: list[nn.Module], loss: Loss | None):
        self.module = module
        self.layers = layers
        self.loss = loss
        self.before: list[nn.Module] = []  #: modules with parameters that the embedding's pass runs
        self.as_tuple = False  #: layers return (hidden states, ...)

    @staticmethod
    def _split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, tuple[Any, ...], dict[str, Any]]:
        """The hidden states of a call, and the rest of it."""
        if args and isinstance(args[0], torch.Tensor):
            return args[0], args[1:], kwargs
        if "hidden_states" in kwargs:
            rest = dict(kwargs)
            return rest.pop("hidden_states"), args, rest
        raise _CannotCut("its layers are called without hidden states")

    def _result(self, hidden: torch.Tensor) -> Any:
        return (hidden,) if self.as_tuple else hidden

    def embed(self, micro: Micro) -> torch.Tensor:
        micro.calls, micro.shapes = [], [[] for _ in self.before]
        first: list[torch.Tensor] = []

        def stub(*args: Any, **kwargs: Any) -> Any:
            hidden, args, kwargs = self._split(args, kwargs)
            if not first:
                first.append(hidden)
            micro.calls.append((args, kwargs))
            if len(micro.calls) == len(self.layers):
                raise _Stop
            return self._result(hidden)

        def recorded(at: int, module: nn.Module) -> Callable[..., Any]:
            forward = module.forward

            def run(*args: Any, **kwargs: Any) -> Any:
                out = forward(*args, **kwargs)
                if not isinstance(out, torch.Tensor):
                    raise _CannotCut(f"{type(module).__name__} returns more than one tensor")
                micro.shapes[at].append((out.shape, out.dtype))
                return out

            return run

        forwards = dict.fromkeys(self.layers, stub)
        forwards.update({module: recorded(at, module) for at, module in enumerate(self.before)})
        try:
            with _instead(forwards):
                _call(self.module, micro.batch)
        except _Stop:
            return first[0]
        raise _CannotCut("its forward does not call all of its layers once")

    def layer(self, at: int, hidden: torch.Tensor, micro: Micro) -> torch.Tensor:
        args, kwargs = micro.calls[at]
        out = self.layers[at](hidden, *args, **kwargs)
        return out[0] if self.as_tuple else out

    def head(self, hidden: torch.Tensor, micro: Micro) -> Any:
        done = 0

        def stub(*_args: Any, **_kwargs: Any) -> Any:
            nonlocal done
            done += 1
            return self._result(hidden)

        def empty(at: int) -> Callable[..., Any]:
            shapes = iter(micro.shapes[at])

            def run(*_args: Any, **_kwargs: Any) -> torch.Tensor:
                shape, dtype = next(shapes)
                return torch.zeros((), dtype=dtype).expand(shape)

            return run

        forwards = dict.fromkeys(self.layers, stub)
        forwards.update({module: empty(at) for at, module in enumerate(self.before)})
        with _instead(forwards):
            output = _call(self.module, micro.batch)
        if done != len(self.layers):
            raise _CannotCut("its forward does not call all of its layers once")
        return output

    # The probe: one pass of the whole model, and one of the parts, which must give the same values.

    def probe(self, example: Mapping[str, Any]) -> list[set[int]]:
        """Finds what the parts are, and returns the parameters that each reads."""
        names = _named(self.module)
        seen: list[nn.Module] = []
        depth: list[nn.Module] = []
        order: list[nn.Module] = []

        def enters(module: nn.Module, _args: Any) -> None:
            if module in self.layers:
                order.append(module)
            elif not order and not any(parent in outermost for parent in depth):
                seen.append(module)
            depth.append(module)

        def leaves(module: nn.Module, _args: Any, out: Any) -> None:
            depth.pop()
            if module in self.layers:
                self.as_tuple = isinstance(out, tuple)

        ancestors = [m for m in self.module.modules() if any(layer in m.modules() for layer in self.layers)]
        inside = {id(part) for layer in self.layers for part in layer.modules()}
        outermost = [
            m
            for m in self.module.modules()
            if m not in ancestors and id(m) not in inside and next(m.parameters(), None) is not None
        ]
        handles = [m.register_forward_pre_hook(enters) for m in self.module.modules()]
        handles += [m.register_forward_hook(leaves, always_call=True) for m in self.module.modules()]
        try:
            with torch.no_grad():
                whole = _call(self.module, example)
        finally:
            for handle in handles:
                handle.remove()
        if order != self.layers:
            raise _CannotCut("its forward does not call its layers once each, in their order")
        self.before = [module for module in dict.fromkeys(seen) if module in outermost]

        micro = Micro(example, 1)
        touched: list[set[int]] = []
        with torch.no_grad():
            with _Touched(names) as mode:
                hidden = self.embed(micro)
            touched.append(mode.found)
            for at in range(len(self.layers)):
                with _Touched(names) as mode:
                    hidden = self.layer(at, hidden, micro)
                touched.append(mode.found)
            with _Touched(names) as mode:
                parts = self.head(hidden, micro)
            touched.append(mode.found)
        for ours, theirs in zip(self._values(parts), self._values(whole), strict=True):
            if not torch.equal(ours, theirs):
                raise _CannotCut("its parts do not compute what it computes as a whole")
        return touched

    @staticmethod
    def _values(output: Any) -> list[torch.Tensor]:
        output = output.to_tuple() if hasattr(output, "to_tuple") else output
        return [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, torch.Tensor)]

    def check_calls(self, example: Mapping[str, Any]) -> None:
        """Refuses layers that depend on more of what came before them than their hidden states."""
        micro = Micro(example, 1)
        with torch.enable_grad():
            self.embed(micro)
        for leaf in tree_flatten(micro.calls)[0]:
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                raise _CannotCut("its layers share values that have gradients, besides their hidden states")


def _layers_by_structure(module: nn.Module) -> list[nn.Module]:
    """The only list of equal layers in the module that is in no other one."""
    lists: list[list[nn.Module]] = []
    for part in module.modules():
        members = list(part) if isinstance(part, nn.ModuleList) else []
        inside = any(part in other.modules() for found in lists for other in found)
        if len(members) > 1 and not inside and len({type(member) for member in members}) == 1:
            lists.append(members)
    if not lists:
        raise _CannotCut("it has no list of equal layers")
    if len(lists) > 1:
        raise _CannotCut(f"it has {len(lists)} lists of layers")
    return lists[0]


def _layers_by_name(module: nn.Module, name: str) -> list[nn.Module]:
    try:
        found = module.get_submodule(name)
    except AttributeError:
        found = None
    if not isinstance(found, (nn.ModuleList, nn.Sequential)) or len(found) == 0:
        near = [n for n, part in module.named_modules() if isinstance(part, nn.ModuleList)]
        raise ConfigError(
            f"layers={name!r} is not a list of modules in {type(module).__name__}",
            f"name one of {', '.join(near)}" if near else "leave it out",
        )
    return list(found)


def of_model(
    module: nn.Module, loss: Loss | None, layers: str | None, example: Mapping[str, Any] | None
) -> Parts:
    """The module cut at its layers, if that is possible; with ``layers`` it must be."""
    try:
        found = _layers_by_name(module, layers) if layers is not None else _layers_by_structure(module)
        if example is None:
            raise _CannotCut("there is no example of a batch with which to try it")
        return _cut(module, found, loss, example)
    except _CannotCut as reason:
        if layers is not None:
            raise ConfigError(
                f"{type(module).__name__} cannot be cut at {layers}: {reason}",
                "leave layers out, to train it as one block, or give a list of blocks",
            ) from None
        return of_module(module, loss, str(reason))


def _cut(module: nn.Module, layers: list[nn.Module], loss: Loss | None, example: Mapping[str, Any]) -> Parts:
    cut = _Cut(module, layers, loss)
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        touched = cut.probe(example)
        cut.check_calls(example)
    except (_CannotCut, ConfigError):
        raise
    except Exception as error:  # the module's own: it does not take the example, or not in parts
        raise _CannotCut(f"it could not be tried: {error}") from error
    finally:
        for part, training in modes.items():
            part.training = training
    names = _named(module)
    # What no part reads is kept with the head, whose gradient for it is zero.
    touched[-1] |= set(names) - set().union(*touched)
    paths = {id(part): name for name, part in module.named_modules()}

    def embed(_inputs: list[torch.Tensor], micro: Micro) -> list[torch.Tensor]:
        return [cut.embed(micro)]

    def layer(at: int) -> Callable[[list[torch.Tensor], Micro], list[torch.Tensor]]:
        return lambda inputs, micro: [cut.layer(at, inputs[0], micro)]

    def head(inputs: list[torch.Tensor], micro: Micro) -> list[torch.Tensor]:
        output = cut.head(inputs[0], micro)
        micro.output = output
        return [loss_of(output, micro.batch, loss, type(module).__name__)]

    runs = [embed, *(layer(at) for at in range(len(layers))), head]
    titles = ["embedding", *(paths[id(part)] for part in layers), "head"]
    params = dict(module.named_parameters())
    blocks = [
        Block(title, run, [(name, params[name]) for name in params if id(params[name]) in mine])
        for title, run, mine in zip(titles, runs, touched, strict=True)
    ]
    return Parts(module, blocks)


# Roles of parameters --------------------------------------------------------------------------------------------------


def roles_of(module: nn.Module) -> dict[int, str]:
    """What each parameter is for an optimizer, by its id."""
    out: dict[int, str] = {}
    for path, part in module.named_modules():
        for param in part.parameters(recurse=False):
            if isinstance(part, nn.Embedding) and param.dim() == 2:
                name = path.rsplit(".", 1)[-1]
                out[id(param)] = "position_table" if "pos" in name or name == "wpe" else "token_table"
            else:
                out.setdefault(id(param), "matrix" if param.dim() > 1 else "vector")
    find = getattr(module, "get_output_embeddings", None)
    head = find() if callable(find) else None
    weight = getattr(head, "weight", None)
    if weight is not None and out.get(id(weight)) == "matrix":
        out[id(weight)] = "output_head"
    return out
