"""Transformers with layer norms that have an offset and MLPs without a gate: GPT-2, OPT, BLOOM, Falcon, GPT-NeoX, BERT."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from headrace.models.architectures.base import (
    Architecture, Counted, DoesNotFit, Fields, Heads, KvCache, Layers, Size, Tensor, Vocab, embedding, layer_norm, linear, lm_head,
    split_heads,
)


class Gpt2(Fields):
    vocab_size: Vocab
    n_positions: Size
    n_embd: Size
    n_layer: Layers
    n_head: Heads
    n_inner: Size | None = None
    tie_word_embeddings: bool = True


class Opt(Fields):
    vocab_size: Vocab
    hidden_size: Size
    ffn_dim: Size
    num_hidden_layers: Layers
    num_attention_heads: Heads
    max_position_embeddings: Size
    word_embed_proj_dim: Size | None = None
    do_layer_norm_before: bool = True
    remove_final_layer_norm: bool = Field(default=False, alias="_remove_final_layer_norm")
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    tie_word_embeddings: bool = True


class Bloom(Fields):
    vocab_size: Vocab
    hidden_size: Size = Field(validation_alias=AliasChoices("n_embed", "hidden_size"))
    n_layer: Layers = Field(validation_alias=AliasChoices("n_layer", "num_hidden_layers"))
    n_head: Heads = Field(validation_alias=AliasChoices("n_head", "num_attention_heads"))
    tie_word_embeddings: bool = True


class Falcon(Fields):
    vocab_size: Vocab
    hidden_size: Size
    num_hidden_layers: Layers = Field(validation_alias=AliasChoices("num_hidden_layers", "n_layer"))
    num_attention_heads: Heads = Field(validation_alias=AliasChoices("num_attention_heads", "n_head"))
    num_kv_heads: Heads | None = None
    ffn_hidden_size: Size | None = None
    multi_query: bool = True
    new_decoder_architecture: bool = False
    parallel_attn: bool = True
    num_ln_in_parallel_attn: Size | None = None
    bias: bool = False
    tie_word_embeddings: bool = True


class GptNeoX(Fields):
    vocab_size: Vocab
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Heads
    attention_bias: bool = True
    tie_word_embeddings: bool = False


class Bert(Fields):
    vocab_size: Vocab
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Heads
    max_position_embeddings: Size
    type_vocab_size: Size = 2
    tie_word_embeddings: bool = True


def gpt2(c: Gpt2) -> Counted:
    n, width = c.n_layer, c.n_embd
    ffn = 4 * width if c.n_inner is None else c.n_inner
    head = split_heads(width, c.n_head, "n_embd")
    tensors = [
        *embedding("embedding", c.vocab_size, width), *embedding("positions", c.n_positions, width),
        *layer_norm("layers.norm0", width, copies=n), *linear("layers.qkv", 3 * width, width, copies=n, bias=True),
        *linear("layers.o", width, width, copies=n, bias=True), *layer_norm("layers.norm1", width, copies=n),
        *linear("layers.up", ffn, width, copies=n, bias=True), *linear("layers.down", width, ffn, copies=n, bias=True),
        *layer_norm("final_norm", width), *lm_head(c.vocab_size, width, c.tie_word_embeddings),
    ]
    return Counted(tensors=tuple(tensors), kv=KvCache(layers=n, kv_heads=c.n_head, head_dim=head))


def opt(c: Opt) -> Counted:
    """Two rows of the position table are padding; opt-350m projects its narrower embedding in and out."""
    n, width, bias = c.num_hidden_layers, c.hidden_size, c.enable_bias
    head = split_heads(width, c.num_attention_heads)
    narrow = width if c.word_embed_proj_dim is None else c.word_embed_proj_dim

    def norm(name: str, copies: int = 1) -> list[Tensor]:
        return layer_norm(name, width, copies=copies) if c.layer_norm_elementwise_affine else []

    tensors = [
        *embedding("embedding", c.vocab_size, narrow), *embedding("positions", c.max_position_embeddings + 2, width),
        *(linear("layers." + name, width, width, copies=n, bias=bias)[i] for name in "qkvo" for i in range(1 + bias)),
        *norm("layers.norm0", n), *norm("layers.norm1", n),
        *linear("layers.up", c.ffn_dim, width, copies=n, bias=bias), *linear("layers.down", width, c.ffn_dim, copies=n, bias=bias),
        *lm_head(c.vocab_size, narrow, c.tie_word_embeddings),
    ]
    if narrow != width:
        tensors += linear("project_in", width, narrow) + linear("project_out", narrow, width)
    if c.do_layer_norm_before and not c.remove_final_layer_norm:
        tensors += norm("final_norm")
    return Counted(tensors=tuple(tensors), kv=KvCache(layers=n, kv_heads=c.num_attention_heads, head_dim=head))


def bloom(c: Bloom) -> Counted:
    n, width = c.n_layer, c.hidden_size
    head = split_heads(width, c.n_head)
    tensors = [
        *embedding("embedding", c.vocab_size, width), *layer_norm("embedding_norm", width),
        *layer_norm("layers.norm0", width, copies=n), *linear("layers.qkv", 3 * width, width, copies=n, bias=True),
        *linear("layers.o", width, width, copies=n, bias=True), *layer_norm("layers.norm1", width, copies=n),
        *linear("layers.up", 4 * width, width, copies=n, bias=True), *linear("layers.down", width, 4 * width, copies=n, bias=True),
        *layer_norm("final_norm", width), *lm_head(c.vocab_size, width, c.tie_word_embeddings),
    ]
    return Counted(tensors=tuple(tensors), kv=KvCache(layers=n, kv_heads=c.n_head, head_dim=head))


def falcon(c: Falcon) -> Counted:
    """One KV head (multi_query), groups of them (new_decoder_architecture), or one for each query head."""
    n, width, bias = c.num_hidden_layers, c.hidden_size, c.bias
    head = split_heads(width, c.num_attention_heads)
    if c.new_decoder_architecture:
        kv_heads = c.num_attention_heads if c.num_kv_heads is None else c.num_kv_heads
        if c.num_attention_heads % kv_heads:
            raise DoesNotFit("num_kv_heads", kv_heads, f"a divisor of num_attention_heads = {c.num_attention_heads}")
    else:
        kv_heads = 1 if c.multi_query else c.num_attention_heads
    ln = c.num_ln_in_parallel_attn
    if ln is None:
        ln = 2 if c.new_decoder_architecture else 1
    norms = 2 if not c.parallel_attn or (c.new_decoder_architecture and ln == 2) else 1
    ffn = 4 * width if c.ffn_hidden_size is None else c.ffn_hidden_size
    tensors = [
        *embedding("embedding", c.vocab_size, width),
        *linear("layers.qkv", width + 2 * kv_heads * head, width, copies=n, bias=bias),
        *linear("layers.o", width, width, copies=n, bias=bias),
        *linear("layers.up", ffn, width, copies=n, bias=bias), *linear("layers.down", width, ffn, copies=n, bias=bias),
        *(tensor for i in range(norms) for tensor in layer_norm(f"layers.norm{i}", width, copies=n)),
        *layer_norm("final_norm", width), *lm_head(c.vocab_size, width, c.tie_word_embeddings),
    ]
    return Counted(tensors=tuple(tensors), kv=KvCache(layers=n, kv_heads=kv_heads, head_dim=head))


def gpt_neox(c: GptNeoX) -> Counted:
    n, width, ffn = c.num_hidden_layers, c.hidden_size, c.intermediate_size
    head = split_heads(width, c.num_attention_heads)
    tensors = [
        *embedding("embedding", c.vocab_size, width),
        *layer_norm("layers.norm0", width, copies=n), *linear("layers.qkv", 3 * width, width, copies=n, bias=c.attention_bias),
        *linear("layers.o", width, width, copies=n, bias=c.attention_bias), *layer_norm("layers.norm1", width, copies=n),
        *linear("layers.up", ffn, width, copies=n, bias=True), *linear("layers.down", width, ffn, copies=n, bias=True),
        *layer_norm("final_norm", width), *lm_head(c.vocab_size, width, c.tie_word_embeddings),
    ]
    return Counted(tensors=tuple(tensors), kv=KvCache(layers=n, kv_heads=c.num_attention_heads, head_dim=head))


def bert(c: Bert) -> Counted:
    """An encoder: nothing is cached. Its head is a dense layer, a norm, and a decoder with a bias."""
    n, width, ffn = c.num_hidden_layers, c.hidden_size, c.intermediate_size
    split_heads(width, c.num_attention_heads)
    tensors = [
        *embedding("embedding", c.vocab_size, width), *embedding("positions", c.max_position_embeddings, width),
        *embedding("token_types", c.type_vocab_size, width), *layer_norm("embedding_norm", width),
        *(linear("layers." + name, width, width, copies=n, bias=True)[i] for name in "qkvo" for i in range(2)),
        *layer_norm("layers.norm0", width, copies=n), *layer_norm("layers.norm1", width, copies=n),
        *linear("layers.up", ffn, width, copies=n, bias=True), *linear("layers.down", width, ffn, copies=n, bias=True),
        *linear("head.dense", width, width, bias=True), *layer_norm("head.norm", width),
        *lm_head(c.vocab_size, width, c.tie_word_embeddings), Tensor(name="lm_head.bias", shape=(c.vocab_size,), kind="bias"),
    ]
    return Counted(tensors=tuple(tensors), kv=None)


ARCHITECTURES = {
    "GPT2LMHeadModel": Architecture(fields=Gpt2, count=gpt2),
    "OPTForCausalLM": Architecture(fields=Opt, count=opt),
    "BloomForCausalLM": Architecture(fields=Bloom, count=bloom),
    "FalconForCausalLM": Architecture(fields=Falcon, count=falcon),
    "GPTNeoXForCausalLM": Architecture(fields=GptNeoX, count=gpt_neox),
    "BertForMaskedLM": Architecture(fields=Bert, count=bert),
}
