import json
import os
import socket
import threading

import pytest

from colonnade.sweeps.slots.channel import Channel


@pytest.fixture
def ends():
    """A channel, and a function that answers its next question."""
    ours, theirs = socket.socketpair()
    with ours, ours.makefile("rwb") as file:

        def answer(**says):
            def serve():
                answer.asked = json.loads(file.readline())
                file.write(json.dumps(says).encode() + b"\n")
                file.flush()

            thread = threading.Thread(target=serve)
            thread.start()
            return thread

        channel = Channel(theirs.detach())
        yield channel, answer
        channel.close()


def test_questions_and_answers(ends):
    channel, answer = ends
    thread = answer(value=0.5)
    assert channel.ask("suggest_float", "x", 0, 1, log=False) == 0.5
    thread.join()
    assert answer.asked == {"call": "suggest_float", "args": ["x", 0, 1], "kwargs": {"log": False}}


@pytest.mark.parametrize(("name", "kind"), [("ValueError", ValueError), ("Strange", RuntimeError)])
def test_errors_come_back_as_errors(ends, name, kind):
    channel, answer = ends
    thread = answer(error=name, message="no such step")
    with pytest.raises(kind, match="no such step"):
        channel.ask("report", 1.0, -1)
    thread.join()


def test_it_is_not_for_forks(ends):
    channel, _ = ends
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            channel.ask("params")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"not in its forks" in os.read(read, 1000)
    os.close(read)
    os.close(write)


def test_a_torn_message_is_the_end():
    ours, theirs = socket.socketpair()
    ours.sendall(b'{"half')
    ours.close()
    channel = Channel(theirs.detach())
    assert channel.receive() is None
    channel.close()
