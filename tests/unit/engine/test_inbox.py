"""The mailbox: in order, but cancels overtake; nobody waits while there is something to read."""

from __future__ import annotations

import threading

from corral.engine.inbox import Act, Cancel, Inbox, Submit
from corral.events import Event
from corral.ids import TaskId
from corral.tasks import CacheAction, ControlAction, Task, TaskKind


def group(*ids: int) -> tuple[Task, ...]:
    return tuple(Task(TaskId(i), (1,)) for i in ids)


def sink(events: list[Event]) -> None:
    pass


def ids_of(message: object) -> list[list[TaskId]]:
    assert isinstance(message, Submit)
    return [[t.id for t in g] for g in message.groups]


def test_messages_come_out_in_the_order_they_went_in_and_once() -> None:
    box = Inbox()
    for i in (1, 2, 3):
        assert box.put(Submit((group(i),), sink))
    assert [ids_of(m) for m in box.drain()] == [[[1]], [[2]], [[3]]]
    assert box.drain() == ()


def test_s7_a_cancel_overtakes() -> None:
    box = Inbox()
    box.put(Submit((group(1),), sink))
    box.put(Cancel((TaskId(9),)))
    first, second = box.drain()
    assert isinstance(first, Cancel)
    assert isinstance(second, Submit)


def test_s7_control_overtakes_and_is_not_taken_by_a_closed_box() -> None:
    box = Inbox()
    box.put(Submit((group(1),), sink))
    box.put(Act(CacheAction(TaskId(2), TaskKind.CACHE_LIST), sink))
    assert box.put(Act(ControlAction(TaskId(3), "chatcmpl-x"), sink))
    box.put(Cancel((TaskId(9),)))
    control, cancel, *rest = box.drain()
    assert isinstance(control, Act) and control.action.id == 3
    assert isinstance(cancel, Cancel) and len(rest) == 2
    box.close()
    assert not box.put(Act(ControlAction(TaskId(4), "chatcmpl-x"), sink))


def test_s7_a_cancel_takes_its_tasks_out_of_what_was_not_read_yet() -> None:
    box = Inbox()
    box.put(Submit((group(1, 2, 3), group(4)), sink))
    box.put(Cancel((TaskId(2), TaskId(4))))
    (_, submit) = box.drain()
    assert ids_of(submit) == [[1, 3]]


def test_a_closed_box_takes_cancels_only() -> None:
    box = Inbox()
    box.close()
    assert box.is_closed
    assert not box.put(Submit((group(1),), sink))
    assert box.put(Cancel((TaskId(1),)))
    assert len(box.drain()) == 1


def test_s2_waiting_ends_with_a_message_or_when_the_box_closes() -> None:
    for wake in (Inbox.close, lambda box: box.put(Cancel(())), lambda box: box.put(Submit((), sink))):
        box = Inbox()
        reader = threading.Thread(target=box.wait, daemon=True)
        reader.start()
        wake(box)
        reader.join(10)
        assert not reader.is_alive()


def test_s2_nobody_waits_while_there_is_something_to_read() -> None:
    box = Inbox()
    box.put(Cancel(()))
    box.wait()
    box.drain()
    box.wait(0.001)
    box.close()
    box.wait()


def test_a_closed_box_lets_its_reader_rest() -> None:
    """While a server ends, the engine may have to wait for the disk, and does so without using the processor."""
    box = Inbox()
    box.close()
    box.wait()
    reader = threading.Thread(target=box.wait, daemon=True)
    reader.start()
    reader.join(0.05)
    assert reader.is_alive()
    box.put(Cancel(()))
    reader.join(10)
    assert not reader.is_alive()
