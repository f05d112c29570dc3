"""The Unix socket from gateway to agent: frames go one way, nothing comes back, and the gateway never waits.

The sender may lose frames (a queue that drops the oldest, a connection that breaks); it may not slow a request. The
receiver trusts nobody: a message that is not a frame closes that connection and no other.
"""

from __future__ import annotations

from blurfleet.serving.framecodec import FrameKind, FrameSample
from blurfleet.serving.framereceiver import FrameReceiver
from blurfleet.serving.framesender import FrameSender, SenderCounts

__all__ = ["FrameKind", "FrameReceiver", "FrameSample", "FrameSender", "SenderCounts"]
