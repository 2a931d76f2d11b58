"""The knots of the fitted tables: where a kernel's efficiency may bend, by operator."""

from __future__ import annotations

import numpy as np

from scripts.log_table_fit import Floats, Grid


def _log2(*counts: float) -> Floats:
    return np.log2(np.array(counts, dtype=np.float64))


def _plain(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


_SIDE = _log2(32, 128, 512, 1024, 2048, 4096, 8192, 16384, 65536)
_M = _log2(1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 32768)
# A row beyond a full tile starts another: both sides of the tile edges the benchmark measured.
_M_TILES = _log2(
    *(1, 8, 16, 17, 32, 33, 64, 65, 128, 129, 192, 193, 256, 257, 512, 513, 1024, 1025),
    *(1536, 1537, 2048, 2049, 3072, 4096, 4352, 8192, 16384, 32768),
)
_SEQUENCES = _log2(1, 4, 16, 64, 256, 1024, 4096, 16384)
_CONTEXT = _log2(2, 32, 128, 512, 1024, 2048, 4096, 8192, 32768, 131072)
_LENGTH = _log2(1, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_SKEW = _plain(0, 1, 2)

GRIDS: dict[str, tuple[Grid, ...]] = {
    "gemm": (
        Grid(("m", "n", "k"), (_M, _SIDE, _SIDE)),
        Grid(("m", "n"), (_M_TILES, _log2(128, 1024, 4096, 16384))),
    ),
    "experts": (
        Grid(
            ("r", "e", "i"),
            (
                _plain(-8, -5, -3, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12),
                _log2(1, 4, 16, 64, 256, 512),
                _log2(64, 256, 512, 1024, 2048, 8192),
            ),
        ),
        Grid(
            ("t", "p", "k"),
            (
                _log2(1, 4, 16, 64, 256, 512, 2048, 16384),
                _log2(1, 2, 4, 8, 32, 128, 256),
                _log2(1, 4, 8, 16),
            ),
        ),
        Grid(
            ("r", "h", "i"),
            (_plain(-4, 0, 4, 8), _log2(2048, 4096, 8192), _log2(128, 512, 2048, 8192)),
        ),
        Grid(
            ("s", "t", "p"),
            (_SKEW, _log2(1, 8, 64, 512, 4096, 16384), _log2(1, 4, 16, 64, 256)),
        ),
        Grid(("s", "r", "e"), (_SKEW, _plain(-4, -2, 0, 2, 4, 7), _log2(1, 16, 128))),
    ),
    "decode_attention": (
        Grid(("b", "c", "g"), (_SEQUENCES, _CONTEXT, _log2(1, 2, 4, 8, 16, 32))),
        Grid(
            ("c", "d", "b"),
            (
                _log2(2, 128, 1024, 8192, 131072),
                _log2(64, 128, 256),
                _log2(1, 16, 128, 1024, 16384),
            ),
        ),
    ),
    "prefill_attention": (
        Grid(("b", "n", "g"), (_SEQUENCES, _LENGTH, _log2(1, 2, 8, 32))),
        Grid(
            ("n", "d", "b"),
            (
                _log2(1, 128, 1024, 4096, 16384),
                _log2(64, 128, 256),
                _log2(1, 16, 128, 1024, 16384),
            ),
        ),
        Grid(
            ("w", "n", "b"),
            (_plain(-7, -3, 0), _log2(128, 512, 2048, 16384), _log2(1, 16, 128, 1024, 16384)),
        ),
    ),
    "latent_decode": (
        Grid(
            ("b", "c", "g"),
            (_log2(1, 4, 16, 32, 64, 128, 1024), _CONTEXT, _log2(1, 8, 16, 32, 64, 128)),
        ),
    ),
    "latent_prefill": (Grid(("b", "n"), (_SEQUENCES, _LENGTH)),),
}
