"""Constants of xxh3-64 for inputs of more than 240 bytes, and its last steps, on arrays."""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

LENGTH_MIN = 241  # shorter inputs are hashed in other ways
BLOCK_BYTES = 1024
STRIPE_BYTES = 64
PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME64_4, PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
AVALANCHE = 0x165667919E3779F9
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
SCRAMBLE_AT = len(SECRET) - STRIPE_BYTES
LAST_AT = len(SECRET) - STRIPE_BYTES - 7
MERGE_AT = 11


def secret_words(at: int, num_words: int) -> Words:
    """Little-endian words of the secret from byte `at` on."""
    return np.frombuffer(SECRET, "<u8", num_words, at).astype(np.uint64)


def first_accumulators() -> Words:
    """What the eight accumulators start from."""
    first = (
        PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
    )  # fmt: skip
    return np.array(first, np.uint64)
