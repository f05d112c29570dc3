"""A ready tensor over gRPC with asyncio: tritonclient_grpc_aio.py 127.0.0.1:8091 HASH tensor.npy matte.npy."""

import asyncio
import sys

import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient


async def main(address: str, contract: str, source: str, target: str) -> None:
    tensor = np.load(source)
    image = InferInput("image", list(tensor.shape), "FP32")
    image.set_data_from_numpy(tensor)
    async with InferenceServerClient(address) as client:
        answer = await client.infer("bokeh", [image], headers={"x-blurfleet-contract": contract})
    np.save(target, answer.as_numpy("matte"))
    print(answer.get_response().parameters["x-blurfleet-precision"].string_param)


asyncio.run(main(*sys.argv[1:]))
