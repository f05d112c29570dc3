"""A ready tensor over HTTP with asyncio: tritonclient_http_aio.py 127.0.0.1:8090 HASH tensor.npy matte.npy."""

import asyncio
import sys

import numpy as np
from tritonclient.http import InferInput
from tritonclient.http.aio import InferenceServerClient


async def main(address: str, contract: str, source: str, target: str) -> None:
    tensor = np.load(source)
    image = InferInput("image", list(tensor.shape), "FP32")
    image.set_data_from_numpy(tensor)
    async with InferenceServerClient(address) as client:
        answer = await client.infer("bokeh", [image], headers={"x-blurfleet-contract": contract})
    np.save(target, answer.as_numpy("matte"))
    print(answer.get_response()["parameters"]["x-blurfleet-precision"])


asyncio.run(main(*sys.argv[1:]))
