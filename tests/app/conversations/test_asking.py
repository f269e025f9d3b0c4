"""The settings, attachments, presets and prompts that the store keeps of a chat."""

from __future__ import annotations

import pytest

from app.conversations.history import History
from app.store.conversation import Asked, Attachment, Conversation
from app.store.database import DamagedError, DeletedError
from app.store.drafts import Draft
from app.store.store import Store
from engine.api.errors import InvalidRequestError
from engine.api.lifecycle import FinishReason, Timings
from engine.api.preset import Preset
from engine.api.stream import Context, Finish, Usage

NOTES = Attachment("notes.txt", "one\ntwo\n")


def answer(history: History, text: str) -> None:
    """A turn whose reply leaves a context behind."""
    question = history.add(text)
    messages, _ = history.prompt(question)
    reply = history.reply(question, model="m", request_id=text, sampling={"top_k": 3})
    reply.content = f"re {text}"
    context = Context("k", (1, 2, 3), len(messages) + 1)
    history.finish(reply, Finish(FinishReason.STOP, Usage(1, 1, 0), Timings(), context=context))
    history.save()


def test_a_reply_keeps_with_what_it_was_asked(store: Store) -> None:
    conversation = Conversation(system="Be brief.")
    answer(History(conversation, store), "one")
    conversation.system = "Be long."
    question, reply = store.branch(conversation.leaf or "")
    assert question.asked is None
    assert reply.asked == Asked("Be brief.", {"top_k": 3})


@pytest.mark.parametrize("read_again", [True, False])
def test_another_system_prompt_is_told_and_not_the_ids_of_the_old_one(
    store: Store, read_again: bool
) -> None:
    conversation = Conversation(system="Be brief.")
    history = History(conversation, store)
    answer(history, "one")
    if read_again:
        history = History(conversation, store)
    assert history.prompt(history.add("two"))[1] is not None
    conversation.system = "Be long."
    messages, context = history.prompt(history.add("three"))
    assert (messages[0].content, context) == ("Be long.", None)


def test_settings_are_kept_and_nothing_else_of_the_chat_is_written(store: Store) -> None:
    one = Conversation(title="One")
    store.save_conversation(one)
    one.title, one.system, one.sampling = "Other", "Be brief.", {"temperature": 0.2}
    store.save_settings(one)
    kept = store.conversation(one.id)
    assert kept is not None
    assert (kept.title, kept.system, kept.sampling) == ("One", "Be brief.", {"temperature": 0.2})


def test_an_attachment_is_told_as_a_block_with_its_name_before_what_is_said() -> None:
    assert NOTES.prompt_text == "notes.txt:\n```\none\ntwo\n```"
    assert Attachment("a", "x").prompt_text == "a:\n```\nx\n```"
    fenced = Attachment("readme.md", "```sh\nls\n```\n")
    assert fenced.prompt_text == "readme.md:\n````\n```sh\nls\n```\n````"


def test_attachments_are_kept_with_their_message_and_told(store: Store) -> None:
    conversation = Conversation()
    history = History(conversation, store)
    question = history.add("Sum it up.", attachments=(NOTES,))
    history.reply(question, model="m", request_id="r", sampling={})
    history.save()
    (kept, _) = store.branch(conversation.leaf or "")
    assert (kept.content, kept.attachments) == ("Sum it up.", (NOTES,))
    assert kept.chat_message().content == f"{NOTES.prompt_text}\n\nSum it up."


def test_an_attachment_alone_is_a_message_and_names_the_chat() -> None:
    history = History(Conversation())
    with pytest.raises(InvalidRequestError, match="the prompt is empty"):
        history.add(" ")
    assert history.add("", attachments=(NOTES,)).chat_message().content == NOTES.prompt_text
    assert history.conversation.title == "notes.txt"


def test_presets_are_kept_by_name_and_one_may_be_the_default(store: Store) -> None:
    presets = store.presets
    assert (presets.all(), presets.default()) == ([], "")
    presets.save(Preset("terse", "Be brief.", {"temperature": 0.2, "stop": ["a"]}))
    presets.save(Preset("exact", "", {"temperature": 0}))
    presets.set_default("terse")
    presets.save(Preset("terse", "Be very brief."))
    assert presets.all() == [
        Preset("exact", "", {"temperature": 0}),
        Preset("terse", "Be very brief."),
    ]
    presets.rename("terse", "short")
    assert presets.default() == "short"
    presets.rename("exact", "short")
    assert (presets.all(), presets.default()) == ([Preset("short", "", {"temperature": 0})], "")
    presets.set_default("short")
    presets.set_default("")
    assert presets.default() == ""
    presets.delete("short")
    assert presets.all() == []


def test_a_damaged_preset_says_so(store: Store) -> None:
    store.presets.save(Preset("terse"))
    store._db.write("UPDATE preset SET sampling = 'x'", ())
    with pytest.raises(DamagedError, match="a preset is damaged"):
        store.presets.all()


def test_prompts_are_kept_by_name(store: Store) -> None:
    store.prompts.save("review", "Review this:\n")
    store.prompts.save("fix", "Fix it")
    store.prompts.save("review", "Review it.")
    assert store.prompts.all() == {"fix": "Fix it", "review": "Review it."}
    store.prompts.delete("fix")
    assert list(store.prompts.all()) == ["review"]


def test_a_draft_is_kept_until_it_is_empty_or_its_chat_is_deleted(store: Store) -> None:
    one = Conversation()
    with pytest.raises(DeletedError):
        store.drafts.save(one.id, Draft("Hi"), Draft())
    store.save_conversation(one)
    assert store.drafts.of(one.id) == Draft()
    first = Draft("Hi", (NOTES,), "message")
    store.drafts.save(one.id, first, Draft())
    assert store.drafts.of(one.id) == first
    store.drafts.save(one.id, Draft("Hi you", (NOTES,)), first)
    assert store.drafts.of(one.id) == Draft("Hi you", (NOTES,))
    second = Draft("Hi you", (NOTES,), "message", Draft("Before", (NOTES,)))
    store.drafts.save(one.id, second, Draft("Hi you", (NOTES,)))
    assert store.drafts.of(one.id) == second
    store.drafts.save(one.id, Draft(), second)
    assert store.drafts.of(one.id) == Draft()
    store.drafts.save(one.id, first, first)  # another program removed it meanwhile
    assert store.drafts.of(one.id) == first
    store.delete_conversation(one.id)
    assert store.drafts.of(one.id) == first  # as long as the chat can be restored
    store.free_id(one.id)
    assert store.drafts.of(one.id) == Draft()
