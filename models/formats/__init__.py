"""Model files: containers, blocks, tokenizers, and the decoders that they hold."""
