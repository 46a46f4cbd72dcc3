"""Graphs of any PyTorch module, by way of torch.export: stored, checked and counted without torch."""
