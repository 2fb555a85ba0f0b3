"""Learning BPE merges from a text: small, plain and deterministic.

The algorithm (Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016, §3.2): write
every word as symbols, count all neighbouring pairs, merge the most frequent pair into a new symbol, repeat. Each
round rescans the words, which is O(merges x text): fine for the few hundred merges of a test vocabulary; real
trainers keep the pair counts up to date.
"""

import re
from collections import Counter
from itertools import pairwise

from aie_loader.text.byte_level import byte_to_char

__all__ = ["learn_merges"]


def learn_merges(text: str, max_merges: int) -> list[tuple[str, str]]:
    """At most `max_merges` merges in order of priority, in the byte alphabet. Stops where no pair occurs twice.

    Ties go to the pair that sorts first, so that the result does not depend on hash order.
    """
    alphabet = byte_to_char()
    words: Counter[tuple[str, ...]] = Counter()
    for word in re.findall(r" ?\S+", text):
        words[tuple(alphabet[byte] for byte in word.encode())] += 1
    merges: list[tuple[str, str]] = []
    while len(merges) < max_merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for symbols, count in words.items():
            for pair in pairwise(symbols):
                pairs[pair] += count
        if not pairs:
            break
        best, frequency = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        if frequency < 2:
            break
        merges.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for symbols, count in words.items():
            merged[_merge(symbols, best)] += count
        words = merged
    return merges


def _merge(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    index = 0
    while index < len(symbols):
        if symbols[index : index + 2] == pair:
            out.append(pair[0] + pair[1])
            index += 2
        else:
            out.append(symbols[index])
            index += 1
    return tuple(out)
