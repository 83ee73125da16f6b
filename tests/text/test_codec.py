"""Encoding, chat templates and what they refuse."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from app.text.codec import TextCodec
from app.text.errors import ChatTemplateError
from tests.text.samples import HARD, TEXTS, byte_level, tokenizer

USER = {"role": "user", "content": "hi"}


@pytest.fixture
def codec() -> TextCodec:
    return TextCodec(tokenizer("byte_level"), frozenset({2}))


def test_attributes(codec: TextCodec) -> None:
    assert codec.vocab_size == max(codec.tokenizer.get_vocab().values()) + 1
    assert codec.special_ids == {0, 1, 2}
    assert codec.eos_ids == {2}
    assert codec.has_chat_template


def test_one_bos_with_and_without_a_template(codec: TextCodec) -> None:
    assert codec.encode("hi").count(1) == 1
    assert codec.encode("hi", add_special_tokens=False).count(1) == 0
    chat = codec.encode_chat([USER])
    assert chat.count(1) == 1
    assert chat == codec.encode(codec.render_chat([USER], None), add_special_tokens=False)
    assert codec.render_chat([USER]) == "<s>[user]hi\n[assistant]"


def test_added_tokens_are_shown_and_special_ones_are_not(codec: TextCodec) -> None:
    ids = codec.encode("x<tool>y<a b é></s>")
    assert codec.decode(ids) == "x<tool>y<a b é>"
    assert codec.decode(ids, skip_special_tokens=False) == "<s>x<tool>y<a b é></s>"
    assert codec.decode([codec.vocab_size + 5]) == ""


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b"])
def test_lone_surrogate_is_named(codec: TextCodec, text: str) -> None:
    for call in (lambda: codec.encode(text), lambda: codec.encode_chat([{"role": "user", "content": text}])):
        with pytest.raises(ValueError, match="lone surrogate") as caught:
            call()
        assert not isinstance(caught.value, UnicodeError)


def test_encode_from_several_threads_at_once(codec: TextCodec) -> None:
    wanted = [codec.encode(text) for text in TEXTS]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(30):
            wrong.extend(n for n, text in enumerate(TEXTS) if codec.encode(text) != wanted[n])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_tokenizers_own_truncation_is_off() -> None:
    made = byte_level()
    made.backend_tokenizer.enable_truncation(4)
    assert len(TextCodec(made, frozenset()).encode(HARD)) > 10


def test_no_template() -> None:
    codec = TextCodec(byte_level(template=None), frozenset())
    assert not codec.has_chat_template
    with pytest.raises(ChatTemplateError, match="no chat template"):
        codec.encode_chat([USER])


def test_given_template_is_used_instead() -> None:
    codec = TextCodec(tokenizer("byte_level"), frozenset(), "{% for m in messages %}<{{ m.content }}>{% endfor %}")
    assert codec.render_chat([USER, {"role": "assistant", "content": None}, {"role": "x"}]) == "<hi><><>"


def test_developer_becomes_system_where_the_template_does_not_know_it(codec: TextCodec) -> None:
    assert "[system]be brief\n" in codec.render_chat([{"role": "developer", "content": "be brief"}, USER])
    knows = TextCodec(
        tokenizer("byte_level"), frozenset(), "{% if 'developer' %}{% endif %}{% for m in messages %}{{ m.role }}{% endfor %}"
    )
    assert knows.render_chat([{"role": "developer", "content": "x"}]) == "developer"
    refuses = (
        "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('no') }}{% endif %}{{ m.role }}{% endfor %}"
    )
    assert (
        TextCodec(tokenizer("byte_level"), frozenset(), refuses).render_chat([{"role": "developer", "content": "x"}])
        == "system"
    )


def test_refusal_shows_the_templates_words_and_not_the_users(codec: TextCodec) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        codec.encode_chat([{"role": "secret" * 1000, "content": "secret"}])
    assert "Unknown role:" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_word_of_the_users_that_the_template_has_too_is_not_shown() -> None:
    codec = TextCodec(tokenizer("byte_level"), frozenset(), "{# assistant #}{{ raise_exception(messages[0].content) }}")
    with pytest.raises(ChatTemplateError) as caught:
        codec.render_chat([{"role": "user", "content": "assist me"}])
    assert str(caught.value) == "The chat template refuses these messages: TemplateError"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[7].content }}",
        "{{ 1 + 'secret' }}",
        "{{ messages[0].nothing.more }}",
        "{% for %}",
        "{{ 1 / 0 }}",
        "{{ {}|x }}",
    ],
)
def test_any_fault_of_a_template_is_a_template_error(template: str) -> None:
    codec = TextCodec(tokenizer("byte_level"), frozenset(), template)
    with pytest.raises(ChatTemplateError):
        codec.render_chat([USER])


def test_tool_calls_reach_the_template_as_objects() -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments.city }};{% endfor %}"
        "{{ m.tool_call_id }}{% endfor %}"
    )
    codec = TextCodec(tokenizer("byte_level"), frozenset(), template)
    call: dict[str, Any] = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "9"},
    ]
    assert codec.render_chat(messages) == "Bonn;1"
    assert call["function"]["arguments"] == '{"city": "Bonn"}'  # the caller's message is untouched


@pytest.mark.parametrize("arguments", ["[1,2]", '"x"', "5", "null", "no JSON", ""])
def test_arguments_that_are_no_object_reach_the_template_as_they_were_written(arguments: str) -> None:
    template = "{% for c in messages[0].tool_calls %}{{ c.function.arguments }}{% endfor %}"
    codec = TextCodec(tokenizer("byte_level"), frozenset(), template)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    assert codec.render_chat([{"role": "assistant", "content": "", "tool_calls": [call]}]) == arguments


def test_tools_reach_the_template() -> None:
    codec = TextCodec(
        tokenizer("byte_level"), frozenset(), "{% if tools %}{{ tools[0].function.name }}{% else %}none{% endif %}"
    )
    assert codec.render_chat([USER], [{"type": "function", "function": {"name": "f"}}]) == "f"
    assert codec.render_chat([USER], []) == "none"


CALL: dict[str, Any] = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
SHOWS_CALLS = "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}"


def test_what_the_template_would_drop_is_refused(default_codec: TextCodec) -> None:
    assistant = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    for known in (default_codec, TextCodec(tokenizer("byte_level"), frozenset())):
        with pytest.raises(ChatTemplateError, match="does not render tool calls") as caught:
            known.encode_chat([USER, assistant])
        assert caught.value.param == "messages.1.tool_calls"
        with pytest.raises(ChatTemplateError, match="does not render tools") as caught:
            known.encode_chat([USER], [TOOL])
        assert caught.value.param == "tools"
        known.encode_chat([USER, {**assistant, "tool_calls": []}], [])
    assert default_codec.encode_chat([USER, {"role": "tool", "tool_call_id": "1", "content": "9"}])


def test_of_several_templates_the_one_in_use_counts() -> None:
    templates = {"default": "{{ messages[0].content }}", "tool_use": SHOWS_CALLS + "{{ tools | tojson }}"}
    codec = TextCodec(byte_level(template=templates), frozenset())  # type: ignore[arg-type]
    message = {**USER, "tool_calls": [CALL]}
    with pytest.raises(ChatTemplateError, match="does not render tool calls"):
        codec.render_chat([message])
    assert codec.render_chat([message], [TOOL]).startswith("hi[")


def test_arguments_that_nest_too_deeply_are_refused() -> None:
    codec = TextCodec(tokenizer("byte_level"), frozenset(), SHOWS_CALLS)
    for depth in (900, 100_000):  # JSON can read the first, but not write it again
        deep = {**CALL, "function": {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth}}
        with pytest.raises(ChatTemplateError) as caught:
            codec.encode_chat([USER, {"role": "assistant", "content": "", "tool_calls": [CALL, deep]}])
    assert caught.value.param == "messages.1.tool_calls.1.function.arguments"


def test_half_a_pair_inside_arguments_is_a_value_error() -> None:
    codec = TextCodec(tokenizer("byte_level"), frozenset(), SHOWS_CALLS)
    half = {**CALL, "function": {"name": "f", "arguments": '{"a":"\\ud83d"}'}}
    with pytest.raises(ValueError, match="lone surrogate"):
        codec.encode_chat([{"role": "assistant", "content": "", "tool_calls": [half]}])


def test_default_model(default_codec: TextCodec) -> None:
    assert default_codec.render_chat([USER]).endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    tokens = [default_codec.tokenizer.backend_tokenizer.id_to_token(i) for i in default_codec.encode("a  12 b<|im_end|>")]
    assert tokens == ["a", "ĠĠ", "1", "2", "Ġb", "<|im_end|>"]
