"""Whatever is sent over HTTP is answered: by a matte, or by a problem with a reason and a 4xx; not 500, not late."""

import io
import json
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.pictures import KINDS, Edit, damaged, seeds

from blurfleet.api.contract import contract_at
from blurfleet.contract import contract_hash
from blurfleet.pixels import decode, to_tensor

Rig = Any  # the fixture's class lives in conftest.py
CASES = Path(__file__).parents[1] / "cases" / "img"
SIZE = 32
SPEC = contract_at(SIZE)
HASH = {"x-blurfleet-contract": contract_hash(SPEC)}
INFER = "/v2/models/bokeh/infer"
LATE_S = 10.0
SEEDS = seeds()
fuzzed = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
edits = st.lists(
    st.builds(
        Edit,
        kind=st.sampled_from(KINDS),
        at=st.one_of(st.integers(0, 999), st.integers(0, 60)),
        value=st.integers(0, 2**32 - 1),
        length=st.integers(1, 40),
    ),
    min_size=1,
    max_size=5,
)


def sound(response: httpx.Response, *, hurried: bool = False) -> str:
    """Return the reason of a refusal, empty for an answer; anything else is a fault.

    Only who is `hurried`, by a deadline of its own, may be told that it passed.
    """
    assert response.elapsed.total_seconds() < LATE_S
    if response.status_code == 200:
        return ""
    body = response.json()
    late = hurried and (response.status_code, body["reason"]) == (504, "DeadlineExceeded")
    assert late or 400 <= response.status_code < 500, response.text
    assert body["status"] == response.status_code
    assert response.headers["content-type"] == "application/problem+json"
    assert body["reason"] not in ("", "Unexpected")
    return str(body["reason"])


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def tensor() -> np.ndarray:
    picture = np.random.default_rng(1).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    return to_tensor(picture, SPEC)


def v2(more: dict[str, Any] | None = None, changed: dict[str, Any] | None = None) -> bytes:
    """Return a binary v2 body; `changed` are fields of its input, `more` of the request."""
    data = tensor().tobytes()
    given = {"name": "image", "datatype": "FP32", "shape": [1, 3, SIZE, SIZE]}
    given |= {"parameters": {"binary_data_size": len(data)}} | (changed or {})
    return json.dumps({"inputs": [given], **(more or {})}).encode() + data


def upright(name: str) -> tuple[int, int]:
    return decode((CASES / name).read_bytes(), SPEC).decoded_size


@pytest.mark.parametrize("path", ["/v1/matte?format=png", "/v1/blur?format=png"])
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("pure_red.png", (16, 16)),
        ("exif_o1.jpg", (48, 80)),
        ("exif_o3.jpg", (48, 80)),
        ("exif_o6.jpg", (80, 48)),
        ("exif_o6.png", (80, 48)),
        ("exif_o8.jpg", (80, 48)),
        ("gray8.jpg", None),
        ("gray16_ramp.png", None),
        ("rgba_hidden_red.png", None),
        ("palette_trns.png", None),
        ("cmyk_red_adobe.jpg", None),
        ("lines_period4.png", (256, 256)),
    ],
)
def test_every_good_case_is_answered_upright(
    rig: Rig, client: httpx.Client, path: str, name: str, size: tuple[int, int] | None
) -> None:
    data = (CASES / name).read_bytes()
    response = client.post(path, content=data)
    assert response.status_code == 200
    drawn = cv2.imdecode(np.frombuffer(response.content, np.uint8), cv2.IMREAD_UNCHANGED)
    assert drawn.shape[:2] == (size or upright(name))
    np.testing.assert_array_equal(rig.engines.tensors[-1], to_tensor(decode(data, SPEC).rgb, SPEC))


RED, WHITE = (255.0, 0.0, 0.0), (255.0, 255.0, 255.0)


@pytest.mark.parametrize(
    ("name", "at", "colour"),
    [
        ("pure_red.png", (16, 16), RED),
        ("cmyk_red_adobe.jpg", (16, 16), RED),
        ("rgba_hidden_red.png", (1, 1), WHITE),
        ("palette_trns.png", (1, 1), WHITE),
        ("exif_o1.jpg", (4, 4), RED),
        ("exif_o3.jpg", (27, 27), RED),
        ("exif_o6.jpg", (4, 27), RED),
        ("exif_o6.png", (4, 27), RED),
        ("exif_o8.jpg", (27, 4), RED),
    ],
)
def test_the_engine_sees_the_colours_that_a_person_does(
    rig: Rig, client: httpx.Client, name: str, at: tuple[int, int], colour: tuple[float, ...]
) -> None:
    assert client.post("/v1/matte", content=(CASES / name).read_bytes()).status_code == 200
    seen = rig.engines.tensors[-1][0, :, at[0], at[1]]
    mean, std = np.array(SPEC.mean, np.float64), np.array(SPEC.std, np.float64)
    np.testing.assert_allclose((seen * std + mean) * 255, colour, atol=6)


