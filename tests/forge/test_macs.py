"""Multiply-accumulates are counted as the hardware does them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from blurfleet_forge.macs import count_macs, mac_share
from blurfleet_forge.workpiece import Workpiece


def test_a_grouped_strided_convolution_counts_output_elements_times_kernel_per_group() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.zeros((6, 2, 3, 3), np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c", group=2, strides=[2, 2], pads=[1, 1, 1, 1])
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], [weight]))
    assert count_macs(model) == {"c": 6 * 4 * 4 * 2 * 3 * 3}


def test_the_network_holds_4_94_billion_of_which_one_convolution_does_38_percent(piece: Workpiece) -> None:
    assert len(piece.macs) == 119
    assert sum(piece.macs.values()) == 4_939_022_400
    assert mac_share(piece.macs, ["Conv_810", "Relu_811"]) == pytest.approx(0.3821, abs=5e-5)


def test_a_node_counts_once_however_often_it_is_named() -> None:
    assert mac_share({"a": 1, "b": 3}, ["b", "b", "relu"]) == 0.75
