"""Stands in for sgl-kernel on a CPU without AMX, for tests: SGLang's own PyTorch code computes everything else.

Written here: two copies of indices and the router's top-k, which SGLang 0.5.19 calls without an alternative, and the unpinned allocation of
its routing buffer. Any other kernel that is called raises NotImplementedError.
"""

import functools

import torch

__path__ = []
__version__ = "0"


def __getattr__(name):
    if name[:2] == "__":
        raise AttributeError(name)
    return functools.partial(_absent, name)


def _absent(name, *arguments, **named):
    raise NotImplementedError(f"sgl_kernel.{name} has no stand-in for CPU tests")


def _slices(requests, starts, ends):
    """(request, start, end, first place in the flat list of locations) of each request."""
    place = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=False):
        yield request, start, end, place
        place += end - start


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    for request, start, end, place in _slices(req_pool_indices, start_offset, end_offset):
        req_to_token[request, start:end] = out_cache_loc[place : place + end - start].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    for request, start, end, place in _slices(req_pool_indices, start_offset, end_offset):
        out_cache_loc[place : place + end - start] = req_to_token[request, start:end].to(out_cache_loc.dtype)


def _topk_softmax(hidden_states, gating_output, topk, renormalize, correction_bias=None):
    probabilities = gating_output.float().softmax(dim=-1)
    ranked = probabilities if correction_bias is None else probabilities + correction_bias
    experts = torch.topk(ranked, topk, dim=-1).indices
    weights = torch.gather(probabilities, 1, experts)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, experts.to(torch.int32)


_operators = torch.library.Library("sgl_kernel", "DEF")
_operators.define(
    "topk_softmax_cpu(Tensor hidden_states, Tensor gating_output, int topk, bool renormalize, Tensor? correction_bias=None)"
    " -> (Tensor, Tensor)"
)
_operators.impl("topk_softmax_cpu", _topk_softmax, "CPU")

_zeros = torch.zeros


@functools.wraps(_zeros)
def _unpinned_zeros(*arguments, pin_memory=False, **named):
    return _zeros(*arguments, **named)


torch.zeros = _unpinned_zeros
