// Stream: follows a stream of events as long as the page is on view, and reconnects.

import { ask, events, Refusal } from "/page/server.js";

const FIRST_PAUSE_MS = 500;
const LAST_PAUSE_MS = 10_000;

export class Stream {
  /**
   * @param path returns the address.
   * @param take called with each event's kind and data.
   * @param lost called with the reason, once the stream has ended or failed.
   */
  constructor(path, take, lost) {
    this.path = path;
    this.take = take;
    this.lost = lost;
    this.ending = null;
    document.addEventListener("visibilitychange", () => this.restart());
    this.run();
  }

  /** Connect anew, to another address perhaps. */
  restart() {
    this.ending?.abort();
    this.wake?.();
  }

  async run() {
    let pause = FIRST_PAUSE_MS;
    for (;;) {
      // A hidden page needs no data, so the server need not make them.
      if (document.hidden) await new Promise((shown) => document.addEventListener("visibilitychange", shown, { once: true }));
      const ending = (this.ending = new AbortController());
      try {
        const answer = await ask(this.path(), { signal: ending.signal });
        pause = FIRST_PAUSE_MS;
        for await (const [kind, data] of events(answer)) {
          if (ending.signal.aborted) break;
          this.take(kind, JSON.parse(data));
        }
        if (!ending.signal.aborted) this.lost(null);
      } catch (error) {
        if (!ending.signal.aborted) this.lost(error instanceof Refusal ? error : null);
      }
      if (ending.signal.aborted) continue;
      ending.abort();
      await new Promise((go) => {
        this.wake = go;
        setTimeout(go, pause);
      });
      pause = Math.min(2 * pause, LAST_PAUSE_MS);
    }
  }
}
