"""Routed experts of a Hugging Face MoE model, recorded while a window is open.

Hooks exist only while the window is open: what gradient checkpointing recomputes in the backward
pass, after it closed, is never seen. Shapes: N tokens of a call, B sequences, W positions, L routed layers, k experts a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .host import host_copy, mark, torch
from .routers import RoutedLayer, Unroutable, routed_layers


class RoutedExperts(NamedTuple):
    """What a window saw, on the host.

    experts: integer tensor (B, W, L, k), slots in the router's own order. weights: float32, same shape; None where
    not asked for. layer_ids: absolute decoder layers of axis L. num_experts: experts to choose from.
    """

    experts: Any
    weights: Any
    layer_ids: tuple[int, ...]
    num_experts: int


class RoutingWindow:
    """Records the expert ids of every forward pass between ``open`` and ``close``.

    A hook copies ids to the host as they come and never raises into the model; ``failure`` holds the
    first thing that went wrong, and nothing is given out after one.
    """

    def __init__(self, layers: tuple[RoutedLayer, ...], weights: bool = False) -> None:
        if not layers:
            raise Unroutable("the model has no routed layer")
        self.layers = layers
        self.failure: str | None = None
        self._with_weights = weights
        self._handles: list[Any] = []
        self._ids_NLk: list[list[Any]] = [[] for _ in layers]
        self._weights_NLk: list[list[Any]] = [[] for _ in layers]
        self._device: Any = None
        self._copied: Any = None

    def open(self) -> None:
        """Hook every routed layer; all or none. Call ``close`` in any case afterwards."""
        try:
            for index, routed in enumerate(self.layers):
                if routed.takes_ids:
                    handle = routed.module.register_forward_pre_hook(self._before_experts(index), with_kwargs=True)
                else:
                    handle = routed.module.register_forward_hook(self._after_router(index))
                self._handles.append(handle)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the hooks; what was recorded stays until the window itself goes."""
        while self._handles:
            self._handles.pop().remove()
        self._copied = mark(self._device)

    def generated(self, batch: int) -> RoutedExperts | None:
        """The forwards of one ``generate`` call over ``batch`` rows: prefill (whole or in chunks), then token by token.

        W counts the prompt's padded width and every sampled token but the last. None where no forward was seen.
        """
        return self._assemble(lambda call: call.view(batch, -1, call.shape[-1]), along=1)

    def forwarded(self, width: int) -> RoutedExperts | None:
        """Forwards over whole padded sequences of ``width`` positions; several calls are consecutive rows of one batch."""
        return self._assemble(lambda call: call.view(-1, width, call.shape[-1]), along=0)

    def _assemble(self, shaped: Any, along: int) -> RoutedExperts | None:
        if self.failure is not None or not any(self._ids_NLk):
            return None
        if self._copied is not None:
            self._copied.synchronize()
        if fault := self._fault():
            self.failure = fault
            return None
        cat, stack = torch().cat, torch().stack

        def joined(kept: list[list[Any]]) -> Any:
            return stack([cat([shaped(call) for call in layer], dim=along) for layer in kept], dim=2)

        return RoutedExperts(
            joined(self._ids_NLk),
            joined(self._weights_NLk) if self._with_weights else None,
            tuple(routed.layer for routed in self.layers),
            self.layers[0].num_experts,
        )

    def _fault(self) -> str | None:
        """What keeps the recorded calls from being one array; None where nothing does."""
        if len({len(layer) for layer in self._ids_NLk}) > 1:
            return "its routed layers were not called equally often"
        if len({call.shape[-1] for layer in self._ids_NLk for call in layer}) > 1:
            return "its layers differ in the number of experts a token"
        if max(int(call.max()) for layer in self._ids_NLk for call in layer if call.numel()) >= self.layers[0].num_experts:
            return "an expert id is outside the experts that the layer has"
        return None

    def _before_experts(self, index: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            try:
                ids = args[1] if len(args) > 1 else kwargs["top_k_index"]
                gates = (args[2] if len(args) > 2 else kwargs["top_k_weights"]) if self._with_weights else None
                self._keep(index, ids, gates)
            except Exception as error:
                self._failed(error)

        return hook

    def _after_router(self, index: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            try:
                ids, gates = chosen(output)
                self._keep(index, ids, gates if self._with_weights else None)
            except Exception as error:
                self._failed(error)

        return hook

    def _failed(self, error: Exception) -> None:
        """Remember the first failure; the model runs on."""
        self.failure = self.failure or (str(error) if isinstance(error, Unroutable) else f"{type(error).__name__}: {error}")

    def _keep(self, index: int, ids: Any, gates: Any) -> None:
        if self.failure is not None:
            return
        if ids.is_cuda and torch().cuda.is_current_stream_capturing():
            raise Unroutable("the forward pass is being captured in a CUDA graph")
        if gates is not None and gates.shape != ids.shape:
            raise Unroutable(f"gate weights have shape {tuple(gates.shape)}, expert ids {tuple(ids.shape)}")
        self._device = ids.device
        narrow = torch().uint8 if self.layers[index].num_experts <= 256 else torch().int16
        self._ids_NLk[index].append(host_copy(ids.reshape(-1, ids.shape[-1]), narrow))
        if gates is not None:
            self._weights_NLk[index].append(host_copy(gates.reshape(-1, gates.shape[-1]), torch().float32))


def chosen(output: Any) -> tuple[Any, Any]:
    """Expert ids (tokens, top_k) in a router's output and the gate weights beside them (None where there are none of that shape).

    Raises Unroutable unless exactly one integer tensor of two dimensions is there.
    """
    tensors = [part for part in (output if isinstance(output, (tuple, list)) else (output,)) if torch().is_tensor(part)]
    ids = [part for part in tensors if not part.is_floating_point() and part.dtype != torch().bool and part.dim() == 2]
    if len(ids) != 1:
        raise Unroutable(f"the router returns {len(ids)} tensors that could be expert ids")
    gates = [part for part in tensors if part.is_floating_point() and part.shape == ids[0].shape]
    return ids[0], gates[0] if len(gates) == 1 else None


@contextmanager
def routing_window(model: Any, *, weights: bool = False) -> Iterator[RoutingWindow]:
    """Record the routed experts of ``model``'s forward passes in a ``with`` block.

    >>> with routing_window(model) as window:          # doctest: +SKIP
    ...     model(**batch)
    >>> window.forwarded(width=batch["input_ids"].shape[1]).experts.shape   # doctest: +SKIP
    torch.Size([4, 512, 48, 8])

    Raises Unroutable for a dense model and where recording would be wrong or would break the run.
    """
    window = RoutingWindow(routed_layers(model), weights)
    try:
        window.open()
        yield window
    finally:
        window.close()
