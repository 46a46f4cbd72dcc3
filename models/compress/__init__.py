"""Compression with calibration: error compensation, scaling, pruning, widths under a budget. No model is run here (see headrace.sim.calibrate)."""
