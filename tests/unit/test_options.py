"""Options of a completion: one list of names, every default once, values as they are kept."""

import math
from dataclasses import MISSING, asdict, fields, replace

import pytest

from llamaspec.constraint import MAX_GROUPS, MAX_NESTING, check_grammar, schema_text
from llamaspec.errors import OptionError
from llamaspec.options import GenerateOptions, GenerateSettings


def test_the_names_are_written_once() -> None:
    assert list(GenerateSettings.__annotations__) == [item.name for item in fields(GenerateOptions)]
    assert all(
        item.default is not MISSING or item.default_factory is not MISSING
        for item in fields(GenerateOptions)
    )


def test_the_defaults_leave_the_distribution_alone() -> None:
    options = GenerateOptions()
    assert not options.has_penalties
    assert not options.has_grammar
    assert (options.top_k, options.top_p, options.min_p, options.typical_p) == (0, 1, 0, 1)
    assert (options.dry_multiplier, options.logit_bias) == (0, {})


def test_what_is_given_is_kept_and_can_be_given_again() -> None:
    options = GenerateOptions.of(
        {
            "stop": ["a", "b"],
            "dry_sequence_breakers": "x",
            "logit_bias": {3: 1, 4: -math.inf},
            "json_schema": {"type": "string"},
        }
    )
    assert options.stop == ("a", "b")
    assert options.dry_sequence_breakers == ("x",)
    assert options.logit_bias == {3: 1.0, 4: -math.inf}
    assert options.json_schema == '{"type": "string"}'
    again = replace(options, max_tokens=5)
    assert GenerateOptions.of(asdict(again)) == again  # type: ignore[arg-type]


def test_a_mapping_that_changes_later_changes_nothing() -> None:
    bias = {1: 2.0}
    options = GenerateOptions(logit_bias=bias)
    bias[1] = math.nan
    assert options.logit_bias == {1: 2.0}


@pytest.mark.parametrize(
    "settings",
    [
        {"repeat_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
    ],
    ids=str,
)
def test_penalties_need_tokens_to_look_back_to(settings: GenerateSettings) -> None:
    assert GenerateOptions.of(settings).has_penalties
    assert not GenerateOptions.of({**settings, "repeat_last_n": 0}).has_penalties


def test_parentheses_count_where_they_are_groups() -> None:
    many = "(" * (MAX_GROUPS + 1)
    check_grammar(f'root ::= "{many}" [{many}] # {many}\n')
    check_grammar('root ::= "\\"" [\\]] ' + "()" * (MAX_GROUPS + 1))
    with pytest.raises(OptionError, match=f"more than {MAX_GROUPS}"):
        check_grammar(f'root ::= "\\"" {many}')


def test_a_schema_becomes_plain_json() -> None:
    assert schema_text('{"b": 1,\n "a": "\u65e5"}') == '{"b": 1, "a": "\\u65e5"}'
    assert schema_text({"title": "(" * 1000}) == '{"title": "' + "(" * 1000 + '"}'
    deep: object = 1
    for _ in range(MAX_NESTING - 1):
        deep = [deep]
    assert schema_text({"const": deep})
    with pytest.raises(OptionError, match=f"more than {MAX_NESTING} deep"):
        schema_text({"const": [deep]})
