"""The numeric contract in numpy: bits are defined here once (docs/contract.md). Imports numpy and nothing else."""

from headrace.kernels.contract.constants import CONTRACT_VERSION

__all__ = ["CONTRACT_VERSION"]
