"""Owns constraints for one vocabulary: compiles schemas, regexes and grammars, and remembers the last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import cached_property

import orjson
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from corral.errors import InvalidRequest
from corral.guidance.blame import where
from corral.guidance.deep import on_deep_stack
from corral.guidance.limits import check_lark, check_length, check_schema
from corral.guidance.matcher import GuidedMatcher
from corral.guidance.trial import fault_of, json_grammar, plain
from corral.guidance.vocabulary import Vocabulary
from corral.ports import ModelInfo, Tokenizer
from corral.tasks import Constraint, ConstraintKind

N_REMEMBERED = 64

_Key = tuple[ConstraintKind, str, str]

_LIMITS = LLParserLimits(step_lexer_fuel=50_000, max_items_in_row=8_000, verbose_errors=False)
"""A mask takes at most some tens of milliseconds before a constraint is given up. Each optional member is 4 items."""


class Guide:
    """Makes matchers. Safe to use from several threads; one constraint is compiled at a time.

    The first use reads the vocabulary: about a quarter of a second for 50,000 tokens.
    """

    def __init__(self, tokenizer: Tokenizer, info: ModelInfo) -> None:
        self._tokenizer = tokenizer
        self._info = info
        self._compiling = threading.Lock()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[_Key, LLMatcher] = OrderedDict()

    def matcher(self, constraint: Constraint) -> GuidedMatcher:
        """A matcher at the beginning of what ``constraint.text`` describes.

        Raises InvalidRequest, with the place and the reason, for what does not compile within the limits.
        """
        key = (constraint.kind, constraint.text, constraint.head)
        found = self._remembered(key)
        if found is None:
            with self._compiling:
                found = self._remembered(key) or self._compile_deep(key)
        return GuidedMatcher(found, self._vocabulary, constraint.kind)

    def _remembered(self, key: _Key) -> LLMatcher | None:
        """A copy of the matcher that was compiled for this text."""
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                return None
            self._compiled.move_to_end(key)
            return found.deep_copy()

    def _compile_deep(self, key: _Key) -> LLMatcher:
        check_length(*key[:2])
        matcher = on_deep_stack(lambda: self._compile(*key))
        with self._lock:
            self._compiled[key] = matcher
            while len(self._compiled) > N_REMEMBERED:
                self._compiled.popitem(last=False)
            return matcher.deep_copy()

    def _compile(self, kind: ConstraintKind, text: str, head: str) -> LLMatcher:
        grammar = _grammar(kind, text)
        matcher, fault = self._try(grammar)
        if fault and kind is ConstraintKind.JSON_SCHEMA:
            raise InvalidRequest(where(_parsed(text), fault, lambda part: self._try(json_grammar(part))[1]))
        if head and not fault:
            matcher, fault = self._try(_behind(head, grammar))
        if fault:
            raise InvalidRequest(f"{kind}: {fault}")
        return matcher

    def _try(self, grammar: str) -> tuple[LLMatcher, str]:
        """The matcher, and why it cannot be used if it cannot. Its first mask is tried too: much shows only there."""
        matcher = LLMatcher(self._vocabulary.tokenizer, grammar, log_level=0, limits=_LIMITS)
        fault = matcher.get_error()
        if not fault:
            trial = matcher.deep_copy()
            trial.compute_bitmask()
            fault = trial.get_error()
        return matcher, plain(fault)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        vocabulary = Vocabulary(self._tokenizer, self._info)
        eog = sorted(self._info.eog_tokens) or [vocabulary.eos_token_id]
        vocabulary.tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), eos_token=eog)
        return vocabulary


def check_schema_text(text: str) -> None:
    """What can be said of a schema without a vocabulary. Raises InvalidRequest with the place and the reason."""

    def run() -> None:
        schema = _parsed(text)
        if fault := fault_of(schema):
            raise InvalidRequest(where(schema, fault, fault_of))

    check_length(ConstraintKind.JSON_SCHEMA, text)
    on_deep_stack(run)


def _grammar(kind: ConstraintKind, text: str) -> str:
    """The same for llguidance. Raises InvalidRequest."""
    match kind:
        case ConstraintKind.JSON_SCHEMA:
            return json_grammar(_parsed(text))
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(text)
        case ConstraintKind.LARK:
            check_lark(text)
            return LLMatcher.grammar_from_lark(text)
        case ConstraintKind.GBNF:
            return LLMatcher.grammar_from_lark(_lark_of(text))


def _behind(head: str, grammar: str) -> str:
    """A grammar behind a head in lark that calls it \"@answer\"."""
    is_lark = not grammar.startswith("{")
    answer = {"lark_grammar": grammar} if is_lark else orjson.loads(grammar)["grammars"][0]
    return orjson.dumps({"grammars": [{"lark_grammar": head}, {**answer, "name": "answer"}]}).decode()


def _parsed(text: str) -> object:
    """A schema that is not too large to compile. Raises InvalidRequest."""
    try:
        schema = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"json_schema: not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    check_schema(schema)
    return schema


def _lark_of(gbnf: str) -> str:
    try:
        return gbnf_to_lark(gbnf)
    except Exception as error:  # some of its errors are bare ones
        raise InvalidRequest(f"Failed to initialize samplers: grammar: {str(error) or 'nested too deep'}") from None
