"""The numeric contract: every rounding, saturation and operation order, defined once (docs/contract.md)."""
