"""Placement, tiling, compiler, analytic model, exploration."""
