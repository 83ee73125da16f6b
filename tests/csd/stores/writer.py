"""A process that writes: python -m tests.csd.stores.writer URL NUMBER BATCHES. It prints each batch's number once acknowledged.

Batch i adds 1 to the pair (0, 1), which all writers share, and 1 to (NUMBER, NUMBER + i), which nobody else writes.
"""

from __future__ import annotations

import asyncio
import sys
import time

from csd.stores.base import Batch, Store, StoreUnavailable
from tests.csd.stores.support import store_at


async def write(store: Store, number: int, batches: int) -> None:
    for i in range(1, batches + 1):
        batch = Batch(((0, 1, 1.0), (number, number + i, 1.0)))
        await acknowledged(store, batch)
        print(i, flush=True)
    await store.close()


async def acknowledged(store: Store, batch: Batch) -> None:
    deadline = time.monotonic() + 60.0
    while True:
        try:
            await store.apply(batch)
            return
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(write(store_at(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
