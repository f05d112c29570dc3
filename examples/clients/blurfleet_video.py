"""Video frames over one connection: blurfleet_video.py http://127.0.0.1:8090 photo.jpg.

A camera sends its frames from a thread of its own: the gateway works on the newest, and says which it left out.
"""

import sys

import cv2
import numpy as np

from blurfleet.client import Client, FrameFailure, VideoOptions

url, name = sys.argv[1:]
photo = cv2.cvtColor(cv2.imread(name), cv2.COLOR_BGR2RGB)
with Client(url) as gateway, gateway.stream(VideoOptions(output="both", smoothing=0.7)) as video:
    for shift in range(5):
        video.send(np.roll(photo, shift, axis=1))
        heard = video.receive()
        if isinstance(heard, FrameFailure):
            print(heard.id, heard.error)  # this frame's: the stream goes on
            continue
        print(heard.id, heard.picture("blur").shape, heard.matte.shape, heard.dropped)
print(video.summary.answered, video.summary.flicker is not None)
