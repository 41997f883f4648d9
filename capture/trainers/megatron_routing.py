"""Routed experts of a Megatron-Core MoE model, recorded while a window is open; routing replay (R3).

Written after reading megatron-core 0.16.1: ``TopKRouter.forward`` returns (probs, routing_map), both (N, E), rows in (position, batch)
order; ``Router.layer_number`` counts all stages' layers from 1; ``RouterReplay.get_replay_topk`` chooses where
``moe_enable_routing_replay`` is on. Shapes: N tokens of a call, B sequences, W positions, L routed layers, k experts a token, E experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from rlaudit.capture.models.host import host_copy, torch
from rlaudit.capture.models.routers import RoutedLayer, Unroutable
from rlaudit.capture.models.routing import RoutedExperts, RoutingWindow


class MegatronRouting(NamedTuple):
    """What a window saw. computed: what the forward passes computed with (source ``trainer``). own: what the routers themselves would
    have chosen (source ``trainer/own``); None where nothing was replayed: then computed is their own choice.
    """

    computed: RoutedExperts
    own: RoutedExperts | None


class MegatronRoutingWindow(RoutingWindow):
    """Records every router's choice between ``open`` and ``close``; see ``RoutingWindow`` for what it promises.

    The router hands on a map of experts without order: slots are in descending order of the gate weights, ties as topk has them.
    """

    def __init__(self, layers: tuple[RoutedLayer, ...], weights: bool = False) -> None:
        super().__init__(layers, weights)
        self._own = RoutingWindow(layers)
        self._whole: list[Any] = []
        self._patched: list[Any] = []

    def open(self) -> None:
        """Hook every router and watch its replay; all or none."""
        try:
            for index, routed in enumerate(self.layers):
                self._handles.append(routed.module.register_forward_hook(self._after_megatron_router(index, int(routed.module.topk))))
                replay = routed.module.router_replay
                if replay is not None:
                    replay.get_replay_topk = self._watched(index, replay.get_replay_topk)
                    self._patched.append(replay)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove hooks and watches."""
        while self._patched:
            self._patched.pop().__dict__.pop("get_replay_topk", None)
        super().close()
        self._own.close()

    def routed(self, batch: int) -> MegatronRouting | None:
        """The forwards, each over ``batch`` sequences of equal width (1 for packed ones); several calls are consecutive rows of one batch.

        Under sequence or context parallelism the W positions are this rank's own (``Duties.spans`` says which). None, with the reason
        in ``failure``, where anything went wrong; None without a reason where no forward was seen.
        """
        computed = self._by_sequence(self, batch)
        if computed is None:
            return None
        if not all(bool(whole) for whole in self._whole):
            self.failure = "a token was routed to fewer experts than top_k"
            return None
        own = self._by_sequence(self._own, batch)
        self.failure = self.failure or self._own.failure
        if self.failure is not None or (own is not None and own.experts.shape != computed.experts.shape):
            self.failure = self.failure or "only a part of the forwards was replayed"
            return None
        return MegatronRouting(computed, own)

    @staticmethod
    def _by_sequence(window: RoutingWindow, batch: int) -> RoutedExperts | None:
        return window._assemble(lambda call: call.view(-1, batch, call.shape[-1]).transpose(0, 1), along=0)

    def _after_megatron_router(self, index: int, top_k: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            try:
                probs, chosen = output[0].detach(), output[1]
                # A gate weight can be 0: what is not chosen goes below, at -1. No nonzero: it would wait for the device.
                gates, ids = torch().where(chosen, probs.float(), -1.0).topk(top_k, dim=-1)
                self._keep(index, ids, gates if self._with_weights else None)
                self._whole.append(host_copy((gates >= 0).all() & (chosen.sum(-1) == top_k).all()))
            except Exception as error:
                self._failed(error)

        return hook

    def _watched(self, index: int, choose: Any) -> Any:
        """``RouterReplay.get_replay_topk`` that also notes, where it replays, what would have been chosen."""

        def watched(scores: Any, topk: Any, num_groups: Any = None, group_topk: Any = None, default_compute_topk: Any = None) -> Any:
            try:
                if getattr(self.layers[index].module.router_replay.router_replay_action, "value", "").startswith("replay"):
                    with torch().no_grad():
                        _, ids = default_compute_topk(scores.detach(), topk, num_groups=num_groups, group_topk=group_topk)
                    self._own._keep(index, ids, None)
            except Exception as error:
                self._failed(error)
            return choose(scores, topk, num_groups, group_topk, default_compute_topk)

        return watched


def megatron_routers(model: Any) -> tuple[RoutedLayer, ...]:
    """The TopKRouter modules of ``model`` (a module, or a list of a virtual pipeline's chunks), by absolute layer from 0.

    Multi-token prediction takes no part. Raises Unroutable where the hooks would break the run or the ids would not be what they seem.
    """
    found: dict[int, RoutedLayer] = {}
    for chunk in model if isinstance(model, (list, tuple)) else [model]:
        for name, module in chunk.named_modules():
            if not any(kind.__name__ == "TopKRouter" for kind in type(module).__mro__) or re.search(r"(^|\.)mtp(\.|$)", name):
                continue
            if module.layer_number is None:
                raise Unroutable(f"{name} has no layer number")
            if module.config.moe_expert_capacity_factor is not None:
                raise Unroutable(f"{name} drops tokens above its capacity: their experts are not those that it chose")
            if str(getattr(module.config, "cuda_graph_impl", "none") or "none") != "none":
                raise Unroutable("the model runs in CUDA graphs; a hook would not see what they compute")
            if getattr(module, "_compiled_call_impl", None) is not None:
                raise Unroutable(f"{name} is compiled; a hook would break its graph")
            layer = int(module.layer_number) - 1
            if layer in found:
                raise Unroutable(f"layer {layer} has more than one router; the second is {name}")
            found[layer] = RoutedLayer(layer, module, False, int(module.config.num_moe_experts))
    return tuple(found[layer] for layer in sorted(found))


@contextmanager
def megatron_routing_window(model: Any, *, weights: bool = False) -> Iterator[MegatronRoutingWindow]:
    """Record the routed experts of a Megatron-Core model's forward passes in a ``with`` block, as ``routing_window`` does.

    Under pipelining one window sees the forwards of one schedule call only where backward passes don't recompute within it. Raises
    Unroutable for a stage without routers and for models that ``megatron_routers`` refuses.
    """
    window = MegatronRoutingWindow(megatron_routers(model), weights)
    try:
        window.open()
        yield window
    finally:
        window.close()


@contextmanager
def replayed_routing(model: Any, experts: Sequence[Any], layer_ids: Sequence[int]) -> Iterator[None]:
    """Let the model compute with given experts in a ``with`` block (R3), the backward pass's recomputation included if it is in the block.

    experts: one integer array or tensor (W, L, k) for each sequence of the batch, all of one width (one packed sequence: a list of one);
    under sequence or context parallelism this rank's own positions. layer_ids: absolute layers of axis L; those of other stages are
    ignored. Changes what the model computes; this is no part of capture. Raises ValueError where a router's layer or
    a shape is missing, ids repeat within a token or are out of range, or the model was not built with ``moe_enable_routing_replay``.
    """
    as_tensor = torch().as_tensor
    ids_BWLk = torch().stack([as_tensor(given).long() for given in experts])
    positions = {int(layer): at for at, layer in enumerate(layer_ids)}
    routers = megatron_routers(model)
    for routed in routers:
        if routed.module.router_replay is None:
            raise ValueError("the model has no replay: build it with moe_enable_routing_replay=True")
        if routed.layer not in positions:
            raise ValueError(f"no experts are given for layer {routed.layer}")
    ranked = ids_BWLk.sort(-1).values
    if ids_BWLk.dim() != 4 or (ranked[..., 1:] == ranked[..., :-1]).any():
        raise ValueError("experts must be (positions, layers, top_k) for each sequence, without an expert twice at a token")
    for routed in routers:
        ids_BWk = ids_BWLk[:, :, positions[routed.layer]]
        if ids_BWk.shape[-1] != routed.module.topk or int(ids_BWk.min()) < 0 or int(ids_BWk.max()) >= routed.num_experts:
            raise ValueError(f"layer {routed.layer} takes {routed.module.topk} of {routed.num_experts} experts a token")
    action = import_module("megatron.core.transformer.moe.router_replay").RouterReplayAction.REPLAY_FORWARD
    before = [(routed.module.router_replay, routed.module.router_replay.router_replay_action) for routed in routers]
    try:
        for routed in routers:
            ids_Nk = ids_BWLk[:, :, positions[routed.layer]].transpose(0, 1).reshape(-1, ids_BWLk.shape[-1])
            routed.module.router_replay.set_target_indices(ids_Nk)
            routed.module.router_replay.set_router_replay_action(action)
        yield
    finally:
        for replay, earlier in before:
            replay.clear_indices()
            replay.router_replay_action = earlier
