"""The life of an engine on one node, on the real Triton."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.agent.conftest import Site
from tests.agent.tiny import engine, golden, picture, reference, tensor_of

Until = Callable[..., None]


def test_a_primary_is_staged_loaded_proven_and_served(site: Site, until: Until) -> None:
    fp32 = engine(site.shelf, "sound", set_name="base", precision="FP32", salt=site.alias)
    site.want(site.model(primary=fp32, fallback=fp32, oracle=fp32, golden=golden(site.shelf)))
    with site.running():
        until(lambda: site.serves(fp32.digest))
        until(lambda: site.condition("Ready").status == "True")
        tensor = tensor_of(picture(7))
        answer = site.ask(tensor)
        assert answer.model_version == site.route().epoch == 1
        assert np.abs(answer.matte - reference(tensor)).max() < 1e-6
        until(lambda: site.condition("SwapProven").status == "True")
        status = site.status()
        assert status.simulated
        assert (status.precision, status.fallback, status.connected) == ("FP32", "Ready", "Yes")
