"""The page: its size, and how soon a long chat is on view.

    python -m benchmarks.page [--messages N] [--rounds N]

A scripted server has a chat of N messages with headings and paragraphs. In Chromium, the chat is
opened from the list, in turns with a new one: the time is from the arrival of its messages to when
the last one is laid out at the end of the view. Messages out of view are laid out once they are
seen.
"""

from __future__ import annotations

import argparse
import statistics

from app.gateway.http.page.routes import FOLDER
from app.process.columns import align
from benchmarks.heading import heading
from benchmarks.options import positive_int
from tests.support.browser import Browser
from tests.support.http_serving import http_serving, store_chat

_BROWSED = (".html", ".css", ".js", ".svg")
# `JSON.parse` reads a chat's messages right when they have come.
_OPENING = """
new Promise((shown) => {
  const box = document.getElementById('messages');
  const parse = JSON.parse;
  let began;
  JSON.parse = (text) => { began = performance.now(); return parse(text); };
  const seen = new MutationObserver(() => {
    if (!box.lastElementChild?.textContent.includes('reply LAST')) return;
    seen.disconnect();
    JSON.parse = parse;
    box.scrollTop = box.scrollHeight;
    shown(performance.now() - began);
  });
  document.getElementById('new-chat').click();
  seen.observe(box, { childList: true, subtree: true });
  document.querySelector('#chats button').click();
})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="The page: its size, and its longest chat.")
    parser.add_argument("--messages", type=positive_int, default=500)
    parser.add_argument("--rounds", type=positive_int, default=9)
    chosen = parser.parse_args()
    number = max(1, chosen.messages // 2)
    replies = [f"# reply {one}\n\n{'words ' * 60}" for one in range(number)]
    opening = _OPENING.replace("LAST", str(number - 1))
    with http_serving() as serving, Browser() as browser:
        store_chat(serving, replies)
        page = browser.open(serving.url)
        page.until("document.querySelector('#chats button')")
        taken = [float(page.value(opening)) for _ in range(chosen.rounds)]
        laid_out = int(page.value("document.querySelectorAll('.message .text').length"))
        page.close()
    size = sum(one.stat().st_size for one in FOLDER.iterdir() if one.suffix in _BROWSED)
    print(heading())
    print(
        "\n".join(
            align(
                [
                    ("files", f"{size / 1000:.0f} KB"),
                    ("messages", str(2 * number)),
                    ("laid out at first", str(laid_out)),
                    ("median", f"{statistics.median(taken):.0f} ms"),
                    ("slowest", f"{max(taken):.0f} ms"),
                ]
            )
        )
    )


if __name__ == "__main__":
    main()
