"""A picture in, a blurred picture and a matte out: blurfleet_pictures.py http://127.0.0.1:8090 photo.jpg."""

import sys
from pathlib import Path

import numpy as np

from blurfleet.client import Client, RequestRefused

url, name = sys.argv[1:]
photo = Path(name).read_bytes()
with Client(url) as gateway:
    try:
        blurred = gateway.blur(photo, radius="auto", style="disc", format="png")
    except RequestRefused as refused:
        sys.exit(f"{refused.reason}: {refused.message} ({refused.fix})")
    cut = gateway.matte(photo, fine=True).matte  # float32 [H,W] in [0,1], at the picture's size
Path("blurred.png").write_bytes(blurred.data)
np.save("matte.npy", cut)
print(blurred.by.precision, blurred.by.role, blurred.by.epoch, blurred.rgb.shape)
