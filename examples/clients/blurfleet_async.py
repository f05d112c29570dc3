"""Two pictures at once, without evidence of them: blurfleet_async.py http://127.0.0.1:8090 photo.jpg."""

import asyncio
import sys
from pathlib import Path

from blurfleet.client import AsyncClient, Terms


async def main(url: str, name: str) -> None:
    photo = Path(name).read_bytes()
    async with AsyncClient(url, Terms(deadline_s=20, evidence=False)) as gateway:
        soft, cut = await asyncio.gather(gateway.blur(photo, radius=30), gateway.blur(photo, background="transparent"))
    print(soft.by.precision, soft.rgb.shape, cut.rgb.shape)


asyncio.run(main(*sys.argv[1:]))