def test_all_levels_of_16_bit_reach_the_engine(rig: Rig, client: httpx.Client) -> None:
    assert client.post("/v1/matte", content=(CASES / "gray16_ramp.png").read_bytes()).status_code == 200
    row = rig.engines.tensors[-1][0, 0, 16]
    assert np.all(np.diff(row) > 0), "the ramp grows everywhere: nothing was clipped to white"


@fuzzed
@given(name=st.sampled_from(sorted(SEEDS)), damage=edits, mended=st.booleans(), path=st.sampled_from(["matte", "blur"]))
def test_damaged_pictures_are_mattes_or_problems(
    client: httpx.Client, name: str, damage: list[Edit], mended: bool, path: str
) -> None:
    sound(client.post(f"/v1/{path}", content=damaged(SEEDS[name], damage, mended=mended)))


printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
header_text = st.text(st.characters(min_codepoint=1, max_codepoint=255, exclude_characters="\r\n\x0b\x0c"), max_size=80)
names = st.sampled_from([
    "traceparent", "tracestate", "baggage", "accept", "accept-encoding", "content-encoding", "content-type",
    "x-blurfleet-contract", "x-blurfleet-stream", "x-blurfleet-evidence", "x-blurfleet-deadline-ms", "authorization",
    "inference-header-content-length", "expect", "range", "if-match", "cookie", "x-forwarded-for", "te",
])  # fmt: skip


@fuzzed
@given(
    headers=st.dictionaries(names, header_text.map(lambda text: text.strip().encode("latin-1")), max_size=5),
    path=st.sampled_from(["/v1/matte", "/v1/blur", "/v1/tensor", INFER]),
    whole=st.booleans(),
)
def test_no_header_makes_a_500(
    client: httpx.Client, photo: bytes, headers: dict[str, bytes], path: str, whole: bool
) -> None:
    bodies = {"/v1/tensor": npy(tensor()), INFER: v2()}
    body = bodies.get(path, photo) if whole else b""
    sent = HASH | {k: v for k, v in headers.items() if k != "expect"}
    sound(client.post(path, content=body, headers=sent), hurried="x-blurfleet-deadline-ms" in headers)


@pytest.mark.parametrize("value", json.loads((CASES.parent / "obs" / "traceparent.json").read_text()), ids=str)
def test_no_traceparent_is_the_clients_fault(client: httpx.Client, photo: bytes, value: Any) -> None:
    said = value["value"] if isinstance(value, dict) else str(value)
    headers = {"traceparent": said.strip(" \t").encode("latin-1", "replace")}  # blanks around are the transport's
    assert client.post("/v1/matte", content=photo, headers=headers).status_code == 200


@fuzzed
@given(
    query=st.dictionaries(
        st.sampled_from(["radius", "style", "mode", "focus", "format", "background", "near", "gain", "color", "x"]),
        st.one_of(
            st.text(max_size=20),
            st.sampled_from(["auto", "nan", "inf", "-1", "1e309", "0", "٣", "#fff", "1,1", "blur", "disc", "depth"]),
            st.floats().map(repr),
        ),
        max_size=4,
    ),
    path=st.sampled_from(["matte", "blur"]),
)
def test_no_query_makes_a_500(client: httpx.Client, photo: bytes, query: dict[str, str], path: str) -> None:
    sound(client.post(f"/v1/{path}", content=photo, params=query))


@fuzzed
@given(damage=edits, data=st.binary(max_size=60))
def test_damaged_npy_bodies_are_tensors_or_problems(client: httpx.Client, damage: list[Edit], data: bytes) -> None:
    whole = npy(tensor())
    head, values = whole[:128], whole[128:]
    sound(client.post("/v1/tensor", content=damaged(head, damage, mended=False) + values, headers=HASH))
    sound(client.post("/v1/tensor", content=b"\x93NUMPY\x01\x00v\x00" + data, headers=HASH))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, -32, 32), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 32.0, 32), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, True, 32), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 9000 + "), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999, 3, 32, 32), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 3, 32, 32), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1, 3, 32, 32), }",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (1, 3, 32, 32), }",
        "(" * 5000,
        "[" * 90 + "]" * 90,
        "__import__('os').system('true')",
        "{'descr': '<M8[D]', 'fortran_order': False, 'shape': (), }",
        "\x00" * 100,
        "9" * 9000,
    ],
    ids=lambda text: text[:50],
)
def test_npy_headers_that_lie_are_refused(rig: Rig, client: httpx.Client, header: str) -> None:
    text = header.encode() + b"\n"
    lengths = (b"\x01\x00" + struct.pack("<H", len(text)), b"\x02\x00" + struct.pack("<I", len(text)))
    for length in lengths:
        prefix = b"\x93NUMPY" + length
        asked = len(rig.engines.asked)
        assert sound(client.post("/v1/tensor", content=prefix + text + tensor().tobytes(), headers=HASH))
        assert len(rig.engines.asked) == asked


