# SPDX-License-Identifier: Apache-2.0
"""The 64-bit digest of names, as the C library makes it: XXH3 with seed 0, for short texts."""
from __future__ import annotations

import struct
from functools import lru_cache
from typing import Iterable

_MASK = (1 << 64) - 1
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
_PRIME_1 = 0x9E3779B185EBCA87
_PRIME_2 = 0xC2B2AE3D27D4EB4F
_PRIME_3 = 0x165667B19E3779F9


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _u64(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<Q", data, at)[0])


def _swap(value: int) -> int:
    return int.from_bytes(value.to_bytes(8, "little"), "big")


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product ^ (product >> 64)) & _MASK


def _avalanche(x: int) -> int:
    x ^= x >> 37
    x = x * 0x165667919E3779F9 & _MASK
    return x ^ (x >> 32)


def _avalanche_64(x: int) -> int:
    x ^= x >> 33
    x = x * _PRIME_2 & _MASK
    x ^= x >> 29
    x = x * _PRIME_3 & _MASK
    return x ^ (x >> 32)


def _rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & _MASK


def _mix16(data: bytes, at: int, secret: int) -> int:
    return _fold(_u64(data, at) ^ _u64(_SECRET, secret), _u64(data, at + 8) ^ _u64(_SECRET, secret + 8))


def _short(data: bytes) -> int:
    count = len(data)
    if count > 8:
        low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        high = _u64(data, count - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        return _avalanche((count + _swap(low) + high + _fold(low, high)) & _MASK)
    if count >= 4:
        x = (_u32(data, count - 4) + (_u32(data, 0) << 32)) ^ _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        x ^= _rotate(x, 49) ^ _rotate(x, 24)
        x = x * 0x9FB21C651E98DF25 & _MASK
        x ^= (x >> 35) + count
        x = x * 0x9FB21C651E98DF25 & _MASK
        return x ^ (x >> 28)
    if count > 0:
        packed = data[0] << 16 | data[count >> 1] << 24 | data[count - 1] | count << 8
        return _avalanche_64(packed ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    return _avalanche_64(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))


def _medium(data: bytes) -> int:
    count = len(data)
    total = count * _PRIME_1
    if count <= 128:
        for i in range((count - 1) // 32 + 1):
            total += _mix16(data, 16 * i, 32 * i) + _mix16(data, count - 16 * (i + 1), 32 * i + 16)
        return _avalanche(total & _MASK)
    for i in range(8):
        total += _mix16(data, 16 * i, 16 * i)
    total = _avalanche(total & _MASK)
    for i in range(8, count // 16):
        total += _mix16(data, 16 * i, 16 * (i - 8) + 3)
    total += _mix16(data, count - 16, 136 - 17)
    return _avalanche(total & _MASK)


def digest(data: bytes) -> int:
    """Of at most 240 bytes as XXH3 has it; longer ones are folded in pieces."""
    if len(data) <= 16:
        return _short(data)
    if len(data) <= 240:
        return _medium(data)
    folded = len(data)
    for at in range(0, len(data), 240):
        folded = mix(folded, digest(data[at:at + 240]))
    return folded


@lru_cache(maxsize=65536)
def text(value: str) -> int:
    return digest(value.encode())


def mix(folded: int, value: int) -> int:
    """Folds a number into a running digest; order matters."""
    x = ((folded ^ value) * 0x9FB21C651E98DF25) & _MASK
    x ^= x >> 32
    x = ((x + value) * 0xC2B2AE3D27D4EB4F) & _MASK
    return x ^ (x >> 29)


def mix_all(start: int, values: Iterable[int]) -> int:
    for value in values:
        start = mix(start, value & _MASK)
    return start


def signed(value: int) -> int:
    """As the int64_t that a field of an event is."""
    return value - (1 << 64) if value >= 1 << 63 else value
