"""The page at /: chat and live dashboard in a browser, and its data.

The engine's state is a stream of events at `/live`. A `LiveFeed` reads the engine four times a
second, as long as there are listeners. Each reading is a `Frame`, whose texts are made once for all
listeners: one for operators, and one without names, titles and texts of users. A listener gets the
newest frame when it has taken the one before, with the steps that it has not got yet, so that a
slow reader misses frames and, as far as 512 go back, no steps. Where there are no keys, `Visitors`
admits the server's own page only: by `Host`, since a name may resolve to this server, and by
`Origin`.

The page is one HTML file, a style sheet and modules, with no build and no library. `page.js` has
the key, the stream (read by `fetch`, because the browser's own event source sends no key) and the
chats; the dashboard is in the other modules. Text is set by `textContent`, and Trusted Types in the
Content-Security-Policy have a browser refuse everything else. Map and strip are canvases with a
slider's role, so that keys go through blocks and steps and a screen reader reads each.
"""
