"""Hashes of token ids: which prompts are in the sample, and ids that can be compared but not read.

Sampling is decided by a hash of the run's id and the prompt's tokens, so that every process, and all
responses to one prompt, agree without talking to each other.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def prompt_fraction(run_id: str, prompt: Array) -> float:
    """A number in [0, 1) that depends only on the run and the prompt's token ids (int32); a prompt is kept
    under ``--sample F`` where it is below F."""
    digest = hashlib.blake2b(np.ascontiguousarray(prompt, np.int32).tobytes(), digest_size=8, key=run_id.encode()[:64]).digest()
    return int.from_bytes(digest, "little") / 2.0**64


class TokenHasher:
    """Replaces token ids by keyed 31-bit hashes: equal ids stay equal within a run, ids can't be read back without the key.

    The key comes from the launcher's environment and is written nowhere.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._known: dict[int, int] = {}

    def __call__(self, tokens: Array) -> Array:
        """Hashes (int32) of token ids (int32), same shape."""
        distinct, places = np.unique(tokens, return_inverse=True)
        return np.array([self._hash(int(token)) for token in distinct], np.int32)[places].reshape(tokens.shape)

    def _hash(self, token: int) -> int:
        if token not in self._known:
            digest = hashlib.blake2b(token.to_bytes(8, "little", signed=True), digest_size=4, key=self._key).digest()
            self._known[token] = int.from_bytes(digest, "little") >> 1
        return self._known[token]
