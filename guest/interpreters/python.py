"""Warm Python: evaluates code that arrives as JSON lines on stdin, in one namespace that lives as long as the process.

  in   {"type":"eval","id","code","generation"?,"env"?,"max_value"?}
       {"type":"hello"}                      asks for `ready` again
  out  {"type":"ready","language","version"}
       {"type":"output","id","stream","text"}          while the code runs
       {"type":"result","id","value","error","truncated"?}

SIGINT interrupts the code that runs, and nothing else. A `generation` that was not seen before means that this process is a
copy of another: every generator of random numbers is seeded anew before the code runs. Only the standard library is used,
from Python 3.9 on. Start: python3 python.py [--init FILE|CODE].
"""

import _signal
import ast
import builtins
import codecs
import json
import linecache
import os
import select
import signal
import sys
import threading
import traceback
import types

READ_SIZE = 65536
MAX_VALUE = 10 * 1024 * 1024
KEPT_SOURCES = 256
HERE = __file__
GENERATION_FILE = "/run/forkd/generation"


class Channel:
    """The two descriptors of the conversation, out of reach of user code and of its children."""

    def __init__(self):
        self.input = os.fdopen(os.dup(0), "rb")
        self.output = os.dup(1)
        self.lock = threading.Lock()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)

    def send(self, **message):
        self.write(json.dumps(message))

    def write(self, text):
        line = (text + "\n").encode("ascii")
        with self.lock:
            while line:
                line = line[os.write(self.output, line) :]


class Capture:
    """Pipes in place of descriptors 1 and 2: what children and C code write is seen as well as what Python prints."""

    def __init__(self, channel):
        self.channel = channel
        self.id = None
        self.lock = threading.Lock()
        # Whether a decoder holds the first bytes of a character.
        self.torn = False
        self.streams = {}
        for name, number in (("stdout", 1), ("stderr", 2)):
            read, write = os.pipe()
            os.set_blocking(read, False)
            # `write` stays open as well: code that closes its end must not leave `follow` with a pipe that is always ready.
            os.dup2(write, number)
            self.streams[read] = (name, codecs.getincrementaldecoder("utf-8")("replace"))
        # One for each thread: a poll object does not bear two at once.
        self.poll, self.look = select.poll(), select.poll()
        for read in self.streams:
            self.poll.register(read, select.POLLIN)
            self.look.register(read, select.POLLIN)
        threading.Thread(target=self.follow, name="forkd-output", daemon=True).start()

    def follow(self):
        while True:
            ready = self.poll.poll()
            # The lock spans reading and telling, so that drain() returns only when all is told.
            with self.lock:
                for read, _ in ready:
                    self.take(read)

    def take(self, read):
        name, decoder = self.streams[read]
        try:
            data = os.read(read, READ_SIZE)
        except BlockingIOError:
            return False
        text = decoder.decode(data)
        self.torn = self.torn or decoder.getstate()[0] != b""
        if text:
            self.channel.send(type="output", id=self.id, stream=name, text=text)
        return len(data) > 0

    def drain(self):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # closed or replaced by the code
                pass
        with self.lock:
            # Most code prints nothing: one question is cheaper than two reads that fail.
            if not self.look.poll(0) and not self.torn:
                return
            self.torn = False
            for read, (name, decoder) in self.streams.items():
                # A child that goes on writing must not keep the result back: at most what the pipe can hold.
                for _ in range(32):
                    if not self.take(read):
                        break
                rest = decoder.decode(b"", True)
                decoder.reset()
                if rest:
                    self.channel.send(type="output", id=self.id, stream=name, text=rest)


def open_input():
    return open(0, closefd=False)


def open_output(number):
    return open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


