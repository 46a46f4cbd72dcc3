"""Constants of the contract: bit patterns of float32 values, integer limits, and the version stored in every image."""

import numpy as np

CONTRACT_VERSION = 1

# Integers (section 1).
INT8_MAX = 127
MAX_DOT_LENGTH = (2**31 - 1) // INT8_MAX**2  # 133,144: longest dot product that int32 holds
GROUP = 32  # stored codes along K that share mult and off
CODE_SHIFT = {2: 1, 3: 2, 4: 3, 5: 4, 6: 4}  # bits of a code -> arithmetic shift of its map
MULT_MAX = 255
OFF_MIN, OFF_MAX = -2048, 2047
DSP_SHIFT = 19  # A = (w1 << 19) + w0
DSP_CASCADE = 16  # products summed in one DSP48E2 cascade before the halves are separated

# float32 (section 2), as bit patterns.
SIGN_BIT = 0x80000000
MAGNITUDE_MASK = 0x7FFFFFFF
MIN_NORMAL_BITS = 0x00800000  # 2**-126
INFINITY_BITS = 0x7F800000
NAN_BITS = 0x7FC00000
SUM_LANES = 16

# Functions (section 3), as bit patterns.
ONE_BITS = 0x3F800000
TWO_BITS = 0x40000000
MINUS_HALF_BITS = 0xBF000000
ONE_AND_HALF_BITS = 0x3FC00000
MAGIC_BITS = 0x4B400000  # 1.5 * 2**23: adding it leaves rint(x) in the low bits
RECIP_SEED = 0x7EF311C7
RECIP_STEPS = 3
RSQRT_SEED = 0x5F3759DF
RSQRT_STEPS = 3
LOG2E_BITS = 0x3FB8AA3B
LN2_HI_BITS = 0x3F318000
LN2_LO_BITS = 0xB95E8083
EXP_MIN_BITS = 0xC2AE0000  # -87.0
EXP_MAX_BITS = 0x42A00000  # 80.0
# Horner coefficients of exp, first to last: C7, C6, C5, C4, C3, C2, 1.0, 1.0.
EXP_COEFFICIENT_BITS = (
    0x39506967, 0x3AB743CE, 0x3C088908, 0x3D2AA9C1, 0x3E2AAAAA, 0x3F000000, ONE_BITS, ONE_BITS,
)
INT8_MAX_BITS = 0x42FE0000  # 127.0

QMIN = np.float32(3.8e-37)  # an absolute maximum below this quantises to zeros with scale zero
ONE_OVER_127 = np.float32(1.0 / 127.0)

# Other decoders (section 5), as bit patterns.
GELU_CUBE_BITS = 0xBD922279  # -2 sqrt(2/pi) 0.044715
GELU_LINEAR_BITS = 0xBFCC422A  # -2 sqrt(2/pi)
