"""Which grammars may reach libllama: not those on which its sampler would work for minutes."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from corral.config import ModelConfig
from corral.errors import InvalidRequest
from corral.llama.grammar import check_grammar
from corral.llama.model import LlamaModel
from corral.tasks import Sampling


@pytest.fixture(scope="module")
def model(tiny_model):
    model = LlamaModel.load(ModelConfig(tiny_model))
    yield model
    model.close()


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
LIST = r"""
root ::= item+
# Excludes various line break characters
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""
CHESS = r"""
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"""
TWO_WAYS = 'root ::= (word " "?)+\nword ::= [a-z]{1,20}'
SPACES = 'root ::= "{" ws ("a" ws)? ws ("b" ws)? ws "}"\nws ::= [ \\t\\n]*'
ANYWHERE = 'root ::= .* "needle" .*'


@pytest.mark.parametrize("grammar", [JSON, ARITHMETIC, LIST, CHESS, TWO_WAYS, SPACES, ANYWHERE])
def test_usual_grammars_pass(grammar):
    check_grammar(grammar)


STARS = "[a-z ]* [a-z ]* [a-z ]* [a-z ]*"
AMBIGUOUS = {
    "stars in a loop": f"root ::= (a a a)*\na ::= {STARS}",
    "behind a long text": f'root ::= "{"x" * 100}" (a a a)* "."\na ::= {STARS}',
    "many stars": "root ::= " + "[a-z]* " * 32 + '"!"',
    "counted": "root ::= " + "[a-z]{0,40} " * 20 + '"!"',
    "negative classes": 'root ::= (a | b | c)* "."\na ::= [^.]\nb ::= [^,.]\nc ::= [^;.]',
    "one character is common": "root ::= ([a-m] | [m-z] | [lm] | [mn])*",
    "any character": "root ::= (. | . .)* (. | . . .)* (. | .)*",
    "literals": 'root ::= ("a" | [ab] | "aa" | "aaa")*',
    "a run of spaces": 'root ::= (" " | "  ")* "."',
    "closed after it was opened": 'root ::= r\nr ::= "(" r [a-z]* [a-z]* | "."',
    "escapes": r'root ::= ("\x61" | [\u0061] | [\U00000061-b])*',
}


@pytest.mark.parametrize("grammar", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_what_matches_one_text_in_very_many_ways_is_refused(grammar):
    with pytest.raises(
        InvalidRequest, match="Failed to initialize samplers: failed to parse grammar: it is too ambiguous"
    ):
        check_grammar(grammar)


def of_many_rules(n_rules: int) -> str:
    """What a JSON schema with that many properties becomes."""
    char = r'char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})'
    space = r'space ::= | " " | "\n"{1,2} [ \t]{0,20}'
    values = [r'"\"" char* "\"" space', '("-"? [0-9]{1,16}) space', r'("\"a\"" | "\"ab\"") space']
    pairs = [rf'k{i} ::= "\"name{i}\"" space ":" space v{i}' for i in range(n_rules // 2)]
    texts = [f"v{i} ::= {values[i % 3]}" for i in range(n_rules // 2)]
    members = ' "," space '.join(f"k{i}" for i in range(n_rules // 2))
    return "\n".join([f'root ::= "{{" space {members} "}}" space', *pairs, *texts, char, space])


def test_a_grammar_made_from_a_large_schema_is_checked_fast():
    start = time.process_time()
    check_grammar(of_many_rules(500))
    assert time.process_time() - start < 1.0


def test_the_check_itself_has_a_bound():
    rules = "\n".join(
        f"r{i} ::= " + " | ".join(f'"{chr(97 + k)}" r{(i + k) % 400}' for k in range(20)) for i in range(400)
    )
    start = time.process_time()
    with pytest.raises(InvalidRequest, match="too large or too ambiguous"):
        check_grammar(rules + "\nroot ::= r0 | " + " | ".join(f"r{i}" for i in range(1, 200)))
    assert time.process_time() - start < 5.0


ITEM = st.sampled_from(
    ['"a"', '"ab"', '""', "[ab]", "[^a]", "[]", "[^]", "[z-a]", "[a-]", ".", "<[3]>", "a", "b", "root"]
)
MARK = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{0}", "{1,}", "{0,3}", "{2,2000}", "**"])
PART = st.recursive(
    st.builds(str.__add__, ITEM, MARK),
    lambda part: st.builds(
        "({}){}".format,
        st.lists(part, min_size=1, max_size=4).flatmap(
            lambda p: st.sampled_from([" ", " | "]).map(lambda s: s.join(p))
        ),
        MARK,
    ),
    max_leaves=8,
)
RULE = st.lists(PART, max_size=4).flatmap(lambda parts: st.sampled_from([" ", " | "]).map(lambda s: s.join(parts)))


@given(st.builds("root ::= {}\na ::= {}\nb ::= {}".format, RULE, RULE, RULE))
def test_no_grammar_breaks_the_check(grammar):
    with suppress(InvalidRequest):
        check_grammar(grammar)


PIECE = st.sampled_from(
    [
        *(
            '"a"',
            '""',
            '"\\x4',
            '"\\x41"',
            "[a]",
            "[^]",
            "[",
            "]",
            ".",
            "(",
            ")",
            "|",
            "*",
            "+",
            "?",
            "{2}",
            "{0}",
            "{3,1}",
        ),
        *(
            "{2,}",
            "{ 1 , 900 }",
            "{1,\n2}",
            "{2001}",
            "<[1]>",
            "<[99999999999]>",
            "<[1x]>",
            "<[\u0663]>",
            "<s>",
            "<nothing>",
            "<>",
        ),
        *(
            "root",
            "a",
            "::=",
            "a ::=",
            "\na ::=",
            " ",
            "\n",
            "\r\n",
            "# x\n",
            "\t",
            "!<s>",
            "<",
            "!",
            "{",
            "-",
            "é",
            "\\",
        ),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(st.lists(PIECE, max_size=12).flatmap(lambda pieces: st.sampled_from(["", " "]).map(lambda s: s.join(pieces))))
@example('"a"\n"b"')
@example('"a" a ::= "b"')
@example("((((a{40})*){40})?){2}\na ::= .")
@example("<nothing>")
def test_libllama_never_complains_on_stderr_of_what_passes(model, capfd, tail):
    """Its parser writes the whole grammar there."""
    with suppress(InvalidRequest):
        model.new_sampler(Sampling(grammar=f"root ::= {tail}"), 1, 64).close()
    assert capfd.readouterr().err == ""


def test_a_token_that_the_model_does_not_have_is_named(model):
    model.new_sampler(Sampling(grammar="root ::= <[3]> !<[5]>"), 1, 64).close()
    with pytest.raises(InvalidRequest, match="<nothing> is not one token of this model"):
        model.new_sampler(Sampling(grammar="root ::= !<nothing>"), 1, 64)


@given(st.text('ab"[]()|*+?{}0123,^-.<>\\x: =\n#') | st.text())
def test_no_text_breaks_the_check(text):
    for grammar in (text, f"root ::= {text}"):
        with suppress(InvalidRequest):
            check_grammar(grammar)
