"""The page at /: chat and live dashboard in a browser, and its data.

The engine's state is a stream of events at `/live`. A `LiveFeed` reads the engine four times a
second, as long as there are listeners. Each reading is a `Frame`, whose texts are made once for all
listeners: one for operators, and one without names, titles and texts of users. A listener gets the
newest frame when it has taken the one before, and with it all steps since that one. So a slow
listener misses frames, but no steps as long as it is at most 512 steps behind. Without keys,
`Visitors` admits only the server's own page. It checks `Host`, because a foreign name may resolve
to this server, and `Origin`.

Chats are those of the store. A `PageChats` keeps the `ChatSession` of each open chat on the thread
of the store, passes its requests through the gateway, and follows it with a `ChatState` for each
page. A reply goes on without a page. `Owners` says whose chats a visitor has. `markup` makes trees
of listed elements from Markdown, and `reply.js` makes nodes from them: nothing is parsed as HTML.

The page is one HTML file, a style sheet and modules, with no build and no library. `server.js`
sends requests with the key, and `stream.js` follows events (read by `fetch`, because the browser's
own event source sends no key). `chat_view.js`, `message_view.js` and `chat_list.js` are the chats;
the dashboard is in the other modules. Text is set by `textContent`, and Trusted Types in the
Content-Security-Policy have a browser refuse everything else. Map and strip are canvases with a
slider's role, so that keys go through blocks and steps and a screen reader reads each.
"""
