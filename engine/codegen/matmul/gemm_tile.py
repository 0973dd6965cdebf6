"""The innermost part of a matrix product, as LLVM IR: one tile of the result, held in registers.

A tile is `rows` x (`vectors` vectors). For each step of k its kernel loads a row of B (vectors), broadcasts `rows`
elements of A and multiplies and adds. A is read by strides, so that rows, columns and packed panels of A are all read
by the same code; rows of B are `step` elements apart, in a packed panel or in the matrix itself.

After G. Goto and R. van de Geijn, Anatomy of High-Performance Matrix Multiplication, ACM TOMS 34 (2008), and F. Van Zee
and R. van de Geijn, BLIS, ACM TOMS 41 (2015).
"""

from __future__ import annotations

from ...common.quick_dataclass import dataclass
from ..llvm.builder import BYTES, declare_masked, masked_load, masked_store, suffix_of
from ..llvm.registers import vector_bytes


@dataclass(frozen=True)
class Tiles:
    """The tiles of a host, for one element type.

    Attributes:
        element: the LLVM type of elements.
        lanes: elements of a vector.
        rows: of the largest tile; smaller ones of 4, 3, 2 and 1 rows take what is left.
        vectors: of the widest tile.
    """

    element: str
    lanes: int
    rows: int
    vectors: int

    @property
    def suffix(self) -> str:
        return suffix_of(self.element)

    @property
    def bytes(self) -> int:
        """The bytes of an element."""
        return BYTES[self.element]

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x {self.element}>"

    @property
    def has_masks(self) -> bool:
        """Test whether the host loads and stores parts of vectors."""
        return self.lanes * self.bytes >= 32

    @property
    def columns(self) -> int:
        """The columns of the widest tile, and of a packed panel."""
        return self.lanes * self.vectors

    @property
    def heights(self) -> tuple[int, ...]:
        """The rows of tiles, the largest first: each matrix is cut greedily into such."""
        return (self.rows, *[rows for rows in (4, 3, 2, 1) if rows < self.rows])

    @property
    def split_rests(self) -> tuple[int, ...]:
        """The numbers of rows left for which the last of the largest tiles had better be cut, too, where that can be.

        Tiles of one or two rows hold so few sums that each waits for the one before: they take as long as one of four.
        So 20 rows are tiles of 6, 6, 4 and 4 rows, not of 6, 6, 6 and 2.
        """

        def has_low(rows: int) -> bool:
            return rows % 4 in (1, 2)

        return tuple(rest for rest in range(self.rows) if has_low(rest) and not has_low(self.rows + rest))

    def kernel(self, rows: int, vectors: int, layout: str = "") -> str:
        return f"gemm_{self.suffix}_{rows}x{vectors}{layout}"


