"""Processes that encode: what goes wrong there ends a prompt, and nothing else."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers
from tokenizers.processors import TemplateProcessing
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from engine.api.client import ChatMessage
from engine.api.errors import EngineError, InvalidRequestError, ModelError
from engine.api.stream import Context
from engine.model.files.tokenizer import FolderTokenizer
from engine.text.copied import CopiedTokenizer
from engine.text.encoder import ChatEncoder
from engine.text.job import CopyJob, PartialJob, PrefixJob, PromptJob, TextJob
from engine.text.pool import ClosedError, EncoderPool, encoding
from engine.text.process import EncoderProcess
from tests.support.encoding import start_pool
from tests.support.unruly_tokenizer import UnrulyTokenizer

KEY = "model@revision:float32"
SECONDS = 0.5


def chat(*contents: str) -> tuple[ChatMessage, ...]:
    roles = ("user", "assistant")
    return tuple(ChatMessage(roles[i % 2], text) for i, text in enumerate(contents))


def ids(text: str) -> list[int]:
    return list(map(ord, f"user: {text}\nassistant:"))


def processes() -> set[psutil.Process]:
    return {child for child in psutil.Process().children() if is_worker(child)}


def is_worker(child: psutil.Process) -> bool:
    """Whether a child runs the worker. One that has just been started has no command line for a
    moment: its parent goes on before `execve` has set it.
    """
    while child.status() != psutil.STATUS_ZOMBIE:
        if command := child.cmdline():
            return "engine.text.worker" in command
    return False


@pytest.fixture(scope="module")
def pool() -> Iterator[EncoderPool]:
    one = start_pool(UnrulyTokenizer(), KEY, SECONDS)
    one.ready()
    yield one
    one.close()


def test_it_encodes_as_an_encoder_here_does(byte_level: PreTrainedTokenizerFast) -> None:
    here = ChatEncoder(byte_level, KEY)
    there = start_pool(byte_level, KEY)
    text = "Hello 😀 <|im_end|>"
    prompt = there.run(PromptJob(chat(text)))
    assert prompt == here.encode(chat(text), None)
    turns, context = chat(text, "Hi", "Why?"), Context(KEY, (*prompt, 5), 2)
    assert there.run(PromptJob(turns, context)) == here.encode(turns, context)
    assert there.run(PromptJob(turns, context))[: len(prompt)] == prompt
    system = (ChatMessage("system", "Be brief."),)
    assert there.run(PrefixJob(system)) == here.common_prefix(system)
    for one in (text, ""):
        alone = byte_level.encode(one, add_special_tokens=False)
        assert there.run(TextJob(one, False)) == alone
    reply = ChatMessage("assistant", "the cat", "is not")
    begun = here.encode_partial(reply, is_open=False)
    assert there.run(PartialJob(reply, False)) == begun
    there.close()


@pytest.mark.parametrize("text", ["Hello", "Hello<|im_end|>"])
def test_a_prompt_without_a_template_begins_as_sequences_do_and_does_not_end(
    byte_level: PreTrainedTokenizerFast, text: str
) -> None:
    marked = copy.deepcopy(byte_level)
    first, last = (marked.convert_tokens_to_ids(one) for one in ("<|im_start|>", "<|im_end|>"))
    marked.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[("<|im_start|>", first), ("<|im_end|>", last)],
    )
    own = byte_level.encode(text, add_special_tokens=False)
    assert marked.encode(text) == [first, *own, last]
    encoder = ChatEncoder(marked, KEY)
    assert encoder.encode_text(text, is_whole=True) == [first, *own]
    assert encoder.encode_text(text, is_whole=False) == own


def test_a_tokenizer_in_python_works() -> None:
    tokenizer = ByT5Tokenizer()
    with encoding() as there:
        there.begin(tokenizer, KEY)
        found = there.run(PromptJob(chat("Hi")))
    assert found == ChatEncoder(tokenizer, KEY).encode(chat("Hi"), None)
    there.close()


@pytest.mark.parametrize(
    ("messages", "sentence", "param"),
    [
        ((), "messages is empty", "messages"),
        (chat("ab\ud83d"), r"messages\[0\].content has the surrogate U\+D83D", "messages"),
        ((ChatMessage("user", b"x"),), r"messages\[0\].content is of type bytes", "messages"),  # type: ignore[arg-type]
        (chat("raise"), "^the prompt cannot be encoded: TypeError: no such thing$", "prompt"),
        (chat("panic"), "encoded: Panic: retry-limit-in-match over at line 1$", "prompt"),
        (chat("grow"), "needs more than 512 MiB of memory in the model's chat", "prompt"),
        (chat("abort"), "needs more than 512 MiB of memory in the model's chat", "prompt"),
        (chat("overflow"), r"encoded: the model's chat .* broke down over it: SIGSEGV$", "prompt"),
        (chat("hang"), r"did not finish within 0\.5 s$", "prompt"),
    ],
)
def test_a_prompt_is_refused(
    pool: EncoderPool, messages: tuple[ChatMessage, ...], sentence: str, param: str
) -> None:
    with pytest.raises(InvalidRequestError, match=sentence) as caught:
        pool.run(PromptJob(messages))
    assert caught.value.param == param
    assert pool.run(PromptJob(chat("print this"))) == ids("print this")


def test_a_process_that_ends_takes_its_prompt_along(pool: EncoderPool) -> None:
    with pytest.raises(EngineError, match=r"^the process that encodes prompts ended: SIGKILL$"):
        pool.run(PromptJob(chat("die")))
    assert pool.run(PromptJob(chat("next"))) == ids("next")


def test_a_prompt_whose_process_was_killed_is_tried_once_more(
    pool: EncoderPool, tmp_path: Path
) -> None:
    text = f"once {tmp_path / 'killed'} and then it is encoded"
    assert pool.run(TextJob(text, True)) == list(map(ord, text))


def test_a_process_that_is_killed_while_it_starts_takes_no_prompt_along(
    pool: EncoderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = EncoderProcess.ready
    started: list[EncoderProcess] = []

    def die_first(process: EncoderProcess) -> None:
        if not process.is_ready:
            started.append(process)
            if len(started) == 1:
                process.kill()
        ready(process)

    for process in processes():
        process.kill()
        process.wait()
    monkeypatch.setattr(EncoderProcess, "ready", die_first)
    assert pool.run(PromptJob(chat("next"))) == ids("next")
    assert len(started) == 2


def test_a_prompt_that_crashes_its_process_is_not_tried_again(
    pool: EncoderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    run = EncoderProcess.run
    monkeypatch.setattr(
        EncoderProcess, "run", lambda process, job: tried.append(job) or run(process, job)
    )
    with pytest.raises(InvalidRequestError, match=r"broke down over it: SIGSEGV$"):
        pool.run(TextJob("crash", True))
    assert len(tried) == 1


def test_one_that_ends_between_two_prompts_takes_none_along(pool: EncoderPool) -> None:
    pool.run(PromptJob(chat("one")))
    assert processes()
    for process in processes():
        process.kill()
        process.wait()
    assert pool.run(PromptJob(chat("next"))) == ids("next")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_all_are_the_program_s(pool: EncoderPool, number: signal.Signals) -> None:
    """A server that drains still encodes what it accepted."""
    for process in pool._idle:
        process.ready()
    before = processes()
    for child in before:
        child.send_signal(number)
    assert pool.run(PromptJob(chat("next"))) == ids("next")
    assert processes() == before


def test_while_one_is_stuck_another_serves(pool: EncoderPool) -> None:
    stuck = start_pool(UnrulyTokenizer(), KEY, 20.0)
    stuck.ready()
    errors: list[Exception] = []

    def hang() -> None:
        try:
            stuck.run(PromptJob(chat("hang")))
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    while not stuck._busy:
        time.sleep(0.001)
    before = processes()
    assert stuck.run(PromptJob(chat("next"))) == ids("next")
    assert stuck.run(PromptJob(chat("and more"))) == ids("and more")
    assert len(processes() - before) == 1  # started when a prompt had waited for a while
    stuck.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [ClosedError]
    with pytest.raises(ClosedError):
        stuck.run(PromptJob(chat("late")))


def test_a_loading_waits_for_its_process_and_starts_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.text.pool.PATIENCE_SECONDS", 0.0)
    loading = start_pool(UnrulyTokenizer(), KEY, SECONDS)
    first = loading._acquire()  # as a thread does that asks it while weights are read
    threads = [threading.Thread(target=loading.ready) for _ in range(2)]
    for thread in threads:
        thread.start()
    loading._release(first)
    for thread in threads:
        thread.join(60)
    assert loading._idle == [first]
    loading.close()


def test_it_ends_with_the_program() -> None:
    other = start_pool(UnrulyTokenizer(), KEY, SECONDS)
    other.ready()
    pid = other._idle[0]._process.pid
    started = other._idle[0]._process
    assert started.stdin is not None
    started.stdin.close()
    assert started.wait(20) == 0
    assert not psutil.pid_exists(pid)
    other.close()


def test_a_folder_may_be_removed_once_its_tokenizer_is_kept(
    byte_level: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    byte_level.save_pretrained(tmp_path / "model")
    pool = start_pool(FolderTokenizer(tmp_path / "model"), KEY)
    prompt = pool.run(PromptJob(chat("Hello")))
    pool.replace_tokenizer(CopiedTokenizer(pool.run(CopyJob())))
    shutil.rmtree(tmp_path / "model")
    for one in processes():
        one.kill()
    assert pool.run(PromptJob(chat("Hello"))) == prompt
    pool.close()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("panic", r"cannot be used: Panic: retry-limit-in-match over at line 1$"),
        ("die", r"^the model's tokenizer cannot be used: SIGKILL$"),
        ("hang", r"did not finish"),
    ],
)
def test_a_tokenizer_that_cannot_begin_is_no_model(fault: str, sentence: str) -> None:
    before = processes()
    pool = start_pool(UnrulyTokenizer(fault), KEY, SECONDS)
    with pytest.raises(ModelError, match=sentence):
        pool.ready()
    assert processes() <= before
    pool.close()


def test_a_load_that_fails_leaves_no_process() -> None:
    def load() -> None:
        with encoding() as pool:
            pool.begin(UnrulyTokenizer(), KEY)
            raise ZeroDivisionError

    before = processes()
    with pytest.raises(ZeroDivisionError):
        load()
    assert processes() <= before


def test_a_spare_starts_with_the_model_where_one_is_wanted() -> None:
    before = processes()
    pool = start_pool(UnrulyTokenizer(), KEY, SECONDS)
    pool.ready()
    for _ in range(2):
        pool.start_spare()
        assert len(processes() - before) == 2
    pool.close()
    pool.start_spare()
    assert processes() <= before


def test_a_process_starts_before_there_is_a_tokenizer() -> None:
    before = processes()
    pool = EncoderPool()
    assert len(processes() - before) == 1
    pool.begin(UnrulyTokenizer(), KEY, SECONDS)
    assert pool.run(PromptJob(chat("Hi"))) == ids("Hi")
    assert len(processes() - before) == 1
    pool.close()
    with pytest.raises(ZeroDivisionError), encoding():
        raise ZeroDivisionError
    assert processes() <= before


@pytest.mark.parametrize(
    ("content", "seconds", "sentence"),
    [
        ("a" * 36, 60.0, "PanicException: Onig: Regex search error: retry-limit-in-match over"),
        ("loop", 2.0, "did not finish within 2 s"),
        ("grow", 60.0, "needs more than 512 MiB of memory"),
    ],
    ids=["expression", "loop", "grow"],
)
def test_a_real_template_or_tokenizer_at_its_worst(
    content: str, seconds: float, sentence: str
) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    # Nested repetition: 36 bytes are more than the search gives up at.
    tokenizer.normalizer = normalizers.Replace(Regex("^(([a-z])+.)+[A-Z]([a-z])+$"), "")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    wrapped.chat_template = (
        "{%- set content = messages[-1].content -%}"
        "{%- if content == 'loop' -%}"
        "{%- for i in range(99999) -%}{%- for j in range(99999) -%}{%- endfor -%}{%- endfor -%}"
        "{%- elif content == 'grow' -%}"
        "{%- for i in range(9999) -%}{{ content * 50000000 }}{%- endfor -%}"
        "{%- else -%}{{ content }}{%- endif -%}"
    )
    pool = start_pool(wrapped, KEY, seconds)
    with pytest.raises(InvalidRequestError, match=sentence):
        pool.run(PromptJob(chat(content)))
    assert pool.run(PromptJob(chat("word"))) == [0]
    pool.close()


def test_a_process_that_encodes_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template or a tokenizer might get at them, and tell them in a prompt."""
    secrets = {
        "TUI_API_KEY": "hush",
        "TUI_MQTT_PASSWORD": "hush",
        "TUI_MQTT": "mqtts://batchdeck:hush@broker.example",
        "HF_TOKEN": "hush",
        "hf_token": "hush",
        "HUGGING_FACE_HUB_TOKEN": "hush",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "PIP_INDEX_URL": "https://me:hush@index.example/simple",
        "SSH_AUTH_SOCK": "hush",
    }
    kept = {"TUI_MODEL": "builtin", "HTTP_PROXY": "http://proxy.example:3128", "LANG": "C.UTF-8"}
    for name, value in (secrets | kept).items():
        monkeypatch.setenv(name, value)
    process = EncoderProcess()
    try:
        started = psutil.Process(process._process.pid)
        while not is_worker(started):
            assert process._process.poll() is None, "it ended at once"
        there = started.environ()
    finally:
        process.close()
    assert "hush" not in "".join(there.values())
    assert kept.items() <= there.items()
    assert there["TOKENIZERS_PARALLELISM"] == "false"
    assert {"PATH", "PYTHONPATH"} & os.environ.keys() <= there.keys()
