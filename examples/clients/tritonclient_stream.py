"""Frames of one video over a gRPC stream, answered in their order.

tritonclient_stream.py 127.0.0.1:8091 HASH tensor.npy matte.npy
"""

import queue
import sys

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

address, contract, source, target = sys.argv[1:]
tensor = np.load(source)
answers: queue.Queue = queue.Queue()
with InferenceServerClient(address) as client:
    client.start_stream(lambda result, error: answers.put((result, error)), headers={"x-blurfleet-contract": contract})
    for frame in range(5):
        image = InferInput("image", list(tensor.shape), "FP32")
        image.set_data_from_numpy(tensor)
        client.async_stream_infer("bokeh", [image], request_id=str(frame))
    for frame in range(5):
        result, error = answers.get(timeout=10)
        if error is not None:
            raise error  # this frame's: the stream goes on
        assert result.get_response().id == str(frame)
    client.stop_stream()
np.save(target, result.as_numpy("matte"))
print(result.get_response().parameters["x-blurfleet-precision"].string_param)
