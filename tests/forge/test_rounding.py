"""Second-order rounding keeps to the FP16 grid and costs the layer's output less than rounding to nearest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from blurfleet_forge.fold import canonical
from blurfleet_forge.rounding import fit_weights, round_columns


def sample(seed: int, inputs: int, spread: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weights [8, inputs] and the moment matrix of strongly correlated inputs."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((1, 4000)) * spread
    x = common + rng.standard_normal((inputs, 4000)) * 0.3
    return rng.standard_normal((8, inputs)), x @ x.T / 4000


def output_error(weights: NDArray[np.float64], rounded: NDArray[np.float16], moment: NDArray[np.float64]) -> float:
    lost = weights - rounded.astype(np.float64)
    return float(np.einsum("oi,ij,oj->", lost, moment, lost))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), inputs=st.integers(12, 60))
def test_the_output_error_on_correlated_inputs_falls_below_half_of_nearest(seed: int, inputs: int) -> None:
    weights, moment = sample(seed, inputs, spread=3.0)
    fitted = output_error(weights, round_columns(weights, moment), moment)
    nearest = output_error(weights, weights.astype(np.float16), moment)
    assert fitted < 0.5 * nearest


def test_inputs_that_have_nothing_in_common_are_rounded_to_nearest() -> None:
    weights, _ = sample(1, 10, spread=1.0)
    np.testing.assert_array_equal(round_columns(weights, np.eye(10)), weights.astype(np.float16))


def test_no_weight_moves_further_than_one_step_of_the_largest() -> None:
    weights, moment = sample(2, 40, spread=3.0)
    moved = np.abs(weights - round_columns(weights, moment).astype(np.float64))
    assert moved.max() <= np.spacing(np.abs(weights).max().astype(np.float16))


def test_fitted_weights_of_a_convolution_keep_name_shape_and_type_and_include_its_bias() -> None:
    rng = np.random.default_rng(3)
    kernel, bias = rng.standard_normal((5, 3, 3, 3)).astype(np.float32), np.full(5, 300.3, np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 12, 12])
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="c", pads=[1, 1, 1, 1])
    constants = [numpy_helper.from_array(kernel, "w"), numpy_helper.from_array(bias, "b")]
    made = helper.make_model(
        helper.make_graph([node], "g", [x], [y], constants), opset_imports=[helper.make_opsetid("", 17)]
    )
    frames = [rng.standard_normal((1, 3, 12, 12)).astype(np.float32) for _ in range(3)]
    halves = fit_weights(canonical(made, 17), frames, ["c"])
    assert (halves["w"].shape, halves["w"].dtype) == ((5, 3, 3, 3), np.dtype(np.float16))
    assert halves["b"] == pytest.approx(bias, abs=0.25)  # FP16 steps by 0.25 there
    assert fit_weights(canonical(made, 17), frames, []) == {}
