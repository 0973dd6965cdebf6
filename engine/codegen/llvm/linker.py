"""Linking of object code in memory, for x86-64 under Linux: a process that compiles nothing needs no LLVM.

LLVM's own linker comes with all of LLVM, which takes longer to load than the kernels of a model. What LLVM writes for
them are relocatable ELF files of one code model (the large one, position-independent): a handful of relocations, all of
64 bits. A file with others is left to LLVM.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from ...common.quick_dataclass import dataclass

# Flags and types of sections, and relocations: System V ABI, and its supplement for AMD64, "Object Files".
_WRITE, _ALLOC, _EXECUTE, _THREAD_LOCAL = 0x1, 0x2, 0x4, 0x400
_NOTHING, _PROGBITS, _SYMBOLS, _RELOCATIONS, _NOBITS, _SHORT_RELOCATIONS = 0, 1, 2, 4, 8, 9
_RELOCATABLE, _X86_64 = 1, 62
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1
_64, _PC64, _GOTOFF64, _GOT64, _GOTPC64 = 1, 24, 25, 27, 29
_KINDS = {_64, _PC64, _GOTOFF64, _GOT64, _GOTPC64}
_OFFSET_TABLE = "_GLOBAL_OFFSET_TABLE_"
_UNWINDING = ".eh_frame"  # nothing is thrown through kernels
_MOST_BYTES = 1 << 30  # a file that claims more is damaged
_WORD = struct.Struct("<Q")


class NotLinkedError(Exception):
    """Object code is of a kind that is not linked here."""


@dataclass(slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    start: int
    size: int
    link: int
    info: int
    alignment: int


@dataclass(slots=True)
class _Symbol:
    name: str
    section: int
    value: int


_Relocation = tuple[int, int, int, int]  # its place in memory, from the beginning; its kind, symbol and addend


class UnknownSymbolsError(NotLinkedError):
    """Object code calls functions that are nowhere: LLVM's linker, too, would leave their addresses at zero."""


class Linked:
    """Machine code in memory, which stays there until the process ends: threads may be inside of it at any time.

    Args:
        addresses: of the functions, by name.
    """

    def __init__(self, addresses: Mapping[str, int]) -> None:
        self._addresses = addresses

    def get_function_address(self, name: str) -> int:
        """Return the address of a function; 0 where there is none of that name, as LLVM's engines do."""
        return self._addresses.get(name, 0)


def can_link() -> bool:
    """Test whether object code for this system is of the kind that is linked here."""
    return sys.platform == "linux" and os.uname().machine == "x86_64" and sys.maxsize > 1 << 32


