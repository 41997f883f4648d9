"""Where a Hugging Face MoE model chooses its experts: the modules to watch, family by family.

Two interfaces of transformers say it for every family that has one of them:
- the experts interface (``use_experts_implementation``): a module called with ``(hidden_states, top_k_index,
  top_k_weights)``, so what arrives is what is computed with;
- the output recorder (``_can_record_outputs["router_logits"]``): the router's class; its output holds the
  ids where they are one integer tensor of shape (tokens, top_k).
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from .host import torch


class Unroutable(Exception):
    """Routing of this model can't be recorded; the message says why."""


class RoutedLayer(NamedTuple):
    """One routed decoder layer. ``takes_ids``: the module is called with the ids, otherwise it returns them."""

    layer: int
    module: Any
    takes_ids: bool
    num_experts: int


_found: weakref.WeakKeyDictionary[Any, tuple[RoutedLayer, ...]] = weakref.WeakKeyDictionary()


def routed_layers(model: Any) -> tuple[RoutedLayer, ...]:
    """The routed layers of ``model`` (a module, wrapped or not) in the order of their absolute layer numbers.

    Empty for a dense model. Raises Unroutable where a hook would break the run (compiled modules) or the ids would not
    be what they seem (expert parallelism renumbers them, a layer number stands for two modules).
    """
    if model not in _found:
        _found[model] = tuple(sorted(_search(model), key=lambda routed: routed.layer))
    return _found[model]


def _search(model: Any) -> list[RoutedLayer]:
    layers: dict[int, RoutedLayer] = {}
    router_classes = tuple(_router_classes(model))
    named = [(name, module) for name, module in model.named_modules() if not _auxiliary(name)]
    for name, module in named:
        if not _is_experts(module):
            continue
        if getattr(module, "_is_expert_parallel", False):
            raise Unroutable(f"{name} runs expert parallel: the ids that reach it are local to the rank")
        _add(layers, name, RoutedLayer(_layer_number(name), module, True, _num_experts(module, name)))
    for name, module in named:
        if router_classes and isinstance(module, router_classes) and _layer_number(name) not in layers:
            _add(layers, name, RoutedLayer(_layer_number(name), module, False, _num_experts(module, name)))
    if layers:
        _refuse_compiled(model)
        if len({routed.num_experts for routed in layers.values()}) > 1:
            raise Unroutable("its layers differ in their number of experts")
    return list(layers.values())


def _add(layers: dict[int, RoutedLayer], name: str, found: RoutedLayer) -> None:
    if found.layer in layers:
        raise Unroutable(f"layer {found.layer} has more than one router; the second is {name}")
    layers[found.layer] = found


def _is_experts(module: Any) -> bool:
    """True for modules that ``use_experts_implementation`` made: it sets these two attributes in ``__init__``."""
    return "has_gate" in vars(module) and "is_concatenated" in vars(module)


def _router_classes(model: Any) -> Iterator[type]:
    """Classes that transformers' output recorder reads router logits from, of the model and its submodels."""
    for module in model.modules():
        recorded = getattr(type(module), "_can_record_outputs", None) or {}
        if not isinstance(recorded, dict):
            continue
        specs = recorded.get("router_logits", [])
        for spec in specs if isinstance(specs, (list, tuple)) else [specs]:
            target = getattr(spec, "target_class", spec)
            if isinstance(target, type):
                yield target


def _auxiliary(name: str) -> bool:
    """True for modules that take no part in the decoder's own forward pass."""
    return re.search(r"(^|\.)(mtp|vision\w*|visual|audio\w*)(\.|$)", name) is not None


def _layer_number(name: str) -> int:
    number = re.search(r"\.(\d+)(\.|$)", "." + name)
    if number is None:
        raise Unroutable(f"{name} has no layer number")
    return int(number.group(1))


def _num_experts(module: Any, name: str) -> int:
    """Experts that the module chooses from: by its own attributes (the largest: LongCat's router also counts its
    zero-compute experts, under one of them only), otherwise the first dimension of its weights.
    """
    named = [getattr(module, attribute, None) for attribute in ("num_experts", "n_routed_experts", "num_local_experts")]
    if counts := [count for count in named if isinstance(count, int)]:
        return max(counts)
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            return int(parameter.shape[0])
    raise Unroutable(f"{name} does not say how many experts it has")


def _refuse_compiled(model: Any) -> None:
    optimized = getattr(getattr(torch(), "_dynamo", None), "OptimizedModule", None)
    for name, module in model.named_modules():
        if getattr(module, "_compiled_call_impl", None) is not None or (optimized is not None and isinstance(module, optimized)):
            raise Unroutable(f"module {name or type(module).__name__} is compiled; a hook would break its graph")
