"""A node's gateway, asked from Python: pictures and arrays in, mattes and pictures out, numpy both ways.

    from blurfleet.client import Client

    with Client("http://127.0.0.1:8090") as gateway:
        answer = gateway.blur(photo_bytes, radius="auto")
        answer.rgb            # uint8 [H,W,3]
        answer.by.engine      # who answered: engine, precision, role, epoch, contract, trace

Needs the extra `client` (httpx, websockets). `AsyncClient` has the same methods, awaited.
"""

from blurfleet.client.answers import ContractAnswer, MadeBy, MatteAnswer, PictureAnswer, TensorAnswer
from blurfleet.client.concurrent import AsyncClient
from blurfleet.client.failures import GatewayFailure, GatewayUnavailable, MatteWithheld, Problem, RequestRefused
from blurfleet.client.frames import FrameFailure, FrameResult, VideoOptions
from blurfleet.client.single import Client
from blurfleet.client.terms import Terms
from blurfleet.client.video import AsyncVideo, Video
from blurfleet.serving.streaming import Summary

__all__ = [
    "AsyncClient",
    "AsyncVideo",
    "Client",
    "ContractAnswer",
    "FrameFailure",
    "FrameResult",
    "GatewayFailure",
    "GatewayUnavailable",
    "MadeBy",
    "MatteAnswer",
    "MatteWithheld",
    "PictureAnswer",
    "Problem",
    "RequestRefused",
    "Summary",
    "TensorAnswer",
    "Terms",
    "Video",
    "VideoOptions",
]
