"""Forms on their way through vLLM."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, grammar_from

from services.worker.core.vllm.forms import Form, as_lark, read_form

FORMS = st.builds(
    Form,
    grammar=st.text(min_size=1),
    json_after=st.lists(st.text(max_size=5), max_size=3),
    generated=st.lists(st.integers(0, 1 << 20), max_size=20),
)


@settings(max_examples=20)
@given(form=FORMS)
def test_vllm_takes_any_form_for_a_grammar_and_passes_it_on_as_it_is(form: Form) -> None:
    text = as_lark(form)
    assert not LLMatcher.validate_grammar(grammar_from("grammar", text), None), "as vLLM checks it"
    assert read_form(text) == form


def test_a_text_of_another_origin_is_none() -> None:
    with pytest.raises(ValueError, match="did not write"):
        read_form('start: "a"')
