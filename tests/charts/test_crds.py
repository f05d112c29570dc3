"""The committed definitions and pages are what the models say, and the converter refuses what it cannot express."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import Field

from blurfleet.api import crd, reference
from blurfleet.api.base import Digest, Duration, Model
from blurfleet.api.kinds import KINDS, parse_resource
from blurfleet.api.rules import RULES
from blurfleet.api.structural import Dialect, object_schema
from blurfleet.errors import InvalidSpec

ROOT = Path(__file__).parents[2]
CRDS = ROOT / "charts/blurfleet/crds"
SPEC = Dialect(defaults=True, sentences=True, keys={})


def walk(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from walk(schema[word], f"{path}[]")


def test_committed_definitions_are_what_the_models_say() -> None:
    assert {p.name: p.read_text() for p in CRDS.glob("*.yaml")} == crd.files()


def test_committed_reference_page_is_what_the_models_say() -> None:
    assert (ROOT / "docs/api.md").read_text() == reference.page()


@pytest.mark.parametrize("name", KINDS)
def test_definition_is_valid_and_has_status_columns_short_name_and_category(name: str) -> None:
    kind = KINDS[name]
    body = crd.definition(kind)
    kubernetes_validate.validate(body, "1.37", strict=True)
    version = body["spec"]["versions"][0]
    assert version["subresources"] == {"status": {}}
    assert version["additionalPrinterColumns"][-1]["name"] == "AGE"
    assert body["spec"]["names"]["shortNames"] == [kind.short]
    assert body["spec"]["names"]["categories"] == ["blurfleet"]


@pytest.mark.parametrize("name", KINDS)
def test_everything_in_a_schema_is_typed_and_bounded(name: str) -> None:
    root = crd.definition(KINDS[name])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        for path, schema in walk(root["properties"][part], part):
            assert "type" in schema, path
            assert not schema.keys() & {"$ref", "anyOf", "oneOf", "allOf", "const", "prefixItems", "title"}, path
            if schema["type"] == "string":
                assert "maxLength" in schema or "enum" in schema, path
            if schema["type"] == "array":
                assert "maxItems" in schema, path


def test_status_has_no_defaults_for_it_holds_only_what_was_observed() -> None:
    for kind in KINDS.values():
        root = crd.definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert [p for p, s in walk(root["properties"]["status"]) if "default" in s] == []


def test_every_immutable_kind_has_its_rule_and_every_rule_a_message() -> None:
    for kind in KINDS.values():
        fixed = [r for r in RULES[kind.name] if r.path == "spec" and r.rule == "self == oldSelf"]
        assert bool(fixed) == kind.immutable, kind.name
        assert all(rule.message for rule in RULES[kind.name])


def test_named_lists_are_maps_under_their_name() -> None:
    def keys(kind: str, path: str) -> Any:
        root = crd.definition(KINDS[kind])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return dict(walk(root))[path].get("x-kubernetes-list-map-keys")

    assert keys("EngineSet", ".spec.variants") == ["name"]
    assert keys("EngineRollout", ".status.conditions") == ["type"]
    assert keys("NodeEngine", ".spec.models") == ["name"]
    assert keys("NodeEngine", ".status.models") == ["name"]
    assert keys("NodeEngine", ".status.conditions") == ["type"]


def test_a_nodes_models_are_kept_whole_and_only_their_name_is_typed() -> None:
    root = crd.definition(KINDS["NodeEngine"])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        item = root["properties"][part]["properties"]["models"]["items"]
        assert list(item["properties"]) == item["required"] == ["name"]
        assert item["x-kubernetes-preserve-unknown-fields"] is True
        assert item["x-kubernetes-map-type"] == "atomic"
    assert "`spec.models[].policy.metrics[].limit`" in reference.page(), "the page still spells every field out"


class _Union(Model):
    """Two types."""

    field: int | str


class _Mixed(Model):
    """A tuple of different types."""

    field: tuple[int, str] = (0, "")


class _Float(Model):
    """A float in a spec."""

    field: float = 0.5


class _Open(Model):
    """Anything."""

    field: Any = None


class _Exclusive(Model):
    """A bound that no structural schema has."""

    field: int = Field(default=1, gt=0)


@pytest.mark.parametrize("model", [_Union, _Mixed, _Float, _Open, _Exclusive], ids=lambda m: m.__doc__)
def test_inexpressible_field_is_refused_by_name(model: type[Model]) -> None:
    with pytest.raises(InvalidSpec, match=f"{model.__name__}.field"):
        object_schema(model, SPEC)


class _Leaves(Model):
    """Of `snake_case` words."""

    digest: Digest
    wait: Duration = "5s"
    maybe: int | None = Field(default=None, ge=1, le=9)
    three: tuple[int, int, int] = (1, 2, 3)


def test_leaves_are_written_as_structural_schema() -> None:
    schema = object_schema(_Leaves, SPEC)
    assert schema["required"] == ["digest"]
    assert schema["description"] == "Of `snakeCase` words."
    wait = schema["properties"]["wait"]
    assert wait["default"] == "5s"
    assert wait["minLength"] == 1
    assert wait["x-kubernetes-validations"][0]["message"].startswith("not a duration; write for example")
    assert schema["properties"]["maybe"] == {"type": "integer", "minimum": 1, "maximum": 9, "format": "int64"}
    three = schema["properties"]["three"]
    assert (three["minItems"], three["maxItems"], three["default"]) == (3, 3, [1, 2, 3])


def test_examples_are_objects_of_our_kinds() -> None:
    paths = sorted((ROOT / "examples").glob("**/*.yaml"))
    bodies = [body for path in paths for body in yaml.safe_load_all(path.read_text())]
    kinds = {parse_resource(body).kind for body in bodies}
    assert kinds == {"EngineSet", "PreprocessContract", "QualityPolicy", "EngineRollout"}