def may_execute() -> bool:
    """Test whether the system lets memory that was written become machine code."""
    base = _map(mmap.PAGESIZE)
    try:
        _protect(base, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
    except OSError:
        return False
    finally:
        _system().munmap(base, mmap.PAGESIZE)
    return True


def link(code: bytes, address_of: Callable[[str], int]) -> Linked:
    """Put object code into memory, ready to be called.

    Args:
        code: a relocatable ELF file.
        address_of: gives the address of a symbol that the file does not define; 0 where it is unknown.

    Raises:
        NotLinkedError: the file is of another kind, or it is damaged.
        UnknownSymbolsError: a symbol is unknown.
        OSError: the system gives no memory for machine code.
    """
    try:
        return _ObjectFile(code).link(address_of)
    except (struct.error, IndexError, ValueError) as error:
        raise NotLinkedError(f"the file is damaged: {error}") from None


class _ObjectFile:
    """A relocatable ELF file, and where its sections are to be in memory."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", code, 16) != (_RELOCATABLE, _X86_64):
            raise NotLinkedError("it is no relocatable file for x86-64")
        self._sections = self._read_sections()
        self._symbols = self._read_symbols()
        self._places: dict[int, int] = {}  # of the sections that are loaded
        self._lay_out()
        self._relocations = list(self._read_relocations())

    def _read_sections(self) -> list[_Section]:
        (start,) = _WORD.unpack_from(self._code, 40)
        size, count, names = struct.unpack_from("<HHH", self._code, 58)
        rows = [struct.unpack_from("<IIQQQQIIQQ", self._code, start + number * size) for number in range(count)]
        texts: int = rows[names][4]
        sections = [
            _Section(self._text(texts + name), kind, flags, offset, length, link, info, max(1, alignment))
            for name, kind, flags, _, offset, length, link, info, alignment, _ in rows
        ]
        for section in sections:
            if section.kind not in (_NOTHING, _NOBITS) and section.start + section.size > len(self._code):
                raise NotLinkedError(f"the file is damaged: its section {section.name} goes beyond its end")
        return sections

    def _read_symbols(self) -> list[_Symbol]:
        (table,) = [section for section in self._sections if section.kind == _SYMBOLS]
        texts = self._sections[table.link].start
        rows = struct.iter_unpack("<IBBHQQ", self._code[table.start : table.start + table.size])
        return [_Symbol(self._text(texts + name), section, value) for name, _, _, section, value, _ in rows]

    def _text(self, start: int) -> str:
        return self._code[start : self._code.index(b"\0", start)].decode()

    def _lay_out(self) -> None:
        """Choose places for what is loaded: code, then constants and the offset table, then what is written."""
        groups = [self._loaded(_EXECUTE), self._loaded(0), self._loaded(_WRITE)]
        self._code_end = self._place(groups[0], 0)
        self._table = _rounded(self._place(groups[1], self._code_end), _WORD.size)
        self._constants_end = _rounded(self._table + _WORD.size * len(self._symbols), mmap.PAGESIZE)
        self._end = self._place(groups[2], self._constants_end)

    def _loaded(self, rights: int) -> list[int]:
        found: list[int] = []
        for number, section in enumerate(self._sections):
            if section.flags & _ALLOC and section.name != _UNWINDING:
                is_both = section.flags & _WRITE and section.flags & _EXECUTE
                is_usual = section.kind in (_PROGBITS, _NOBITS) and section.alignment <= mmap.PAGESIZE
                if section.flags & _THREAD_LOCAL or is_both or not is_usual:
                    raise NotLinkedError(f"it has a section {section.name} of another kind")
                if section.flags & (_WRITE | _EXECUTE) == rights:
                    found.append(number)
        return found

    def _place(self, numbers: list[int], end: int) -> int:
        for number in numbers:
            section = self._sections[number]
            self._places[number] = place = _rounded(end, section.alignment)
            end = place + section.size
        if end > _MOST_BYTES:
            raise NotLinkedError(f"it takes {end} bytes")
        return _rounded(end, mmap.PAGESIZE)

    def _read_relocations(self) -> Iterator[_Relocation]:
        for table in self._sections:
            if table.kind not in (_RELOCATIONS, _SHORT_RELOCATIONS) or table.info not in self._places:
                continue
            if table.kind == _SHORT_RELOCATIONS:
                raise NotLinkedError("it has relocations without addends")
            start, last = self._places[table.info], self._sections[table.info].size - _WORD.size
            for offset, kind, symbol, addend in struct.iter_unpack(
                "<QIIq", self._code[table.start : table.start + table.size]
            ):
                if kind not in _KINDS:
                    raise NotLinkedError(f"it has a relocation of type {kind}")
                if offset > last:
                    raise NotLinkedError("the file is damaged: a relocation is beyond its section")
                target: _Symbol = self._symbols[symbol]
                if not self._has_address(target):
                    raise NotLinkedError(f"the symbol {target.name!r} has no address in it")
                yield start + offset, kind, symbol, addend

    def link(self, address_of: Callable[[str], int]) -> Linked:
        foreign = {symbol.name: address_of(symbol.name) for symbol in self._symbols if symbol.section == _UNDEFINED}
        unknown = [name for name, address in foreign.items() if not address and name not in ("", _OFFSET_TABLE)]
        if unknown:
            raise UnknownSymbolsError(f"nothing defines {', '.join(unknown)}")
        base = _map(self._end)
        addresses = [self._address(base, symbol, foreign) for symbol in self._symbols]
        try:
            image = self._image(base, addresses)
            ctypes.memmove(base, bytes(image), len(image))
            _protect(base, self._code_end, mmap.PROT_READ | mmap.PROT_EXEC)
            _protect(base + self._code_end, self._constants_end - self._code_end, mmap.PROT_READ)
        except BaseException:
            _system().munmap(base, self._end)
            raise
        defined = [pair for pair in zip(self._symbols, addresses, strict=True) if self._has_address(pair[0])]
        return Linked({symbol.name: address for symbol, address in defined if symbol.section != _UNDEFINED})

    def _has_address(self, symbol: _Symbol) -> bool:
        """Test whether a symbol is absolute, or in what is loaded, or foreign: not in what LLVM alone lays out."""
        return symbol.section in (_UNDEFINED, _ABSOLUTE) or symbol.section in self._places

    def _address(self, base: int, symbol: _Symbol, foreign: Mapping[str, int]) -> int:
        if symbol.section == _UNDEFINED:
            return foreign[symbol.name]
        place = self._places.get(symbol.section)
        return symbol.value if place is None else base + place + symbol.value

    def _image(self, base: int, addresses: list[int]) -> bytearray:
        """Return what is in memory once it begins at `base`."""
        image = bytearray(self._end)
        for number, place in self._places.items():
            section = self._sections[number]
            if section.kind == _PROGBITS:
                image[place : place + section.size] = self._code[section.start : section.start + section.size]
        table = base + self._table
        for place, kind, symbol, addend in self._relocations:
            if kind == _GOT64:
                entry = _WORD.size * symbol
                _WORD.pack_into(image, self._table + entry, addresses[symbol])
                value = entry
            elif kind == _GOTPC64:
                value = table - base - place
            else:
                value = addresses[symbol] - {_64: 0, _PC64: base + place, _GOTOFF64: table}[kind]
            _WORD.pack_into(image, place, (value + addend) % (1 << 64))
        return image


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


@cache
def _system() -> Any:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    system.mmap.restype = ctypes.c_void_p
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    system.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return system


def _map(size: int) -> int:
    """Ask for memory that is never given back."""
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    address = _system().mmap(None, size, rights, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"no memory for {size} bytes of machine code")
    return address


def _protect(address: int, size: int, rights: int) -> None:
    if size and _system().mprotect(address, size, rights):
        number = ctypes.get_errno()
        raise OSError(number, f"memory may not become machine code: {os.strerror(number)}")
