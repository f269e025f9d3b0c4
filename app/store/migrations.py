"""Migrations: the tables of the store, version after version."""

from __future__ import annotations

# Each upgrades a file from the version before it, from 0 on, to its own.
MIGRATIONS = (
    """
CREATE TABLE conversation (
    id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    system TEXT NOT NULL,
    sampling TEXT NOT NULL,
    user TEXT NOT NULL,
    source TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    leaf TEXT REFERENCES message (id) DEFERRABLE INITIALLY DEFERRED,
    is_open INTEGER NOT NULL
) STRICT;
CREATE TABLE message (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL REFERENCES conversation (id) ON DELETE CASCADE,
    parent_id TEXT REFERENCES message (id) DEFERRABLE INITIALLY DEFERRED,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    created REAL NOT NULL,
    model TEXT NOT NULL,
    request_id TEXT,
    finish_reason TEXT,
    error TEXT,
    usage TEXT,
    timings TEXT,
    context BLOB,
    context_start INTEGER,
    context_messages INTEGER,
    model_key TEXT
) STRICT;
CREATE INDEX message_by_conversation ON message (conversation_id);
CREATE INDEX message_by_parent ON message (parent_id);
CREATE INDEX message_by_request ON message (request_id);
CREATE TABLE request (
    request_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    user TEXT NOT NULL,
    conversation_id TEXT REFERENCES conversation (id) ON DELETE SET NULL,
    source TEXT NOT NULL,
    body TEXT NOT NULL,
    lease TEXT NOT NULL,
    accepted_at REAL NOT NULL,
    ended_at REAL,
    reason TEXT,
    error TEXT,
    PRIMARY KEY (request_id, attempt)
) STRICT;
CREATE INDEX request_by_conversation ON request (conversation_id);
CREATE INDEX request_unfinished ON request (lease) WHERE ended_at IS NULL;
""",
    """
ALTER TABLE request ADD COLUMN digest TEXT NOT NULL DEFAULT '';
ALTER TABLE request ADD COLUMN reply_to TEXT NOT NULL DEFAULT '';
ALTER TABLE request ADD COLUMN ending TEXT;
ALTER TABLE request ADD COLUMN told_at REAL;
CREATE INDEX request_untold ON request (source, request_id)
    WHERE ended_at IS NOT NULL AND told_at IS NULL;
CREATE INDEX request_told ON request (source, ended_at) WHERE told_at IS NOT NULL;
""",
    """
CREATE INDEX conversation_by_age ON conversation (source, updated);
CREATE INDEX conversation_by_leaf ON conversation (leaf);
""",
    """
ALTER TABLE message ADD COLUMN thinking TEXT NOT NULL DEFAULT '';
""",
    """
ALTER TABLE message ADD COLUMN tool_use TEXT;
ALTER TABLE message ADD COLUMN tool_call_id TEXT NOT NULL DEFAULT '';
ALTER TABLE message ADD COLUMN name TEXT NOT NULL DEFAULT '';
""",
    """
ALTER TABLE conversation ADD COLUMN number INTEGER;
UPDATE conversation SET number = place.number
FROM (
    SELECT id, row_number() OVER (ORDER BY created, rowid) AS number
    FROM conversation WHERE source = 'screen'
) AS place WHERE place.id = conversation.id;
CREATE UNIQUE INDEX conversation_by_number ON conversation (number) WHERE number IS NOT NULL;
""",
    """
ALTER TABLE message ADD COLUMN attachments TEXT;
ALTER TABLE message ADD COLUMN asked TEXT;
CREATE TABLE preset (
    name TEXT PRIMARY KEY,
    system TEXT NOT NULL,
    sampling TEXT NOT NULL,
    is_default INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE prompt (
    name TEXT PRIMARY KEY,
    content TEXT NOT NULL,
    updated REAL NOT NULL
) STRICT;
CREATE TABLE draft (
    conversation_id TEXT PRIMARY KEY REFERENCES conversation (id) ON DELETE CASCADE,
    content TEXT NOT NULL,
    attachments TEXT NOT NULL,
    edited TEXT,
    updated REAL NOT NULL
) STRICT;
""",
    """
DROP INDEX message_by_conversation;
CREATE INDEX message_by_place ON message (conversation_id, parent_id);
ALTER TABLE conversation ADD COLUMN forked_from TEXT;
ALTER TABLE conversation ADD COLUMN is_named INTEGER NOT NULL DEFAULT 0;
UPDATE conversation SET is_named = 1 WHERE title <> '' AND NOT EXISTS (
    SELECT * FROM message
    WHERE conversation_id = conversation.id AND parent_id IS NULL
        AND instr(ltrim(replace(content, char(10), ' ')), rtrim(title, '…')) = 1
);
""",
    """
ALTER TABLE conversation ADD COLUMN is_archived INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversation ADD COLUMN deleted_at REAL;
CREATE INDEX conversation_deleted ON conversation (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE TRIGGER message_of_deleted BEFORE INSERT ON message
WHEN EXISTS (
    SELECT * FROM conversation WHERE id = new.conversation_id AND deleted_at IS NOT NULL
) BEGIN
    SELECT RAISE (ABORT, 'the chat is deleted');
END;
""",
    """
CREATE TABLE unindexed (number INTEGER PRIMARY KEY) STRICT;
INSERT INTO unindexed SELECT number FROM message;
CREATE TRIGGER message_added AFTER INSERT ON message
WHEN new.role <> 'assistant' OR new.finish_reason IS NOT NULL
BEGIN
    INSERT INTO unindexed VALUES (new.number) ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER message_changed AFTER UPDATE OF content, finish_reason ON message
WHEN coalesce(old.finish_reason, new.finish_reason) IS NOT NULL
    AND (old.content <> new.content OR old.finish_reason IS NOT new.finish_reason)
BEGIN
    INSERT INTO unindexed VALUES (new.number) ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER message_removed AFTER DELETE ON message
BEGIN
    INSERT INTO unindexed VALUES (old.number) ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER chat_renamed AFTER UPDATE OF title ON conversation WHEN old.title <> new.title
BEGIN
    INSERT INTO unindexed SELECT number FROM message WHERE conversation_id = new.id
    ON CONFLICT DO NOTHING;
END;
""",
    """
ALTER TABLE draft ADD COLUMN aside TEXT;
""",
    """
CREATE TABLE roster (version INTEGER NOT NULL) STRICT;
INSERT INTO roster VALUES (0);
CREATE TRIGGER roster_longer AFTER INSERT ON conversation
BEGIN
    UPDATE roster SET version = version + 1;
END;
CREATE TRIGGER roster_changed
AFTER UPDATE OF title, number, updated, leaf, is_archived, deleted_at ON conversation
BEGIN
    UPDATE roster SET version = version + 1;
END;
CREATE TRIGGER roster_shorter AFTER DELETE ON conversation
BEGIN
    UPDATE roster SET version = version + 1;
END;
""",
    """
CREATE TABLE on_view (conversation_id TEXT NOT NULL) STRICT;
INSERT INTO on_view VALUES ('');
""",
    """
CREATE TABLE file (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    state TEXT NOT NULL,
    lease TEXT NOT NULL,
    num_bytes INTEGER NOT NULL,
    created REAL NOT NULL,
    expires REAL
) STRICT;
CREATE INDEX file_by_user ON file (user, state, number);
CREATE INDEX file_by_state ON file (state, expires);
CREATE TABLE line (
    file INTEGER NOT NULL REFERENCES file (number) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (file, number)
) STRICT;
CREATE TABLE batch (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    metadata TEXT,
    status TEXT NOT NULL,
    lease TEXT NOT NULL,
    moments TEXT NOT NULL,
    input TEXT NOT NULL,
    output TEXT,
    faults TEXT,
    keep_seconds REAL NOT NULL,
    errors TEXT,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    ended REAL
) STRICT;
CREATE INDEX batch_by_user ON batch (user, number);
CREATE INDEX batch_unfinished ON batch (lease) WHERE ended IS NULL;
CREATE INDEX batch_reading ON batch (input) WHERE ended IS NULL;
""",
    """
ALTER TABLE conversation ADD COLUMN pinned_at REAL;
DROP TRIGGER roster_changed;
CREATE TRIGGER roster_changed
AFTER UPDATE OF title, number, updated, leaf, is_archived, deleted_at, pinned_at ON conversation
BEGIN
    UPDATE roster SET version = version + 1;
END;
""",
)
SCHEMA_VERSION = len(MIGRATIONS)
