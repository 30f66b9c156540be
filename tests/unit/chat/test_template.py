"""Chat templates render what Hugging Face's would, and refuse in words."""

from __future__ import annotations

from datetime import datetime

import pytest

from corral.chat.template import ChatTemplate, Message
from corral.errors import InvalidRequest, LoadError

HELLO: list[Message] = [{"role": "user", "content": "hi"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, "<s>", "</s>", now=lambda: datetime(2031, 2, 3))


def test_chatml_by_name() -> None:
    assert template("chatml").render(HELLO) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert template("chatml").render(HELLO, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_blocks_leave_no_whitespace_behind() -> None:
    source = (
        "{{ bos_token }}\n{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert template(source).render(HELLO) == "<s>\nhi\n"


def test_loop_controls() -> None:
    source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    assert template(source).render([*HELLO, {"role": "user", "content": "x"}]) == "hi"


def test_tojson_keeps_letters_and_marks() -> None:
    source = "{{ messages[0].content }}{{ {'a': 'é<b>&\\'', 'n': none} | tojson }}"
    assert template(source).render(HELLO) == "hi" + """{"a": "é<b>&'", "n": null}"""


def test_dates() -> None:
    source = "{{ messages[0].content }} {{ strftime_now('%Y-%m-%d') }} {{ date_string }} {{ datetime }}"
    assert template(source).render(HELLO) == "hi 2031-02-03 03 Feb 2031 Feb 03 2031"


def test_raise_exception_reaches_the_user() -> None:
    source = "{% if messages[0].content == 'bad' %}{{ raise_exception('roles must alternate') }}{% endif %}x"
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template(source).render([{"role": "user", "content": "bad"}])


@pytest.mark.parametrize("source", ["{{ messages[7].content }}", "{{ 1 / 0 }}", "{{ ''.__class__.__mro__ }}"])
def test_a_failing_template_is_the_requests_fault(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template failed"):
        template(source).render(HELLO)


def test_a_template_may_not_change_what_it_is_given() -> None:
    source = (
        "{% set _ = messages.append({'content': 'x'}) %}{% set _ = messages[0].update(content='y') %}{{ messages }}"
    )
    assert "'y'" in template(source).render(HELLO)
    assert HELLO == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "source",
    [
        "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
        "{{ 1" + "+1" * 20_000 + "}}",
    ],
    ids=["brackets", "blocks", "sums"],
)
def test_a_template_that_is_nested_too_deep_does_not_load(source: str) -> None:
    with pytest.raises(LoadError, match="does not compile"):
        template(source)


def test_a_broken_template_does_not_load() -> None:
    with pytest.raises(LoadError, match="does not compile"):
        template("{% for %}")


def test_kwargs_reach_the_template_but_do_not_replace_messages() -> None:
    source = "{{ messages[0].content }}{{ mood }}"
    assert template(source).render(HELLO, kwargs={"mood": "!", "messages": []}) == "hi!"


def test_system_text_goes_to_the_next_message_where_the_template_has_no_system_role() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ m.role }}:{{ m.content }}]{% endfor %}"
    )
    messages: list[Message] = [{"role": "system", "content": "be brief"}, *HELLO]
    assert template(source).render(messages) == "[user:be brief\nhi]"
    assert template(source).render(messages[:1]) == "[user:be brief]"


def test_text_is_typed_where_the_template_wants_parts() -> None:
    source = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    assert template(source).caps.supports_typed_content
    assert not template(source).caps.supports_string_content
    assert template(source).render(HELLO) == "hi"


def test_capabilities() -> None:
    plain = template("chatml").caps
    assert plain.supports_string_content and plain.supports_system_role
    assert not plain.supports_tools and not plain.supports_tool_calls
    tools = template("{% for t in tools %}{{ t.function.name }}{% endfor %}{{ messages[0].content }}").caps
    assert tools.supports_tools


def test_capabilities_of_a_template_with_calls_and_thoughts() -> None:
    source = (
        "{{ reasoning_effort }}{% for m in messages %}{{ m.content }}"
        "{% if preserve_thinking %}{{ m.reasoning_content }}{% endif %}"
        "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    caps = template(source).caps
    assert caps.supports_tool_calls and caps.supports_parallel_tool_calls and caps.supports_object_arguments
    assert caps.supports_preserve_reasoning and caps.supports_reasoning_effort
    assert not caps.supports_tools


def test_a_template_that_loops_over_tools_needs_none() -> None:
    source = "{% for tool in tools %}{{ tool }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    template = ChatTemplate(source, "", "")
    assert template.caps.supports_string_content and template.caps.supports_tools
    assert template.render([{"role": "user", "content": "hi"}]) == "hi"
    asks = ChatTemplate("{{ 'tools' if tools is not none }}{{ messages[0].content }}", "", "")
    assert asks.render([{"role": "user", "content": "hi"}]) == "hi"


TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "b": True}}},
}


def test_a_template_that_prints_every_description() -> None:
    """Command R+'s fails where there is none."""
    source = (
        "{% for t in tools or [] %}{{ t.function.name }}{% for n, p in t.function.parameters.properties | items %}"
        "{{ n + ':' + p.description if p is mapping else n }}{% endfor %}{% endfor %}{{ messages[0].content }}"
    )
    made = ChatTemplate(source, "", "")
    assert made.caps.supports_tools
    assert made.render([{"role": "user", "content": "hi"}], tools=[TOOL]) == "fa:bhi"


def test_a_template_that_takes_functions_as_text() -> None:
    """Firefunction's."""
    made = ChatTemplate("{{ 'Functions: ' + functions }}{{ messages[0].content }}", "", "")
    assert made.caps.supports_tools
    assert made.render([{"role": "user", "content": "hi"}]) == "Functions: hi"
    assert '"name": "f"' in made.render([{"role": "user", "content": "hi"}], tools=[TOOL])