def tiles_of(host: str, element: str) -> Tiles:
    """Return the tiles for a host (`Library.host`): as many sums as its registers hold, beside the operands."""
    size = BYTES[element]
    width = vector_bytes(host)
    has_many = width == 64 or host.startswith(("aarch64", "arm64"))  # 32 registers, elsewhere 16
    return Tiles(element, width // size, 8, 3) if has_many else Tiles(element, width // size, 6, 2)


ROWS_OF_A, PANELS_OF_A = "rows", "panel"  # A's layout: rows in one piece, or packed panels as high as a tile
_AT_A_TIME = 2  # steps of k in one go, of which each takes instructions beside its products


def print_tile(tiles: Tiles, rows: int, vectors: int, layout: str = "") -> str:
    """Print the kernel of one tile: C = A @ B + D + E, where D may be C; D and E may be nothing.

    ``(a, row_step, k_step, b, b_step, c, c_step, d, d_step, e, e_step, k, last, next,
    next_step)``: `last` is how many lanes of the last vector C has; what B holds in the others is multiplied too, and
    dropped. Pointers to what is not there are null. In each step of k it asks for the
    memory at `next` (bytes), the panel that will be laid out next.

    Args:
        layout: `ROWS_OF_A` or `PANELS_OF_A`, where A always has that layout; the kernel takes its steps for granted.
    """
    v = tiles.vector
    grid = [(i, j) for i in range(rows) for j in range(vectors)]
    times = _AT_A_TIME if layout else 1
    a_step = {"": "%k_step", ROWS_OF_A: "1", PANELS_OF_A: str(tiles.rows)}[layout]
    row = "add i64 0, {}" if layout == PANELS_OF_A else "mul i64 %row_step, {}"
    zeros = [f"  %z{i}_{j} = phi {v} [zeroinitializer, %entry], [%s{times}x{i}_{j}, %body]" for i, j in grid]
    lines = [
        f"define internal void @{tiles.kernel(rows, vectors, layout)}(ptr noalias %a, i64 %row_step, i64 %k_step, "
        f"ptr noalias %b, i64 %b_step, ptr %c, i64 %c_step, ptr %d, i64 %d_step, ptr %e, i64 %e_step, "
        "i64 %k, i64 %last, "
        f"ptr %next, i64 %next_step) noinline {{",
        "entry:",
        *[f"  %r{i} = {row.format(i)}" for i in range(rows)],
        *[line for i, j in grid for line in _print_early(tiles, i, j)],
        f"  %whole_k = and i64 %k, -{times}",
        "  %some = icmp sgt i64 %whole_k, 0",
        "  br i1 %some, label %body, label %rest",
        "body:",
        "  %p = phi i64 [0, %entry], [%p_next, %body]",
        f"  %a0 = phi ptr [%a, %entry], [%a{times}, %body]",
        f"  %b0 = phi ptr [%b, %entry], [%b{times}, %body]",
        f"  %n0 = phi ptr [%next, %entry], [%n{times}, %body]",
        *[f"  %s0x{i}_{j} = phi {v} [zeroinitializer, %entry], [%s{times}x{i}_{j}, %body]" for i, j in grid],
        *[line for step in range(times) for line in _print_step(tiles, grid, a_step, step, step + 1)],
        f"  %p_next = add nuw nsw i64 %p, {times}",
        "  %more = icmp slt i64 %p_next, %whole_k",
        "  br i1 %more, label %body, label %rest, !llvm.loop !100",
        "rest:",
        *zeros,
    ]
    if times == 1:
        lines += ["  br label %summed", "summed:"]
        lines += [f"  %u{i}_{j} = phi {v} [%z{i}_{j}, %rest]" for i, j in grid]
    else:
        step, after = times + 1, times + 2
        lines += [
            f"  %a{step} = phi ptr [%a, %entry], [%a{times}, %body]",
            f"  %b{step} = phi ptr [%b, %entry], [%b{times}, %body]",
            f"  %n{step} = phi ptr [%next, %entry], [%n{times}, %body]",
            "  %odd = icmp slt i64 %whole_k, %k",
            "  br i1 %odd, label %one, label %summed",
            "one:",
            *[line.replace(f"%s{step}x", "%z") for line in _print_step(tiles, grid, a_step, step, after)],
            "  br label %summed",
            "summed:",
            *[f"  %u{i}_{j} = phi {v} [%z{i}_{j}, %rest], [%s{after}x{i}_{j}, %one]" for i, j in grid],
        ]
    return "\n".join([*lines, *_print_ends(tiles, rows, vectors), "}\n"])


def _print_early(tiles: Tiles, i: int, j: int) -> list[str]:
    """Ask for a vector of C, which is there when the sums are."""
    return [
        *_print_address(tiles, "c", "early", i, j),
        f"  call void @llvm.prefetch.p0(ptr %early_cq{i}_{j}, i32 1, i32 3, i32 1)",
    ]


def _print_step(tiles: Tiles, grid: list[tuple[int, int]], a_step: str, step: int, after: int) -> list[str]:
    """Print one step of k: products are added to sums ``%s{step}x..``, pointers ``%a{step}`` and the like move on."""
    e, v, lanes = tiles.element, tiles.vector, tiles.lanes
    rows, vectors = grid[-1][0] + 1, grid[-1][1] + 1
    lines = [f"  call void @llvm.prefetch.p0(ptr %n{step}, i32 0, i32 2, i32 1)"]
    for j in range(vectors):
        lines.append(f"  %bq{step}x{j} = getelementptr inbounds {e}, ptr %b{step}, i64 {j * lanes}")
        lines.append(f"  %bl{step}x{j} = load {v}, ptr %bq{step}x{j}, align {tiles.bytes}")
    for i in range(rows):
        name = f"{step}x{i}"
        lines.append(f"  %aq{name} = getelementptr inbounds {e}, ptr %a{step}, i64 %r{i}")
        lines.append(f"  %as{name} = load {e}, ptr %aq{name}")
        lines.append(f"  %ai{name} = insertelement {v} undef, {e} %as{name}, i32 0")
        lines.append(f"  %av{name} = shufflevector {v} %ai{name}, {v} undef, <{lanes} x i32> zeroinitializer")
    for i, j in grid:
        terms = f"{v} %av{step}x{i}, {v} %bl{step}x{j}, {v} %s{step}x{i}_{j}"
        lines.append(f"  %s{after}x{i}_{j} = call {v} @llvm.fmuladd.v{lanes}{tiles.suffix}({terms})")
    lines.append(f"  %a{after} = getelementptr inbounds {e}, ptr %a{step}, i64 {a_step}")
    lines.append(f"  %b{after} = getelementptr inbounds {e}, ptr %b{step}, i64 %b_step")
    lines.append(f"  %n{after} = getelementptr i8, ptr %n{step}, i64 %next_step")
    return lines


def _print_ends(tiles: Tiles, rows: int, vectors: int) -> list[str]:
    """Print the end of a tile, behind the sums: all vectors whole, or the last one in part."""
    lanes, kind = tiles.lanes, f"<{tiles.lanes} x i64>"
    mask = [
        f"  %m0 = insertelement {kind} undef, i64 %last, i32 0",
        f"  %m1 = shufflevector {kind} %m0, {kind} undef, <{lanes} x i32> zeroinitializer",
        f"  %mask = icmp slt {kind} <{', '.join(f'i64 {k}' for k in range(lanes))}>, %m1",
    ]
    if tiles.has_masks:  # they cost next to nothing, and a second way to go costs compilation
        return [*mask, "  br label %cut", "cut:", *_print_end(tiles, rows, vectors, "cut", True)]
    return [
        f"  %whole = icmp eq i64 %last, {lanes}",
        "  br i1 %whole, label %full, label %cut",
        "full:",
        *_print_end(tiles, rows, vectors, "full", False),
        "cut:",
        *mask,
        *_print_end(tiles, rows, vectors, "cut", True),
    ]


def _print_end(tiles: Tiles, rows: int, vectors: int, tag: str, is_cut: bool) -> list[str]:
    """Add D and E, those that are there, and store the tile; `tag` is the block that control comes from."""
    v, lines = tiles.vector, list[str]()
    grid = [(i, j) for i in range(rows) for j in range(vectors)]
    sums, source = "%u", tag
    for matrix in ("d", "e"):
        name = f"{tag}_{matrix}"
        lines.append(f"  %{name}_none = icmp eq ptr %{matrix}, null")
        lines.append(f"  br i1 %{name}_none, label %{name}_on, label %{name}_add")
        lines.append(f"{name}_add:")
        for i, j in grid:
            lines += _print_address(tiles, matrix, tag, i, j)
            lines.append(_load(tiles, f"%{name}l{i}_{j}", f"%{name}q{i}_{j}", is_cut and j == vectors - 1))
            lines.append(f"  %{name}x{i}_{j} = fadd {v} {sums}{i}_{j}, %{name}l{i}_{j}")
        lines.append(f"  br label %{name}_on")
        lines.append(f"{name}_on:")
        for i, j in grid:
            lines.append(f"  %{name}w{i}_{j} = phi {v} [{sums}{i}_{j}, %{source}], [%{name}x{i}_{j}, %{name}_add]")
        sums, source = f"%{name}w", f"{name}_on"
    for i, j in grid:
        lines += _print_address(tiles, "c", tag, i, j)
        lines.append(_store(tiles, f"{sums}{i}_{j}", f"%{tag}_cq{i}_{j}", is_cut and j == vectors - 1))
    return [*lines, "  ret void"]


def _print_address(tiles: Tiles, matrix: str, tag: str, i: int, j: int) -> list[str]:
    e, name = tiles.element, f"{tag}_{matrix}"
    lines: list[str] = []
    if j == 0:
        lines.append(f"  %{name}o{i} = mul i64 %{matrix}_step, {i}")
        lines.append(f"  %{name}r{i} = getelementptr inbounds {e}, ptr %{matrix}, i64 %{name}o{i}")
    lines.append(f"  %{name}q{i}_{j} = getelementptr inbounds {e}, ptr %{name}r{i}, i64 {j * tiles.lanes}")
    return lines


def _load(tiles: Tiles, name: str, address: str, is_cut: bool) -> str:
    if is_cut:
        return f"  {name} = {masked_load(tiles.lanes, tiles.element, address, '%mask', 'undef')}"
    return f"  {name} = load {tiles.vector}, ptr {address}, align {tiles.bytes}"


def _store(tiles: Tiles, value: str, address: str, is_cut: bool) -> str:
    if is_cut:
        return f"  {masked_store(tiles.lanes, tiles.element, value, address, '%mask')}"
    return f"  store {tiles.vector} {value}, ptr {address}, align {tiles.bytes}"


def print_declarations(tiles: Tiles) -> str:
    """Print declarations of the intrinsics that kernels of tiles call."""
    v, lanes = tiles.vector, tiles.lanes
    added = f"declare {v} @llvm.fmuladd.v{lanes}{tiles.suffix}({v}, {v}, {v})\n"
    return added + declare_masked(lanes, tiles.element)
