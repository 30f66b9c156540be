"""Pieces that several wire formats share: timings, probabilities, usage, finish reasons."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import orjson

from corral.api.job import Job
from corral.events import Finished, Progress, StopReason, Timings, TokenProbs
from corral.ids import Token
from corral.ports import Tokenizer

Json = dict[str, object]

N_FEW = 128
"""Entries of a list that may be there as objects until it is written."""

FINISH_REASONS = {
    StopReason.EOS: "stop",
    StopReason.WORD: "stop",
    StopReason.LIMIT: "length",
    StopReason.NONE: "length",
}


def timings_json(t: Timings) -> Json:
    """Rates of generation divide by one token less: the first comes with the prompt."""
    n_gaps = max(t.n_predicted - 1, 0)
    return {
        "cache_n": t.n_cached,
        "prompt_n": t.n_prompt,
        "prompt_ms": t.prompt_ms,
        "prompt_per_token_ms": _ratio(t.prompt_ms, t.n_prompt),
        "prompt_per_second": _ratio(1e3 * t.n_prompt, t.prompt_ms),
        "predicted_n": t.n_predicted,
        "predicted_ms": t.predicted_ms,
        "predicted_per_token_ms": _ratio(t.predicted_ms, n_gaps),
        "predicted_per_second": _ratio(1e3 * n_gaps, t.predicted_ms),
    }


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def progress_json(p: Progress) -> Json:
    return {"total": p.n_total, "cache": p.n_cached, "processed": p.n_processed, "time_ms": int(p.time_ms)}


def usage_json(job: Job, results: Sequence[Finished]) -> Json:
    """Prompt tokens counted once for all siblings, generated ones summed; ``cached_tokens`` like the prompt's."""
    parents = {group[0].id for group in job.groups}
    n_completion = sum(result.timings.n_predicted for result in results)
    n_cached = sum(result.timings.n_cached for result in results if result.task_id in parents)
    return {
        "completion_tokens": n_completion,
        "prompt_tokens": job.n_prompt,
        "total_tokens": job.n_prompt + n_completion,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    }


def probs_json(probs: Sequence[TokenProbs], tokenizer: Tokenizer) -> list[Json]:
    return [_position(entry, tokenizer) for entry in probs]


def shown_probs(result: Finished, tokenizer: Tokenizer) -> tuple[TokenProbs, ...]:
    """The entries of tokens that the text shows: those of a stop string, which was cut off, are left out."""
    if result.reason is not StopReason.WORD:
        return result.probs
    n_left, n_shown = len(result.text.encode()), 0
    for entry in result.probs:
        if n_left <= 0:
            break
        n_left -= len(tokenizer.piece(entry.token, special=False))
        n_shown += 1
    return result.probs[:n_shown]


def _position(entry: TokenProbs, tokenizer: Tokenizer) -> Json:
    key, top_key = ("prob", "top_probs") if entry.post_sampling else ("logprob", "top_logprobs")
    shown = (_token(token, p, key, tokenizer) for token, p in entry.top if p or not entry.post_sampling)
    top: object = list(shown) if len(entry.top) <= N_FEW else orjson.Fragment(_packed(shown))
    return {**_token(entry.token, entry.p, key, tokenizer), top_key: top}


def _packed(entries: Iterator[Json]) -> bytes:
    """Many objects as the text of a JSON array: they take ten times as much."""
    return b"[%b]" % b",".join(map(orjson.dumps, entries))


def _token(token: Token, p: float, key: str, tokenizer: Tokenizer) -> Json:
    piece = tokenizer.piece(token, special=True)
    # Half a character has no text; its bytes are there.
    text = piece.decode("utf-8", "ignore")
    return {"id": token, "token": text, "bytes": list(piece), key: bounded(p)}


def text_logprob(entry: TokenProbs, tokenizer: Tokenizer, n_top: int) -> Json:
    """An entry of ``logprobs`` in a text part of OpenAI's Responses."""
    top = [_text_token(token, p, tokenizer) for token, p in entry.top[:n_top]]
    return {**_text_token(entry.token, entry.p, tokenizer), "top_logprobs": top}


def _text_token(token: Token, p: float, tokenizer: Tokenizer) -> Json:
    shown = _token(token, p, "logprob", tokenizer)
    return {key: shown[key] for key in ("token", "bytes", "logprob")}


def bounded(p: float) -> float:
    """JSON has no infinity."""
    return max(p, -sys.float_info.max)
