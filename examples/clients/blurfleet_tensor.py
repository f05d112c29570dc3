"""A tensor made by the served contract: blurfleet_tensor.py http://127.0.0.1:8090 photo.jpg matte.npy."""

import sys
from pathlib import Path

import numpy as np

from blurfleet.client import Client

url, photo, target = sys.argv[1:]
with Client(url) as gateway:
    contract = gateway.contract()  # kept: its hash is compared before a tensor is sent
    tensor = gateway.prepare(Path(photo).read_bytes())  # by the gateway's own code, float32 [1,3,H,W]
    answer = gateway.tensor(tensor, made_with=contract.spec)
np.save(target, answer.matte)
print(answer.by.precision)
