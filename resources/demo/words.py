"""The two tokenizers of the demo, trained on its captions: a T5 one and a CLIP one."""

import json
import math
import random
from collections import Counter
from collections.abc import Sequence

import torch
from resources.demo.scenes import caption_of, training_scene
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTokenizer, PreTrainedTokenizerBase, T5Tokenizer

MAX_TOKENS = 32
NUM_CAPTIONS = 20_000
# Log-probability of a letter by itself: below that of any word made of known pieces.
RARE = -20.0
CLIP_VOCABULARY = 256
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


def sample_captions(seed: int) -> list[str]:
    """Return training captions to learn a vocabulary from."""
    rng = random.Random(seed)  # noqa: S311 - captions, not secrets
    return [caption_of(training_scene(rng)) for _ in range(NUM_CAPTIONS)]


def train_t5_tokenizer(captions: Sequence[str]) -> PreTrainedTokenizerBase:
    """Fit a T5 (unigram) tokenizer: <pad> is 0, </s> is 1 and ends every text, <unk> is 2.

    The pieces are the words of the captions, each with its log-frequency: the most likely unigram
    model there is. The usual trainer looks for strings that several words share, and with so few
    words finds only letters. Letters follow as rare pieces, so that other words have tokens too.
    """
    counts = Counter(word for caption in captions for word in caption.split())
    total = counts.total()
    words = [(f"▁{word}", math.log(count / total)) for word, count in counts.most_common()]
    known = {piece for piece, _ in words}
    letters = [piece for piece in ("▁", *LETTERS) if piece not in known]
    specials = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return T5Tokenizer(
        vocab=[*specials, *words, *((letter, RARE) for letter in letters)],
        extra_ids=0,
        model_max_length=MAX_TOKENS,
        padding_side="right",
    )


def train_clip_tokenizer(captions: Sequence[str]) -> PreTrainedTokenizerBase:
    """Train a CLIP (byte-pair) tokenizer; as in CLIP, padding is the end-of-text token."""
    specials = ["<|startoftext|>", "<|endoftext|>"]
    raw = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=CLIP_VOCABULARY,
        special_tokens=specials,
        initial_alphabet=LETTERS,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    # Each letter once as the end of a word, so that it has a token there too.
    raw.train_from_iterator([*captions, *LETTERS], trainer)
    model = json.loads(raw.to_str())["model"]
    pieces = set(model["vocab"])
    merges = [
        tuple(pair) if isinstance(pair, list) else tuple(pair.split()) for pair in model["merges"]
    ]
    # The trainer numbers letters in another order each time: number all pieces by the alphabet.
    vocabulary = {piece: i for i, piece in enumerate([*specials, *sorted(pieces - {*specials})])}
    return CLIPTokenizer(
        vocab=vocabulary, merges=merges, model_max_length=MAX_TOKENS, padding_side="right"
    )


def token_ids(
    tokenizer: PreTrainedTokenizerBase, captions: Sequence[str], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and attention mask, both int64 (captions, 32), padded on the right."""
    tokens = tokenizer(
        list(captions),
        padding="max_length",
        max_length=MAX_TOKENS,
        truncation=True,
        return_attention_mask=True,
        return_tensors="pt",
    )
    return tokens.input_ids.to(device), tokens.attention_mask.to(device)
