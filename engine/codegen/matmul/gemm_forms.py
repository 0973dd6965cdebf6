"""Names and numbers of matrix products that callers need: `gemm_driver` prints the functions."""

from __future__ import annotations

from .gemm_tile import Tiles

ROWS, TRANSPOSED, PACKED = 0, 1, 2  # the forms of B

# Terms of a block of k at most, where sums go back into C in between: few where few rows share a panel of B.
DEEP_FEW = 256
FEW_ROWS = 64
DEEP = 512

_LETTERS = {"float": "s", "double": "d"}


def product_name(tiles: Tiles) -> str:
    """Return the name of the function for products; see `gemm`."""
    return f"anabranch_{_LETTERS[tiles.element]}gemm"


def then_name(tiles: Tiles) -> str:
    """Return the name of the function for products of which something follows; see `gemm`."""
    return f"{product_name(tiles)}_then"


def packing_name(tiles: Tiles) -> str:
    """Return the name of the function that packs."""
    return f"anabranch_{_LETTERS[tiles.element]}pack"


def k_block(k: int, rows: int) -> int:
    """Return how many terms are added before a sum is put back into C, where B is packed.

    So `k` is cut into equal blocks.
    """
    blocks = max(1, -(-k // (DEEP_FEW if rows < FEW_ROWS else DEEP)))
    return max(1, -(-k // blocks))