class Interpreter:
    def __init__(self):
        self.main = types.ModuleType("__main__")
        self.main.__dict__["__builtins__"] = builtins
        self.pid = os.getpid()
        self.count = 0
        self.generation = None
        # Whether the driver tells generations.
        self.told = False
        self.loop = None
        # The same stream objects for ever: loggers keep what they find at their start.
        self.stdio = (open_input(), open_output(1), open_output(2))
        sys.stdin, sys.stdout, sys.stderr = self.stdio
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = self.stdio
        sys.modules["__main__"] = self.main
        sys.argv = [""]
        if sys.path and os.path.abspath(sys.path[0] or ".") == os.path.dirname(os.path.abspath(HERE)):
            sys.path[0] = ""
        signal.signal(signal.SIGINT, self.interrupted)

    def interrupted(self, _signal, frame):
        # Only amid user code: an interrupt that comes too late must find nothing to break.
        while frame is not None:
            if frame.f_code is EXECUTE:
                raise KeyboardInterrupt
            frame = frame.f_back

    def run(self, code, max_value, name=None):
        """(value, truncated, error) of a piece of code."""
        if name is None:
            self.count += 1
            name = f"<eval {self.count}>"
            linecache.cache[name] = (len(code), None, code.splitlines(True), name)
            linecache.cache.pop(f"<eval {self.count - KEPT_SOURCES}>", None)
        try:
            return self.execute(code, max_value, name)
        except BaseException as error:  # noqa: B902 an interpreter outlives whatever its code raises
            return None, False, describe(error)

    def execute(self, code, max_value, name):
        if "\n" not in code and code[:1] not in (" ", "\t"):
            # One expression, most likely: without a tree of objects in between.
            try:
                expression = compile(code, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            except SyntaxError:
                pass
            else:
                return self.shown(self.value_of(expression), max_value)
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        value = None
        if tree.body:
            self.evaluate(tree, name, "exec")
        if last is not None:
            value = self.evaluate(last, name, "eval")
        return self.shown(value, max_value)

    def shown(self, value, max_value):
        if value is None:
            return None, False, None
        text = repr(value)
        return text[:max_value], len(text) > max_value, None

    def evaluate(self, tree, name, mode):
        return self.value_of(compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True))

    def value_of(self, code):
        result = eval(code, self.main.__dict__)
        if code.co_flags & 0x80:  # CO_COROUTINE: it awaits at top level
            import asyncio

            if self.loop is None or self.loop.is_closed():
                self.loop = asyncio.new_event_loop()
            result = self.loop.run_until_complete(result)
        return result

    def restore(self):
        """What the code may have replaced and the next call needs."""
        try:
            if any(stream.closed for stream in self.stdio):
                makers = (open_input, lambda: open_output(1), lambda: open_output(2))
                self.stdio = tuple(make() if old.closed else old for old, make in zip(self.stdio, makers))
            sys.stdin, sys.stdout, sys.stderr = self.stdio
            # The functions below `signal`, which wraps each number that it returns.
            if _signal.getsignal(_signal.SIGINT) != self.interrupted:
                _signal.signal(_signal.SIGINT, self.interrupted)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))
        except Exception:
            pass

    def renew(self, generation, env):
        """Seeds anew what a copy would share with its siblings, and takes over the environment that it got."""
        self.told = self.told or generation is not None
        # Environment that comes with a generation belongs to it: told again, it must not undo what code has set since.
        if generation is None or generation != self.generation:
            for name, value in env.items():
                os.environ[str(name)] = str(value)
        if generation is None:
            # Whoever drives a copy tells its generation with the first code: the file is for drivers that do not.
            if self.told:
                return
            try:
                with open(GENERATION_FILE) as file:
                    generation = file.read().strip()
            except OSError:
                return
        if generation == self.generation:
            return
        self.generation = generation
        for step in (reseed_random, reseed_numpy, reseed_torch, reseed_ssl, reseed_names):
            try:
                step()
            except Exception as error:
                print(f"forkd: {step.__name__} failed: {error!r}", file=sys.stderr)


EXECUTE = Interpreter.execute.__code__


def loaded(name):
    return sys.modules.get(name)


def reseed_random():
    module = loaded("random")
    if module is not None:
        module.seed(int.from_bytes(os.urandom(32), "little"))


def reseed_numpy():
    module = loaded("numpy.random")
    if module is None:
        return
    try:
        # The whole state of the generator, and no second value of a pair of normal ones. A seed would be spread by array functions, which in
        # a fresh child under emulation are all translated for this: 35 ms.
        module.set_state(("MT19937", memoryview(os.urandom(624 * 4)).cast("I"), 624, 0, 0.0))
    except Exception:  # it has been given another generator
        module.seed(list(memoryview(os.urandom(32)).cast("I")))


def reseed_torch():
    module = loaded("torch")
    if module is not None:
        module.manual_seed(int.from_bytes(os.urandom(8), "little"))


def reseed_ssl():
    if loaded("_ssl") is not None:
        import ssl

        ssl.RAND_add(os.urandom(64), 64.0)


def reseed_names():
    if loaded("tempfile") is not None:
        loaded("tempfile")._name_sequence = None
    if loaded("uuid") is not None:
        loaded("uuid")._last_timestamp = None
        loaded("uuid")._node = None


