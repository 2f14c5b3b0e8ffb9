"""Damage a file as chance or someone hostile would: flipped bits, cut and moved blocks, dangerous numbers and values.

Formats with checksums and compression are taken apart and put together again, so that the damage gets behind them.
"""

import gzip
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

NUMBERS = (0, 1, 127, 128, 255, 256, 4096, 2**15, 2**16 - 1, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
NUMBERS += (2**64 - 1,)
WORDS = (
    *("-1", "0", "-0.0", "1e309", "nan", "NaN", "Infinity", ".inf", "1e5", "4096", "65536", "20000000", "2147483648"),
    *("9223372036854775808", "1" + "0" * 30, "9" * 5000, "0x" + "f" * 200, "1:30:30", "2026-99-99", "null", "true"),
    *("[]", "{}", "[" * 100, "{a: " * 60, '""', "''", "a b", "&a [1, 2]", "*a", "<<: {a: 1}", "? [a]", "- - -"),
    *("!!python/object/apply:os.system [x]", "!!binary aGk=", "!!set {a}", "../../x", "/etc/passwd", "\0", "\x1b[31m"),
    *("\\ud800", "\ufeff", "%s%n", "folder:x", "timm/resnet18", "os:system", "é" * 50, "\t", "---\n", "\r\n"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 0.5, 1e308, -1e308, float("nan"), float("inf"), 4096, 2**20, 2**31, 2**63),
    *(10**30, "", "a", "nan", "../x", "\0", "\ud800", "x" * 3000, [], {}, [1], [[]], [None], [1, 2, 3], [-1, 32, 32]),
    *(
        [0, 0, 0],
        [3, 10**5, 10**5],
        ["a"] * 200,
        {"a": 1},
        {"": {}},
        [[[[[[[[[[1]]]]]]]]]],
        "wrn9999994_1",
        "wrn10_9999",
    ),
)
ZERO = (1980, 1, 1, 0, 0, 0)


def mutate(name: str, content: bytes, others: list[bytes], random: Random) -> bytes:
    """Return another content of a file of this name; `others` are contents of which parts may come."""
    parts = [apart for suffix, apart in APART.items() if name.endswith(suffix)]
    if parts and random.random() < 0.7:
        try:
            return parts[0](content, others, random)
        except (ValueError, KeyError, IndexError, EOFError, zlib.error, zipfile.BadZipFile, struct.error):
            pass
    return _bytes(content, others, random)


def _bytes(content: bytes, others: list[bytes], random: Random) -> bytes:
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        random.choice(BYTES)(data, others, random)
    return bytes(data)


def _flip(data: bytearray, others: list[bytes], random: Random) -> None:
    for _ in range(random.choice((1, 1, 2, 8))):
        if data:
            data[_place(data, random)] ^= 1 << random.randrange(8)


def _set(data: bytearray, others: list[bytes], random: Random) -> None:
    if data:
        data[_place(data, random)] = random.randrange(256)


def _cut(data: bytearray, others: list[bytes], random: Random) -> None:
    del data[_place(data, random) :]


def _remove(data: bytearray, others: list[bytes], random: Random) -> None:
    start = _place(data, random)
    del data[start : start + random.choice((1, 2, 4, 16, 100))]


def _repeat(data: bytearray, others: list[bytes], random: Random) -> None:
    start = _place(data, random)
    data[start:start] = data[start : start + random.choice((1, 4, 16, 100))] * random.choice((1, 2, 50))


def _splice(data: bytearray, others: list[bytes], random: Random) -> None:
    other = random.choice(others)
    start, there = _place(data, random), random.randrange(len(other) + 1)
    data[start : start + random.choice((0, 4, 64))] = other[there : there + random.choice((4, 64, 500))]


def _number(data: bytearray, others: list[bytes], random: Random) -> None:
    size = random.choice((1, 2, 4, 8))
    number = random.choice(NUMBERS) % 256**size
    start = _place(data, random)
    data[start : start + size] = number.to_bytes(size, random.choice(("little", "big")))


def _word(data: bytearray, others: list[bytes], random: Random) -> None:
    """Replace a number or word of a text, or insert one."""
    found = [match.span() for match in re.finditer(rb"[\w.+-]+", bytes(data[:5000]))]
    word = random.choice(WORDS).encode("utf-8", "surrogatepass")
    if found and random.random() < 0.7:
        start, end = random.choice(found)
        data[start:end] = word
    else:
        start = _place(data, random)
        data[start:start] = word


def _place(data: bytearray, random: Random) -> int:
    """A position, often near the start, where headers are."""
    return random.randrange(min(len(data), random.choice((64, 512, 1 << 30))) or 1)


BYTES = (_flip, _flip, _set, _cut, _remove, _repeat, _splice, _number, _number, _word, _word)


def _json(content: bytes, others: list[bytes], random: Random) -> bytes:
    """Replace or remove values anywhere in a JSON document, or in a line of JSON lines."""
    lines = content.split(b"\n") if content.count(b"\n{") else [content]
    place = random.randrange(len([line for line in lines if line]))
    document = json.loads(lines[place])
    for _ in range(random.choice((1, 1, 2, 4))):
        document = _changed(document, random)
    lines[place] = json.dumps(document).encode()
    return b"\n".join(lines)


def _changed(value: Any, random: Random) -> Any:
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or random.random() < 0.15:
        return random.choice(VALUES)
    key = random.choice(keys)
    if random.random() < 0.1:
        del value[key]
    else:
        value[key] = _changed(value[key], random)
    return value


def _safetensors(content: bytes, others: list[bytes], random: Random) -> bytes:
    size = int.from_bytes(content[:8], "little")
    header = random.choice((_json, _bytes))(content[8 : 8 + size], others, random)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def _gzip(content: bytes, others: list[bytes], random: Random) -> bytes:
    return gzip.compress(_bytes(gzip.decompress(content), others, random), 1, mtime=0)


def _zip(content: bytes, others: list[bytes], random: Random) -> bytes:
    """Damage a member or its name, and write checksums that fit."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(made, "w") as target:
        members = archive.infolist()
        chosen = random.choice(members)
        for member in members:
            name, inside = member.filename, archive.read(member)
            if member is chosen and random.random() < 0.3:
                name = random.choice((*WORDS[-14:], "", "/", name + "/", "../" + name))
            elif member is chosen:
                inside = _bytes(inside, others, random)
            info = zipfile.ZipInfo(name.encode("utf-8", "replace").decode(), ZERO)
            info.compress_type = random.choice((member.compress_type, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            target.writestr(info, inside)
    return made.getvalue()


def _png(content: bytes, others: list[bytes], random: Random) -> bytes:
    """Damage a chunk, and write a checksum that fits."""
    chunks, place = [], 8
    while place < len(content):
        size = int.from_bytes(content[place : place + 4], "big")
        chunks.append(content[place + 4 : place + 8 + size])
        place += size + 12
    chosen = random.randrange(len(chunks))
    chunks[chosen] = _bytes(chunks[chosen], others, random)
    if random.random() < 0.2:
        chunks.insert(random.randrange(len(chunks)), chunks[chosen])
    packed = (struct.pack(">I", max(0, len(c) - 4)) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    return content[:8] + b"".join(packed)


APART: dict[str, Callable[[bytes, list[bytes], Random], bytes]] = {
    ".json": _json,
    ".jsonl": _json,
    ".safetensors": _safetensors,
    ".gz": _gzip,
    ".zip": _zip,
    ".pt": _zip,
    ".png": _png,
}
