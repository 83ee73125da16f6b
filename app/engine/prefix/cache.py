"""The prefix cache: what is kept of ended sessions for those that go on with their text."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.engine.prefix.prefix import Prefix
from app.engine.request import GenerationRequest
from racer.drafter import Drafter


@dataclass(slots=True)
class _Entry:
    prefix: Prefix
    since: float
    nbytes: int


class PrefixCache:
    """Conversations by tenant and name, and prompts whose further choices wait in the queue, one for each group of choices.

    Conversations are bounded in number, in bytes and in idle time; the least recently used leaves first. Prompts stay while
    somebody waits for them. Where KV rows are needed, conversations give way first, then the oldest prompts.
    Used by the worker thread alone, but for the counts.
    """

    def __init__(
        self, most: int = 0, most_bytes: int = 0, idle: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """most: conversations. most_bytes: of all together. idle: seconds until one that is not continued leaves."""
        self.most = most
        self.most_bytes = most_bytes
        self.idle = idle
        self.conversation_rows = 0
        self.conversation_bytes = 0
        self.prompt_rows = 0
        self._clock = clock
        self._conversations: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._prompts: dict[int, tuple[object, Prefix]] = {}  # by the identity of their group, which they hold

    @property
    def conversations(self) -> int:
        return len(self._conversations)

    @property
    def rows(self) -> int:
        """KV rows that all of it occupies."""
        return self.conversation_rows + self.prompt_rows

    @property
    def drafters(self) -> list[Drafter]:
        kept = [entry.prefix.drafter for entry in tuple(self._conversations.values())]
        return [drafter for drafter in kept if drafter is not None]

    def take(self, request: GenerationRequest, *, fresh: bool) -> Prefix | None:
        """Remove and return what a request can go on with. fresh: it has not run before, so it may take a conversation over.

        A turn of a conversation that runs at the same time as another finds nothing.
        """
        prompt = self._take_prompt(request.group)
        if prompt is not None or not fresh or request.conversation is None:
            return prompt
        return self._take_conversation(request.tenant, request.conversation)

    def holds(self, nbytes: int) -> bool:
        """Whether one conversation of this many bytes could be kept at all."""
        return self.most > 0 and nbytes <= self.most_bytes

    def keep_conversation(self, tenant: str, name: str, prefix: Prefix) -> None:
        """Keep it under a name, in place of what is there; one that is too large by itself is dropped."""
        self._take_conversation(tenant, name)
        nbytes = prefix.nbytes
        if not self.holds(nbytes):
            return
        self._conversations[tenant, name] = _Entry(prefix, self._clock(), nbytes)
        self.conversation_rows += prefix.rows
        self.conversation_bytes += nbytes
        while len(self._conversations) > self.most or self.conversation_bytes > self.most_bytes:
            self._drop_oldest()

    def keep_prompt(self, group: object, prefix: Prefix) -> None:
        self._take_prompt(group)
        self._prompts[id(group)] = group, prefix
        self.prompt_rows += prefix.rows

    def make_room(self, rows: int) -> None:
        """Drop what must go until this many KV rows are occupied at most."""
        while self._conversations and self.rows > rows:
            self._drop_oldest()
        while self._prompts and self.rows > rows:
            group, _ = next(iter(self._prompts.values()))
            self._take_prompt(group)

    def expire(self) -> None:
        """Drop conversations that have been idle for too long."""
        oldest = self._clock() - self.idle
        while self._conversations and next(iter(self._conversations.values())).since <= oldest:
            self._drop_oldest()

    def retain(self, waiting: Iterable[GenerationRequest]) -> None:
        """Drop the prompts that no waiting request needs."""
        if self._prompts:
            groups = {id(request.group) for request in waiting}
            for group, _ in [kept for name, kept in self._prompts.items() if name not in groups]:
                self._take_prompt(group)

    def clear(self) -> None:
        self._conversations.clear()
        self._prompts.clear()
        self.conversation_rows = self.conversation_bytes = self.prompt_rows = 0

    def _drop_oldest(self) -> None:
        self._take_conversation(*next(iter(self._conversations)))

    def _take_conversation(self, tenant: str, name: str) -> Prefix | None:
        entry = self._conversations.pop((tenant, name), None)
        if entry is None:
            return None
        self.conversation_rows -= entry.prefix.rows
        self.conversation_bytes -= entry.nbytes
        return entry.prefix

    def _take_prompt(self, group: object | None) -> Prefix | None:
        kept = self._prompts.pop(id(group), None)
        if kept is None:
            return None
        self.prompt_rows -= kept[1].rows
        return kept[1]
