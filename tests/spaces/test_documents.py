"""Reading YAML: what is refused, what a scalar means, and how a violation is told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from spaces.documents import Document, dump_yaml, parse_yaml, read_yaml, validated
from spaces.errors import InputError


class Square(Document):
    kind: Literal["square"] = "square"
    side: int


class Circle(Document):
    kind: Literal["circle"] = "circle"
    radius: float


class Drawing(Document):
    title: str
    scale: float = 1.0
    frame: Square | None = None
    shapes: tuple[Annotated[Square | Circle, Field(discriminator="kind")], ...] = ()
    by_name: dict[str, Square] = Field(default_factory=dict)


def told(data: dict[str, object]) -> str:
    with pytest.raises(InputError) as caught:
        validated(Drawing, data, "drawing.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0),
        ("2.5e9", 2.5e9),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("1_000", 1000),
        ("0x10", 16),
        ("-3", -3),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
    ],
)
def test_numbers_and_flags_are_read_as_such(text: str, value: object) -> None:
    read = parse_yaml(f"key: {text}", "f.yaml")["key"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text", ["on", "yes", "no", "010", "12:30", "12:30:00", "2026-11-30", "1.2.3"]
)
def test_what_yaml_1_1_would_turn_into_something_else_stays_text(text: str) -> None:
    assert parse_yaml(f"key: {text}", "f.yaml") == {"key": text}


def test_a_key_that_stands_twice_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"f\.yaml, line 3: tp: a key may stand only once"):
        parse_yaml("tp: 1\npp: 1\ntp: 2\n", "f.yaml")


def test_a_repeated_key_is_found_in_nested_mappings() -> None:
    with pytest.raises(InputError, match="line 2: side"):
        parse_yaml("shapes:\n  - {side: 1, side: 2}\n", "f.yaml")


def test_merged_keys_may_be_overridden() -> None:
    text = "base: &base {a: 1, b: 2}\nmine: {<<: *base, b: 3}\n"
    assert parse_yaml(text, "f.yaml")["mine"] == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1, 2", "f.yaml:1: the text must be valid YAML"),
        ("a: 1\nb: *missing\n", "f.yaml:2: the text must be valid YAML"),
        ("image: {{ tag }}\n", "f.yaml:1: the text must be valid YAML"),
        ("? [a, b]\n: 1\n", "f.yaml:1: the text must be valid YAML"),
        ("a: \x01\n", "f.yaml: the text must be valid YAML"),
        ("a: !!python/name:os.system\n", "f.yaml:1: the text must be valid YAML"),
        ("- 1\n- 2\n", "a mapping of keys to values, it holds list"),
        ("just words\n", "a mapping of keys to values, it holds str"),
        ("", "a mapping of keys to values, it holds nothing"),
    ],
)
def test_text_that_is_no_mapping_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f.yaml")
    assert said in str(caught.value)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, said in [
        (tmp_path / "absent.yaml", "the file must exist"),
        (tmp_path, "this is a directory"),
        (binary, "UTF-8"),
    ]:
        with pytest.raises(InputError, match=said) as caught:
            read_yaml(path)
        assert str(path) in str(caught.value)


def test_a_json_file_is_yaml_too(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"a": [1, 2.5e3], "b": null}')
    assert read_yaml(path) == {"a": [1, 2500.0], "b": None}


def test_a_misspelt_key_is_told_before_the_missing_one_it_explains() -> None:
    said = told({"tilte": "x"})
    assert said == "drawing.yaml: tilte: unknown key; did you mean title?"


def test_a_missing_key_is_named() -> None:
    assert told({}) == "drawing.yaml: title: this key is required"


def test_a_wrong_type_is_told_with_the_path_of_the_key_and_the_value() -> None:
    said = told({"title": "t", "frame": {"side": "wide"}})
    assert said.startswith("drawing.yaml: frame.side: ")
    assert said.endswith("but got 'wide'")


def test_the_path_is_that_of_the_file_without_the_kind_of_a_union() -> None:
    said = told({"title": "t", "shapes": [{"kind": "circle", "radius": "big"}]})
    assert said.startswith("drawing.yaml: shapes.0.radius: ")


def test_suggestions_come_from_the_mapping_in_which_the_key_stands() -> None:
    shapes = [{"kind": "square", "side": 1}, {"kind": "circle", "radios": 1}]
    assert told({"title": "t", "shapes": shapes}) == (
        "drawing.yaml: shapes.1.radios: unknown key; did you mean radius?"
    )
    assert "by_name.a.sid: unknown key; did you mean side?" in told(
        {"title": "t", "by_name": {"a": {"sid": 1}}}
    )


def test_an_unknown_kind_is_told_with_the_kinds_there_are() -> None:
    said = told({"title": "t", "shapes": [{"kind": "cirle", "radius": 1}]})
    assert said == (
        "drawing.yaml: shapes.0.kind: must be a known kind, but got 'cirle'; did you mean circle?"
    )


def test_a_missing_kind_is_told_as_a_missing_key() -> None:
    said = told({"title": "t", "shapes": [{"radius": 1}]})
    assert said == "drawing.yaml: shapes.0.kind: this key is required"


@pytest.mark.parametrize("scale", [".inf", ".nan", "-.inf"])
def test_infinities_are_no_figures(scale: str) -> None:
    data = parse_yaml(f"title: t\nscale: {scale}\n", "drawing.yaml")
    assert "drawing.yaml: scale: " in told(data)


def test_documents_are_frozen_and_equal_ones_have_equal_hashes() -> None:
    one, two = Square(side=2), Square(side=2)
    assert one == two
    assert hash(one) == hash(two)
    with pytest.raises(ValueError, match="frozen"):
        one.side = 3  # type: ignore[misc]


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(
        ["1e3", "12e45", "on", "yes", "010", "12:30", "2026-11-30", "0x1f", "~", "1_0"]
    )
)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(st.dictionaries(st.text(min_size=1), trees))
def test_what_is_dumped_is_read_back_the_same(data: dict[str, object]) -> None:
    assert parse_yaml(dump_yaml(data), "f.yaml") == data


def test_dumping_keeps_the_order_of_the_keys() -> None:
    assert dump_yaml({"b": 1, "a": {"z": 1, "y": [1, 2]}}) == "b: 1\na:\n  z: 1\n  y: [1, 2]\n"
