"""A ready tensor over gRPC: tritonclient_grpc.py 127.0.0.1:8091 HASH tensor.npy matte.npy."""

import sys

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

address, contract, source, target = sys.argv[1:]
tensor = np.load(source)
image = InferInput("image", list(tensor.shape), "FP32")
image.set_data_from_numpy(tensor)
with InferenceServerClient(address) as client:
    answer = client.infer("bokeh", [image], headers={"x-blurfleet-contract": contract})
np.save(target, answer.as_numpy("matte"))
print(answer.get_response().parameters["x-blurfleet-precision"].string_param)