def describe(error):
    """An exception as the protocol carries it: the traceback holds the frames of user code only."""
    try:
        report = traceback.TracebackException(type(error), error, error.__traceback__)
        seen = set()
        prune(report, seen)
        text = "".join(report.format())
    except Exception as failure:
        text = f"(the traceback could not be formatted: {failure!r})\n"
    try:
        message = str(error)
    except Exception:
        message = "(an exception whose text could not be made)"
    return {"type": type(error).__name__, "message": message[:65536], "traceback": text[:262144]}


def prune(report, seen):
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    report.stack = traceback.StackSummary.from_list([f for f in report.stack if f.filename != HERE])
    prune(report.__cause__, seen)
    prune(report.__context__, seen)
    for inner in getattr(report, "exceptions", None) or ():
        prune(inner, seen)


def leave_if_forked(interpreter, error):
    """User code forked and its child came back here: only the parent goes on with the conversation."""
    if os.getpid() == interpreter.pid:
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            if error is not None and stream is sys.stderr and error["type"] != "SystemExit":
                stream.write(error["traceback"])
            stream.flush()
        except Exception:
            pass
    os._exit(exit_code(error))


def exit_code(error):
    if error is None:
        return 0
    if error["type"] != "SystemExit":
        return 1
    if error["message"] in ("", "None"):
        return 0
    return int(error["message"]) & 255 if error["message"].lstrip("-").isdigit() else 1


quote = json.encoder.encode_basestring_ascii
scan = json.JSONDecoder().scan_once


def read_message(line):
    try:
        # Without the regular expressions around it, which skip blanks that are not there.
        message = scan(line.decode("utf-8", "surrogatepass"), 0)[0]
    except (ValueError, StopIteration):
        return {}  # half a line, cut off when this process was copied
    return message if isinstance(message, dict) else {}


def serve(channel, capture, interpreter):
    ready = {"type": "ready", "language": "python", "version": "%d.%d.%d" % sys.version_info[:3]}
    channel.send(**ready)
    while True:
        line = channel.input.readline()
        if not line:
            return
        message = read_message(line)
        if message.get("type") == "hello":
            channel.send(**ready)
        elif message.get("type") == "eval":
            answer(channel, capture, interpreter, message)


def answer(channel, capture, interpreter, message):
    capture.id = message.get("id")
    env = message.get("env")
    try:
        interpreter.renew(message.get("generation"), env if isinstance(env, dict) else {})
        code = message.get("code")
        if not isinstance(code, str):
            raise TypeError("an eval needs its code as a string")
        limit = message.get("max_value")
        value, truncated, error = interpreter.run(code, limit if isinstance(limit, int) else MAX_VALUE)
    except BaseException as failure:  # noqa: B902
        value, truncated, error = None, False, describe(failure)
    leave_if_forked(interpreter, error)
    capture.drain()
    interpreter.restore()
    if error is None and not truncated and isinstance(capture.id, str):
        # The common answer, put together by hand: a third of what the encoder takes.
        shown = "null" if value is None else quote(value)
        channel.write('{"type":"result","id":' + quote(capture.id) + ',"value":' + shown + ',"error":null,"truncated":false}')
    else:
        channel.send(type="result", id=capture.id, value=value, error=error, truncated=truncated)


def warm_up(interpreter, argument):
    """Runs before `ready`; its output goes to the real stderr, where whoever starts the interpreter reads it."""
    code, name = argument, None
    if os.path.exists(argument):
        name = argument
        with open(argument, encoding="utf-8") as file:
            code = file.read()
        interpreter.main.__dict__["__file__"] = argument
    _, _, error = interpreter.run(code, 0, name)
    interpreter.main.__dict__.pop("__file__", None)
    leave_if_forked(interpreter, error)
    if error is not None:
        sys.stderr.write(error["traceback"])
        sys.stderr.flush()
        os._exit(1)


def main():
    arguments = sys.argv[1:]
    if arguments and (len(arguments) != 2 or arguments[0] != "--init"):
        sys.exit("usage: python.py [--init FILE|CODE]")
    channel = Channel()
    if sys.version_info >= (3, 12):
        import warnings

        # Fork is safe here: the only other thread reads pipes that a child does not use.
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    interpreter = Interpreter()
    if arguments:
        warm_up(interpreter, arguments[1])
        interpreter.restore()
    serve(channel, Capture(channel), interpreter)


if __name__ == "__main__":
    main()
