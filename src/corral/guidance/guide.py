"""Owns constraints for one vocabulary: compiles schemas, regexes and grammars, and remembers the last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import orjson
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from corral.errors import InvalidRequest
from corral.guidance.blame import where
from corral.guidance.limits import check_lark, check_length, check_schema
from corral.guidance.matcher import GuidedMatcher, plain
from corral.guidance.vocabulary import Vocabulary
from corral.ports import ModelInfo, Tokenizer
from corral.tasks import Constraint, ConstraintKind

T = TypeVar("T")

_STACK_SIZE = threading.Lock()
"""Python has one size for the stacks of all new threads."""

N_REMEMBERED = 64
STACK_BYTES = 512 << 20
"""llguidance compiles by recursion, a few KiB for each rule that leads to a rule. Only what is used takes memory."""

WHITE_SPACE = r" |\n{1,2}[ \t]{0,20}"
"""Between the tokens of JSON, as in llama-server: small models would go on with white space for ever."""

_LIMITS = LLParserLimits(step_lexer_fuel=50_000, max_items_in_row=5_000, verbose_errors=False)
"""A mask takes at most some tens of milliseconds before a constraint is given up."""


class Guide:
    """Makes matchers. Safe to use from several threads; one constraint is compiled at a time.

    The first use reads the vocabulary: about a quarter of a second for 50,000 tokens.
    """

    def __init__(self, tokenizer: Tokenizer, info: ModelInfo) -> None:
        self._tokenizer = tokenizer
        self._info = info
        self._compiling = threading.Lock()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[tuple[ConstraintKind, str], LLMatcher] = OrderedDict()

    def matcher(self, constraint: Constraint) -> GuidedMatcher:
        """A matcher at the beginning of what ``constraint.text`` describes.

        Raises InvalidRequest, with the place and the reason, for what does not compile within the limits.
        """
        key = (constraint.kind, constraint.text)
        found = self._remembered(key)
        if found is None:
            with self._compiling:
                found = self._remembered(key) or self._compile_deep(*key)
        return GuidedMatcher(found, self._vocabulary, constraint.kind)

    def _remembered(self, key: tuple[ConstraintKind, str]) -> LLMatcher | None:
        """A copy of the matcher that was compiled for this text."""
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                return None
            self._compiled.move_to_end(key)
            return found.deep_copy()

    def _compile_deep(self, kind: ConstraintKind, text: str) -> LLMatcher:
        check_length(kind, text)
        matcher = _on_deep_stack(lambda: self._compile(kind, text))
        with self._lock:
            self._compiled[kind, text] = matcher
            while len(self._compiled) > N_REMEMBERED:
                self._compiled.popitem(last=False)
            return matcher.deep_copy()

    def _compile(self, kind: ConstraintKind, text: str) -> LLMatcher:
        match kind:
            case ConstraintKind.JSON_SCHEMA:
                return self._compile_schema(text)
            case ConstraintKind.REGEX:
                grammar = LLMatcher.grammar_from_regex(text)
            case ConstraintKind.LARK:
                check_lark(text)
                grammar = LLMatcher.grammar_from_lark(text)
            case ConstraintKind.GBNF:
                grammar = LLMatcher.grammar_from_lark(_lark_of(text))
        matcher, fault = self._try(grammar)
        if fault:
            raise InvalidRequest(f"{kind}: {fault}")
        return matcher

    def _compile_schema(self, text: str) -> LLMatcher:
        schema = _parsed(text)
        matcher, fault = self._try_schema(schema)
        if fault:
            raise InvalidRequest(where(schema, fault, lambda part: self._try_schema(part)[1]))
        return matcher

    def _try_schema(self, schema: object) -> tuple[LLMatcher, str]:
        return self._try(_grammar_of(schema))

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

    def fault_of(schema: object) -> str:
        return plain(LLMatcher.validate_grammar(_grammar_of(schema), None))

    def run() -> None:
        schema = _parsed(text)
        if fault := fault_of(schema):
            raise InvalidRequest(where(schema, fault, fault_of))

    check_length(ConstraintKind.JSON_SCHEMA, text)
    _on_deep_stack(run)


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


def _grammar_of(schema: object) -> str:
    shown = {True: {}, False: {"enum": []}}[schema] if isinstance(schema, bool) else schema
    text = orjson.dumps(shown).decode()
    return LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": WHITE_SPACE})


def _lark_of(gbnf: str) -> str:
    try:
        return gbnf_to_lark(gbnf)
    except Exception as error:  # some of its errors are bare ones
        raise InvalidRequest(f"Failed to initialize samplers: grammar: {str(error) or 'nested too deep'}") from None


def _on_deep_stack(work: Callable[[], T]) -> T:
    """``work`` on a thread of its own, whose stack is large."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="corral-compile", daemon=True)
    with _STACK_SIZE:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
