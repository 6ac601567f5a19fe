"""Types of tensors in GGUF files: numbers of ggml and of its fork ik_llama.cpp, with the bytes of their blocks.

Values of a row are stored in blocks; some types of the fork begin each row with a scale of its own. Source:
the enumerations and size tables of ggml-org/llama.cpp and ikawrakow/ik_llama.cpp (`ggml.h`,
`gguf-py/gguf/constants.py`); bytes of rows are those of the tensor lists of Thireus/GGUF-Tool-Suite.
"""

from __future__ import annotations

from dataclasses import dataclass

from expert_residency.errors import TraceError


@dataclass(frozen=True)
class GgmlType:
    """How a tensor's numbers are stored.

    Parameters
    ----------
    name
        As ggml prints it.
    block
        Numbers in a block.
    nbytes
        Bytes of a block.
    row_bytes
        Bytes before the blocks of each row.
    """

    name: str
    block: int
    nbytes: int
    row_bytes: int = 0

    def size(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor, its row length first.

        Raises
        ------
        TraceError
            The row is no whole number of blocks.
        """
        rows = 1
        for n in shape[1:]:
            rows *= n
        blocks, rest = divmod(shape[0], self.block)
        if rest:
            raise TraceError(
                f"rows of {shape[0]} numbers are no whole blocks of {self.block}, as type {self.name} has"
            )
        return rows * (self.row_bytes + blocks * self.nbytes)


_TABLE = """
0 f32 1 4        | 1 f16 1 2         | 2 q4_0 32 18       | 3 q4_1 32 20       | 6 q5_0 32 22
7 q5_1 32 24     | 8 q8_0 32 34      | 9 q8_1 32 36       | 10 q2_K 256 84     | 11 q3_K 256 110
12 q4_K 256 144  | 13 q5_K 256 176   | 14 q6_K 256 210    | 15 q8_K 256 292    | 16 iq2_xxs 256 66
17 iq2_xs 256 74 | 18 iq3_xxs 256 98 | 19 iq1_s 256 50    | 20 iq4_nl 32 18    | 21 iq3_s 256 110
22 iq2_s 256 82  | 23 iq4_xs 256 136 | 24 i8 1 1          | 25 i16 1 2         | 26 i32 1 4
27 i64 1 8       | 28 f64 1 8        | 29 iq1_m 256 56    | 30 bf16 1 2        | 31 q4_0_4_4 32 18
32 q4_0_4_8 32 18 | 33 q4_0_8_8 32 18 | 34 tq1_0 256 54   | 35 tq2_0 256 66    | 39 mxfp4 32 17
40 nvfp4 64 36   | 41 q1_0 128 18    | 42 q2_0 64 18
133 q6_0 32 26   | 134 iq1_bn 64 13 2 | 135 iq2_bn 64 16 4 | 137 iq2_k 256 76  | 138 iq3_k 256 110
139 iq4_k 256 144 | 140 iq5_k 256 176 | 141 iq6_k 256 212 | 144 iq4_ks 256 136 4 | 145 iq2_ks 256 70 2
146 iq4_kss 256 128 4 | 152 iq5_ks 256 168 4 | 153 iq2_kt 256 68 4 | 154 iq3_kt 256 100 4
155 iq4_kt 256 128 4 | 156 iq3_ks 256 102 2 | 157 iq2_kl 256 86 2 | 158 iq1_kt 256 56 4
202 q4_0_r8 32 18 | 206 q5_0_r4 32 22 | 208 q8_0_r8 32 34 | 210 q2_k_r4 256 84 | 211 q3_k_r4 256 110
212 q4_k_r4 256 144 | 213 q5_k_r4 256 176 | 214 q6_k_r4 256 210 | 216 iq2_xxs_r4 256 66
217 iq2_xs_r4 256 74 | 218 iq3_xxs_r4 256 98 | 219 iq1_s_r4 32 6 2 | 220 iq4_nl_r4 32 18
221 iq3_s_r4 256 110 | 222 iq2_s_r4 256 82 | 223 iq4_xs_r8 256 136 | 229 iq1_m_r4 32 7 2
230 bf16_r16 1 2 | 233 q6_0_r4 32 26 | 335 iq2_bn_r4 64 16 4 | 337 iq2_k_r4 256 76 | 338 iq3_k_r4 256 110
339 iq4_k_r4 256 144 | 340 iq5_k_r4 256 176 | 344 iq4_ks_r4 256 136 4 | 352 iq5_ks_r4 256 168 4
399 q8_k_r8 256 258
"""
TYPES = {
    int(number): GgmlType(name, *map(int, sizes))
    for number, name, *sizes in (entry.split() for entry in _TABLE.replace("\n", "|").split("|") if entry.strip())
}
"""By the number that a file has."""

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
"""What llama.cpp calls a mix of types, by `general.file_type`."""
