"""A tiny T5 encoder, for the families that read prompts with one."""

from transformers import T5Config, T5EncoderModel, T5Tokenizer

from tiny import TEXT_FEATURES, tiny_tokenizer


def tiny_t5_tokenizer() -> T5Tokenizer:
    """The tokenizer of the tiny Wan: UMT5's and T5's differ in their vocabulary alone."""
    return tiny_tokenizer()


def tiny_t5() -> T5EncoderModel:
    """A text encoder of one layer and `TEXT_FEATURES` features."""
    config = T5Config(
        vocab_size=len(tiny_t5_tokenizer()),
        d_model=TEXT_FEATURES,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
    )
    return T5EncoderModel(config).eval()
