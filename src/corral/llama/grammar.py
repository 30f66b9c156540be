"""Owns the check of a user's GBNF before libllama sees it.

libllama's parser overflows the stack, never ends or runs out of memory on some grammars, and its sampler takes minutes
for one token of others; its own checks come too late.
"""

from __future__ import annotations

import functools

from corral.llama.ambiguity import check_ambiguity
from corral.llama.gbnf import Alternate, Graph, bad_grammar, read

MAX_CHARS = 256_000
MAX_CHAIN = 4096  # rules that begin with a rule that begins with a rule ...: a frame each
MAX_LEFTMOST = 5_000  # ways to begin a rule; libllama walks all of them at once
MAX_EMPTY = 64  # ways through parts in a row that may be empty: its third power is the cost of a token


@functools.lru_cache(maxsize=32)
def check_grammar(text: str) -> frozenset[str]:
    """The texts of ``<token>``, each of which must be one token of the vocabulary.

    Raises InvalidRequest if ``text`` is not a grammar with a rule ``root`` that libllama can take.

    What passed last is remembered: it is asked for before the engine and again in it, and requests of one program share
    a grammar.
    """
    if len(text) > MAX_CHARS:
        raise bad_grammar(f"it has {len(text)} characters; at most {MAX_CHARS} are possible")
    if "\0" in text:
        raise bad_grammar("it has a NUL character")
    graph = read(text)
    _check_names(graph)
    nullable = _nullable(graph.rules)
    _check_empty_runs(graph.rules, nullable, _count_ways(graph.rules, nullable))
    check_ambiguity(graph)
    return frozenset(graph.tokens)


def _check_names(graph: Graph) -> None:
    if "root" not in graph.defined:
        raise bad_grammar("there is no rule 'root'")
    if missing := next((name for name in graph.numbers if name not in graph.defined), None):
        raise bad_grammar(f"rule {missing!r} is not defined")


def _nullable(rules: list[list[Alternate]]) -> set[int]:
    """The rules that can match nothing."""
    missing: dict[tuple[int, int], int] = {}
    uses: dict[int, list[tuple[int, int]]] = {}
    todo: list[int] = []
    for number, alternates in enumerate(rules):
        for index, alternate in enumerate(alternates):
            missing[number, index] = len(alternate)
            if not alternate:
                todo.append(number)
            for symbol in alternate:
                uses.setdefault(symbol, []).append((number, index))
    found: set[int] = set()
    while todo:
        number = todo.pop()
        if number in found:
            continue
        found.add(number)
        for use in uses.get(number, ()):
            missing[use] -= 1
            if not missing[use]:
                todo.append(use[0])
    return found


def _leftmost(alternates: list[Alternate], nullable: set[int]) -> list[int]:
    """The rules with which a rule may begin, as often as libllama visits them."""
    first = []
    for alternate in alternates:
        for symbol in alternate:
            if symbol >= 0:
                first.append(symbol)
            if symbol not in nullable:
                break
    return first


def _count_ways(rules: list[list[Alternate]], nullable: set[int]) -> list[int]:
    """In how many ways each rule can begin. No rule may begin with itself; the ways must be few and short."""
    edges = [_leftmost(alternates, nullable) for alternates in rules]
    ways = [0] * len(rules)
    depth = [0] * len(rules)
    in_progress = [False] * len(rules)
    for start in range(len(rules)):
        stack = [start]
        while stack:
            rule = stack[-1]
            if ways[rule]:
                stack.pop()
            elif not in_progress[rule]:
                in_progress[rule] = True
                stack += (_entered(edge, in_progress) for edge in set(edges[rule]) if not ways[edge])
            else:
                stack.pop()
                # copies of a part that can be empty are one chain in libllama
                depth[rule] = len(edges[rule]) + max((depth[edge] for edge in edges[rule]), default=0)
                ways[rule] = 1 + sum(ways[edge] for edge in edges[rule])
                in_progress[rule] = False
                if ways[rule] > MAX_LEFTMOST or depth[rule] > MAX_CHAIN:
                    raise bad_grammar("too many ways to begin a rule")
    return ways


def _check_empty_runs(rules: list[list[Alternate]], nullable: set[int], ways: list[int]) -> None:
    for alternates in rules:
        for alternate in alternates:
            run = 0
            for symbol in alternate:
                run = run + ways[symbol] if symbol in nullable else 0
                if run > MAX_EMPTY:
                    raise bad_grammar("too many parts in a row that may be empty")


def _entered(rule: int, in_progress: list[bool]) -> int:
    if in_progress[rule]:
        raise bad_grammar("left recursion: a rule begins with itself")
    return rule
