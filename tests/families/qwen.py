"""A tiny Qwen2.5-VL, of which Qwen-Image uses the part that reads text."""

from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

FEATURES = 16
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
AFTER_SPACE = (
    *("the", "image", "by", "detailing", "color", "shape", "size", "texture", "quantity", "text"),
    *("spatial", "relationships", "of", "objects", "and", "background"),
    *("red", "dog", "house", "on"),
)
AT_START = ("Describe", "system", "user", "assistant")


def tiny_qwen_tokenizer() -> Qwen2Tokenizer:
    """Knows the words of Qwen-Image's template and some more, spells out everything else."""
    merges = [merge for word in AFTER_SPACE for merge in _merges(f"Ġ{word}")]
    merges += [merge for word in AT_START for merge in _merges(word)]
    merges = list(dict.fromkeys(merges))
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    # Bytes have printable names: a space is Ġ, a new line Ċ.
    pieces = [*SPECIAL, *letters, "Ġ", "Ċ", *("".join(merge) for merge in merges)]
    return Qwen2Tokenizer(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=merges,
        extra_special_tokens=list(SPECIAL[1:]),
        padding_side="right",
    )


def _merges(word: str) -> list[tuple[str, str]]:
    """The pairs that join to a word from its beginning on."""
    return [(word[:end], word[end]) for end in range(1, len(word))]


def tiny_qwen(vocab_size: int) -> Qwen2_5_VLForConditionalGeneration:
    """Two layers that read, one that would see."""
    text = {
        "vocab_size": vocab_size,
        "hidden_size": FEATURES,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [1, 1, 2],
            "rope_theta": 1000000.0,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": FEATURES,
    }
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    return Qwen2_5_VLForConditionalGeneration(config).eval()