@pytest.mark.parametrize("version", [b"\x03\x00", b"\x00\x00", b"\xff\xff"], ids=repr)
def test_other_npy_versions_are_refused(client: httpx.Client, version: bytes) -> None:
    assert sound(client.post("/v1/tensor", content=b"\x93NUMPY" + version + bytes(200), headers=HASH))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=12)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
fields = st.sampled_from(["name", "datatype", "shape", "parameters", "data", "more"])


@fuzzed
@given(
    changed=st.dictionaries(fields, json_values, max_size=3),
    more=st.dictionaries(st.sampled_from(["id", "outputs", "parameters", "inputs"]), json_values, max_size=2),
)
def test_v2_bodies_of_any_json_are_answered_or_problems(
    client: httpx.Client, changed: dict[str, Any], more: dict[str, Any]
) -> None:
    body = v2(more, changed)
    length = str(len(body) - 4 * 3 * SIZE * SIZE)
    sound(client.post(INFER, content=body, headers=HASH | {"inference-header-content-length": length}))


@fuzzed
@given(
    damage=edits,
    length=st.one_of(st.none(), st.integers(-3, 13000).map(str), printable),
    packed=st.sampled_from(["", "gzip", "deflate", "br", "gzip, gzip"]),
)
def test_damaged_v2_bodies_are_answered_or_problems(
    client: httpx.Client, damage: list[Edit], length: str | None, packed: str
) -> None:
    body = v2()
    split = len(body) - 4 * 3 * SIZE * SIZE
    broken = damaged(body[:split], damage, mended=False) + body[split:]
    headers = dict(HASH)
    headers["inference-header-content-length"] = str(split) if length is None else length
    if packed:
        headers["content-encoding"] = packed
    sound(client.post(INFER, content=zlib.compress(broken) if packed == "deflate" else broken, headers=headers))


def v2_json(shape: str, data: str) -> bytes:
    return f'{{"inputs":[{{"name":"image","datatype":"FP32","shape":{shape},"data":[{data}]}}]}}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 100_000, id="nested lists"),
        pytest.param(b'{"inputs":' * 20_000, id="nested objects"),
        pytest.param(b'{"inputs": [' + b"{}," * 20_000 + b"{}]}", id="20 000 inputs"),
        pytest.param(b'{"id": "' + b"x" * 500_000 + b'", "inputs": []}', id="a long id"),
        pytest.param(v2_json("[1,3,32,32]", "1e999," * 3071 + "1"), id="infinities"),
        pytest.param(v2_json("[1,3,32,32]", "NaN"), id="NaN"),
        pytest.param(v2_json("[2147483648,2147483648,2147483648,4]", ""), id="a shape beyond memory"),
        pytest.param(b"\xff\xfe{}", id="another encoding"),
        pytest.param(v2_json("[1]", "1").replace(b"image", b"\\ud800"), id="half a character"),
        pytest.param(("9" * 100_000).encode(), id="a long number"),
    ],
)
def test_json_that_is_meant_to_hurt_is_refused(client: httpx.Client, body: bytes) -> None:
    assert sound(client.post(INFER, content=body, headers=HASH))


def test_a_gzip_bomb_is_refused_without_being_unpacked(client: httpx.Client) -> None:
    engine = zlib.compressobj(9, wbits=31)
    bomb = b"".join(engine.compress(bytes(1 << 20)) for _ in range(400)) + engine.flush()
    assert len(bomb) < 1 << 20
    before = psutil.Process().memory_info().rss
    refused = client.post(INFER, content=bomb, headers=HASH | {"content-encoding": "gzip"})
    assert sound(refused) == "RequestTooLarge"
    assert psutil.Process().memory_info().rss - before < 64 << 20


paths = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="?#%"), max_size=40)


@fuzzed
@given(
    path=paths, method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"])
)
def test_no_path_or_method_makes_a_500(client: httpx.Client, path: str, method: str) -> None:
    for start in ("/", "/v1/", "/v2/", "/v2/models/", "/v2/systemsharedmemory/region/"):
        response = client.request(method, start + path, content=b"")
        assert response.status_code < 500
        if method != "HEAD" and response.status_code >= 400:
            sound(response)


def test_it_all_took_no_worker_for_good(client: httpx.Client, photo: bytes) -> None:
    began = time.monotonic()
    assert client.post("/v1/matte", content=photo).status_code == 200
    assert time.monotonic() - began < LATE_S
